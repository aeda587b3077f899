"""Which nests share a kernel (algebra.md, section 4), and the loops that come of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from flashlight.errors import Refusal
from flashlight.ir.exprs import Dim
from flashlight.ir.nests import Give, Loop, Pass, Program, Statement
from flashlight.ir.visit import reads
from flashlight.rewrite.align import with_shared_bound_dims
from flashlight.rewrite.bits import strip_casts
from flashlight.rewrite.factor import factor_weights
from flashlight.rewrite.online import Choice, online
from flashlight.rewrite.placement import Group, Placement

Choose = Callable[[Sequence[Choice]], Choice]
"""Picks one of the legal loops of a group; the first is the default."""


def cheapest(choices: Sequence[Choice]) -> Choice:
    """The default choice: fewest passes, then fewest dots, then fewest carries."""
    return choices[0]


def group_and_online(
    program: Program, tangents: frozenset[str] = frozenset(), choose: Choose = cheapest
) -> Program | Refusal:
    """Make loops of all nests: each becomes one kernel.

    Before:
        program attention
          size S
          dim q: S, k: S, d: 64, e: 64, t: S, j: S, u: S, i: S
          input Q: f32[S, 64]
          input K: f32[S, 64]
          input V: f32[S, 64]
          nest m (q | k) f32: max sum(d: Q[q, d] * K[k, d])
          nest l (t | j) f32: sum exp(sum(d: Q[t, d] * K[j, d]) - m[t])
          nest O (u, e | i) f32: sum exp(sum(d: Q[u, d] * K[i, d]) - m[u]) / l[u] * V[i, e]
          output O
    After:
        program attention
          size S
          dim q: S, k: S, d: 64, e: 64
          input Q: f32[S, 64]
          input K: f32[S, 64]
          input V: f32[S, 64]
          loop (q | k)
            let s(q, k) = sum(d: Q[q, d] * K[k, d])
            carry m (q) f32: max s
            carry l (q) f32: sum exp(s - ~m) moves exp(-m)
            carry O_sum (q, e) f32: sum exp(s - ~m) * V[k, e] moves exp(-m)
            give O (q, e) f32 = O_sum / l
          output O
    Legal when: the groups' graph stays acyclic and no nest reads a final of its own group at another row.

    Args:
        program: as the passes of `pipeline.CANONICAL` leave it.
        tangents: inputs that are gradients of outputs; what depends on them is grouped apart.
        choose: picks among the legal loops of each group.
    """
    if program.loops:
        return Refusal("loops-already", "The program holds loops already.")
    groups = group(program, tangents)
    if isinstance(groups, Refusal):
        return groups
    return loops_of(program, groups, choose)


def group(program: Program, tangents: frozenset[str] = frozenset()) -> list[Group] | Refusal:
    """The groups of a program's nests, in topological order."""
    nests = (replace(n, body=factor_weights(n.body)) for n in program.nests)
    program = with_shared_bound_dims(program.with_statements(tuple(nests)))
    placement = Placement(program, tangents)
    for nest in program.nests:
        placement.place(nest)
    return placement.in_order()


def loops_of(program: Program, groups: list[Group], choose: Choose = cheapest) -> Program:
    """One loop for each group that gives something."""
    taken = {b.name for b in program.inputs} | {name for g in groups for name in g.names}
    statements: list[Statement] = []
    for g in groups:
        others = {name for h in groups if h is not g for n in h.members for name in reads(n.body)}
        wanted = {
            n.name: n.parallel for n in g.members if n.name in program.outputs or n.name in others
        }
        if not wanted:
            continue
        loop = _loop_of(g, wanted, taken - (g.names - wanted.keys()), choose)
        taken |= {c.name for c in loop.carries}
        statements.append(loop)
    return program.with_statements(tuple(statements))


def _loop_of(
    g: Group, wanted: dict[str, tuple[Dim, ...]], taken: Iterable[str], choose: Choose
) -> Loop:
    if not g.frame.loop:
        (nest,) = g.members
        give = Give(nest.name, nest.parallel, nest.dtype, strip_casts(nest.body), nest.origin)
        return Loop(nest.parallel, (), (Pass((), (give,)),))
    return choose(online(g.frame.kept, g.frame.loop, g.members, wanted, taken)).loop
