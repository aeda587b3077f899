"""Late interaction: the best match of each token, summed to a score for each pair of texts, with a softmax over these.

What makes those scores of the best matches belongs to one of two regions, not to both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import flashlight
from tests.support.oracle import check
from tests.support.oracle import normal as r

pytestmark = pytest.mark.usefixtures("inference")
T = torch.Tensor


def loss(best: T) -> Any:
    return F.cross_entropy(best.sum(-1) * 20, torch.arange(5))


def loss_and_scores(best: T) -> Any:
    scores = best.sum(-1)
    return scores, F.cross_entropy(scores * 20, torch.arange(5))


def both_ways(best: T) -> Any:
    scores = (best.exp() * 2).sum(-1)
    return scores.log_softmax(-1).diagonal().mean(), scores.softmax(0).sum(1)


@pytest.mark.parametrize("fn", [loss, loss_and_scores, both_ways])
def test_values(fn: Callable[[T], Any]) -> None:
    def matched(q: T, d: T, real: T) -> Any:
        s = torch.einsum("qid,kjd->qkij", q, d)
        return fn(s.amax(-1) * (real > 0)[:, None])

    args = (r(5, 9, 16), r(7, 33, 16, seed=1), r(5, 9))
    check(matched, torch.compile(matched, backend="flashlight"), args)
    report = flashlight.explain(matched, *args)
    assert not report.materialized
    assert not report.refusals
