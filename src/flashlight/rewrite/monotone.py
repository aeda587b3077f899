"""Pull monotone wrappers out of a maximum, so that what is reduced is raw and what wraps it is a row scalar."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from flashlight.ir.exprs import (
    Binary,
    Cast,
    Const,
    Dim,
    Expr,
    Load,
    Select,
    Unary,
    add,
    const,
    dtype_of,
    is_literal,
    neg,
    sub,
)
from flashlight.ir.monoids import ARGMAX, ARGMIN, MAX, MIN, Monoid
from flashlight.ir.visit import free_dims
from flashlight.rewrite.signs import is_nonneg

FLIPPED = {MAX: MIN, MIN: MAX, ARGMAX: ARGMIN, ARGMIN: ARGMAX}
INCREASING = (
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log1p",
    "sqrt",
    "tanh",
    "sigmoid",
    "asinh",
    "erf",
    "atan",
)


@dataclass(frozen=True)
class Hoisted:
    """`monoid over the loop of e` = wrap(monoid over the loop of body)."""

    monoid: Monoid
    body: Expr
    wrap: Callable[[Expr], Expr]


def hoist(
    monoid: Monoid,
    e: Expr,
    loop: frozenset[Dim],
    reads_final: Callable[[Expr], bool],
    nonneg: Callable[[Load], bool],
) -> Hoisted:
    """Pull out positive literal factors, and whatever is needed for the body to read no final; it may remain.

    `max where(k <= q, s * 0.25, -inf)` is `(max where(k <= q, s, -inf)) * 0.25`; `max exp(s - m) / l` is `exp((max s) - m) / l`.
    Legal when the wrapper is monotone: + v, * and / by what is >= 0, exp, log, sqrt, tanh; a minus flips max and min. Through
    a `where` with a fill only a positive literal factor is pulled, and only where the fill is the identity.
    """
    if monoid not in FLIPPED:
        return Hoisted(monoid, e, _same)

    def invariant(x: Expr) -> bool:
        return loop.isdisjoint(free_dims(x))

    def go(monoid: Monoid, e: Expr) -> Hoisted:
        found = _literal_factor(monoid, e)
        if found is not None:
            inner, op, factor = found
            return wrapped(monoid, inner, lambda x: Binary(op, x, factor))
        if not reads_final(e):
            return Hoisted(monoid, e, _same)
        match e:
            case Binary("add", a, b) if invariant(b):
                return wrapped(monoid, a, lambda x: add(x, b))
            case Binary("add", a, b) if invariant(a):
                return wrapped(monoid, b, lambda x: add(a, x))
            case Binary("sub", a, b) if invariant(b):
                return wrapped(monoid, a, lambda x: sub(x, b))
            case Binary("sub", a, b) if invariant(a):
                return wrapped(FLIPPED[monoid], b, lambda x: sub(a, x))
            case Binary("mul" | "div" as op, a, b) if invariant(b) and is_nonneg(b, nonneg):
                return wrapped(monoid, a, lambda x: Binary(op, x, b))
            case Binary("mul", a, b) if invariant(a) and is_nonneg(a, nonneg):
                return wrapped(monoid, b, lambda x: Binary("mul", a, x))
            case Unary("neg", x):
                return wrapped(FLIPPED[monoid], x, neg)
            case Unary(op, x) if op in INCREASING:
                return wrapped(monoid, x, lambda x: Unary(op, x))
            case Cast(x, dtype) if dtype.is_float and dtype_of(x).is_float:
                return wrapped(monoid, x, lambda x: Cast(x, dtype))
            case _:
                return Hoisted(monoid, e, _same)

    def wrapped(monoid: Monoid, inner: Expr, wrap: Callable[[Expr], Expr]) -> Hoisted:
        found = go(monoid, inner)
        if found.monoid.is_position:
            return found
        return Hoisted(found.monoid, found.body, lambda x: wrap(found.wrap(x)))

    return go(monoid, e)


def _same(x: Expr) -> Expr:
    return x


def _literal_factor(monoid: Monoid, e: Expr) -> tuple[Expr, str, Const] | None:
    """(x, op, c) if e is x op c for a positive finite float c, or a `where` of that with the identity as its fill."""
    match e:
        case Binary("mul" | "div" as op, x, Const() as c) if _is_scale(c):
            return x, op, c
        case Binary("mul", Const() as c, x) if _is_scale(c):
            return x, "mul", c
        case Select(condition, a, b) if is_literal(b, monoid.identity):
            found = _literal_factor(monoid, a)
            return None if found is None else (Select(condition, found[0], b), *found[1:])
        case Select(condition, a, b) if is_literal(a, monoid.identity):
            found = _literal_factor(monoid, b)
            return None if found is None else (Select(condition, a, found[0]), *found[1:])
        case _:
            return None


def _is_scale(c: Const) -> bool:
    return c.dtype.is_float and c.value > 0 and math.isfinite(c.value)


def under_guard(u: Expr, guard: Expr | None) -> Expr:
    """where(guard, u, -inf): u itself if it says so already."""
    if guard is None:
        return u
    fill = const(-math.inf, dtype_of(u).compute)
    match u:
        case Select(c, a, b) if c is guard:
            return u if is_literal(b, -math.inf) else Select(c, a, fill)
        case Select(c, a, b) if guard is Unary("not", c) or c is Unary("not", guard):
            return u if is_literal(a, -math.inf) else Select(c, fill, b)
        case Binary("mul", a, Const() as c) if _is_scale(c):
            inner = under_guard(a, guard)
            return u if inner is a else Select(guard, u, fill)
        case _:
            return Select(guard, u, fill)
