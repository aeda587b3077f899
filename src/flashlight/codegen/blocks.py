"""The block program: a kernel as straight-line code on tiles, with counted loops, before any language is chosen.

It is structured SSA. A `Value` is a scalar or a tile; `axes` says over what. An operation whose operands have different axes
broadcasts: axes always appear in one order within a kernel (rows, cols, then whole and inner axes as in `Kernel.axes`), so
aligning a value with a result only inserts axes and never transposes. Nothing here knows a memory hierarchy, a vector width or
Triton. An emitter prints operations in order; where an operation stands (before a loop, in it, after it) is where it runs.

    kernel attention
      grid b = B, h = H, row tile descending = ceil(S / 64)
      q0 = row_tile * 64
      Q[b, h, q0 + rows, d]                                  a Fetch of a (rows, d) tile
      for t in [lo, full_lo): ...edge tile...                the three loops of a pass chain their slots;
      for t in [full_lo, full_hi): ...full tile...           lower drops those that are known to be empty
      for t in [full_hi, hi): ...edge tile...
      store O[b, h, q0 + rows, e]

What a loop over the loop dims (`For.kind == "sweep"`) loads, scores and accumulates can be read off its body: a `Fetch` with a
`Span` over `For.axis` is loaded for each tile, a `Dot` that contracts `For.axis` accumulates, every other `Dot` scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import Buffer, Dim, Expr, Size
from flashlight.ir.monoids import Monoid

Role: TypeAlias = Literal["rows", "cols", "whole", "inner"]


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of tiles: `block` consecutive positions of one dim or of several dims linearised (row-major, last fastest).

    Attributes:
        name: unique in the kernel.
        role: rows (kept dims), cols (loop dims), whole (a small dim, entirely in the tile, padded), or inner (a chunk of a
            reduction that is too long to be whole; its `For` has kind "inner").
        block: positions in a tile; a power of two, but for rows that groups of warps share (`codegen.roles`).
        dims: the dims that are linearised here.
    """

    name: str
    role: Role
    block: int
    dims: tuple[Dim, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """The result of one operation, compared by identity. No axes: a scalar.

    Attributes:
        name: a hint for readable source; unique in the kernel.
        dtype: element type in registers (index values are i32 unless they must be i64).
        axes: ordered as in `Kernel.axes`.
    """

    name: str
    dtype: DType
    axes: tuple[Axis, ...] = ()


# -- Where a fetch or a store goes: one subscript for each axis of the buffer.


@dataclass(frozen=True, slots=True)
class Span:
    """Positions start + step * (0, 1, ..., axis.block - 1).

    Attributes:
        start: a scalar; None is 0.
        below, above: whether positions may be negative, or reach past the buffer's extent. Such elements are read as 0
            (False) and not written. Both False: no check is needed.
    """

    axis: Axis
    start: Value | None = None
    step: int = 1
    below: bool = False
    above: bool = False


@dataclass(frozen=True, slots=True)
class Point:
    """One position for the whole tile; `at` is a scalar (None: 0) within the buffer."""

    at: Value | None


@dataclass(frozen=True, slots=True)
class Gather:
    """A position for each element, `at` being a tile (it may hold loaded integers, quotients and remainders).

    `checked`: positions may be out of range; then they are treated as by a `Span` with both flags.
    """

    at: Value
    checked: bool = True


Subscript: TypeAlias = Span | Point | Gather


# -- Operations.


@dataclass(frozen=True, slots=True)
class Constant:
    """`result` = a literal."""

    result: Value
    value: bool | int | float


@dataclass(frozen=True, slots=True)
class SizeOf:
    """`result` = a symbolic size, a scalar known at launch."""

    result: Value
    size: Size


@dataclass(frozen=True, slots=True)
class Positions:
    """`result` = 0, 1, ..., axis.block - 1 along one axis."""

    result: Value
    axis: Axis


@dataclass(frozen=True, slots=True)
class Compute:
    """`result` = `op` of the arguments, element by element.

    `op` is an operator of `ir.exprs` (UNARY or BINARY, with its meaning there: min and max propagate NaN, floordiv and mod
    floor), or "select" (condition, a, b), "fma" (a * b + c), "cast" (to result.dtype), "maxnum"/"minnum" (either operand where one
    is NaN; used where NaN is known to reach the result by another way or not at all), "quotient"/"remainder" (floordiv and mod
    of integers known not to be negative, so that truncation will do), "within" (0 <= a <= b for integers of 32 bits; b is not
    negative; not where axes are exact), "rescale" (a * b, where b is 1 for nearly all tiles).
    The arguments have one dtype, except for select's condition and for casts; comparisons yield bools.

    Attributes:
        fast: a hardware approximation will do (relative error about 2^-11 for tanh; of the last bits for exp2): the result is
            rounded to 16 bits further on.
    """

    result: Value
    op: str
    args: tuple[Value, ...]
    fast: bool = False


@dataclass(frozen=True, slots=True)
class Fetch:
    """`result` = elements of a buffer, in the buffer's dtype. Elements where some mask is False, or out of range, are 0.

    Attributes:
        index: one subscript per axis of the buffer; the result's axes are those of the subscripts and masks.
        masks: bools whose conjunction guards the load.
    """

    result: Value
    buffer: Buffer
    index: tuple[Subscript, ...]
    masks: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Dot:
    """`result` = sum over `axis` of a * b (+ acc), for a over (m, axis) and b over (axis, n) in either order of axes.

    The operands have one dtype (f16, bf16, f32 or f64); the sum is kept in result.dtype (f32 or f64). Padding along `axis` is 0
    in both operands. How exact an f32 dot is, is the emitter's option.
    """

    result: Value
    a: Value
    b: Value
    axis: Axis
    acc: Value | None = None


@dataclass(frozen=True, slots=True)
class Fold:
    """`result` = x reduced over one axis by a monoid. A position monoid yields the i32 position along the axis (the first of
    equals; a NaN wins). `nan`: max and min must propagate NaN; False where NaN is known to reach the result otherwise.
    """

    result: Value
    monoid: Monoid
    x: Value
    axis: Axis
    nan: bool = True


@dataclass(frozen=True, slots=True)
class Store:
    """Write `value` (cast to the buffer's dtype by an earlier Compute) where all masks hold and positions are in range."""

    buffer: Buffer
    index: tuple[Subscript, ...]
    value: Value
    masks: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Slot:
    """A loop-carried value: `init` before the loop, `inside` at the head of each iteration, `result` after the loop.

    The loop's body yields the next value at the slot's position. Loops that chain have slots of one `name`, so that an emitter
    may keep them in one variable.
    """

    name: str
    init: Value
    inside: Value
    result: Value


@dataclass(frozen=True, slots=True)
class Block:
    """Operations in order, and for the body of a For the next value of each slot."""

    ops: tuple[Op, ...]
    yields: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class For:
    """A counted loop: `index` runs over lo <= index < hi, one by one.

    Attributes:
        kind: "sweep": over tiles of the cols axis (index counts tiles; position = index * axis.block); "outer": over single
            positions of one loop dim, around a sweep; "inner": over chunks of an inner axis, or single positions of a small
            dim (axis None) whose elementwise product would not fit as a tile.
        axis: the axis whose tiles are counted, or None where single positions are.
        full: (sweep) no position of these tiles is past the end or masked by what the bounds pass has decided: a hint that
            there is nothing left to check, so the loop may be pipelined freely.
        unroll: the count is a small constant, worth unrolling.
        base, end: (sweep of an exact schedule) tiles start at position base + index * axis.block and the last one ends at `end`.
    """

    index: Value
    lo: Value
    hi: Value
    kind: Literal["sweep", "outer", "inner"]
    axis: Axis | None
    slots: tuple[Slot, ...]
    body: Block
    full: bool = False
    unroll: bool = False
    single: bool = False
    base: Value | None = None
    end: Value | None = None


@dataclass(frozen=True, slots=True)
class If:
    """Run `body` where a scalar condition holds; otherwise the slots' results are their `init`."""

    condition: Value
    slots: tuple[Slot, ...]
    body: Block


Op: TypeAlias = Constant | SizeOf | Positions | Compute | Fetch | Dot | Fold | Store | For | If


# -- The kernel.


@dataclass(frozen=True, slots=True)
class GridDim:
    """One dim of the logical grid.

    Attributes:
        index: its position in this program instance, a scalar.
        count: how many there are: an expression over sizes (`runtime` evaluates it).
        dim: the kept dim that is enumerated, or None for the tiles of the rows axis.
        descending: enumerate from the last to the first (the heaviest tiles first).
    """

    index: Value
    count: Expr
    dim: Dim | None
    descending: bool = False


@dataclass(frozen=True, slots=True)
class Kernel:
    """A block program.

    Attributes:
        name: a valid identifier.
        grid: outermost first; the last varies fastest between neighbouring program instances.
        axes: every tile axis, in the order used by all values.
        sizes: symbolic sizes that the body or the grid reads.
        reads, writes: buffers, in order of parameters; shapes may mention sizes. Strides are known at launch only.
        body: the whole of one program instance.
        group: grid points whose row tiles are interleaved, so that the first tiles of all of them run before the second ones: the
            linear order is (group of outer points, row tile, point in the group). 1: all tiles of a point are neighbours.
    """

    name: str
    grid: tuple[GridDim, ...]
    axes: tuple[Axis, ...]
    sizes: tuple[Size, ...]
    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]
    body: Block
    group: int = 1

    def __str__(self) -> str:
        return "\n".join(_print_kernel(self))


