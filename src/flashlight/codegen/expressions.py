"""Scalar expressions to tile operations; see `reductions` for sums and the like inside them."""

from __future__ import annotations

import functools
import math

from flashlight.codegen.between import ranges_in
from flashlight.codegen.blocks import Value
from flashlight.codegen.builder import Builder, unsupported
from flashlight.codegen.exponents import Scaled, final_of, where_known
from flashlight.codegen.places import fits_i32, interval, is_computed_in_i32
from flashlight.codegen.reductions import Context, Reductions
from flashlight.codegen.separate import (
    Separated,
    Separator,
    affine_parts,
    along_columns,
    has_positions,
)
from flashlight.ir.dtypes import DType, promote
from flashlight.ir.exprs import (
    COMPARISONS,
    LOGICAL,
    Binary,
    Cast,
    Const,
    Expr,
    Index,
    Load,
    Reduce,
    Select,
    Size,
    Unary,
    dtype_of,
)
from flashlight.ir.visit import reads, walk
from flashlight.rewrite.simplify import simplify

_FAST = ("tanh",)


class Expressions(Reductions):
    """Lowers expressions into a builder.

    Attributes:
        builder: receives the operations.
        scaled: multiplies an exponent by log2(e); exponentials become exp2.
        fast: approximations of tanh and the like will do.
        pads_dots: the least block of a contracted or accumulated axis.
        exact: axes end where their dims end (see `Schedule.exact`).
    """

    def __init__(
        self,
        builder: Builder,
        scaled: Scaled,
        *,
        fast: bool,
        pads_dots: int = 16,
        exact: bool = False,
    ) -> None:
        super().__init__(builder, pads_dots, exact)
        self.scaled = scaled
        self.fast = fast

    # -- Expressions.

    def value(self, expr: Expr, ctx: Context, guarded: bool = False) -> Value:
        """The tile (or scalar) of an expression. Index arithmetic is i32 where that provably suffices."""
        key = (expr, guarded)
        found = ctx.memo.get(key)
        if found is None:
            if ctx.facts and dtype_of(expr) is DType.BOOL and simplify(expr) in ctx.facts:
                found = self.builder.constant(True, DType.BOOL)
            else:
                found = self._value(expr, ctx, guarded)
            ctx.memo[key] = found
        return found

    def _value(self, expr: Expr, ctx: Context, guarded: bool) -> Value:
        b = self.builder
        match expr:
            case Const(value, dtype):
                if dtype is DType.I64 and fits_i32(expr):
                    dtype = DType.I32
                return b.constant(value, dtype)
            case Size():
                return b.size(expr)
            case Index(dim):
                return ctx.places.position(dim)
            case Load():
                return self._load(expr, ctx, guarded)
            case Cast(x, dtype):
                return self._cast(x, dtype, ctx, guarded)
            case Select(condition, a, c):
                return self._select(expr, condition, a, c, ctx, guarded)
            case Unary(op, x):
                return self._unary(expr, op, x, ctx, guarded)
            case Binary():
                return self._binary(expr, ctx, guarded)
            case Reduce():
                return self.reduced(expr, ctx, guarded)

    def typed(self, expr: Expr, dtype: DType, ctx: Context, guarded: bool = False) -> Value:
        """The value of an expression, cast."""
        return self.builder.cast(self.value(expr, ctx, guarded), dtype)

    def _load(self, load: Load, ctx: Context, guarded: bool) -> Value:
        if load.buffer.name in ctx.carried:
            return self._carried(load, ctx)
        index, masks = [], []
        for position, extent in zip(load.index, load.buffer.shape, strict=True):
            subscript, needed = ctx.places.subscript(
                position, extent, guarded, lambda e: self.typed_index(e, ctx, guarded)
            )
            index.append(subscript)
            masks += [m for m in needed if m not in masks]
        return self.builder.fetch(load.buffer, tuple(index), tuple(masks))

    def typed_index(self, expr: Expr, ctx: Context, guarded: bool) -> Value:
        """An integer expression used as a position along an axis (which is below 2^31)."""
        return self.builder.cast(self.value(expr, ctx, guarded), DType.I32)

    def _carried(self, load: Load, ctx: Context) -> Value:
        dims, value = ctx.carried[load.buffer.name]
        here = tuple(i.dim if isinstance(i, Index) else None for i in load.index)
        if here != dims:
            raise unsupported(f"'{load.buffer.name}' is read at another index than its own")
        return value

    def _cast(self, x: Expr, dtype: DType, ctx: Context, guarded: bool) -> Value:
        b = self.builder
        if dtype is DType.F32 and dtype_of(x).is_int:
            spread = self._positions_as_float(x, ctx, guarded)
            if spread is not None:
                return spread
        value = self.value(x, ctx, guarded)
        if dtype is DType.I64 and value.dtype.is_int and fits_i32(x):
            return value
        if dtype is DType.BOOL and value.dtype is not DType.BOOL:
            return b.compute("ne", value, b.constant(0, value.dtype))
        return b.cast(value, dtype)

    def _positions_as_float(self, x: Expr, ctx: Context, guarded: bool) -> Value | None:
        """An integer over rows and columns as a float: converted as vectors, not element by element."""
        match x:
            case Unary("abs" | "neg" as op, inner):
                value = self._positions_as_float(inner, ctx, guarded)
                return None if value is None else self.builder.compute(op, value)
        cols = next((a for a in self.builder.axes if a.role == "cols"), None)
        if cols is None or len(ctx.places.axes(x)) < 2:
            return None
        pair = affine_parts(
            self.builder, ctx.places, cols, x, lambda e: self.typed_index(e, ctx, guarded)
        )
        return None if pair is None else self.builder.compute("add", *pair)

    def _select(
        self, expr: Expr, condition: Expr, a: Expr, c: Expr, ctx: Context, guarded: bool
    ) -> Value:
        b = self.builder
        test = self.value(condition, ctx, guarded)
        known = b.literal(test)
        if known is not None:
            return self.typed(a if known else c, self.dtype_in(expr), ctx, guarded)
        dtype = self.dtype_in(expr)
        return b.compute(
            "select",
            test,
            self.typed(a, dtype, ctx, True),
            self.typed(c, dtype, ctx, True),
            hint="s",
        )

    def dtype_in(self, expr: Expr) -> DType:
        """The type an expression is computed in."""
        dtype = dtype_of(expr)
        return DType.I32 if dtype is DType.I64 and is_computed_in_i32(expr) else dtype

    def _is_finite(self, value: Value) -> Value:
        size = self.builder.compute("abs", value)
        return self.builder.compute("lt", size, self.builder.constant(math.inf, value.dtype))

    def _unary(self, expr: Unary, op: str, x: Expr, ctx: Context, guarded: bool) -> Value:
        b = self.builder
        dtype = self.dtype_in(expr)
        match op:
            case "exp" if (final := final_of(x)) is not None:
                # A difference of two like products is not 0 where only one of them is rounded.
                value = self.typed(final, dtype, ctx, guarded)
                zero = b.constant(0.0, dtype)
                left = b.compute("select", self._is_finite(value), zero, b.compute("neg", value))
                return b.compute("exp", left)
            case "exp" if dtype is DType.F32 and _is_relative(x):
                exponent = self._exponent(x, ctx, guarded)
                if exponent is None:
                    known = where_known(x, ctx.facts)
                    scaled = self.scaled.tame(known) if ctx.tame else self.scaled(known)
                    exponent = self.typed(scaled, dtype, ctx, guarded)
                return b.compute("exp2", exponent, hint="p")
            case "anchor" if isinstance(x, Load) and x.buffer.name in ctx.clamped:
                value = self.typed(x, dtype, ctx, guarded)
                most = ctx.clamped[x.buffer.name]
                value = b.compute("maxnum", value, b.constant(-most, dtype), hint="ref")
                return b.compute("minnum", value, b.constant(most, dtype), hint="ref")
            case "anchor":
                value = self.typed(x, dtype, ctx, guarded)
                zero = b.constant(0.0, dtype)
                return b.compute("select", self._is_finite(value), value, zero, hint="ref")
            case "isnan" | "isinf":
                value = self.value(x, ctx, guarded)
                value = b.cast(value, value.dtype.compute)
                return b.compute(op, value, dtype=DType.BOOL)
            case "not" | "abs" | "sign" | "neg" if not dtype.is_float:
                return b.compute(op, self.typed(x, dtype, ctx, guarded), dtype=dtype)
            case _:
                value = self.typed(x, dtype, ctx, guarded)
                return b.compute(op, value, dtype=dtype, fast=self.fast and op in _FAST)

    def separated(self, expr: Expr, ctx: Context, guarded: bool = False) -> Separated | None:
        """A score as scale * tile + row, or None where there is no row part worth keeping apart.

        The tile then holds numbers as large as its width, and loses their bits: only for results of 16 bits.
        """
        cols = next((a for a in self.builder.axes if a.role == "cols"), None)
        if cols is None or self.scaled.wide or not self.fast or not has_positions(expr):
            return None
        separate = Separator(
            self.builder,
            ctx.places,
            cols,
            lambda e: (
                self.value(e, ctx, guarded)
                if dtype_of(e) is DType.BOOL
                else self.typed(e, DType.F32, ctx, guarded)
            ),
            lambda e: self.typed_index(e, ctx, guarded),
        )
        found = separate(expr)
        return None if found.tile is None or found.row is None else found

    def _exponent(self, x: Expr, ctx: Context, guarded: bool) -> Value | None:
        """log2(e) * x for a score with a row part: one multiply-add on the tile, the rest on the rows."""
        found = self.separated(x, ctx, guarded)
        if found is None or found.tile is None or found.row is None:
            return None
        b = self.builder
        row = b.compute("mul", found.row, b.constant(self.scaled.factor, DType.F32))
        scale = b.constant(found.scale * self.scaled.factor, DType.F32)
        return b.compute("fma", found.tile, scale, row)

    def _binary(self, expr: Binary, ctx: Context, guarded: bool) -> Value:
        b = self.builder
        op, x, y = expr.op, expr.a, expr.b
        if op in COMPARISONS:
            dtype = _common(self.dtype_in(x), self.dtype_in(y))
            return b.compute(
                op, self.typed(x, dtype, ctx, guarded), self.typed(y, dtype, ctx, guarded)
            )
        dtype = self.dtype_in(expr)
        if op in LOGICAL:
            joined = self._within(expr, ctx, guarded) if op == "and" else None
            return joined or b.compute(
                op, self.typed(x, dtype, ctx, guarded), self.typed(y, dtype, ctx, guarded)
            )
        if op in ("add", "sub") and dtype.is_float:
            return self._sum(expr, dtype, ctx, guarded)
        p, q = self.typed(x, dtype, ctx, guarded), self.typed(y, dtype, ctx, guarded)
        if op in ("floordiv", "mod") and interval(x)[0] >= 0 and interval(y)[0] >= 0:
            op = "quotient" if op == "floordiv" else "remainder"
        elif op in ("floordiv", "mod") and (bits := _bits_of_power(y)) is not None:
            low = (1 << bits) - 1
            op, q = (
                ("shr", b.constant(bits, dtype))
                if op == "floordiv"
                else ("and", b.constant(low, dtype))
            )
        return b.compute(op, p, q, dtype=dtype)

    def _within(self, expr: Binary, ctx: Context, guarded: bool) -> Value | None:
        """A conjunction over a tile that asks whether an integer lies in a range, that asked at once; else None."""
        cols = next((a for a in self.builder.axes if a.role == "cols"), None)
        if self.exact or cols is None or len(ctx.places.axes(expr)) < 2:
            return None
        pairs, rest = ranges_in(expr)
        if not pairs or any(simplify(c) in ctx.facts for c in (expr.a, expr.b)):
            return None
        b = self.builder
        found = [self.value(c, ctx, guarded) for c in rest]
        for x, most in pairs:
            split = along_columns(ctx.places, cols, x)
            if split is None or not fits_i32(x):
                return None
            dim, step, other = split
            here = b.compute(
                "mul", ctx.places.position(dim), b.constant(abs(step), DType.I32), hint="col"
            )
            row = self.typed_index(other, ctx, guarded)
            apart = b.compute("add" if step > 0 else "sub", row, here, dtype=DType.I32)
            limit = b.constant(most, DType.I32)
            found.append(b.compute("within", apart, limit, dtype=DType.BOOL))
        return functools.reduce(lambda p, q: b.compute("and", p, q), found)

    def _sum(self, expr: Binary, dtype: DType, ctx: Context, guarded: bool) -> Value:
        """a + b or a - b, as one fused multiply-add where one side is a product that varies most.

        A dot takes its sum's other addend as accumulator if that is a dot of the same axes. A multiple of a maximum is rounded as it is
        where sums are relative to it.
        """
        b = self.builder
        x, y = expr.a, expr.b
        if expr.op == "add" and isinstance(x, Reduce) and isinstance(y, Reduce):
            first = self.value(x, ctx, guarded)
            is_alike = first.axes and set(first.axes) == self.axes(y, ctx)
            joined = self.reduced(y, ctx, guarded, acc=first) if is_alike else None
            return joined or b.compute("add", first, self.value(y, ctx, guarded))
        product, other = (x, y) if _is_product(x) else (y, x)
        is_fused = _is_product(product) and not (product is y and expr.op == "sub")
        if not is_fused or reads(product) & ctx.carried.keys():
            p, q = self.typed(x, dtype, ctx, guarded), self.typed(y, dtype, ctx, guarded)
            return b.compute(expr.op, p, q, dtype=dtype)
        assert isinstance(product, Binary)
        whole = self.typed(product, dtype, ctx, guarded)
        third = self.typed(other, dtype, ctx, guarded)
        if b.literal(whole) is not None or not set(third.axes) <= set(whole.axes):
            pair = (whole, third) if product is x else (third, whole)
            return b.compute(expr.op, *pair, dtype=dtype)
        m, n = (
            self.typed(product.a, dtype, ctx, guarded),
            self.typed(product.b, dtype, ctx, guarded),
        )
        if expr.op == "sub":
            third = b.compute("neg", third)
        return b.compute("fma", m, n, third, dtype=dtype, hint="t")


def _is_product(expr: Expr) -> bool:
    return isinstance(expr, Binary) and expr.op == "mul"


def _bits_of_power(x: Expr) -> int | None:
    """n where x is 2^n, an integer."""
    if not isinstance(x, Const) or not x.dtype.is_int or x.value <= 0:
        return None
    n = int(x.value)
    return n.bit_length() - 1 if n & (n - 1) == 0 else None


def _common(a: DType, b: DType) -> DType:
    return a if a is b else promote(a, b)


def _is_relative(exponent: Expr) -> bool:
    """Whether an exponent is relative to a running value: then it is near 0 where it counts, and may be scaled by log2(e).

    Elsewhere the rounding of the product would be an error of |x| / 2^24.
    """
    return any(isinstance(node, Unary) and node.op == "anchor" for node in walk(exponent))
