"""How a loop is cut into tiles: which dims enumerate program instances, which form the row tile, which the loop tile.

A `Schedule` is a value: printable, replayable, what tuning stores. `default_schedule` needs no tuning; `candidates` is the
short list that tuning tries. Both estimate registers and shared memory, so that nothing they propose is expected to spill.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import Binary, Const, Dim, Expr, Load, Reduce, Size
from flashlight.ir.nests import Loop
from flashlight.ir.visit import free_dims, loads, walk

Unit = Literal["gpu", "cpu"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where a pass need not run, for a tile of rows: four positions lo <= full_lo <= full_hi <= hi along the tiled loop dim.

    Only positions in [lo, hi) can contribute; in [full_lo, full_hi) every condition of `holds` is true for all rows of the
    tile. The expressions read sizes, grid dims (`Index(dim)`), loads at those, and the extremes of a row tile, spelled
    `Index(first(dim))` and `Index(last(dim))` for a dim of the rows. They are clipped to the dim's extent and rounded to tiles
    outwards (lo, hi) and inwards (full_lo, full_hi) when lowered.
    """

    lo: Expr
    full_lo: Expr
    full_hi: Expr
    hi: Expr
    holds: tuple[Expr, ...] = ()


def first(dim: Dim) -> Dim:
    """Stands for the smallest position of `dim` in a row tile, inside `Bounds`."""
    return Dim(f"{dim.name}.first", dim.extent)


