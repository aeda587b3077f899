"""Run independent accumulators of one loop in loops of their own, where together they would not fit a tile."""

from __future__ import annotations

from flashlight.ir.exprs import Buffer, Expr, Index, Load
from flashlight.ir.nests import Carry, Give, Loop, Pass, Program, Statement
from flashlight.ir.visit import fresh_name, reads, replace_loads


def components(loop: Loop) -> list[list[Carry]]:
    """Sets of carries of a loop of one pass of which none reads another set's, in order; one set where they cannot be parted."""
    if len(loop.passes) != 1:
        return [list(loop.carries)]
    names = {c.name for c in loop.carries}
    sets: list[tuple[set[str], list[Carry]]] = []
    for carry in loop.carries:
        touched = {carry.name, *carry.lower}
        touched |= reads(carry.body, *carry.weight, *(s.value for s in carry.shifts)) & names
        joined: tuple[set[str], list[Carry]] = (touched, [])
        for other in [s for s in sets if s[0] & touched]:
            joined[0].update(other[0])
            joined[1].extend(other[1])
            sets.remove(other)
        joined[1].append(carry)
        sets.append(joined)
    order = {c.name: i for i, c in enumerate(loop.carries)}
    found = [sorted(members, key=lambda c: order[c.name]) for _, members in sets]
    return sorted(found, key=lambda members: order[members[0].name])


def split_accumulators(program: Program, loop: Loop) -> Program:
    """Give each set of independent accumulators its own loop; the last one reads the finals of the others.

    Two softmaxes that are subtracted need two accumulators of the width of V. Where those do not fit the registers at a good
    tile size, two loops are faster, at the price of storing finals, which are as large as the result.

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
    Legal when: the loop has one pass, and no carry of one set reads a carry of another (`components`).
    """
    *early, last = components(loop)
    taken = {c.name for c in loop.carries} | {g.name for x in program.loops for g in x.gives}
    taken |= {b.name for b in program.inputs}
    finals: dict[str, Buffer] = {}
    loops = []
    for members in early:
        gives = []
        for carry in members:
            own = Load(carry.buffer, tuple(map(Index, carry.dims)))
            give = Give(fresh_name(f"{carry.name}_final", taken), carry.dims, carry.dtype, own)
            finals[carry.name] = give.buffer
            gives.append(give)
        loops.append(Loop(loop.kept, loop.loop, (Pass(tuple(members), tuple(gives)),)))

    def final(load: Load) -> Expr | None:
        buffer = finals.get(load.buffer.name)
        return None if buffer is None else Load(buffer, load.index)

    gives = [
        Give(g.name, g.dims, g.dtype, replace_loads(g.expr, final), g.origin) for g in loop.gives
    ]
    loops.append(Loop(loop.kept, loop.loop, (Pass(tuple(last), tuple(gives)),)))
    statements: list[Statement] = []
    for statement in program.statements:
        statements.extend(loops if statement is loop else [statement])
    return program.with_statements(tuple(statements))
