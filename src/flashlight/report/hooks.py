"""The two places where `explain` looks into Inductor, behind whatever passes a user has put there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass


class _AfterGraph(CustomGraphPass):
    def __init__(self, before: Any, look: Callable[[fx.Graph], None]) -> None:
        self.before = before if isinstance(before, (list, tuple)) else [before] if before else []
        self.look = look

    def uuid(self) -> None:
        """No cache may keep what an explained compilation makes."""
        return

    def __call__(self, graph: fx.Graph) -> None:
        for run in self.before:
            run(graph)
        self.look(graph)


def after_graph(before: Any, look: Callable[[fx.Graph], None]) -> CustomGraphPass:
    """A graph pass that runs `before` (None, a pass or a list of them) and then looks."""
    return _AfterGraph(before, look)


def after_kernels(
    before: Any, look: Callable[[list[Any]], list[Any]]
) -> Callable[[list[Any]], list[Any]]:
    """A scheduler pass that runs `before`, if there is one, and then looks."""

    def run(nodes: list[Any]) -> list[Any]:
        return look(before(nodes) if before else nodes)

    return run
