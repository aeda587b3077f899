"""Where positions come from: dims to scalars and tile axes, index expressions to subscripts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from flashlight.codegen.blocks import Axis, Gather, Point, Span, Subscript, Value
from flashlight.codegen.builder import Builder, unsupported
from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import (
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
    dtype_of,
)
from flashlight.ir.visit import free_dims
from flashlight.rewrite.polynomial import expression, polynomial

_LONGEST = (
    1 << 26
)  # positions along a symbolic dim: index arithmetic below is i32 while it provably fits


@dataclass(frozen=True)
class Place:
    """Where the position along a dim comes from.

    Attributes:
        axis: the tile axis it varies over; None for a scalar.
        start: (span) position = start + 0..block-1; None is 0.
        at: a scalar, or a tile over a composite axis; None for a span.
        tail: positions of the tile may reach past the dim's extent.
    """

    axis: Axis | None = None
    start: Value | None = None
    at: Value | None = None
    tail: bool = False


class Places:
    """The current place of every dim in scope."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._places: dict[Dim, Place] = {}
        self._ok: dict[Axis, Value] = {}

    def copy(self) -> Places:
        """An independent set of places to bind more in."""
        other = Places(self._builder)
        other._places.update(self._places)
        other._ok.update(self._ok)
        return other

    def without(self, dims: tuple[Dim, ...]) -> Places:
        """A copy in which some dims have no place."""
        other = self.copy()
        for d in dims:
            other._places.pop(d, None)
        return other

    def bind(self, dim: Dim, place: Place) -> None:
        self._places[dim] = place

    def bind_ok(self, axis: Axis, ok: Value | None) -> None:
        """Set which positions of an axis are inside the extents of its dims (None: all)."""
        self._ok.pop(axis, None)
        if ok is not None:
            self._ok[axis] = ok

    def ok(self, axis: Axis) -> Value | None:
        return self._ok.get(axis)

    def __getitem__(self, dim: Dim) -> Place:
        if dim not in self._places:
            raise unsupported(f"dim '{dim.name}' has no place here")
        return self._places[dim]

    def __contains__(self, dim: Dim) -> bool:
        return dim in self._places

    def axes(self, expr: Expr) -> frozenset[Axis]:
        """Tile axes that an expression's dims vary over (carries that it reads are not looked at)."""
        found = (self._places[d].axis for d in free_dims(expr) if d in self._places)
        return frozenset(a for a in found if a is not None)

    def position(self, dim: Dim) -> Value:
        """The position along a dim, as an i32 scalar or tile."""
        place = self[dim]
        if place.at is not None:
            return place.at
        assert place.axis is not None
        positions = self._builder.positions(place.axis)
        if place.start is None:
            return positions
        return self._builder.compute("add", place.start, positions, hint=f"{dim.name}_at")

    def subscript(
        self, expr: Expr, extent: Expr, guarded: bool, value: Callable[[Expr], Value]
    ) -> tuple[Subscript, tuple[Value, ...]]:
        """The subscript for one axis of a buffer, and masks that it needs.

        Args:
            expr: the index.
            extent: of the buffer's axis.
            guarded: the load stands in a branch that may not be taken, so it may be out of range.
            value: lowers an integer expression.
        """
        varying = [d for d in free_dims(expr) if self[d].axis is not None]
        inside = is_inside(expr, extent)
        if not varying and not _varies(expr, value):
            at = value(expr)
            if self._builder.literal(at) == 0:
                return Point(None), ()
            if not guarded or inside:
                return Point(at), ()
            return Point(self._clamped(at, extent, value)), (self._within(at, extent, value),)
        span = self._span(expr, varying, value)
        if span is not None:
            (dim,) = varying
            place = self[dim]
            unsure = guarded and not inside
            same = expr is Index(dim) and inside
            tail = place.tail and same
            masks = self._masks(varying) if place.tail and not same else ()
            axis, start, step = span
            return Span(axis, start, step, below=unsure, above=unsure or tail), masks
        return Gather(value(expr), checked=guarded and not inside), self._masks(varying)

    def _span(
        self, expr: Expr, varying: list[Dim], value: Callable[[Expr], Value]
    ) -> tuple[Axis, Value | None, int] | None:
        """(axis, start, step) if the index is affine in one dim that lies along an axis of its own."""
        if len(varying) != 1:
            return None
        (dim,) = varying
        place = self[dim]
        if place.axis is None or place.at is not None:
            return None
        p = polynomial(expr)
        here = Index(dim)
        step = next((c for m, c in p.terms if m == (here,)), 0)
        rest = p - polynomial(here).scaled(step)
        rest_expr = expression(rest)
        if step == 0 or dim in free_dims(rest_expr) or _varies(rest_expr, value):
            return None
        start = value(rest_expr)
        if place.start is not None:
            moved = self._builder.compute(
                "mul", place.start, self._builder.constant(step, DType.I32), hint=f"{dim.name}_at"
            )
            start = self._builder.compute("add", start, moved, hint=f"{dim.name}_at")
        if self._builder.literal(start) == 0:
            return place.axis, None, step
        return place.axis, start, step

    def _masks(self, dims: list[Dim]) -> tuple[Value, ...]:
        axes = {self[d].axis for d in dims if self[d].tail}
        oks = [self._ok[a] for a in self._builder.axes if a in axes and a in self._ok]
        return tuple(oks)

    def _within(self, at: Value, extent: Expr, value: Callable[[Expr], Value]) -> Value:
        b = self._builder
        low = b.compute("ge", at, b.constant(0, at.dtype))
        return b.compute("and", low, b.compute("lt", at, b.cast(value(extent), at.dtype)))

    def _clamped(self, at: Value, extent: Expr, value: Callable[[Expr], Value]) -> Value:
        b = self._builder
        zero, one = b.constant(0, at.dtype), b.constant(1, at.dtype)
        last = b.compute("sub", b.cast(value(extent), at.dtype), one)
        return b.compute("max", b.compute("min", at, last), zero)


