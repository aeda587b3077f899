"""Put the nests of a program into groups, one by one (algebra.md, section 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations

from flashlight.ir.exprs import Dim, Expr, Index, Load, Reduce
from flashlight.ir.nests import Nest, Program
from flashlight.ir.visit import bound_dims, free_dims, fresh_name, loads, reads, walk
from flashlight.rewrite.align import (
    Frame,
    landmarks,
    likeness,
    matchings,
    own_row,
    reads_of,
    renamed_nest,
)
from flashlight.rewrite.roles import elements, fits_whole, kept_and_whole

ROWS = 64
"""A reduction over fewer rows of pairs is one kernel."""


@dataclass
class Group:
    """Nests that share a kernel, on one frame of dims; a lone pointwise nest is a group without loop dims.

    Attributes:
        frame: the dims.
        phase: whether it depends on a tangent.
        members: the nests, renamed onto the frame, in order of dependence.
        known: subterms that vary along the loop, for finding the matching that shares most.
        origins: the dim of the program's nest that became a frame's dim, by nest and frame dim.
    """

    frame: Frame
    phase: bool
    members: list[Nest] = field(default_factory=list)
    known: set[Expr] = field(default_factory=set)
    origins: dict[tuple[str, Dim], Dim] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        return {n.name for n in self.members}

    def axes_of(self, name: str) -> list[Dim | None]:
        """For each axis of a member's result, the kept dim it is, or None."""
        nest = next(n for n in self.members if n.name == name)
        return [d if d in self.frame.kept else None for d in nest.parallel]

    def sources(self, dim: Dim) -> list[tuple[str, Dim]]:
        """The dims of the program's nests that stand for a dim of the frame."""
        return [(name, d) for (name, frame_dim), d in self.origins.items() if frame_dim is dim]

    def take(self, nest: Nest, way: Mapping[Dim, Dim]) -> None:
        """Add a nest, renaming its dims by `way`."""
        self.origins.update({(nest.name, b): a for a, b in way.items()})
        nest = renamed_nest(nest, way)
        self.members.append(nest)
        dims = (*self.frame.kept, *self.frame.loop, *self.frame.whole)
        new = tuple(d for d in nest.parallel if d not in dims)
        self.frame = replace(self.frame, whole=(*self.frame.whole, *new))
        self.known.update(landmarks(nest.body, frozenset(self.frame.loop)))


