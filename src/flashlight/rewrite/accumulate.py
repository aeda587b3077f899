"""One reduction in one pass: whether its terms may be accumulated there, with which carries, and its value on their finals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import (
    TRUE,
    Binary,
    Dim,
    Expr,
    Load,
    Select,
    Unary,
    anchor,
    const,
    div,
    dtype_of,
    is_literal,
    mul,
    neg,
)
from flashlight.ir.monoids import ANY, SUM
from flashlight.ir.nests import Nest, Shift
from flashlight.ir.visit import free_dims, reads, rewrite
from flashlight.rewrite.carries import Carries
from flashlight.rewrite.extents import counted, holds_somewhere
from flashlight.rewrite.factor import Product, addends_of, build, product_of
from flashlight.rewrite.finish import Finish, RunningShift, Subset, finish, lower_subsets
from flashlight.rewrite.references import choose_references
from flashlight.rewrite.split import Split
from flashlight.rewrite.terms import Factor, ShiftFactor, Term


@dataclass
class Accumulation:
    """Terms of one sum as carries of one pass.

    Attributes:
        carries: the loop's carries so far.
        finishes: what each carry was made from, for cancelling corrections.
        split: what splits the sum's body.
        number: the pass.
        nest: the sum.
    """

    carries: Carries
    finishes: dict[str, Finish]
    split: Split
    number: int
    nest: Nest

    def may_take(self, term: Term) -> bool:
        """Whether the term's shifts refer to what is running in this very pass and stay small on the way.

        A running maximum may jump from a finite fill (-1e10) to the first score. Under a weight that moves with it what was
        accumulated before becomes 0, and if it is the maximum of what is shifted the sum is as large; otherwise the jump would
        stay in the sum's rounding. Under a 16-bit dot the shifted value must be one that eager rounds too.
        """
        weighing = reads(*(p for w in term.weights for p in w.parts))
        bodies = Counter(s.value for s in {s.body: s for s in term.shifts}.values())
        if any(n > 1 for n in bodies.values()):
            return False  # the law of motion tells shifts apart by what they move with
        for s in term.shifts:
            moving = [self.carries.named(c) for c in sorted(reads(s.value) & self.split.finals)]
            if any(self.carries.pass_of[c.name] != self.number for c in moving):
                return False
            if any(
                c.monoid is not SUM
                and c.name not in weighing
                and not self.carries.bounds(c, s.varying)
                for c in moving
            ):
                return False
            if self.split.rounding.dot is not None and not (
                self.split.rounding.is_rounded(s.varying) or _is_exact(term.rest)
            ):
                return False
        return True

    def with_late_addends(self, term: Term) -> Term:
        """Shifts by a maximum of what is shifted and by more: the rest is added at the end.

        `(s - m) - log(l)` is kept small on the way by m alone; moving it by log(l) too would cost a logarithm per tile and, with
        large m, bits of the smaller addend.
        """
        return replace(term, shifts=tuple(self._late(s) for s in term.shifts))

    def _late(self, s: ShiftFactor) -> ShiftFactor:
        addends = addends_of(s.value)
        peak = self.carries.existing_maximum(unguarded(s.varying, s.guard), self.number)
        if len(addends) < 2 or (True, peak) not in addends:
            return s
        late = tuple(a for a in addends if a != (True, peak))
        gone = {anchor(x) for _, x in late}

        def rule(node: Expr) -> Expr | None:
            match node:
                case Binary("add" | "sub", a, b) if b in gone:
                    return a
                case Binary("add", a, b) if a in gone:
                    return b
                case Binary("sub", a, b) if a in gone:
                    return neg(b)
                case _:
                    return None

        assert peak is not None
        return replace(s, value=neg(peak), body=rewrite(s.body, rule), late=late)

    def value_of(self, stem: str, term: Term, like: Expr) -> Expr:
        """Carries for the term and its lower ones; its value."""
        found = choose_references(
            term,
            lambda x, known: self.carries.maximum(x, self.number, f"{self.nest.name}_peak", known),
            lambda peak: any(self.carries.pass_of.get(c) == self.number for c in reads(peak)),
        )
        rest = found.rest
        invariants: tuple[Expr, ...] = ()
        if self.split.rounding.dot is not DType.F16 or term.weights:
            rest, invariants = without_invariants(found.rest, self.carries.loop)
        outer = tuple(Factor(f, level=len(term.rows)) for f in invariants)
        term = replace(term, rest=rest, num=(*term.num, *outer))
        one = const(1, _float_type(like))
        shifts = [self._running(s, one) for s in term.shifts]
        sums: dict[Subset, Load] = {}
        for subset in lower_subsets(shifts):
            body = rest
            for i in subset:
                body = shifts[i].body if body is None else mul(body, shifts[i].body)
            is_top = len(subset) == len(shifts)
            below = lower_subsets(shifts, subset)[-2::-1]  # largest first, without itself
            sums[subset] = self.carries.load(
                stem if is_top else f"{stem}_{len(subset)}",
                SUM,
                one if body is None else body,
                self.number,
                weight=found.moving,
                shifts=tuple(Shift(shifts[i].value) for i in subset),
                lower=tuple(sums[s].buffer.name for s in below),
                order=self.nest.parallel,
                in_pass=not is_top,
            )
        top = sums[tuple(range(len(shifts)))]
        self.finishes.setdefault(top.buffer.name, Finish(found.corrections))

        def seen(guard: Expr) -> Expr:
            if holds_somewhere(guard, self.carries.kept, self.carries.loop):
                return TRUE
            return self.carries.load(
                f"{self.nest.name}_seen", ANY, guard, self.number, order=self.nest.parallel
            )

        return finish(
            term, shifts, sums, found, seen, self.finishes, self._center(term, shifts, sums)
        )

    def _running(self, s: ShiftFactor, one: Expr) -> RunningShift:
        """A shift whose means divide by what was seen so far, rather than by the whole extent."""

        def count() -> Expr:
            return self.carries.load("count", SUM, one, self.number)

        def on_the_way(x: Expr) -> Expr:
            if all(self.carries.pass_of.get(c) != self.number for c in reads(x)):
                return x
            return counted(x, self.carries.loop, count)

        final = tuple(addends_of(s.value))
        running = tuple((minus, on_the_way(a)) for minus, a in final)
        moved: dict[Expr, Expr] = {
            anchor(a): anchor(r) for (_, a), (_, r) in zip(final, running, strict=True)
        }
        body = rewrite(s.body, moved.get)
        return RunningShift(s.varying, body, s.guard, running, final, s.late)

    def _center(
        self, term: Term, shifts: Sequence[RunningShift], sums: Mapping[Subset, Load]
    ) -> Expr | None:
        """-A1 / A0 for powers of x - mean(x), the mean being a quotient of carries of the same weight and rest."""
        if len(shifts) < 2 or len({s.body for s in shifts}) != 1 or shifts[0].guard is not None:
            return None
        s = shifts[0]
        if any(x.late for x in shifts):
            return None
        varying, out = without_invariants(s.varying, self.carries.loop)
        match s.value:
            case Unary("neg", Binary("div", above, below)) if below is sums[()]:
                load, *factors = product_of(above).num
            case _:
                return None
        if not isinstance(load, Load) or tuple(factors) != out or varying is None:
            return None
        mean, base = self.carries.named(load.buffer.name), self.carries.named(sums[()].buffer.name)
        bodies = (
            (varying,) if term.rest is None else (mul(term.rest, varying), mul(varying, term.rest))
        )
        if mean.body not in bodies or mean.weight != base.weight or mean.shifts:
            return None
        return neg(div(sums[0,], sums[()]))


def without_invariants(
    rest: Expr | None, loop: tuple[Dim, ...]
) -> tuple[Expr | None, tuple[Expr, ...]]:
    """What varies of a body, and the row factors (a sign among them) that leave the sum."""
    if rest is None:
        return None, ()
    p = product_of(rest)
    out = tuple(f for f in p.num if free_dims(f).isdisjoint(loop))
    if not out and not p.negative:
        return rest, ()
    left = Product(False, tuple(f for f in p.num if f not in out), p.den)
    if p.negative:
        out = (*out, const(-1, _float_type(rest)))
    return (build(left, rest) if left.num or left.den else None), out


def unguarded(x: Expr, guard: Expr | None) -> Expr:
    """`x` of where(guard, x, 0)."""
    return x.a if guard is not None and isinstance(x, Select) and is_literal(x.b, 0) else x


def _float_type(like: Expr) -> DType:
    dtype = dtype_of(like).compute
    return dtype if dtype.is_float else DType.F32


def _is_exact(rest: Expr | None) -> bool:
    """Whether it is 1 or a product of loads."""
    if rest is None:
        return True
    p = product_of(rest)
    return not p.den and all(isinstance(f, Load) for f in p.num)
