"""How a loop is cut into tiles: which dims enumerate program instances, which form the row tile, which the loop tile.

A `Schedule` is a value: printable, replayable, what tuning stores. `default_schedule` needs no tuning; `candidates` is the
short list that tuning tries. Both estimate registers and shared memory, so that nothing they propose is expected to spill.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import (
    ZERO,
    Binary,
    Cast,
    Const,
    Dim,
    Expr,
    Index,
    Load,
    Reduce,
    Select,
    Size,
    Unary,
)
from flashlight.ir.nests import Loop
from flashlight.ir.visit import free_dims, loads, walk

Unit = Literal["gpu", "cpu"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where a pass need not run, for a tile of rows: four positions lo <= full_lo <= full_hi <= hi along the tiled loop dim.

    Only positions in [lo, hi), and those before `head`, can contribute; in [full_lo, full_hi) every condition of `holds` is true
    for all rows of the tile. The expressions read sizes, grid dims (`Index(dim)`), loads at those, and the extremes of a row tile, spelled
    `Index(first(dim))` and `Index(last(dim))` for a dim of the rows. They are clipped to the dim's extent and rounded to tiles
    outwards (lo, hi) and inwards (full_lo, full_hi) when lowered.
    """

    lo: Expr
    full_lo: Expr
    full_hi: Expr
    hi: Expr
    holds: tuple[Expr, ...] = ()
    head: Expr = ZERO

    def __str__(self) -> str:
        head = "" if self.head is ZERO else f"[0, {self.head}) and "
        sure = " & ".join(dict.fromkeys(map(str, self.holds)))
        full = f"; in [{self.full_lo}, {self.full_hi}) {sure} is sure" if sure else ""
        return f"{head}[{self.lo}, {self.hi}){full}"


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
        skips: for each pass, a condition on rows and cols without which an element has nothing to do: tiles in which it holds
            nowhere are left out (decided by looking, where bounds cannot tell beforehand).
        exact: the emitter ends each tile where its dims or bounds end, so nothing is padded or masked for being past an end.
        merged: run the tiles between the bounds as one loop that checks them all, instead of sparing the full ones in a loop of
            their own: each loop fills its pipeline anew.
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
    skips: tuple[Expr | None, ...] = ()
    exact: bool = False
    merged: bool = False

    def __str__(self) -> str:
        def names(dims: tuple[Dim, ...]) -> str:
            return ", ".join(d.name for d in dims)

        flags = "".join(
            [
                f" outer ({names(self.outer)})" if self.outer else "",
                " descending" if self.descending else "",
                f" group {self.group}" if self.group > 1 else "",
                " tma" if self.tma else "",
                " merged" if self.merged else "",
            ]
        )
        return (
            f"grid ({names(self.grid)}) rows ({names(self.rows)}) x {self.row_block}"
            f" cols ({names(self.cols)}) x {self.col_block} warps {self.warps} stages {self.stages}{flags}"
        )

    def notes(self) -> tuple[str, ...]:
        """What each pass leaves out, for a reader."""
        cols = ", ".join(d.name for d in self.cols)
        ranges = [f"reads {cols} in {b}" for b in self.bounds if b is not None]
        skips = [f"skips tiles of {cols} without {s}" for s in self.skips if s is not None]
        return tuple(dict.fromkeys(ranges + skips))


@dataclass(frozen=True, slots=True)
class Device:
    """What the tiling must know of a device.

    Attributes:
        registers: 32-bit registers of a thread that a tile may use before spills are likely.
        shared: bytes of shared memory of a program instance.
        units: program instances that run at once (multiprocessors, cores).
        tma: whether tile descriptors exist.
        cached: bytes that instances at work side by side may stream through the cache they share.
    """

    unit: Unit = "gpu"
    registers: int = 250
    shared: int = 227 * 1024
    units: int = 132
    tma: bool = True
    cached: int = 16 << 20


HOPPER = Device()
AMPERE = Device(registers=170, shared=163 * 1024, units=108, tma=False)


