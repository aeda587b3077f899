"""A softmax over queries of which there is one: exp(s - s) was 0 where a mask makes s -inf, whose keys were left out, and is NaN."""

from __future__ import annotations

from tests.fuzz.judge import kernels

PROGRAM = """
import torch

DTYPES = ["float32"]
DYNAMIC = False


def make(device, dtype, scale, gen):
    q, k, v = (torch.randn(1, 2, n, 8, generator=gen, dtype=torch.float64).to(dtype) for n in (1, 40, 40))
    return q, k, v


def fn(q, k, v):
    s = (q @ k.mT).masked_fill(torch.arange(k.shape[-2]) > 20, -torch.inf)
    return s.softmax(-2) @ v, s.logsumexp(-1)
"""


def test_values() -> None:
    verdict = kernels(PROGRAM)
    assert verdict.failure == ""
    assert verdict.is_fused
