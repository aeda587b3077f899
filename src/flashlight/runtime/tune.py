"""Choose among schedules by trying them: compiled one by one, spills rejected, results compared, the fastest kept.

`trial` runs a schedule and says what came of it; everything here is independent of the device, and testable without one.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from flashlight.rewrite.schedule import Schedule
from flashlight.runtime import cache

Mode = Literal["off", "quick", "max"]
HOW_MANY = {"off": 5, "quick": 7, "max": 40}
"""Schedules that are run at most: without tuning, until one spills nothing that matters."""

FEW_SPILLS = 32
"""Words of local memory per thread that hardly cost: what a result needs after its loop, or a few for one more instance at once."""


@dataclass(frozen=True)
class Trial:
    """What came of running one schedule.

    Attributes:
        spills: 32-bit words of local memory per thread.
        milliseconds: median time, or None if it was not timed.
        agrees: whether its results are those of the first schedule up to rounding.
    """

    spills: int
    milliseconds: float | None = None
    agrees: bool = True


def choose(
    schedules: Sequence[Schedule], mode: Mode, trial: Callable[[Schedule, bool], Trial | None]
) -> Schedule | None:
    """The schedule to use, or None where none of them runs.

    Args:
        schedules: the preferred first.
        mode: off takes the first that hardly spills; quick and max time them.
        trial: runs a schedule, timed if the second argument is True; None where it does not fit the device.
    """
    tried: list[tuple[Schedule, Trial]] = []
    for schedule in schedules:
        if len(tried) == HOW_MANY[mode]:
            break
        found = trial(schedule, mode != "off")
        if found is None:
            continue
        tried.append((schedule, found))
        if mode == "off" and found.spills <= FEW_SPILLS:
            return schedule
    good = [(s, t) for s, t in tried if t.agrees]
    if not good:
        return None
    if mode == "off":
        return min(good, key=lambda item: item[1].spills)[0]
    return min(good, key=lambda item: item[1].milliseconds or 0.0)[0]


def variations(schedules: Sequence[Schedule], mode: Mode) -> list[Schedule]:
    """For `max`, also other numbers of stages and warps, and pointers in place of descriptors."""
    found = list(schedules)
    if mode != "max":
        return found
    for s in [s for s in schedules if not s.consumers][:6]:
        for stages in (2, 3, 4):
            # Eight warps share fewer rows badly, and in f32 wrongly (`rewrite.shapes`).
            for warps in (4, 8) if s.row_block >= 128 else (s.warps,):
                for tma in {s.tma, False}:
                    other = replace(s, stages=stages, warps=warps, tma=tma)
                    if other not in found:
                        found.append(other)
    return found


_TUNED = ("row_block", "col_block", "warps", "stages", "tma", "group", "merged", "consumers")


def remembered(parts: Mapping[str, str], default: Schedule) -> Schedule | None:
    """The schedule that tuning chose before for the same key, or None."""
    files = cache.load(parts)
    if files is None:
        return None
    try:
        values = json.loads(files["schedule.json"])
        return replace(default, **{name: values[name] for name in _TUNED})
    except (ValueError, KeyError, TypeError):
        return None


def remember(parts: Mapping[str, str], schedule: Schedule) -> None:
    """Keep what tuning chose, if there is room."""
    values = {name: getattr(schedule, name) for name in _TUNED}
    with contextlib.suppress(OSError):
        cache.store(parts, {"schedule.json": json.dumps(values)})
