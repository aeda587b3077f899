"""What is computed again wherever it is read, and what once and stored: vector operations against bytes.

A bias contracted from features of each pair of positions is an inner sum whose body is no product of rows and columns: it runs on
vector units, again for every batch, and its features again for every head. Stored, it takes a trip to memory and room there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import lru_cache

from flashlight.ir.exprs import Binary, Dim, Expr, Reduce, Select, Unary
from flashlight.ir.monoids import SUM
from flashlight.ir.nests import Nest
from flashlight.ir.visit import free_dims, loads, walk
from flashlight.rewrite.bits import strip_casts
from flashlight.rewrite.roles import elements, factors, is_joint_factor

BYTE = 4
"""Vector operations in the time in which a byte is moved, mostly out of a cache: 7 for an H200's memory (33e12 and 4.8e12 a second)."""

DEAR = 10
"""Operations that a function beyond arithmetic takes, or a division."""

MIXED = 1024
"""So many products may be computed again for each element: 16 heads of 64. A device does 8 or 15 in the time of an operation."""

MEMORY = 3
"""Computing again may take 1 + MEMORY times as long where it saves memory as large as the scores, 1 + MEMORY / n for an n-th of it."""

_DEAR = frozenset(
    (
        "exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "reciprocal", "div", "pow", "mod",
        "floordiv", "sin", "cos", "tan", "tanh", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh",
        "atanh", "erf", "erfc", "sigmoid",
    )
)  # fmt: skip


@lru_cache(maxsize=10_000)
def is_joint(nest: Nest) -> bool:
    """Whether the terms of a reduction are no product of what is read for each row, but made of several rows: features of a pair of
    positions.

    Products are dots, which run on other units and do not count here. What is no sum has no factors: a condition counts as it is.
    """
    body = strip_casts(nest.body)
    if nest.monoid is None or nest.monoid.is_position:
        return False
    parts = factors(body) if nest.monoid is SUM else [body]
    return any(is_joint_factor(f, nest) for f in parts)


@lru_cache(maxsize=10_000)
def is_mixed(nest: Nest) -> bool:
    """Whether a sum is one of scores, each of which is a dot: of those of a few heads."""
    inner = [node for node in walk(nest.body) if isinstance(node, Reduce)]
    depth = max((elements(node.dims) for node in inner), default=MIXED)
    return all(_is_dot(r, nest) for r in inner) and depth * elements(nest.reduced) <= MIXED


def _is_dot(node: Reduce, nest: Nest) -> bool:
    """Whether a sum inside a nest's body is a product of what is read for each of its rows."""
    parts = factors(strip_casts(node.body))
    return node.monoid is SUM and not any(is_joint_factor(f, nest) for f in parts)


@dataclass(frozen=True)
class Read:
    """How a nest is read by one that may compute it again.

    Attributes:
        nest: a reduction.
        columns: its parallel dims at which the reader stands at dims that it reduces.
        again: how many times the reader, in all its rows, reads each element.
    """

    nest: Nest
    columns: frozenset[Dim]
    again: int = 1

    @property
    def rows(self) -> Dim | None:
        """The longest of the other dims, along which the reader is taken to have a tile."""
        others = [d for d in self.nest.parallel if d not in self.columns]
        return max(others, key=lambda d: elements((d,)), default=None)

    def is_computed(self) -> bool:
        """Whether each element is computed for each read, rather than once by a kernel that stores it."""
        if is_mixed(self.nest):
            return self.again == 1
        moved = self.nest.dtype.bits // 8 * (1 + self.again)
        once = self._operations(lambda dims: elements(frozenset(self.nest.parallel) - dims))
        longer = self.again * self.operations() / (once + BYTE * moved)
        return longer <= 1 + MEMORY / self.again

    def operations(self) -> float:
        """Vector operations for one element, without what rows or columns alone say, which a tile computes once."""
        return self._operations(lambda dims: 1 if self.is_for_pairs(dims) else math.inf)

    def _operations(self, shared: Callable[[frozenset[Dim]], float]) -> float:
        """Operations for an element, where what varies along some dims is computed once for so many elements."""
        total = float(elements(self.nest.reduced))
        for node in walk(self.nest.body, skip=frozenset(loads(self.nest.body))):
            dims = free_dims(node.body) if isinstance(node, Reduce) else free_dims(node)
            inner = elements(dims - frozenset(self.nest.parallel))
            total += _weight(node) * inner / shared(dims)
        return total

    def is_for_pairs(self, dims: frozenset[Dim]) -> bool:
        """Whether what varies along `dims` differs for each pair of a tile."""
        is_of_columns = not self.columns or not dims.isdisjoint(self.columns)
        return is_of_columns and (self.rows is None or self.rows in dims)

    def reads_again(self, stored: Container[str]) -> bool:
        """Whether it reads elements of stored results for each pair that several of its own elements need."""
        return any(
            load.buffer.name in stored
            and self.is_for_pairs(free_dims(load))
            and not frozenset(self.nest.parallel) <= free_dims(load)
            for load in loads(self.nest.body)
        )


def is_cheaper_than_read(nest: Nest) -> bool:
    """Whether an element is computed in the time in which a word is read: the distance of two points."""
    return Read(nest, frozenset()).operations() <= BYTE * 4


def _weight(node: Expr) -> int:
    match node:
        case Unary(op, _) | Binary(op, _, _):
            return DEAR if op in _DEAR else 1
        case Select() | Reduce():
            return 1
        case _:
            return 0
