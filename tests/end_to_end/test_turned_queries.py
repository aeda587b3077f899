"""Queries and keys that are products of activations themselves: those are no scores, and do not hide the scores made of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import flashlight
from tests.support.oracle import check
from tests.support.oracle import normal as r

pytestmark = pytest.mark.usefixtures("inference")
T = torch.Tensor
B, H, S, D = 2, 3, 60, 8


def turn(m: T, x: T) -> T:
    return torch.einsum("bnij,bhnj->bhni", m, x)


def by_matrices(q: T, k: T, v: T, m: T) -> T:
    """Geometric transform attention: a matrix for each token, back again at the end."""
    o = (turn(m, q) @ turn(m, k).mT).softmax(-1) @ turn(m, v)
    return torch.einsum("bnji,bhnj->bhni", m, o)


def by_rotations(q: T, k: T, v: T, m: T) -> T:
    """Rotary positions as 2 x 2 matrices."""
    c, s = m[0, :, 0, 0].cos(), m[0, :, 0, 0].sin()
    turns = torch.stack([torch.stack([c, -s], -1), torch.stack([s, c], -1)], -2)

    def rotated(x: T) -> T:
        return torch.einsum("nij,bhnfj->bhnfi", turns, x.unflatten(-1, (-1, 2))).flatten(-2)

    return (rotated(q) @ rotated(k).mT).softmax(-1) @ v


def by_matrices_twice(q: T, k: T, v: T, m: T) -> T:
    return (turn(m, turn(m, q)) @ k.mT * 0.1).softmax(-1) @ v


def by_a_form_of_each_sample(q: T, k: T, v: T, m: T) -> T:
    return (q @ m[:, :1] @ k.mT).softmax(-1) @ v


def by_distances(q: T, k: T, v: T, m: T) -> T:
    return (-torch.cdist(turn(m, q), turn(m, k))).softmax(-1) @ v


def by_differences(q: T, k: T, v: T, m: T) -> T:
    y = turn(m, q)
    return (-(y[..., :, None, :] - y[..., None, :, :]).square().sum(-1)).softmax(-1) @ v


def by_a_number_for_each(q: T, k: T, v: T, m: T) -> T:
    """Scaled by a product with one vector of each sample, which is no row of scores that heads are mixed of."""
    scale = torch.einsum("bhnd,bd->bhn", q, m[:, 0, 0])
    return ((q / (1 + scale.square())[..., None]) @ k.mT).softmax(-1) @ v


def normed_after(q: T, k: T, v: T, m: T) -> T:
    return (torch.nn.functional.layer_norm(turn(m, q), (D,)) @ k.mT).softmax(-1) @ v


def unit_after(q: T, k: T, v: T, m: T) -> T:
    unit = torch.nn.functional.normalize
    return (unit(turn(m, q), dim=-1) @ unit(k, dim=-1).mT * 5).softmax(-1) @ v


@pytest.mark.parametrize(
    "fn",
    [
        *(normed_after, unit_after),
        *(by_matrices, by_rotations, by_matrices_twice, by_a_number_for_each),
        *(by_a_form_of_each_sample, by_distances, by_differences),
    ],
)
def test_scores_of_products_of_products(fn: Callable[..., T]) -> None:
    args = (*(r(B, H, S, D, seed=i) for i in range(3)), r(B, S, D, D) * 0.5)
    check(fn, torch.compile(fn, backend="flashlight"), args)
    report = flashlight.explain(fn, *args)
    assert len(report.kernels) == 1
    assert report.materialized == ()
    torch._dynamo.reset()