def operands(op: Op) -> tuple[Value, ...]:
    """Values an operation reads, nested blocks left out."""
    match op:
        case Constant() | SizeOf() | Positions():
            return ()
        case Compute(_, _, args):
            return args
        case Fetch(_, _, index, masks):
            return _subscript_values(index) + masks
        case Store(_, index, value, masks):
            return (*_subscript_values(index), value, *masks)
        case Dot(_, a, b, _, acc):
            return (a, b) if acc is None else (a, b, acc)
        case Fold(_, _, x, _):
            return (x,)
        case For(_, lo, hi):
            limits = tuple(v for v in (op.base, op.end) if v is not None)
            return (lo, hi, *limits, *(s.init for s in op.slots))
        case If(condition, slots):
            return (condition, *(s.init for s in slots))


def results(op: Op) -> tuple[Value, ...]:
    """Values an operation defines for what follows it."""
    match op:
        case For() | If():
            return tuple(s.result for s in op.slots)
        case Store():
            return ()
        case _:
            return (op.result,)


def walk(block: Block) -> Iterator[Op]:
    """Every operation, loops before what is inside them."""
    for op in block.ops:
        yield op
        if isinstance(op, For | If):
            yield from walk(op.body)


def _subscript_values(index: tuple[Subscript, ...]) -> tuple[Value, ...]:
    values = (s.start if isinstance(s, Span) else s.at for s in index)
    return tuple(v for v in values if v is not None)


