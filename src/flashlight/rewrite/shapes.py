"""Which shapes of tiles to try, in which order: those that an H200 was seen to like, by what a tile holds (benchmarks/results)."""

from __future__ import annotations

from flashlight.rewrite.footprint import Footprint
from flashlight.rewrite.schedule import Device, power_of_two

Shape = tuple[int, int, int, int]
"""(row_block, col_block, warps, stages)."""


SHORT = 512
"""Positions of a sweep up to which tile descriptors do not pay for being made, nor loops of their own for full tiles."""


NEARLY_FULL = 0.9
"""Share of a device's units that must be at work for it to count as filled."""


CONSUMER_ROWS = 64
"""Rows of a tile that a group of four warps computes: those of one product instruction of a Hopper."""


def shared_out(f: Footprint, length: int, device: Device) -> list[tuple[int, int, int]]:
    """(consumers, col_block, stages) to try where warps have roles of their own: the preferred first, none where it cannot pay."""
    if f.pair_width or f.deep or f.double or f.wide or f.positions or f.single != 0.5 or not f.dots:
        return []
    wide = f.accumulated > 80 or f.dots > 1
    few = SHORT // 2 if f.per_pair else SHORT // 4 if wide else SHORT
    if f.row_count < 2 * CONSUMER_ROWS or length < few:
        return []
    if f.per_pair and f.accumulated < CONSUMER_ROWS:
        return []
    if f.dots > 1 and not f.per_pair:
        most = 160 if f.parts == 1 else 288  # one after the other, softmaxes share registers
        shapes = [(2, 64, 2)] if f.accumulated <= most else [(2, 32, 4)]
    elif wide or f.per_pair:
        shapes = [(2, 128, 2), (2, 64, 2)]
        if f.row_count >= 4 * CONSUMER_ROWS and not wide:
            shapes.insert(0, (4, 64, 2))
        if f.row_count >= 3 * CONSUMER_ROWS and not f.per_pair and f.accumulated <= 128:
            shapes.insert(1, (3, 64, 3))
    else:
        shapes = [(3, 128, 2), (2, 128, 3), (2, 64, 2)]
    fit = [shape for shape in shapes if _room(f, *shape) <= device.shared]
    return fit[: 1 if f.dots > 1 or (wide and f.per_pair) else 2]


def _room(f: Footprint, consumers: int, col_block: int, stages: int) -> int:
    """Bytes of shared memory: operands of rows, rings of columns, and what turns results to memory's order."""
    rows = consumers * CONSUMER_ROWS
    ring = col_block * (f.per_col + rows * f.per_pair)
    return rows * f.per_row + stages * ring + 2 * rows * f.accumulated + 2048


WRITTEN_OUT: tuple[Shape, ...] = ((16, 64, 4, 1), (16, 64, 8, 1), (16, 64, 4, 3), (16, 32, 8, 1))
"""Shapes for sums over pairs that are written out, such as distances of points: many small tiles, each used once. They come by
ordinary loads, as a descriptor's tile costs two barriers, and small row tiles hide how long those take."""


def choices(f: Footprint, points: int, length: int, device: Device) -> list[tuple[Shape, bool]]:
    """(shape, whether descriptors may fetch its tiles), the preferred first: cut to the extents, those that fill the device first."""
    found = [(shape, not f.wide) for shape in _shapes(f, points, device)]
    if f.pair_width or not f.accumulates:
        return found
    most = f.row_cap
    if not f.deep:
        most = _filling(most, 16, f, points, NEARLY_FULL * device.units)
    if length <= SHORT and not f.deep:
        found = [(shape, False) for shape in _short_shapes(f, most)] + found
    col_cap = max(16, power_of_two(f.col_count))
    found = [x for x in found if x[0][0] <= most] + found
    if f.wide:
        found[1:1] = [(shape, False) for shape in WRITTEN_OUT]
    cut = [((min(r, f.row_cap), min(c, col_cap), w, s), d) for (r, c, w, s), d in found]
    if f.single != 0.5 and device.tma:
        cut = [x for x in cut if not _is_shared_by_groups(x[0])]
    return list(dict.fromkeys(cut))


