"""References that lag: maxima that follow the scores only when these are far above them, so that sums are seldom moved.

A sum of exp(s - r) that is moved by exp(r - r') whenever its reference goes from r to r' is the same sum for every r, up to a factor
that a quotient of two such sums does not see. The maximum of the scores is one choice of r, which keeps every term at 1 or below. A
reference that stays until a maximum is `POWERS` powers of two above it keeps terms at 2^POWERS or below, which is as exact in
floats; and as it stays for most tiles, accumulators need not be multiplied there. Scores to which positions themselves are added
(ALiBi's) pass any reference again and again, so that theirs had better not lag.

This is right where nothing but the sums sees the reference:
* results read the maximum and sums relative to it only in what is the same for every reference: quotients of two sums of the same
  weights, and the logarithm of a sum plus its reference;
* what a product rounds to 16 bits is the exponential of a score relative to its own maximum, and no other factor of it is above 1.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from flashlight.codegen.exponents import has_its_maximum, outside_sums
from flashlight.codegen.factors import Factor, factors_of
from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import Binary, Cast, Const, Dim, Expr, Load, Unary, dtype_of, neg
from flashlight.ir.monoids import SUM
from flashlight.ir.nests import Carry, Loop, Pass
from flashlight.ir.visit import children, free_dims, reads

POWERS = 8
"""Powers of two by which a score may pass its reference."""


def lags(
    p: Pass, loop: Loop, rows: Collection[Dim], references: Iterable[str]
) -> Mapping[str, float]:
    """By how much a score may pass each maximum of a pass before this follows; only those that may lag.

    Args:
        p: a pass of a prepared loop.
        loop: that loop.
        rows: the kept dims that are rows of its tiles.
        references: names of maxima that only serve as references of sums.
    """
    found: dict[str, float] = {}
    for name in references:
        sums = [c for c in p.carries if name in reads(*c.weight)]
        scales = [positive_scale(w) for c in sums for w in c.weight if maximum_of(w) == name]
        known = [s for s in scales if s is not None]
        scores = [c.body for c in p.carries if c.name == name]
        if not sums or len(known) < len(scales) or any(_drifts(s, loop) for s in scores):
            continue
        if all(_is_bounded(c, p, loop, rows) for c in sums) and _is_unseen(name, sums, loop):
            found[name] = POWERS * math.log(2.0) / max(known)
    return found


def maximum_of(weight: Expr) -> str | None:
    """The carry m whose value is minus a weight: -m or -(m * scale)."""
    match weight:
        case Unary("neg", Load(buffer, _)) | Unary("neg", Binary("mul", Load(buffer, _), _)):
            return buffer.name
        case _:
            return None


def positive_scale(weight: Expr) -> float | None:
    """The scale of such a weight, if it is a positive constant."""
    match weight:
        case Unary("neg", Load()):
            return 1.0
        case Unary("neg", Binary("mul", Load(), Const(value, _))) if value > 0:
            return float(value)
        case _:
            return None


def _drifts(score: Expr, loop: Loop) -> bool:
    """Whether a position along the loop is a term of a score, or a factor of one."""
    for node in outside_sums(score):
        match node:
            case Cast(x, dtype) if dtype.is_float and dtype_of(x).is_int:
                if free_dims(x) & set(loop.loop) and not reads(x):
                    return True
    return False


def _is_bounded(carry: Carry, p: Pass, loop: Loop, rows: Collection[Dim]) -> bool:
    """Whether the terms of a sum have no factor above 1 but those that vary along what only the sum's results have."""
    if carry.monoid is not SUM or carry.dtype is not DType.F32 or carry.shifts or carry.lower:
        return False
    whole = set(carry.dims) - set(loop.kept)

    def is_small(factor: Factor) -> bool:
        if factor.selects:
            return True
        match factor.expr:
            case Const(value, _):
                return not factor.divides and abs(value) <= 1
            case Unary("exp", _):
                alone = replace(carry, body=factor.expr)
                own = has_its_maximum(alone, p.carries, frozenset(loop.loop))
                return own and not factor.divides
            case _:
                dims = free_dims(factor.expr)
                return bool(dims & whole) and not dims & set(rows) and not factor.divides

    return all(map(is_small, factors_of(carry.body)))


def _is_unseen(name: str, sums: Iterable[Carry], loop: Loop) -> bool:
    """Whether no result depends on a reference, given the sums relative to it."""
    weights = {c.name: c.weight for c in sums}
    own = {name, *weights}
    if any(own & reads(c.body) - {name} for p in loop.passes for c in p.carries):
        return False
    others = (c for p in loop.passes for c in p.carries if c.name not in own)
    if any(name in reads(c.body, *c.weight) for c in others):
        return False
    return not any(_is_seen(g.expr, own, weights) for g in loop.gives)


def _is_seen(expr: Expr, own: set[str], weights: Mapping[str, tuple[Expr, ...]]) -> bool:
    """Whether an expression has a load of a reference or of a sum outside of what is the same for every reference."""
    match expr:
        case Load(buffer, _) if buffer.name in own:
            return True
        case Binary("div", a, b) if (under := _sum(b, weights)) is not None:
            factors = [f for f in factors_of(a) if own & reads(f.expr)]
            if len(factors) == 1 and not factors[0].guarded and not factors[0].divides:
                return _sum(factors[0].expr, weights) != under
        case Binary("add", a, b):
            for x, y in ((a, b), (b, a)):
                if isinstance(x, Unary) and x.op == "log" and _sum(x.x, weights) == (neg(y),):
                    return False
    return any(_is_seen(x, own, weights) for x in children(expr))


def _sum(expr: Expr, weights: Mapping[str, tuple[Expr, ...]]) -> tuple[Expr, ...] | None:
    """The weights of a sum that is loaded."""
    match expr:
        case Load(buffer, _):
            return weights.get(buffer.name)
        case Cast(x, dtype) if dtype is DType.F32:
            return _sum(x, weights)
        case _:
            return None
