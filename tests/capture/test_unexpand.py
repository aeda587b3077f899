"""What is the same along an expanded axis is computed once, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from flashlight.capture.unexpand import compute_before_expanding
from tests.support.oracle import assert_close, exactly
from tests.support.oracle import normal as r
from tests.support.tracing import graph_of

T = torch.Tensor


def wide_softplus(x: T, y: T) -> T:
    return F.softplus(x[:, None].expand(4, 5, 3)).sum(-1) * y


def cosine(a: T, b: T) -> T:
    lengths = (x.square().sum(-1, keepdim=True).sqrt().clamp_min(1e-8) for x in (a, b))
    return (a / next(lengths) * (b / next(lengths))).sum(-1)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[T, ...], int]] = {
    "cosine similarity": (
        lambda a, b: cosine(a[:, None].expand(4, 5, 3), b[None].expand(4, 5, 3)),
        (r(4, 3), r(5, 3)),
        12 + 15 + 60,
    ),
    "reduced over another axis": (wide_softplus, (r(4, 3), r(4, 5)), 12),
    "reduced over the expanded axis": (
        lambda x: x[:, None].expand(4, 5, 3).exp().sum(1),
        (r(4, 3),),
        60,
    ),
    "a mask": (
        lambda x, m: x.masked_fill(m.expand(2, 4, 3), 0.0).exp(),
        (r(2, 4, 3), r(4, 3) > 0),
        0,
    ),
    "a scalar keeps its type": (lambda x, c: x * c.expand(4, 3), (r(4, 3), r().double()), 0),
    "returned as it is": (lambda x: (x[:, None].expand(4, 5, 3) * 2).clone(), (r(4, 3),), 0),
    "viewed": (lambda x: (x[:, None].expand(4, 5, 3) * 2).view(20, 3).exp(), (r(4, 3),), 0),
    "fewer axes": (lambda x, y: x.expand(4, 5, 3) + y.expand(4, 5, 3), (r(5, 3), r(5, 1)), 0),
}


@pytest.mark.parametrize(("fn", "args", "terms"), PROGRAMS.values(), ids=PROGRAMS)
def test_values_and_work(fn: Callable[..., Any], args: tuple[T, ...], terms: int) -> None:
    graph = graph_of(fn, args)
    compute_before_expanding(graph)
    graph.lint()
    got = torch.fx.GraphModule(torch.nn.Module(), graph)(*args)
    expected = fn(*args)
    assert got.dtype == expected.dtype
    assert_close(got, expected, fn(*exactly(args)))
    reductions = [n for n in graph.nodes if "sum" in str(n.target)]
    assert sum(n.args[0].meta["val"].numel() for n in reductions) == terms


def test_a_random_op_is_left_alone() -> None:
    graph = graph_of(lambda x: torch.rand_like(x.expand(4, 3)).sum(), (r(1, 3),))
    assert compute_before_expanding(graph) == 0
