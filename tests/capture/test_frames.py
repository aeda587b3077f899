"""Products with matrices of a frame are sums of products, and no other product is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import flashlight
from flashlight.capture.frames import write_out_frames
from tests.support.oracle import assert_close, exactly
from tests.support.oracle import normal as r
from tests.support.tracing import graph_of

T = torch.Tensor


def turned(rotation: T, points: T) -> T:
    return torch.einsum("nxy,nhpy->nhpx", rotation, points)


def moved(points: T, rotation: T, origin: T) -> T:
    return points @ rotation + origin


PROGRAMS: dict[str, tuple[Callable[..., T], tuple[T, ...], int]] = {
    "rotations": (turned, (r(7, 3, 3), r(7, 5, 2, 3)), 1),
    "one rotation": (moved, (r(9, 3), r(3, 3), r(3)), 1),
    "homogeneous": (torch.bmm, (r(7, 4, 4), r(7, 4, 9)), 1),
    "rounded once": (turned, (r(7, 3, 3).bfloat16(), r(7, 5, 2, 3).bfloat16()), 1),
    "doubles": (turned, (r(7, 3, 3).double(), r(7, 5, 2, 3).double()), 1),
    "five axes": (torch.bmm, (r(7, 5, 5), r(7, 5, 9)), 0),
    "a long sum": (torch.bmm, (r(7, 3, 64), r(7, 64, 3)), 0),
    "features of three": (torch.mm, (r(64, 3), r(3, 32)), 0),
    "an outer product": (torch.bmm, (r(7, 3, 1), r(7, 1, 3)), 0),
    "numbers": (torch.bmm, (r(7, 3, 3).long(), r(7, 3, 3).long()), 0),
}  # fmt: skip


@pytest.mark.parametrize(("fn", "args", "count"), PROGRAMS.values(), ids=PROGRAMS)
def test_values(fn: Callable[..., T], args: tuple[T, ...], count: int) -> None:
    graph = graph_of(fn, args)
    assert write_out_frames(graph) == count
    graph.lint()
    got = torch.fx.GraphModule(torch.nn.Module(), graph)(*args)
    expected = fn(*args)
    assert got.dtype == expected.dtype and got.shape == expected.shape
    (result,) = graph.output_node().all_input_nodes
    assert result.meta["val"].shape == got.shape
    assert_close(got, expected, fn(*exactly(args)))


def spread(k: T, v: T, rotation: T) -> T:
    return torch.softmax(k @ k.mT, -1) @ torch.einsum("nxy,nhy->nhx", rotation, v).flatten(1)


@pytest.mark.parametrize("dynamic", [False, True])
def test_beside_a_region(dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    def counted(graph: torch.fx.Graph) -> int:
        counts.append(write_out_frames(graph))
        return counts[-1]

    monkeypatch.setattr("flashlight.capture.capture.write_out_frames", counted)
    args = (r(40, 8), r(40, 6, 3), r(40, 3, 3))
    if dynamic:
        for x in args:
            torch._dynamo.mark_dynamic(x, 0)
    compiled = flashlight.compile(spread)
    assert_close(compiled(*args), spread(*args), spread(*exactly(args)))
    assert counts == [1]


def test_not_where_nothing_is_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(graph: torch.fx.Graph) -> int:
        raise AssertionError

    monkeypatch.setattr("flashlight.capture.capture.write_out_frames", never)
    args: tuple[Any, ...] = (r(7, 3, 3), r(7, 5, 2, 3))
    compiled = torch.compile(turned, backend="flashlight", options={"strict": True})
    assert_close(compiled(*args), turned(*args), turned(*exactly(args)))
