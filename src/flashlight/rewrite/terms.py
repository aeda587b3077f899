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
    """A row factor and where it is applied.

    `where(g, c * r, 0)` sums to c * (the sum of r under g), but to 0, whatever c is, if g never holds.

    Attributes:
        value: the factor.
        guard: the condition under which it is applied (None: always).
        level: how many of the term's row conditions are inside it.
    """

    value: Expr
    guard: Expr | None = None
    level: int = 0


@dataclass(frozen=True, slots=True)
class Weight:
    """A factor exp(sum of parts) that was left beside varying exponents.

    Attributes:
        parts: row expressions whose sum is w, in source order.
        exponents: every u that stands beside it as exp(u + w); the literal 0 where exp(w) stands alone.
        slot: stands in the body for the reference that is yet to be chosen.
        guard: the condition under which the factor is applied.
        level: how many of the term's row conditions are inside it.
    """

    parts: tuple[Expr, ...]
    exponents: tuple[Exponent, ...]
    slot: Load
    guard: Expr | None = None
    level: int = 0


@dataclass(frozen=True, slots=True)
class ShiftFactor:
    """A factor u + v of a varying u and a row expression v.

    Attributes:
        varying: u.
        value: v.
        body: the factor in source association, every invariant addend anchored (and guarded).
        guard: the condition under which the factor is applied.
        late: signed invariant addends that are left out of the body and added at the end.
    """

    varying: Expr
    value: Expr
    body: Expr
    guard: Expr | None = None
    late: tuple[tuple[bool, Expr], ...] = ()


@dataclass(frozen=True, slots=True)
class Term:
    """product(num) / product(den) * exp(weights) * sum over the loop of rest * product(shifts).

    Attributes:
        num: row factors.
        den: row divisors.
        weights: exponential row factors.
        rest: what varies, with `slot`s of weights in it; None is 1.
        shifts: affine factors.
        rows: conditions free of the loop, innermost first: where one fails the term is 0, whatever the factors inside it are.
    """

    num: tuple[Factor, ...] = ()
    den: tuple[Factor, ...] = ()
    weights: tuple[Weight, ...] = ()
    rest: Expr | None = None
    shifts: tuple[ShiftFactor, ...] = ()
    rows: tuple[Expr, ...] = ()

    @property
    def signature(self) -> tuple[Any, ...]:
        """Equal for terms whose sums may be one sum."""
        return (
            _multiset((f.value, f.level) for f in self.num),
            _multiset((f.value, f.level) for f in self.den),
            _multiset((w.parts, w.level) for w in self.weights),
            _multiset(s.body for s in self.shifts),
            self.rows,
        )

    @property
    def is_plain(self) -> bool:
        """Whether it is nothing but its rest."""
        return not (self.num or self.den or self.weights or self.shifts or self.rows)


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
    b = _outside(b, len(a.rows))
    return Term(
        a.num + b.num,
        a.den + b.den,
        a.weights + b.weights,
        rest,
        a.shifts + b.shifts,
        a.rows + b.rows,
    )


def _outside(term: Term, levels: int) -> Term:
    """The term with its factors outside of so many row conditions of another."""
    if not levels:
        return term

    def moved(f: Factor) -> Factor:
        return replace(f, level=f.level + levels)

    return replace(
        term,
        num=tuple(moved(f) for f in term.num),
        den=tuple(moved(f) for f in term.den),
        weights=tuple(replace(w, level=w.level + levels) for w in term.weights),
    )


def divided(term: Term, divisor: Expr) -> Term:
    """The term over a row scalar."""
    return replace(term, den=(*term.den, Factor(divisor, level=len(term.rows))))


def on_rows(term: Term, condition: Expr) -> Term:
    """The term on rows where the condition, which is free of the loop, holds, 0 on others."""
    return replace(term, rows=(*term.rows, condition))


def guarded(term: Term, condition: Expr, like: Expr) -> Term:
    """The term where `condition` holds, 0 elsewhere. Shifts too: 0 * (-inf) is no 0."""
    zero = const(0, dtype_of(like).compute)
    rest = term.rest if term.rest is not None else const(1, dtype_of(like).compute)
    return replace(
        term,
        num=tuple(_under(f, condition) for f in term.num),
        den=tuple(_under(f, condition) for f in term.den),
        rest=Select(condition, rest, zero),
        shifts=tuple(
            replace(
                s,
                varying=Select(condition, s.varying, zero),
                body=Select(condition, s.body, zero),
                guard=both(s.guard, condition),
            )
            for s in term.shifts
        ),
        weights=tuple(_guarded_weight(w, condition) for w in term.weights),
    )


def _under(f: Factor, condition: Expr) -> Factor:
    return replace(f, guard=both(f.guard, condition))


def _guarded_weight(w: Weight, condition: Expr) -> Weight:
    exponents = tuple(Exponent(e.u, both(condition, e.guard)) for e in w.exponents)
    return replace(w, exponents=exponents, guard=both(w.guard, condition))


def merged(terms: list[Term], rest: Expr) -> Term:
    """Terms of one signature and with shared references as one term with the given rest; its factors apply where any of theirs do."""
    first = terms[0]
    if len({(t.num, t.den, t.weights, t.shifts) for t in terms}) == 1:
        return replace(first, rest=rest)

    def factors(of: Callable[[Term], tuple[Factor, ...]]) -> tuple[Factor, ...]:
        guards: dict[tuple[Expr, int], list[Expr | None]] = {}
        for f in (f for t in terms for f in of(t)):
            guards.setdefault((f.value, f.level), []).append(f.guard)
        return tuple(replace(f, guard=either(guards[f.value, f.level])) for f in of(first))

    by_slot: dict[tuple[Expr, int], list[Expr | None]] = {}
    for w in (w for t in terms for w in t.weights):
        by_slot.setdefault((w.slot, w.level), []).append(w.guard)
    return replace(
        first,
        num=factors(lambda t: t.num),
        den=factors(lambda t: t.den),
        weights=tuple(replace(w, guard=either(by_slot[w.slot, w.level])) for w in first.weights),
        rest=rest,
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
            weights=tuple(
                replace(shared[w.parts], guard=w.guard, level=w.level) for w in t.weights
            ),
            rest=None
            if t.rest is None
            else fill(t.rest, {w.slot: shared[w.parts].slot for w in t.weights}),
        )
        for t in terms
    ]


SLOT = "%"


def is_slot(expr: Expr) -> bool:
    """Whether an expression stands for a reference that is yet to be chosen."""
    return isinstance(expr, Load) and expr.buffer.name.startswith(SLOT)


def fill(expr: Expr, mapping: dict[Expr, Expr]) -> Expr:
    """`expr` with slots replaced."""
    if not any(k is not v for k, v in mapping.items()):
        return expr
    return rewrite(expr, mapping.get)
