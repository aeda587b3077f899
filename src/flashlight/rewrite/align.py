"""Put the nests of a group on one set of dims, so that what they share is one interned subterm."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, permutations, product

from flashlight.ir.exprs import Const, Dim, Expr, Index, Load, Reduce
from flashlight.ir.nests import Nest, Program
from flashlight.ir.visit import children, free_dims, fresh_name, loads, rewrite, substitute, walk
from flashlight.rewrite.simplify import simplify

MOST_MATCHINGS = 64
"""So many ways to pair dims of equal extents are compared; programs have one or two."""


def with_shared_bound_dims(program: Program) -> Program:
    """Name the dims bound by inner reductions by depth, place and extent, so that equal reductions are one node.

    Before:
        program p
          dim q: 8, k: 8, d: 4, c: 4
          input Q: f32[8, 4]
          input K: f32[8, 4]
          nest m (q | k) f32: max sum(d: Q[q, d] * K[k, d])
          nest n (q | k) f32: min sum(c: Q[q, c] * K[k, c])
          output m, n
    After:
        program p
          dim q: 8, k: 8, d: 4
          input Q: f32[8, 4]
          input K: f32[8, 4]
          nest m (q | k) f32: max sum(d: Q[q, d] * K[k, d])
          nest n (q | k) f32: min sum(d: Q[q, d] * K[k, d])
          output m, n
    Legal when: always; a dim never has the name of one that is free in the program.
    """
    free = {d.name for n in program.nests for d in (*n.parallel, *n.reduced)}
    names: dict[tuple[int, int, Expr], Dim] = {}
    taken = set(free)

    def shared(height: int, place: int, dim: Dim) -> Dim:
        key = (height, place, dim.extent)
        if key not in names:
            name = fresh_name(dim.name, taken)
            taken.add(name)
            names[key] = Dim(name, dim.extent)
        return names[key]

    heights: dict[Expr, int] = {}

    def height(e: Expr) -> int:
        if e not in heights:
            inner = max((height(c) for c in children(e)), default=0)
            heights[e] = inner + 1 if isinstance(e, Reduce) else inner
        return heights[e]

    def renamed(body: Expr) -> Expr:
        def rule(node: Expr) -> Expr | None:
            if not isinstance(node, Reduce):
                return None
            new = tuple(shared(height(node), i, d) for i, d in enumerate(node.dims))
            if new == node.dims:
                return None
            mapping: dict[Dim, Expr] = {a: Index(b) for a, b in zip(node.dims, new, strict=True)}
            return Reduce(node.monoid, new, substitute(node.body, mapping))

        return rewrite(body, rule)

    return program.with_statements(tuple(replace(n, body=renamed(n.body)) for n in program.nests))


@dataclass(frozen=True)
class Frame:
    """The dims of a group: kept, loop, and the whole ones seen so far; `reserved` names are those of the program's other dims."""

    kept: tuple[Dim, ...]
    loop: tuple[Dim, ...]
    whole: tuple[Dim, ...] = ()
    reserved: frozenset[str] = frozenset()


def landmarks(body: Expr, loop: frozenset[Dim]) -> Iterator[Expr]:
    """What is worth sharing: loads and inner reductions that vary along the loop."""
    for node in walk(body):
        if isinstance(node, Load | Reduce) and not loop.isdisjoint(free_dims(node)):
            yield node


def matchings(
    kept: Sequence[Dim],
    loop: Sequence[Dim],
    whole: Sequence[Dim],
    frame: Frame,
    forced: Mapping[Dim, Dim],
) -> Iterator[dict[Dim, Dim]]:
    """Ways to put a nest's dims on a frame's: kept on kept, loop on loop, whole on whole or new; the same dims first."""
    ways = [
        list(islice(_bijections(kept, frame.kept, forced), MOST_MATCHINGS)),
        list(islice(_bijections(loop, frame.loop, {}), MOST_MATCHINGS)),
        [_whole_matching(whole, frame)],
    ]
    for parts in islice(product(*ways), MOST_MATCHINGS):
        yield {a: b for part in parts for a, b in part.items()}


