"""A block program divided between warps: one that copies tiles to shared memory, and groups of four that compute with them.

Matrix products of a Hopper run beside the instructions of the warps that started them. So a consumer starts the products that
make this tile's scores and those that sum the last tile's weights together, and computes this tile's weights while the sums run:

    weights of the first tile
    for each further tile: start its scores; start the sums of the weights before it; wait for the scores; weights; wait for the sums
    the sums of the last weights

That is legal where an accumulator is only moved (by what the scores of a tile change) and added to, which `divide` checks: the sums
of tile t are then added before the accumulator moves for tile t + 1, as in the loop itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from flashlight.codegen.blocks import (
    Axis,
    Compute,
    Dot,
    Fetch,
    For,
    If,
    Kernel,
    Op,
    Positions,
    Span,
    Store,
    Value,
    operands,
    results,
    walk,
)
from flashlight.codegen.partial_sums import PartialSum, partial_sums
from flashlight.codegen.triton import MOST_DIMS, is_box
from flashlight.errors import CompileError
from flashlight.ir.dtypes import DType
from flashlight.rewrite.shapes import CONSUMER_ROWS

HALF = (DType.F16, DType.BF16)


@dataclass(frozen=True, slots=True)
class Step:
    """One loop over tiles.

    Attributes:
        scores: products of the tile, in order; a later one may add to an earlier one.
        sums: products that add the tile's weights to accumulators.
        early: tiles that come with the scores, as operands or as terms.
        late: tiles that the sums read.
        light: what depends neither on scores nor on computed tiles of pairs, and is none, or is a load.
        heavy: what makes weights of scores.
        moves: what is done to an accumulator before the sum is added.
        parts: sums along the columns that no tile needs, by their slot.
        slots: numbers of the loop's slots that it moves on.
    """

    loop: For
    scores: tuple[Dot, ...]
    sums: tuple[Dot, ...]
    early: tuple[Fetch, ...]
    late: tuple[Fetch, ...]
    light: tuple[Op, ...]
    heavy: tuple[Op, ...]
    moves: tuple[Op, ...]
    parts: Mapping[int, PartialSum]
    slots: tuple[int, ...]

    @property
    def weights(self) -> tuple[Value, ...]:
        """What the sums multiply, in registers: of 32 bits where it is rounded for the product."""
        return tuple(dict.fromkeys(self._before_rounding(d.a) for d in self.sums))

    def weight_of(self, dot: Dot) -> int:
        """The weight that a sum multiplies, by its place in `weights`."""
        return self.weights.index(self._before_rounding(dot.a))

    def _before_rounding(self, value: Value) -> Value:
        for op in self.heavy:
            if isinstance(op, Compute) and op.op == "cast" and op.result is value:
                return op.args[0]
        return value


@dataclass(frozen=True, slots=True)
class Roles:
    """A kernel in three parts: before its loops, the loops, and after them.

    Attributes:
        rows, cols: the axes of the tiles of scores.
        resident: tiles of rows that the scores' products read from shared memory for all tiles.
        closing: tiles of rows that `after` fetches, and the copy engine could before it is asked for them.
    """

    rows: Axis
    cols: Axis
    before: tuple[Op, ...]
    steps: tuple[Step, ...]
    after: tuple[Op, ...]
    resident: tuple[Fetch, ...]
    closing: tuple[Fetch, ...]


def divide(kernel: Kernel, described: Iterable[str]) -> Roles:
    """The roles of a kernel's operations. Raises CompileError where its form is another one.

    Args:
        kernel: rows and columns tiled, one chain of loops.
        described: names of the buffers that descriptors can read.
    """
    rows, cols = (_axis(kernel, role) for role in ("rows", "cols"))
    ops = kernel.body.ops
    at = [n for n, op in enumerate(ops) if isinstance(op, For)]
    _require(bool(at), "it has no loop")
    inside = [op for op in walk(kernel.body) if not isinstance(op, For)]
    _require(not any(isinstance(op, If) for op in inside), "tiles are skipped by looking")
    loops = [ops[n] for n in at]
    before = [op for op in ops[: at[-1]] if not isinstance(op, For)]
    found = {v for op in loops for v in results(op)}
    _require(not any(found & set(operands(op)) for op in before), "it has several passes")
    described = frozenset(described)
    steps = tuple(_step(loop, rows, cols, described) for loop in loops if isinstance(loop, For))
    for first, second in pairwise(steps):
        chained = tuple(s.result for s in first.loop.slots) == tuple(
            s.init for s in second.loop.slots
        )
        _require(chained, "it has several passes")
        _require(_shape(first) == _shape(second), "its loops do not read the same tiles")
    steps = tuple(
        _in_parts(step, p) for step, p in zip(steps, partial_sums(kernel, rows, cols), strict=True)
    )
    read = {v for step in steps for d in step.scores for v in (d.a, d.b)}
    resident = [op for op in before if isinstance(op, Fetch) and op.result in read]
    resident = [op for op in resident if is_copied(op, described)]
    _require(bool(resident), "no product reads a tile of rows as it is loaded")
    after = ops[at[-1] + 1 :]
    others = {v for op in (*before, *after) for v in operands(op)}
    _require(not any(op.result in others for op in resident), "rows are read beside the products")
    closing = tuple(
        op for op in after if isinstance(op, Fetch) and _is_closing(op, rows, described)
    )
    return Roles(rows, cols, tuple(before), steps, tuple(after), tuple(resident), closing)


def copied_buffers(kernel: Kernel) -> tuple[str, ...]:
    """Names of the buffers that a kernel's tiles would be copied from. Raises CompileError where its warps can have no roles."""
    roles = divide(kernel, {b.name for b in kernel.reads})
    tiles = [
        *roles.resident,
        *roles.closing,
        *(f for s in roles.steps for f in (*s.early, *s.late)),
    ]
    return tuple(sorted({f.buffer.name for f in tiles}))


