"""Queries and keys that a table of positions turns are features: their product makes the scores, it does not end them."""

from __future__ import annotations

import torch
from torch import Tensor

import flashlight
from tests.support import oracle

HEADS, SIZE, WIDTH = 2, 36, 32


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


def attention(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, rates: Tensor) -> Tensor:
    angles = positions[:, None] * rates
    cos, sin = angles.cos(), angles.sin()
    return (turned(q, cos, sin) @ turned(k, cos, sin).mT).softmax(-1) @ v


def test_attention_is_one_kernel() -> None:
    gen = torch.Generator().manual_seed(0)
    args = [torch.randn(HEADS, SIZE, WIDTH, generator=gen) for _ in range(3)]
    args += [torch.arange(SIZE).float(), torch.rand(WIDTH, generator=gen)]
    with torch.no_grad():
        report = flashlight.explain(attention, *args)
        torch._dynamo.reset()
        oracle.check(attention, torch.compile(attention, backend="flashlight"), args)
    assert len(report.kernels) == 1
    assert not report.materialized
