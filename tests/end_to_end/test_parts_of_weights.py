"""Some of the weights are returned beside the output (a row, a column, those chosen): the others never reach memory for it."""

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
B, H, S, N, D = 2, 2, 50, 61, 8


def first_row(o: T, p: T, ids: T) -> Any:
    return o, p[:, :, 0], p[:, :, 0, 1:]


def last_column(o: T, p: T, ids: T) -> Any:
    return {"o": o, "last": p[..., -1], "mean": p[..., 0].mean(1)}


def few_rows(o: T, p: T, ids: T) -> Any:
    return o, p[:, :, -4:], p[:, :, ::16, 3:9].clone()


def diagonal(o: T, p: T, ids: T) -> Any:
    return o, p.diagonal(dim1=-2, dim2=-1)


def chosen(o: T, p: T, ids: T) -> Any:
    return o, p.gather(-1, ids), torch.take_along_dim(p, ids[..., :1], -1)


def largest(o: T, p: T, ids: T) -> Any:
    first = p.topk(1, -1)
    least = p.topk(1, dim=-2, largest=False)
    return o, first.values, first.indices, least.values


CASES = [(f, False) for f in (first_row, last_column, few_rows, diagonal, chosen, largest)]


@pytest.mark.parametrize(("fn", "dynamic"), [*CASES, (first_row, True), (chosen, True)])
def test_values(fn: Callable[[T, T, T], Any], dynamic: bool) -> None:
    def attention(q: T, k: T, v: T, ids: T) -> Any:
        p = (q @ k.mT * D**-0.5).softmax(-1)
        return fn(p @ v, p, ids)

    ids = (r(B, H, S, 3).abs() * 20).long().clamp(max=N - 1)
    args = (r(B, H, S, D), r(B, H, N, D, seed=1), r(B, H, N, D, seed=2), ids)
    check(attention, torch.compile(attention, backend="flashlight", dynamic=dynamic), args)
    if not dynamic:
        assert not flashlight.explain(attention, *args).materialized


@pytest.mark.parametrize("length", [70, 900])
def test_all_weights_of_one_query(length: int) -> None:
    """They are fewer than the keys, and returned for choosing which of those to keep."""

    def fn(q: T, k: T, v: T) -> Any:
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        p = (q @ k.mT * D**-0.5).softmax(-1)
        return p @ v, p

    args = (r(B, 2 * H, 1, D), r(B, H, length, D, seed=1), r(B, H, length, D, seed=2))
    check(fn, torch.compile(fn, backend="flashlight"), args)
    report = flashlight.explain(fn, *args)
    assert report.kernels
    assert not report.refusals


def test_most_of_the_weights_are_weights() -> None:
    def fn(q: T, k: T, v: T) -> Any:
        p = (q @ k.mT).softmax(-1)
        return p @ v, p[..., 1:]

    args = (r(B, H, S, D), r(B, H, N, D, seed=1), r(B, H, N, D, seed=2))
    check(fn, torch.compile(fn, backend="flashlight"), args)
    assert [x.code for x in flashlight.explain(fn, *args).refusals] == ["score-returned"]