class Placement:
    """Places nests one by one."""

    def __init__(self, program: Program, tangents: frozenset[str]) -> None:
        self.program = program
        self.groups: list[Group] = []
        self.home: dict[str, Group] = {}
        self.tangent = set(tangents)
        self.rows = _Rows(program)
        self.names = {n.name for n in program.nests} | {b.name for b in program.inputs}
        bound = (d for n in program.nests for d in bound_dims(n.body))
        free = (d for n in program.nests for d in (*n.parallel, *n.reduced))
        self.dims = frozenset(d.name for d in (*free, *bound))

    def place(self, nest: Nest) -> None:
        """Join the group that the nest shares most with, or open one."""
        phase = not self.tangent.isdisjoint(reads(nest.body))
        if phase:
            self.tangent.add(nest.name)
        as_give = self._as_pointwise(nest)
        if as_give is not None and self._join_as_give(as_give, phase):
            return
        if nest.monoid is None:
            self._open(nest, Frame(nest.parallel, ()), phase)
            return
        kept, whole = self._roles(nest)
        fits = [self._fit(nest, kept, whole, g, phase) for g in reversed(self.groups)]
        best = max((f for f in fits if f is not None), key=lambda f: f.rank, default=None)
        if best is not None:
            self._take(nest, best.way, best.group)
            return
        for g in sorted(reversed(self.groups), key=lambda g: elements(g.frame.kept)):
            finishing = self._cut(nest, g, phase)
            if finishing is not None:
                self.place(finishing)
                return
        outer = _rows_of_pairs(nest)
        if outer:
            part, finishing = self._parts(nest, tuple(d for d in nest.reduced if d not in outer))
            self.names.add(part.name)
            self.place(part)
            self.place(finishing)
            return
        self._open(nest, Frame(kept, nest.reduced, whole), phase)

    def in_order(self) -> list[Group]:
        """The groups, each after those it reads; otherwise as they were opened."""
        done: list[Group] = []

        def visit(g: Group) -> None:
            if any(g is d for d in done):
                return
            for h in self._read_by(g):
                visit(h)
            done.append(g)

        for g in self.groups:
            visit(g)
        return done

    # -- Joining

    def _open(self, nest: Nest, frame: Frame, phase: bool) -> None:
        g = Group(replace(frame, reserved=self.dims), phase)
        g.take(nest, {d: d for d in (*nest.parallel, *nest.reduced)})
        self.groups.append(g)
        self.home[nest.name] = g

    def _take(self, nest: Nest, way: Mapping[Dim, Dim], g: Group) -> None:
        g.take(nest, way)
        self.home[nest.name] = g

    def _fit(
        self, nest: Nest, kept: tuple[Dim, ...], whole: tuple[Dim, ...], g: Group, phase: bool
    ) -> _Fit | None:
        """How the nest would join a group, if it may and there is a reason to: equal extents alone make no kernel."""
        if g.phase != phase or not g.frame.loop or self._would_cycle(nest, g):
            return None
        forced = _forced(nest, g, frozenset(nest.reduced))
        if forced is None:
            return None
        ways = list(matchings(kept, nest.reduced, whole, g.frame, forced))
        if not ways:
            return None
        known = frozenset(g.known)
        likenesses = [likeness(nest, way, known) for way in ways]
        reductions, shared, names = max(likenesses)
        way = ways[likenesses.index((reductions, shared, names))]
        has_scores = any(isinstance(x, Reduce) for x in walk(nest.body))
        shares = reductions > 0 or (shared > 0 and not has_scores)
        if not forced and not shares and not self._is_linked(nest, way, g):
            return None
        return _Fit(g, way, (len(forced), reductions, shared, names))

    def _cut(self, nest: Nest, g: Group, phase: bool) -> Nest | None:
        """Reduce in `g` what its loop covers of a reduction over more dims; the nest that finishes the rest.

        By associativity. Only where the two share an inner reduction, which is then computed once.
        """
        assert nest.monoid is not None
        if nest.monoid.is_position or len(nest.reduced) <= len(g.frame.loop):
            return None
        for inner in combinations(nest.reduced, len(g.frame.loop)):
            part, finishing = self._parts(nest, inner)
            kept, whole = self._roles(part)
            fit = self._fit(part, kept, whole, g, phase)
            if fit is not None and fit.shares_reductions:
                self._take(part, fit.way, g)
                self.names.add(part.name)
                return finishing
        return None

    def _parts(self, nest: Nest, inner: tuple[Dim, ...]) -> tuple[Nest, Nest]:
        """A reduction over some of a nest's dims, and the nest that reduces its results over the rest."""
        outer = tuple(d for d in nest.reduced if d not in inner)
        part = replace(
            nest,
            name=fresh_name(f"{nest.name}_part", self.names),
            parallel=(*outer, *nest.parallel),
            reduced=inner,
            dtype=nest.dtype.compute,
        )
        finished = Load(part.buffer, tuple(Index(d) for d in part.parallel))
        return part, replace(nest, reduced=outer, body=finished)

    def _is_linked(self, nest: Nest, way: dict[Dim, Dim], g: Group) -> bool:
        """Whether later nests read both the nest and the group at one row, so that they end in one kernel."""
        kept = [d for d in nest.parallel if way[d] in g.frame.kept]
        return all(
            any(
                self.rows.find((nest.name, d)) == self.rows.find((m, source))
                for m, source in g.sources(way[d])
            )
            for d in kept
        ) and bool(kept)

    def _join_as_give(self, nest: Nest, phase: bool) -> bool:
        """A pointwise nest over kept and whole dims becomes arithmetic on finals of the newest group that it reads."""
        for g in reversed(self.groups):
            if not reads_of(nest.body, g.names):
                continue
            if g.phase != phase or not g.frame.loop or self._would_cycle(nest, g):
                continue
            forced = _forced(nest, g, frozenset())
            if forced is None or set(forced.values()) != set(g.frame.kept):
                continue
            whole = tuple(d for d in nest.parallel if d not in forced)
            if not fits_whole(whole):
                continue
            kept = tuple(d for d in nest.parallel if d in forced)
            for way in matchings(kept, g.frame.loop, whole, g.frame, forced):
                self._take(nest, _without_loop(way, g.frame), g)
                return True
        return False

    def _as_pointwise(self, nest: Nest) -> Nest | None:
        """The nest if it is pointwise on results, or a reduction over whole dims of results as a pointwise nest around it."""
        results = reads_of(nest.body, self.home)
        if not results or nest.monoid is None:
            return nest if results else None
        along = {
            i.dim
            for load in results
            for axis, i, extent in zip(
                self._axes_of(load), load.index, load.buffer.shape, strict=True
            )
            if axis is None and isinstance(i, Index) and i.dim.extent is extent
        }
        if not set(nest.reduced) <= along or not fits_whole(nest.reduced):
            return None
        if any(isinstance(n, Reduce) and free_dims(n) & along for n in walk(nest.body)):
            return None  # scores along them: a loop of its own
        body = Reduce(nest.monoid, nest.reduced, nest.body)
        return replace(nest, monoid=None, reduced=(), body=body)

    def _axes_of(self, load: Load) -> list[Dim | None]:
        """For each axis of a placed result, the kept dim it is in its group, or None."""
        return self.home[load.buffer.name].axes_of(load.buffer.name)

    def _roles(self, nest: Nest) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
        rows = {
            d
            for load in reads_of(nest.body, self.home)
            for axis, index in zip(self._axes_of(load), load.index, strict=True)
            if axis is not None
            for d in free_dims(index)
        }
        return kept_and_whole(nest, rows)

    def _read_by(self, g: Group) -> list[Group]:
        """Groups of which `g` reads a result."""
        found: list[Group] = []
        for name in sorted({r for n in g.members for r in reads(n.body)}):
            h = self.home.get(name)
            if h is not None and h is not g and not any(h is f for f in found):
                found.append(h)
        return found

    def _would_cycle(self, nest: Nest, g: Group) -> bool:
        """Whether some other group that the nest reads depends on `g`."""
        todo = [
            h for name in reads(nest.body) if (h := self.home.get(name)) is not None and h is not g
        ]
        seen: list[Group] = []
        while todo:
            h = todo.pop()
            if h is g:
                return True
            if not any(h is s for s in seen):
                seen.append(h)
                todo.extend(self._read_by(h))
        return False


