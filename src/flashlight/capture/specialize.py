"""Sizes that kernels are compiled for even under dynamic shapes: features, which lie whole in a tile.

A guard fixes each such symbol at its first value, as a user would expect of head dimensions; lengths, batches and heads stay free.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.fx
from torch._inductor.virtualized import V
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from flashlight.capture.borders import Region
from flashlight.capture.pairs import Pairs
from flashlight.capture.regions import Finder
from flashlight.ir.exprs import Dim, Size
from flashlight.ir.visit import walk
from flashlight.lift.cells import Cell, dims_of_load


def features_of(finder: Finder, regions: Iterable[Region]) -> set[str]:
    """Names of symbols in the sizes of features: what scores are sums over, and what values have beside the pairs.

    A size that is made of a length, as that of the chunks into which one is cut, is none: it would fix the length.
    """
    whole: set[str] = set()
    parts: set[str] = set()
    lengths: set[str] = set()
    if not finder.hints:  # no symbols
        return whole
    pairs: Pairs | None = None
    for region in regions:
        features: set[Dim] = set()
        rows: set[Dim] = set()
        for name in region.paired:
            nest = finder.cells[name].nest
            features |= set(nest.reduced)
            rows |= set(nest.parallel)
        for name in region.closers:
            pairs = pairs or Pairs(finder.lifter, finder.hints, weights=True)
            cell = finder.cells[name]
            values = set(_value_dims(cell, region)) if pairs.of[name].contraction else set()
            features |= values
            rows |= set(cell.nest.parallel) - values
        for dim in features:
            (whole if isinstance(dim.extent, Size) else parts).update(_symbols(dim, finder))
        lengths |= {s for d in rows for s in _symbols(d, finder)}
    return whole | parts - lengths


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
    """Fix symbols at their first values, by guards. Returns whether any was.

    Not where nothing would check them, in a package compiled ahead of time, nor what the user has marked as dynamic.
    """
    if V.aot_compilation:
        return False
    done = False
    for node in graph.nodes:
        if node.op != "placeholder":
            continue
        val = node.meta.get("val")
        sizes = [val] if isinstance(val, torch.SymInt) else getattr(val, "shape", ())
        for size in sizes:
            if not isinstance(size, torch.SymInt) or str(size.node.expr) not in names:
                continue
            if str(size.node.expr) not in _marked(size.node.shape_env):
                int(size)  # guards
                done = True
    return done


def _marked(env: ShapeEnv) -> set[str]:
    """Names of symbols that a call of `mark_dynamic` asks to leave free; a guard on one is an error."""
    return {
        str(size.node.expr)
        for fake in env.tracked_fakes or ()
        for size, constraint in zip(
            getattr(fake.fake, "shape", ()),
            getattr(fake.symbolic_context, "constraint_sizes", None) or (),
            strict=False,
        )
        if isinstance(size, torch.SymInt) and constraint is not None and not constraint.warn_only
    }
