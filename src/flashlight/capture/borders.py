"""A region, and where it ends: what reads its members from outside, and what follows from its results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.fx

from flashlight.capture.pairs import Pairs, count
from flashlight.capture.reading import readers
from flashlight.lift.cells import Cell
from flashlight.lift.lift import Lifter

Node = torch.fx.Node


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


@dataclass
class Borders:
    """Where regions of one lifted graph end.

    Attributes:
        lifter: the lifted graph.
        hints: sizes of symbols at the first call.
    """

    lifter: Lifter
    hints: Mapping[str, int]

    def __post_init__(self) -> None:
        self.cells = self.lifter.cells
        self.rank = {name: i for i, name in enumerate(self.cells)}

    def roots(self, region: Region) -> list[Cell]:
        """Members that something outside reads, in order."""
        members = self.in_order(region.members)
        return [self.cells[n] for n in members if self._is_root(n, region)]

    def count(self, name: str) -> int:
        """Elements of a cell, at the first call."""
        return count(name, self.lifter, self.hints)

    def in_order(self, names: set[str]) -> list[str]:
        """Names of cells in the order in which they are computed."""
        return sorted(names, key=self.rank.__getitem__)

    def cells_of(self, node: Node) -> list[Cell]:
        """Cells that compute an FX node; none where it has no rule."""
        return self.lifter.made.get(node, [])

    def readers(self, cell: Cell) -> set[Node]:
        """FX nodes that read a cell, through views."""
        return readers(cell, self.lifter)

    def outside(self, cell: Cell, members: set[str]) -> set[Node]:
        """Readers of a cell that are not in the region."""
        return {n for n in self.readers(cell) if not self._is_inside(n, cell, members)}

    def _is_inside(self, node: Node, cell: Cell, members: set[str]) -> bool:
        """Whether a reader's own cells that read `cell` (or a copy of it) are all members."""
        made = self.cells_of(node)
        reading = [c for c in made if any(e.buffer.name == cell.name for e in c.loads())]
        return bool(made) and all(c.name in members for c in (reading or made))

    def _is_root(self, name: str, region: Region) -> bool:
        if name not in region.closers | self.derived(region):
            return False
        outside = self.outside(self.cells[name], region.members)
        is_pair = name in region.paired
        return bool(outside) and (not is_pair or any(n.op == "output" for n in outside))

    def read_by(self, region: Region) -> set[str]:
        """Names of what members read and are not: cells that are computed elsewhere, and leaves of the graph."""
        read = {load.buffer.name for n in region.members for load in self.cells[n].loads()}
        return read - region.members

    def derived(self, region: Region) -> set[str]:
        """Members that are computed from a closer: everything else is absorbed, and also computed outside if read there."""
        found = set(region.closers)
        for name in self.in_order(region.members):
            if any(e.buffer.name in found for e in self.cells[name].loads()):
                found.add(name)
        return found

    def results(self, region: Region) -> set[str]:
        """Members that follow from closers and are no pairs."""
        return self.derived(region) - region.paired
