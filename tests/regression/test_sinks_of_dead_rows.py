"""A row without a key beside a sink below -88: its sum of nothing was multiplied by exp(88), which is infinite, and was NaN, not 0."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fuzz.judge import Verdict, kernels, quick

PROGRAM = """
import torch

DTYPES = ["float32"]
DYNAMIC = False


def make(device, dtype, scale, gen):
    q, k, v = (torch.randn(1, 2, 20, 8, generator=gen, dtype=torch.float64).to(dtype) for _ in range(3))
    return q, k, v, torch.tensor([-200.0, -90.0], dtype=dtype)


def fn(q, k, v, sink):
    i = torch.arange(q.shape[-2])
    s = (q @ k.mT).masked_fill((i[:, None] < i) | (i[:, None] > 15), -torch.inf)
    s = torch.cat([s, sink[:, None, None].expand(1, 2, 20, 1)], -1)
    return s.softmax(-1)[..., :-1] @ v
"""


@pytest.mark.parametrize("judge", [quick, kernels])
def test_values(judge: Callable[[str], Verdict]) -> None:
    verdict = judge(PROGRAM)
    assert verdict.failure == ""
    assert verdict.is_fused
