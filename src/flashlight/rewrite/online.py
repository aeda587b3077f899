"""Reductions that depend on each other's finals as carries of one loop: the dispatch of algebra.md, section 8."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import (
    TRUE,
    Binary,
    Dim,
    Expr,
    Index,
    Load,
    Reduce,
    Unary,
    add,
    anchor,
    const,
    div,
    dtype_of,
    is_literal,
    mul,
    neg,
    sub,
)
from flashlight.ir.monoids import ALL, ANY, MAX, MIN, PROD, SUM, Monoid
from flashlight.ir.nests import Carry, Give, Loop, Nest, Pass, Shift
from flashlight.ir.visit import free_dims, reads, replace_loads, rewrite, substitute, walk
from flashlight.rewrite.bits import (
    NO_ROUNDING,
    Rounding,
    may_be_operand,
    read_rounding,
    strip_casts,
)
from flashlight.rewrite.extents import counted, holds_somewhere
from flashlight.rewrite.factor import Product, addends_of, build, factor, product_of
from flashlight.rewrite.finish import (
    Finish,
    RunningShift,
    Subset,
    cancel_corrections,
    finish,
    lower_subsets,
)
from flashlight.rewrite.monotone import hoist, under_guard
from flashlight.rewrite.references import choose_references
from flashlight.rewrite.signs import is_nonneg
from flashlight.rewrite.split import Split
from flashlight.rewrite.terms import Exponent, Factor, ShiftFactor, Term


@dataclass(frozen=True)
class Choice:
    """One legal form of a group.

    Attributes:
        loop: the loop.
        dots: contractions computed per tile, over all passes.
        carries: how many accumulators.
    """

    loop: Loop
    dots: int
    carries: int

    @property
    def passes(self) -> int:
        return len(self.loop.passes)

    @property
    def rank(self) -> tuple[int, int, int]:
        """What the default choice minimises."""
        return self.passes, self.dots, self.carries


def online(
    kept: tuple[Dim, ...],
    loop: tuple[Dim, ...],
    nests: Sequence[Nest],
    wanted: Mapping[str, tuple[Dim, ...]],
    taken: Iterable[str] = (),
) -> list[Choice]:
    """Every legal loop for the nests of one group that was found, the default one first.

    From
        nest m (q | k) f32: max s[q, k]
        nest l (q | k) f32: sum exp(s[q, k] - m[q])
        nest O (q, e | k) f32: sum exp(s[q, k] - m[q]) / l[q] * V[k, e]
    to
        loop (q | k)
          carry m (q) f32: max s[q, k]
          carry l (q) f32: sum exp(s[q, k] - ~m) moves exp(-m)
          carry O_sum (q, e) f32: sum exp(s[q, k] - ~m) * V[k, e] moves exp(-m)
          give O (q, e) f32 = O_sum / l
    Legal where a sum's body splits into terms that move with the finals it reads, each shift's value being known on the way, or
    a maximum's body is a monotone function of what reads no final. Otherwise the nest runs in a later pass, where they are known.

    Args:
        kept: the group's kept dims.
        loop: its loop dims.
        nests: its reductions and row-level pointwise nests, in order of dependence.
        wanted: names of the results that are read outside, with the dims of the result.
        taken: names that carries may not have.
    """
    names = frozenset(taken) | wanted.keys()

    def build(earliest: Mapping[str, int]) -> tuple[Choice, LoopBuilder]:
        builder = LoopBuilder(kept, loop, set(names))
        for nest in nests:
            builder.add(nest, earliest.get(nest.name, 0))
        result = builder.loop_of([n for n in nests if n.name in wanted], wanted)
        return Choice(result, dots_of(result), len(result.carries)), builder

    first, builder = build({})
    choices = [first]
    for name in sorted(builder.delayable):
        choice, _ = build({name: builder.spread[name] + 1})
        if all(choice.loop != c.loop for c in choices):
            choices.append(choice)
    return sorted(choices, key=lambda c: c.rank)


def dots_of(loop: Loop) -> int:
    """Contractions that each tile computes: inner ones of scores, and accumulations over whole dims, pass by pass."""
    count = 0
    for p in loop.passes:
        inner = {
            node
            for c in p.carries
            for node in walk(c.body)
            if isinstance(node, Reduce) and not free_dims(node).isdisjoint(loop.loop)
        }
        count += len(inner) + sum(1 for c in p.carries if len(c.dims) > len(loop.kept))
    return count


@dataclass
class LoopBuilder:
    """Takes the nests of a group one by one and grows its carries.

    Attributes:
        kept: the group's kept dims.
        loop: its loop dims.
        taken: names in use.
        passes: carries by pass.
        pass_of: the pass of each carry.
        values: each nest's result as an expression on carries, over the nest's dims.
        finishes: what each carry was made from, for cancelling corrections.
        spread: the pass in which each reduction is accumulated.
        delayable: reductions that took several sums or a shift, which a later pass would spare.
    """

    kept: tuple[Dim, ...]
    loop: tuple[Dim, ...]
    taken: set[str]
    passes: list[list[Carry]] = field(default_factory=lambda: [[]])
    pass_of: dict[str, int] = field(default_factory=dict)
    values: dict[str, tuple[tuple[Dim, ...], Expr]] = field(default_factory=dict)
    finishes: dict[str, Finish] = field(default_factory=dict)
    spread: dict[str, int] = field(default_factory=dict)
    delayable: set[str] = field(default_factory=set)

    def add(self, nest: Nest, earliest: int = 0) -> None:
        """Give the nest a value: in the first pass from `earliest` on that can accumulate it."""
        body = self.expanded(nest.body)
        if nest.monoid is None:
            value = cancel_corrections(strip_casts(body), self.finishes)
            self.values[nest.name] = (nest.parallel, value)
            return
        rounding = (
            read_rounding(body, frozenset(nest.reduced)) if nest.monoid is SUM else NO_ROUNDING
        )
        body = strip_casts(body)
        before = len(self.pass_of)
        for number in range(earliest, len(self.passes) + 1):
            found = self._accumulated(nest, body, rounding, number)
            if found is not None:
                self.values[nest.name] = (nest.parallel, found)
                self.spread[nest.name] = number
                made = [self.named(c) for c in list(self.pass_of)[before:]]
                if sum(c.monoid is SUM for c in made) > 1 or any(c.shifts for c in made):
                    self.delayable.add(nest.name)
                return
        raise AssertionError("a pass in which every final is known takes any body")

    def expanded(self, body: Expr) -> Expr:
        """`body` with results of the group read as expressions on carries."""

        def rule(load: Load) -> Expr | None:
            if load.buffer.name not in self.values:
                return None
            dims, value = self.values[load.buffer.name]
            return substitute(value, dict(zip(dims, load.index, strict=True)))

        return replace_loads(body, rule)

    def nonneg(self, load: Load) -> bool:
        """Whether a load is of a carry that is never negative."""
        for carries in self.passes:
            for c in carries:
                if c.name == load.buffer.name and c.monoid not in (ANY, ALL):
                    return is_nonneg(c.body, self.nonneg)
        return load.buffer.dtype is DType.BOOL

    # -- Accumulation

    def _accumulated(self, nest: Nest, body: Expr, rounding: Rounding, number: int) -> Expr | None:
        moving = frozenset(c for c in reads(body) if self.pass_of.get(c, -1) >= number)
        split = Split(moving, frozenset(self.loop), self.nonneg, rounding)
        assert nest.monoid is not None
        if nest.monoid is SUM:
            return self._sum(nest, body, split, number)
        if nest.monoid is PROD or nest.monoid in (ANY, ALL):
            return self._plain(nest, body, split, number)
        hoisted = hoist(nest.monoid, body, frozenset(self.loop), split.reads_final, self.nonneg)
        if split.reads_final(hoisted.body):
            return None
        load = self.carry(nest.name, hoisted.monoid, hoisted.body, number, order=nest.parallel)
        return hoisted.wrap(load)

    def _plain(self, nest: Nest, body: Expr, split: Split, number: int) -> Expr | None:
        """A monoid without an action takes only what does not move."""
        assert nest.monoid is not None
        dead = (
            self._whether_dead(nest.monoid, body, number) if not split.reads_final(body) else None
        )
        if dead is not None:
            return dead
        if split.reads_final(body):
            terms = split(body)
            if terms is None or len(terms) != 1 or not terms[0].is_plain or terms[0].rest is None:
                return None
            body = terms[0].rest
        return self.carry(nest.name, nest.monoid, body, number, order=nest.parallel)

    def _whether_dead(self, monoid: Monoid, body: Expr, number: int) -> Expr | None:
        """`all(x == -inf)` is `max(x) == -inf`, and `any(x != -inf)` is `max(x) != -inf`, NaN included."""
        match body:
            case Binary("eq" | "ne" as op, x, fill) if is_literal(fill, -inf):
                if monoid is not (ALL if op == "eq" else ANY):
                    return None
                return Binary(op, self.maximum(Exponent(x), number, "peak"), fill)
            case Unary("not", x):
                dead = self._whether_dead(ANY if monoid is ALL else ALL, x, number)
                return None if dead is None else Unary("not", dead)
            case _:
                return None

    def _sum(self, nest: Nest, body: Expr, split: Split, number: int) -> Expr | None:
        body = factor(body, split.reads_final, split.varies)
        terms = split(body)
        if split.rounding.dot is DType.F16 and not _in_range(terms, split.rounding):
            terms = replace(split, refer_all=True)(body)
            if not _in_range(terms, split.rounding):
                return None
        if terms is None or not all(self._may_take(t, split, number) for t in terms):
            return None
        value: Expr | None = None
        for i, term in enumerate(terms):
            stem = nest.name if len(terms) == 1 else f"{nest.name}_{i}"
            part = self._accumulate_term(stem, term, split, number, nest, body)
            value = part if value is None else _added(value, part)
        return const(0, dtype_of(body).compute) if value is None else value

    def _may_take(self, term: Term, split: Split, number: int) -> bool:
        """Whether the term's shifts refer to what is running in this very pass and stay small on the way.

        A running maximum may jump from a finite fill (-1e10) to the first score. Under a weight that moves with it what was
        accumulated before becomes 0, and if it is the maximum of what is shifted the sum is as large; otherwise the jump would
        stay in the sum's rounding. Under a 16-bit dot the shifted value
        must be one that eager rounds too.
        """
        weighing = reads(*(p for w in term.weights for p in w.parts))
        bodies = Counter(s.value for s in {s.body: s for s in term.shifts}.values())
        if any(n > 1 for n in bodies.values()):
            return False  # the law of motion tells shifts apart by what they move with
        for s in term.shifts:
            moving = [self.named(c) for c in sorted(reads(s.value) & split.finals)]
            if any(self.pass_of[c.name] != number for c in moving):
                return False
            if any(
                c.monoid is not SUM and c.name not in weighing and not self._bounds(c, s.varying)
                for c in moving
            ):
                return False
            if split.rounding.dot is not None and not (
                split.rounding.is_rounded(s.varying) or _is_exact(term.rest)
            ):
                return False
        return True

    def _bounds(self, c: Carry, u: Expr) -> bool:
        """Whether the carry is the maximum or minimum of u."""
        if c.monoid not in (MAX, MIN):
            return False
        hoisted = hoist(c.monoid, u, frozenset(self.loop), _never, self.nonneg)
        return (hoisted.monoid, hoisted.body) == (c.monoid, c.body)

    def _accumulate_term(
        self, stem: str, term: Term, split: Split, number: int, nest: Nest, like: Expr
    ) -> Expr:
        """Carries for the term and its lower ones; its value."""
        found = choose_references(
            term,
            lambda x, known: self.maximum(x, number, f"{nest.name}_peak", known),
            lambda peak: any(self.pass_of.get(c) == number for c in reads(peak)),
        )
        rest, invariants = self._without_invariants(found.rest, term, split.rounding)
        outer = tuple(Factor(f, level=len(term.rows)) for f in invariants)
        term = replace(term, rest=rest, num=(*term.num, *outer))
        one = const(1, _float_type(like))
        shifts = [self._running(s, one, number) for s in term.shifts]
        sums: dict[Subset, Load] = {}
        for subset in lower_subsets(shifts):
            body = rest
            for i in subset:
                body = shifts[i].body if body is None else mul(body, shifts[i].body)
            is_top = len(subset) == len(shifts)
            below = lower_subsets(shifts, subset)[-2::-1]  # largest first, without itself
            sums[subset] = self.carry(
                stem if is_top else f"{stem}_{len(subset)}",
                SUM,
                one if body is None else body,
                number,
                weight=found.moving,
                shifts=tuple(Shift(shifts[i].value) for i in subset),
                lower=tuple(sums[s].buffer.name for s in below),
                order=nest.parallel,
                in_pass=not is_top,
            )
        top = sums[tuple(range(len(shifts)))]
        self.finishes.setdefault(top.buffer.name, Finish(found.corrections))

        def seen(guard: Expr) -> Expr:
            if holds_somewhere(guard, self.kept, self.loop):
                return TRUE
            return self.carry(f"{nest.name}_seen", ANY, guard, number, order=nest.parallel)

        return finish(
            term, shifts, sums, found, seen, self.finishes, self._center(term, shifts, sums)
        )

    def _without_invariants(
        self, rest: Expr | None, term: Term, rounding: Rounding
    ) -> tuple[Expr | None, tuple[Expr, ...]]:
        """What varies of a body, and the row factors (a sign among them) that leave the sum.

        Not where an fp16 operand would grow past its range.
        """
        if rest is None or (rounding.dot is DType.F16 and not term.weights):
            return rest, ()
        p = product_of(rest)
        out = tuple(f for f in p.num if free_dims(f).isdisjoint(self.loop))
        if not out and not p.negative:
            return rest, ()
        left = Product(False, tuple(f for f in p.num if f not in out), p.den)
        if p.negative:
            out = (*out, const(-1, _float_type(rest)))
        return (build(left, rest) if left.num or left.den else None), out

    def _running(self, s: ShiftFactor, one: Expr, number: int) -> RunningShift:
        """A shift whose means divide by what was seen so far, rather than by the whole extent."""

        def count() -> Expr:
            return self.carry("count", SUM, one, number)

        def on_the_way(x: Expr) -> Expr:
            if all(self.pass_of.get(c) != number for c in reads(x)):
                return x
            return counted(x, self.loop, count)

        final = tuple(addends_of(s.value))
        running = tuple((minus, on_the_way(a)) for minus, a in final)
        moved: dict[Expr, Expr] = {
            anchor(a): anchor(r) for (_, a), (_, r) in zip(final, running, strict=True)
        }
        return RunningShift(s.varying, rewrite(s.body, moved.get), s.guard, running, final)

    def _center(
        self, term: Term, shifts: Sequence[RunningShift], sums: Mapping[Subset, Load]
    ) -> Expr | None:
        """-A1 / A0 for powers of x - mean(x), the mean being a quotient of carries of the same weight and rest."""
        if len(shifts) < 2 or len({s.body for s in shifts}) != 1 or shifts[0].guard is not None:
            return None
        s = shifts[0]
        varying, out = self._without_invariants(s.varying, Term(), NO_ROUNDING)
        match s.value:
            case Unary("neg", Binary("div", above, below)) if below is sums[()]:
                load, *factors = product_of(above).num
            case _:
                return None
        if not isinstance(load, Load) or tuple(factors) != out or varying is None:
            return None
        mean, base = self.named(load.buffer.name), self.named(sums[()].buffer.name)
        bodies = (
            (varying,) if term.rest is None else (mul(term.rest, varying), mul(varying, term.rest))
        )
        if mean.body not in bodies or mean.weight != base.weight or mean.shifts:
            return None
        return neg(div(sums[0,], sums[()]))

    def named(self, name: str) -> Carry:
        """The carry of a name."""
        return next(c for p in self.passes for c in p if c.name == name)

    def carry(
        self,
        stem: str,
        monoid: Monoid,
        body: Expr,
        number: int,
        *,
        weight: tuple[Expr, ...] = (),
        shifts: tuple[Shift, ...] = (),
        lower: tuple[str, ...] = (),
        order: tuple[Dim, ...] = (),
        in_pass: bool = False,
    ) -> Load:
        """A load of the carry that accumulates `body`: an existing one if there is one that is as good."""
        for p, carries in enumerate(self.passes[: number + 1]):
            for c in carries:
                same = (c.monoid, c.body, c.weight, c.shifts, c.lower)
                if same == (monoid, body, weight, shifts, lower) and (p == number or not in_pass):
                    return _own(c)
        whole = sorted(
            free_dims(body) - frozenset((*self.kept, *self.loop)),
            key=lambda d: (order.index(d) if d in order else len(order), d.name),
        )
        dtype = dtype_of(body).compute
        if monoid.is_position:
            dtype = DType.I64
        made = Carry(
            self.fresh(stem, monoid),
            (*self.kept, *whole),
            dtype,
            monoid,
            body,
            weight,
            shifts,
            lower,
        )
        while len(self.passes) <= number:
            self.passes.append([])
        self.passes[number].append(made)
        self.pass_of[made.name] = number
        return _own(made)

    def fresh(self, stem: str, monoid: Monoid) -> str:
        """`stem`, or a name that says what is accumulated if that is in use."""
        name, n = stem, 0
        while name in self.taken:
            name = f"{stem}_{monoid}" if n == 0 else f"{stem}_{monoid}{n}"
            n += 1
        self.taken.add(name)
        return name

    def maximum(
        self, x: Exponent, number: int, stem: str, subtracted: frozenset[Expr] = frozenset()
    ) -> Expr:
        """The row maximum of an exponent as an expression on carries; a carry is made if the program has none that covers it.

        The maximum without the guard covers it too, but may lie far above: it is taken only where the program itself subtracts it.
        """
        everywhere = self._existing_maximum(x.u, number)
        if everywhere is not None and (x.guard is None or everywhere in subtracted):
            return everywhere
        u = under_guard(x.u, x.guard)
        found = self._existing_maximum(u, number)
        if found is not None:
            return found
        hoisted = hoist(MAX, u, frozenset(self.loop), _never, self.nonneg)
        return hoisted.wrap(self.carry(stem, hoisted.monoid, hoisted.body, number))

    def _existing_maximum(self, u: Expr, number: int) -> Expr | None:
        hoisted = hoist(MAX, u, frozenset(self.loop), _never, self.nonneg)
        for carries in self.passes[: number + 1]:
            for c in carries:
                if (c.monoid, c.body) == (hoisted.monoid, hoisted.body):
                    return hoisted.wrap(_own(c))
        return None

    # -- The loop

    def loop_of(self, results: Sequence[Nest], wanted: Mapping[str, tuple[Dim, ...]]) -> Loop:
        """The loop that gives `results`; carries that nothing needs are dropped."""
        gives: list[tuple[int, Give]] = []
        for nest in results:
            _, value = self.values[nest.name]
            ready = max((self.pass_of.get(c, 0) for c in reads(value)), default=0)
            gives.append(
                (ready, Give(nest.name, wanted[nest.name], nest.dtype, value, nest.origin))
            )
        needed = self._needed(g.expr for _, g in gives)
        carried = [[c for c in p if c.name in needed] for p in self.passes]
        numbers = [i for i, p in enumerate(carried) if p] or [0]
        passes = []
        for i in numbers:
            last = i == numbers[-1]
            known = [
                g for r, g in gives if r == i or (i == numbers[0] and r < i) or (last and r > i)
            ]
            passes.append(Pass(tuple(carried[i]), tuple(known)))
        return Loop(self.kept, self.loop, tuple(passes))

    def _needed(self, roots: Iterable[Expr]) -> set[str]:
        by_name = {c.name: c for p in self.passes for c in p}
        needed: set[str] = set()
        todo = [n for e in roots for n in reads(e)]
        while todo:
            name = todo.pop()
            if name in needed or name not in by_name:
                continue
            needed.add(name)
            c = by_name[name]
            exprs = (c.body, *c.weight, *(s.value for s in c.shifts))
            todo.extend((*(n for e in exprs for n in reads(e)), *c.lower))
        return needed


def _never(_: Expr) -> bool:
    return False


def _own(carry: Carry) -> Load:
    return Load(carry.buffer, tuple(Index(d) for d in carry.dims))


def _in_range(terms: Iterable[Term] | None, rounding: Rounding) -> bool:
    """Rule 3 for every term: where factors left the sum, what is left of an fp16 operand is bounded."""
    return terms is not None and all(
        not (t.num or t.den or t.weights) or t.rest is None or may_be_operand(t.rest, rounding)
        for t in terms
    )


def _float_type(like: Expr) -> DType:
    dtype = dtype_of(like).compute
    return dtype if dtype.is_float else DType.F32


def _added(a: Expr, b: Expr) -> Expr:
    return sub(a, b.x) if isinstance(b, Unary) and b.op == "neg" else add(a, b)


def _is_exact(rest: Expr | None) -> bool:
    return rest is None or all(isinstance(f, Load) for f in product_of(rest).num)
