"""Results that are parts of a concatenation, written where they belong in it.

Inductor lets what it computes itself be written into its place, but copies what a kernel of ours gave: two of the eleven kernels of
invariant points were such copies.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch
import torch.fx

from flashlight import trace
from flashlight.capture import lowering
from flashlight.runtime import op

aten = torch.ops.aten
Node = torch.fx.Node

_VIEWS = (
    *(aten.view.default, aten._unsafe_view.default, aten.reshape.default),
    *(aten.unsqueeze.default, aten.squeeze.dim, aten.permute.default),
)


def mark_concatenations(graph: torch.fx.Graph) -> int:
    """Have concatenations of results of ours lowered by `concatenate`, in place; returns how many."""
    found = [
        n
        for n in graph.nodes
        if n.target is aten.cat.default
        and n.meta["val"].device.type in lowering.DEVICES
        and any(_is_result(part) for part in n.args[0])
    ]
    for node in found:
        node.target = concatenate
    return len(found)


def _is_result(node: Node) -> bool:
    """Whether a node is a result of a region, or a view of all of it, that nothing else reads."""
    while node.target in _VIEWS and len(node.users) == 1:
        node = node.all_input_nodes[0]
    if len(node.users) != 1:
        return False
    if node.target is operator.getitem:
        node = node.all_input_nodes[0]
        return node.target is op.fused
    return node.target is op.fused_one


def concatenate(parts: Sequence[Any], dim: int = 0) -> Any:
    """A concatenation of tensors. Of Inductor's tensors it is its lowering, which may move results of ours into their places."""
    if isinstance(parts[0], torch.Tensor):
        return torch.cat(list(parts), dim)
    from torch._inductor.lowering import lowerings
    from torch._inductor.virtualized import V

    try:
        nodes: Any = V.graph.current_node.args[0]
        parts = [
            _movable(x, parts, dim) if _is_result(n) and nodes.count(n) == 1 else x
            for n, x in zip(nodes, parts, strict=True)
        ]
    except Exception as error:  # what this needs of Inductor is private
        trace.say(1, "parts", "results are copied: %s: %s", type(error).__name__, error)
    return lowerings[aten.cat.default](parts, dim)


concatenate._inductor_lowering_function = True  # type: ignore[attr-defined]


def _movable(part: Any, parts: Sequence[Any], dim: int) -> Any:
    """A part as a buffer whose place in memory Inductor may still choose, if it is all of a buffer that our kernels fill."""
    from torch._inductor import ir

    known = lowering.known_of()
    view = part.data
    box = view.data if isinstance(view, ir.ReinterpretView) else view
    buffer = box.data if isinstance(box, ir.StorageBox) else None
    if not isinstance(buffer, ir.ComputedBuffer) or buffer.get_name() not in known.unread:
        return part
    size = part.get_size()
    if view is not box and (view.layout.offset != 0 or not view.layout.is_contiguous()):
        return part
    if any(x.get_dtype() != part.get_dtype() for x in parts):
        return part  # it is cast on its way
    if not _has_known_strides(parts, dim) or not _is_split(size, buffer.get_size()):
        return part
    known.forget(buffer.get_name())
    buffer.data = replace(buffer.data, ranges=[0] * len(size))
    buffer.layout = ir.FlexibleLayout(view.get_device(), view.get_dtype(), size)
    return ir.TensorBox(ir.StorageBox(buffer))


def _has_known_strides(parts: Sequence[Any], dim: int) -> bool:
    """Whether the strides of a concatenation are numbers: a kernel that was launched once is not asked again for other strides."""
    sizes = [x.get_size() for x in parts]
    if len({len(s) for s in sizes}) != 1:
        return False  # an empty tensor of one axis counts for nothing
    return all(isinstance(n, int | sympy.Integer) for s in sizes for n in s[1:])


def _is_split(size: Sequence[Any], shape: Sequence[Any]) -> bool:
    """Whether a shape splits axes of a size, so that any strides can be looked at in it."""
    from torch._inductor.virtualized import V

    is_equal = V.graph.sizevars.statically_known_equals
    left = list(shape)
    for n in size:
        product = sympy.Integer(1)
        while left and not is_equal(product, n):
            product *= left.pop(0)
        if not is_equal(product, n):
            return False
    return all(is_equal(n, 1) for n in left)
