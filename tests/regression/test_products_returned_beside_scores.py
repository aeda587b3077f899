"""A product that is returned, or sorted, is read by attention that it is a bias or a mask of: it keeps nothing else from being fused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import fresh_inductor_cache

from flashlight.capture.record import collecting
from tests.support.oracle import assert_close, exactly


def bias(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    both = a @ b.mT
    return torch.softmax(q @ k.mT / 4 + both, -1) @ v, both


def mask(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    both = a @ b.mT
    scores = (q @ k.mT / 4).masked_fill(both.sigmoid() < 0.3, -1e4)
    return torch.softmax(scores, -1) @ v, both.sort(-1).values


def scores_before_bias(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor
) -> tuple[Tensor, Tensor]:
    scores = q @ k.mT / 4
    return torch.softmax(scores + a @ b.mT, -1) @ v, scores


def weights(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    found = torch.softmax(q @ k.mT / 4 + a @ b.mT, -1)
    return found @ v, found


@pytest.mark.parametrize(
    ("fn", "refusals"),
    [(bias, []), (mask, []), (scores_before_bias, []), (weights, ["score-returned"])],
)
def test_what_else_is_read_is_put_aside(
    fn: Callable[..., tuple[Tensor, Tensor]], refusals: list[str]
) -> None:
    gen = torch.Generator().manual_seed(0)
    args = [torch.randn(2, 40, n, generator=gen) / 2 for n in (16, 16, 16, 8, 8)]
    with fresh_inductor_cache(), collecting() as found, torch.no_grad():
        got = torch.compile(fn, backend="flashlight")(*args)
    assert [r.code for r in found.refusals] == refusals
    assert len(found.regions) == (not refusals)
    for mine, theirs, exact in zip(got, fn(*args), fn(*exactly(args)), strict=True):
        assert_close(mine, theirs, exact)
