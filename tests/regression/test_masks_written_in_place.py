"""Masks that are written into scores, rather than selected with, leave the scores in the kernel."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import flashlight
from tests.support import oracle

SIZE = 40


def by_a_mask(x: Tensor, y: Tensor) -> Tensor:
    s = x @ y.T
    s[torch.arange(SIZE) > torch.arange(SIZE)[:, None]] = -math.inf
    return s.softmax(-1) @ y


def on_the_diagonal(x: Tensor, y: Tensor) -> Tensor:
    return (x @ y.T).fill_diagonal_(-math.inf).logsumexp(-1)


def one_in_each_row(x: Tensor, y: Tensor) -> Tensor:
    target = torch.arange(SIZE).flip(0)[:, None]
    return torch.scatter(x @ y.T, 1, target, -math.inf).logsumexp(-1)


@pytest.mark.parametrize("fn", [by_a_mask, on_the_diagonal, one_in_each_row])
def test_scores_stay_in_the_kernel(fn: Callable[..., Tensor]) -> None:
    gen = torch.Generator().manual_seed(0)
    args = [torch.randn(SIZE, 8, generator=gen) for _ in range(2)]
    with torch.no_grad():
        report = flashlight.explain(fn, *args)
        torch._dynamo.reset()
        oracle.check(fn, torch.compile(fn, backend="flashlight"), args)
    assert len(report.kernels) == 1
    assert not report.materialized
