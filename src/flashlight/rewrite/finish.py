"""From what a loop has accumulated to the value of the nest: moves of shifts to the true final, corrections, coefs and guards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from flashlight.ir.exprs import (
    Binary,
    Expr,
    Load,
    Select,
    add,
    anchor,
    const,
    div,
    dtype_of,
    mul,
    neg,
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
    guard: Expr | None


@dataclass(frozen=True)
class RunningShift:
    """A shift as the loop executes it.

    Attributes:
        varying: u.
        body: the factor u + ~v, every addend of v anchored by itself.
        running: v's signed addends on the way, where the extent of the loop counts what was seen so far.
        final: the same addends at the end, as the program has them.
    """

    varying: Expr
    body: Expr
    running: tuple[tuple[bool, Expr], ...]
    final: tuple[tuple[bool, Expr], ...]

    @property
    def value(self) -> Expr:
        """v as the carry claims it; several addends stay anchored one by one."""
        if len(self.running) == 1:
            return sum_of(self.running)
        return sum_of([(minus, anchor(a)) for minus, a in self.running])

    @property
    def last_move(self) -> Expr:
        """v - ~v, addend by addend: 0 unless v is not finite."""
        pairs = zip(self.final, self.running, strict=True)
        return sum_of([(minus, sub(a, anchor(r))) for (minus, a), (_, r) in pairs])


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
    seen: Callable[[], Load] | None,
    negative: bool,
    finishes: Mapping[str, Finish],
    center: Expr | None = None,
) -> Expr:
    """The value of a term from its accumulators: multiply row scalars, divide the carry, and only where the guard ever held."""
    top = sums[tuple(range(len(shifts)))]
    moved = _moved(shifts, sums, center)
    corrections = list(found.corrections)
    den = [_cancelled(d, corrections, term.guard, finishes) for d in term.den]
    row = [*term.num, *found.coefs, *(c.factor for c in corrections)]
    value = mul(moved, product(row, moved)) if row else moved
    for d in den:
        value = div(value, d)
    if negative:
        value = neg(value)
    if seen is None or value is top:
        return value
    return Select(seen(), value, top)


def _cancelled(
    d: Expr,
    corrections: list[Correction],
    guard: Expr | None,
    finishes: Mapping[str, Finish],
) -> Expr:
    """A divisor without the correction it shares with the dividend: (A * c) / (l * c) -> A / l.

    Only where c is exp(~m - m), 1 unless m is not finite, and both sums are over the same exponents: then 0/0 and inf/inf are
    NaN where c would be.
    """
    p = product_of(d)
    for f in p.num:
        other = finishes.get(f.buffer.name) if isinstance(f, Load) else None
        if other is None or other.guard is not guard:
            continue
        for c in other.corrections:
            if c in corrections and c.is_exact and c.factor in p.num:
                corrections.remove(c)
                left = list(p.num)
                left.remove(c.factor)
                return build(Product(p.negative, tuple(left), p.den), d)
    return d


def _moved(
    shifts: Sequence[RunningShift], sums: Mapping[Subset, Load], center: Expr | None
) -> Expr:
    """The sum at the true finals: every lower carry times the moves it is short of.

    `center` is the last move where it is known more exactly than as a difference (A1 / A0 for a mean).
    """
    everything = tuple(range(len(shifts)))
    value: Expr = sums[everything]
    if not shifts:
        return value
    moves = [s.last_move if center is None else center for s in shifts]
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
            left = [c for c in own.corrections if c.factor in p.num]
            before = len(left)
            below = _cancelled(node.b, left, own.guard, finishes)
            if len(left) < before:
                (gone,) = [c for c in own.corrections if c.factor in p.num and c not in left]
                num = list(p.num)
                num.remove(gone.factor)
                above = build(Product(p.negative, tuple(num), p.den), node.a)
                return rule(div(above, below)) or div(above, below)
        return None

    return rewrite(value, rule)
