"""Weights exp(s) without a shift, near the largest float: their sum with values overflowed before it was divided by their own sum."""

from __future__ import annotations

import pytest

from tests.fuzz.judge import kernels, quick

PROGRAM = """
import torch

DTYPES = ["float32"]
DYNAMIC = False


def make(device, dtype, scale, gen):
    q, k, v = (torch.randn(1, 2, 20, 8, generator=gen, dtype=torch.float64).to(dtype) for _ in range(3))
    return q, k, v * 4, torch.full((20,), PEAK, dtype=dtype).diag()


def fn(q, k, v, bias):
    i = torch.arange(q.shape[-2])
    w = (q @ k.mT * 0.1 + bias).exp()
    DIVIDE
    return p @ v
"""
SUM = "p = w / w.sum(-1, keepdim=True)"


@pytest.mark.parametrize(
    ("peak", "divide"),
    [
        (87.5, SUM),
        (87.5, f"w = w.masked_fill(i[:, None] < i, 0.0); {SUM}"),
        (43.5, "p = torch.nn.functional.normalize(w, dim=-1)"),
        (95.0, SUM),  # not a number in eager
        (-95.0, SUM),
    ],
)
def test_values(peak: float, divide: str) -> None:
    text = PROGRAM.replace("PEAK", str(peak)).replace("DIVIDE", divide)
    for verdict in (quick(text), kernels(text)):
        assert verdict.failure == ""
        assert verdict.is_fused