def _bijections(
    dims: Sequence[Dim], onto: Sequence[Dim], forced: Mapping[Dim, Dim]
) -> Iterator[dict[Dim, Dim]]:
    """Bijections between dims of equal extents that obey `forced`."""
    if len(dims) != len(onto):
        return
    fixed = {d: forced[d] for d in dims if d in forced}
    if len(set(fixed.values())) != len(fixed) or any(
        a.extent is not b.extent for a, b in fixed.items()
    ):
        return
    left = [d for d in dims if d not in fixed]
    free = [d for d in onto if d not in fixed.values()]
    by_extent: defaultdict[Expr, list[Dim]] = defaultdict(list)
    for d in free:
        by_extent[d.extent].append(d)
    needs: defaultdict[Expr, list[Dim]] = defaultdict(list)
    for d in left:
        needs[d.extent].append(d)
    if {e: len(v) for e, v in needs.items()} != {e: len(v) for e, v in by_extent.items()}:
        return
    choices = [list(permutations(by_extent[e])) for e in needs]
    for picked in product(*choices):
        mapping = dict(fixed)
        for e, order in zip(needs, picked, strict=True):
            mapping.update(zip(needs[e], order, strict=True))
        yield mapping


def _whole_matching(whole: Sequence[Dim], frame: Frame) -> dict[Dim, Dim]:
    """A group's whole dim of the same extent for each, or the dim itself, renamed apart if the frame uses it otherwise."""
    free = list(frame.whole)
    mapping: dict[Dim, Dim] = {}
    taken = {d.name for d in (*frame.kept, *frame.loop, *frame.whole)}
    for d in whole:
        same = [f for f in free if f.extent is d.extent]
        chosen = d if d in same else same[0] if same else None
        if chosen is not None:
            free.remove(chosen)
        elif d.name in taken:
            chosen = Dim(fresh_name(d.name, taken | frame.reserved), d.extent)
        else:
            chosen = d
        taken.add(chosen.name)
        mapping[d] = chosen
    return mapping


def renamed_nest(nest: Nest, mapping: Mapping[Dim, Dim]) -> Nest:
    """The nest on other dims; simplified again, since sums of positions are ordered by name."""
    index: dict[Dim, Expr] = {a: Index(b) for a, b in mapping.items() if a is not b}
    return replace(
        nest,
        parallel=tuple(mapping.get(d, d) for d in nest.parallel),
        reduced=tuple(mapping.get(d, d) for d in nest.reduced),
        body=simplify(substitute(nest.body, index)),
    )


def likeness(
    nest: Nest, mapping: Mapping[Dim, Dim], known: frozenset[Expr]
) -> tuple[int, int, int]:
    """How well a matching fits: shared inner reductions, shared loads, dims that keep their name."""
    new = renamed_nest(nest, mapping)
    shared = [n for n in landmarks(new.body, frozenset(new.reduced)) if n in known]
    return (
        sum(isinstance(n, Reduce) for n in shared),
        len(shared),
        sum(a is b for a, b in mapping.items()),
    )


def is_constant_extent(dim: Dim, limit: int) -> bool:
    """Whether the extent is a literal of at most `limit`."""
    return isinstance(dim.extent, Const) and dim.extent.value <= limit


def own_row(load: Load, axes: Sequence[Dim | None], bound: frozenset[Dim]) -> dict[Dim, Dim] | None:
    """Which dim of the reader stands for each kept dim of the result read, or None if it is read at another row.

    Args:
        load: the read.
        axes: for each axis of the result, the kept dim it is, or None for a whole dim.
        bound: dims that may not appear in the indices at whole dims (the reader's loop dims).
    """
    found: dict[Dim, Dim] = {}
    for axis, index in zip(axes, load.index, strict=True):
        if axis is None:
            if not bound.isdisjoint(free_dims(index)):
                return None
        elif isinstance(index, Index) and index.dim not in bound:
            if found.setdefault(index.dim, axis) is not axis:
                return None
        else:
            return None
    return found


def reads_of(body: Expr, names: Iterable[str]) -> list[Load]:
    """Loads of any of the named results."""
    wanted = set(names)
    return [load for load in loads(body) if load.buffer.name in wanted]
