"""Run accumulators of one loop in loops of their own, where together they would not fit a tile or not share what they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from flashlight.ir.exprs import Buffer, Expr, Index, Load
from flashlight.ir.nests import Carry, Give, Loop, Pass, Program, Statement
from flashlight.ir.visit import fresh_name, reads, replace_loads

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
    """Give each set of accumulators its own loop; the last one reads the finals of the others where a result needs several.

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
    wanted = {name for g in remaining for name in needs[g.name]} - {c.name for c in last}
    taken = names | {g.name for x in program.loops for g in x.gives}
    taken |= {b.name for b in program.inputs}
    finals: dict[str, Buffer] = {}
    for members, here in parts:
        for carry in members:
            if carry.name in wanted and carry.name not in finals:
                value = Load(carry.buffer, tuple(map(Index, carry.dims)))
                name = fresh_name(f"{carry.name}_final", taken)
                here.append(Give(name, carry.dims, carry.dtype, value))
                finals[carry.name] = here[-1].buffer

    def final(load: Load) -> Expr | None:
        buffer = finals.get(load.buffer.name)
        return None if buffer is None else Load(buffer, load.index)

    parts.append((last, [replace(g, expr=replace_loads(g.expr, final)) for g in remaining]))
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
