"""Products of two softmaxes in float16, of padded keys: no pass took them, and that was an assertion instead of a refusal."""

from __future__ import annotations

from tests.fuzz.judge import quick

PROGRAM = """
import torch

DTYPES = ["float16"]
DYNAMIC = False


def make(device, dtype, scale, gen):
    return tuple(torch.randn(1, 2, 7, 4, generator=gen, dtype=torch.float64).to(dtype) for _ in range(3))


def fn(q, k, v):
    k, v = (torch.nn.functional.pad(x, (0, 0, 1, 1)) for x in (k, v))
    s = q @ k.mT * 0.5
    return (s.softmax(-1) * s.softmax(-2)) @ v
"""


def test_is_refused_or_right() -> None:
    assert quick(PROGRAM).failure == ""
