"""Builds block programs: value numbering, folding of constants, and placement of each operation in the outermost block it can be in.

An operation stands in the innermost of the blocks that define its operands, so what is free of a loop's index and slots leaves the
loop by itself. Equal operations on equal values are one operation as long as the block that holds it is open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from flashlight.codegen.blocks import (
    Axis,
    Block,
    Compute,
    Constant,
    Dot,
    Fetch,
    Fold,
    For,
    Gather,
    If,
    Op,
    Point,
    Positions,
    SizeOf,
    Slot,
    Span,
    Store,
    Subscript,
    Value,
    operands,
)
from flashlight.errors import CompileError
from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import COMPARISONS, Buffer, Size
from flashlight.ir.monoids import Monoid

Kind = Literal["sweep", "outer", "inner"]


_STAYS = ("compute", "fetch", "dot", "fold")  # what does not leave a branch


@dataclass
class _Scope:
    """An open block."""

    ops: list[Op] = field(default_factory=list)
    numbers: dict[tuple[object, ...], Value] = field(default_factory=dict)


class Builder:
    """The block program under construction; see the module's docstring.

    `reciprocals`: divide a tile by what is constant along an axis of it with one quotient for all.
    """

    def __init__(self, *, reciprocals: bool = False) -> None:
        self._reciprocals = reciprocals
        self._scopes = [_Scope()]
        self._level: dict[Value, int] = {}
        self._literals: dict[Value, bool | int | float] = {}
        self._casts: dict[Value, Value] = {}
        self._negated: dict[Value, Value] = {}
        self._names: dict[str, int] = {}
        self._ordinary: set[Value] = set()
        self._floors: list[int] = []
        self.axes: list[Axis] = []
        self.sizes: list[Size] = []

    # -- Axes and names.

    def axis(self, axis: Axis) -> Axis:
        """Register an axis; the order of registration is the order of axes in every value."""
        if axis not in self.axes:
            self.axes.append(axis)
        return axis

    def ordered(self, axes: Iterable[Axis]) -> tuple[Axis, ...]:
        return tuple(sorted(set(axes), key=self.axes.index))

    def name(self, hint: str) -> str:
        """A fresh name like `hint`."""
        hint = "".join(c if c.isalnum() or c == "_" else "_" for c in hint) or "t"
        count = self._names.get(hint, 0)
        self._names[hint] = count + 1
        if count == 0:
            return hint
        return self.name(f"{hint}_{count}")

    def argument(self, hint: str, dtype: DType, level: int = 0) -> Value:
        """A scalar that no operation defines (a grid index)."""
        value = Value(self.name(hint), dtype)
        self._level[value] = level
        return value

    # -- Operations.

    def literal(self, value: Value) -> bool | int | float | None:
        """The value of a constant, or None."""
        return self._literals.get(value)

    def constant(self, value: bool | int | float, dtype: DType) -> Value:
        key = ("const", repr(value), dtype)
        found = self._find(key, 0)
        if found is None:
            found = self._define(key, 0, "c", dtype, (), lambda r: Constant(r, value))
            self._literals[found] = value
        return found

    def size(self, size: Size) -> Value:
        if size not in self.sizes:
            self.sizes.append(size)
        key = ("size", size)
        return self._find(key, 0) or self._define(
            key, 0, size.name, DType.I32, (), lambda r: SizeOf(r, size)
        )

    def positions(self, axis: Axis) -> Value:
        self.axis(axis)
        key = ("positions", axis)
        return self._find(key, 0) or self._define(
            key, 0, f"{axis.name}_at", DType.I32, (axis,), lambda r: Positions(r, axis)
        )

    def compute(
        self, op: str, *args: Value, dtype: DType | None = None, fast: bool = False, hint: str = "t"
    ) -> Value:
        """`op` of the arguments, folded and simplified where they are constants."""
        if dtype is None:
            dtype = DType.BOOL if op in COMPARISONS else args[-1].dtype
        simple = self._simplified(op, args, dtype)
        if simple is not None:
            return simple
        if op == "div" and self._reciprocals and self._shares_divisor(args, dtype):
            return self._divided(*args, hint=hint)
        key = ("compute", op, args, dtype, fast)
        level = self._level_of(args)
        axes = self.ordered(a for v in args for a in v.axes)
        result = self._find(key, level) or self._define(
            key, level, hint, dtype, axes, lambda r: Compute(r, op, args, fast)
        )
        if op == "cast":
            self._casts[result] = args[0]
        if op == "neg":
            self._negated[result] = args[0]
        return result

    def ordinary(self, value: Value) -> None:
        """A value whose reciprocal is an ordinary number wherever it is neither 0, infinite nor NaN."""
        self._ordinary.add(value)

    def cast(self, x: Value, dtype: DType) -> Value:
        return x if x.dtype is dtype else self.compute("cast", x, dtype=dtype, hint=x.name)

    def fetch(
        self,
        buffer: Buffer,
        index: tuple[Subscript, ...],
        masks: tuple[Value, ...] = (),
        hint: str = "",
    ) -> Value:
        key = ("fetch", buffer, index, masks)
        values = [*_values(index), *masks]
        axes = self.ordered(
            [s.axis for s in index if isinstance(s, Span)] + [a for v in values for a in v.axes]
        )
        level = self._level_of(values)
        return self._find(key, level) or self._define(
            key,
            level,
            hint or f"{buffer.name}_tile",
            buffer.dtype,
            axes,
            lambda r: Fetch(r, buffer, index, masks),
        )

    def dot(
        self, a: Value, b: Value, axis: Axis, dtype: DType, acc: Value | None, hint: str
    ) -> Value:
        values = [a, b] if acc is None else [a, b, acc]
        key = ("dot", a, b, axis, acc, dtype)
        level = self._level_of(values)
        axes = self.ordered(x for v in (a, b) for x in v.axes if x != axis)
        return self._find(key, level) or self._define(
            key, level, hint, dtype, axes, lambda r: Dot(r, a, b, axis, acc)
        )

    def fold(
        self, monoid: Monoid, x: Value, axis: Axis, *, nan: bool = True, hint: str = "t"
    ) -> Value:
        key = ("fold", monoid.name, x, axis, nan)
        level = self._level_of([x])
        axes = tuple(a for a in x.axes if a != axis)
        dtype = DType.I32 if monoid.is_position else x.dtype
        return self._find(key, level) or self._define(
            key, level, hint, dtype, axes, lambda r: Fold(r, monoid, x, axis, nan)
        )

    def store(
        self,
        buffer: Buffer,
        index: tuple[Subscript, ...],
        value: Value,
        masks: tuple[Value, ...] = (),
    ) -> None:
        self._scopes[-1].ops.append(Store(buffer, index, value, masks))

    # -- Loops.

    def loop(
        self,
        hint: str,
        lo: Value,
        hi: Value,
        kind: Kind,
        axis: Axis | None,
        carried: Sequence[tuple[str, Value, tuple[Axis, ...]]],
        body: Callable[[Value, tuple[Value, ...]], Sequence[Value]],
        *,
        full: bool = False,
        unroll: bool = False,
        single: bool = False,
        base: Value | None = None,
        end: Value | None = None,
        key: tuple[object, ...] | None = None,
    ) -> tuple[Value, ...]:
        """A counted loop over `carried` (name, initial value, axes); `body` maps the index and the slots' values to the next ones.

        Returns the slots' results. A loop known to be empty is not built, and one of a single slot not again where its `key` is
        that of another whose result is in sight.
        """
        if key is not None:
            for known in reversed(self._scopes):
                if key in known.numbers:
                    return (known.numbers[key],)
        first, last = self.literal(lo), self.literal(hi)
        if lo is hi or (first is not None and last is not None and first >= last):
            return tuple(init for _, init, _ in carried)
        level = len(self._scopes)
        index = self.argument(hint, DType.I32, level)
        inside = []
        for name, init, axes in carried:
            value = Value(self.name(name), init.dtype, axes)
            self._level[value] = level
            inside.append(value)
        self._scopes.append(_Scope())
        yields = tuple(body(index, tuple(inside)))
        scope = self._scopes.pop()
        slots = []
        for (name, init, axes), value in zip(carried, inside, strict=True):
            result = Value(self.name(name), init.dtype, axes)
            self._level[result] = len(self._scopes) - 1
            slots.append(Slot(name, init, value, result))
        op = For(
            *(index, lo, hi, kind, axis, tuple(slots), Block(tuple(scope.ops), yields)),
            full=full,
            unroll=unroll,
            single=single,
            base=base,
            end=end,
        )
        self._scopes[-1].ops.append(op)
        if key is not None:
            (self._scopes[-1].numbers[key],) = (s.result for s in slots)
        return tuple(s.result for s in slots)

    def branch(
        self,
        condition: Value,
        carried: Sequence[Value],
        body: Callable[[tuple[Value, ...]], Sequence[Value]],
    ) -> tuple[Value, ...]:
        """`body` of the carried values where a scalar condition holds, else these. What it computes stays in the branch."""
        level = len(self._scopes)
        inside = tuple(Value(self.name(v.name), v.dtype, v.axes) for v in carried)
        self._level.update(dict.fromkeys(inside, level))
        self._scopes.append(_Scope())
        self._floors.append(level)
        yields = tuple(body(inside))
        self._floors.pop()
        scope = self._scopes.pop()
        slots = []
        for init, value in zip(carried, inside, strict=True):
            result = Value(self.name(init.name), init.dtype, init.axes)
            self._level[result] = level - 1
            slots.append(Slot(init.name, init, value, result))
        self._scopes[-1].ops.append(If(condition, tuple(slots), Block(tuple(scope.ops), yields)))
        return tuple(s.result for s in slots)

    def finish(self) -> Block:
        """The kernel's body, dead operations left out."""
        (scope,) = self._scopes
        return drop_dead(Block(tuple(scope.ops)))

    # -- Inside.

    def _level_of(self, values: Iterable[Value]) -> int:
        return max((self._level[v] for v in values), default=0)

    def _find(self, key: tuple[object, ...], level: int) -> Value | None:
        for at in {level, self._placed(key, level)}:
            found = self._scopes[at].numbers.get(key)
            if found is not None:
                return found
        return None

    def _placed(self, key: tuple[object, ...], level: int) -> int:
        """The level of an operation that could stand at `level`: inside the branch if that would be right outside it."""
        if self._floors and level == self._floors[-1] - 1 and key[0] in _STAYS:
            return self._floors[-1]
        return level

    def _define(
        self,
        key: tuple[object, ...],
        level: int,
        hint: str,
        dtype: DType,
        axes: tuple[Axis, ...],
        make: Callable[[Value], Op],
    ) -> Value:
        value = Value(self.name(hint), dtype, axes)
        self._level[value] = self._placed(key, level)
        scope = self._scopes[self._level[value]]
        scope.numbers[key] = value
        scope.ops.append(make(value))
        return value

    def _simplified(self, op: str, args: tuple[Value, ...], dtype: DType) -> Value | None:
        """An existing value equal to the operation, or a constant."""
        known = [self._literals.get(a) for a in args]
        match op:
            case "cast":
                return self._simple_cast(args[0], known[0], dtype)
            case "select":
                return self._simple_select(args, known[0], dtype)
            case "abs" | "maxnum" | "minnum" | "lt" if None not in known:
                return self._folded(op, known, dtype)
            case "fma" if known[1] == 1.0:
                return self.compute("add", args[0], args[2], dtype=dtype)
            case "and" | "or" | "not" if dtype is DType.BOOL:
                return self._simple_logic(op, args, known)
            case "add" | "sub" | "mul" | "floordiv" | "quotient" if dtype.is_int:
                return self._integer(op, args[0], args[1], known, dtype)
            case "add" | "sub" | "mul" | "div" | "neg" if dtype is not DType.BOOL:
                return self._simple_float(op, args, known, dtype)
            case _:
                return None

    def _folded(
        self, op: str, known: Sequence[bool | int | float | None], dtype: DType
    ) -> Value | None:
        """Extrema and comparisons of constants that are numbers."""
        values = [k for k in known if k is not None and k == k]
        if len(values) != len(known):
            return None
        match op:
            case "abs":
                return self.constant(abs(values[0]), dtype)
            case "maxnum":
                return self.constant(max(values), dtype)
            case "minnum":
                return self.constant(min(values), dtype)
            case _:
                return self.constant(values[0] < values[1], DType.BOOL)

    def _simple_cast(
        self, x: Value, known: bool | int | float | None, dtype: DType
    ) -> Value | None:
        if x.dtype is dtype:
            return x
        source = self._casts.get(x)
        if source is not None and source.dtype is dtype and widens(dtype, x.dtype):
            return source
        if known is None:
            return None
        if dtype is DType.BOOL:
            return self.constant(bool(known), dtype)
        if dtype in (DType.F32, DType.F64):
            return self.constant(float(known), dtype)
        if not dtype.is_float and not x.dtype.is_float:
            return self.constant(int(known), dtype)
        return None

    def _simple_select(
        self, args: tuple[Value, ...], known: bool | int | float | None, dtype: DType
    ) -> Value | None:
        _, a, b = args
        if a is b:
            return a
        if known is None:
            return None
        chosen = a if known else b
        return chosen if chosen.dtype is dtype else None

    def _simple_logic(
        self, op: str, args: tuple[Value, ...], known: Sequence[bool | int | float | None]
    ) -> Value | None:
        if op == "not":
            return None if known[0] is None else self.constant(not known[0], DType.BOOL)
        a, b = args
        neutral = op == "and"
        if a is b or known[0] is neutral:
            return b
        if known[1] is neutral:
            return a
        if (not neutral) in (known[0], known[1]):
            return self.constant(not neutral, DType.BOOL)
        return None

    def _simple_float(
        self,
        op: str,
        args: tuple[Value, ...],
        known: Sequence[bool | int | float | None],
        dtype: DType,
    ) -> Value | None:
        """x + 0, x * 1, x / 1, -(-x), x - (-y), constants; x * 0 stays."""
        if op == "neg":
            if known[0] is not None:
                return self.constant(-known[0], dtype)
            return self._negated.get(args[0])
        a, b = args
        if all(k is not None for k in known):
            return self._float(op, known, dtype)
        neutral = 0.0 if op in ("add", "sub") else 1.0
        if known[1] == neutral and a.dtype is dtype:
            return a
        if op in ("add", "mul") and known[0] == neutral and b.dtype is dtype:
            return b
        if op in ("add", "sub") and b in self._negated:
            opposite = "sub" if op == "add" else "add"
            return self.compute(opposite, a, self._negated[b], dtype=dtype)
        if op == "add" and a in self._negated:
            return self.compute("sub", b, self._negated[a], dtype=dtype)
        return None

    def _integer(
        self,
        op: str,
        a: Value,
        b: Value,
        known: Sequence[bool | int | float | None],
        dtype: DType,
    ) -> Value | None:
        x, y = known
        if isinstance(x, int) and isinstance(y, int):
            match op:
                case "add":
                    return self.constant(x + y, dtype)
                case "sub":
                    return self.constant(x - y, dtype)
                case "mul":
                    return self.constant(x * y, dtype)
                case _ if y:
                    return self.constant(x // y, dtype)
        if op in ("add", "sub") and y == 0:
            return a
        if op == "add" and x == 0:
            return b
        if op in ("mul", "floordiv", "quotient") and y == 1:
            return a
        if op == "mul" and x == 1:
            return b
        if op == "mul" and 0 in (x, y):
            return self.constant(0, dtype)
        return None

    def _shares_divisor(self, args: Sequence[Value], dtype: DType) -> bool:
        dividend, divisor = args
        return (
            dtype is DType.F32
            and bool(set(dividend.axes) - set(divisor.axes))
            and self.literal(divisor) is None
        )

    def _divided(self, dividend: Value, divisor: Value, *, hint: str) -> Value:
        """dividend / divisor with one quotient along the axes that only the dividend has.

        A divisor so small or large that its reciprocal would be no ordinary number is scaled by a power of two, and the dividend
        with it: where that leaves the range of f32, so does the quotient.
        """

        def number(x: float) -> Value:
            return self.constant(x, DType.F32)

        if divisor in self._ordinary:
            return self.compute(
                "mul", dividend, self.compute("div", number(1.0), divisor), hint=hint
            )
        size = self.compute("abs", divisor)
        large = self.compute("gt", size, number(2.0**96))
        small = self.compute("lt", size, number(2.0**-96))
        scale = self.compute("select", large, number(2.0**-32), number(1.0))
        scale = self.compute("select", small, number(2.0**32), scale)
        reciprocal = self.compute("div", number(1.0), self.compute("mul", divisor, scale))
        scaled = self.compute("mul", dividend, scale, hint=hint)
        return self.compute("mul", scaled, reciprocal, hint=hint)

    def _float(
        self, op: str, known: Sequence[bool | int | float | None], dtype: DType
    ) -> Value | None:
        x, y = (float(k) for k in known if k is not None)
        result = {"add": x + y, "sub": x - y, "mul": x * y}.get(op)
        if op == "div":
            result = x / y if y else _over_zero(x, y)
        assert result is not None
        return self.constant(result, dtype)


def _over_zero(x: float, zero: float) -> float:
    """x / 0 of floats, which Python (and a Triton kernel, of two numbers) refuses to say."""
    if x == 0 or math.isnan(x):
        return math.nan
    return math.copysign(math.inf, x) * math.copysign(1.0, zero)


def widens(narrow: DType, wide: DType) -> bool:
    """Whether every value of a type is a value of another."""
    if narrow.is_float and wide.is_float:
        return narrow.bits < wide.bits
    return narrow is DType.I32 and wide is DType.I64


def _values(index: tuple[Subscript, ...]) -> list[Value]:
    found = []
    for s in index:
        match s:
            case Span(start=at) | Point(at) | Gather(at):
                if at is not None:
                    found.append(at)
    return found


def drop_dead(block: Block) -> Block:
    """Remove operations and slots that no store depends on."""
    live: set[Value] = set()
    return _live_block(block, live)


def _live_block(block: Block, live: set[Value]) -> Block:
    """`block` without what is dead, given the values live after it (extended by what it needs)."""
    live.update(block.yields)
    kept: list[Op] = []
    for op in reversed(block.ops):
        match op:
            case Store():
                live.update(operands(op))
                kept.append(op)
            case For(_, lo, hi):
                slots, body = _live_slots(op, live)
                if not slots and not _stores(body):
                    continue
                live.update(v for v in (lo, hi, op.base, op.end) if v is not None)
                kept.append(replace(op, slots=slots, body=body))
            case If(condition):
                slots, body = _live_slots(op, live)
                if not slots and not _stores(body):
                    continue
                live.add(condition)
                kept.append(replace(op, slots=slots, body=body))
            case _:
                if op.result in live:
                    live.update(operands(op))
                    kept.append(op)
    return Block(tuple(reversed(kept)), block.yields)


def _live_slots(op: For | If, live: set[Value]) -> tuple[tuple[Slot, ...], Block]:
    """Slots whose result is needed after the loop or, through other slots, inside it; and the body with only their yields."""
    needed = {s for s in op.slots if s.result in live}
    while True:
        pairs = list(zip(op.slots, op.body.yields, strict=True))
        inner = {v for s, v in pairs if s in needed}
        body = _live_block(Block(op.body.ops, tuple(v for s, v in pairs if s in needed)), inner)
        more = {s for s in op.slots if s.inside in inner} | needed
        if more == needed:
            break
        needed = more
    live.update(inner)
    slots = tuple(s for s in op.slots if s in needed)
    live.update(s.init for s in slots)
    return slots, body


def _stores(block: Block) -> bool:
    return any(
        isinstance(op, Store) or (isinstance(op, For | If) and _stores(op.body)) for op in block.ops
    )


def unsupported(what: str) -> CompileError:
    """The error for a loop that no tile form is known for; its region falls back to Inductor."""
    return CompileError(f"No tile form: {what}.")
