"""What bounds make of a schedule: which tiles run first, and how many a row tile sweeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from flashlight.ir.exprs import Binary, Const, Dim, Expr, Index, Size
from flashlight.ir.nests import Loop
from flashlight.ir.visit import free_dims
from flashlight.rewrite.footprint import fetched_loads
from flashlight.rewrite.schedule import (
    LONG,
    Bounds,
    Device,
    Schedule,
    extent_of,
    extents_product,
    first,
    integer,
    last,
)
from flashlight.rewrite.shapes import SHORT


def with_bounds(
    schedule: Schedule, bounds: tuple[Bounds | None, ...], hints: Mapping[str, int], group: int = 1
) -> list[Schedule]:
    """Schedules that skip what `bounds`, not all None, exclude; short sweeps also as one loop.

    Where the last row tile has most to do, those of `group` grid points begin with it.
    """
    known = [b for b in bounds if b is not None]
    descending = any(_grows(b, schedule, hints) for b in known)
    found = replace(
        schedule, bounds=bounds, descending=descending, group=group if descending else 1
    )
    length = swept(bounds, schedule, hints)
    if length is not None and length <= SHORT:
        return [replace(found, merged=True), found]
    return [found]


def swept(
    bounds: tuple[Bounds | None, ...], schedule: Schedule, hints: Mapping[str, int]
) -> int | None:
    """Positions that the row tile in the middle sweeps in its longest pass; None where that depends on data."""
    if len(schedule.rows) != 1 or len(schedule.cols) != 1 or not all(bounds):
        return None
    middle = extent_of(schedule.rows[0], hints) // 2
    lengths = [_swept(b, schedule, hints, middle) for b in bounds if b is not None]
    known = [n for n in lengths if n is not None]
    return max(known) if len(known) == len(lengths) else None


def together(loop: Loop, schedule: Schedule, hints: Mapping[str, int], device: Device) -> int:
    """Grid points whose columns the cache holds at once, a power of two."""
    streamed = 0
    for load in fetched_loads(loop):
        dims = free_dims(load)
        if dims & set(schedule.cols) and not dims & set(schedule.rows):
            own = tuple(d for d in dims if d not in schedule.grid)
            streamed += extents_product(own, hints) * load.buffer.dtype.bits // 8
    most = min(16, device.cached // max(1, streamed))
    return 1 << max(0, most.bit_length() - 1)


def _grows(bounds: Bounds, schedule: Schedule, hints: Mapping[str, int]) -> bool:
    """Whether the last row tile has more to do than the first."""
    if len(schedule.rows) != 1 or len(schedule.cols) != 1:
        return False
    count = extent_of(schedule.rows[0], hints)
    block = min(schedule.row_block, count)
    begin = _swept(bounds, schedule, hints, 0)
    end = _swept(bounds, schedule, hints, count - block)
    return begin is not None and end is not None and end > begin


def _swept(bounds: Bounds, schedule: Schedule, hints: Mapping[str, int], start: int) -> int | None:
    """Positions that the row tile at `start` sweeps; None where that depends on data."""
    (row,), (col,) = schedule.rows, schedule.cols
    count, extent = extent_of(row, hints), extent_of(col, hints)
    at = {first(row): start, last(row): start + min(schedule.row_block, count) - 1}
    low, high = (_position(e, at, hints) for e in (bounds.lo, bounds.hi))
    return None if low is None or high is None else min(high, extent) - max(low, 0)


def _position(expr: Expr, at: Mapping[Dim, int], hints: Mapping[str, int]) -> int | None:
    """The value of a bound at one row tile; None if it depends on data or on the grid."""
    match expr:
        case Const(value, _):
            return int(value)
        case Size(name):
            return hints.get(name, LONG)
        case Index(dim):
            return at.get(dim)
        case Binary(op, a, b):
            x, y = _position(a, at, hints), _position(b, at, hints)
            known = op in ("add", "sub", "mul", "floordiv", "mod", "min", "max")
            return None if x is None or y is None or not known else integer(op, x, y)
        case _:
            return None
