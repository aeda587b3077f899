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
        (60.0, "p = torch.nn.functional.normalize(w, dim=-1)"),
        (95.0, SUM),  # not a number in eager
        (-95.0, SUM),
    ],
)
def test_values(peak: float, divide: str) -> None:
    text = PROGRAM.replace("PEAK", str(peak)).replace("DIVIDE", divide)
    for verdict in (quick(text), kernels(text)):
        assert verdict.failure == ""
        assert verdict.is_fused


# A power of two was rounded up before it was multiplied by what lacked: infinite from 2^127.5 on.
LARGEST = """
import torch

DTYPES = ["float32"]
DYNAMIC = False


def make(device, dtype, scale, gen):
    q = torch.linspace(88.3, 88.72, 20, dtype=dtype)[None, :, None]
    return (q / RATE), torch.eye(16, 1, dtype=dtype)[None], torch.eye(16, 1, dtype=dtype)[None]


def fn(q, k, v):
    return torch.EXP(q @ k.mT) @ v
"""


@pytest.mark.parametrize(("function", "rate"), [("exp", "1"), ("exp2", "0.6931472")])
def test_exponentials_up_to_the_largest_float(function: str, rate: str) -> None:
    verdict = kernels(LARGEST.replace("EXP", function).replace("RATE", rate))
    assert verdict.failure == ""
    assert verdict.is_fused
