"""Matrix products: sums of products like any other, but marked, because they are what makes scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import Binary, Expr, const
from flashlight.ir.monoids import SUM
from flashlight.lift import values
from flashlight.lift.extents import Extent, is_one, quotient
from flashlight.lift.lift import Lifter, NoRuleError, rule
from flashlight.lift.rules.pointwise import typed
from flashlight.lift.values import Factors, Positions, Value, refine

aten = torch.ops.aten


def _product(lift: Lifter, node: torch.fx.Node, a: Value, b: Value, dtype: DType) -> Value:
    """sum over the last axis of a and the second last of b; leading axes are shared."""
    if not dtype.is_float:
        raise NoRuleError("a product of integer matrices")
    if a.dtype is not b.dtype:
        raise NoRuleError("a product of matrices of two types, which is an error in PyTorch")
    shape = (*a.shape[:-1], b.shape[-1]) if len(b.shape) > 1 else a.shape[:-1]
    rows = len(a.shape) - 2
    batch = [_both(a.factors[i], b.factors[i]) for i in range(rows)]
    columns = (b.factors[-1],) if len(b.shape) > 1 else ()
    inner = _both(a.factors[-1], b.factors[-2] if len(b.shape) > 1 else b.factors[-1])

    def body(out: Positions, reduced: Positions) -> Expr:
        shared, row = out[:rows], out[rows]
        x = a.at((*shared, row, reduced[0]))
        y = b.at((*shared, reduced[0], out[-1])) if len(b.shape) > 1 else b.at((reduced[0],))
        return Binary("mul", x, y)

    factors = (*batch, a.factors[-2], *columns)
    return _sum_of(lift, node, shape, body, dtype, factors, inner)


def _sum_of(
    lift: Lifter,
    node: torch.fx.Node,
    shape: tuple[Extent, ...],
    body: Callable[[Positions, Positions], Expr],
    dtype: DType,
    factors: tuple[Factors, ...],
    inner: Factors,
) -> Value:
    """A sum of products over one axis; the product itself where there is only one."""
    one_term = not inner
    return lift.make(
        node,
        shape,
        (lambda out, _: body(out, ((),))) if one_term else body,
        dtype,
        factors=factors,
        reduced=() if one_term else (inner,),
        monoid=None if one_term else SUM,
        contraction=not one_term,
    )


def _both(a: Factors, b: Factors) -> Factors:
    return refine(a, b) or a


@rule(aten.bmm.default, aten.mm.default)
def _mm(lift: Lifter, node: torch.fx.Node, a: Any, b: Any) -> Value:
    return _product(lift, node, lift.tensor(a), lift.tensor(b), lift.dtype(node))


@rule(aten.mv.default)
def _mv(lift: Lifter, node: torch.fx.Node, a: Any, b: Any) -> Value:
    return _product(lift, node, lift.tensor(a), lift.tensor(b), lift.dtype(node))


@rule(aten.convolution.default)
def _convolution(
    lift: Lifter,
    node: torch.fx.Node,
    x: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[Any],
    padding: Sequence[Any],
    _: Any,
    transposed: bool,
    __: Any,
    groups: int,
) -> Value:
    """One whose window is a single element: a product over channels."""
    source, kernel, dtype = lift.tensor(x), lift.tensor(weight), lift.dtype(node)
    if transposed or any(s != 1 for s in stride) or any(p != 0 for p in padding):
        raise NoRuleError("a convolution that moves elements")
    if not all(map(is_one, kernel.shape[2:])) or source.dtype is not kernel.dtype:
        raise NoRuleError("a convolution with a window")
    product = _channel_product(lift, node, source, kernel, groups)
    if bias is None:
        return product
    axes = [1] * (len(source.shape) - 2)
    offsets = values.reshape(lift.tensor(bias), (kernel.shape[0], *axes))
    return lift.pointwise(node, lambda p, b: Binary("add", p, typed(b, dtype)), product, offsets)


def _channel_product(
    lift: Lifter, node: torch.fx.Node, x: Value, weight: Value, groups: int
) -> Value:
    """sum over the channels of each group; unrounded where a bias is still to be added."""
    outer, inner = weight.shape[:2]
    each = quotient(outer, groups)
    if each is None:
        raise NoRuleError("groups of symbolic sizes")
    a = values.reshape(x, (x.shape[0], groups, inner, *x.shape[2:]))
    b = values.reshape(weight, (groups, each, inner))

    def body(out: Positions, reduced: Positions) -> Expr:
        group, channel = values.split(out[1], (groups, each))
        left = a.at((out[0], group, reduced[0], *out[2:]))
        return Binary("mul", left, b.at((group, channel, reduced[0])))

    dtype = lift.dtype(node)
    return _sum_of(
        lift,
        node,
        lift.shape(node),
        body,
        dtype if node.args[2] is None else dtype.compute,
        (a.factors[0], (*b.factors[0], *b.factors[1]), *a.factors[3:]),
        _both(a.factors[2], b.factors[2]),
    )


@rule(aten.addmm.default, aten.baddbmm.default)
def _addmm(
    lift: Lifter, node: torch.fx.Node, c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1
) -> Value:
    """beta * c + alpha * (a @ b), rounded once at the end; c is not looked at where beta is 0."""
    dtype = lift.dtype(node)
    if not isinstance(beta, int | float) or not isinstance(alpha, int | float):
        raise NoRuleError("a symbolic alpha or beta")
    product = _product(lift, node, lift.tensor(a), lift.tensor(b), dtype.compute)

    def scaled(x: Expr, factor: float) -> Expr:
        return x if factor == 1 else Binary("mul", x, const(factor, dtype.compute))

    if beta == 0:
        return lift.pointwise(node, lambda p: scaled(p, alpha), product)
    return lift.pointwise(
        node,
        lambda p, x: Binary("add", scaled(typed(x, dtype), beta), scaled(p, alpha)),
        product,
        lift.tensor(c),
    )
