"""What capture did, for `explain`, the debug ladder and tests: regions taken, and refusals with the user's lines."""

from __future__ import annotations

import contextvars
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from flashlight import trace
from flashlight.errors import Refusal
from flashlight.ir.nests import Origin, Program


@dataclass(frozen=True)
class Taken:
    """A region that became a call of `flashlight::fused`.

    Attributes:
        lifted: its program, one nest for each op, with origins.
        program: its canonical program.
        token: what the call carries.
        device: where its inputs live.
        hints: sizes of the canonical program's symbols at the first call.
        origins: FX nodes and lines of the user's code, each line once.
        phase: "forward" or "backward".
    """

    lifted: Program
    program: Program
    token: str
    device: str
    hints: dict[str, int]
    origins: tuple[Origin, ...]
    phase: str = "forward"


@dataclass
class Record:
    """Regions and refusals of one or several graphs, in order."""

    regions: list[Taken] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)


_collectors: contextvars.ContextVar[tuple[Record, ...]] = contextvars.ContextVar(
    "collectors", default=()
)
_last = Record()


def last() -> Record:
    """The record of the graph that was captured last."""
    return _last


@contextmanager
def collecting(*, alone: bool = False) -> Iterator[Record]:
    """Everything captured inside is also noted in the record that is given; `alone`: in no other until it is handed on."""
    record = Record()
    token = _collectors.set((record,) if alone else (*_collectors.get(), record))
    try:
        yield record
    finally:
        _collectors.reset(token)


def hand_on(record: Record) -> None:
    """Note what was captured alone in every record that is being collected."""
    for collector in _collectors.get():
        collector.regions.extend(record.regions)
        collector.refusals.extend(record.refusals)


def publish(record: Record) -> None:
    """Make a graph's record the last one and hand it to whoever collects."""
    global _last
    _last = record
    hand_on(record)
    for taken in record.regions:
        lines = ", ".join(o.line for o in taken.origins[:3])
        trace.say(trace.REGIONS, "capture", "taken: %s nests, %s", len(taken.lifted.nests), lines)
    for refusal in record.refusals:
        trace.say(trace.REGIONS, "capture", "refused: %s", refusal)


_warned: set[str] = set()


def warn_once(message: str) -> None:
    """Warn of something that would otherwise be repeated for every graph."""
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, stacklevel=2)
