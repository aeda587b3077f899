"""Which FX nodes depend on which, as bit sets: a bit for each node that computes, in the order of the graph.

A graph of thousands of products asks this many times, and a walk for each question would make capture quadratic in the graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

import torch.fx

Node = torch.fx.Node


class Paths:
    """Dependence in one graph.

    Attributes:
        bits: a node's own bit; 0 for inputs of the graph and for views, which nobody asks for.
        upward: for each node, what it depends on, with itself.
        downward: for each node, what depends on it, with itself.
    """

    def __init__(self, graph: torch.fx.Graph, views: Set[Node]) -> None:
        self.nodes: list[Node] = []
        self.bits: dict[Node, int] = {}
        for node in graph.nodes:
            is_silent = node.op in ("placeholder", "get_attr") or node in views
            self.bits[node] = 0 if is_silent else 1 << len(self.nodes)
            if not is_silent:
                self.nodes.append(node)
        self.upward: dict[Node, int] = {}
        for node in graph.nodes:
            self.upward[node] = self._joined(node, node.all_input_nodes, self.upward)
        self.downward: dict[Node, int] = {}
        for node in reversed(graph.nodes):
            self.downward[node] = self._joined(node, node.users, self.downward)

    def _joined(self, node: Node, others: Iterable[Node], known: dict[Node, int]) -> int:
        found = self.bits[node]
        for other in others:
            found |= known[other]
        return found

    def of(self, mask: int) -> Iterator[Node]:
        """The nodes of a set, in the order of the graph."""
        while mask:
            lowest = mask & -mask
            yield self.nodes[lowest.bit_length() - 1]
            mask ^= lowest

    def set_of(self, nodes: Iterable[Node]) -> int:
        """These nodes."""
        found = 0
        for node in nodes:
            found |= self.bits[node]
        return found

    def after(self, mask: int) -> int:
        """What depends on nodes of a set, with these."""
        found = 0
        for node in self.of(mask):
            found |= self.downward[node]
        return found

    def before(self, mask: int) -> int:
        """What nodes of a set depend on, with these."""
        found = 0
        for node in self.of(mask):
            found |= self.upward[node]
        return found
