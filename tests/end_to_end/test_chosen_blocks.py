"""Blocks of keys are chosen by scores of their own, few for each query, which something else than attention reads (topk)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import flashlight
from tests.support.oracle import check
from tests.support.oracle import normal as r

pytestmark = pytest.mark.usefixtures("inference")
T = torch.Tensor
B, H, S, D, SIZE, COUNT = 2, 2, 64, 8, 8, 8


def scores_of_blocks(q: T, k: T) -> T:
    return q @ k.unflatten(-2, (COUNT, SIZE)).mean(-2).mT


def above_the_second(q: T, k: T) -> T:
    """A mixture of block attention: the mask compares, so that these scores and those of keys would be one program."""
    gate = scores_of_blocks(q, k)
    own = torch.arange(S)[:, None] // SIZE
    gate = gate.masked_fill(torch.arange(COUNT) == own, torch.inf)
    return gate >= gate.topk(2, -1).values[..., -1:]


def by_their_numbers(q: T, k: T) -> T:
    chosen = scores_of_blocks(q, k).topk(3, -1).indices
    return torch.zeros(B, H, S, COUNT, dtype=torch.bool).scatter(-1, chosen, True)


def above_the_mean(q: T, k: T) -> T:
    """Nothing but the mask reads these, which are computed in its kernel."""
    gate = scores_of_blocks(q, k)
    return gate >= gate.mean(-1, keepdim=True)


@pytest.mark.parametrize("choose", [above_the_second, by_their_numbers, above_the_mean])
def test_values(choose: Callable[[T, T], T]) -> None:
    def fn(q: T, k: T, v: T) -> T:
        keep = choose(q, k).repeat_interleave(SIZE, -1)
        return (q @ k.mT * D**-0.5).masked_fill(~keep, -torch.inf).softmax(-1) @ v

    args = (r(B, H, S, D), r(B, H, S, D, seed=1), r(B, H, S, D, seed=2))
    check(fn, torch.compile(fn, backend="flashlight"), args)
    report = flashlight.explain(fn, *args)
    assert not report.materialized
    assert not report.refusals


def test_the_largest_of_the_scores_themselves() -> None:
    """All scores are read twice: that is refused."""

    def fn(q: T, k: T, v: T) -> T:
        s = q @ k.mT
        return s.masked_fill(s < s.topk(8, -1).values[..., -1:], -torch.inf).softmax(-1) @ v

    args = (r(B, H, S, D), r(B, H, S, D, seed=1), r(B, H, S, D, seed=2))
    check(fn, torch.compile(fn, backend="flashlight"), args)
    assert [x.code for x in flashlight.explain(fn, *args).refusals] == ["no-rule:aten.topk"]