def _varies(expr: Expr, value: Callable[[Expr], Value]) -> bool:
    """Whether an index varies over a tile through what it loads (a running value, a gather)."""
    return _reads(expr) and bool(value(expr).axes)


@lru_cache(maxsize=50_000)
def _reads(expr: Expr) -> bool:
    match expr:
        case Load():
            return True
        case Const() | Size() | Index():
            return False
        case Unary(_, x) | Cast(x, _) | Reduce(_, _, x):
            return _reads(x)
        case Binary(_, a, b):
            return _reads(a) or _reads(b)
        case Select(c, a, b):
            return _reads(c) or _reads(a) or _reads(b)


@lru_cache(maxsize=50_000)
def is_inside(expr: Expr, extent: Expr) -> bool:
    """Whether an index is proved to be within 0 <= index < extent when its dims are within theirs."""
    if isinstance(expr, Index) and expr.dim.extent is extent:
        return True
    if isinstance(extent, Const):
        low, high = interval(expr)
        return low >= 0 and high < extent.value
    return False


_ANY = (-(2.0**63), 2.0**63 - 1)


@lru_cache(maxsize=50_000)
def interval(expr: Expr) -> tuple[float, float]:
    """Bounds of an integer expression; symbolic sizes count as up to 2^26."""
    match expr:
        case Const(value, _):
            return float(value), float(value)
        case Size():
            return 0, _LONGEST
        case Index(dim):
            return 0, max(0, interval(dim.extent)[1] - 1)
        case Binary(op, a, b):
            return _combined(op, interval(a), interval(b))
        case Unary("neg", x):
            low, high = interval(x)
            return -high, -low
        case Unary("abs", x):
            low, high = interval(x)
            return (0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))
        case Select(_, a, b):
            one, two = interval(a), interval(b)
            return min(one[0], two[0]), max(one[1], two[1])
        case Cast(x, dtype) if dtype.is_int and not dtype_of(x).is_float:
            return interval(x)
        case _:
            dtype = dtype_of(expr)
            if dtype is DType.BOOL:
                return 0, 1
            bits = dtype.bits if dtype.is_int else 64
            return (0, 255) if dtype is DType.U8 else (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1)


def _combined(op: str, a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    (p, q), (r, s) = a, b
    match op:
        case "add":
            return p + r, q + s
        case "sub":
            return p - s, q - r
        case "mul":
            corners = (p * r, p * s, q * r, q * s)
            if (p == q or r == s) and max(map(abs, corners)) >= 2.0**63:
                return _ANY  # a hash, which wraps around; products of sizes do not
            return min(corners), max(corners)
        case "floordiv" if r > 0:
            return min(p // r, p // s), max(q // r, q // s)
        case "mod" if r > 0:
            return 0, (min(q, s - 1) if p >= 0 else s - 1)
        case "min":
            return min(p, r), min(q, s)
        case "max":
            return max(p, r), max(q, s)
        case "floordiv" | "mod":
            most = max(abs(x) for x in (p, q, r, s))
            return -most, most
        case "lt" | "le" | "gt" | "ge" | "eq" | "ne":
            return 0, 1
        case "shr":  # towards 0 or -1
            return min(p, 0), max(q, -1)
        case "and" | "or" | "xor":
            most = 2.0 ** max(1, int(max(abs(x) for x in (p, q, r, s))).bit_length()) - 1
            return (-most - 1 if min(p, r) < 0 else 0), most
        case _:
            return _ANY


def fits_i32(expr: Expr) -> bool:
    """Whether an integer expression's value is known to fit 32 bits."""
    low, high = interval(expr)
    return low >= -(2**31) and high < 2**31


def is_computed_in_i32(expr: Expr) -> bool:
    """Whether an integer expression has the same value in 32-bit arithmetic: it fits, and so do its operands where their high bits
    count. They do not in sums and products.
    """
    match expr:
        case Binary("add" | "sub" | "mul" | "and" | "or" | "xor", _, _):
            return fits_i32(expr)
        case Binary(_, a, b):
            return fits_i32(expr) and fits_i32(a) and fits_i32(b)
        case _:
            return fits_i32(expr)
