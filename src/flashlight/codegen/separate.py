"""Scores as scale * tile + row: what only the rows know stays out of the tile.

ALiBi adds slope * (k - q) to every score. Its part -slope * q is one number per row, and since max(x + r) = max(x) + r and
exp(x + r - m) = exp(x - (m - r)), it never has to be added to the tile. What remains, slope * k, is one number per column.
Positions are split at the tile's start, k = start + 0..block-1, so that both parts stay small near the diagonal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from flashlight.codegen.blocks import Axis, Value
from flashlight.codegen.builder import Builder
from flashlight.codegen.places import Places
from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import Binary, Cast, Const, Dim, Expr, Index, Select, Unary, dtype_of
from flashlight.ir.visit import free_dims, loads
from flashlight.rewrite.polynomial import expression, polynomial

Lower = Callable[[Expr], Value]


@dataclass(frozen=True)
class Separated:
    """scale * tile + row.

    Attributes:
        tile: varies along the columns; None where nothing does.
        scale: a constant.
        row: free of columns; None for 0.
    """

    tile: Value | None
    scale: float = 1.0
    row: Value | None = None


class Separator:
    """Separates f32 expressions at one place.

    Attributes:
        builder: receives the operations.
        places: where dims are.
        cols: the axis along which tiles vary.
        lower: the f32 value of an expression that is not separated further.
        integer: the i32 value of an integer expression.
    """

    def __init__(
        self, builder: Builder, places: Places, cols: Axis, lower: Lower, integer: Lower
    ) -> None:
        self.builder = builder
        self.places = places
        self.cols = cols
        self.lower = lower
        self.integer = integer

    def __call__(self, expr: Expr) -> Separated:
        """`expr` as scale * tile + row."""
        match expr:
            case Binary("add", a, b) if _is_float(expr):
                return self.sum(self(a), self(b), "add")
            case Binary("sub", a, b) if _is_float(expr):
                return self.sum(self(a), self(b), "sub")
            case Unary("neg", x) if _is_float(expr):
                inner = self(x)
                row = None if inner.row is None else self.builder.compute("neg", inner.row)
                return Separated(inner.tile, -inner.scale, row)
            case Binary("mul", a, b) if _is_float(expr):
                return self.product(expr, a, b)
            case Cast(x, DType.F32):
                pair = affine_parts(self.builder, self.places, self.cols, x, self.integer)
                return self.whole(expr) if pair is None else Separated(pair[0], 1.0, pair[1])
            case Select(condition, a, Const(value, _)) if math.isinf(value):
                return self.guarded(expr, condition, a, float(value))
            case _:
                return self.whole(expr)

    def whole(self, expr: Expr) -> Separated:
        """An expression that is all tile, or all row."""
        value = self.lower(expr)
        return Separated(value) if self.cols in value.axes else Separated(None, 1.0, value)

    def sum(self, a: Separated, b: Separated, op: str) -> Separated:
        sign = 1.0 if op == "add" else -1.0
        row = self.rows(a.row, b.row, op)
        if b.tile is None:
            return Separated(a.tile, a.scale, row)
        if a.tile is None:
            return Separated(b.tile, sign * b.scale, row)
        return Separated(self.tiles(a, b, sign), 1.0, row)

    def tiles(self, a: Separated, b: Separated, sign: float) -> Value:
        """a.scale * a.tile + sign * b.scale * b.tile, with one multiply-add where one scale is 1."""
        assert a.tile is not None and b.tile is not None
        builder = self.builder
        x, y, p, q = a.tile, b.tile, a.scale, sign * b.scale
        if q == 1.0 or (p != 1.0 and len(x.axes) >= len(y.axes)):
            y = self.scaled(y, q)
            if p == 1.0:
                return builder.compute("add", x, y, hint="s")
            return builder.compute("fma", x, builder.constant(p, DType.F32), y, hint="s")
        x = self.scaled(x, p)
        return builder.compute("fma", y, builder.constant(q, DType.F32), x, hint="s")

    def rows(self, a: Value | None, b: Value | None, op: str) -> Value | None:
        if b is None:
            return a
        if a is None:
            return b if op == "add" else self.builder.compute("neg", b)
        return self.builder.compute(op, a, b, hint="row")

    def scaled(self, value: Value, scale: float) -> Value:
        if scale == 1.0:
            return value
        return self.builder.compute(
            "mul", value, self.builder.constant(scale, DType.F32), hint=value.name
        )

    def product(self, expr: Expr, a: Expr, b: Expr) -> Separated:
        """A product with a constant or with a factor free of columns distributes; others are whole."""
        for x, factor in ((a, b), (b, a)):
            if isinstance(factor, Const):
                inner = self(x)
                row = None if inner.row is None else self.scaled(inner.row, float(factor.value))
                return Separated(inner.tile, inner.scale * float(factor.value), row)
        for x, factor in ((a, b), (b, a)):
            if self.places.axes(factor) or not has_positions(x):
                continue
            by = self.lower(factor)
            if by.axes:
                continue
            inner = self(x)
            if inner.tile is None or inner.row is None:
                continue
            tile = self.builder.compute("mul", self.scaled(inner.tile, inner.scale), by, hint="col")
            return Separated(tile, 1.0, self.builder.compute("mul", inner.row, by, hint="row"))
        return self.whole(expr)

    def guarded(self, expr: Expr, condition: Expr, a: Expr, fill: float) -> Separated:
        """where(c, x + r, -inf) is where(c, x, -inf) + r."""
        inner = self(a)
        if inner.row is None or inner.tile is None or inner.scale < 0:
            return self.whole(expr)
        test = self.lower(condition)
        constant = self.builder.constant(fill, DType.F32)
        tile = self.builder.compute("select", test, inner.tile, constant, hint="s")
        return Separated(tile, inner.scale, inner.row)


def _is_float(expr: Expr) -> bool:
    return dtype_of(expr) is DType.F32


def has_positions(expr: Expr) -> bool:
    """Whether an expression is a guarded sum or product that ends in an integer made a float."""
    match expr:
        case Cast(x, DType.F32):
            return not dtype_of(x).is_float
        case Binary("add" | "sub" | "mul", a, b):
            return has_positions(a) or has_positions(b)
        case Unary("neg", x) | Select(_, x, _):
            return has_positions(x)
        case _:
            return False


def affine_parts(
    builder: Builder, places: Places, cols: Axis, x: Expr, integer: Lower
) -> tuple[Value, Value] | None:
    """A float pair (column part, row part) whose sum is the integer x, exact below 2^24; None unless x is affine in the tile.

    The column part is a multiple of 0..block-1, which needs no tile of integers and no conversions inside it.
    """
    found = along_columns(places, cols, x)
    if found is None:
        return None
    dim, step, rest = found
    column = builder.cast(builder.positions(cols), DType.F32)
    if step != 1:
        column = builder.compute("mul", column, builder.constant(float(step), DType.F32))
    row = integer(rest)
    start = places[dim].start
    if start is not None:
        moved = builder.compute("mul", start, builder.constant(step, DType.I32))
        row = builder.compute("add", moved, builder.cast(row, DType.I32))
    return column, builder.cast(row, DType.F32)


def along_columns(places: Places, cols: Axis, x: Expr) -> tuple[Dim, int, Expr] | None:
    """(dim, step, rest) with x = step * dim + rest, only `dim` varying along the columns; None unless x is an integer like that."""
    if dtype_of(x).is_float or dtype_of(x) is DType.BOOL or loads(x):
        return None
    varying = [d for d in free_dims(x) if d in places and places[d].axis == cols]
    if len(varying) != 1 or places[varying[0]].at is not None:
        return None
    (dim,) = varying
    here = Index(dim)
    p = polynomial(x)
    step = next((c for m, c in p.terms if m == (here,)), 0)
    rest = expression(p - polynomial(here).scaled(step))
    return None if step == 0 or dim in free_dims(rest) else (dim, step, rest)
