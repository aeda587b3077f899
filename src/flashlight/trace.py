"""Watching the compiler work: the debug ladder, numbered dumps and timings. Without either variable it costs two look-ups.

FLASHLIGHT_DEBUG=n writes to stderr; every level holds the ones below it:

    1   regions taken and refusals
    2   every pass, with its time
    3   the difference a pass made to the program's text
    4   generated source
    5   every rule that simplify applied, with the place where it is written

FLASHLIGHT_DUMP=dir writes what each stage leaves, one folder for each region: 00_lifted.ir, 01_simplify.ir, ..., 09_kernel.triton.py
and summary.json. `python -m flashlight opt` replays any .ir file from any pass.
"""

from __future__ import annotations

import contextvars
import difflib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from flashlight.ir.nests import Program
from flashlight.ir.verify import LAWS, verify

T = TypeVar("T")
R = TypeVar("R")

REGIONS, PASSES, CHANGES, SOURCE, RULES = 1, 2, 3, 4, 5


@dataclass
class Region:
    """What one region's compilation leaves behind.

    Attributes:
        name: of the region; its folder's name.
        seconds: by stage, summed.
        texts: what each stage left, in order, as (file name, text); kept only where someone listens.
        folder: where dumps go, or None.
    """

    name: str
    seconds: dict[str, float] = field(default_factory=dict)
    texts: list[tuple[str, str]] = field(default_factory=list)
    folder: Path | None = None
    keeps: bool = False

    def add(self, stage: str, text: str, suffix: str) -> None:
        """Number a text, keep it if asked to, and write it if there is a folder."""
        name = f"{len(self.texts):02d}_{stage}.{suffix}"
        self.texts.append((name, text if self.keeps else ""))
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text.rstrip("\n") + "\n", encoding="utf-8")


_region: contextvars.ContextVar[Region | None] = contextvars.ContextVar("region", default=None)


@dataclass(frozen=True, slots=True)
class Settings:
    """How a compilation is watched: the options `debug`, `dump` and `verify`."""

    debug: int = 0
    dump: str = ""
    verify: bool = False


_given: contextvars.ContextVar[Settings | None] = contextvars.ContextVar("given", default=None)


def _settings() -> Settings:
    """Those of the current compilation, or the environment's."""
    given = _given.get()
    if given is not None:
        return given
    debug = os.environ.get("FLASHLIGHT_DEBUG", "0")
    return Settings(
        int(debug) if debug.isdigit() else 0,
        os.environ.get("FLASHLIGHT_DUMP", ""),
        os.environ.get("FLASHLIGHT_VERIFY", "0") == "1",
    )


def level() -> int:
    """The debug level, 0 to 5."""
    return _settings().debug


@contextmanager
def using(settings: Settings) -> Iterator[None]:
    """The settings of one compilation, in place of the environment's."""
    token = _given.set(settings)
    try:
        yield
    finally:
        _given.reset(token)


def listens() -> bool:
    """Whether anybody looks at what stages leave."""
    current = _region.get()
    return level() >= CHANGES or (
        current is not None and (current.folder is not None or current.keeps)
    )


def logger(stage: str) -> logging.Logger:
    """The channel `flashlight.<stage>`. With FLASHLIGHT_DEBUG set, the channels write to stderr."""
    root = logging.getLogger("flashlight")
    if level() and not any(isinstance(h, _Stderr) for h in root.handlers):
        root.addHandler(_Stderr())
        root.setLevel(logging.DEBUG)
        root.propagate = False
    return logging.getLogger(f"flashlight.{stage}")


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Looks stderr up when it writes, as tests and notebooks replace it."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("[%(name)s] %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def say(rung: int, stage: str, message: str, *args: object) -> None:
    """Log `message` if the ladder reaches `rung`; the arguments are formatted only then."""
    if level() >= rung:
        logger(stage).info(message, *args)


@contextmanager
def region(name: str, *, keeps: bool = False) -> Iterator[Region]:
    """Everything compiled inside belongs to the region `name`."""
    dump = _settings().dump
    current = Region(name, folder=Path(dump) / name if dump else None, keeps=keeps)
    token = _region.set(current)
    try:
        yield current
    finally:
        _region.reset(token)
        if current.folder is not None:
            current.folder.mkdir(parents=True, exist_ok=True)
            summary = {
                "region": name,
                "seconds": {k: round(v, 6) for k, v in current.seconds.items()},
                "files": [file for file, _ in current.texts],
            }
            (current.folder / "summary.json").write_text(
                json.dumps(summary, indent=1) + "\n", encoding="utf-8"
            )


@contextmanager
def timed(stage: str) -> Iterator[None]:
    """Count the time spent inside for `stage` of the current region."""
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds = time.perf_counter() - start
        current = _region.get()
        if current is not None:
            current.seconds[stage] = current.seconds.get(stage, 0.0) + seconds
        say(PASSES, stage, "%.1f ms", seconds * 1e3)


def step(name: str, run: Callable[[T], R], program: T) -> R:
    """Run one pass: timed, its difference shown, its result dumped, and verified if that is asked for.

    The result is whatever the pass returns. Raises VerifyError.
    """
    with timed(name):
        result = run(program)
    left(name, result, before=program)
    if _settings().verify and isinstance(result, Program):
        with timed("verify"):
            verify(result, LAWS)
    return result


def left(stage: str, result: object, *, before: object = None, suffix: str = "ir") -> None:
    """Note what a stage left: a program or a source text."""
    if not listens():
        return
    current = _region.get()
    text = str(result)
    if current is not None:
        current.add(stage, text, suffix)
    if suffix != "ir":
        say(SOURCE, stage, "%s", text)
    elif before is not None and level() >= CHANGES:
        change = "\n".join(_difference(str(before), text))
        say(CHANGES, stage, "%s", change or "no change")


def _difference(before: str, after: str) -> list[str]:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1)
    return list(lines)[2:]


def applied(rule: Callable[..., object], before: object, after: object) -> None:
    """Log that a rule rewrote `before` to `after`, with the file and line of the rule."""
    if level() < RULES:
        return
    code = getattr(rule, "__code__", None)
    where = f"{Path(code.co_filename).name}:{code.co_firstlineno}" if code else str(rule)
    say(RULES, "rule", "%s %s: %s -> %s", where, getattr(rule, "__name__", "?"), before, after)
