"""Dependence as bit sets, against walks."""

from __future__ import annotations

import torch

from flashlight.capture.paths import Paths
from flashlight.lift import rules as _rules
from flashlight.lift.lift import Lifter
from tests.support.tracing import graph_of

del _rules


def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a = x @ y.mT
    b = a.exp().mT
    return b + a.sum(), (b.reshape(-1) * 2, y.sin())[0]


def test_sets_are_those_of_walks() -> None:
    graph = graph_of(program, (torch.randn(3, 4), torch.randn(3, 4)))
    lifter = Lifter(graph)
    paths = Paths(graph, lifter.views)
    assert {n for n in graph.nodes if not paths.bits[n]} == {
        n for n in graph.nodes if n in lifter.views or n.op == "placeholder"
    }
    for node in graph.nodes:
        for mask, step in (
            (paths.upward[node], lambda n: n.all_input_nodes),
            (paths.downward[node], lambda n: list(n.users)),
        ):
            seen, work = set(), [node]
            while work:
                seen.add(n := work.pop())
                work.extend(step(n))
            assert set(paths.of(mask)) == {n for n in seen if paths.bits[n]}
    everything = paths.set_of(graph.nodes)
    assert list(paths.of(everything)) == paths.nodes
    first = paths.bits[paths.nodes[0]]
    assert paths.after(first) == paths.downward[paths.nodes[0]]
    assert paths.before(everything) == everything
