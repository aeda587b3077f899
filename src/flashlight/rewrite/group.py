"""Which nests share a kernel (algebra.md, section 4), and the loops that come of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import prod

from flashlight.errors import Refusal
from flashlight.ir.exprs import Const, Dim, Expr, Index, Load, Reduce, Select, is_literal
from flashlight.ir.nests import Give, Loop, Nest, Pass, Program, Statement
from flashlight.ir.visit import free_dims, fresh_name, loads, reads, walk
from flashlight.rewrite.align import (
    Frame,
    is_constant_extent,
    landmarks,
    likeness,
    matchings,
    own_row,
    reads_of,
    renamed_nest,
    with_shared_bound_dims,
)
from flashlight.rewrite.bits import strip_casts
from flashlight.rewrite.factor import factor_weights, product_of
from flashlight.rewrite.online import online
from flashlight.rewrite.unions import split_unions

WHOLE_EXTENT = 512
"""A dim of at most so many positions may be held whole in a tile (a head dim, a 3-vector)."""


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


def group_and_online(program: Program, tangents: frozenset[str] = frozenset()) -> Program | Refusal:
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
        program: as `fuse` leaves it.
        tangents: inputs that are gradients of outputs; what depends on them is grouped apart.
    """
    program = split_unions(program)
    groups = group(program, tangents)
    if isinstance(groups, Refusal):
        return groups
    return loops_of(program, groups)


def group(program: Program, tangents: frozenset[str] = frozenset()) -> list[Group] | Refusal:
    """The groups of a program's nests, in topological order."""
    nests = (replace(n, body=factor_weights(n.body)) for n in program.nests)
    program = with_shared_bound_dims(program.with_statements(tuple(nests)))
    grouping = _Grouping(program, tangents)
    for nest in grouping.program.nests:
        grouping.place(nest)
    return grouping.in_order()


def loops_of(program: Program, groups: list[Group]) -> Program:
    """One loop for each group, by the default choice of `online`."""
    taken = {b.name for b in program.inputs} | {n.name for n in program.nests}
    statements: list[Statement] = []
    for g in groups:
        others = {name for h in groups if h is not g for n in h.members for name in reads(n.body)}
        wanted = {
            n.name: n.parallel for n in g.members if n.name in program.outputs or n.name in others
        }
        loop = _loop_of(g, wanted, taken - (g.names - wanted.keys()))
        taken |= {c.name for c in loop.carries}
        statements.append(loop)
    return program.with_statements(tuple(statements))


def _loop_of(g: Group, wanted: dict[str, tuple[Dim, ...]], taken: Iterable[str]) -> Loop:
    if not g.frame.loop:
        (nest,) = g.members
        give = Give(nest.name, nest.parallel, nest.dtype, strip_casts(nest.body), nest.origin)
        return Loop(nest.parallel, (), (Pass((), (give,)),))
    return online(g.frame.kept, g.frame.loop, g.members, wanted, taken)[0].loop


@dataclass(frozen=True)
class _Fit:
    """A way for a nest to join a group; rank: rows of finals it reads there, shared reductions, shared loads, names kept."""

    group: Group
    way: Mapping[Dim, Dim]
    rank: tuple[int, int, int, int]

    @property
    def shares_reductions(self) -> bool:
        return self.rank[1] > 0


