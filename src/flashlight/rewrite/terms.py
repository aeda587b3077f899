"""Terms: what `split` makes of a body. A term is coef * sum of (rest * product of shifts), coef free of the loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from flashlight.ir.exprs import Binary, Expr, Load, Select, Unary, const, dtype_of, mul
from flashlight.ir.visit import rewrite


@dataclass(frozen=True, slots=True)
class Exponent:
    """A varying exponent u, and the condition under which exp(u) counts (None: always)."""

    u: Expr
    guard: Expr | None = None


@dataclass(frozen=True, slots=True)
class Factor:
    """A row factor and the condition under which it is applied (None: always).

    `where(g, c * r, 0)` sums to c * (the sum of r under g), but to 0, whatever c is, if g never holds.
    """

    value: Expr
    guard: Expr | None = None


@dataclass(frozen=True, slots=True)
class Weight:
    """A factor exp(sum of parts) that was left beside varying exponents.

    Attributes:
        parts: row expressions whose sum is w, in source order.
        exponents: every u that stands beside it as exp(u + w); the literal 0 where exp(w) stands alone.
        slot: stands in the body for the reference that is yet to be chosen.
        guard: the condition under which the factor is applied.
    """

    parts: tuple[Expr, ...]
    exponents: tuple[Exponent, ...]
    slot: Load
    guard: Expr | None = None


@dataclass(frozen=True, slots=True)
class ShiftFactor:
    """A factor u + v of a varying u and a row expression v.

    Attributes:
        varying: u.
        value: v.
        body: the factor in source association, every invariant addend anchored (and guarded).
        guard: the condition under which the factor is applied.
    """

    varying: Expr
    value: Expr
    body: Expr
    guard: Expr | None = None


@dataclass(frozen=True, slots=True)
class Term:
    """product(num) / product(den) * exp(weights) * sum over the loop of rest * product(shifts).

    Attributes:
        num: row factors.
        den: row divisors.
        weights: exponential row factors.
        rest: what varies, with `slot`s of weights in it; None is 1.
        shifts: affine factors.
    """

    num: tuple[Factor, ...] = ()
    den: tuple[Factor, ...] = ()
    weights: tuple[Weight, ...] = ()
    rest: Expr | None = None
    shifts: tuple[ShiftFactor, ...] = ()

    @property
    def signature(self) -> tuple[Any, ...]:
        """Equal for terms whose sums may be one sum."""
        return (
            _multiset(f.value for f in self.num),
            _multiset(f.value for f in self.den),
            _multiset(w.parts for w in self.weights),
            _multiset(s.body for s in self.shifts),
        )

    @property
    def is_plain(self) -> bool:
        """Whether it is nothing but its rest."""
        return not (self.num or self.den or self.weights or self.shifts)


def _multiset(items: Iterable[Any]) -> frozenset[tuple[Any, int]]:
    return frozenset(Counter(items).items())


def both(a: Expr | None, b: Expr | None) -> Expr | None:
    """The conjunction of two guards."""
    if a is None or b is None or a is b:
        return a if b is None else b
    return Binary("and", a, b)


def either(guards: Iterable[Expr | None]) -> Expr | None:
    """The disjunction of guards, None being true."""
    listed = list(dict.fromkeys(guards))
    if None in listed:
        return None
    known = [g for g in listed if g is not None]
    result = known[0]
    for g in known[1:]:
        if Unary("not", result) is g or Unary("not", g) is result:
            return None
        result = Binary("or", result, g)
    return result


def times(a: Term, b: Term) -> Term:
    """The product of two terms."""
    rest = a.rest if b.rest is None else b.rest if a.rest is None else mul(a.rest, b.rest)
    return Term(a.num + b.num, a.den + b.den, a.weights + b.weights, rest, a.shifts + b.shifts)


def guarded(term: Term, condition: Expr, like: Expr) -> Term:
    """The term where `condition` holds, 0 elsewhere. Shifts too: 0 * (-inf) is no 0."""
    zero = const(0, dtype_of(like).compute)
    rest = term.rest if term.rest is not None else const(1, dtype_of(like).compute)
    return Term(
        num=tuple(_under(f, condition) for f in term.num),
        den=tuple(_under(f, condition) for f in term.den),
        rest=Select(condition, rest, zero),
        shifts=tuple(
            ShiftFactor(
                Select(condition, s.varying, zero),
                s.value,
                Select(condition, s.body, zero),
                both(s.guard, condition),
            )
            for s in term.shifts
        ),
        weights=tuple(_guarded_weight(w, condition) for w in term.weights),
    )


def _under(f: Factor, condition: Expr) -> Factor:
    return Factor(f.value, both(f.guard, condition))


def _guarded_weight(w: Weight, condition: Expr) -> Weight:
    exponents = tuple(Exponent(e.u, both(condition, e.guard)) for e in w.exponents)
    return replace(w, exponents=exponents, guard=both(w.guard, condition))


def merged(terms: list[Term], rest: Expr) -> Term:
    """Terms of one signature and with shared references as one term with the given rest; its factors apply where any of theirs do."""
    first = terms[0]
    if len({(t.num, t.den, t.weights, t.shifts) for t in terms}) == 1:
        return replace(first, rest=rest)

    def factors(of: Callable[[Term], tuple[Factor, ...]]) -> tuple[Factor, ...]:
        guards: dict[Expr, list[Expr | None]] = {}
        for f in (f for t in terms for f in of(t)):
            guards.setdefault(f.value, []).append(f.guard)
        return tuple(Factor(f.value, either(guards[f.value])) for f in of(first))

    by_slot: dict[Expr, list[Expr | None]] = {}
    for w in (w for t in terms for w in t.weights):
        by_slot.setdefault(w.slot, []).append(w.guard)
    return Term(
        factors(lambda t: t.num),
        factors(lambda t: t.den),
        tuple(replace(w, guard=either(by_slot[w.slot])) for w in first.weights),
        rest,
        first.shifts,
    )


def with_shared_references(terms: list[Term]) -> list[Term]:
    """The terms, all of one weight multiset, with one slot for each distinct w: they will share its reference."""
    if len({t.weights for t in terms}) == 1:
        return terms
    shared: dict[tuple[Expr, ...], Weight] = {}
    for w in (w for t in terms for w in t.weights):
        first = shared.setdefault(w.parts, replace(w, guard=None))
        exponents = tuple(dict.fromkeys((*first.exponents, *w.exponents)))
        shared[w.parts] = replace(first, exponents=exponents)
    return [
        replace(
            t,
            weights=tuple(replace(shared[w.parts], guard=w.guard) for w in t.weights),
            rest=None
            if t.rest is None
            else fill(t.rest, {w.slot: shared[w.parts].slot for w in t.weights}),
        )
        for t in terms
    ]


def fill(expr: Expr, mapping: dict[Expr, Expr]) -> Expr:
    """`expr` with slots replaced."""
    if not any(k is not v for k, v in mapping.items()):
        return expr
    return rewrite(expr, mapping.get)
