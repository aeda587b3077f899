"""In which order of memory a region's inputs are computed: that in which its tiles of columns are read best.

Coordinates of points are a small axis whose positions are fetched one after the other, each for a tile of columns. Were that axis
innermost, such a tile would touch a line of memory for every column and take one number of it, time and again. What the graph
computes element by element anyway costs no more in another order; other tensors stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.fx

from flashlight.codegen.blocks import Fetch, Kernel, Point, Span, walk

Order = tuple[int, ...]
"""Axes of a tensor from the outermost to the innermost."""


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