def is_copied(op: Fetch, described: Iterable[str]) -> bool:
    """Whether the copy engine may fetch a tile; single positions are axes of its descriptor."""
    return op.buffer.name in described and len(op.index) <= MOST_DIMS and is_box(op, consumed)


def _is_closing(op: Fetch, rows: Axis, described: Iterable[str]) -> bool:
    """Whether a tile that is fetched after the loops is one of rows that the copy engine may fetch."""
    is_rows = len(op.result.axes) == 2 and op.result.axes[0] == rows
    return is_rows and op.buffer.dtype in HALF and is_copied(op, described)


def in_order_of_memory(after: Sequence[Op], roles: Roles) -> set[Value]:
    """Tiles of rows that the end reads, and what it computes of them, as far as all that is only computed on and written whole."""
    found: set[Value] = set()
    for op in after:
        if not isinstance(op, Fetch) or op.masks or len(op.result.axes) != 2:
            continue
        if op.result.axes[0] != roles.rows or op.result.axes[1] == roles.cols:
            continue
        users = depending(after, [op.result])
        if all(_is_whole(user, op.result.axes) for user in users):
            found |= {op.result, *(v for user in users for v in results(user))}
    return found


def _is_whole(op: Op, axes: tuple[Axis, ...]) -> bool:
    if isinstance(op, Store):
        return not op.masks and op.value.axes == axes
    return isinstance(op, Compute) and op.result.axes == axes


def copied_axes(op: Fetch, unit: int) -> tuple[int, ...]:
    """The axes of a buffer in the order of its descriptor, the one of stride 1 last."""
    return (*(n for n in range(len(op.index)) if n != unit), unit)


def consumed(axis: Axis) -> int:
    """Positions of an axis that one consumer has."""
    return CONSUMER_ROWS if axis.role == "rows" else axis.block


