"""In which order of memory a region's inputs are handed to it: that in which its tiles are read best.

Coordinates of points are a small axis whose positions are fetched one after the other, each for a tile of columns. Were that axis
innermost, such a tile would touch a line of memory for every column and take one number of it, time and again. What the graph
computes element by element anyway costs no more in another order. Other tensors stay as they are, unless a copy is small and
spares much more: a bias of pairs with the heads innermost, of which each tile reads one head.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.fx

from flashlight.codegen.blocks import Fetch, Gather, Kernel, Point, Span, walk

Order = tuple[int, ...]
"""Axes of a tensor from the outermost to the innermost."""

SECTOR = 32
"""Bytes that a device moves at least."""

SMALL = 16 << 20
"""Bytes up to which a tensor may be copied: far less than a second-level cache holds, and little beside a program's tensors."""

SPARED = 8 << 20
"""Bytes that a copy must spare: moving them takes about as long as launching a kernel."""


@dataclass(frozen=True)
class Access:
    """How the kernels of a region read one of its inputs.

    Attributes:
        order: the order of memory in which tiles of columns are read best, if that matters.
        tiles: for each place that fetches tiles, the axes along which they lie; empty where some are gathered.
    """

    order: Order | None = None
    tiles: tuple[frozenset[int], ...] = ()


def access_of(kernels: Iterable[Kernel], name: str) -> Access:
    """How block programs read a buffer."""
    kernels = tuple(kernels)
    found = [
        op
        for kernel in kernels
        for op in walk(kernel.body)
        if isinstance(op, Fetch) and op.buffer.name == name
    ]
    tiles = tuple(
        frozenset(n for n, s in enumerate(op.index) if isinstance(s, Span)) for op in found
    )
    gathered = any(isinstance(s, Gather) for op in found for s in op.index)
    return Access(wanted_order(kernels, name), () if gathered else tiles)


def repacked(
    sizes: Sequence[int], strides: Sequence[int], itemsize: int, tiles: Sequence[frozenset[int]]
) -> Order | None:
    """The order of memory to which a tensor is copied before tiles of it are read, or None where it stays as it is.

    Args:
        sizes: of the tensor.
        strides: of its axes, in elements.
        itemsize: bytes of an element.
        tiles: see `Access`.
    """
    axes = range(len(sizes))
    total = itemsize
    for n in sizes:
        total *= n
    expanded = any(s == 0 and n > 1 for n, s in zip(sizes, strides, strict=True))
    if not total or total > SMALL or expanded or not tiles:
        return None

    def moved(strides: Sequence[int]) -> float:
        """Bytes that are moved if each tile reads the tensor once."""
        found = 0.0
        for tile in tiles:
            near = min((strides[a] for a in tile if sizes[a] > 1), default=1)
            found += total * min(SECTOR / itemsize, near)
        return found

    best: tuple[float, Order] | None = None
    for tile in dict.fromkeys(tiles):
        falling = sorted(axes, key=lambda a: (a in tile, -strides[a]))
        packed = [0] * len(sizes)
        step = 1
        for a in reversed(falling):
            packed[a] = step
            step *= sizes[a]
        spared = moved(strides) - moved(packed) - 2 * total
        if spared > max(SPARED, 2 * total) and (best is None or spared > best[0]):
            best = spared, tuple(falling)
    return best[1] if best is not None else None


def likely(size: int | torch.SymInt) -> int | None:
    """A size or stride at the first call, without a guard; None where it is not known."""
    if isinstance(size, int):
        return size
    found = size.node.hint
    return None if found is None else int(found)


def wanted_order(kernels: Iterable[Kernel], name: str) -> Order | None:
    """The order of memory in which kernels read a buffer best, or None where the order of its axes will do.

    Args:
        kernels: block programs that read it.
        name: of the buffer.
    """
    found = [
        op
        for kernel in kernels
        for op in walk(kernel.body)
        if isinstance(op, Fetch) and op.buffer.name == name
    ]
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
