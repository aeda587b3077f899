"""The accumulators of a loop that is being built, pass by pass; equal ones are one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import Binary, Dim, Expr, Index, Load, Unary, dtype_of, is_literal
from flashlight.ir.monoids import ALL, ANY, MAX, MIN, Monoid
from flashlight.ir.nests import Carry, Give, Loop, Pass, Shift
from flashlight.ir.visit import free_dims, reads
from flashlight.rewrite.monotone import hoist, under_guard
from flashlight.rewrite.signs import is_nonneg
from flashlight.rewrite.terms import Exponent


@dataclass
class Carries:
    """Accumulators by pass.

    Attributes:
        kept: the loop's kept dims.
        loop: its loop dims.
        taken: names in use.
        passes: carries by pass, in order of dependence.
        pass_of: the pass of each carry.
    """

    kept: tuple[Dim, ...]
    loop: tuple[Dim, ...]
    taken: set[str]
    passes: list[list[Carry]] = field(default_factory=lambda: [[]])
    pass_of: dict[str, int] = field(default_factory=dict)

    def load(
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
                    return own_load(c)
        whole = sorted(
            free_dims(body) - frozenset((*self.kept, *self.loop)),
            key=lambda d: (order.index(d) if d in order else len(order), d.name),
        )
        dtype = dtype_of(body).compute
        if monoid.is_position:
            dtype = DType.I64
        made = Carry(
            self._fresh(stem, monoid),
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
        return own_load(made)

    def named(self, name: str) -> Carry:
        """The carry of a name."""
        return next(c for p in self.passes for c in p if c.name == name)

    def nonneg(self, load: Load) -> bool:
        """Whether a load is of a carry that is never negative."""
        for carries in self.passes:
            for c in carries:
                if c.name == load.buffer.name and c.monoid not in (ANY, ALL):
                    return is_nonneg(c.body, self.nonneg)
        return load.buffer.dtype is DType.BOOL

    def _fresh(self, stem: str, monoid: Monoid) -> str:
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
        everywhere = self.existing_maximum(x.u, number)
        if everywhere is not None and (x.guard is None or everywhere in subtracted):
            return everywhere
        u = under_guard(x.u, x.guard)
        found = self.existing_maximum(u, number)
        if found is not None:
            return found
        hoisted = hoist(MAX, u, frozenset(self.loop), _never, self.nonneg)
        return hoisted.wrap(self.load(stem, hoisted.monoid, hoisted.body, number))

    def existing_maximum(self, u: Expr, number: int) -> Expr | None:
        """The row maximum of u if a carry of this pass or an earlier one holds it."""
        hoisted = hoist(MAX, u, frozenset(self.loop), _never, self.nonneg)
        for carries in self.passes[: number + 1]:
            for c in carries:
                if (c.monoid, c.body) == (hoisted.monoid, hoisted.body):
                    return hoisted.wrap(own_load(c))
        return None

    def bounds(self, c: Carry, u: Expr) -> bool:
        """Whether the carry is the maximum or minimum of u."""
        if c.monoid not in (MAX, MIN):
            return False
        hoisted = hoist(c.monoid, u, frozenset(self.loop), _never, self.nonneg)
        return (hoisted.monoid, hoisted.body) == (c.monoid, c.body)

    def whether_dead(self, monoid: Monoid, body: Expr, number: int) -> Expr | None:
        """`all(x == -inf)` is `max(x) == -inf`, and `any(x != -inf)` is `max(x) != -inf`, NaN included."""
        match body:
            case Binary("eq" | "ne" as op, x, fill) if is_literal(fill, -inf):
                if monoid is not (ALL if op == "eq" else ANY):
                    return None
                return Binary(op, self.maximum(Exponent(x), number, "peak"), fill)
            case Unary("not", x):
                dead = self.whether_dead(ANY if monoid is ALL else ALL, x, number)
                return None if dead is None else Unary("not", dead)
            case _:
                return None

    def loop_of(self, gives: Sequence[Give]) -> Loop:
        """The loop with its gives in the passes after which they are known; carries that nothing needs are dropped."""
        ready = [max((self.pass_of.get(c, 0) for c in reads(g.expr)), default=0) for g in gives]
        needed = self._needed(g.expr for g in gives)
        carried = [tuple(c for c in p if c.name in needed) for p in self.passes]
        numbers = [i for i, p in enumerate(carried) if p] or [0]
        passes = []
        for i in numbers:
            known = tuple(g for r, g in zip(ready, gives, strict=True) if r == i)
            passes.append(Pass(carried[i], known))
        early = tuple(g for r, g in zip(ready, gives, strict=True) if r not in numbers)
        passes[0] = Pass(passes[0].carries, (*early, *passes[0].gives))
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


def own_load(carry: Carry) -> Load:
    """The accumulator at its own dims."""
    return Load(carry.buffer, tuple(Index(d) for d in carry.dims))


def _never(_: Expr) -> bool:
    return False
