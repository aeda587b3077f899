"""Weights are set to 0 where a row has no key at all. Beside keys of a second tensor, that sum was divided by the row's NaN
after its condition, and so NaN itself (fuzz seed 425 of --triton)."""

from __future__ import annotations

import torch

from tests.fuzz.judge import kernels

PROGRAM = """
import torch

DTYPES = ["float32"]
DYNAMIC = False


def make(device, dtype, scale, gen):
    def rand(*shape):
        return torch.randn(shape, generator=gen, dtype=torch.float64).to(dtype)

    keep = torch.rand((5, 13), generator=gen) < 0.7
    keep[1] = False
    return rand(1, 2, 5, 8), rand(1, 2, 10, 8), rand(1, 2, 10, 8), rand(1, 2, 3, 8), rand(1, 2, 3, 8), keep


def fn(q, k, v, mk, mv, keep):
    k, v = torch.cat([mk, k], 2), torch.cat([mv, v], 2)
    s = (q @ k.transpose(-1, -2)).masked_fill(~keep, -torch.inf)
    return s.softmax(-1).masked_fill(~keep, 0.0) @ v
"""


def test_zero_where_no_key_is_left() -> None:
    with torch.no_grad():
        verdict = kernels(PROGRAM)
    assert verdict.regions == 1
    assert verdict.failure == ""
