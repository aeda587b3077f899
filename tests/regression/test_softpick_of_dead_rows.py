"""A row whose scores are all the least number: exp(-m) is inf in eager and its relu 0, where ours was NaN (fuzz seed 60094), and so
were the squares of its weights (seed 500286).
"""

from __future__ import annotations

from tests.fuzz.judge import quick

PROGRAM = """
import torch
import torch.nn.functional as F

DTYPES = ["float32"]
DYNAMIC = False


def make(device, dtype, scale, gen):
    q, k, v = (torch.randn(1, 2, n, 4, generator=gen, dtype=torch.float64).to(dtype) for n in (9, 7, 7))
    return q * 8, k, v


def fn(q, k, v):
    s = q @ k.mT
    dead = torch.arange(9)[:, None] < 3
    s = s.masked_fill(dead, torch.finfo(s.dtype).min)
    s = s.masked_fill(torch.arange(9)[:, None] == 4, -torch.inf)  # NaN in eager
    m = s.amax(-1, keepdim=True)
    w = torch.exp(s - m) - torch.exp(-m)
    p = F.relu(w) / (w.abs().sum(-1, keepdim=True) + 1e-6)
    return p @ v, (p * p).sum(-1)
"""


def test_values() -> None:
    verdict = quick(PROGRAM)
    assert verdict.failure == ""
    assert verdict.is_fused
