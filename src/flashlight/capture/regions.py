"""Regions: sets of cells that become one program, found by structure.

A region grows from cells that close pairs: back to where the pairs were made, over the row statistics that lie between, forward
over what is computed row by row from the results, and back again over whatever is cheaper to compute than to read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
import torch.fx

from flashlight.capture.borders import Borders, Region
from flashlight.capture.growth import Growth
from flashlight.capture.pairs import Pairs, count
from flashlight.capture.paths import Paths
from flashlight.capture.refusals import refusal_of, unknown_products
from flashlight.errors import Refusal
from flashlight.ir.exprs import Unary
from flashlight.ir.monoids import SUM
from flashlight.ir.visit import walk
from flashlight.lift.cells import Cell
from flashlight.lift.lift import Lifter
from flashlight.rewrite.fuse import SMALL

Node = torch.fx.Node

# A product with a weight matrix that is not normalised (an MLP) is worth recomputing only where its result dwarfs all else.
UNNORMALISED_WEIGHT_RATIO = 4

# So many times products that are no scores are told from those that are: queries may be products of products.
ROUNDS = 4


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
        self.shared: dict[str, list[Node]] = {}  # FX nodes that are made by several cells
        self.own = {name: self.paths.set_of(c.tensors) for name, c in self.cells.items()}
        self.made_together = 0
        self.put_aside: list[tuple[Region, Node, Cell]] = []
        for node, cells in self.lifter.made.items():
            for cell in cells:
                if len(cells) > 1:
                    self.made_together |= self.paths.bits[node]
                    self.shared.setdefault(cell.name, []).append(node)
                else:
                    self.own[cell.name] |= self.paths.bits[node]
        self.borders = Borders(self.lifter, self.hints)
        self.growth = Growth(self.borders, self.paths)

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
        self.refusals += unknown_products(self.lifter)
        return sorted(found, key=lambda r: max(self.borders.rank[name] for name in r.closers))

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
        taken = self._contained(taken, [*found, *late], pairs)
        self._leave_results([*found, *taken])
        found += [*taken, *self.growth.biases(taken, pairs)]
        if not pairs.weights:
            self._note_open(pairs, {name for r in candidates for name in r.members})
        idle = [r for r in complete if not r.is_weak and r not in worth]
        self.put_aside += self._cut_off(idle, pairs, held)
        return pairs.origins(_paired(idle)) | escaped, pairs.origins(_paired(late))

    def _is_doubtful(self, region: Region, pairs: Pairs) -> bool:
        """Whether products make more of pairs than there are: features that are normalised, rather than scores."""
        if region.is_weak or self._is_large(region) or self._is_softmax(region, pairs):
            return False
        made = [self.borders.count(n) for n in region.closers if pairs.of[n].contraction]
        return max(made, default=0) > max(self.borders.count(n) for n in region.paired)

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
            gap = {c.name for node in self.paths.of(between) for c in self.borders.cells_of(node)}
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
                if not self.borders.cells_of(node)
                or any(pairs.of[c.name].contraction for c in self.borders.cells_of(node))
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

    # -- Completing

    def _joined(self, regions: list[Region], pairs: Pairs) -> list[Region]:
        """Merge regions whose results meet in one cell (the difference of two attentions), where they make one region.

        Otherwise both would compute that cell, each reading what the other keeps to itself.
        """
        joined: list[tuple[Region, set[str]]] = []
        for new in regions:
            apart = []
            results = self.borders.results(new)
            for old, others in joined:
                shared = results & others
                merged = self._merged(new, old, pairs) if shared else None
                if merged is not None:
                    new, results = merged, self.borders.results(merged)
                    continue
                apart.append((old, others))
                if shared:
                    new.members -= shared
                    new.roots = self.borders.roots(new)
                    results = self.borders.results(new)
            joined = [*apart, (new, results)]
        return [region for region, _ in joined]

    def _leave_results(self, regions: list[Region]) -> None:
        """Let a region read what another computes from its own results, rather than compute that again from what the other keeps to
        itself: attention to the scaled result of another attention. What it holds as its own pairs the other leaves to it.
        """
        owner = {name: region for region in regions for name in self.borders.results(region)}
        for region in regions:
            others = {n for n in region.members if owner.get(n, region) is not region}
            for name in self.borders.in_order(others & region.paired):
                self._give_up(owner[name], name)
            region.members -= others - region.paired - self.borders.derived(region)

    def _give_up(self, region: Region, name: str) -> None:
        """Take a last step of a region, and what follows it, out of it."""
        gone = {name}
        for member in self.borders.in_order(region.members):
            if any(load.buffer.name in gone for load in self.cells[member].loads()):
                gone.add(member)
        if gone.isdisjoint(region.closers | region.paired):
            region.members -= gone
            region.roots = self.borders.roots(region)

    def _merged(self, a: Region, b: Region, pairs: Pairs) -> Region | None:
        """Both as one region, or None where something lies between them."""
        merged = Region(a.closers | b.closers, a.paired | b.paired)
        known = len(self.refusals)
        if self._complete(merged, pairs):
            return merged
        del self.refusals[known:]
        return None

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
        self.growth.grow(region, pairs)
        return True

    # -- Worth

    def _is_worth(self, region: Region, pairs: Pairs) -> bool:
        """Whether a complete region is worth a kernel."""
        if not region.roots:
            return False
        is_core, is_large = self._is_core(region, pairs), self._is_large(region)
        if not region.is_weak:
            return is_core or is_large
        products = [n for n in region.closers if pairs.of[n].contraction]
        if not all(self._weighs(n, pairs) for n in products):
            return False  # features of rows by features of columns: each would be made again for all of the other
        dense = is_large and self._is_dense(region, pairs)
        softmax = is_core and self._is_softmax(region, pairs) and self._is_as_large(region)
        return dense or softmax or (is_core and self._is_slim(region, pairs))

    def _aside(self, region: Region, pairs: Pairs, held: set[str]) -> frozenset[str]:
        """Products that something else reads and the region could read too: a bias beside its scores, or much fewer scores of blocks."""
        escape = self._escape(region.paired, pairs, held)
        if escape is None:
            return frozenset()
        made = pairs.origins(pairs.cone((escape[1].name,)))
        is_few = SMALL * self.borders.count(escape[1].name) <= self._largest(region)
        if not is_few and not made < pairs.origins(region.paired):
            return frozenset()
        self.put_aside.append((region, *escape))
        return made

    def _cut_off(
        self, idle: list[Region], pairs: Pairs, held: set[str]
    ) -> Iterator[tuple[Region, Node, Cell]]:
        """Regions that are worth nothing because an op without a rule stands between their scores and what becomes of these."""
        for region in idle:
            escape = self._escape(region.paired, pairs, held)
            if escape is None or self.borders.cells_of(escape[0]) or escape[0].op == "output":
                continue
            if not pairs.are_few(escape[1].name):
                yield (region, *escape)

    def _escapes(self, region: Region, pairs: Pairs, held: set[str]) -> bool:
        """Whether something else reads scores of what looks like attention; a refusal is noted."""
        escape = self._escape(region.paired, pairs, held)
        if escape is not None:
            self._refuse_node(region, *escape)
        return escape is not None

    def _contained(self, taken: list[Region], others: list[Region], pairs: Pairs) -> list[Region]:
        """Those to be taken, without any of products with weights whose results only a region that is neither taken nor among
        `others` would have kept from memory: Inductor computes them anyway.
        """
        while True:
            held = {name for r in (*taken, *others) for name in r.members}
            kept = [
                r for r in taken if not r.is_weak or self._escape(r.paired, pairs, held) is None
            ]
            if len(kept) == len(taken):
                return kept
            taken = kept

    def _escape(self, names: set[str], pairs: Pairs, held: set[str]) -> tuple[Node, Cell] | None:
        """Who reads scores outside of all regions, and which: the op without a rule or the output at the end, if there is one."""
        nearest: tuple[Node, Cell] | None = None
        work = self.borders.in_order(names)
        seen = set(work)
        while work:
            cell = self.cells[work.pop(0)]
            for node in sorted(self.borders.outside(cell, held), key=self.order.__getitem__):
                if node.op == "output" and pairs.are_few(cell.name):
                    continue  # the weights of one query, written by the kernel
                nearest = nearest or (node, cell)
                following = self.borders.cells_of(node)
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
        """Which pairs Inductor would write to memory: for a product, of a reduction, between two reductions, or for reductions over
        both sides.
        """
        products = [n for n in region.closers | region.paired if self.cells[n].contraction]
        factors = {e.buffer.name for n in products for e in self.cells[n].loads()}
        statistics = self.borders.derived(region) - region.paired
        across = self._read_across(region)
        return {
            n
            for n in region.paired
            if n in factors
            or not self.cells[n].is_pointwise
            or any(e.buffer.name in statistics for e in self.cells[n].loads())
            or n in across
        }

    def _read_across(self, region: Region) -> set[str]:
        """Pairs that some closers reduce over rows and others over columns."""
        if region.pairs is None:
            return set()
        sides: dict[str, set[str]] = {}
        for name in region.closers:
            found = set(region.pairs.sides(name))
            for load in self.cells[name].loads() if len(found) == 1 else ():
                sides.setdefault(load.buffer.name, set()).update(found)
        return {name for name, found in sides.items() if len(found) > 1}

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

    def _is_as_large(self, region: Region) -> bool:
        """Whether they are no fewer than any such tensor: beside a bias for each pair."""
        return self._largest(region) >= max(self._boundary(region), default=0)

    def _largest(self, region: Region) -> int:
        return max((self.borders.count(n) for n in self._standing(region)), default=0)

    def _boundary(self, region: Region) -> list[int]:
        names = {
            e.buffer.name
            for n in region.members
            for e in self.cells[n].loads()
            if e.buffer.name not in region.members and e.buffer.dtype.is_float
        }
        return [count(n, self.lifter, self.hints) for n in names] + [
            self.borders.count(c.name) for c in region.roots
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
            reading = sorted(self.borders.outside(cell, closed), key=self.order.__getitem__)
            strange = [n for n in reading if n.op == "call_function" and self._ends(n, pairs)]
            if strange:
                self._refuse_node(Region(set(), {name}), strange[0], cell)

    def _ends(self, node: Node, pairs: Pairs) -> bool:
        """Whether what is known of pairs ends at a node that reads some."""
        cells = [pairs.of[c.name] for c in self.borders.cells_of(node)]
        return all(c.contraction and not c.pairs and not c.closes for c in cells)

    def _refuse_node(self, region: Region, node: Node, cell: Cell | None = None) -> None:
        """Say which node keeps scores from being fused."""
        refusal = refusal_of(node, cell, self.borders.cells_of(node))
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
