"""A difference of bytes wraps around: no term of it may go to the other side of a comparison."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.support import oracle


def test_a_mask_of_differences_of_bytes() -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor, t: Tensor) -> Tensor:
        ahead = t[:, None] - t > 128
        return (q @ k.T).masked_fill(ahead, -1e4).softmax(-1) @ v

    gen = torch.Generator().manual_seed(0)
    qkv = [torch.randn(40, 8, generator=gen) for _ in range(3)]
    times = torch.randint(0, 256, (40,), generator=gen).byte()
    with torch.no_grad():
        oracle.check(fn, torch.compile(fn, backend="flashlight"), [*qkv, times])
