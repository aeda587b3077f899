"""What goes into a region beside its core: what is computed from results row by row, and what is cheaper to compute than to read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
import torch.fx

from flashlight.capture.borders import Borders, Region
from flashlight.capture.pairs import Pairs, is_cheap, join_of, unpacks
from flashlight.capture.paths import Paths
from flashlight.capture.reading import (
    Sides,
    is_even_over,
    is_lookup,
    is_plain,
    sides_through,
)
from flashlight.ir.exprs import Dim
from flashlight.ir.monoids import ALL, ANY
from flashlight.ir.visit import free_dims
from flashlight.lift.cells import Cell
from flashlight.rewrite.unions import has_small_part

Node = torch.fx.Node

EPILOGUE_DEPTH = 16


@dataclass
class Growth:
    """Grows the regions of one lifted graph.

    Attributes:
        borders: where regions end.
        paths: what depends on what.
        shared_biases: biases that several attentions read, with what they are made of and a region that reads them.
    """

    borders: Borders
    paths: Paths
    shared_biases: list[tuple[Cell, set[str], Region]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lifter, self.hints = self.borders.lifter, self.borders.hints
        self.cells = self.borders.cells
        self.makers: dict[str, list[Node]] = {}
        for node, cells in self.lifter.made.items():
            for cell in cells:
                self.makers.setdefault(cell.name, []).append(node)

    def grow(self, region: Region, pairs: Pairs) -> None:
        """Take in what belongs to a region, and say what is read of it."""
        self._finish_ops(region)
        if region.less < 1:
            self._extend(region)
        self._absorb(region, pairs)
        region.roots = self.borders.roots(region)

    def biases(self, taken: list[Region], pairs: Pairs) -> Iterator[Region]:
        """Regions of their own for biases that several attentions read, which features would be stored for."""
        held = {name for r in taken for name in r.members}
        for cell, made, region in self.shared_biases:
            if region in taken and cell.name not in held:
                bias = Region({cell.name}, set(), set(made), is_weak=True, pairs=pairs, less=2)
                self._absorb(bias, pairs)
                bias.roots = self.borders.roots(bias)
                held |= bias.members
                yield bias

    def _finish_ops(self, region: Region) -> None:
        """Take the rest of an op of which some step is a member and has no tensor of its own, as the sum inside a mean."""
        work = [n for n in self.borders.in_order(region.members) if not self.cells[n].tensors]
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
            derived = self.borders.derived(region) - region.paired
            reached = self._descendants(region)
            for name in self.borders.in_order(derived):
                outside = self.borders.outside(self.cells[name], region.members)
                following = [c for n in outside for c in self.borders.cells_of(n)]
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
        size = self.borders.count(cell.name)
        for load in cell.loads():
            name = load.buffer.name
            if name in derived:
                only = self.borders.outside(self.cells[name], region.members) <= set(cell.tensors)
                if not only or not is_plain(load, cell):
                    return False
                largest = max(largest, self.borders.count(name))
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
            self.paths.set_of(
                t for n in self.borders.derived(region) for t in self.cells[n].tensors
            )
        )

    def _absorb(self, region: Region, pairs: Pairs) -> None:
        """Take what members read and what is cheaper to compute than to read, back to the frontier."""
        sides = {
            name: [(p.rows, p.columns) for p in pairs.of[name].pairs] for name in region.paired
        }
        late = (
            self.borders.derived(region) - region.paired
        )  # results, and what is computed only for them
        late = {name for name in late if not pairs.of[name].contraction}
        even: set[str] = set()  # what is one number for all pairs of a head
        work = self.borders.in_order(region.members)
        while work:
            reader = self.cells[work.pop()]
            for load in reader.loads():
                name = load.buffer.name
                if name in region.members or name not in self.cells:
                    continue
                cell = self.cells[name]
                along = sides.get(reader.name, [])
                inner = sides_through(load, reader, along)
                is_late = reader.name in late and self._is_only_for(cell, reader, region)
                is_even = reader.name in even or is_even_over(load, reader, along)
                is_absorbed = is_late or self._is_absorbed(cell, reader, inner, region)
                if not is_absorbed and not (is_even and self._is_spared(cell, region)):
                    continue
                region.members.add(name)
                if is_late:
                    late.add(name)
                if is_even:
                    even.add(name)
                if inner:
                    sides[name] = inner
                work.append(name)

    def _is_only_for(self, cell: Cell, reader: Cell, region: Region) -> bool:
        """Whether a pointwise cell is read by the region's last steps alone, and makes no more elements than they have."""
        return (
            cell.is_pointwise
            and not self._ends_product(cell)
            and self.borders.count(cell.name) <= self.borders.count(reader.name)
            and not self.borders.outside(cell, region.members)
        )

    def _is_spared(self, cell: Cell, region: Region) -> bool:
        """Whether what is one number for all pairs of a head, as a temperature is, need not be a kernel of its own: it takes longer
        to start one than each program instance takes to compute its number.
        """
        return (
            region.less <= 1
            and cell.is_pointwise
            and not self._ends_reduction(cell)
            and not self.borders.outside(cell, region.members)
        )

    def _is_absorbed(self, cell: Cell, reader: Cell, sides: Sides, region: Region) -> bool:
        pairs = region.pairs
        assert pairs is not None
        is_paired = bool(sides)
        if cell.is_index or not cell.tensors:  # positions, and steps inside one op's rule
            return True
        if pairs.of[cell.name].contraction or self._ends_product(cell):
            is_scores = self._makes_scores(cell, sides, region)
            return is_scores or self._is_bias_of_features(cell, sides, region)
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

    def _makes_scores(self, cell: Cell, sides: Sides, region: Region) -> bool:
        """Whether a product of rows with columns adds to each pair of these, and to nothing else: stored, it is as large as the pairs.

        One operand may be a weight, as a table of positions is. What is the same for several samples or heads is stored, once.
        """
        assert region.pairs is not None
        of = region.pairs.of
        scores = [n for n in region.paired if of[n].origin and of[n].contraction]
        most = max(map(self.borders.count, scores), default=0)
        is_one_each = self.borders.count(cell.name) >= most
        is_projected = region.is_weak and bool(
            scores
        )  # and not the sums or distances of two numbers
        if is_projected or region.less > 1 or not is_one_each or self._is_shared(cell, region):
            return False
        inner = [(step, s) for step, s in self._products(cell, sides) if s]
        return bool(inner) and all(region.pairs.is_product_of(*args) for args in inner)

    def _products(self, cell: Cell, sides: Sides) -> Iterator[tuple[Cell, Sides]]:
        """The product that is a cell, or a step of it, with the sides of the pairs in its dims."""
        if cell.contraction:
            yield cell, sides
        for load in cell.loads():
            step = self.cells.get(load.buffer.name)
            if step is not None and not step.tensors and step.contraction:
                yield step, sides_through(load, cell, sides)

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
        given |= {name for name in made if self.borders.outside(self.cells[name], known)}
        size = self.borders.count(cell.name)
        if made <= given or any(self.borders.count(n) > size for n in given):
            return False
        if not self._is_shared(cell, region):
            return True
        if any(self.borders.count(n) > size for n in made - given):
            self.shared_biases.append((cell, made, region))
        return False

    def _is_shared(self, cell: Cell, region: Region) -> bool:
        """Whether something outside of a region reads a member, or what members make of it alone."""
        derived = self.borders.derived(region)
        work, seen = [cell], {cell.name}
        while work:
            at = work.pop()
            if self.borders.outside(at, region.members):
                return True
            following = [c for n in self.borders.readers(at) for c in self.borders.cells_of(n)]
            fresh = [c for c in following if c.name not in derived | seen | region.paired]
            seen |= {c.name for c in fresh}
            work += fresh
        return False

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
        for node in self.borders.outside(cell, region.members):
            others = self.borders.cells_of(node)
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