def _is_shared_by_groups(shape: Shape) -> bool:
    """Whether two groups of four warps share the rows of one product instruction of a Hopper.

    Triton 3.6 has the second group read beyond an operand's shared memory where a product of f32 is three of TF32: seen on an H200
    as wrong results and as an address out of range.
    """
    rows, _, warps, _ = shape
    return warps == 8 and rows == CONSUMER_ROWS


def _shapes(f: Footprint, points: int, device: Device) -> list[Shape]:
    """Shapes, the preferred first."""
    col_cap = max(16, power_of_two(f.col_count))
    if f.pair_width:
        rows = max(1, min(16, f.row_cap, 512 // f.pair_width))
        rows = _filling(rows, 1, f, points, device.units)
        return [(rows, min(16, col_cap), 4, 2), (1, 16, 4, 1)]
    if not f.accumulates and f.per_col >= 128:
        rows = _filling(min(16, f.row_cap), 1, f, points, device.units)
        return [(rows, min(32, col_cap), 4, 1), (rows, 16, 4, 1)]
    if not f.accumulates:
        shapes = [(16, 256, 4, 2), (4, 512, 4, 2), (32, 128, 4, 2), (1, 1024, 4, 2), (64, 64, 4, 2)]
        rows = _filling(16, 1, f, points, device.units)
        if rows < 4:  # few of them: each sweeps its columns in few steps
            shapes.insert(0, (rows, 1024, 4, 2))
        return [(min(r, f.row_cap), min(c, col_cap), w, s) for r, c, w, s in shapes]
    narrow = [
        (64, 128, 4, 2),
        (64, 64, 4, 2),
        (64, 128, 4, 3),
        (128, 64, 4, 3),
        (64, 64, 4, 3),
        (128, 64, 8, 3),
    ]
    wide = [(64, 64, 4, 3), (128, 128, 8, 3), (128, 64, 8, 3), (128, 128, 8, 2), (64, 128, 4, 2)]
    if f.deep:
        preferred = [(128, 256, 8, 4), (128, 256, 8, 3), (128, 128, 8, 4), (128, 128, 4, 3)]
    elif f.dots > 1:
        preferred = [(64, 64, 4, 3), (64, 64, 8, 3), (64, 64, 8, 2), (128, 64, 8, 2), *narrow]
    elif f.accumulated > 200:
        preferred = [(64, 64, 4, 2), (128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 8, 2), *wide]
    elif f.per_pair and f.per_col >= 512:
        preferred = [(64, 32, 4, 2), (64, 32, 4, 3), (64, 64, 4, 2), (128, 64, 8, 2)]
    elif f.per_pair:
        preferred = [(64, 64, 4, 2), (64, 32, 4, 2), (128, 64, 4, 2), (128, 64, 8, 2)]
    else:
        preferred = wide if f.per_col >= 512 else narrow
    preferred = [*preferred, (64, 64, 8, 2), (64, 32, 4, 3), (64, 32, 8, 2), (32, 64, 4, 2)]
    preferred += [(32, 32, 4, 2), (16, 128, 4, 3), (16, 64, 4, 3), (16, 32, 4, 2), (16, 16, 4, 1)]
    return preferred


def _filling(rows: int, least: int, f: Footprint, points: int, enough: float) -> int:
    """The row tile cut in halves, down to `least`, until there are enough program instances."""
    while rows > least and points * -(-f.row_count // rows) < enough:
        rows //= 2
    return rows


def _short_shapes(f: Footprint, most: int) -> list[Shape]:
    """Shapes for sweeps of few tiles, with row tiles of `most` where larger ones do not fill the device."""
    if most < 64:
        return [(32, 64, 4, 2), (16, 64, 4, 3)]
    if f.per_pair and f.per_col >= 512:
        return [(64, 32, 4, 3), (64, 32, 4, 4), (64, 64, 4, 2)]
    if f.per_pair:
        return [(64, 64, 4, 3), (128, 32, 4, 2), (128, 32, 4, 3), (64, 64, 4, 2)]
    if f.per_col >= 512:
        return [(64, 64, 4, 2), (64, 64, 4, 3)]
    return [(64, 64, 4, 3), (64, 64, 4, 2), (64, 128, 4, 2)]
