"""Views make no nests, and read where eager reads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from flashlight.ir.text import print_statement
from tests.support.tracing import check_lift, graph_of, lifted

Fn = Callable[[torch.Tensor], torch.Tensor]

VIEWS: dict[str, Fn] = {
    "view merges": lambda x: x.view(2, 12, 5),
    "view splits": lambda x: x.view(2, 3, 2, 2, 5),
    "view cuts across": lambda x: x.view(2, 4, 3, 5),
    "view flat": lambda x: x.view(-1),
    "view uneven": lambda x: x.view(8, 15),
    "reshape of a permuted tensor": lambda x: x.permute(0, 2, 1, 3).reshape(2, 4, 15),
    "permute": lambda x: x.permute(3, 1, 0, 2),
    "transpose": lambda x: x.transpose(-1, 1),
    "expand": lambda x: x[:, :1].expand(2, 6, 4, 5),
    "expand in front": lambda x: x.expand(3, 2, 3, 4, 5),
    "unsqueeze": lambda x: x.unsqueeze(2).unsqueeze(-1),
    "squeeze": lambda x: x[:, :1].squeeze(1),
    "select": lambda x: x[:, -1],
    "slice": lambda x: x[:, 1:, ::2, :-1],
    "slice beyond the end": lambda x: x[:, -9:, 2:99],
    "split": lambda x: x.split([1, 2], 1)[1],
    "chunk": lambda x: x.chunk(2, -2)[1],
    "unbind": lambda x: x.unbind(2)[3],
    "flip": lambda x: x.flip(1, 3),
    "diagonal": lambda x: x.diagonal(1, 2, 3),
    "repeat": lambda x: x.repeat(2, 1, 3, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(3, 1),
    "clone": lambda x: x.permute(1, 0, 2, 3).contiguous(),
    "roll": lambda x: x.roll(2, 1),
    "windows": lambda x: x.unfold(1, 2, 1),
    "windows with a step": lambda x: x.unfold(3, 3, 2),
    "round trip": lambda x: x.view(2, 12, 5).view(24, 5).view(2, 3, 4, 5),
}


@pytest.mark.parametrize("fn", VIEWS.values(), ids=VIEWS)
def test_view(fn: Fn) -> None:
    x = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    check_lift(lambda x: fn(x) * 2, x)


@pytest.mark.parametrize("name", ["view merges", "permute", "expand", "slice", "round trip"])
def test_view_is_no_nest(name: str) -> None:
    graph = graph_of(lambda x: VIEWS[name](x) * 2, [torch.randn(2, 3, 4, 5)])
    lifter, _ = lifted(graph)
    assert [c.target for c in lifter.cells.values()] == ["aten.mul.Tensor"]


def test_round_trip_leaves_nothing() -> None:
    graph = graph_of(lambda x: VIEWS["round trip"](x) * 2, [torch.randn(2, 3, 4, 5)])
    lifter, _ = lifted(graph)
    (cell,) = lifter.cells.values()
    assert print_statement(cell.nest).endswith("x_1[p0, p1, p2, p3] * 2.0")


def test_merged_axes_stay_apart() -> None:
    """Heads merged into the batch of a product are dims of their own."""

    def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return torch.bmm(q.reshape(6, 4, 5), k.reshape(6, 4, 5).transpose(1, 2))

    graph = graph_of(scores, [torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5)])
    lifter, _ = lifted(graph)
    (cell,) = lifter.cells.values()
    text = "nest bmm (p0, p1, p2, p3 | r0) f32: sum q_1[p0, p1, p2, r0] * k_1[p0, p1, p3, r0]"
    assert print_statement(cell.nest) == text


def test_grouped_heads_under_dynamic_shapes() -> None:
    """The number of groups is a symbol of its own; nothing is divided."""

    def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        groups = q.shape[1] // k.shape[1]
        wide = k[:, :, None].expand(-1, -1, groups, -1, -1).reshape(q.shape)
        return q @ wide.mT

    args = [torch.randn(2, 6, 7, 5), torch.randn(2, 3, 7, 5)]
    graph = graph_of(scores, args, dynamic=True)
    lifter, _ = lifted(graph)
    (cell,) = lifter.cells.values()
    assert "//" not in print_statement(cell.nest)
    assert len(cell.nest.parallel) == 5


def test_equal_sizes_are_not_one_axis() -> None:
    def both(x: torch.Tensor) -> torch.Tensor:
        return x + x.permute(2, 1, 0)

    check_lift(both, torch.randn(4, 4, 4))
