"""What is multiplied by 0 is NaN where it was no number, and what a condition leaves out is not multiplied at all. Found by fuzzing."""

from __future__ import annotations

import torch

from tests.fuzz.judge import kernels

TIMES_ZERO = """
import torch

DTYPES = ["float32"]
DYNAMIC = False


def make(device, dtype, scale, gen):
    def rand(*shape):
        return torch.randn(shape, generator=gen, dtype=torch.float64).to(dtype)

    return rand(1, 2, 9, 8), rand(1, 2, 13, 8), rand(1, 2, 13, 8)


def fn(q, k, v):
    i, j = torch.arange(9)[:, None], torch.arange(13)
    s = (q @ k.mT).masked_fill(j > i - 2, -torch.inf)
    return (s.softmax(-1) @ v) * 0.0
"""

WHERE = """
import torch

DTYPES = ["float32"]
DYNAMIC = False


def make(device, dtype, scale, gen):
    def rand(*shape):
        return torch.randn(shape, generator=gen, dtype=torch.float64).to(dtype)

    v = rand(1, 1, 40, 8)
    v[:, :, 30:] = 0
    return rand(1, 1, 17, 8), rand(1, 1, 40, 8), v


def fn(q, k, v):
    i, j = torch.arange(17)[:, None], torch.arange(40)
    keep = (j < 30) & (j <= i + 20)
    v = v / v.norm(dim=-1, keepdim=True)
    p = (q @ k.mT).softmax(-1)
    return torch.where(keep[..., None], p[..., None] * v[..., None, :, :], 0.0).sum(-2)
"""


def test_dead_rows_times_zero_are_nan() -> None:
    with torch.no_grad():
        verdict = kernels(TIMES_ZERO)
    assert verdict.regions == 1
    assert verdict.failure == ""


def test_a_condition_over_a_product_spares_both_factors() -> None:
    with torch.no_grad():
        verdict = kernels(WHERE)
    assert verdict.regions == 1
    assert verdict.failure == ""
