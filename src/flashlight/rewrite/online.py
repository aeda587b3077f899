"""Reductions that depend on each other's finals as carries of one loop: the dispatch of algebra.md, section 8."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from flashlight.errors import CompileError
from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import Cast, Dim, Expr, Load, Reduce, Unary, add, const, dtype_of, sub
from flashlight.ir.monoids import ALL, ANY, MAX, PROD, SUM
from flashlight.ir.nests import Give, Loop, Nest
from flashlight.ir.visit import free_dims, reads, replace_loads, substitute, walk
from flashlight.rewrite.accumulate import Accumulation
from flashlight.rewrite.bits import (
    NO_ROUNDING,
    SIXTEEN,
    Rounding,
    compared,
    is_tame,
    may_be_operand,
    read_rounding,
    strip_casts,
)
from flashlight.rewrite.carries import Carries
from flashlight.rewrite.factor import factor
from flashlight.rewrite.finish import Finish, cancel_corrections, with_roots
from flashlight.rewrite.monotone import hoist
from flashlight.rewrite.signs import is_nonneg
from flashlight.rewrite.split import Split
from flashlight.rewrite.terms import Term


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

    def build(earliest: Mapping[str, int], referred: frozenset[str]) -> tuple[Choice, LoopBuilder]:
        builder = LoopBuilder(Carries(kept, loop, set(names)), referred)
        for nest in nests:
            builder.add(nest, earliest.get(nest.name, 0))
        result = builder.carries.loop_of(
            [
                Give(n.name, wanted[n.name], n.dtype, builder.values[n.name][1], n.origin)
                for n in nests
                if n.name in wanted
            ]
        )
        rounded = [(builder.values[n.name][1], n.dtype) for n in nests if n.dtype in SIXTEEN]
        result = replace(result, rounded=tuple(rounded))
        return Choice(result, dots_of(result), len(result.carries)), builder

    first, builder = build({}, frozenset())
    if referred := frozenset(builder.in_danger):
        first, builder = build({}, referred)
    choices = [first]
    for name in sorted(builder.delayable):
        choice, _ = build({name: builder.pass_of[name] + 1}, referred)
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
    """Takes the nests of a group one by one and grows the loop's carries.

    Attributes:
        carries: the accumulators so far.
        referred: sums whose exponentials get a reference though they read no final (rule 3 of section 7).
        values: each nest's result as an expression on carries, over the nest's dims.
        finishes: what each carry was made from, for cancelling corrections.
        pass_of: the pass in which each reduction is accumulated.
        delayable: reductions that took several sums or a shift, which a later pass would spare.
        in_danger: sums that should be referred: a divisor left them, and their exponentials may be as large as floats can be.
    """

    carries: Carries
    referred: frozenset[str] = frozenset()
    values: dict[str, tuple[tuple[Dim, ...], Expr]] = field(default_factory=dict)
    finishes: dict[str, Finish] = field(default_factory=dict)
    pass_of: dict[str, int] = field(default_factory=dict)
    delayable: set[str] = field(default_factory=set)
    in_danger: set[str] = field(default_factory=set)

    def add(self, nest: Nest, earliest: int = 0) -> None:
        """Give the nest a value: in the first pass from `earliest` on that can accumulate it."""
        body = self.expanded(nest.body)
        if nest.monoid is None:
            value = cancel_corrections(strip_casts(body), self.finishes)
            self.values[nest.name] = (nest.parallel, value)
            return
        rounding = NO_ROUNDING
        if nest.monoid is SUM:
            rounding = read_rounding(body, frozenset(nest.reduced))
        # Of scores that eager rounds to the same 16 bits the first wins.
        body = body if nest.monoid.is_position else strip_casts(body)
        before = len(self.carries.pass_of)
        for number in range(earliest, len(self.carries.passes) + 1):
            found = self._accumulated(nest, body, rounding, number)
            if found is not None:
                self.values[nest.name] = (nest.parallel, found)
                self.pass_of[nest.name] = number
                made = [self.carries.named(c) for c in list(self.carries.pass_of)[before:]]
                if sum(c.monoid is SUM for c in made) > 1 or any(c.shifts for c in made):
                    self.delayable.add(nest.name)
                return
        # A pass in which every final is known takes any body but one.
        msg = f"Terms of the sum '{nest.name}' may leave the range of fp16, whatever they are divided by first."
        raise CompileError(msg)

    def expanded(self, body: Expr) -> Expr:
        """`body` with results of the group read as expressions on carries."""
        rounded = {x for x in compared(body) if x.buffer.dtype in SIXTEEN}

        def rule(load: Load) -> Expr | None:
            if load.buffer.name not in self.values:
                return None
            dims, value = self.values[load.buffer.name]
            value = substitute(value, dict(zip(dims, load.index, strict=True)))
            return Cast(value, load.buffer.dtype) if load in rounded else value

        return with_roots(replace_loads(body, rule), self.finishes)

    def _accumulated(self, nest: Nest, body: Expr, rounding: Rounding, number: int) -> Expr | None:
        """The nest's value if pass `number` can accumulate it."""
        moving = frozenset(c for c in reads(body) if self.carries.pass_of.get(c, -1) >= number)
        loop, nonneg = frozenset(self.carries.loop), self.carries.nonneg
        split = Split(moving, loop, nonneg, rounding)
        assert nest.monoid is not None
        if nest.monoid is SUM:
            return self._sum(nest, body, split, number)
        if nest.monoid in (PROD, ANY, ALL):
            return self._plain(nest, body, split, number)
        hoisted = hoist(nest.monoid, body, loop, split.reads_final, nonneg)
        if split.reads_final(hoisted.body):
            return None
        load = self.carries.load(
            nest.name, hoisted.monoid, hoisted.body, number, order=nest.parallel
        )
        return hoisted.wrap(load)

    def _plain(self, nest: Nest, body: Expr, split: Split, number: int) -> Expr | None:
        """A monoid without an action takes only what does not move."""
        assert nest.monoid is not None
        if split.reads_final(body):
            terms = split(body)
            if terms is None or len(terms) != 1 or not terms[0].is_plain or terms[0].rest is None:
                return None
            body = terms[0].rest
        dead = self.carries.whether_dead(nest.monoid, body, number)
        if dead is not None:
            return dead
        return self.carries.load(nest.name, nest.monoid, body, number, order=nest.parallel)

    def _sum(self, nest: Nest, body: Expr, split: Split, number: int) -> Expr | None:
        body = factor(body, split.reads_final, split.varies)
        referring = replace(split, refer_all=True)
        terms = (referring if nest.name in self.referred else split)(body)
        if any(t.den for t in terms or ()) and any(map(self._may_overflow, referring(body) or ())):
            self.in_danger |= {nest.name, *self._divisors(terms or ())}
        if split.rounding.dot is DType.F16 and not _in_range(terms, split.rounding):
            terms = referring(body)
            if not _in_range(terms, split.rounding):
                return None
        accumulation = Accumulation(self.carries, self.finishes, split, number, nest)
        if terms is None:
            return None
        terms = tuple(accumulation.with_late_addends(t) for t in terms)
        if not all(accumulation.may_take(t) for t in terms):
            return None
        value: Expr | None = None
        for i, term in enumerate(terms):
            stem = nest.name if len(terms) == 1 else f"{nest.name}_{i}"
            part = accumulation.value_of(stem, term, body)
            value = part if value is None else _added(value, part)
        return const(0, dtype_of(body).compute) if value is None else value

    def _divisors(self, terms: Iterable[Term]) -> Iterator[str]:
        """The sums that terms are divided by, of those that are never negative (an infinite factor would decide their sign)."""
        read = reads(*(d.value for t in terms for d in t.den))
        known = ((name, self.values[name][1]) for name in self.pass_of)
        nonneg = self.carries.nonneg
        return (name for name, x in known if reads(x) & read and is_nonneg(x, nonneg))

    def _may_overflow(self, term: Term) -> bool:
        """Whether it has an exponential that is relative to nothing and may be as large as floats can be."""
        return any(
            not is_tame(x.u) and not any(map(self._is_maximum, reads(x.u)))
            for w in term.weights
            if not w.parts
            for x in w.exponents
        )

    def _is_maximum(self, name: str) -> bool:
        return name in self.carries.pass_of and self.carries.named(name).monoid is MAX


def _in_range(terms: Iterable[Term] | None, rounding: Rounding) -> bool:
    """Rule 3 for every term: where factors left the sum, what is left of an fp16 operand is bounded."""
    return terms is not None and all(
        not (t.num or t.den or t.weights) or t.rest is None or may_be_operand(t.rest, rounding)
        for t in terms
    )


def _added(a: Expr, b: Expr) -> Expr:
    return sub(a, b.x) if isinstance(b, Unary) and b.op == "neg" else add(a, b)
