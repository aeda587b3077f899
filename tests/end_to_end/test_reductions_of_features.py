"""Scores and masks reduced otherwise than by sums over the features of a pair (Chebyshev distances, max-plus products, products of
kernels, ids of several fields) stay in their kernel, as sums do.
"""

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


def of_all_fields(q: T, k: T, v: T) -> T:
    seen = ((q[:, :, None, :2] > 0) == (k[:, None, :, :2] > 0)).all(-1)
    return (q @ k.mT).masked_fill(~seen, -1e9).softmax(-1) @ v


def of_any_tag(q: T, k: T, v: T) -> T:
    seen = ((q[:, :, None] > 1) & (k[:, None] > 1)).any(-1)
    return (q @ k.mT).masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0.0) @ v


def product_kernel(q: T, k: T, v: T) -> T:
    return torch.sigmoid(q[:, :, None] * k[:, None]).prod(-1).mul(4.0).softmax(-1) @ v


def soft_extremum(q: T, k: T, v: T) -> T:
    return (q[:, :, None] * k[:, None]).logsumexp(-1).softmax(-1) @ v


def differing_signs(q: T, k: T, v: T) -> T:
    """A kernel of Hamming distances."""
    apart = ((q[:, :, None] > 0) != (k[:, None] > 0)).sum(-1)
    w = torch.exp(-apart.to(v.dtype) / 2)
    return w @ v / w.sum(-1, keepdim=True)


def shared_tags(q: T, k: T, v: T) -> T:
    return ((q[:, :, None] > 0) & (k[:, None] > 0)).sum(-1).to(v.dtype).softmax(-1) @ v


PROGRAMS = [
    tropical,
    neighbours,
    intersections,
    of_all_fields,
    of_any_tag,
    product_kernel,
    soft_extremum,
    differing_signs,
    shared_tags,
]


@pytest.mark.parametrize("fn", PROGRAMS)
@pytest.mark.parametrize("holds_nan", [False, True])
def test_values(fn: Callable[..., Any], holds_nan: bool) -> None:
    args = (r(2, 50, 6), r(2, 61, 6, seed=1), r(2, 61, 5, seed=2))
    if holds_nan:
        args[0][1, 7, 3] = torch.nan
    check(fn, torch.compile(fn, backend="flashlight"), args)
    assert not flashlight.explain(fn, *args).materialized


def test_overlaps_of_boxes_by_rows_and_columns() -> None:
    """What two reductions over different sides read is stored by others, as no loop has both."""

    def assigned(p: T, g: T) -> tuple[T, ...]:
        low, high = torch.maximum(p[:, None, :2], g[:, :2]), torch.minimum(p[:, None, 2:], g[:, 2:])
        both = (high - low).clamp(min=0).prod(-1)
        area, other = ((x[:, 2:] - x[:, :2]).prod(-1) for x in (p, g))
        overlap = both / (area[:, None] + other - both)
        best, which = overlap.max(1)
        return best, torch.where(best >= 0.5, which, -1), overlap.amax(0)

    boxes = [torch.cat([x, x + r(n, 2, seed=n).abs()], 1) for n in (300, 65) for x in (r(n, 2),)]
    assert not flashlight.explain(assigned, *boxes).materialized
    check(assigned, torch.compile(assigned, backend="flashlight"), boxes)
