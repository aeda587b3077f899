"""`bench`: the programs side by side; see flashlight.bench."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from flashlight.cli.console import console, fail


def _names(text: str) -> tuple[str, ...]:
    return tuple(x for x in text.split(",") if x)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(x) for x in _names(text))


def add(commands: Any) -> None:
    """Declare the arguments."""
    parser = commands.add_parser(
        "bench",
        help="time the programs side by side",
        description="Every cell is checked against float64 first; then all systems are timed in turn.",
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--grid", default=None, help="smoke, cpu, quick, full, beyond or paper")
    parser.add_argument(
        "--variants", type=_names, default=(), metavar="A,B", help="only these programs"
    )
    parser.add_argument("--dtypes", type=_names, default=(), metavar="fp16,bf16")
    parser.add_argument("--lengths", type=_numbers, default=(), metavar="512,4096")
    parser.add_argument("--head-dims", type=_numbers, default=(), metavar="64,128")
    parser.add_argument("--kv-heads", type=_numbers, default=(), metavar="16,2")
    parser.add_argument("--systems", type=_names, default=(), metavar="ours,flex")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/latest.json"))
    parser.add_argument("--rounds", type=int, default=3, help="how often each system is timed")
    parser.add_argument(
        "--jobs", type=int, default=0, help="processes that compile ahead of the timing"
    )
    parser.add_argument("--seconds", type=float, default=None, help="begin no cell after this time")
    parser.add_argument(
        "--graphs", action="store_true", help="time replays of CUDA graphs: the device alone"
    )
    parser.add_argument("--tune", default=None, help="off, quick or max: Flashlight's tuning")
    parser.add_argument("--list", action="store_true", help="print the cells and stop")
    parser.add_argument(
        "--show", type=Path, nargs="+", metavar="FILE", help="print and plot earlier runs, joined"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Status 1 if any cell of ours is wrong or did not run."""
    if args.tune:
        os.environ["FLASHLIGHT_TUNE"] = args.tune  # also for the processes that compile ahead
    import torch

    from flashlight.bench.cells import GRIDS, grid, select
    from flashlight.bench.run import Plan, show
    from flashlight.bench.run import run as run_plan
    from flashlight.bench.systems import BY_NAME, ON_CPU, ON_CUDA

    out = console()
    if args.show:
        return _show(args, out, show)
    device = args.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    name = args.grid or ("cpu" if device == "cpu" else "quick")
    if name not in GRIDS:
        fail(f"Unknown grid '{name}'; expected one of {', '.join(GRIDS)}.")
    cells = select(
        grid(name),
        variants=args.variants,
        dtypes=args.dtypes,
        lengths=args.lengths,
        head_dims=args.head_dims,
        kv_heads=args.kv_heads,
    )
    systems = args.systems or (ON_CUDA if device == "cuda" else ON_CPU)
    if unknown := [s for s in systems if s not in BY_NAME]:
        fail(f"Unknown systems {unknown}; expected some of {', '.join(BY_NAME)}.")
    if args.list or not cells:
        for cell in cells:
            out.print(str(cell), highlight=False)
        return 0 if cells else 1
    plan = Plan(
        cells,
        systems,
        torch.device(device),
        args.out,
        rounds=args.rounds,
        jobs=args.jobs,
        seconds=args.seconds,
        graphs=args.graphs and device == "cuda",
    )
    rows = run_plan(plan, out)
    return int(any("ours" in systems and not row.correct for row in rows))


def _show(args: argparse.Namespace, out: Any, show: Any) -> int:
    from flashlight.bench.record import load

    facts: dict[str, object] = {}
    rows: dict[tuple[Any, ...], Any] = {}
    for path in args.show:
        facts, more = load(path)
        rows.update((row.key, row) for row in more)
    show(list(rows.values()), facts, args.out, out)
    return 0
