"""Write out products with matrices of a few rows and columns, as rotations of points have them.

A matrix unit computes at least 8 by 16 numbers at once and would mostly multiply padding, and a call of a library is a kernel that
nothing else joins: invariant points at 256 residues spend a third of their time there. As sums of products, Inductor computes them
with what comes before and after.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.fx

from flashlight.capture.values import fake_value

aten = torch.ops.aten
prims = torch.ops.prims
Node = torch.fx.Node

FEW = 4
"""Rows and columns of the largest matrix that counts as one of a frame: with homogeneous coordinates, or a quaternion's."""

_PRODUCTS = (aten.bmm.default, aten.mm.default)


def write_out_frames(graph: torch.fx.Graph) -> int:
    """Replace products of matrices one of which has at most `FEW` rows and columns, in place; returns how many.

    They are summed in 32 bits and rounded once where their operands have 16, as a library does.
    """
    found = [n for n in graph.nodes if n.target in _PRODUCTS and _is_of_frames(n)]
    for node in found:
        with graph.inserting_before(node):
            written = _written_out(graph, node)
        written.meta = {**node.meta, "val": written.meta["val"]}
        node.replace_all_uses_with(written)
        graph.erase_node(node)
    return len(found)


def _is_of_frames(node: Node) -> bool:
    a, b = (x.meta["val"] for x in _operands(node))
    (m, k), n = a.shape[-2:], b.shape[-1]
    few = [isinstance(x, int) and 1 < x <= FEW for x in (m, k, n)]
    return few[1] and (few[0] or few[2]) and a.dtype.is_floating_point


def _operands(node: Node) -> tuple[Node, Node]:
    return cast(tuple[Node, Node], node.args)


def _written_out(graph: torch.fx.Graph, node: Node) -> Node:
    def call(target: Any, *args: Any) -> Node:
        new = graph.call_function(target, args)
        new.meta["val"] = fake_value(new)
        return new

    a, b = _operands(node)
    dtype = node.meta["val"].dtype
    wide = torch.promote_types(dtype, torch.float32)
    if wide is not dtype:
        a, b = (call(prims.convert_element_type.default, x, wide) for x in (a, b))
    rows = call(aten.unsqueeze.default, a, -1)  # [..., m, k, 1]
    cols = call(aten.unsqueeze.default, b, -3)  # [..., 1, k, n]
    total = call(aten.sum.dim_IntList, call(aten.mul.Tensor, rows, cols), [-2])
    return total if wide is dtype else call(prims.convert_element_type.default, total, dtype)
