"""A mask that is false everywhere leaves a program that reads nothing; splicing its call raised (fuzz seed 1453)."""

from __future__ import annotations

from tests.fuzz.judge import quick

PROGRAM = """
import torch

DTYPES = ["float32"]
DYNAMIC = False


def make(device, dtype, scale, gen):
    return tuple(torch.randn(n, generator=gen, dtype=torch.float64).to(dtype) for n in ((24,), (40,), (40, 3)))


def fn(x, y, w):
    i = torch.arange(24)
    s = torch.exp(-((x[:, None] - y) ** 2)) @ w
    return s.masked_fill((i < i + 5)[:, None], -torch.inf)
"""


def test_values() -> None:
    verdict = quick(PROGRAM)
    assert verdict.failure == ""
    assert verdict.regions <= 1
