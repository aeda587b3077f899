"""What a tile holds: registers, shared memory and bytes fetched, estimated from the dims of what a loop reads and keeps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import Binary, Cast, Const, Dim, Expr, Load, Reduce, Select, Unary
from flashlight.ir.nests import Loop
from flashlight.ir.visit import free_dims, loads, walk
from flashlight.rewrite.schedule import Device, Schedule, extent_of, planned_extent, power_of_two
from flashlight.rewrite.split_accumulators import components

DEEP = 1024
"""Elements of a contraction beyond which a tile's operands are not held whole, but fetched anew in chunks for each tile."""


DEEP_CHUNK = 64


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a tile holds, in elements per row, per column and per pair; sizes known approximately.

    Attributes:
        accumulated: 32-bit words of carries per row.
        dots: contractions that score, in a tile.
        parts: sets of carries that are independent of each other.
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
    parts: int
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


def footprint_of(loop: Loop, base: Schedule, hints: Mapping[str, int]) -> Footprint:
    """The footprint of a loop whose rows and columns are those of `base`."""
    kept, looped = frozenset(loop.kept), frozenset(loop.loop)
    rows, cols = set(base.rows), set(base.cols)
    per_row = per_col = per_pair = vectors = 0
    floats: set[DType] = set()
    nodes = {n for c in loop.carries for n in walk(c.body)}
    deep = {d for n in nodes if isinstance(n, Reduce) and (d := _deep_dim(n, hints))}
    for load in fetched_loads(loop):
        dims = free_dims(load)
        elements = padded(dims - kept - looped - deep, hints)
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
        accumulated=sum(padded(frozenset(c.dims) - kept, hints) for c in loop.carries),
        dots=len(sums) - len(elementwise),
        parts=len(components(loop)),
        single=(0.5 if narrow else 2.0) if whole else 0.0,
        per_row=per_row,
        per_col=per_col,
        per_pair=per_pair,
        vectors=vectors,
        masked=any(isinstance(n, Select) and free_dims(n.condition) & cols for n in pairs),
        pair_width=max(
            (
                padded(frozenset(c.dims) - kept, hints)
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


def fetched_loads(loop: Loop) -> list[Load]:
    """What a loop reads of other buffers than its own."""
    own = {c.name for c in loop.carries} | {g.name for g in loop.gives}
    found = dict.fromkeys(loads(*(c.body for c in loop.carries)))
    return [load for load in found if load.buffer.name not in own]


def padded(dims: frozenset[Dim], hints: Mapping[str, int]) -> int:
    """Elements along dims that a tile holds whole, as one axis of it."""
    return max(16, math.prod(power_of_two(extent_of(d, hints)) for d in dims)) if dims else 1


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


def fits(f: Footprint, s: Schedule, device: Device) -> bool:
    """Whether a tile is expected to fit registers and shared memory."""
    return registers(f, s) <= device.registers and shared_bytes(f, s) <= device.shared


def registers(f: Footprint, s: Schedule) -> int:
    """Estimated 32-bit registers per thread: accumulators, score tiles, weights as operands, vectors along the columns.

    Calibrated on what ptxas reports for sm_90: within a tenth for one to three dots.
    """
    scores = (1 + 0.25 * max(0, f.dots - 1)) * (1 + f.single)
    pairs = s.row_block * s.col_block * (scores + f.wide)
    tiles = (s.row_block * f.accumulated + pairs) / (32 * s.warps)
    fixed = 26 + 30 * max(0, f.dots - 1) + (100 if f.positions else 0)
    fixed += 20 if f.ragged else 0
    fixed += 60 if s.outer and f.dots > 1 else 0
    columns = s.col_block // 4  # of a thread: products leave tiles so
    if f.accumulates:
        fixed += s.col_block // 2 if s.row_block < 16 * s.warps else 0  # weights cross warps
    else:
        columns = min(columns, -(-s.row_block * s.col_block // (32 * s.warps)))
    along = (f.vectors + (1 if f.masked else 0)) * columns
    return int(tiles * (4 if f.double else 1)) + fixed + along


def shared_bytes(f: Footprint, s: Schedule) -> int:
    """Estimated shared memory: row operands once, column and pair operands per stage."""
    staged = s.col_block * f.per_col + s.row_block * s.col_block * f.per_pair
    stays = s.row_block * f.per_row * (s.stages if f.deep else 1)
    return stays + s.stages * staged + 1024
