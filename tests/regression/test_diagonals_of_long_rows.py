"""`eye` of more than 256 rows compares positions of 16 bits without a sign, a type no kernel has: the whole graph was left."""

from __future__ import annotations

import torch

import flashlight
from tests.support.oracle import check

T = torch.Tensor


def without_itself(q: T, k: T, v: T) -> T:
    itself = torch.eye(q.shape[1], dtype=torch.bool)
    return (q @ k.mT * 0.25).masked_fill(itself, -torch.inf).softmax(-1) @ v


def complex_matches(q: T, k: T, v: T) -> T:
    a, b = (torch.view_as_complex(x.unflatten(-1, (-1, 2))) for x in (q, k))
    same = a[:, :, None, 0] == b[:, None, :, 0]
    return (q @ k.mT).masked_fill(same, 1.0).softmax(-1) @ v


def test_types_that_are_compared() -> None:
    gen = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 260, 8, generator=gen) for _ in range(3))
    for fn in (without_itself, complex_matches):
        report = flashlight.explain(fn, q, k, v)
        assert len(report.kernels) == 1, fn.__name__
        check(fn, flashlight.compile(fn), (q, k, v))
