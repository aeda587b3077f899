"""Products of two types raise as in eager, also where torch's own tracing would let them pass."""

from __future__ import annotations

import pytest
import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensorMode

from flashlight.capture.normalize import reject_mixed_products
from flashlight.errors import ProgramError


def product(left: torch.dtype, right: torch.dtype) -> torch.fx.Graph:
    graph = torch.fx.Graph()
    with FakeTensorMode():
        values = [torch.empty(2, 4, 4, dtype=dtype) for dtype in (left, right)]
    nodes = []
    for name, value in zip("ab", values, strict=True):
        nodes.append(graph.placeholder(name))
        nodes[-1].meta["val"] = value
    graph.output(graph.call_function(torch.ops.aten.bmm.default, tuple(nodes)))
    return graph


def test_two_types_raise() -> None:
    with pytest.raises(ProgramError, match="same dtype"):
        reject_mixed_products(product(torch.float32, torch.float16))


def test_one_type_passes() -> None:
    reject_mixed_products(product(torch.float16, torch.float16))
