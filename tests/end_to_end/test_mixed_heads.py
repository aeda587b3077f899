"""Weighted sums of the scores or weights of several heads: right, in one kernel or two, and never in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import flashlight
from flashlight import backend
from flashlight.errors import Refusal
from flashlight.pipeline import optimize
from tests.support.oracle import check
from tests.support.oracle import normal as r

pytestmark = pytest.mark.usefixtures("inference")
T = torch.Tensor
B, H, S, D = 2, 3, 70, 8


def scores(q: T, k: T) -> T:
    return q @ k.mT * D**-0.5


def before(q: T, k: T, v: T, w: T) -> T:
    return torch.einsum("gh,bhij->bgij", w, scores(q, k)).softmax(-1) @ v


def before_by_linear(q: T, k: T, v: T, w: T) -> T:
    mixed = F.linear(scores(q, k).permute(0, 2, 3, 1), w, w[0])
    return mixed.permute(0, 3, 1, 2).softmax(-1) @ v


def before_by_convolution(q: T, k: T, v: T, w: T) -> T:
    return F.conv2d(scores(q, k), w[:, :, None, None], w[0]).softmax(-1) @ v


def before_by_groups(q: T, k: T, v: T, w: T) -> T:
    """A factor for each head, as a convolution."""
    return F.conv2d(scores(q, k), w[:, :1, None, None], groups=H).softmax(-1) @ v


def before_and_masked(q: T, k: T, v: T, w: T) -> T:
    """A function of each head's scores, a mixture, and a mask with rows that see nothing."""
    i = torch.arange(S)
    s = torch.tanh(scores(q, k) + w[0][:, None, None] * (i[:, None] - i))
    s = torch.einsum("gh,bhij->bgij", w, s).masked_fill(i[:, None] < i + 5, -torch.inf)
    return s.softmax(-1).nan_to_num(0.0) @ v


def before_by_query(q: T, k: T, v: T, w: T) -> T:
    """With weights for each query (dynamic composition)."""
    own = q.transpose(1, 2)[:, :, None, :, 0] * w
    return torch.einsum("bigh,bhij->bgij", own, scores(q, k)).softmax(-1) @ v


def after(q: T, k: T, v: T, w: T) -> T:
    return torch.einsum("gh,bhij->bgij", w, scores(q, k).softmax(-1)) @ v


def after_a_mask(q: T, k: T, v: T, w: T) -> T:
    i = torch.arange(S)
    p = scores(q, k).masked_fill(i[:, None] < i, -torch.inf).softmax(-1)
    return torch.einsum("gh,bhij->bgij", w, p) @ v


def after_by_convolution(q: T, k: T, v: T, w: T) -> T:
    return F.conv2d(scores(q, k).softmax(-1), w[:, :, None, None]) @ v


def mixture(q: T, k: T, v: T, w: T) -> T:
    return (scores(q, k).softmax(-1) * w[0].softmax(0)[:, None, None]).sum(1) @ v[:, 0]


def average(q: T, k: T, v: T, w: T) -> T:
    return scores(q, k).softmax(-1).mean(1) @ v[:, 0] * w[0, 0]


def average_of_shared_keys(q: T, k: T, v: T, w: T) -> T:
    """Heads belong to the rows alone."""
    return torch.einsum("bhid,bjd->bhij", q, k[:, 0]).softmax(-1).mean(1) @ v[:, 0] * w[0, 0]


def gated_and_gathered(q: T, k: T, v: T, w: T) -> T:
    p = (q[..., :1].sigmoid() * scores(q, k).softmax(-1)).sum(1)
    at = torch.arange(S).flip(0)[None, :, None].expand(B, S, 1)
    return p.gather(-1, at).log() + w[0, 0]


CASES: dict[str, tuple[Callable[..., Any], int]] = {
    f.__name__: (f, kernels)
    for f, kernels in (
        (before, 1),
        (before_by_linear, 1),
        (before_by_convolution, 1),
        (before_by_groups, 1),
        (before_and_masked, 1),
        (before_by_query, 1),
        (after, 2),
        (after_a_mask, 2),
        (after_by_convolution, 2),
        (mixture, 2),
        (average, 2),
        (average_of_shared_keys, 2),
        (gated_and_gathered, 2),
    )
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values(name: str, dtype: torch.dtype) -> None:
    fn, kernels = CASES[name]
    args = [x.to(dtype) for x in (*(r(B, H, S, D, seed=i) for i in range(3)), r(H, H))]
    check(fn, torch.compile(fn, backend="flashlight"), args)
    (region,) = backend.last_report().regions
    program = optimize(region.program)
    assert not isinstance(program, Refusal)
    assert len(program.loops) == kernels


def test_nothing_of_the_size_of_scores_is_stored() -> None:
    args = (*(r(B, H, S, D, seed=i) for i in range(3)), r(H, H))
    for fn in (before, after, average_of_shared_keys, gated_and_gathered):
        assert flashlight.explain(fn, *args).materialized == ()
        torch._dynamo.reset()


def of_weights(z: T, words: T, gates: T) -> T:
    return ((gates.softmax(-1)[..., None] * (z @ words.T).softmax(-1)).sum(1) + 1e-9).log()


def of_logarithms(z: T, words: T, gates: T) -> T:
    each = gates.log_softmax(-1)[..., None] + (z @ words.T).log_softmax(-1)
    return torch.logsumexp(each, 1)


@pytest.mark.parametrize("mixed", [of_weights, of_logarithms])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_mixture_of_softmaxes_over_one_vocabulary(
    mixed: Callable[[T, T, T], T], reduction: str
) -> None:
    def loss(z: T, words: T, gates: T, y: T) -> T:
        return F.nll_loss(mixed(z, words, gates), y, reduction=reduction)

    args = (r(64, 3, 8), r(700, 8), r(64, 3), torch.arange(64) * 9)
    assert flashlight.explain(loss, *args).materialized == ()
    check(loss, torch.compile(loss, backend="flashlight"), args)


def entropy(p: T, dim: int) -> T:
    return -(p * p.log()).sum(dim)


def one_of_each(p: T, dim: int) -> T:
    at = torch.arange(p.shape[1]).expand(p.shape[:2])
    return p.gather(dim, at[..., None]).log()


@pytest.mark.parametrize("read", [T.amax, T.argmax, entropy, one_of_each])
@pytest.mark.parametrize("groups", [1, 2])
def test_weights_of_heads_that_share_keys(read: Callable[..., T], groups: int) -> None:
    def fn(q: T, k: T) -> T:
        k = k.repeat_interleave(4 // groups, 1)
        return read((q @ k.mT).softmax(-1).mean(1), dim=-1)

    args = (r(B, 4, S, D), r(B, groups, 90, D, seed=1))
    assert flashlight.explain(fn, *args).materialized == ()
    check(fn, torch.compile(fn, backend="flashlight"), args)


def test_mixed_twice_is_refused() -> None:
    """Each of the second sums would need all scores of the first, each of which needs those of all heads."""

    def twice(q: T, k: T, v: T, w: T) -> T:
        return torch.einsum("gh,bhij->bgij", w, before_weights(q, k, w)) @ v

    def before_weights(q: T, k: T, w: T) -> T:
        return torch.einsum("gh,bhij->bgij", w, scores(q, k)).softmax(-1)

    args = (*(r(B, H, S, D, seed=i) for i in range(3)), r(H, H))
    report = flashlight.explain(twice, *args)
    assert [x.code for x in report.refusals] == ["scores-mixed"]
    check(twice, torch.compile(twice, backend="flashlight"), args)
