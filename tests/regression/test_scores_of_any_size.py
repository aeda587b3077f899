"""Scores beyond 2^31 keep their softmax: scaled by log2(e) one by one, the difference of two equal ones would be hundreds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.support import oracle


def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    s = q @ k.T
    return s.softmax(-1) @ v, s.logsumexp(-1)


@pytest.mark.parametrize("size", [1e5, 1e18])
def test_softmax_of_large_products(size: float) -> None:
    gen = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(40, 8, generator=gen) for _ in range(3))
    compiled = torch.compile(attention, backend="flashlight")
    oracle.check(attention, compiled, [q * size, k * size, v])
