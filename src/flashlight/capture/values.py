"""What nodes give, on fake tensors."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor

Node = torch.fx.Node


def fake_value(node: Node) -> Any:
    """The fake result of a node of which some operand is a tensor."""

    def fake(a: Any) -> Any:
        return a.meta["val"] if isinstance(a, Node) else a

    args, kwargs = torch.fx.node.map_aggregate((node.args, node.kwargs), fake)
    target: Any = node.target
    with next(v.fake_mode for v in map(fake, node.all_input_nodes) if isinstance(v, FakeTensor)):
        return target(*args, **kwargs)