def last(dim: Dim) -> Dim:
    """Stands for the largest position of `dim` in a row tile, inside `Bounds`."""
    return Dim(f"{dim.name}.last", dim.extent)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A loop's tiling.

    Attributes:
        grid: kept dims that are enumerated by program instances, outermost first.
        rows: kept dims linearised into the rows axis; empty where no operand would be reused.
        row_block: rows in a tile.
        outer: loop dims run one position at a time, around the sweep.
        cols: loop dims linearised into the cols axis.
        col_block: positions of cols in a tile.
        warps, stages: of a program instance (GPU).
        descending: run row tiles from the last to the first.
        group: grid points whose row tiles are interleaved (heaviest first within a group); 1 keeps a grid point's tiles together.
        tma: fetch tiles by descriptors where strides and alignment allow.
        bounds: for each pass, where it may skip; None runs all.
    """

    grid: tuple[Dim, ...]
    rows: tuple[Dim, ...]
    row_block: int
    outer: tuple[Dim, ...]
    cols: tuple[Dim, ...]
    col_block: int
    warps: int = 4
    stages: int = 2
    descending: bool = False
    group: int = 1
    tma: bool = False
    bounds: tuple[Bounds | None, ...] = ()

    def __str__(self) -> str:
        def names(dims: tuple[Dim, ...]) -> str:
            return ", ".join(d.name for d in dims)

        flags = "".join(
            [
                f" outer ({names(self.outer)})" if self.outer else "",
                " descending" if self.descending else "",
                f" group {self.group}" if self.group > 1 else "",
                " tma" if self.tma else "",
            ]
        )
        return (
            f"grid ({names(self.grid)}) rows ({names(self.rows)}) x {self.row_block}"
            f" cols ({names(self.cols)}) x {self.col_block} warps {self.warps} stages {self.stages}{flags}"
        )


@dataclass(frozen=True, slots=True)
class Device:
    """What the tiling must know of a device.

    Attributes:
        registers: 32-bit registers of a thread that a tile may use before spills are likely.
        shared: bytes of shared memory of a program instance.
        units: program instances that run at once (multiprocessors, cores).
        tma: whether tile descriptors exist.
    """

    unit: Unit = "gpu"
    registers: int = 210
    shared: int = 227 * 1024
    units: int = 132
    tma: bool = True


HOPPER = Device()
AMPERE = Device(shared=163 * 1024, units=108, tma=False)


def extent_of(dim: Dim, hints: Mapping[str, int]) -> int:
    """The extent of a dim, sizes taken from `hints` (unknown sizes count as large)."""
    return max(1, evaluate(dim.extent, hints, unknown=4096))


def evaluate(expr: Expr, sizes: Mapping[str, int], unknown: int | None = None) -> int:
    """The value of an integer expression over sizes."""
    match expr:
        case Const(value, _):
            return int(value)
        case Size(name):
            if unknown is not None:
                return sizes.get(name, unknown)
            return sizes[name]
        case Binary(op, a, b):
            return _integer(op, evaluate(a, sizes, unknown), evaluate(b, sizes, unknown))
        case _:
            msg = f"An extent is built of constants, sizes and arithmetic, got '{expr}'."
            raise TypeError(msg)


def _integer(op: str, a: int, b: int) -> int:
    match op:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return a * b
        case "floordiv":
            return a // max(b, 1)
        case "mod":
            return a % max(b, 1)
        case "min":
            return min(a, b)
        case "max":
            return max(a, b)
        case _:
            msg = f"'{op}' is no arithmetic on extents."
            raise TypeError(msg)


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()


# -- The default.


def default_schedule(loop: Loop, hints: Mapping[str, int], device: Device = HOPPER) -> Schedule:
    """A good tiling without tuning."""
    rows = _row_dims(loop, hints)
    grid = tuple(d for d in loop.kept if d not in rows)
    outer, cols = _loop_dims(loop, hints)
    base = Schedule(grid, rows, 1, outer, cols, 1, tma=device.tma)
    footprint = _footprint(loop, base, hints)
    for row_block, col_block, warps, stages in _shapes(footprint, device):
        trial = replace(base, row_block=row_block, col_block=col_block, warps=warps, stages=stages)
        if _fits(footprint, trial, device):
            return trial
    return trial


def candidates(loop: Loop, hints: Mapping[str, int], device: Device = HOPPER) -> list[Schedule]:
    """The default first, then the other tilings that are expected to fit."""
    default = default_schedule(loop, hints, device)
    found = [default]
    footprint = _footprint(loop, default, hints)
    for row_block, col_block, warps, stages in _shapes(footprint, device):
        trial = replace(
            default, row_block=row_block, col_block=col_block, warps=warps, stages=stages
        )
        if trial not in found and _fits(footprint, trial, device):
            found.append(trial)
    return found


def _row_dims(loop: Loop, hints: Mapping[str, int]) -> tuple[Dim, ...]:
    """Kept dims absent from most of what the loop loads: a tile of them reuses those loads.

    Few positions (decode) are joined by the next such dim (the query heads that share a key head).
    """
    if not loop.kept:
        return ()
    loaded = [
        free_dims(load)
        for carry in loop.carries
        for load in loads(carry.body)
        if free_dims(load) & set(loop.loop)
    ]
    if not loaded:
        return (max(loop.kept, key=lambda d: (extent_of(d, hints), loop.kept.index(d))),)
    reuse = {d: sum(d not in dims for dims in loaded) / len(loaded) for d in loop.kept}
    order = sorted(
        loop.kept,
        key=lambda d: (-reuse[d], -min(extent_of(d, hints), 64), -loop.kept.index(d)),
    )
    best = order[0]
    if reuse[best] == 0:
        return (best,) if extent_of(best, hints) >= 16 else ()
    chosen = [best]
    size = extent_of(best, hints)
    for dim in order[1:]:
        if size >= 16 or reuse[dim] < reuse[best]:
            break
        chosen.append(dim)
        size *= extent_of(dim, hints)
    return tuple(d for d in loop.kept if d in chosen)


def _loop_dims(loop: Loop, hints: Mapping[str, int]) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
    """(outer, cols): the longest dim is tiled, joined by its inner neighbours while it is short."""
    if not loop.loop:
        return (), ()
    extents = [extent_of(d, hints) for d in loop.loop]
    main = max(range(len(extents)), key=lambda i: (min(extents[i], 64), i))
    if extents[main] >= 32 or len(extents) == 1:
        return tuple(d for i, d in enumerate(loop.loop) if i != main), (loop.loop[main],)
    return (), loop.loop


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a tile holds, in elements per row, per column and per pair; sizes known approximately.

    Attributes:
        accumulated: 32-bit words of carries per row.
        pairs: live (rows, cols) tiles, in 32-bit words per pair.
        per_row: bytes of operands per row that stay for the whole loop.
        per_col: bytes fetched per column.
        per_pair: bytes fetched per pair (biases, masks).
        wide: words per (row, col) of elementwise tiles with a third axis.
        row_count, col_count: extents.
        dots: whether anything is contracted.
    """

    accumulated: int
    pairs: int
    per_row: int
    per_col: int
    per_pair: int
    wide: int
    row_count: int
    col_count: int
    dots: bool
    double: bool


