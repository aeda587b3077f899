"""Tilings for a CPU: rows are vector lanes, a tile of scores stays in the cache of its core."""

from __future__ import annotations

from collections.abc import Mapping

from flashlight.ir.nests import Loop
from flashlight.rewrite.tile import (
    Device,
    Schedule,
    default_schedule,
    extent_of,
    power_of_two,
)

CPU = Device(unit="cpu", registers=1 << 20, shared=1 << 24, units=1, tma=False)
_ROWS = 32
_COLS = 256


def cpu_schedule(loop: Loop, hints: Mapping[str, int], threads: int = 1) -> Schedule:
    """A tiling without tuning. `threads` is how many run at once."""
    base = default_schedule(loop, hints, CPU)
    rows = 1
    for dim in base.rows:
        rows *= extent_of(dim, hints)
    cols = 1
    for dim in base.cols:
        cols *= extent_of(dim, hints)
    row_block = min(_ROWS, power_of_two(rows)) if base.rows else 1
    col_block = min(_COLS, power_of_two(cols)) if base.cols else 1
    return Schedule(
        base.grid,
        base.rows,
        row_block,
        base.outer,
        base.cols,
        col_block,
        warps=1,
        stages=1,
        exact=True,
    )
