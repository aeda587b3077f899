"""One dim for what is loaded alike: K[k, d'] under a contraction and K[k, d] beside an accumulator are one tile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from flashlight.ir.exprs import Dim, Expr, Index, Load, Reduce
from flashlight.ir.nests import Loop, Pass, Shift
from flashlight.ir.visit import free_dims, loads, rewrite, substitute


def share_dims(loop: Loop) -> Loop:
    """Rename the bound dims of inner reductions to dims of accumulators where that makes loads equal.

    Before:  carry G (q, d): sum sum(d': Q[q, d'] * K[k, d']) * K[k, d]
    After:   carry G (q, d): sum sum(d: Q[q, d] * K[k, d]) * K[k, d]
    """
    outer = _outer_dims(loop)
    known = {load for e in _expressions(loop) for load in loads(e) if free_dims(load) & set(outer)}
    if not known:
        return loop

    def rule(node: Expr) -> Expr | None:
        return _shared(node, outer, known) if isinstance(node, Reduce) else None

    return _mapped(loop, lambda e: rewrite(e, rule))


def _shared(node: Reduce, outer: tuple[Dim, ...], known: set[Load]) -> Reduce | None:
    """The reduction over a dim of an accumulator, or None."""
    if len(node.dims) != 1:
        return None
    (dim,) = node.dims
    if dim in outer:
        return None
    inside = [load for load in loads(node.body) if dim in free_dims(load)]
    taken = free_dims(node.body)
    for other in outer:
        if other.extent is not dim.extent or other in taken:
            continue
        moved = {dim: Index(other)}
        if any(substitute(load, moved) in known for load in inside):
            return Reduce(node.monoid, (other,), substitute(node.body, moved))
    return None


def _outer_dims(loop: Loop) -> tuple[Dim, ...]:
    """Whole dims of accumulators and results."""
    placed = {*loop.kept, *loop.loop}
    found = [d for c in loop.carries for d in c.dims] + [d for g in loop.gives for d in g.dims]
    return tuple(dict.fromkeys(d for d in found if d not in placed))


def _expressions(loop: Loop) -> list[Expr]:
    return [c.body for c in loop.carries] + [g.expr for g in loop.gives]


def _mapped(loop: Loop, change: Callable[[Expr], Expr]) -> Loop:
    passes = []
    for p in loop.passes:
        carries = tuple(
            replace(
                c,
                body=change(c.body),
                weight=tuple(map(change, c.weight)),
                shifts=tuple(Shift(change(s.value)) for s in c.shifts),
            )
            for c in p.carries
        )
        passes.append(Pass(carries, tuple(replace(g, expr=change(g.expr)) for g in p.gives)))
    return replace(loop, passes=tuple(passes))
