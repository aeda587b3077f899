"""Scores that are extrema over the features of a pair (Chebyshev distances, max-plus products) stay in their kernel, as sums do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import flashlight
from tests.support.oracle import check
from tests.support.oracle import normal as r

pytestmark = pytest.mark.usefixtures("inference")
T = torch.Tensor


def tropical(q: T, k: T, v: T) -> T:
    return (q[:, :, None] + k[:, None]).amax(-1).softmax(-1) @ v


def neighbours(q: T, k: T, v: T) -> tuple[T, ...]:
    d = (q[:, :, None] - k[:, None]).abs().amax(-1)
    near = d.min(-1)
    return near.values, near.indices, d.amax(-2), torch.exp(-d).sum(-1).log()


def intersections(q: T, k: T, v: T) -> T:
    """The histogram kernel: a sum of minima, and the least of them."""
    least = torch.minimum(q[:, :, None], k[:, None])
    return (least.sum(-1) * least.amin(-1)).softmax(-1) @ v


@pytest.mark.parametrize("fn", [tropical, neighbours, intersections])
@pytest.mark.parametrize("holds_nan", [False, True])
def test_values(fn: Callable[..., Any], holds_nan: bool) -> None:
    args = (r(2, 50, 6), r(2, 61, 6, seed=1), r(2, 61, 5, seed=2))
    if holds_nan:
        args[0][1, 7, 3] = torch.nan
    check(fn, torch.compile(fn, backend="flashlight"), args)
    assert not flashlight.explain(fn, *args).materialized
