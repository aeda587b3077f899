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


# A key beside the others: the reference of the sum was rounded, and what was multiplied with it was relative to one that is not.
NULL_KEY = """
import torch

DTYPES = ["float32"]
DYNAMIC = False
CALLS = [{}] * 8


def make(device, dtype, scale, gen):
    q, k, v = (torch.randn(1, 6, 3, 2, generator=gen, dtype=torch.float64).to(dtype) for _ in range(3))
    return q * 60, k, v, torch.randn(1, 6, 1, 2, generator=gen, dtype=torch.float64).to(dtype)


def fn(q, k, v, null):
    p = (q @ torch.cat([null, k], 2).mT * 2**-0.5).softmax(-1)
    return p[..., 1:] @ v, p.sum(-2)
"""


def test_values_beside_a_null_key() -> None:
    verdict = kernels(NULL_KEY)
    assert verdict.failure == ""
    assert verdict.is_fused


def test_values() -> None:
    verdict = kernels(PROGRAM)
    assert verdict.failure == ""
    assert verdict.is_fused
