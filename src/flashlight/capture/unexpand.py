"""Compute before expanding: what is the same along an axis is computed once, as a broadcasting program would have written it.

Libraries expand first and compute then (a cosine similarity of all pairs takes the norm of each row once for each partner), which
hides that a value depends on one row alone.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from flashlight.capture.values import fake_value

aten = torch.ops.aten
Node = torch.fx.Node

_REDUCTIONS = frozenset((aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default))


def compute_before_expanding(graph: torch.fx.Graph) -> int:
    """Let ops read the tensors that were expanded for them, in place; returns how many ops became smaller or read less."""
    narrow: dict[Node, Node] = {}
    count = 0
    for node in list(graph.nodes):
        if node.op != "call_function" or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        if node.target is aten.expand.default:
            source = node.args[0]
            if source.meta["val"].dim() > 0:  # a scalar has another part in the promotion of types
                narrow[node] = narrow.get(source, source)
        elif node.target is aten.clone.default:
            (source,) = node.all_input_nodes
            if source in narrow:
                narrow[node] = narrow[source]
        elif any(a in narrow for a in node.all_input_nodes):
            count += _narrowed(graph, node, narrow)
    if count:
        graph.eliminate_dead_code()
    return count


def _narrowed(graph: torch.fx.Graph, node: Node, narrow: dict[Node, Node]) -> bool:
    """Make a smaller version of a node, or let it broadcast."""
    if node.target in _REDUCTIONS:
        if not _reduces_apart(node, narrow[node.all_input_nodes[0]]):
            return False
    elif not _is_elementwise(node.target):
        return False
    operands = [narrow.get(a, a) for a in node.all_input_nodes]
    if node.target not in _REDUCTIONS and not _is_smaller(operands, node):
        for old in node.all_input_nodes:
            if old in narrow:
                node.replace_input_with(old, narrow[old])
        return True
    with graph.inserting_before(node):
        new = graph.node_copy(node, lambda a: narrow.get(a, a))
    new.meta["val"] = fake_value(new)
    narrow[node] = new
    return True


def _is_elementwise(target: Any) -> bool:
    tags = getattr(target, "tags", ())
    return torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags


def _is_smaller(operands: list[Node], node: Node) -> bool:
    """Whether there is an axis along which a result varies by expansion only."""
    shapes = [x.meta["val"].shape for x in operands if isinstance(x.meta.get("val"), torch.Tensor)]
    wide = node.meta["val"].shape
    return any(
        not _is_one(n) and all(axis > len(s) or _is_one(s[-axis]) for s in shapes)
        for axis, n in enumerate(reversed(wide), 1)
    )


def _reduces_apart(node: Node, source: Node) -> bool:
    """Whether a reduction over listed axes leaves alone those that were expanded."""
    wide, small = (n.meta["val"].shape for n in (node.all_input_nodes[0], source))
    dims = node.args[1] if len(node.args) > 1 else None
    if len(wide) != len(small) or not isinstance(dims, list | tuple) or not dims:
        return False
    return all(_is_one(wide[d]) or not _is_one(small[d]) for d in dims)


def _is_one(n: Any) -> bool:
    return isinstance(n, int) and n == 1
