"""From what a loop has accumulated to the value of the nest: moves of shifts to the true final, corrections, coefs and guards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

from flashlight.ir.exprs import (
    Binary,
    Expr,
    Load,
    Select,
    Unary,
    add,
    anchor,
    const,
    div,
    dtype_of,
    is_literal,
    mul,
    sub,
)
from flashlight.ir.visit import rewrite
from flashlight.rewrite.factor import Product, build, product, product_of, sum_of
from flashlight.rewrite.references import Correction, References
from flashlight.rewrite.terms import Term


@dataclass(frozen=True)
class Finish:
    """What a carry's value lacks, kept so that a quotient of two carries can cancel it."""

    corrections: tuple[Correction, ...]


@dataclass(frozen=True)
class RunningShift:
    """A shift as the loop executes it.

    Attributes:
        varying: u.
        body: the factor u + ~v, every addend of v anchored by itself.
        guard: where it applies.
        running: v's signed addends on the way, where the extent of the loop counts what was seen so far.
        final: the same addends at the end, as the program has them.
        late: further addends of v, which are left out on the way.
    """

    varying: Expr
    body: Expr
    guard: Expr | None
    running: tuple[tuple[bool, Expr], ...]
    final: tuple[tuple[bool, Expr], ...]
    late: tuple[tuple[bool, Expr], ...] = ()

    @property
    def value(self) -> Expr:
        """v as the carry claims it; several addends stay anchored one by one."""
        if len(self.running) == 1:
            return sum_of(self.running)
        return sum_of([(minus, anchor(a)) for minus, a in self.running])

    @property
    def last_move(self) -> Expr:
        """What the way leaves to add: v - ~v, addend by addend, 0 unless v is not finite; and what comes late."""
        pairs = zip(self.final, self.running, strict=True)
        moves = [(minus, sub(a, anchor(r))) for (minus, a), (_, r) in pairs]
        return sum_of([*moves, *self.late])


Subset = tuple[int, ...]


def lower_subsets(shifts: Sequence[RunningShift], within: Subset | None = None) -> list[Subset]:
    """Every distinct sub-multiset of the shifts (of those in `within`), as positions, by rising size."""
    positions = range(len(shifts)) if within is None else within
    found: dict[Subset, None] = {}
    for size in range(len(positions) + 1):
        for picked in combinations(positions, size):
            found[canonical_subset(shifts, picked)] = None
    return list(found)


def canonical_subset(shifts: Sequence[RunningShift], picked: Sequence[int]) -> Subset:
    """The same shifts at the first positions at which they stand."""
    counts = Counter(shifts[i].body for i in picked)
    chosen = []
    for i, s in enumerate(shifts):
        if counts[s.body] > 0:
            counts[s.body] -= 1
            chosen.append(i)
    return tuple(chosen)


def finish(
    term: Term,
    shifts: Sequence[RunningShift],
    sums: Mapping[Subset, Load],
    found: References,
    seen: Callable[[Expr], Expr],
    finishes: Mapping[str, Finish],
    center: Expr | None = None,
) -> Expr:
    """The value of a term from its accumulators: multiply row scalars, divide the carry.

    What stood under a guard in the program is applied only where the guard ever held.
    """
    value: Expr = sums[tuple(range(len(shifts)))]
    if shifts:
        value = _moved(shifts, sums, seen, center)
    for level in range(len(term.rows) + 1):
        value = _with_factors(value, level, term, found, seen, finishes)
        if level < len(term.rows):
            value = Select(term.rows[level], value, const(0, dtype_of(value)))
    return value


def _with_factors(
    value: Expr,
    level: int,
    term: Term,
    found: References,
    seen: Callable[[Expr], Expr],
    finishes: Mapping[str, Finish],
) -> Expr:
    """`value` with the factors between two row conditions, those under guards first."""
    num = [f for f in (*term.num, *found.coefs) if f.level == level]
    den = [f for f in term.den if f.level == level]
    corrections = [c for c in found.corrections if c.level == level]
    guards = [*(f.guard for f in (*num, *den)), *(c.guard for c in corrections)]
    for guard in (*(g for g in dict.fromkeys(guards) if g is not None), None):
        own = [c for c in corrections if c.guard is guard]
        divisors = [_cancelled(f.value, own, finishes) for f in den if f.guard is guard]
        # What a reference was made for may be as large as its divisor: neither is applied alone.
        made = [c for c in own if not c.is_exact and isinstance(c.factor, Unary)][: len(divisors)]
        own = [c for c in own if c not in made]
        row = [f.value for f in num if f.guard is guard] + [c.factor for c in own[:1]]
        inner = value
        value = mul(value, product(row, value)) if row else value
        # The rest one by one: each is clipped to a number, and 0 times their product may be none.
        for c in own[1:]:
            value = mul(value, c.factor)
        for c, d in zip(made, divisors, strict=False):
            value = mul(value, div(c.factor, d))
        for d in divisors[len(made) :]:
            value = div(value, d)
        if guard is not None and value is not inner:
            value = _where(seen(guard), value, inner)
    return value


