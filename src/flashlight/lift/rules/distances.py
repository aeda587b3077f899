"""Distances of all pairs of rows, and the intervals in which numbers lie: what other libraries look up, written out."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.fx

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import Binary, Cast, Expr, Unary, const, dtype_of
from flashlight.ir.monoids import MAX, SUM
from flashlight.lift import values
from flashlight.lift.lift import Lifter, NoRuleError, rule
from flashlight.lift.rules.reductions import reduce
from flashlight.lift.values import Positions, Value, digit

aten = torch.ops.aten

MOST_EDGES = 32
"""A search among at most so many edges is written as one comparison for each."""


@rule(aten._cdist_forward.default)
def _cdist(
    lift: Lifter, node: torch.fx.Node, x: Any, y: Any, p: float, compute_mode: Any = None
) -> Value:
    """The p-norm of the difference of each row of x and each row of y."""
    shape, dtype = lift.shape(node), lift.dtype(node)
    a, b = lift.tensor(x), lift.tensor(y)
    batch = shape[:-2]
    a = values.insert_axis(values.broadcast(a, (*batch, *a.shape[-2:])), len(batch) + 1)
    b = values.insert_axis(values.broadcast(b, (*batch, *b.shape[-2:])), len(batch))
    wide = (*shape, a.shape[-1])
    gap = lift.pointwise(
        node, lambda u, v: Binary("sub", u, v), a, b, dtype=dtype.compute, shape=wide
    )
    monoid = MAX if p == math.inf else SUM
    total = reduce(lift, node, gap, -1, False, monoid, dtype.compute, lambda e: _power(e, p))
    return lift.pointwise(node, lambda t: _root(t, p), total)


def _power(x: Expr, p: float) -> Expr:
    if p == 0:
        return Cast(Binary("ne", x, const(0, dtype_of(x))), dtype_of(x))
    if p == 2:
        return Binary("mul", x, x)
    size = Unary("abs", x)
    return size if p in (1, math.inf) else Binary("pow", size, const(p, dtype_of(x)))


def _root(x: Expr, p: float) -> Expr:
    if p in (0, 1, math.inf):
        return x
    return Unary("sqrt", x) if p == 2 else Binary("pow", x, const(1 / p, dtype_of(x)))


@rule(aten.bucketize.Tensor)
def _bucketize(
    lift: Lifter,
    node: torch.fx.Node,
    x: Any,
    edges: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
) -> Value:
    """How many edges lie below, for a few edges and many numbers; a NaN lies above all, as eager sorts it."""
    source, border = lift.tensor(x), lift.tensor(edges)
    (count,) = border.shape
    few = isinstance(count, int) and 0 < count <= MOST_EDGES
    if not few or len(source.shape) < 2 or source.dtype is not border.dtype:
        raise NoRuleError("a search that is better made once")
    dtype = DType.I32 if out_int32 else DType.I64
    inside = "lt" if right else "le"

    def body(out: Positions, _: Positions) -> Expr:
        here = source.at(out)
        result: Expr | None = None
        for i in range(count):
            edge = border.at((digit(const(i), count),))
            above = Cast(Unary("not", Binary(inside, here, edge)), dtype)
            result = above if result is None else Binary("add", result, above)
        assert result is not None
        return result

    return lift.make(node, source.shape, body, dtype, factors=source.factors)
