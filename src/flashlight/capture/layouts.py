"""In which order of memory a region's inputs are handed to it: that in which its tiles are read best.

Coordinates of points are a small axis whose positions are fetched one after the other, each for a tile of columns. Were that axis
innermost, such a tile would touch a line of memory for every column and take one number of it, time and again. What the graph
computes element by element anyway costs no more in another order. Other tensors stay as they are, unless a copy is small and
spares much more: a bias of pairs with the heads innermost, of which each tile reads one head.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.fx

from flashlight.codegen.blocks import Fetch, Gather, Kernel, Point, Span, walk
from flashlight.rewrite.footprint import fetched_loads
from flashlight.rewrite.tile import times_fetched
from flashlight.runtime.gpu import Step

Order = tuple[int, ...]
"""Axes of a tensor from the outermost to the innermost."""

SECTOR = 32
"""Bytes that a device moves at least."""

SMALL = 16 << 20
"""Bytes up to which any tensor may be copied: far less than a second-level cache holds, and little beside a program's tensors."""

SLIGHT = 8
"""A larger one may be, if another is larger still by this factor."""

SPARED = 8 << 20
"""Bytes that a copy must spare: moving them takes about as long as launching a kernel."""


@dataclass(frozen=True)
class Access:
    """How the kernels of a region read one of its inputs.

    Attributes:
        order: the order of memory in which tiles of columns are read best, if that matters.
        tiles: the axes along which tiles of it lie, and how many program instances fetch each; empty where some are gathered.
    """

    order: Order | None = None
    tiles: tuple[tuple[frozenset[int], int], ...] = ()


def access_of(steps: Sequence[Step], name: str, hints: Mapping[str, int]) -> Access:
    """How kernels read a buffer, at the likely sizes."""
    tiles: list[tuple[frozenset[int], int]] = []
    for step in steps:
        found = fetches_of(step.kernel, name)
        if any(isinstance(s, Gather) for op in found for s in op.index):
            tiles.clear()
            break
        loads = [load for load in fetched_loads(step.loop) if load.buffer.name == name]
        times = max((times_fetched(load, step.schedules[0], hints) for load in loads), default=1)
        axes = (frozenset(n for n, s in enumerate(op.index) if isinstance(s, Span)) for op in found)
        tiles += [(a, times) for a in dict.fromkeys(axes)]
    return Access(wanted_order([step.kernel for step in steps], name), tuple(tiles))


def fetches_of(kernel: Kernel, name: str) -> list[Fetch]:
    """Where a block program reads a buffer."""
    return [op for op in walk(kernel.body) if isinstance(op, Fetch) and op.buffer.name == name]


def repacked(
    sizes: Sequence[int],
    strides: Sequence[int],
    itemsize: int,
    tiles: Sequence[tuple[frozenset[int], int]],
    largest: int = 0,
) -> Order | None:
    """The order of memory to which a tensor is copied before tiles of it are read, or None where it stays as it is.

    Args:
        sizes: of the tensor.
        strides: of its axes, in elements.
        itemsize: bytes of an element.
        tiles: see `Access`.
        largest: bytes of the largest tensor beside it.
    """
    axes = range(len(sizes))
    total = itemsize * math.prod(sizes)
    expanded = any(s == 0 and n > 1 for n, s in zip(sizes, strides, strict=True))
    if not total or total > max(SMALL, largest // SLIGHT) or expanded:
        return None

    def moved(strides: Sequence[int]) -> float:
        """Bytes that tiles move."""
        found = 0.0
        for tile, times in tiles:
            near = min((strides[a] for a in tile if sizes[a] > 1), default=1)
            found += total * times * min(SECTOR / itemsize, near)
        return found

    best: tuple[float, Order] | None = None
    for tile, _ in tiles:
        falling = sorted(axes, key=lambda a: (a in tile, -strides[a]))
        packed = [math.prod(sizes[b] for b in falling[falling.index(a) + 1 :]) for a in axes]
        spared = moved(strides) - moved(packed) - 2 * total
        if spared > max(SPARED, 2 * total) and (best is None or spared > best[0]):
            best = spared, tuple(falling)
    return best[1] if best is not None else None


def likely(size: int | torch.SymInt) -> int:
    """A size or stride at the first call, without a guard; 0 where it is not known, so that nothing is copied for it."""
    if isinstance(size, int):
        return size
    found = size.node.hint
    return 0 if found is None else int(found)


def wanted_order(kernels: Iterable[Kernel], name: str) -> Order | None:
    """The order of memory in which kernels read a buffer best, or None where the order of its axes will do.

    Args:
        kernels: block programs that read it.
        name: of the buffer.
    """
    found = [op for kernel in kernels for op in fetches_of(kernel, name)]
    columns = {
        n
        for op in found
        for n, s in enumerate(op.index)
        if isinstance(s, Span) and s.axis.role == "cols"
    }
    if len(found) < 2 or len(columns) != 1:
        return None
    (column,) = columns
    axes = range(len(found[0].index))
    inner = axes[column + 1 :]
    if not inner or any(not isinstance(op.index[n], Point) for op in found for n in inner):
        return None
    return (*(n for n in axes if n != column), column)


def is_elementwise(node: torch.fx.Node) -> bool:
    """Whether a tensor of the graph, or what it is a view of without repeating any of it, is computed element by element."""
    while node.op == "call_function" and node.target in _VIEWS:
        node = node.all_input_nodes[0]
    tags = getattr(node.target, "tags", ())
    return node.op == "call_function" and torch.Tag.pointwise in tags


aten = torch.ops.aten
_VIEWS = (
    aten.permute.default,
    aten.transpose.int,
    aten.t.default,
    aten.view.default,
    aten._unsafe_view.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.select.int,
    aten.slice.Tensor,
)
