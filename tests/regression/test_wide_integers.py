"""Integers of 64 bits whose quotients, remainders and extrema are small: nothing on the way to them may lose its high bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.support import oracle

GOLDEN = 0x1E3779B97F4A7C15


@pytest.mark.parametrize(
    "keep",
    [
        lambda t: (t[:, None] * 3 - t) % 7 < 4,
        lambda t: (t[:, None] - t) // 2**36 < 1,
        lambda t: (t[:, None] - t).clamp(-1, 1) < 1,
        lambda t: ((t[:, None] - t) >> 38) < 0,
        lambda t: (t * GOLDEN >> 61) == (t * GOLDEN >> 61)[:, None],
        lambda t: (t % 251 * GOLDEN >> 61) == (t % 251 * GOLDEN >> 61)[:, None],
    ],
)
def test_a_mask_of_small_numbers_made_of_large_ones(keep: Callable[[Tensor], Tensor]) -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor, t: Tensor) -> Tensor:
        return (q @ k.T).masked_fill(~keep(t), -1e4).softmax(-1) @ v

    gen = torch.Generator().manual_seed(0)
    qkv = [torch.randn(40, 8, generator=gen) for _ in range(3)]
    times = torch.randint(2**33, 2**40, (40,), generator=gen)
    with torch.no_grad():
        oracle.check(fn, torch.compile(fn, backend="flashlight"), [*qkv, times])
