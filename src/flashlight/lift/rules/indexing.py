"""Ops that read at positions found in integer tensors: loads whose indices contain loads."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from flashlight.ir.exprs import ZERO, Binary, Expr, Select, add
from flashlight.lift import values
from flashlight.lift.extents import Extent, expr_of
from flashlight.lift.lift import Lifter, NoRuleError, common_factors, rule
from flashlight.lift.values import Factors, Position, Positions, Value, digit
from flashlight.rewrite.simplify import simplify

aten = torch.ops.aten


def wrapped(index: Expr, size: Extent) -> Expr:
    """A position that counts from the end where it is negative."""
    below = simplify(Binary("lt", index, ZERO))
    return simplify(Select(below, add(index, expr_of(size)), index))


def _integer(x: Value) -> Value:
    if not x.dtype.is_int:
        raise NoRuleError("an index that is a mask")
    return x


@rule(aten.index.Tensor, aten._unsafe_index.Tensor)
def _index(lift: Lifter, node: torch.fx.Node, x: Any, index: Any) -> Value:
    source, shape = lift.tensor(x), lift.shape(node)
    where = {axis: _integer(lift.tensor(i)) for axis, i in enumerate(index) if i is not None}
    rank = max(len(i.shape) for i in where.values())
    first = _place(sorted(where))
    kept = [axis for axis in range(len(source.shape)) if axis not in where]
    found = shape[first : first + rank]
    wide = {axis: values.broadcast(i, found) for axis, i in where.items()}

    def body(out: Positions, _: Positions) -> Expr:
        at = out[first : first + rank]
        rest = (*out[:first], *out[first + rank :])
        positions: list[Position] = [()] * len(source.shape)
        for axis, position in zip(kept, rest, strict=True):
            positions[axis] = position
        for axis, value in wide.items():
            size = source.shape[axis]
            positions[axis] = digit(wrapped(value.at(at), size), size)
        return source.at(positions)

    factors: list[Factors] = [source.factors[axis] for axis in kept]
    factors[first:first] = common_factors(found, list(where.values()))
    return lift.make(node, shape, body, source.dtype, factors=factors)


def _place(axes: list[int]) -> int:
    """Where the axes of the indices go: in place of the indexed ones if those stand together, else in front."""
    together = axes == list(range(axes[0], axes[-1] + 1))
    return axes[0] if together else 0


@rule(aten.index_select.default)
def _index_select(lift: Lifter, node: torch.fx.Node, x: Any, dim: int, index: Any) -> Value:
    source = lift.tensor(x)
    axis = dim % len(source.shape)
    return _index(lift, node, x, [None] * axis + [index])


@rule(aten.embedding.default)
def _embedding(lift: Lifter, node: torch.fx.Node, table: Any, index: Any, *_: Any) -> Value:
    return _index(lift, node, table, [index])


@rule(aten.gather.default)
def _gather(
    lift: Lifter, node: torch.fx.Node, x: Any, dim: int, index: Any, sparse_grad: bool = False
) -> Value:
    source, where = lift.tensor(x), _integer(lift.tensor(index))
    if not source.shape:
        return source
    axis = dim % len(source.shape)
    size = source.shape[axis]

    def body(out: Positions, _: Positions) -> Expr:
        positions = list(out)
        positions[axis] = digit(wrapped(where.at(out), size), size)
        return source.at(positions)

    return lift.make(node, where.shape, body, source.dtype, factors=where.factors)
