"""What lifting a graph leaves: a cell for each nest, and which FX tensor it is."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch.fx

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import Buffer, Dim, Expr, Index, Load
from flashlight.ir.monoids import Monoid
from flashlight.ir.nests import Nest, Origin
from flashlight.ir.visit import free_dims, loads
from flashlight.lift.extents import Extent
from flashlight.lift.values import Factors


@dataclass(eq=False)
class Cell:
    """One nest and the FX tensors that have its values.

    Attributes:
        nest: dims are named by position only (p0, p1, ... and r0, ...): equal nests of a graph are one cell.
        shape: of the FX tensor; its size-1 axes have no dims, an axis that is known to be a product may have several.
        axes: for each FX axis, the factors that are dims of the nest, in order.
        tensors: FX nodes that are this tensor; empty for a step inside one op's rule.
        target: the op, as people write it.
        contraction: whether it is a sum of products of two tensors.
        is_index: whether nothing is loaded but positions.
    """

    nest: Nest
    shape: tuple[Extent, ...]
    axes: tuple[Factors, ...]
    target: str
    contraction: bool = False
    is_index: bool = False
    tensors: list[torch.fx.Node] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.nest.name

    @property
    def buffer(self) -> Buffer:
        return self.nest.buffer

    @property
    def dtype(self) -> DType:
        return self.nest.dtype

    @property
    def is_pointwise(self) -> bool:
        return self.nest.monoid is None

    @cached_property
    def _loads(self) -> tuple[Load, ...]:
        return loads(self.nest.body)

    def loads(self) -> tuple[Load, ...]:
        return self._loads

    def extents(self) -> tuple[Extent, ...]:
        """Sizes of the nest's parallel dims."""
        return tuple(e for factors in self.axes for e in factors)


@dataclass(eq=False)
class Leaf:
    """An FX tensor that is not computed by a nest: a placeholder, or the result of an op without a rule."""

    buffer: Buffer
    node: torch.fx.Node
    shape: tuple[Extent, ...]
    why: str = ""


def dims_of_load(load: Load) -> frozenset[Dim]:
    found: frozenset[Dim] = frozenset()
    for index in load.index:
        found |= free_dims(index)
    return found


def dims_beside(load: Load, axes: Container[int]) -> frozenset[Dim]:
    """Dims of a load at the other axes."""
    beside = (free_dims(i) for n, i in enumerate(load.index) if n not in axes)
    return frozenset[Dim]().union(*beside)


def key_of(
    parallel: tuple[Dim, ...],
    reduced: tuple[Dim, ...],
    dtype: DType,
    monoid: Monoid | None,
    body: Expr,
) -> tuple[object, ...]:
    """Two nests with one key have the same values."""
    return parallel, reduced, dtype, monoid, body


def origin_of(node: torch.fx.Node) -> Origin:
    return Origin(node.name, user_line(node))


def user_line(node: torch.fx.Node) -> str:
    """file:line of the user's code that made a node, or nothing."""
    trace = node.meta.get("stack_trace") or ""
    places = [line.strip() for line in trace.splitlines() if line.strip().startswith("File ")]
    if not places:
        return ""
    parts = places[-1].split(", ")
    path = parts[0].removeprefix("File ").strip('"')
    return f"{path}:{parts[1].removeprefix('line ')}" if len(parts) > 1 else path


def indices(dims: tuple[Dim, ...]) -> Iterator[Index]:
    return (Index(d) for d in dims)
