"""Scores compared with an entry of themselves: equal where they are the same, as in eager, where both were written to memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import flashlight
from tests.support.oracle import normal as r

pytestmark = pytest.mark.usefixtures("inference")
T = torch.Tensor
N = 150


def rank(s: T, y: T, v: T) -> T:
    return (s > s.diagonal()[:, None]).sum(-1)


def hits(s: T, y: T, v: T) -> T:
    return s.gather(1, y[:, None]) >= s.amax(1, keepdim=True)


def counts(s: T, y: T, v: T) -> tuple[T, T, T]:
    at = (0.3 * s + 0.1)[torch.arange(N), y][:, None]
    s = 0.3 * s + 0.1
    return (s > at).sum(-1), (s >= at).sum(-1), (s == at).sum(-1)


def first(s: T, y: T, v: T) -> T:
    return (s == s[:, :1]).sum(-1)


def probabilities(s: T, y: T, v: T) -> T:
    p = s.softmax(-1)
    return (p > p.gather(1, y[:, None])).sum(-1)


def share(s: T, y: T, v: T) -> T:
    return ((s - s.diagonal()[:, None]) > 0).float().mean(-1)


def harder(s: T, y: T, v: T) -> T:
    return s.masked_fill(s < s.diagonal()[:, None], -torch.inf).softmax(-1) @ v


def below(s: T, y: T, v: T) -> T:
    """The lowest score always stays."""
    return s.masked_fill(s > s.gather(1, (-s).argmax(-1)[:, None]), -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("write", [rank, hits, counts, first, probabilities, share, harder, below])
def test_as_in_eager(write: Callable[[T, T, T], object], dtype: torch.dtype) -> None:
    def fn(a: T, b: T, y: T, v: T) -> object:
        return write(a @ b.mT, y, v)

    a, b, v = (r(N, n, seed=seed).to(dtype) for seed, n in enumerate((100, 100, 8)))
    args = (a, b, (a @ b.mT).argmax(-1), v)
    got, expected = torch.compile(fn, backend="flashlight")(*args), fn(*args)
    report = flashlight.explain(fn, *args)
    assert not report.materialized
    assert report.kernels
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_ties_of_16_bits(dtype: torch.dtype) -> None:
    """Scores that are whole numbers, which eager rounds to 16 bits: many are equal then, and the first of them is the largest."""

    def fn(a: T, b: T, y: T) -> tuple[T, ...]:
        s = a @ b.mT
        at = s.gather(1, y[:, None])
        best = s.amax(-1, keepdim=True)
        return (s > at).sum(-1), (s == best).sum(-1), at >= best, s.argmax(-1), s.argmin(-1)

    gen = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-80, 81, (N, 16), generator=gen).to(dtype) for _ in range(2))
    args = (a, b, torch.arange(N))
    got, expected = torch.compile(fn, backend="flashlight")(*args), fn(*args)
    exact = fn(a.float(), b.float(), args[2])
    assert not torch.equal(exact[0], expected[0]), "no rank depends on rounding"
    assert all(map(torch.equal, got, expected))
    assert not flashlight.explain(fn, *args).materialized


def test_a_row_of_all_columns_is_refused() -> None:
    def fn(a: T, b: T) -> T:
        s = a @ b.mT
        return (s >= s[-1:]).sum(-1)

    args = r(N, 100), r(N, 100, seed=1)
    report = flashlight.explain(fn, *args)
    assert [x.code for x in report.refusals] == ["scores-compared"]
    assert torch.equal(torch.compile(fn, backend="flashlight")(*args), fn(*args))


def test_a_loss_does_not_compare() -> None:
    """The entry of the target is contracted by itself where nothing depends on its last bit."""

    def fn(a: T, b: T, y: T) -> T:
        return torch.nn.functional.cross_entropy(a @ b.mT, y)

    args = r(N, 16), r(N, 16, seed=1), torch.arange(N)
    report = flashlight.explain(fn, *args)
    assert not report.refusals
    assert not any("_pick" in k.program for k in report.kernels)