def _step(loop: For, rows: Axis, cols: Axis, described: frozenset[str]) -> Step:
    body = loop.body
    _require(loop.kind == "sweep" and loop.axis == cols, "it loops over single positions")
    _require(not any(isinstance(op, For | Store) for op in body.ops), "it has a loop in a loop")
    dots = [op for op in body.ops if isinstance(op, Dot)]
    sums = [d for d in dots if d.axis == cols]
    scores = [d for d in dots if d.axis != cols]
    _require(bool(sums) and bool(scores), "it is no product of a product")
    sources = {op.result: op for op in body.ops if isinstance(op, Fetch)}
    late = _read(sources, [d.b for d in sums])
    for d in sums:
        _require(d.a.axes == (rows, cols) and rows not in d.b.axes, "a sum is over another axis")
        _require(
            d.b in sources and is_copied(sources[d.b], described), "a sum's operand is computed"
        )
        _require(d.a.dtype in HALF and d.acc is not None, "a sum is of 32 bits")
    for d in scores:
        _require(set(d.result.axes) == {rows, cols}, "a product has other axes")
        other = d.b if rows in d.a.axes else d.a
        _require(
            other in sources and is_copied(sources[other], described),
            "a product's operand is computed",
        )
        _require(d.a.dtype in HALF, "a product is of 32 bits")
    held = [d.b if rows in d.a.axes else d.a for d in scores]
    terms = [
        f.result
        for f in sources.values()
        if f.result.axes == (rows, cols) and is_copied(f, described)
    ]
    early = _read(sources, [*held, *terms])
    _require(not set(early) & set(late), "a tile is read by scores and by sums")
    moves = _moves(loop, sums)
    copied = {*early, *late}
    rest = [
        op for op in body.ops if op not in copied and op not in moves and not isinstance(op, Dot)
    ]
    waits = [d.result for d in scores] + [f.result for f in early]
    waits += [v for op in rest if not _is_light(op) for v in results(op)]
    made = depending(rest, waits)
    light = [op for op in rest if op not in made and _is_light(op)]
    used = {v for op in rest for v in operands(op)} | {v for d in scores for v in operands(d)}
    _require(not used & {f.result for f in late}, "a tile is read by scores and by sums")
    return Step(
        loop, tuple(scores), tuple(sums), early, late, tuple(light),
        tuple(op for op in rest if op not in light), tuple(moves), {},
        tuple(range(len(loop.slots))),
    )  # fmt: skip


def _in_parts(step: Step, parts: Mapping[int, PartialSum]) -> Step:
    """A step without the operations that sums in parts do without."""
    left = {id(op) for part in parts.values() for op in part.ops}
    return replace(step, heavy=tuple(op for op in step.heavy if id(op) not in left), parts=parts)


def _read(sources: dict[Value, Fetch], values: Sequence[Value]) -> tuple[Fetch, ...]:
    return tuple(dict.fromkeys(sources[v] for v in values if v in sources))


def _moves(loop: For, sums: Sequence[Dot]) -> list[Op]:
    """What depends on accumulators: each may be moved, and is then added to; nothing else may read it."""
    yields = dict(zip(loop.body.yields, loop.slots, strict=True))
    moves: list[Op] = []
    for d in sums:
        slot = yields.get(d.result)
        _require(
            slot is not None and loop.body.yields.count(d.result) == 1, "a sum is no accumulator"
        )
        assert slot is not None
        found = depending(loop.body.ops, [slot.inside])
        _require(d in found and not depending(loop.body.ops, [d.result]), "an accumulator is read")
        own = [op for op in found if op is not d]
        _require(all(isinstance(op, Compute) for op in own), "an accumulator is read")
        after = {v for op in own for v in results(op)}
        _require(
            not after & set(loop.body.yields) and d.acc in after | {slot.inside},
            "an accumulator is read",
        )
        moves += [op for op in own if op not in moves]
    return moves


def depending(ops: Iterable[Op], values: Iterable[Value]) -> list[Op]:
    """Operations that read any of some values, or what depends on them."""
    known = set(values)
    found = []
    for op in ops:
        if known & set(operands(op)):
            found.append(op)
            known.update(results(op))
    return found


def _is_light(op: Op) -> bool:
    return isinstance(op, Fetch | Positions) or all(len(v.axes) <= 1 for v in results(op))


def _shape(step: Step) -> object:
    """What a step reads and sums, without where its tile is."""

    def copy(op: Fetch) -> object:
        places = tuple((s.axis,) if isinstance(s, Span) else s for s in op.index)
        return op.buffer, places

    weights = tuple(v.dtype for v in step.weights)
    sums = tuple(step.weight_of(d) for d in step.sums)
    return tuple(map(copy, step.early)), tuple(map(copy, step.late)), weights, sums


def _axis(kernel: Kernel, role: str) -> Axis:
    found = [a for a in kernel.axes if a.role == role]
    _require(len(found) == 1, f"it has no tiles of {role}")
    return found[0]


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise CompileError(f"Warps of this kernel cannot be given roles of their own: {otherwise}.")
