"""Tilings for a CPU: rows are vector lanes, a tile of scores stays in the cache of its core."""

from __future__ import annotations

import math
from collections.abc import Mapping

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import Dim
from flashlight.ir.nests import Loop
from flashlight.ir.visit import loads
from flashlight.rewrite.schedule import Device, Schedule, extent_of, power_of_two
from flashlight.rewrite.tile import default_schedule

CPU = Device(unit="cpu", registers=1 << 20, shared=1 << 24, units=1, tma=False)
_LEAST_ROWS = 16
_INSTANCES_PER_THREAD = 4


def cpu_schedule(loop: Loop, hints: Mapping[str, int], threads: int = 1) -> Schedule:
    """A tiling without tuning. `threads` is how many run at once.

    Operands of 16 bits are widened for each tile of rows, which more rows share; otherwise small tiles of rows lose less at the
    edges of masks, and fill more threads.
    """
    base = default_schedule(loop, hints, CPU)
    row_block, col_block = (64, 128) if _reads_16_bits(loop) else (32, 256)
    rows, instances = _count(base.rows, hints), _count(base.grid, hints)
    row_block = min(row_block, power_of_two(rows))
    wanted = _INSTANCES_PER_THREAD * threads
    while row_block > _LEAST_ROWS and instances * math.ceil(rows / row_block) < wanted:
        row_block //= 2
    return Schedule(
        base.grid,
        base.rows,
        row_block if base.rows else 1,
        base.outer,
        base.cols,
        min(col_block, power_of_two(_count(base.cols, hints))) if base.cols else 1,
        warps=1,
        stages=1,
        exact=True,
    )


def _reads_16_bits(loop: Loop) -> bool:
    bodies = [c.body for c in loop.carries]
    return any(load.buffer.dtype in (DType.F16, DType.BF16) for load in loads(*bodies))


def _count(dims: tuple[Dim, ...], hints: Mapping[str, int]) -> int:
    return math.prod(extent_of(d, hints) for d in dims)