# -- Text, for people and for tests.


def _print_kernel(kernel: Kernel) -> Iterator[str]:
    yield f"kernel {kernel.name}"
    for axis in kernel.axes:
        dims = ", ".join(d.name for d in axis.dims)
        yield f"  axis {axis.name}: {axis.block} {axis.role} of ({dims})"
    for g in kernel.grid:
        what = "row tile" if g.dim is None else g.dim.name
        yield f"  grid {g.index.name}: {what}{' descending' if g.descending else ''}"
    yield from _print_block(kernel.body, "  ")


def _print_block(block: Block, indent: str) -> Iterator[str]:
    for op in block.ops:
        match op:
            case Constant(result, value):
                yield f"{indent}{_typed(result)} = {value}"
            case SizeOf(result, size):
                yield f"{indent}{_typed(result)} = size {size.name}"
            case Positions(result, axis):
                yield f"{indent}{_typed(result)} = 0..{axis.block - 1}"
            case Compute(result, name, args, fast):
                spelled = ", ".join(a.name for a in args)
                yield f"{indent}{_typed(result)} = {name}{' fast' if fast else ''} {spelled}"
            case Fetch(result, buffer, index, masks):
                yield f"{indent}{_typed(result)} = {_access(buffer, index, masks)}"
            case Store(buffer, index, value, masks):
                yield f"{indent}{_access(buffer, index, masks)} = {value.name}"
            case Dot(result, a, b, axis, acc):
                plus = f" + {acc.name}" if acc else ""
                yield f"{indent}{_typed(result)} = dot {axis.name}: {a.name}, {b.name}{plus}"
            case Fold(result, monoid, x, axis):
                yield f"{indent}{_typed(result)} = {monoid} {axis.name}: {x.name}"
            case For(i, lo, hi, kind, axis, slots, body, full):
                over = f" {axis.name}" if axis else ""
                head = f"{kind}{over}{' full' if full else ''} {i.name} in {lo.name}..{hi.name}"
                yield from _print_nested(head, slots, body, indent)
            case If(condition, slots, body):
                yield from _print_nested(f"if {condition.name}", slots, body, indent)


def _print_nested(head: str, slots: tuple[Slot, ...], body: Block, indent: str) -> Iterator[str]:
    carried = ", ".join(f"{s.inside.name} = {s.init.name}" for s in slots)
    yield f"{indent}{head} ({carried})"
    yield from _print_block(body, indent + "  ")
    if slots:
        pairs = zip(slots, body.yields, strict=True)
        yield f"{indent}  yield " + ", ".join(f"{s.result.name} = {v.name}" for s, v in pairs)


def _typed(value: Value) -> str:
    axes = f"[{', '.join(a.name for a in value.axes)}]" if value.axes else ""
    return f"{value.name}: {value.dtype.value}{axes}"


def _access(buffer: Buffer, index: tuple[Subscript, ...], masks: tuple[Value, ...]) -> str:
    guard = " if " + " & ".join(m.name for m in masks) if masks else ""
    return f"{buffer.name}[{', '.join(_subscript(s) for s in index)}]{guard}"


def _subscript(subscript: Subscript) -> str:
    match subscript:
        case Span(axis, start, step, below, above):
            sign = ("-" if below else "") + ("+" if above else "")
            checks = f" check{sign}" if sign else ""
            stride = "" if step == 1 else f"{step} * "
            return f"{start.name + ' + ' if start else ''}{stride}{axis.name}{checks}"
        case Point(at):
            return at.name if at else "0"
        case Gather(at, checked):
            return f"{at.name}{' check' if checked else ''}"
