"""Prepare a loop's expressions for tiles: exponentials to base two, scales out of maxima, anchors on the inside, one factor for two.

`exp(c * x - ~m)` with `m = max(c * x)` costs one multiply-add and one exp2 per element if the maximum is taken of x and the scale
c * log2(e) stays outside. All rewrites here keep values up to rounding, and keep NaN and infinities where they are:
a factor leaves a maximum only if it is positive, finite and free of the loop.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

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
    anchor,
    dtype_of,
    largest,
    mul,
    neg,
)
from flashlight.ir.monoids import MAX, MIN, SUM
from flashlight.ir.nests import Carry, Give, Loop, Pass, Shift
from flashlight.ir.visit import children, free_dims, replace_loads, rewrite, walk
from flashlight.rewrite.simplify import simplify

LOG2_E = 1.4426950408889634
_SMALLEST, _LARGEST = 2.0**-126, 2.0**127  # of floats with all their bits


def prepare(loop: Loop) -> Loop:
    """The loop with positive scales pulled out of its max and min carries and squares spelled as products."""
    scales: dict[str, Expr] = {}
    passes = []
    for p in loop.passes:
        carries = []
        for c in p.carries:
            carry = _with_scales(c, scales)
            if c.monoid in (MAX, MIN) and c.dtype is DType.F32:
                scale, rest = scale_of(carry.body, frozenset(loop.loop))
                if scale is not None:
                    scales[c.name] = scale
                    carry = replace(carry, body=rest)
            carries.append(carry)
        gives = tuple(_give_with_scales(g, scales) for g in p.gives)
        passes.append(Pass(tuple(carries), gives))
    return replace(loop, passes=tuple(passes))


def _with_scales(carry: Carry, scales: Mapping[str, Expr]) -> Carry:
    return replace(
        carry,
        body=_normal(carry.body, scales),
        weight=tuple(_normal(w, scales) for w in carry.weight),
        shifts=tuple(Shift(_normal(s.value, scales)) for s in carry.shifts),
    )


def _give_with_scales(give: Give, scales: Mapping[str, Expr]) -> Give:
    return replace(give, expr=_normal(give.expr, scales))


def _normal(expr: Expr, scales: Mapping[str, Expr]) -> Expr:
    """Loads of scaled carries as scale * carry, anchors pushed inside, small powers as products, constant factors as one."""

    def scaled_load(load: Load) -> Expr | None:
        scale = scales.get(load.buffer.name)
        return None if scale is None else mul(load, scale)

    return rewrite(replace_loads(expr, scaled_load), _rule)


def _rule(expr: Expr) -> Expr | None:
    match expr:
        case Unary("anchor", x):
            inner = anchored(x)
            return None if inner is expr else inner
        case Binary("pow", x, Const(value, _)) if value in (1, 2, 3, 4) and dtype_of(x).is_float:
            product = x
            for _ in range(int(value) - 1):
                product = mul(product, x)
            return product
        case Binary("mul", Binary("mul", x, Const(a, DType.F32)), Const(b, DType.F32)):
            by = float(a) * float(b)
            return mul(x, Const(by, DType.F32)) if _SMALLEST <= abs(by) < _LARGEST else None
        case _:
            return None


def anchored(expr: Expr) -> Expr:
    """~expr, with negations and finite positive factors outside: ~(-x) is -~x, ~(c * x) is c * ~x."""
    match expr:
        case Unary("neg", x):
            return neg(anchored(x))
        case Binary("mul", a, b) if is_positive(b):
            return mul(anchored(a), b)
        case Unary("anchor", _):
            return expr
        case _:
            return anchor(expr)


def is_positive(expr: Expr) -> bool:
    """Whether a factor is proved positive and finite: built of positive constants and sizes."""
    match expr:
        case Const(value, dtype):
            return dtype is not DType.BOOL and 0 < value < math.inf
        case Size():
            return True
        case Cast(x, dtype):
            return dtype.is_float and is_positive(x)
        case Binary("mul" | "div" | "add", a, b):
            return is_positive(a) and is_positive(b)
        case Binary("pow", a, Const()):
            return is_positive(a)
        case Unary("sqrt" | "rsqrt" | "reciprocal", x):
            return is_positive(x)
        case _:
            return False


def scale_of(expr: Expr, loop: frozenset[Dim]) -> tuple[Expr | None, Expr]:
    """(c, x) with expr = c * x and c positive, finite and free of the loop; c is None where there is none."""
    match expr:
        case Binary("mul", a, b):
            for x, c in ((a, b), (b, a)):
                if is_positive(c) and _is_f32(c):
                    inner, rest = scale_of(x, loop)
                    return (c if inner is None else _product(inner, c)), rest
            for x, other in ((a, b), (b, a)):
                if not free_dims(other) & loop:
                    inner, rest = scale_of(x, loop)
                    if inner is not None:
                        return inner, mul(rest, other)
            return None, expr
        case Binary("div", a, b) if is_positive(b) and _is_f32(b):
            inner, rest = scale_of(a, loop)
            inverse = (
                Const(1.0 / b.value, DType.F32) if isinstance(b, Const) else Unary("reciprocal", b)
            )
            return (inverse if inner is None else _product(inner, inverse)), rest
        case Select(condition, a, b):
            for x, y, swapped in ((a, b, False), (b, a, True)):
                if _scale_free(y):
                    inner, rest = scale_of(x, loop)
                    if inner is None:
                        return None, expr
                    return inner, Select(condition, y, rest) if swapped else Select(
                        condition, rest, y
                    )
            return None, expr
        case Binary(("add" | "sub") as op, a, b):
            if _scale_free(b):
                inner, rest = scale_of(a, loop)
                return (None, expr) if inner is None else (inner, Binary(op, rest, b))
            if _scale_free(a):
                inner, rest = scale_of(b, loop)
                return (None, expr) if inner is None else (inner, Binary(op, a, rest))
            return None, expr
        case Reduce(monoid, dims, body) if monoid in (SUM, MAX, MIN):
            inner, rest = scale_of(body, loop | frozenset(dims))
            return (None, expr) if inner is None else (inner, Reduce(monoid, dims, rest))
        case _:
            return None, expr


def _is_f32(expr: Expr) -> bool:
    return dtype_of(expr) is DType.F32


def _scale_free(expr: Expr) -> bool:
    """Whether c * expr is expr for every positive finite c."""
    match expr:
        case Const(value, _):
            return value == 0 or math.isinf(value)
        case Select(_, a, b):
            return _scale_free(a) and _scale_free(b)
        case _:
            return False


def _product(a: Expr, b: Expr) -> Expr:
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(float(a.value) * float(b.value), DType.F32)
    return mul(a, b)


@dataclass(frozen=True)
class Scaled:
    """Multiplies expressions by a constant, merging it into factors that are cheap to change.

    Attributes:
        factor: the constant.
        rows, cols: dims of the tile; what lacks either is a vector, and cheap to multiply.
        shared: expressions that are computed anyway (scores whose maximum is taken): they stay as they are.
        wide: exponents may be huge, so that only their differences may be multiplied.
    """

    factor: float
    rows: frozenset[Dim]
    cols: frozenset[Dim]
    shared: frozenset[Expr]
    wide: bool = False

    def __call__(self, expr: Expr) -> Expr:
        """factor * expr."""
        if expr in self.shared:
            return self._plain(expr)
        match expr:
            case Const(value, dtype):
                return Const(float(value) * self.factor, dtype if dtype.is_float else DType.F32)
            case Unary("neg", x):
                return neg(self(x))
            case Binary(("add" | "sub") as op, a, b) if not self.wide and (
                self._is_cheap(a) or self._is_cheap(b)
            ):
                return Binary(op, self(a), self(b))
            case _:
                return self._plain(expr)

    def tame(self, expr: Expr) -> Expr:
        """factor * expr for an exponent whose scores are not huge, although its reference may be: that stays finite."""
        return rewrite(replace(self, wide=False, shared=frozenset())(expr), _finite_reference)

    def _is_cheap(self, expr: Expr) -> bool:
        dims = free_dims(expr)
        return not (dims & self.rows and dims & self.cols)

    def _plain(self, expr: Expr) -> Expr:
        scale, rest = scale_of(expr, self.cols)
        if scale is None:
            return mul(expr, Const(self.factor, DType.F32))
        return mul(rest, _product(scale, Const(self.factor, DType.F32)))


def _finite_reference(expr: Expr) -> Expr | None:
    match expr:
        case Binary("mul", Unary("anchor", _), Const(_, DType.F32)):
            most = largest(DType.F32)
            return Binary("max", Binary("min", expr, most), neg(most))
        case _:
            return None


def has_its_maximum(carry: Carry, carries: Iterable[Carry], loop: frozenset[Dim]) -> bool:
    """Whether a sum of a prepared loop is of exponentials relative to the maximum of their own exponents.

    One of its terms is then 1, up to rounding, and none is larger, unless it is 0 (no finite exponent), infinite or NaN.
    """
    if carry.monoid is not SUM or carry.shifts:
        return False
    match carry.body:
        case Unary("exp", Binary("sub", x, Binary("mul", Unary("anchor", reference), scale))):
            own, rest = scale_of(x, loop)
            return own is scale and _is_maximum(reference, rest, carries)
        case Unary("exp", Binary("sub", x, Unary("anchor", reference))):
            return _is_maximum(reference, x, carries)
        case _:
            return False


def _is_maximum(value: Expr, of: Expr, carries: Iterable[Carry]) -> bool:
    """Whether a value is the maximum of an expression."""
    return any(
        value is Load(c.buffer, tuple(map(Index, c.dims))) and c.monoid is MAX and c.body is of
        for c in carries
    )


HUGE = 1e5
"""log2(e) times a float from here on rounds by more than an exponent may be wrong (and from 1e38 on to infinity): with a fused
multiply-add, the difference of two equal fills of -1e10 would be some hundreds."""


def may_be_huge(loop: Loop) -> bool:
    """Whether a score may be too large to be multiplied: a fill with a finite number, or a mask that is added and not known."""
    return any(is_huge(c.body, loop) for c in loop.carries if c.monoid in (MAX, MIN))


def is_given_alone(loop: Loop) -> bool:
    """Whether a sum relative to a reference is stored as it is, and not in a quotient with another or under a logarithm.

    With the reference multiplied by log2(e) and rounded, all terms of a row are off by one factor, 1e-4 for scores of a thousand.
    """
    return any(_is_alone(g.expr) for p in loop.passes for g in p.gives)


def _is_alone(expr: Expr) -> bool:
    match expr:
        case Unary("log" | "log2" | "log1p", _):
            return False
        case Unary("exp", x) if final_of(x) is not None:
            return True
        case _:
            return any(map(_is_alone, children(expr)))


def final_of(exponent: Expr) -> Expr | None:
    """t, if an exponent is ~t - t: that of a sum relative to a finite reference which becomes one relative to t."""
    match exponent:
        case Binary("sub", a, b) if a is not b and anchored(b) is a:
            return b
        case _:
            return None


def is_huge(score: Expr, loop: Loop) -> bool:
    """Whether a score may be too large to be multiplied."""
    for node in outside_sums(score):
        match node:
            case Const(value, dtype) if dtype.is_float and HUGE <= abs(value) < math.inf:
                return True
            case Load(buffer, _) if buffer.dtype.is_float and free_dims(node) & set(loop.loop):
                return True
            case _:
                pass
    return False


def where_known(expr: Expr, facts: frozenset[Expr]) -> Expr:
    """An expression without the branches that are not taken where some conditions (simplified ones) hold."""

    def rule(node: Expr) -> Expr | None:
        match node:
            case Select(condition, a, _) if _holds(condition, facts):
                return a
            case Binary("add" | "sub", x, Const(0.0, _)):
                return x
            case _:
                return None

    return rewrite(expr, rule)


def _holds(condition: Expr, facts: frozenset[Expr]) -> bool:
    match condition:
        case Binary("and", a, b) if _holds(a, facts) and _holds(b, facts):
            return True
        case _:
            return simplify(condition) in facts


def outside_sums(expr: Expr) -> Iterator[Expr]:
    """Subexpressions that are not operands of an inner contraction; scores that are mixed are no such operands."""
    seen: set[Expr] = set()
    todo = [expr]
    while todo:
        node = todo.pop()
        if node in seen or (isinstance(node, Reduce) and not _is_mixture(node)):
            continue
        seen.add(node)
        yield node
        todo.extend(children(node))


def _is_mixture(expr: Reduce) -> bool:
    return any(isinstance(node, Reduce) for node in walk(expr.body))
