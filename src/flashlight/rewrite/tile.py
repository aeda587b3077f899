"""How a loop is cut into tiles: which dims enumerate program instances, which form the row tile, which the loop tile.

`default_schedule` needs no tuning; `candidates` is the short list that tuning tries. Both estimate registers and shared memory, so
that nothing they propose is expected to spill.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from flashlight.ir.exprs import Const, Dim, Load
from flashlight.ir.nests import Loop
from flashlight.ir.visit import free_dims
from flashlight.rewrite.footprint import Footprint, fetched_loads, fits, footprint_of, padded
from flashlight.rewrite.schedule import HOPPER, Device, Schedule, extent_of, extents_product
from flashlight.rewrite.shapes import CONSUMER_ROWS, choices, shared_out


def default_schedule(loop: Loop, hints: Mapping[str, int], device: Device = HOPPER) -> Schedule:
    """A good tiling without tuning."""
    return candidates(loop, hints, device)[0]


def candidates(
    loop: Loop, hints: Mapping[str, int], device: Device = HOPPER, swept: int | None = None
) -> list[Schedule]:
    """Tilings that are expected to fit, the preferred first; at least one.

    Args:
        loop: what is tiled.
        hints: likely sizes.
        device: what they must fit.
        swept: positions of the tiled loop dim that a row tile sweeps where bounds leave out some; None for all.
    """
    rows = row_dims(loop, hints)
    grid = tuple(d for d in loop.kept if d not in rows)
    outer, cols = _loop_dims(loop, hints)
    base = Schedule(grid, rows, 1, outer, cols, 1, tma=device.tma)
    footprint = footprint_of(loop, base, hints)
    length = (footprint.col_count if swept is None else swept) * extents_product(outer, hints)
    points = extents_product(grid, hints)
    found: list[Schedule] = []
    for (row_block, col_block, warps, stages), described in choices(
        footprint, points, length, device
    ):
        trial = replace(base, row_block=row_block, col_block=col_block, warps=warps, stages=stages)
        tma = device.tma and described and _fetches_again(footprint, trial, hints)
        trial = replace(trial, tma=tma)
        if trial not in found and fits(footprint, trial, device):
            found.append(trial)
    if found and device.roles:
        parted = [
            replace(base, row_block=CONSUMER_ROWS * n, col_block=cols, stages=stages, consumers=n)
            for n, cols, stages in shared_out(footprint, length, device)
        ]
        found[1:1] = parted
    if not found:
        found.append(replace(base, row_block=min(16, footprint.row_cap), col_block=16, stages=1))
    return found


def _fetches_again(f: Footprint, s: Schedule, hints: Mapping[str, int]) -> bool:
    """Whether a program instance fetches more than one tile of columns, so that making a descriptor for them may pay."""
    return f.ragged or f.col_count > s.col_block or extents_product(s.outer, hints) > 1


def instances(
    schedule: Schedule,
    hints: Mapping[str, int],
    extent: Callable[[Dim, Mapping[str, int]], int] = extent_of,
) -> int:
    """Program instances at the sizes of the hints, or at those planned for (`extent`)."""
    rows = math.prod(extent(d, hints) for d in schedule.rows)
    return extents_product(schedule.grid, hints) * -(-rows // schedule.row_block)


def fetched(loop: Loop, hints: Mapping[str, int], device: Device) -> int:
    """Bytes that the program instances of a loop fetch under its first schedule, each of them what its tiles read."""
    s = default_schedule(loop, hints, device)
    return sum(
        extents_product(tuple(free_dims(load)), hints)
        * times_fetched(load, s, hints)
        * (load.buffer.dtype.bits // 8)
        for load in fetched_loads(loop)
    )


def times_fetched(load: Load, s: Schedule, hints: Mapping[str, int]) -> int:
    """How many program instances fetch one and the same element."""
    dims = free_dims(load)
    times = extents_product(tuple(d for d in s.grid if d not in dims), hints)
    if not dims & set(s.rows):
        times *= -(-extents_product(s.rows, hints) // s.row_block)
    return times


def row_dims(loop: Loop, hints: Mapping[str, int]) -> tuple[Dim, ...]:
    """Kept dims absent from most of what the loop loads: a tile of them reuses those loads.

    Few positions (decode) are joined by the next such dim (the query heads that share a key head).
    """
    if not loop.kept:
        return ()
    loaded = [free_dims(load) for load in fetched_loads(loop) if free_dims(load) & set(loop.loop)]
    if not loaded:
        return (max(loop.kept, key=lambda d: (extent_of(d, hints), loop.kept.index(d))),)
    # A load of many elements for each position of the loop weighs as many.
    weights = [padded(dims - set(loop.kept) - set(loop.loop), hints) for dims in loaded]
    reuse = {
        d: sum(w for w, dims in zip(weights, loaded, strict=True) if d not in dims) / sum(weights)
        for d in loop.kept
    }
    order = sorted(
        loop.kept,
        key=lambda d: (-reuse[d], -min(extent_of(d, hints), 64), -loop.kept.index(d)),
    )
    best = order[0]
    if reuse[best] == 0:
        return (best,) if extent_of(best, hints) >= 16 else ()
    if extent_of(best, hints) < 16 and len(order) > 1:
        # A longer dim that is nearly as well reused (a bias is loaded for each of its positions) makes a better tile.
        longer = [d for d in order if extent_of(d, hints) >= 16 and reuse[d] >= 0.5 * reuse[best]]
        best = longer[0] if longer else best
    chosen = [best]
    size = extent_of(best, hints)
    for dim in order:
        if size >= 16 or reuse[dim] < reuse[best] or dim in chosen:
            continue
        chosen.append(dim)
        size *= extent_of(dim, hints)
    return tuple(d for d in loop.kept if d in chosen)


def _loop_dims(loop: Loop, hints: Mapping[str, int]) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
    """(outer, cols): the longest dim is tiled, joined by the short dims inside it (the positions of a page)."""
    if not loop.loop:
        return (), ()
    extents = [extent_of(d, hints) for d in loop.loop]
    main = max(range(len(extents)), key=lambda i: (min(extents[i], 64), i))
    inner = loop.loop[main + 1 :]
    if extents[main] < 32:
        return (), loop.loop
    if extents_product(inner, hints) <= 64 and all(isinstance(d.extent, Const) for d in inner):
        return loop.loop[:main], loop.loop[main:]
    return tuple(d for i, d in enumerate(loop.loop) if i != main), (loop.loop[main],)
