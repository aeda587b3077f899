"""`doctor`: what this machine has for Flashlight, and what is missing."""

from __future__ import annotations

import argparse
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata, util
from typing import Any, Literal, TypeAlias

from rich.table import Table

from flashlight.cli.console import console

State: TypeAlias = Literal["ok", "missing", "broken"]
TORCH, TRITON = ((2, 11), (2, 15)), (3, 6)


@dataclass(frozen=True)
class Finding:
    """One line.

    Attributes:
        what: what was looked at.
        state: "missing" is only a pity; "broken" means that Flashlight cannot work.
        says: what was found.
        hint: what to do about it.
    """

    what: str
    state: State
    says: str
    hint: str = ""


def add(commands: Any) -> None:
    """Declare the arguments."""
    parser = commands.add_parser("doctor", help="what this machine has, and what is missing")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Status 1 if something without which nothing works is broken."""
    table = Table(box=None, pad_edge=False)
    for heading in ("", "", "found", "hint"):
        table.add_column(heading)
    marks = {"ok": "[green]ok[/]", "missing": "[yellow]missing[/]", "broken": "[red]broken[/]"}
    findings = list(examine())
    for f in findings:
        table.add_row(marks[f.state], f.what, f.says, f.hint)
    console().print(table)
    return int(any(f.state == "broken" for f in findings))


def examine() -> Iterator[Finding]:
    """Every finding, in the order in which they matter. A check that fails is a finding, not a crash."""
    for check in (
        _python,
        _torch,
        _hook,
        _entry_point,
        _device,
        _triton,
        _numpy,
        _compiler,
        _cache,
        _extras,
    ):
        try:
            yield from check()
        except Exception as error:  # a doctor must not die of what it finds
            yield Finding(check.__name__.strip("_"), "broken", f"{type(error).__name__}: {error}")


def _python() -> Iterator[Finding]:
    yield Finding("Python", "ok", platform.python_version())


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(x) for x in text.split("+")[0].split(".")[:2])


def _torch() -> Iterator[Finding]:
    import torch

    low, high = TORCH
    good = low <= _version(torch.__version__) < high
    hint = (
        ""
        if good
        else f"Flashlight is written for torch {low[0]}.{low[1]} to {high[0]}.{high[1] - 1}."
    )
    yield Finding("torch", "ok" if good else "broken", torch.__version__, hint)


def _hook() -> Iterator[Finding]:
    from torch._inductor import config

    there = hasattr(config, "joint_custom_pre_pass")
    yield Finding(
        "Inductor's joint hook",
        "ok" if there else "broken",
        "joint_custom_pre_pass" if there else "not there",
    )


def _entry_point() -> Iterator[Finding]:
    found = metadata.entry_points(group="torch_dynamo_backends", name="flashlight")
    if found:
        yield Finding("backend entry point", "ok", next(iter(found)).value)
    else:
        yield Finding(
            "backend entry point",
            "missing",
            'torch.compile(backend="flashlight") does not find it',
            "Install the package (pip install -e .), or call flashlight.compile.",
        )


def _device() -> Iterator[Finding]:
    import torch

    if not torch.cuda.is_available():
        yield Finding("GPU", "missing", "no CUDA device", "The CPU target is used.")
        return
    for n in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(n)
        says = f"{p.name}, sm_{p.major}{p.minor}, {p.total_memory / 2**30:.0f} GiB, {p.multi_processor_count} SMs"
        good = (p.major, p.minor) >= (8, 0)
        hint = "" if good else "Kernels are written for sm_80 and later."
        yield Finding(f"GPU {n}", "ok" if good else "missing", says, hint)


def _triton() -> Iterator[Finding]:
    import torch

    needed = torch.cuda.is_available()
    if util.find_spec("triton") is None:
        yield Finding(
            "triton",
            "broken" if needed else "missing",
            "not installed",
            "pip install triton" if needed else "Only the GPU target needs it.",
        )
        return
    version = metadata.version("triton")
    good = _version(version) >= TRITON
    yield Finding(
        "triton",
        "ok" if good else "broken",
        version,
        "" if good else "Flashlight needs triton 3.6 or later.",
    )


def _numpy() -> Iterator[Finding]:
    version = metadata.version("numpy")
    triton = util.find_spec("triton") and _version(metadata.version("triton"))
    if triton and triton < (3, 7) and _version(version) >= (2, 4):
        yield Finding(
            "numpy",
            "missing",
            version,
            "Triton 3.6's interpreter, used by tests, needs numpy < 2.4.",
        )
    else:
        yield Finding("numpy", "ok", version)


def _compiler() -> Iterator[Finding]:
    from torch._inductor import cpp_builder

    try:
        name = cpp_builder.get_cpp_compiler()
    except Exception as error:
        yield Finding(
            "C++ compiler",
            "missing",
            str(error).splitlines()[0],
            "Without one, programs on the CPU run under Inductor's fallback.",
        )
        return
    yield Finding("C++ compiler", "ok", shutil.which(name) or name)
    from torch._inductor import cpu_vec_isa

    yield Finding("vector ISA", "ok", str(cpu_vec_isa.pick_vec_isa()) or "none")


def _cache() -> Iterator[Finding]:
    from flashlight.runtime.cache import root

    folder = root()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        yield Finding(
            "cache",
            "missing",
            f"{folder}: {error}",
            "Set FLASHLIGHT_CACHE_DIR to a folder that can be written.",
        )
        return
    free = shutil.disk_usage(folder).free / 2**30
    mode = folder.stat().st_mode & 0o077
    hint = "Others may read or write it." if mode else ""
    yield Finding("cache", "ok", f"{folder}, {free:.0f} GiB free", hint)


def _extras() -> Iterator[Finding]:
    wanted: dict[str, Callable[[], str]] = {
        "matplotlib": lambda: "bench draws no plot without it",
        "transformers": lambda: "only the tests with whole models need it",
    }
    for name, why in wanted.items():
        if util.find_spec(name) is None:
            yield Finding(name, "missing", "not installed", why())
        else:
            yield Finding(name, "ok", metadata.version(name))
