"""Run accumulators of one loop in loops of their own, where together they would not fit a tile or not share what they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from flashlight.ir.exprs import ZERO, Cast, Dim, Expr, Index, Load, dtype_of
from flashlight.ir.nests import Carry, Give, Loop, Pass, Program, Statement
from flashlight.ir.visit import (
    children,
    free_dims,
    fresh_name,
    loads,
    reads,
    rebuild,
    replace_loads,
    substitute,
    walk,
)

Sets = Sequence[Sequence[Carry]]


def components(loop: Loop) -> list[list[Carry]]:
    """Sets of carries of a loop of one pass of which none reads another set's, in order; one set where they cannot be parted."""
    if not _may_be_parted(loop):
        return [list(loop.carries)]
    sets: list[set[str]] = []
    for carry in loop.carries:
        joined = _read_by(carry, loop)
        for other in [s for s in sets if s & joined]:
            joined |= other
            sets.remove(other)
        sets.append(joined)
    return _in_order(sets, loop)


def closures(loop: Loop) -> list[list[Carry]]:
    """For each wide carry (one with dims that the loop does not keep), it and the statistics that go with it, in order.

    Those are all that it reads, and what results read beside it: a sum of weights is divided by one of the same weights, bit for
    bit. Carries that go with no wide one go with the first. One set where they cannot be parted.
    """
    wide = [c.name for c in loop.carries if set(c.dims) - set(loop.kept)]
    if not wide or not _may_be_parted(loop):
        return [list(loop.carries)]
    names = {c.name for c in loop.carries}
    sets = []
    for name in wide:
        beside = {x for g in loop.gives if name in reads(g.expr) for x in reads(g.expr) & names}
        sets.append(_closure({name, *beside.difference(wide)}, loop))
    sets[0] |= _closure(names.difference(*sets), loop)
    return _in_order(sets, loop)


def _may_be_parted(loop: Loop) -> bool:
    given = {g.name for g in loop.gives}
    return len(loop.passes) == 1 and not any(reads(g.expr) & given for g in loop.gives)


def _read_by(carry: Carry, loop: Loop) -> set[str]:
    """The carry and those of the loop that it reads."""
    names = {c.name for c in loop.carries}
    read = reads(carry.body, *carry.weight, *(s.value for s in carry.shifts)) & names
    return {carry.name, *carry.lower, *read}


def _closure(names: set[str], loop: Loop) -> set[str]:
    by_name = {c.name: c for c in loop.carries}
    found, todo = set(names), list(names)
    while todo:
        new = _read_by(by_name[todo.pop()], loop) - found
        found |= new
        todo.extend(new)
    return found


def _in_order(sets: Sequence[set[str]], loop: Loop) -> list[list[Carry]]:
    order = {c.name: i for i, c in enumerate(loop.carries)}
    found = [[c for c in loop.carries if c.name in names] for names in sets]
    return sorted(found, key=lambda members: [order[c.name] for c in members])


def split_accumulators(program: Program, loop: Loop, sets: Sets) -> Program:
    """Give each set of accumulators its own loop; the last one reads what the others give where a result needs several.

    Two softmaxes that are subtracted need two accumulators of the width of V. Where those do not fit the registers at a good
    tile size, two loops are faster, at the price of storing finals, which are as large as the result. Sums of one softmax over
    values of a head and over values of a pair (invariant points) want tiles of other rows each: two loops, with statistics of
    their own, read less.

    Before:
        program p
          dim q: 8, k: 16, e: 4
          input X: f32[8, 16]
          input Y: f32[8, 16]
          input V: f32[16, 4]
          loop (q | k)
            carry A (q, e) f32: sum X[q, k] * V[k, e]
            carry B (q, e) f32: sum Y[q, k] * V[k, e]
            give y (q, e) f32 = A - B
          output y
    After:
        program p
          dim q: 8, k: 16, e: 4
          input X: f32[8, 16]
          input Y: f32[8, 16]
          input V: f32[16, 4]
          loop (q | k)
            carry A (q, e) f32: sum X[q, k] * V[k, e]
            give A_final (q, e) f32 = A
          loop (q | k)
            carry B (q, e) f32: sum Y[q, k] * V[k, e]
            give y (q, e) f32 = A_final[q, e] - B
          output y
    Legal when: the loop has one pass, no carry of a set reads a carry that is not in it, and every carry is in a set
    (`components`, `closures`).
    """
    names = {c.name for c in loop.carries}
    needs = {g.name: reads(g.expr) & names for g in loop.gives}
    remaining = list(loop.gives)
    parts: list[tuple[Sequence[Carry], list[Give]]] = []
    *early, last = sets
    for members in early:
        own = {c.name for c in members}
        here = [g for g in remaining if needs[g.name] <= own]
        remaining = [g for g in remaining if g not in here]
        parts.append((members, here))
    taken = names | {g.name for x in program.loops for g in x.gives}
    taken |= {b.name for b in program.inputs}
    handed = _Handed(loop, {c.name for c in last}, parts, taken)
    parts.append((last, [replace(g, expr=handed.without(g.expr)) for g in remaining]))
    loops = []
    used: set[str] = set()
    for members, here in parts:
        again = {c.name: fresh_name(c.name, taken | used) for c in members if c.name in used}
        used |= {c.name for c in members} | set(again.values())
        loops.append(
            Loop(loop.kept, loop.loop, (_renamed(Pass(tuple(members), tuple(here)), again),))
        )
    statements: list[Statement] = []
    for statement in program.statements:
        statements.extend(loops if statement is loop else [statement])
    return program.with_statements(tuple(statements))