@dataclass(frozen=True)
class _Fit:
    """A way for a nest to join a group; rank: rows of finals it reads there, shared reductions, shared loads, names kept."""

    group: Group
    way: Mapping[Dim, Dim]
    rank: tuple[int, int, int, int]

    @property
    def shares_reductions(self) -> bool:
        return self.rank[1] > 0


class _Rows:
    """Which dims of which nests are one row: classes under reads at the reader's own parallel dims."""

    def __init__(self, program: Program) -> None:
        self._parent: dict[tuple[str, Dim], tuple[str, Dim]] = {}
        nests = {n.name: n for n in program.nests}
        for nest in program.nests:
            for load in loads(nest.body):
                source = nests.get(load.buffer.name)
                if source is None:
                    continue
                for d, i in zip(source.parallel, load.index, strict=True):
                    if isinstance(i, Index) and i.dim in nest.parallel:
                        self._parent[self.find((source.name, d))] = self.find((nest.name, i.dim))

    def find(self, row: tuple[str, Dim]) -> tuple[str, Dim]:
        """The representative of a row's class."""
        while self._parent.get(row, row) != row:
            row = self._parent[row]
        return row


def _rows_of_pairs(nest: Nest) -> frozenset[Dim]:
    """Dims of a reduction over pairs that are better kept, and reduced after the others: rows, where it keeps none.

    A loss over all pairs would go over them row by row, in one instance of a program.
    """
    assert nest.monoid is not None
    read = [free_dims(load) for load in loads(nest.body)]

    def are_apart(a: Dim, b: Dim) -> bool:
        return any(a in d and b not in d for d in read) and any(b in d and a not in d for d in read)

    column = max(reversed(nest.reduced), key=lambda d: elements((d,)))
    rows = frozenset(d for d in nest.reduced if are_apart(d, column))
    if nest.monoid.is_position or elements(rows) < ROWS:
        return frozenset()
    if any(are_apart(d, column) for d in nest.parallel):
        return frozenset()
    beside = [d for d in nest.reduced if d is not column and elements((d,)) >= ROWS]
    return rows | {d for d in beside if all(d in dims for dims in read if column in dims)}


def _forced(nest: Nest, g: Group, bound: frozenset[Dim]) -> dict[Dim, Dim] | None:
    """What the nest's reads of the group's finals say about its dims; None if one is at another row."""
    forced: dict[Dim, Dim] = {}
    for load in reads_of(nest.body, g.names):
        found = own_row(load, g.axes_of(load.buffer.name), bound)
        if found is None or any(forced.setdefault(a, b) is not b for a, b in found.items()):
            return None
        if not found.keys() <= set(nest.parallel):
            return None
    return forced


def _without_loop(way: dict[Dim, Dim], frame: Frame) -> dict[Dim, Dim]:
    return {a: b for a, b in way.items() if a not in frame.loop}
