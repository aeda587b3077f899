"""Column sums read what another kernel summed: a rounded reference stayed in it, 1e-4 for scores of a thousand."""

from __future__ import annotations

from tests.fuzz.judge import kernels

PROGRAM = """
import torch

DTYPES = ["float32"]
DYNAMIC = False


def make(device, dtype, scale, gen):
    q, k, v = (torch.randn(1, 2, n, 16, generator=gen, dtype=torch.float64).to(dtype) for n in (50, 70, 70))
    return q * 300, k, v


def fn(q, k, v):
    p = (q @ k.mT).softmax(-1)
    return p @ v, p.sum(-2), p.amax(-2)
"""


def test_values() -> None:
    verdict = kernels(PROGRAM)
    assert verdict.failure == ""
    assert verdict.is_fused
