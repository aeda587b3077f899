"""Every key masked by a fill: (s - max) - log(sum) became -max - log(sum) + s, in which the logarithm was lost; twice the mean."""

from __future__ import annotations

from tests.fuzz.judge import quick

PROGRAM = """
import torch

DTYPES = ["float32"]
DYNAMIC = False


def make(device, dtype, scale, gen):
    return tuple(torch.randn(1, 1, 2, 1, generator=gen, dtype=torch.float64).to(dtype) for _ in range(3))


def fn(q, k, v):
    i = torch.arange(2)
    s = (q @ k.mT).masked_fill(i[:, None] + 2 > i, torch.finfo(q.dtype).min)
    return s.log_softmax(-1).exp() @ v
"""


def test_values() -> None:
    assert quick(PROGRAM).failure == ""