def _footprint(loop: Loop, base: Schedule, hints: Mapping[str, int]) -> Footprint:
    kept, looped = set(loop.kept), set(loop.loop)
    rows, cols = set(base.rows), set(base.cols)

    def padded(dims: frozenset[Dim]) -> int:
        total = 1
        for d in dims - kept - looped:
            total *= max(16, power_of_two(extent_of(d, hints)))
        return total

    per_row, per_col, per_pair = 0, 0, 0
    seen: set[Load] = set()
    for load in loads(*(c.body for c in loop.carries)):
        if load in seen or load.buffer.name in {c.name for c in loop.carries}:
            continue
        seen.add(load)
        dims = free_dims(load)
        size = padded(dims) * load.buffer.dtype.bits // 8
        if dims & cols and dims & rows:
            per_pair += size
        elif dims & cols:
            per_col += size
        elif dims & rows:
            per_row += size
    contractions = {
        node
        for c in loop.carries
        for node in walk(c.body)
        if isinstance(node, Reduce) and free_dims(node) & cols
    }
    accumulated = sum(padded(frozenset(c.dims)) for c in loop.carries)
    double = any(c.dtype is DType.F64 for c in loop.carries)
    return Footprint(
        accumulated=accumulated,
        pairs=max(1, len(contractions)) + 1,
        per_row=per_row,
        per_col=per_col,
        per_pair=per_pair,
        wide=0,
        row_count=_product(base.rows, hints),
        col_count=_product(base.cols, hints),
        dots=bool(contractions) or accumulated > 16,
        double=double,
    )


def _product(dims: tuple[Dim, ...], hints: Mapping[str, int]) -> int:
    total = 1
    for d in dims:
        total *= extent_of(d, hints)
    return total


def _shapes(f: Footprint, device: Device) -> list[tuple[int, int, int, int]]:
    """(row_block, col_block, warps, stages), the preferred first."""
    row_cap = max(16, power_of_two(f.row_count)) if f.row_count > 1 else 1
    col_cap = max(16, power_of_two(f.col_count))
    if not f.dots:
        shapes = [(min(row_cap, 16), min(col_cap, 256), 4, 2), (min(row_cap, 4), 128, 4, 2)]
        return [(r, min(c, col_cap), w, s) for r, c, w, s in shapes]
    wide = f.per_col >= 512
    preferred = (
        [(128, 128, 8, 2), (128, 64, 8, 3), (64, 64, 4, 3), (64, 64, 8, 2)]
        if wide
        else [(64, 128, 4, 2), (128, 128, 8, 2), (64, 64, 4, 3), (128, 64, 4, 3), (64, 64, 8, 2)]
    )
    preferred += [(64, 32, 4, 3), (64, 32, 8, 2), (32, 64, 4, 2), (32, 32, 4, 2), (16, 32, 4, 2)]
    preferred += [(16, 16, 4, 1)]
    found: list[tuple[int, int, int, int]] = []
    for r, c, w, s in preferred:
        rows, cols = min(r, row_cap), min(c, col_cap)
        shape = (rows, cols, w if rows * cols >= 32 * 64 else min(w, 4), s)
        if shape not in found:
            found.append(shape)
    return found


def _fits(f: Footprint, s: Schedule, device: Device) -> bool:
    return registers(f, s) <= device.registers and shared_bytes(f, s) <= device.shared


def registers(f: Footprint, s: Schedule) -> int:
    """Estimated 32-bit registers per thread: accumulators, live score tiles and a fixed share for addresses."""
    words = s.row_block * f.accumulated + s.row_block * s.col_block * f.pairs
    return words * (2 if f.double else 1) // (32 * s.warps) + 40


def shared_bytes(f: Footprint, s: Schedule) -> int:
    """Estimated shared memory: row operands once, column and pair operands per stage."""
    staged = s.col_block * f.per_col + s.row_block * s.col_block * f.per_pair
    return s.row_block * f.per_row + s.stages * staged
