"""Sizes that kernels are compiled for even under dynamic shapes: features, which lie whole in a tile.

A guard fixes each such symbol at its first value, as a user would expect of head dimensions; lengths, batches and heads stay free.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.fx

from flashlight.capture.pairs import Pairs
from flashlight.capture.regions import Finder, Region
from flashlight.ir.exprs import Dim, Size
from flashlight.ir.visit import walk
from flashlight.lift.cells import Cell, dims_of_load


def features_of(finder: Finder, regions: Iterable[Region]) -> set[str]:
    """Names of symbols in the sizes of features: what scores are sums over, and what values have beside the pairs."""
    found: set[str] = set()
    if not finder.hints:  # no symbols
        return found
    pairs: Pairs | None = None
    for region in regions:
        dims: set[Dim] = set()
        for name in region.paired:
            dims |= set(finder.cells[name].nest.reduced)
        for name in region.closers:
            pairs = pairs or Pairs(finder.lifter, finder.hints, weights=True)
            if pairs.of[name].contraction:
                dims |= set(_value_dims(finder.cells[name], region))
        found |= {s for d in dims for s in _symbols(d, finder)}
    return found


def _value_dims(cell: Cell, region: Region) -> Iterator[Dim]:
    """Dims of a product with pairs that the pairs do not have."""
    of_pairs: set[Dim] = set()
    for load in cell.loads():
        if load.buffer.name in region.paired:
            of_pairs |= dims_of_load(load)
    return (d for d in cell.nest.parallel if d not in of_pairs)


def _symbols(dim: Dim, finder: Finder) -> Iterator[str]:
    """Symbols of the graph in a size; those that lifting made are spelled out."""
    meaning = {str(s): m for s, m in finder.lifter.sizes.meaning.items()}
    for node in walk(dim.extent):
        if isinstance(node, Size):
            whole = meaning.get(node.name)
            if whole is None:
                yield node.name
            else:
                yield from (str(s) for s in whole.free_symbols)


def specialize(graph: torch.fx.Graph, names: set[str]) -> bool:
    """Fix symbols at their first values, by guards. Returns whether any was."""
    done = False
    for node in graph.nodes:
        if node.op != "placeholder":
            continue
        val = node.meta.get("val")
        sizes = [val] if isinstance(val, torch.SymInt) else getattr(val, "shape", ())
        for size in sizes:
            if isinstance(size, torch.SymInt) and str(size.node.expr) in names:
                int(size)  # guards
                done = True
    return done
