"""Keys whose weight a mask multiplies by 0 were left out though the program says that the weight is -inf: 0 where eager has NaN."""

from __future__ import annotations

import pytest

from tests.fuzz.judge import kernels

PROGRAM = """
import torch

DTYPES = ["float32"]
DYNAMIC = False


def make(device, dtype, scale, gen):
    q, k, v = (torch.randn(1, 2, 40, 8, generator=gen, dtype=torch.float64).to(dtype) for _ in range(3))
    return q, k, v, torch.tensor([30])


def fn(q, k, v, length):
    i = torch.arange(q.shape[-2])
    s = (q @ k.mT).masked_fill(i[:, None] - i < -5, FILL)
    return s * (i < length[:, None, None, None]) @ v
"""


@pytest.mark.parametrize("fill", ["-torch.inf", "-3.0"])
def test_values(fill: str) -> None:
    verdict = kernels(PROGRAM.replace("FILL", fill))
    assert verdict.failure == ""
    assert verdict.is_fused
