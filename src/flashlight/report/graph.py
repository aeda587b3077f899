"""From compiled FX graphs to a picture: our kernels, products and other heavy operations as boxes, all the rest as arrows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from flashlight.report.materialized import CONTRACTIONS, VIEWS, op_name
from flashlight.report.picture import Box, Kind, Picture


def joined(pictures: Sequence[Picture]) -> Picture:
    """All pictures as one."""
    return Picture(
        tuple(box for p in pictures for box in p.boxes),
        tuple(arrow for p in pictures for arrow in p.arrows),
    )


def draw(graph: fx.Graph, prefix: str = "") -> Picture:
    """The picture of one graph; `prefix` stands before every name."""
    boxes: list[Box] = []
    arrows: dict[tuple[str, str], None] = {}
    sources: dict[fx.Node, tuple[str, ...]] = {}
    count = 0
    for node in graph.nodes:
        inputs = tuple(dict.fromkeys(s for x in node.all_input_nodes for s in sources.get(x, ())))
        kind = _kind(node)
        if kind is None or (kind == "input" and not node.users):
            sources[node] = inputs
            continue
        if kind == "other" and len(inputs) == 1 and _joins(node, inputs[0], boxes):
            sources[node] = inputs
            continue
        name = prefix + node.name
        count += kind == "fused"
        boxes.append(Box(name, kind, _label(node, kind, count), _detail(node)))
        arrows.update(((source, name), None) for source in inputs)
        sources[node] = (name,)
    return Picture(tuple(boxes), tuple(arrows))


def _kind(node: fx.Node) -> Kind | None:
    match node.op:
        case "placeholder":
            return "input"
        case "output":
            return "output"
        case "call_function":
            name = op_name(node)
            if getattr(node.target, "namespace", "") == "flashlight":
                return "fused"
            if name in CONTRACTIONS:
                return "product"
            return None if name in VIEWS or not node.all_input_nodes else "other"
        case _:
            return None


def _joins(node: fx.Node, source: str, boxes: list[Box]) -> bool:
    """Whether an operation with one source vanishes in the box before it, which Inductor runs as one loop with it."""
    box = next(b for b in boxes if b.name == source)
    return box.kind == "other"


def _label(node: fx.Node, kind: Kind, count: int) -> str:
    match kind:
        case "fused":
            return f"fused kernel {count}"
        case "output":
            return "output"
        case "input":
            return str(node.target)
        case _:
            return op_name(node)


def _detail(node: fx.Node) -> str:
    value = node.meta.get("val")
    values = value if isinstance(value, (list, tuple)) else [value]
    return ", ".join(
        f"{str(v.dtype).removeprefix('torch.')}[{', '.join(str(s) for s in v.shape)}]"
        for v in values
        if isinstance(v, torch.Tensor)
    )
