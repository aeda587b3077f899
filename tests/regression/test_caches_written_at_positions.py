"""A rule that gives up, as that for several rows written into a cache, leaves none of its steps under the node's name."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import flashlight
from tests.support import oracle

HEADS, ROOM, WIDTH = 2, 20, 8


def steps(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, at: Tensor) -> Tensor:
    keys, values = keys.index_copy(1, at, k), values.index_copy(1, at, v)
    s = q @ keys.transpose(-1, -2)
    s = s.masked_fill(torch.arange(ROOM) > at[:, None], -torch.inf)
    return s.softmax(-1) @ values


@pytest.mark.parametrize("count", [1, 3])
def test_attention_to_the_cache_is_one_kernel(count: int) -> None:
    gen = torch.Generator().manual_seed(0)
    new = [torch.randn(HEADS, count, WIDTH, generator=gen) for _ in range(3)]
    cache = [torch.randn(HEADS, ROOM, WIDTH, generator=gen) for _ in range(2)]
    args = [*new, *cache, torch.arange(5, 5 + count)]
    with torch.no_grad():
        report = flashlight.explain(steps, *args)
        torch._dynamo.reset()
        oracle.check(steps, torch.compile(steps, backend="flashlight"), args)
    assert len(report.kernels) == 1
    assert not report.refusals