class _Handed:
    """What early loops give to the last one: the largest parts of its results that are made of their carries alone.

    Args:
        loop: the one that is split.
        own: names of the carries that the last loop has.
        parts: carries and gives of the early loops; those grow.
        taken: names that are none for what is given.
    """

    def __init__(
        self,
        loop: Loop,
        own: set[str],
        parts: Sequence[tuple[Sequence[Carry], list[Give]]],
        taken: set[str],
    ) -> None:
        self.carries = {c.name: c for c in loop.carries}
        self.own = own
        self.parts = parts
        self.taken = taken
        self.given: dict[Expr, Expr] = {}
        self.rounded = dict(loop.rounded)

    def without(self, expr: Expr) -> Expr:
        """An expression that reads what is given in place of early carries."""
        read = reads(expr) & self.carries.keys()
        if read <= self.own:
            return expr
        if isinstance(expr, Load) and expr.buffer.name in self.carries:
            carry = self.carries[expr.buffer.name]
            whole = Load(carry.buffer, tuple(map(Index, carry.dims)))
            mapping = dict(zip(carry.dims, expr.index, strict=True))
            return substitute(self.give(whole, carry.dims), mapping)
        dims = tuple(
            dict.fromkeys(d for n in self.carries if n in read for d in self.carries[n].dims)
        )
        is_early = self.early(read) is not None and free_dims(expr) == set(dims)
        if is_early and self.is_plain(expr) and not self.has_rounded_part(expr):
            return self.give(expr, dims)
        return rebuild(expr, tuple(map(self.without, children(expr))))

    def early(self, read: Set[str]) -> list[Give] | None:
        """The gives of the early loop that has all of some carries."""
        return next((g for members, g in self.parts if read <= {c.name for c in members}), None)

    def has_rounded_part(self, expr: Expr) -> bool:
        """Whether all that it reads of carries is in a part that the program rounds, which takes half of the memory."""
        if expr in self.rounded:
            return False
        parts = {x for x in walk(expr) if x in self.rounded}

        def without(node: Expr) -> Expr:
            return (
                ZERO if node in parts else rebuild(node, tuple(without(x) for x in children(node)))
            )

        return len(parts) == 1 and not reads(without(expr)) & self.carries.keys()

    def is_plain(self, expr: Expr) -> bool:
        """Whether it reads each carry at its own dims."""
        found = [x for x in loads(expr) if x.buffer.name in self.carries]
        return all(x.index == tuple(map(Index, self.carries[x.buffer.name].dims)) for x in found)

    def give(self, expr: Expr, dims: tuple[Dim, ...]) -> Expr:
        """What the last loop reads in place of an expression: rounded where the program rounds it."""
        if expr not in self.given:
            read = reads(expr) & self.carries.keys()
            widest = max(
                (self.carries[n] for n in self.carries if n in read), key=lambda c: len(c.dims)
            )
            gives = self.early(read)
            assert gives is not None
            name = fresh_name(f"{widest.name}_final", self.taken)
            self.taken.add(name)
            whole = dtype_of(expr)
            gives.append(Give(name, dims, self.rounded.get(expr, whole), expr))
            load = Load(gives[-1].buffer, tuple(map(Index, dims)))
            self.given[expr] = load if load.buffer.dtype is whole else Cast(load, whole)
        return self.given[expr]


def _renamed(step: Pass, names: Mapping[str, str]) -> Pass:
    """A pass whose carries have other names."""

    def own(load: Load) -> Expr | None:
        name = names.get(load.buffer.name)
        return None if name is None else Load(replace(load.buffer, name=name), load.index)

    def carry(c: Carry) -> Carry:
        return replace(
            c,
            name=names.get(c.name, c.name),
            body=replace_loads(c.body, own),
            weight=tuple(replace_loads(w, own) for w in c.weight),
            shifts=tuple(replace(x, value=replace_loads(x.value, own)) for x in c.shifts),
            lower=tuple(names.get(n, n) for n in c.lower),
        )

    gives = tuple(replace(g, expr=replace_loads(g.expr, own)) for g in step.gives)
    return Pass(tuple(map(carry, step.carries)), gives)
