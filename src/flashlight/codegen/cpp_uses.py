"""What an emitter must know of a kernel's values before it emits: who reads them, over which axes, and which to repeat."""

from __future__ import annotations

from collections.abc import Iterable

from flashlight.codegen.blocks import (
    Axis,
    Compute,
    Constant,
    Dot,
    Fetch,
    Fold,
    For,
    Gather,
    If,
    Kernel,
    Op,
    Point,
    Positions,
    Span,
    Store,
    Value,
    operands,
    results,
    walk,
)
from flashlight.codegen.cpp_tree import Elementwise
from flashlight.errors import CompileError
from flashlight.ir.dtypes import DType

_CHEAP = frozenset(
    (
        *("add", "sub", "mul", "neg", "fma", "abs", "anchor", "maxnum", "minnum"),
        *("and", "or", "xor", "not", "lt", "le", "gt", "ge", "eq", "ne", "select", "cast"),
        *("shl", "shr"),
    )
)
_CHEAP_LIMIT = 4
_KEEP = 1000


class Uses:
    """Definitions and readers of a kernel's values.

    Attributes:
        rows: the axis that lanes run along; None if lanes run along the innermost axis of each nest.
        order: in which axes are stepped over, outermost first.
    """

    def __init__(self, kernel: Kernel, *, rows_are_lanes: bool) -> None:
        rows = [a for a in kernel.axes if a.role == "rows"]
        self.rows = rows[0] if rows and rows_are_lanes else None
        self.order = {a: i for i, a in enumerate(kernel.axes)}
        if self.rows is not None:
            self.order[self.rows] = -1
        self.definitions: dict[Value, Op] = {}
        self.users: dict[Value, list[Op]] = {}
        self._costs: dict[Value, int] = {}
        for op in walk(kernel.body):
            for value in results(op):
                self.definitions[value] = op
            for value in operands(op):
                self.users.setdefault(value, []).append(op)
            if isinstance(op, For | If):
                for value in op.body.yields:
                    self.users.setdefault(value, []).append(op)

    def sorted(self, axes: Iterable[Axis]) -> tuple[Axis, ...]:
        """Axes in the order in which they are stepped over."""
        return tuple(sorted(set(axes), key=lambda a: self.order[a]))

    def axes_of(self, op: Elementwise) -> tuple[Axis, ...]:
        """The axes an operation steps over, outermost first."""
        if self.rows is not None and self.moves_rows(op):
            return (self.rows,)  # the columns are its own business
        match op:
            case Fold(_, _, x, axis):
                if axis is self.rows and x.axes != (axis,):
                    raise CompileError("A fold of tiles over rows has no C++ form.")
                return self.sorted(x.axes)
            case Store(_, index, _, _):
                spans = [s.axis for s in index if isinstance(s, Span)]
                return self.sorted([*spans, *(a for v in operands(op) for a in v.axes)])
            case _:
                return self.sorted(op.result.axes)

    def moves_rows(self, op: Op) -> bool:
        """Whether an array is read or written a vector of rows and all columns at a time (see `load_rows` in the preamble)."""
        if self.rows is None or not isinstance(op, Fetch | Store) or op.masks:
            return False
        value = op.result if isinstance(op, Fetch) else op.value
        spans = [s.axis for s in op.index if isinstance(s, Span)]
        return (
            len(spans) == 2
            and set(spans) == set(value.axes)
            and self.rows in spans
            and not any(isinstance(s, Gather) for s in op.index)
            and not any(isinstance(s, Point) and s.at is not None and s.at.axes for s in op.index)
        )

    def _cost(self, value: Value) -> int:
        """Operations to compute a value again from scalars, positions and products; large if it should be kept."""
        if value not in self._costs:
            self._costs[value] = self._new_cost(value)
        return self._costs[value]

    def _new_cost(self, value: Value) -> int:
        if not value.axes:
            return 0
        match self.definitions.get(value):
            case Constant() | Positions():
                return 0
            case Dot():
                return 1
            case Fetch() if len(value.axes) == 1:
                return 1  # it becomes a short tile, or is at hand already
            case Compute(_, op, args) if op in _CHEAP and value.dtype not in (
                DType.F16,
                DType.BF16,
            ):
                return 1 + sum(self._cost(a) for a in args)
            case _:
                return _KEEP

    def _is_cheap(self, value: Value) -> bool:
        return self._cost(value) <= _CHEAP_LIMIT

    def is_silent(self, op: Op) -> bool:
        """Whether an operation is repeated wherever its result is read."""
        if not isinstance(op, Compute) or not op.result.axes or not self._is_cheap(op.result):
            return False
        users = self.users.get(op.result, [])
        return not any(isinstance(u, Dot | For | If) or self.moves_rows(u) for u in users)

    def readers(self, value: Value) -> list[Op]:
        """Operations that read a value where they stand, through others that are repeated there."""
        found: dict[int, Op] = {}
        for user in self.users.get(value, []):
            if isinstance(user, Compute) and self.is_silent(user):
                found.update((id(u), u) for u in self.readers(user.result))
            else:
                found[id(user)] = user
        return list(found.values())


def is_double(kernel: Kernel) -> bool:
    """Whether vectors should be sized for doubles: the products are, or there are none and some tile is."""
    values = [v for op in walk(kernel.body) for v in results(op)]
    products = {op.result.dtype for op in walk(kernel.body) if isinstance(op, Dot)}
    if products:
        return DType.F64 in products
    return any(v.axes and v.dtype is DType.F64 for v in values)


def needs(op: Op) -> set[Value]:
    """Values an operation reads, in nested blocks too."""
    found = set(operands(op))
    if isinstance(op, For | If):
        found.update(op.body.yields)
        for inner in walk(op.body):
            found.update(operands(inner))
            if isinstance(inner, For | If):
                found.update(inner.body.yields)
    return found
