"""Both halves of a length are reshaped under dynamic shapes: that says nothing about whether the length is even."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.support import oracle


def halves(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s, half = q @ k.mT, q.shape[1] // 2
    return torch.cat([s[:, :half].softmax(-1) @ v, (s[:, half:] * 2).softmax(-1) @ v], 1)


def test_lengths_change_from_even_to_odd() -> None:
    gen = torch.Generator().manual_seed(0)
    compiled = torch.compile(halves, backend="flashlight", dynamic=True)
    k, v = torch.randn(2, 50, 8, generator=gen), torch.randn(2, 50, 8, generator=gen)
    for length in (40, 41):
        q = torch.randn(2, length, 8, generator=gen)
        oracle.check(halves, compiled, [q, k, v])