LONG = 4096
"""Positions to plan for where a size is not known, or changes from call to call."""


NEARLY_FULL = 0.9
"""Share of a device's units that must be at work for it to count as filled."""

DEEP = 1024
"""Elements of a contraction beyond which a tile's operands are not held whole, but fetched anew in chunks for each tile."""

DEEP_CHUNK = 64


def extent_of(dim: Dim, hints: Mapping[str, int]) -> int:
    """The extent of a dim, sizes taken from `hints` (unknown sizes count as large)."""
    return max(1, evaluate(dim.extent, hints, unknown=LONG))


def planned_extent(dim: Dim, hints: Mapping[str, int]) -> int:
    """The extent a schedule is made for. One kernel serves all sizes, so a symbolic one counts as long even where the first call
    is short: large tiles cost a short call little, small ones a long call much. Fewer than 16 are taken for few always (tokens
    at a time, heads).
    """
    extent = extent_of(dim, hints)
    return extent if isinstance(dim.extent, Const) or extent < 16 else max(extent, LONG)


def planned_sizes(hints: Mapping[str, int]) -> dict[str, int]:
    """The sizes that a schedule is made for; see `planned_extent`."""
    return {name: n if n < 16 else max(n, LONG) for name, n in hints.items()}


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
    footprint = _footprint(loop, base, hints)
    length = (footprint.col_count if swept is None else swept) * _product(outer, hints)
    points = _product(grid, hints)
    found: list[Schedule] = []
    for (row_block, col_block, warps, stages), described in _choices(
        footprint, points, length, device
    ):
        trial = replace(base, row_block=row_block, col_block=col_block, warps=warps, stages=stages)
        tma = device.tma and described and _fetches_again(footprint, trial, hints)
        trial = replace(trial, tma=tma)
        if trial not in found and _fits(footprint, trial, device):
            found.append(trial)
    if not found:
        found.append(replace(base, row_block=min(16, footprint.row_cap), col_block=16, stages=1))
    return found


def _fetches_again(f: Footprint, s: Schedule, hints: Mapping[str, int]) -> bool:
    """Whether a program instance fetches more than one tile of columns, so that making a descriptor for them may pay."""
    return f.ragged or f.col_count > s.col_block or _product(s.outer, hints) > 1


