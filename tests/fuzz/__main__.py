"""The long run: `python -m tests.fuzz --count 2000`; `--seed 17` prints one program as a file and judges it.

`--triton` judges the kernels of a GPU instead, in Triton's interpreter (about two seconds a program); see `tests.fuzz.interpreted`.
`--roles` judges those in which warps have roles, on a simulated machine; see `tests.fuzz.simulated`.
`--file` judges programs that `--save` left.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.fuzz.choices import Choices, random_choices, role_choices, tile_choices
from tests.fuzz.judge import Verdict, compiled, guarded, kernels, quick
from tests.fuzz.shrink import shrink
from tests.fuzz.source import source, summary

TRIALS = {"quick": 120, "kernels": 40, "compiled": 15, "triton": 50, "roles": 50}
JUDGES: dict[str, Callable[[str], Verdict]] = {
    "quick": quick,
    "kernels": kernels,
    "compiled": compiled,
}
console = Console(width=140, soft_wrap=True)


def main() -> int:
    """Run, and exit with 1 if a program failed."""
    p = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    p.add_argument("--count", type=int, default=500, help="programs")
    p.add_argument("--first", type=int, default=0, help="the first seed")
    p.add_argument("--seconds", type=float, default=0, help="stop after this time")
    p.add_argument("--seed", type=int, nargs="+", default=[], help="some programs, by their seeds")
    p.add_argument("--kernels", type=float, default=0.1, help="share that also runs as C++")
    p.add_argument("--compiled", type=float, default=0.02, help="share that torch.compile runs too")
    p.add_argument("--triton", action="store_true", help="judge Triton kernels, and these alone")
    p.add_argument("--roles", action="store_true", help="judge kernels with roles, and these alone")
    p.add_argument("--file", type=Path, nargs="+", default=[], help="some programs, by their files")
    p.add_argument("--no-shrink", action="store_true")
    p.add_argument("--save", type=Path, help="a folder for the files of failures")
    a = p.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if a.triton:
        _interpret()
        a.kernels = a.compiled = 0
    if a.roles:
        from tests.fuzz.simulated import roles

        JUDGES["roles"] = roles
        a.kernels = a.compiled = 0
    choices = tile_choices if a.triton else role_choices if a.roles else random_choices
    if not a.file and not a.seed:
        return _many(choices, a)
    failed = [_one(path.read_text(), None, a) for path in a.file]
    failed += [_one(source(c), c, a) for c in map(choices, a.seed)]
    return any(failed)


def _interpret() -> None:
    """Go on in a process that interprets kernels."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        again = [sys.executable, "-m", "tests.fuzz", *sys.argv[1:]]
        os.execve(sys.executable, again, {**os.environ, "TRITON_INTERPRET": "1"})
    from tests.fuzz.interpreted import triton

    JUDGES["triton"] = triton


def _one(text: str, c: Choices | None, a: argparse.Namespace) -> bool:
    """Judge a program, and say what was found; one of choices that fails is shrunk."""
    print(text)
    shares = {
        "triton": a.triton,
        "roles": a.roles,
        "quick": not (a.triton or a.roles),
        "kernels": a.kernels,
        "compiled": a.compiled,
    }
    verdicts = {n: guarded(JUDGES[n], text) for n, share in shares.items() if share}
    for name, v in verdicts.items():
        console.print(f"{name}: {v.failure or 'ok'}; {v.regions} regions {v.refusals or ''}")
        for schedule in v.schedules:
            console.print(f"  {schedule}", markup=False)
        if v.failure and c is not None and not a.no_shrink:
            _report(c, name, v, a)
    return any(v.failure for v in verdicts.values())


def _many(choices: Callable[[int], Choices], a: argparse.Namespace) -> int:
    start, failures, codes = time.monotonic(), [], Counter[str]()
    real = Counter[str]()
    done = fused = taken = 0
    columns = (
        *(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=a.count)
        for seed in range(a.first, a.first + a.count):
            if a.seconds and time.monotonic() - start > a.seconds:
                break
            c = choices(seed)
            text = source(c)
            name = "triton" if a.triton else "roles" if a.roles else "quick"
            verdict = guarded(JUDGES[name], text)
            for other, share in (("kernels", a.kernels), ("compiled", a.compiled)):
                if not verdict.failure and random.Random(f"{seed} {other}").random() < share:
                    real[other] += 1
                    name, verdict = other, guarded(JUDGES[other], text)
            done += 1
            fused += verdict.is_fused
            taken += verdict.regions > 0
            codes.update(verdict.refusals)
            if verdict.failure:
                failures.append((seed, name, verdict.failure))
                _report(c, name, verdict, a)
            if not console.is_terminal and done % 50 == 0:
                console.print(f"{done} programs, {len(failures)} failed")
                console.file.flush()
            progress.update(bar, advance=1, description=f"{len(failures)} failed")
    by = f"{real['kernels']} also by C++ kernels, {real['compiled']} by torch.compile"
    console.print(
        f"{done} programs ({'by kernels of a GPU' if a.triton or a.roles else by}) "
        f"in {time.monotonic() - start:.0f} s: {len(failures)} failed, "
        f"{100 * fused / max(done, 1):.1f} % fused, {100 * taken / max(done, 1):.1f} % with a region."
    )
    for code, n in codes.most_common(5):
        console.print(f"  {n:5d} {code}")
    for seed, name, why in failures:
        console.print(f"  seed {seed} {name}: {why}", markup=False)
    return bool(failures)


def _report(c: Choices, name: str, verdict: Verdict, a: argparse.Namespace) -> None:
    """Say what failed, as plainly as it can be made to fail."""
    judge = JUDGES[name]
    small = c
    if not a.no_shrink:
        kind = verdict.kind
        small = shrink(c, lambda x: guarded(judge, source(x)).kind == kind, TRIALS[name])
    console.print(f"seed {c.seed} {name}: {verdict.failure}", markup=False)
    console.print(
        f"  {summary(c)}\n  shrunk: {summary(small)} S={small.S} D={small.D}", markup=False
    )
    if a.save:
        a.save.mkdir(parents=True, exist_ok=True)
        (a.save / f"seed{c.seed}_{name}.py").write_text(source(small))


if __name__ == "__main__":
    raise SystemExit(main())