class _Grouping:
    """Places nests one by one."""

    def __init__(self, program: Program, tangents: frozenset[str]) -> None:
        self.program = program
        self.groups: list[Group] = []
        self.home: dict[str, Group] = {}
        self.tangent = set(tangents)
        self.rows = _Rows(program)
        self.names = {n.name for n in program.nests} | {b.name for b in program.inputs}

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
        kept, whole = self._kept_and_whole(nest)
        fits = [self._fit(nest, kept, whole, g, phase) for g in reversed(self.groups)]
        best = max((f for f in fits if f is not None), key=lambda f: f.rank, default=None)
        if best is not None:
            self._take(nest, best.way, best.group)
            return
        for g in sorted(reversed(self.groups), key=lambda g: _elements(g.frame.kept)):
            finishing = self._cut(nest, g, phase)
            if finishing is not None:
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
        g = Group(frame, phase)
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
            outer = tuple(d for d in nest.reduced if d not in inner)
            part = replace(
                nest,
                name=fresh_name(f"{nest.name}_part", self.names),
                parallel=(*outer, *nest.parallel),
                reduced=inner,
                dtype=nest.dtype.compute,
            )
            kept, whole = self._kept_and_whole(part)
            fit = self._fit(part, kept, whole, g, phase)
            if fit is not None and fit.shares_reductions:
                self._take(part, fit.way, g)
                self.names.add(part.name)
                finished = Load(part.buffer, tuple(Index(d) for d in part.parallel))
                return replace(nest, reduced=outer, body=finished)
        return None

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
            if not _fits_whole(whole):
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
            for axis, i in zip(self._axes_of(load), load.index, strict=True)
            if axis is None and isinstance(i, Index)
        }
        if not set(nest.reduced) <= along or not _fits_whole(nest.reduced):
            return None
        body = Reduce(nest.monoid, nest.reduced, nest.body)
        return replace(nest, monoid=None, reduced=(), body=body)

    def _axes_of(self, load: Load) -> list[Dim | None]:
        """For each axis of a placed result, the kept dim it is in its group, or None."""
        return self.home[load.buffer.name].axes_of(load.buffer.name)

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

    # -- Roles of dims

    def _kept_and_whole(self, nest: Nest) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
        """Which parallel dims are kept, and which are whole in a tile.

        Rows of statistics and dims of inner reductions are kept. Of the others a dim of small constant extent is whole if some
        factor of the body does without it: the feature dim of a value.
        """
        rows: set[Dim] = set()
        for load in reads_of(nest.body, self.home):
            for axis, index in zip(self._axes_of(load), load.index, strict=True):
                if axis is not None:
                    rows |= free_dims(index)
        for node in walk(nest.body):
            if isinstance(node, Reduce):
                rows |= free_dims(node)
        factors = _factors(strip_casts(nest.body))
        loop = frozenset(nest.reduced)
        whole: list[Dim] = []
        for d in reversed(nest.parallel):
            if d in rows or not _fits_whole((*whole, d)):
                continue
            without = [
                f for f in factors if d not in free_dims(f) and not loop.isdisjoint(free_dims(f))
            ]
            others = frozenset(nest.parallel) - frozenset(whole) - {d}
            beside = frozenset[Dim]().union(*(free_dims(f) for f in factors if d in free_dims(f)))
            if rows & set(nest.parallel):
                if without:
                    whole.insert(0, d)
            elif any(not (free_dims(f) & others) <= beside for f in without):
                whole.insert(0, d)
                break  # a plain matmul: its last dim only
        return tuple(d for d in nest.parallel if d not in whole), tuple(whole)


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


def _factors(body: Expr) -> list[Expr]:
    """Factors of a product, the condition of `where(c, x, 0)` among them."""
    found: list[Expr] = []
    p = product_of(body)
    for f in (*p.num, *p.den):
        if isinstance(f, Select) and is_literal(f.b, 0):
            found.extend((f.condition, *_factors(f.a)))
        else:
            found.append(f)
    return found


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


def _elements(dims: Iterable[Dim]) -> int:
    """About how many elements an array over the dims has, for comparing."""
    return prod(int(d.extent.value) if isinstance(d.extent, Const) else 1024 for d in dims)


def _fits_whole(dims: Iterable[Dim]) -> bool:
    listed = list(dims)
    if not all(is_constant_extent(d, WHOLE_EXTENT) for d in listed):
        return False
    return prod(int(d.extent.value) for d in listed if isinstance(d.extent, Const)) <= WHOLE_EXTENT


def _without_loop(way: dict[Dim, Dim], frame: Frame) -> dict[Dim, Dim]:
    return {a: b for a, b in way.items() if a not in frame.loop}
