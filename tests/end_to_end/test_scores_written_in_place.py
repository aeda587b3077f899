"""Assignments to rows, columns, corners and listed positions of scores and masks: selects, in the kernel of the attention."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import flashlight
from tests.support.oracle import check
from tests.support.oracle import normal as r

pytestmark = pytest.mark.usefixtures("inference")
T = torch.Tensor
B, H, S, N, D = 2, 2, 45, 53, 8


def rows(s: T, ids: T) -> T:
    s[:, :, 0] = 0
    s[..., 11:13] = -torch.inf
    s[:, 1, :, 0] = -5.0
    return s


def updates(s: T, ids: T) -> T:
    s[..., -1] += 2.0
    s[..., :3, :3] *= 0.5
    s.diagonal(dim1=-2, dim2=-1).add_(1.0)
    return s


def listed(s: T, ids: T) -> T:
    s = s.index_fill(-1, torch.tensor([2, -7]), -torch.inf)
    s[:, :, torch.tensor([1, 3])] = torch.linspace(0, 1, N, dtype=s.dtype)
    return s.index_fill(2, torch.tensor(4), 0.0)


def anchors(s: T, ids: T) -> T:
    """Every query sees the anchors, and they see every key."""
    keep = (torch.arange(S)[:, None] - torch.arange(N)).abs() < 5
    keep[:, ids] = True
    keep[ids] = True
    return s.masked_fill(~keep, -torch.inf)


def diagonals(s: T, ids: T) -> T:
    """Lists of rows and columns that count together, from 0 or from elsewhere, with one value or a value for each."""
    at = torch.arange(S)
    s[:, :, at, at] = -torch.inf
    s[:, :, at[:-1] + 1, at[:-1]] = torch.linspace(-1, 1, S - 1, dtype=s.dtype)
    s[0, :, at[2:9], at[2:9] + 5] = 3.0
    return s


def pairs(s: T, ids: T) -> T:
    """A rectangle of rows and columns that are named; one column for each row, found in the data, counted from the end too."""
    s[:, :, ids[:, None], torch.tensor([-1, 4])] = 0.5
    s[:, 1, torch.arange(3), ids] = -2.0
    s[:, :, torch.arange(5), torch.tensor([3, -2, 8, 8, 0])] = torch.arange(5, dtype=s.dtype)
    s[0, 0, 7, 9] = 1.5
    return s


@pytest.mark.parametrize("write", [rows, updates, listed, anchors, diagonals, pairs])
def test_values(write: Callable[[T, T], T]) -> None:
    def fn(q: T, k: T, v: T, ids: T) -> T:
        return write(q @ k.mT * D**-0.5, ids).softmax(-1) @ v

    args = (r(B, H, S, D), r(B, H, N, D, seed=1), r(B, H, N, D, seed=2), torch.tensor([0, 7, 40]))
    check(fn, torch.compile(fn, backend="flashlight"), args)
    report = flashlight.explain(fn, *args)
    assert not report.materialized
    assert not report.refusals


def test_an_element_for_each_position_is_left() -> None:
    def fn(q: T, k: T, v: T, ids: T) -> T:
        s = q @ k.mT
        s[..., ids] = torch.arange(3, dtype=s.dtype)
        return s.softmax(-1) @ v

    args = (r(B, H, S, D), r(B, H, N, D, seed=1), r(B, H, N, D, seed=2), torch.tensor([0, 7, 40]))
    check(fn, torch.compile(fn, backend="flashlight"), args)
    assert [x.code for x in flashlight.explain(fn, *args).refusals] == ["no-rule:aten.index_put"]


def test_pairs_of_positions_in_data_are_left() -> None:
    def fn(q: T, k: T, v: T, ids: T, others: T) -> T:
        s = q @ k.mT
        s[..., ids, others] = -torch.inf
        return s.softmax(-1) @ v

    lists = (torch.tensor([0, 7, 40]), torch.tensor([5, 5, 2]))
    args = (r(B, H, S, D), r(B, H, N, D, seed=1), r(B, H, N, D, seed=2), *lists)
    check(fn, torch.compile(fn, backend="flashlight"), args)
    assert [x.code for x in flashlight.explain(fn, *args).refusals] == ["no-rule:aten.index_put"]
