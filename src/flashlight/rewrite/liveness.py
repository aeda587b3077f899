"""When an element of a loop matters: the condition outside of which the body of a carry is the identity of its monoid."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import (
    FALSE,
    TRUE,
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
    Unary,
    dtype_of,
)
from flashlight.ir.monoids import ANY, MAX, SUM
from flashlight.ir.nests import Carry
from flashlight.ir.visit import children, free_dims, substitute, walk
from flashlight.rewrite.factor import product_of
from flashlight.rewrite.simplify import simplify

HUGE_FILL = -6e4
"""A finite fill at or below this is a mask: the least float16 is one, -10000 is a bias whose keys keep their weight."""


@dataclass(frozen=True, slots=True)
class Live:
    """An element of a body may differ from the identity only where `condition` holds.

    Attributes:
        finite: this rests on a finite fill, and so on the row having some live element that outweighs it.
        doubtful: an element that is live may still be no more than the fill, for a term that is read as it stands (a bias, a mask)
            can be -inf or a fill of its own.
    """

    condition: Expr
    finite: bool = False
    doubtful: bool = False


_ALWAYS = Live(TRUE)
_NEVER = Live(FALSE)


def liveness(carry: Carry, inputs: frozenset[str]) -> Live:
    """Where the body of a carry can be other than the identity of its monoid, all references being finite."""
    if _reads_unanchored(carry.body, inputs):
        return _ALWAYS
    if carry.monoid is MAX:
        return _not_least(carry.body)
    if carry.monoid is SUM:
        return _not_zero(carry.body)
    if carry.monoid is ANY:
        return Live(carry.body)
    return _ALWAYS


def _reads_unanchored(expr: Expr, inputs: frozenset[str]) -> bool:
    match expr:
        case Unary("anchor", _):
            return False
        case Load(buffer, _) if buffer.name not in inputs:
            return True
        case _:
            return any(_reads_unanchored(c, inputs) for c in children(expr))


def _not_least(expr: Expr) -> Live:
    """Where a value can be other than -inf (or a huge negative fill)."""
    match expr:
        case Const(value, _):
            if value == -math.inf:
                return _NEVER
            return Live(FALSE, finite=True) if value <= HUGE_FILL else _ALWAYS
        case Select(c, a, b):
            return _branches(c, _not_least(a), _not_least(b))
        case Binary("add", a, b):
            return _and(_not_least(a), _not_least(b))
        case Binary("sub", _, b) if _is_infinite(b):
            return _ALWAYS  # -inf less -inf is NaN
        case Binary("sub", a, b):
            return _and(_not_least(a), Live(TRUE, doubtful=_may_mask(b)))
        case Binary("mul" | "div", a, Const(value, _)) if value > 0:
            return _not_least(a)
        case Cast(x, dtype) if dtype.is_float and dtype_of(x).is_float:
            return _not_least(x)
        case _:
            return Live(TRUE, doubtful=_may_mask(expr))


def _may_mask(expr: Expr) -> bool:
    """Whether a term of a score can be infinite or huge by itself: not a contraction of features, a position, or a multiple of these."""
    match expr:
        case Const(value, _):
            return abs(value) >= -HUGE_FILL
        case Load(buffer, _):
            return buffer.dtype.is_float
        case Reduce(_, _, body):
            return _may_mask_inside(body)
        case Unary("anchor" | "tanh" | "sigmoid" | "sin" | "cos" | "erf", _):
            return False
        case Binary("mul", a, b):
            factors = [f for f in (a, b) if not isinstance(f, Const)]
            is_huge = any(isinstance(f, Const) and _may_mask(f) for f in (a, b))
            return is_huge or all(_may_mask(f) for f in factors)
        case Binary("div", a, _):
            return _may_mask(a)
        case Unary("log" | "log2" | "log1p", x):
            return any(isinstance(n, Load | Reduce) for n in walk(x))
        case _:
            return any(_may_mask(c) for c in children(expr))


def _may_mask_inside(body: Expr) -> bool:
    """The same for what is summed: not features of rows and columns; scores that are mixed may have a mask of their own."""
    if not any(isinstance(n, Reduce) for n in walk(body)):
        return any(isinstance(n, Const) and n.dtype.is_float and _may_mask(n) for n in walk(body))
    return any(_may_mask(f) for f in product_of(body).num if not isinstance(f, Load))


def _not_zero(expr: Expr) -> Live:
    """Where a value can be other than 0."""
    match expr:
        case Const(value, _):
            return _NEVER if value == 0 else _ALWAYS
        case Select(c, a, b):
            return _branches(c, _not_zero(a), _not_zero(b))
        case Binary("mul", a, b):
            x, y = _not_zero(a), _not_zero(b)
            return _and(_ALWAYS if _is_infinite(b) else x, _ALWAYS if _is_infinite(a) else y)
        case Binary("div", a, b):
            return _ALWAYS if _may_vanish(b) else _not_zero(a)
        case Binary("add" | "sub", a, b):
            return either(_not_zero(a), _not_zero(b))
        case Unary("exp" | "exp2" | "sigmoid", x):
            return _not_least(x)
        case Unary("neg" | "abs" | "sqrt" | "tanh", x):
            return _not_zero(x)
        case Cast(x, dtype) if dtype is not DType.BOOL:
            return _not_zero(x) if dtype_of(x) is not DType.BOOL else Live(x)
        case Reduce(monoid, dims, body) if monoid is SUM:
            inner = _not_zero(body)
            return _ALWAYS if free_dims(inner.condition) & set(dims) else inner
        case _:
            return _ALWAYS


def _is_infinite(expr: Expr) -> bool:
    """Whether a value is infinite at some positions by what the program says: 0 times it is NaN."""
    match expr:
        case Const(value, _):
            return math.isinf(value)
        case Select(_, a, b) | Binary("add" | "sub" | "mul", a, b):
            return _is_infinite(a) or _is_infinite(b)
        case Binary("div", a, b):
            return _is_infinite(a) or _may_vanish(b)
        case Unary("neg" | "abs", x) | Cast(x, _):
            return _is_infinite(x)
        case Unary("log" | "log2" | "reciprocal" | "rsqrt", x):
            return _may_vanish(x)
        case _:
            return False


def _may_vanish(expr: Expr) -> bool:
    """Whether a value is 0 at some positions by what the program says."""
    return _not_zero(expr).condition is not TRUE


def _branches(c: Expr, a: Live, b: Live) -> Live:
    if a.condition is TRUE and b.condition is TRUE:
        return _ALWAYS
    when = _and(Live(c), a)
    otherwise = _and(Live(simplify(Unary("not", c))), b)
    return either(when, otherwise)


def _and(a: Live, b: Live) -> Live:
    """Either factor vanishing is enough; a finite fill is relied on only where it decides."""
    doubtful = a.doubtful or b.doubtful
    if a.condition is TRUE:
        return Live(b.condition, b.finite, doubtful)
    if b.condition is TRUE:
        return Live(a.condition, a.finite, doubtful)
    condition = simplify(Binary("and", a.condition, b.condition))
    return Live(condition, a.finite or b.finite, doubtful)


def either(a: Live, b: Live) -> Live:
    """Where one or the other matters."""
    condition = simplify(Binary("or", a.condition, b.condition))
    return Live(condition, a.finite or b.finite, a.doubtful or b.doubtful)


def has_live_position(condition: Expr, rows: tuple[Dim, ...], col: Dim) -> bool:
    """Whether every row is proved to have a position along `col` where `condition` holds."""
    return any(c is TRUE for c in at_likely_positions(condition, rows, col))


def at_likely_positions(condition: Expr, rows: tuple[Dim, ...], col: Dim) -> list[Expr]:
    """A condition at the positions along `col` where masks mostly let rows see a key: the first, and the row's own."""
    guesses: list[Expr] = [ZERO]
    guesses += [Index(d) for d in rows if d.extent is col.extent]
    return [simplify(substitute(condition, {col: g})) for g in guesses]
