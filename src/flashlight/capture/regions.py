"""Regions: sets of cells that become one program, found by structure.

A region grows from cells that close pairs: back to where the pairs were made, over the row statistics that lie between, forward
over what is computed row by row from the results, and back again over whatever is cheaper to compute than to read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
import torch.fx

from flashlight.capture.pairs import Pairs, count, is_cheap, join_of, unpacks
from flashlight.capture.paths import Paths
from flashlight.capture.reading import Sides, is_lookup, is_plain, readers, sides_through
from flashlight.capture.refusals import refusal_of
from flashlight.errors import Refusal
from flashlight.ir.exprs import Dim, Unary
from flashlight.ir.monoids import ALL, ANY, SUM
from flashlight.ir.visit import free_dims, walk
from flashlight.lift.cells import Cell
from flashlight.lift.lift import Lifter
from flashlight.rewrite.fuse import SMALL
from flashlight.rewrite.unions import has_small_part

Node = torch.fx.Node

# A product with a weight matrix that is not normalised (an MLP) is worth recomputing only where its result dwarfs all else.
UNNORMALISED_WEIGHT_RATIO = 4
EPILOGUE_DEPTH = 16

# So many times products that are no scores are told from those that are: queries may be products of products.
ROUNDS = 4


@dataclass(eq=False)
class Region:
    """Cells that are computed together.

    Attributes:
        closers: names of the cells that close the pairs.
        paired: names of the cells that hold them.
        members: names of all cells, those above included.
        roots: cells that something outside reads, in order.
        is_weak: whether its pairs were made by products with weights or by outer products only.
        pairs: the analysis that found it.
        less: how much of what may go in is left outside, see `Finder.smaller`.
    """

    closers: set[str]
    paired: set[str]
    members: set[str] = field(default_factory=set)
    roots: list[Cell] = field(default_factory=list)
    is_weak: bool = False
    pairs: Pairs | None = None
    less: int = 0

    def __post_init__(self) -> None:
        self.members |= self.closers | self.paired


@dataclass(frozen=True)
class _Span:
    """FX nodes of a region, those after its closers, and those before any of its own, as bits of `Paths`."""

    inside: int
    after: int
    before: int

    def __or__(self, other: _Span) -> _Span:
        return _Span(
            self.inside | other.inside, self.after | other.after, self.before | other.before
        )

    @property
    def between(self) -> int:
        """Nodes on a path from a result to a member that are not in the region."""
        return self.after & self.before & ~self.inside


@dataclass
class Finder:
    """Finds the regions of one lifted graph.

    Attributes:
        lifter: the lifted graph.
        hints: sizes of symbols at the first call.
        refusals: near misses, in order.
    """

    lifter: Lifter
    hints: Mapping[str, int]
    refusals: list[Refusal] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.order = {n: i for i, n in enumerate(self.lifter.graph.nodes)}
        self.cells = self.lifter.cells
        self.paths = Paths(self.lifter.graph, self.lifter.views)
        self.makers: dict[str, list[Node]] = {}
        self.shared: dict[str, list[Node]] = {}  # FX nodes that are made by several cells
        self.own = {name: self.paths.set_of(c.tensors) for name, c in self.cells.items()}
        self.made_together = 0
        self.shared_biases: list[tuple[Cell, set[str], Region]] = []
        self.put_aside: list[tuple[Region, Node, Cell]] = []
        for node, cells in self.lifter.made.items():
            for cell in cells:
                self.makers.setdefault(cell.name, []).append(node)
                if len(cells) > 1:
                    self.made_together |= self.paths.bits[node]
                    self.shared.setdefault(cell.name, []).append(node)
                else:
                    self.own[cell.name] |= self.paths.bits[node]
        self.rank = {name: i for i, name in enumerate(self.cells)}

    def regions(self) -> list[Region]:
        """All regions that are worth taking, in order of their results.

        Products of activations that are no scores may be rows of what makes some. Those whose pairs are worth nothing are settled
        as such; then those that are fewer than what is made of them, where that finds a softmax of large scores.
        """
        found: list[Region] = []
        settled, doubtful = self._add_all(found, frozenset(), is_strict=False)
        if doubtful:
            self._add_doubtful(found, settled, doubtful)
        self._add(found, Pairs(self.lifter, self.hints, True, _names(found)))
        held = _names(found)
        for region, node, cell in self.put_aside:
            if not region.closers & held:
                self._refuse_node(region, node, cell)
        return sorted(found, key=lambda r: max(self.rank[name] for name in r.closers))

    def _add_doubtful(
        self, found: list[Region], settled: frozenset[str], doubtful: frozenset[str]
    ) -> None:
        """Add regions with products in doubt as rows, then with those as scores that are left; one of both may have refusals."""
        before, said = len(found), len(self.refusals)
        self._add_all(found, settled | doubtful, is_strict=True)
        is_found = len(found) > before
        if not is_found:
            del self.refusals[said:]
        said = len(self.refusals)
        self._add(found, Pairs(self.lifter, self.hints, False, _names(found), settled))
        if is_found:
            del self.refusals[said:]

    def _add_all(
        self, found: list[Region], settled: frozenset[str], *, is_strict: bool
    ) -> tuple[frozenset[str], frozenset[str]]:
        """Add regions until there are none, and name products that make no scores, and those that are in doubt."""
        doubtful: frozenset[str] = frozenset()
        for _ in range(ROUNDS):
            claimed = _names(found) if settled else frozenset[str]()
            pairs = Pairs(self.lifter, self.hints, False, claimed, settled)
            idle, late = self._add(found, pairs, only_sure=True, only_softmax=is_strict)
            doubtful |= late
            if idle <= settled:
                break
            settled |= idle
        return settled, doubtful

    def _add(
        self,
        found: list[Region],
        pairs: Pairs,
        *,
        only_sure: bool = False,
        only_softmax: bool = False,
    ) -> tuple[frozenset[str], frozenset[str]]:
        """Add regions that are worth taking beside those that are found.

        Returns:
            Products whose pairs are not worth it, and those of regions that are left because they are in doubt.
        """
        candidates = [c for c in self._components(pairs) if not c.closers <= pairs.claimed]
        complete = self._joined([r for r in candidates if self._complete(r, pairs)], pairs)
        complete = [r for r in complete if not _is_within_another(r, complete)]
        held = {name for r in (*found, *complete) for name in r.members}
        worth = [r for r in complete if self._is_worth(r, pairs)]
        late = [r for r in worth if only_sure and self._is_doubtful(r, pairs)]
        sure = [r for r in worth if r not in late]
        if only_softmax:
            sure = [r for r in sure if self._is_large(r) and self._is_softmax(r, pairs)]
        escaped = {n for r in sure for n in self._aside(r, pairs, held)}
        taken = [r for r in sure if not escaped & r.paired and not self._escapes(r, pairs, held)]
        self._leave_results([*found, *taken])
        found += [*taken, *self._biases(taken, pairs)]
        if not pairs.weights:
            self._note_open(pairs, {name for r in candidates for name in r.members})
        idle = [r for r in complete if not r.is_weak and r not in worth]
        return pairs.origins(_paired(idle)) | escaped, pairs.origins(_paired(late))

    def _is_doubtful(self, region: Region, pairs: Pairs) -> bool:
        """Whether products make more of pairs than there are: features that are normalised, rather than scores."""
        if region.is_weak or self._is_large(region) or self._is_softmax(region, pairs):
            return False
        made = [self._count(n) for n in region.closers if pairs.of[n].contraction]
        return max(made, default=0) > max(self._count(n) for n in region.paired)

    def smaller(self, region: Region) -> Iterator[Region]:
        """The same core with less around it, for where the compiler refuses: without an epilogue, then without scaled operands."""
        for less in range(region.less + 1, 3):
            new = Region(set(region.closers), set(region.paired), less=less)
            grown = region.pairs is not None and self._complete(new, region.pairs)
            if grown and new.roots and new.members < region.members:
                yield new

    # -- Cores

    def _components(self, pairs: Pairs) -> list[Region]:
        """Closers with what they close, merged where they share it and nothing from outside lies between."""
        regions: list[tuple[Region, _Span]] = []
        for cell in self.cells.values():
            known = pairs.of[cell.name]
            if not known.closes:
                continue
            new = Region({cell.name}, pairs.cone(known.sources))
            span = self._span(new)
            apart = []
            for old, other in regions:
                merged = self._united(new, span, old, other, pairs)
                if merged is None:
                    apart.append((old, other))
                else:
                    new, span = merged, self._span(merged)
            regions = [*apart, (new, span)]
        return [region for region, _ in regions]

    def _united(self, a: Region, at: _Span, b: Region, bt: _Span, pairs: Pairs) -> Region | None:
        """Two cores as one with what lies between them, or None where they share nothing or a wall stands between."""
        if a.paired.isdisjoint(b.paired):
            return None
        both = at | bt
        if both.between & self._walls(pairs) & ~self.made_together:
            return None  # what the full search would find; most candidates of a long scan end here
        merged = Region(a.closers | b.closers, a.paired | b.paired)
        return merged if self._close_gaps(merged, pairs) is None else None

    def _span(self, region: Region) -> _Span:
        inside = self._nodes(region.members)
        after = self.paths.after(self._nodes(region.closers))
        return _Span(inside, after, self.paths.before(inside))

    def _close_gaps(self, region: Region, pairs: Pairs) -> Node | None:
        """Add what lies between members (row statistics on their way back); the node that cannot be added, if there is one."""
        walls = self._walls(pairs)
        while True:
            between = self._between(region)
            if between & walls:
                return next(self.paths.of(between & walls))
            gap = {c.name for node in self.paths.of(between) for c in self._cells_of(node)}
            fresh = gap - region.members
            if not fresh:
                return None
            region.members |= fresh
            region.paired |= {name for name in fresh if pairs.of[name].pairs}

    def _walls(self, pairs: Pairs) -> int:
        """FX nodes that no region may take in: those without a rule, and products."""
        if pairs.walls is None:
            pairs.walls = self.paths.set_of(
                node
                for node in self.paths.nodes
                if not self._cells_of(node)
                or any(pairs.of[c.name].contraction for c in self._cells_of(node))
            )
        return pairs.walls

    def _between(self, region: Region) -> int:
        """FX nodes on a path from a result to a member that are not in the region."""
        return self._span(region).between

    def _nodes(self, names: set[str]) -> int:
        """FX nodes that are computed by these cells and by no others."""
        found = 0
        for name in names:
            found |= self.own[name]
            for node in self.shared.get(name, ()):
                if all(c.name in names for c in self.lifter.made[node]):
                    found |= self.paths.bits[node]
        return found

    def _cells_of(self, node: Node) -> list[Cell]:
        return self.lifter.made.get(node, [])

    # -- Growing

    def _joined(self, regions: list[Region], pairs: Pairs) -> list[Region]:
        """Merge regions whose results meet in one cell (the difference of two attentions), where they make one region.

        Otherwise both would compute that cell, each reading what the other keeps to itself.
        """
        joined: list[tuple[Region, set[str]]] = []
        for new in regions:
            apart = []
            results = self._results(new)
            for old, others in joined:
                shared = results & others
                merged = self._merged(new, old, pairs) if shared else None
                if merged is not None:
                    new, results = merged, self._results(merged)
                    continue
                apart.append((old, others))
                if shared:
                    new.members -= shared
                    new.roots = self._roots(new)
                    results = self._results(new)
            joined = [*apart, (new, results)]
        return [region for region, _ in joined]

    def _leave_results(self, regions: list[Region]) -> None:
        """Let a region read what another computes from its own results, rather than compute that again from what the other keeps to
        itself: attention to the scaled result of another attention. What it holds as its own pairs the other leaves to it.
        """
        owner = {name: region for region in regions for name in self._results(region)}
        for region in regions:
            others = {n for n in region.members if owner.get(n, region) is not region}
            for name in self._in_order(others & region.paired):
                self._give_up(owner[name], name)
            region.members -= others - region.paired - self._derived(region)

    def _give_up(self, region: Region, name: str) -> None:
        """Take a last step of a region, and what follows it, out of it."""
        gone = {name}
        for member in self._in_order(region.members):
            if any(load.buffer.name in gone for load in self.cells[member].loads()):
                gone.add(member)
        if gone.isdisjoint(region.closers | region.paired):
            region.members -= gone
            region.roots = self._roots(region)

    def _merged(self, a: Region, b: Region, pairs: Pairs) -> Region | None:
        """Both as one region, or None where something lies between them."""
        merged = Region(a.closers | b.closers, a.paired | b.paired)
        known = len(self.refusals)
        if self._complete(merged, pairs):
            return merged
        del self.refusals[known:]
        return None

    def _results(self, region: Region) -> set[str]:
        return self._derived(region) - region.paired

    def _complete(self, region: Region, pairs: Pairs) -> bool:
        """Grow a core to its region; False (with a refusal where it is a near miss) if it cannot be one."""
        if any(0 in self.cells[name].extents() for name in region.members):
            return False
        region.pairs = pairs
        region.is_weak = not any(p.is_strong for n in region.paired for p in pairs.of[n].pairs)
        gap = self._close_gaps(region, pairs)
        if gap is not None:
            self._refuse_node(region, gap)
            return False
        self._finish_ops(region)
        if region.less < 1:
            self._extend(region)
        self._absorb(region, pairs)
        region.roots = self._roots(region)
        return True

    def _roots(self, region: Region) -> list[Cell]:
        members = self._in_order(region.members)
        return [self.cells[n] for n in members if self._is_root(n, region)]

    def _count(self, name: str) -> int:
        return count(name, self.lifter, self.hints)

    def _in_order(self, names: set[str]) -> list[str]:
        return sorted(names, key=self.rank.__getitem__)

    def _readers(self, cell: Cell) -> set[Node]:
        """FX nodes that read a cell, through views."""
        return readers(cell, self.lifter)

    def _outside(self, cell: Cell, members: set[str]) -> set[Node]:
        """Readers of a cell that are not in the region."""
        return {n for n in self._readers(cell) if not self._is_inside(n, cell, members)}

    def _is_inside(self, node: Node, cell: Cell, members: set[str]) -> bool:
        """Whether a reader's own cells that read `cell` (or a copy of it) are all members."""
        made = self._cells_of(node)
        reading = [c for c in made if any(e.buffer.name == cell.name for e in c.loads())]
        return bool(made) and all(c.name in members for c in (reading or made))

    def _is_root(self, name: str, region: Region) -> bool:
        if name not in region.closers | self._derived(region):
            return False
        outside = self._outside(self.cells[name], region.members)
        is_pair = name in region.paired
        return bool(outside) and (not is_pair or any(n.op == "output" for n in outside))

    def _derived(self, region: Region) -> set[str]:
        """Members that are computed from a closer: everything else is absorbed, and also computed outside if read there."""
        found = set(region.closers)
        for name in self._in_order(region.members):
            if any(e.buffer.name in found for e in self.cells[name].loads()):
                found.add(name)
        return found

    def _finish_ops(self, region: Region) -> None:
        """Take the rest of an op of which some step is a member and has no tensor of its own, as the sum inside a mean."""
        work = [n for n in self._in_order(region.members) if not self.cells[n].tensors]
        while work:
            step = work.pop()
            for cell in (c for node in self.makers[step] for c in self.lifter.made[node]):
                reads = any(e.buffer.name == step for e in cell.loads())
                if reads and cell.name not in region.members:
                    region.members.add(cell.name)
                    if not cell.tensors:
                        work.append(cell.name)

    def _extend(self, region: Region) -> None:
        """Take what is computed row by row from the results, as long as nothing else wants those."""
        for _ in range(EPILOGUE_DEPTH):
            derived = self._derived(region) - region.paired
            reached = self._descendants(region)
            for name in self._in_order(derived):
                outside = self._outside(self.cells[name], region.members)
                following = [c for n in outside for c in self._cells_of(n)]
                if len(following) == 1 and self._is_epilogue(
                    following[0], region, derived, reached
                ):
                    region.members.add(following[0].name)
                    break
            else:
                return

    def _is_epilogue(self, cell: Cell, region: Region, derived: set[str], reached: int) -> bool:
        """Whether a cell only goes over results of the region, element by element."""
        if not cell.is_pointwise or len(cell.tensors) != 1 or cell.name in region.members:
            return False
        if region.pairs is not None and cell.name in region.pairs.claimed:
            return False  # each of two regions would wait for the other
        largest = 0
        size = self._count(cell.name)
        for load in cell.loads():
            name = load.buffer.name
            if name in derived:
                only = self._outside(self.cells[name], region.members) <= set(cell.tensors)
                if not only or not is_plain(load, cell):
                    return False
                largest = max(largest, self._count(name))
            elif name in region.members or self._node_bits(name) & reached:
                return False
        return size <= largest

    def _node_bits(self, name: str) -> int:
        if name in self.cells:
            return self.paths.set_of(self.cells[name].tensors[:1])
        return self.paths.bits[self.lifter.leaves[name].node]

    def _descendants(self, region: Region) -> int:
        """FX nodes that depend on results of the region."""
        return self.paths.after(
            self.paths.set_of(t for n in self._derived(region) for t in self.cells[n].tensors)
        )

    def _absorb(self, region: Region, pairs: Pairs) -> None:
        """Take what members read and what is cheaper to compute than to read, back to the frontier."""
        sides = {
            name: [(p.rows, p.columns) for p in pairs.of[name].pairs] for name in region.paired
        }
        late = self._derived(region) - region.paired  # results, and what is computed only for them
        late = {name for name in late if not pairs.of[name].contraction}
        work = self._in_order(region.members)
        while work:
            reader = self.cells[work.pop()]
            for load in reader.loads():
                name = load.buffer.name
                if name in region.members or name not in self.cells:
                    continue
                cell = self.cells[name]
                inner = sides_through(load, reader, sides.get(reader.name, []))
                is_late = reader.name in late and self._is_only_for(cell, reader, region)
                if not is_late and not self._is_absorbed(cell, reader, inner, region):
                    continue
                region.members.add(name)
                if is_late:
                    late.add(name)
                if inner:
                    sides[name] = inner
                work.append(name)

    def _is_only_for(self, cell: Cell, reader: Cell, region: Region) -> bool:
        """Whether a pointwise cell is read by the region's last steps alone, and makes no more elements than they have."""
        return (
            cell.is_pointwise
            and not self._ends_product(cell)
            and self._count(cell.name) <= self._count(reader.name)
            and not self._outside(cell, region.members)
        )

    def _is_absorbed(self, cell: Cell, reader: Cell, sides: Sides, region: Region) -> bool:
        pairs = region.pairs
        assert pairs is not None
        is_paired = bool(sides)
        if cell.is_index or not cell.tensors:  # positions, and steps inside one op's rule
            return True
        if pairs.of[cell.name].contraction or self._ends_product(cell):
            return self._is_bias_of_features(cell, sides, region)
        if is_paired and not cell.is_pointwise:
            return True
        if not cell.dtype.is_float:
            return cell.is_pointwise or self._is_mask_statistic(cell)
        if not cell.is_pointwise:
            return False
        if is_paired:
            return True
        if region.less > 1 or self._ends_reduction(cell):
            return False
        if is_cheap(cell, self.cells):
            return not self._narrows(cell)
        if unpacks(cell, self.lifter, self.hints):
            return True
        joined = join_of(cell, self.cells)
        if joined is not None:
            return self._is_joined_late(cell, joined, reader, region)
        return is_lookup(cell) and pairs.of[reader.name].contraction

    def _is_bias_of_features(self, cell: Cell, sides: Sides, region: Region) -> bool:
        """Whether a product contracts features of each pair of rows that would be stored for it alone.

        They are made of no more than it makes of them (positions, points, distances), and in the region they never reach memory.
        A projection of pairs that are given stays outside, as a product of rows with columns does. What several attentions read is
        noted, to be a region of its own.
        """
        if region.is_weak or region.less > 1:
            return False
        apart = [s for s in sides if s[0] and s[1] and s[0].isdisjoint(s[1])]
        made, given = self._made_of(cell, apart)
        known = region.members | made | {cell.name}
        given |= {name for name in made if self._outside(self.cells[name], known)}
        size = self._count(cell.name)
        if made <= given or any(self._count(n) > size for n in given):
            return False
        if not self._is_shared(cell, region):
            return True
        if any(self._count(n) > size for n in made - given):
            self.shared_biases.append((cell, made, region))
        return False

    def _is_shared(self, cell: Cell, region: Region) -> bool:
        """Whether something outside of a region reads a member, or what members make of it alone."""
        derived = self._derived(region)
        work, seen = [cell], {cell.name}
        while work:
            at = work.pop()
            if self._outside(at, region.members):
                return True
            following = [c for n in self._readers(at) for c in self._cells_of(n)]
            fresh = [c for c in following if c.name not in derived | seen | region.paired]
            seen |= {c.name for c in fresh}
            work += fresh
        return False

    def _biases(self, taken: list[Region], pairs: Pairs) -> Iterator[Region]:
        """Regions of their own for biases that several attentions read, which features would be stored for."""
        held = {name for r in taken for name in r.members}
        for cell, made, region in self.shared_biases:
            if region in taken and cell.name not in held:
                bias = Region({cell.name}, set(), set(made), is_weak=True, pairs=pairs, less=2)
                self._absorb(bias, pairs)
                bias.roots = self._roots(bias)
                held |= bias.members
                yield bias

    def _made_of(self, cell: Cell, sides: Sides) -> tuple[set[str], set[str]]:
        """What varies along both sides of pairs behind a cell: names of what is computed, and of leaves."""
        made: set[str] = set()
        leaves: set[str] = set()
        work = [(cell, sides)]
        while work:
            reader, along = work.pop()
            for load in reader.loads():
                name = load.buffer.name
                inner = sides_through(load, reader, along)
                if inner and name not in self.cells:
                    leaves.add(name)
                elif inner and name not in made:
                    made.add(name)
                    work.append((self.cells[name], inner))
        return made, leaves

    def _is_joined_late(
        self, cell: Cell, joined: frozenset[Dim], reader: Cell, region: Region
    ) -> bool:
        """Whether the parts of a join are read where they lie, rather than written once more, side by side.

        They are where telling them apart costs nothing in the loop: it can be cut at the border (features are, and positions where
        one part is small), or they are one tensor after all.
        """
        assert region.pairs is not None
        for node in self._outside(cell, region.members):
            others = self._cells_of(node)
            if not others or not all(region.pairs.of[c.name].contraction for c in others):
                return False  # it is written anyway
        read = [load for load in reader.loads() if load.buffer.name == cell.name]
        places = [n for n, d in enumerate(cell.nest.parallel) if d in joined]
        met = {d for load in read for n in places for d in free_dims(load.index[n])}
        is_feature = region.pairs.of[reader.name].origin and met <= set(reader.nest.reduced)
        is_one = len({load.buffer for load in cell.loads()}) <= 1
        return is_feature or is_one or any(has_small_part(cell.nest.body, d) for d in joined)

    def _ends_product(self, cell: Cell) -> bool:
        """Whether a cell is the last step of a product with a bias, which is one op and stays one outside of regions."""
        return any(step.contraction for step in self._steps(cell))

    def _ends_reduction(self, cell: Cell) -> bool:
        """Whether a cell is the last step of an op that reduces, such as a mean, and would do so again for each element it is read for."""
        return any(not s.is_pointwise or self._ends_reduction(s) for s in self._steps(cell))

    def _steps(self, cell: Cell) -> list[Cell]:
        """What an op computes on the way to a cell and has no tensor of its own for."""
        read = (self.cells[e.buffer.name] for e in cell.loads() if e.buffer.name in self.cells)
        return [step for step in read if not step.tensors]

    def _narrows(self, cell: Cell) -> bool:
        """Whether a cast makes elements smaller: then it is better done once, before."""
        return any(
            e.buffer.dtype.is_float and e.buffer.dtype.bits > cell.dtype.bits for e in cell.loads()
        )

    def _is_mask_statistic(self, cell: Cell) -> bool:
        """Whether a cell says of each row of a mask whether it has any: then the mask need not be made for it."""
        if cell.nest.monoid not in (ANY, ALL):
            return False
        names = {e.buffer.name for e in cell.loads()}
        return all(n in self.cells and not self.cells[n].dtype.is_float for n in names)

    # -- Worth

    def _is_worth(self, region: Region, pairs: Pairs) -> bool:
        """Whether a complete region is worth a kernel."""
        if not region.roots:
            return False
        is_core, is_large = self._is_core(region, pairs), self._is_large(region)
        if not region.is_weak:
            return is_core or is_large
        dense = is_large and self._is_dense(region, pairs)
        return dense or (is_core and self._is_slim(region, pairs))

    def _aside(self, region: Region, pairs: Pairs, held: set[str]) -> frozenset[str]:
        """Products that something else reads and the region could read too: a bias beside its scores, or much fewer scores of blocks."""
        escape = self._escape(region.paired, pairs, held)
        if escape is None:
            return frozenset()
        made = pairs.origins(pairs.cone((escape[1].name,)))
        is_few = SMALL * self._count(escape[1].name) <= self._largest(region)
        if not is_few and not made < pairs.origins(region.paired):
            return frozenset()
        self.put_aside.append((region, *escape))
        return made

    def _escapes(self, region: Region, pairs: Pairs, held: set[str]) -> bool:
        """Whether something else reads scores of what looks like attention; a refusal is noted."""
        escape = self._escape(region.paired, pairs, held)
        if escape is not None:
            self._refuse_node(region, *escape)
        return escape is not None

    def _escape(self, names: set[str], pairs: Pairs, held: set[str]) -> tuple[Node, Cell] | None:
        """Who reads scores outside of all regions, and which: the op without a rule or the output at the end, if there is one."""
        nearest: tuple[Node, Cell] | None = None
        work = self._in_order(names)
        seen = set(work)
        while work:
            cell = self.cells[work.pop(0)]
            for node in sorted(self._outside(cell, held), key=self.order.__getitem__):
                if node.op == "output" and pairs.are_few(cell.name):
                    continue  # the weights of one query, written by the kernel
                nearest = nearest or (node, cell)
                following = self._cells_of(node)
                if not following or self._ends(node, pairs):
                    return node, cell
                fresh = [c.name for c in following if pairs.of[c.name].pairs and c.name not in seen]
                seen.update(fresh)
                work.extend(fresh)
        return nearest

    def _is_core(self, region: Region, pairs: Pairs) -> bool:
        """Whether rows are normalised: a statistic of the pairs, and either a product with them or a use of it among them."""
        statistics = {n for n in region.closers if not pairs.of[n].contraction}
        products = any(self._weighs(n, pairs) for n in region.closers - statistics)
        return bool(statistics) and (products or self._has_exp_sum(region, statistics))

    def _is_softmax(self, region: Region, pairs: Pairs) -> bool:
        statistics = {n for n in region.closers if not pairs.of[n].contraction}
        return self._has_exp_sum(region, statistics)

    def _weighs(self, name: str, pairs: Pairs) -> bool:
        """Whether a product sums rows by pairs, and not pairs by pairs."""
        sources = pairs.of[name].sources
        return sum(e.buffer.name in sources for e in self.cells[name].loads()) < 2

    def _has_exp_sum(self, region: Region, statistics: set[str]) -> bool:
        sums = any(self.cells[n].nest.monoid is SUM for n in statistics)
        exps = any(
            isinstance(e, Unary) and e.op in ("exp", "exp2")
            for n in region.paired
            for e in walk(self.cells[n].nest.body)
        )
        return sums and exps

    def _standing(self, region: Region) -> set[str]:
        """Which pairs Inductor would write to memory: for a product, of a reduction, or between two reductions."""
        products = [n for n in region.closers | region.paired if self.cells[n].contraction]
        factors = {e.buffer.name for n in products for e in self.cells[n].loads()}
        statistics = self._derived(region) - region.paired
        return {
            n
            for n in region.paired
            if n in factors
            or not self.cells[n].is_pointwise
            or any(e.buffer.name in statistics for e in self.cells[n].loads())
        }

    def _is_slim(self, region: Region, pairs: Pairs) -> bool:
        """Whether this is a softmax over few features against a matrix that is given: attention to learned or lone keys."""
        origins = [n for n in region.paired if pairs.of[n].origin]
        if not origins or not all(p.is_slim for n in origins for p in pairs.of[n].pairs):
            return False
        statistics = {n for n in region.closers if not pairs.of[n].contraction}
        products = {n for n in region.closers if self.cells[n].contraction}
        normalised = {side for n in statistics for side in pairs.sides(n)}
        used = {side for n in products for side in pairs.sides(n)}
        return bool(normalised & used) and self._has_exp_sum(region, statistics)

    def _is_dense(self, region: Region, pairs: Pairs) -> bool:
        """Whether pairs are reduced to statistics, or made of no weights (no MLP), or dwarf all they are made from."""
        if any(not pairs.of[n].contraction for n in region.closers):
            return True
        if not any(pairs.of[n].weighted and pairs.of[n].origin for n in region.paired):
            return True
        return self._largest(region) >= UNNORMALISED_WEIGHT_RATIO * sum(self._boundary(region))

    def _is_large(self, region: Region) -> bool:
        """Whether pairs that would be written outnumber every tensor that goes in or comes out."""
        return self._largest(region) > max(self._boundary(region), default=0)

    def _largest(self, region: Region) -> int:
        return max((self._count(n) for n in self._standing(region)), default=0)

    def _boundary(self, region: Region) -> list[int]:
        names = {
            e.buffer.name
            for n in region.members
            for e in self.cells[n].loads()
            if e.buffer.name not in region.members and e.buffer.dtype.is_float
        }
        return [count(n, self.lifter, self.hints) for n in names] + [
            self._count(c.name) for c in region.roots
        ]

    # -- Refusals

    def _note_open(self, pairs: Pairs, closed: set[str]) -> None:
        """Note scores that nothing closes: an op without a rule reads them, or a product mixes them (talking heads)."""
        for name, known in pairs.of.items():
            if name in closed or not any(p.is_strong for p in known.pairs):
                continue
            cell = self.cells[name]
            if any(e.buffer.name in closed for e in cell.loads()) or pairs.are_few(name):
                continue
            reading = sorted(self._outside(cell, closed), key=self.order.__getitem__)
            strange = [n for n in reading if n.op == "call_function" and self._ends(n, pairs)]
            if strange:
                self._refuse_node(Region(set(), {name}), strange[0], cell)

    def _ends(self, node: Node, pairs: Pairs) -> bool:
        """Whether what is known of pairs ends at a node that reads some."""
        cells = [pairs.of[c.name] for c in self._cells_of(node)]
        return all(c.contraction and not c.pairs and not c.closes for c in cells)

    def _refuse_node(self, region: Region, node: Node, cell: Cell | None = None) -> None:
        """Say which node keeps scores from being fused."""
        refusal = refusal_of(node, cell, self._cells_of(node))
        if region.pairs is not None and region.pairs.weights:
            return  # where there are pairs without weights, it was said before
        if not region.is_weak and refusal not in self.refusals:
            self.refusals.append(refusal)


def _names(regions: Iterable[Region]) -> frozenset[str]:
    return frozenset(name for r in regions for name in r.members)


def _paired(regions: Iterable[Region]) -> frozenset[str]:
    return frozenset(name for r in regions for name in r.paired)


def _is_within_another(region: Region, others: Iterable[Region]) -> bool:
    """Whether another region computes all that this one would and keeps it to itself."""
    return any(
        o is not region
        and region.members <= o.members
        and not {root.name for root in region.roots} & {root.name for root in o.roots}
        for o in others
    )