def _where(condition: Expr, a: Expr, b: Expr) -> Expr:
    return a if is_literal(condition, True) else Select(condition, a, b)


def _moved(
    shifts: Sequence[RunningShift],
    sums: Mapping[Subset, Load],
    seen: Callable[[Expr], Expr],
    center: Expr | None,
) -> Expr:
    """The sum at the true finals: every lower carry times the moves it is short of.

    `center` is the last move where it is known more exactly than as a difference (A1 / A0 for a mean).
    """
    everything = tuple(range(len(shifts)))
    value: Expr = sums[everything]
    if not shifts:
        return value
    if center is not None:
        return _centered(sums, center, len(shifts))
    moves = [
        s.last_move
        if s.guard is None
        else _where(seen(s.guard), s.last_move, const(0, dtype_of(value)))
        for s in shifts
    ]
    addends: dict[tuple[Subset, tuple[Expr, ...]], int] = {}
    for size in range(len(shifts) - 1, -1, -1):
        for picked in combinations(everything, size):
            missing = tuple(sorted((moves[i] for i in everything if i not in picked), key=id))
            key = (canonical_subset(shifts, picked), missing)
            addends[key] = addends.get(key, 0) + 1
    for (subset, missing), count in addends.items():
        part: Expr = product(missing, value)
        if count > 1:
            part = mul(part, const(count, dtype_of(value)))
        value = add(value, mul(part, sums[subset]))
    return value


def _centered(sums: Mapping[Subset, Load], center: Expr, n: int) -> Expr:
    """The n-th central moment from those about the reference; `center` times A0 is -A1, so that A2 + 2*c*A1 + c*c*A0 is A2 + c*A1."""

    def order(k: int) -> Load:
        return sums[tuple(range(k))]

    value: Expr = order(n)
    power = center
    for k in range(1, n):
        count = comb(n, k) if k < n - 1 else n - 1
        part = power if count == 1 else mul(const(count, dtype_of(value)), power)
        value = add(value, mul(part, order(n - k)))
        power = mul(power, center)
    return value


def _cancelled(
    d: Expr,
    corrections: list[Correction],
    finishes: Mapping[str, Finish],
) -> Expr:
    """A divisor without the correction it shares with the dividend: (A * c) / (l * c) -> A / l.

    Only where c is exp(~m - m), 1 unless m is not finite, and both sums are over the same exponents: then 0/0 and inf/inf are
    NaN where c would be.
    """
    p = product_of(d)
    for f in p.num:
        other = finishes.get(f.buffer.name) if isinstance(f, Load) else None
        if other is None:
            continue
        for c in other.corrections:
            own = next((x for x in corrections if x.is_like(c)), None)
            if own is not None and c.factor in p.num:
                corrections.remove(own)
                left = list(p.num)
                left.remove(c.factor)
                return build(Product(p.negative, tuple(left), p.den), d)
    return d


def with_roots(value: Expr, finishes: Mapping[str, Finish]) -> Expr:
    """sqrt(A * c * c) -> sqrt(A) * c for corrections c, whose squares may be infinite where the root is not."""
    made = {c.factor for f in finishes.values() for c in f.corrections if not c.is_exact}

    def rule(node: Expr) -> Expr | None:
        if not isinstance(node, Unary) or node.op != "sqrt":
            return None
        p = product_of(node.x)
        twice = next((f for f, n in Counter(p.num).items() if n == 2 and f in made), None)
        if twice is None or p.negative:
            return None
        left = Product(False, tuple(f for f in p.num if f is not twice), p.den)
        return mul(Unary("sqrt", build(left, node)), twice)

    return rewrite(value, rule) if made else value


def cancel_corrections(value: Expr, finishes: Mapping[str, Finish]) -> Expr:
    """Late divisions: in arithmetic on values, (A * c) / (l * c) -> A / l under the same condition."""

    def rule(node: Expr) -> Expr | None:
        if not isinstance(node, Binary) or node.op != "div":
            return None
        p = product_of(node.a)
        for f in p.num:
            own = finishes.get(f.buffer.name) if isinstance(f, Load) else None
            if own is None:
                continue
            held = [c for c in own.corrections if c.factor in p.num]  # one twice under a square
            left = list(held)
            below = _cancelled(node.b, left, finishes)
            if len(left) < len(held):
                gone = next(c for c in held if held.count(c) > left.count(c))
                num = list(p.num)
                num.remove(gone.factor)
                above = build(Product(p.negative, tuple(num), p.den), node.a)
                return rule(div(above, below)) or div(above, below)
        return None

    return rewrite(value, rule)
