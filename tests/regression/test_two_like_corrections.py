"""A squared softmax beside its log-sum-exp holds one correction twice; cancelling one of them raised (fuzz seed 50100)."""

from __future__ import annotations

from tests.fuzz.judge import quick

PROGRAM = """
import torch

DTYPES = ["float32"]
DYNAMIC = False


def make(device, dtype, scale, gen):
    q, k, v = (torch.randn(1, 2, n, 4, generator=gen, dtype=torch.float64).to(dtype) for n in (9, 7, 7))
    return q * 8, k, v


def fn(q, k, v):
    s = q @ k.mT
    w = s.softmax(-1) ** 2
    return w / w.sum(-1, keepdim=True) @ v, torch.logsumexp(s, -1)
"""


def test_values() -> None:
    verdict = quick(PROGRAM)
    assert verdict.failure == ""
    assert verdict.is_fused