def instances(
    schedule: Schedule,
    hints: Mapping[str, int],
    extent: Callable[[Dim, Mapping[str, int]], int] = extent_of,
) -> int:
    """Program instances at the sizes of the hints, or at those planned for (`extent`)."""
    rows = math.prod(extent(d, hints) for d in schedule.rows)
    return _product(schedule.grid, hints) * -(-rows // schedule.row_block)


def fetched(loop: Loop, hints: Mapping[str, int], device: Device) -> int:
    """Bytes that the program instances of a loop fetch under its first schedule, each of them what its tiles read."""
    s = default_schedule(loop, hints, device)
    total = 0
    for load in _fetched_loads(loop):
        dims = free_dims(load)
        elements = _product(tuple(dims), hints)
        elements *= _product(tuple(d for d in s.grid if d not in dims), hints)
        if not dims & set(s.rows):
            elements *= -(-_product(s.rows, hints) // s.row_block)
        total += elements * load.buffer.dtype.bits // 8
    return total


def _fetched_loads(loop: Loop) -> list[Load]:
    """What a loop reads of other buffers than its own."""
    own = {c.name for c in loop.carries} | {g.name for g in loop.gives}
    found = dict.fromkeys(loads(*(c.body for c in loop.carries)))
    return [load for load in found if load.buffer.name not in own]


SHORT = 512
"""Positions of a sweep up to which tile descriptors do not pay for being made, nor loops of their own for full tiles."""


def with_bounds(
    schedule: Schedule, bounds: tuple[Bounds | None, ...], hints: Mapping[str, int], group: int = 1
) -> list[Schedule]:
    """Schedules that skip what `bounds` exclude, the heaviest row tiles of `group` grid points first; short sweeps also as one loop."""
    if not any(bounds):
        return [schedule]
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
    return max((n for n in lengths if n is not None), default=None) if None not in lengths else None


def together(loop: Loop, schedule: Schedule, hints: Mapping[str, int], device: Device) -> int:
    """Grid points whose columns the cache holds at once, a power of two."""
    streamed = 0
    for load in _fetched_loads(loop):
        dims = free_dims(load)
        if dims & set(schedule.cols) and not dims & set(schedule.rows):
            own = tuple(d for d in dims if d not in schedule.grid)
            streamed += _product(own, hints) * load.buffer.dtype.bits // 8
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
            return None if x is None or y is None or not known else _integer(op, x, y)
        case _:
            return None


def row_dims(loop: Loop, hints: Mapping[str, int]) -> tuple[Dim, ...]:
    """Kept dims absent from most of what the loop loads: a tile of them reuses those loads.

    Few positions (decode) are joined by the next such dim (the query heads that share a key head).
    """
    if not loop.kept:
        return ()
    loaded = [free_dims(load) for load in _fetched_loads(loop) if free_dims(load) & set(loop.loop)]
    if not loaded:
        return (max(loop.kept, key=lambda d: (extent_of(d, hints), loop.kept.index(d))),)
    # A load of many elements for each position of the loop weighs as many.
    weights = [_padded(dims - set(loop.kept) - set(loop.loop), hints) for dims in loaded]
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
    if _product(inner, hints) <= 64 and all(isinstance(d.extent, Const) for d in inner):
        return loop.loop[:main], loop.loop[main:]
    return tuple(d for i, d in enumerate(loop.loop) if i != main), (loop.loop[main],)


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a tile holds, in elements per row, per column and per pair; sizes known approximately.

    Attributes:
        accumulated: 32-bit words of carries per row.
        dots: contractions that score, in a tile.
        single: words of a weight in the accumulating dots' operand type, per pair (0.5 for 16 bits, 0 without such dots).
        per_row: bytes of operands per row that stay for the whole loop.
        per_col: bytes fetched per column.
        per_pair: bytes fetched per pair (biases, masks).
        vectors: 32-bit words of row-free vectors per column (ids, positions, biases of keys).
        masked: whether conditions vary over the tile.
        pair_width: elements per pair of an accumulator whose body does not split into a dot (merging parts); 0 for none.
        wide: words per pair of elementwise reductions written out.
        positions: whether the place of an extremum is kept.
        ragged: whether the number of columns is not known.
        row_count, col_count: extents, as planned for.
        accumulates: whether a carry has a whole dim.
        double: arithmetic in f64.
        deep: whether a contraction's operands are fetched in chunks, those of the rows with them.
    """

    accumulated: int
    dots: int
    single: float
    per_row: int
    per_col: int
    per_pair: int
    vectors: int
    masked: bool
    pair_width: int
    wide: int
    positions: bool
    ragged: bool
    row_count: int
    col_count: int
    accumulates: bool
    double: bool
    deep: bool

    @property
    def row_cap(self) -> int:
        """The largest row tile that is not mostly padding."""
        return max(16, power_of_two(self.row_count)) if self.row_count > 1 else 1


def _padded(dims: frozenset[Dim], hints: Mapping[str, int]) -> int:
    """Elements along dims that a tile holds whole, as one axis of it."""
    return max(16, math.prod(power_of_two(extent_of(d, hints)) for d in dims)) if dims else 1


def _footprint(loop: Loop, base: Schedule, hints: Mapping[str, int]) -> Footprint:
    kept, looped = frozenset(loop.kept), frozenset(loop.loop)
    rows, cols = set(base.rows), set(base.cols)
    per_row = per_col = per_pair = vectors = 0
    floats: set[DType] = set()
    nodes = {n for c in loop.carries for n in walk(c.body)}
    deep = {d for n in nodes if isinstance(n, Reduce) and (d := _deep_dim(n, hints))}
    for load in _fetched_loads(loop):
        dims = free_dims(load)
        elements = _padded(dims - kept - looped - deep, hints)
        if dims & deep:
            elements *= DEEP_CHUNK
        size = elements * load.buffer.dtype.bits // 8
        if load.buffer.dtype.is_float and elements > 1:
            floats.add(load.buffer.dtype)
        if dims & cols and dims & rows:
            per_pair += size
        elif dims & cols:
            per_col += size
            vectors += -(-load.buffer.dtype.bits // 32) if elements == 1 else 0
        elif dims & rows:
            per_row += size
    pairs = [n for n in nodes if free_dims(n) & cols and free_dims(n) & rows]
    sums = [n for n in pairs if isinstance(n, Reduce)]
    elementwise = [n for n in sums if not _splits(n, rows, cols)]
    whole = [c for c in loop.carries if set(c.dims) - kept]
    narrow = bool(floats) and all(f in (DType.F16, DType.BF16) for f in floats)
    return Footprint(
        accumulated=sum(_padded(frozenset(c.dims) - kept, hints) for c in loop.carries),
        dots=len(sums) - len(elementwise),
        single=(0.5 if narrow else 2.0) if whole else 0.0,
        per_row=per_row,
        per_col=per_col,
        per_pair=per_pair,
        vectors=vectors,
        masked=any(isinstance(n, Select) and free_dims(n.condition) & cols for n in pairs),
        pair_width=max(
            (
                _padded(frozenset(c.dims) - kept, hints)
                for c in whole
                if not _splits_with(c.body, rows, frozenset(c.dims) - kept)
            ),
            default=0,
        ),
        wide=2 * len(elementwise),
        positions=any(c.monoid.is_position for c in loop.carries),
        ragged=not all(isinstance(d.extent, Const) for d in base.cols),
        row_count=math.prod(planned_extent(d, hints) for d in base.rows),
        col_count=math.prod(planned_extent(d, hints) for d in base.cols),
        accumulates=bool(whole) or bool(sums),
        double=any(c.dtype is DType.F64 for c in loop.carries),
        deep=bool(deep),
    )


def _deep_dim(node: Reduce, hints: Mapping[str, int]) -> Dim | None:
    """The dim of a contraction in chunks."""
    dim = node.dims[0]
    known = len(node.dims) == 1 and isinstance(dim.extent, Const)
    return dim if known and extent_of(dim, hints) > DEEP else None


def _splits(node: Reduce, rows: set[Dim], cols: set[Dim]) -> bool:
    """Whether a contraction's factors separate rows from columns, so that it is a dot."""
    return not any(free_dims(p) & rows and free_dims(p) & cols for p in _factors(node.body))


def _splits_with(body: Expr, rows: set[Dim], whole: frozenset[Dim]) -> bool:
    """Whether the factors of an accumulator's body separate rows from its whole dims, so that it is a dot."""
    return not any(free_dims(p) & rows and free_dims(p) & whole for p in _factors(body))


def _factors(expr: Expr) -> list[Expr]:
    todo: list[Expr] = [expr]
    parts: list[Expr] = []
    while todo:
        match todo.pop():
            case Binary("mul" | "div", a, b):
                todo += [a, b]
            case Cast(x, _) | Unary("neg", x) | Select(_, x, Const()):
                todo.append(x)
            case part:
                parts.append(part)
    return parts


def _product(dims: tuple[Dim, ...], hints: Mapping[str, int]) -> int:
    return math.prod(extent_of(d, hints) for d in dims)


Shape = tuple[int, int, int, int]
"""(row_block, col_block, warps, stages)."""


def _shapes(f: Footprint, points: int, device: Device) -> list[Shape]:
    """Shapes, the preferred first.

    The orders are those measured on an H200; a row tile is made smaller where the grid would not fill the device.
    """
    col_cap = max(16, power_of_two(f.col_count))
    if f.pair_width:
        rows = max(1, min(16, f.row_cap, 512 // f.pair_width))
        while rows > 1 and points * -(-f.row_count // rows) < device.units:
            rows //= 2
        return [(rows, min(16, col_cap), 4, 2), (1, 16, 4, 1)]
    if not f.accumulates and f.per_col >= 128:
        rows = min(16, f.row_cap)
        while rows > 1 and points * -(-f.row_count // rows) < device.units:
            rows //= 2
        return [(rows, min(32, col_cap), 4, 1), (rows, 16, 4, 1)]
    if not f.accumulates:
        shapes = [(16, 256, 4, 2), (4, 512, 4, 2), (32, 128, 4, 2), (1, 1024, 4, 2), (64, 64, 4, 2)]
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


def _choices(f: Footprint, points: int, length: int, device: Device) -> list[tuple[Shape, bool]]:
    """(shape, whether descriptors may fetch its tiles), the preferred first: cut to the extents, those that fill the device first."""
    found = [(shape, True) for shape in _shapes(f, points, device)]
    if f.pair_width or not f.accumulates:
        return found
    most = f.row_cap
    enough = NEARLY_FULL * device.units
    while most > 16 and points * -(-f.row_count // most) < enough and not f.deep:
        most //= 2
    if length <= SHORT and not f.deep:
        found = [(shape, False) for shape in _short_shapes(f, most)] + found
    col_cap = max(16, power_of_two(f.col_count))
    found = [x for x in found if x[0][0] <= most] + found
    cut = [((min(r, f.row_cap), min(c, col_cap), w, s), d) for (r, c, w, s), d in found]
    return list(dict.fromkeys(cut))


def _short_shapes(f: Footprint, most: int) -> list[Shape]:
    """Shapes for sweeps of few tiles, with row tiles of `most` where larger ones do not fill the device."""
    if most < 64:
        return [(32, 64, 4, 2), (16, 64, 4, 3)]
    if f.per_pair and f.per_col >= 512:
        shapes = [(64, 32, 4, 3), (64, 32, 4, 4), (64, 64, 4, 2)]
    elif f.per_pair:
        shapes = [(64, 64, 4, 3), (128, 32, 4, 2), (128, 32, 4, 3), (64, 64, 4, 2)]
    elif f.per_col >= 512:
        shapes = [(64, 64, 4, 2), (64, 64, 4, 3)]
    else:
        shapes = [(64, 64, 4, 3), (64, 64, 4, 2), (64, 128, 4, 2)]
    return shapes


def _fits(f: Footprint, s: Schedule, device: Device) -> bool:
    return registers(f, s) <= device.registers and shared_bytes(f, s) <= device.shared


def registers(f: Footprint, s: Schedule) -> int:
    """Estimated 32-bit registers per thread: accumulators, score tiles, weights as operands, vectors along the columns.

    Calibrated on what ptxas reports for sm_90: within a tenth for one to three dots.
    """
    scores = (1 + 0.25 * max(0, f.dots - 1)) * (1 + f.single)
    pairs = s.row_block * s.col_block * (scores + f.wide)
    tiles = (s.row_block * f.accumulated + pairs) / (32 * s.warps)
    fixed = 26 + 30 * max(0, f.dots - 1) + (100 if f.positions else 0)
    fixed += s.col_block // 2 if s.row_block < 16 * s.warps else 0  # weights cross warps
    fixed += 20 if f.ragged else 0
    fixed += 60 if s.outer and f.dots > 1 else 0
    along = (f.vectors + (1 if f.masked else 0)) * s.col_block // 4
    return int(tiles * (4 if f.double else 1)) + fixed + along


def shared_bytes(f: Footprint, s: Schedule) -> int:
    """Estimated shared memory: row operands once, column and pair operands per stage."""
    staged = s.col_block * f.per_col + s.row_block * s.col_block * f.per_pair
    stays = s.row_block * f.per_row * (s.stages if f.deep else 1)
    return stays + s.stages * staged + 1024
