"""Ops that reduce axes of one tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import Binary, Expr, Select, Unary, const, dtype_of
from flashlight.ir.monoids import ALL, ANY, ARGMAX, ARGMIN, MAX, MIN, PROD, SUM, Monoid
from flashlight.lift.extents import Extent, expr_of, product
from flashlight.lift.lift import Lifter, NoRuleError, convert, rule
from flashlight.lift.rules.pointwise import typed
from flashlight.lift.values import Factors, Position, Positions, Value

aten = torch.ops.aten
prims = torch.ops.prims


def _axes(rank: int, dims: Any) -> list[int]:
    if dims is None or (isinstance(dims, Sequence) and not dims):
        return list(range(rank))
    return sorted({d % rank for d in ([dims] if isinstance(dims, int) else dims)}) if rank else []


def reduce(
    lift: Lifter,
    node: torch.fx.Node,
    x: Value,
    dims: Any,
    keepdim: bool,
    monoid: Monoid,
    dtype: DType,
    element: Callable[[Expr], Expr] = lambda e: e,
) -> Value:
    """`monoid` over the axes `dims` of `element` of x."""
    axes = _axes(len(x.shape), dims)
    shape: list[Extent] = []
    factors: list[Factors] = []
    sources: list[int] = []  # for each axis of the result, the axis of x, or -1
    for i, n in enumerate(x.shape):
        if i not in axes:
            shape.append(n)
            factors.append(x.factors[i])
            sources.append(i)
        elif keepdim:
            shape.append(1)
            factors.append(())
            sources.append(-1)

    def body(out: Positions, inner: Positions) -> Expr:
        positions: list[Position] = [()] * len(x.shape)
        for axis, source in enumerate(sources):
            if source >= 0:
                positions[source] = out[axis]
        for axis, position in zip(axes, inner or [()] * len(axes), strict=True):
            positions[axis] = position
        return element(x.at(positions))

    reduced = tuple(x.factors[i] for i in axes)
    if not any(reduced):  # axes of size 1
        single = convert(const(0), DType.I64) if monoid.is_position else None
        return lift.make(
            node,
            tuple(shape),
            (lambda out, inner: single) if single is not None else body,
            dtype,
            factors=factors,
        )
    return lift.make(
        node, tuple(shape), body, dtype, factors=factors, reduced=reduced, monoid=monoid
    )


@rule(aten.amax.default, aten.amin.default)
def _amax(
    lift: Lifter, node: torch.fx.Node, x: Any, dims: Any = (), keepdim: bool = False
) -> Value:
    source = _float(lift.tensor(x))
    monoid = MAX if node.target is aten.amax.default else MIN
    return reduce(lift, node, source, dims, keepdim, monoid, source.dtype)


@rule(aten.max.default, aten.min.default)
def _max(lift: Lifter, node: torch.fx.Node, x: Any) -> Value:
    source = _float(lift.tensor(x))
    monoid = MAX if node.target is aten.max.default else MIN
    return reduce(lift, node, source, None, False, monoid, source.dtype)


@rule(aten.max.dim, aten.min.dim)
def _max_dim(
    lift: Lifter, node: torch.fx.Node, x: Any, dim: int, keepdim: bool = False
) -> tuple[Value, Value]:
    source = _float(lift.tensor(x))
    value, place = (MAX, ARGMAX) if node.target is aten.max.dim else (MIN, ARGMIN)
    return (
        reduce(lift, node, source, dim, keepdim, value, source.dtype),
        reduce(lift, node, source, dim, keepdim, place, DType.I64),
    )


@rule(aten.topk.default)
def _topk(
    lift: Lifter,
    node: torch.fx.Node,
    x: Any,
    k: Any,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> tuple[Value, Value]:
    """The first of all: an extremum and where it is."""
    source = _float(lift.tensor(x))
    if lift.literal(k) != 1 or not source.shape:
        raise NoRuleError("more than one")
    value, place = (MAX, ARGMAX) if largest else (MIN, ARGMIN)
    return (
        reduce(lift, node, source, dim, True, value, source.dtype),
        reduce(lift, node, source, dim, True, place, DType.I64),
    )


@rule(aten.argmax.default, aten.argmin.default)
def _argmax(
    lift: Lifter, node: torch.fx.Node, x: Any, dim: Any = None, keepdim: bool = False
) -> Value:
    monoid = ARGMAX if node.target is aten.argmax.default else ARGMIN
    return reduce(lift, node, _float(lift.tensor(x)), dim, keepdim, monoid, DType.I64)


def _float(x: Value) -> Value:
    if not x.dtype.is_float:
        raise NoRuleError("a maximum of integers")
    return x


@rule(aten.sum.default, aten.sum.dim_IntList, aten.prod.default, aten.prod.dim_int)
def _sum(
    lift: Lifter,
    node: torch.fx.Node,
    x: Any,
    dims: Any = None,
    keepdim: bool = False,
    dtype: Any = None,
) -> Value:
    result = lift.dtype(node)
    monoid = SUM if node.target in (aten.sum.default, aten.sum.dim_IntList) else PROD
    return reduce(
        lift, node, lift.tensor(x), dims, keepdim, monoid, result, lambda e: typed(e, result)
    )


@rule(aten.any.default, aten.any.dim, aten.any.dims, aten.all.default, aten.all.dim, aten.all.dims)
def _any(
    lift: Lifter, node: torch.fx.Node, x: Any, dims: Any = None, keepdim: bool = False
) -> Value:
    monoid = ANY if node.target in (aten.any.default, aten.any.dim, aten.any.dims) else ALL
    return reduce(
        lift,
        node,
        lift.tensor(x),
        dims,
        keepdim,
        monoid,
        lift.dtype(node),
        lambda e: convert(e, DType.BOOL),
    )


@rule(aten.mean.default, aten.mean.dim)
def _mean(
    lift: Lifter,
    node: torch.fx.Node,
    x: Any,
    dims: Any = None,
    keepdim: bool = False,
    dtype: Any = None,
) -> Value:
    return _mean_of(lift, node, lift.tensor(x), dims, keepdim, lift.dtype(node))


def _mean_of(
    lift: Lifter, node: torch.fx.Node, x: Value, dims: Any, keepdim: bool, dtype: DType
) -> Value:
    wide = dtype.compute
    total = reduce(lift, node, x, dims, keepdim, SUM, wide, lambda e: typed(e, wide))
    count = _count(x, dims, wide)
    return lift.pointwise(
        node, lambda s: Binary("div", s, count), total, dtype=dtype, shape=total.shape
    )


def _count(x: Value, dims: Any, dtype: DType) -> Expr:
    extents = [x.shape[a] for a in _axes(len(x.shape), dims)]
    return convert(expr_of(product(extents)), dtype)


@rule(aten.var_mean.correction, aten.var.correction)
def _var_mean(
    lift: Lifter,
    node: torch.fx.Node,
    x: Any,
    dims: Any = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
) -> Value | tuple[Value, Value]:
    source = lift.tensor(x)
    both = node.target is aten.var_mean.correction
    dtype = lift.dtype(node, 0) if both else lift.dtype(node)
    wide = dtype.compute
    centre = _mean_of(lift, node, source, dims, True, wide)
    squares = lift.pointwise(
        node,
        lambda e, m: Binary("mul", Binary("sub", e, m), Binary("sub", e, m)),
        source,
        centre,
        dtype=wide,
        shape=source.shape,
    )
    total = reduce(lift, node, squares, dims, keepdim, SUM, wide)
    less = 1 if correction is None else correction
    count = _count(source, dims, wide)
    divisor = Binary("max", Binary("sub", count, const(less, wide)), const(0, wide))
    variance = lift.pointwise(
        node, lambda s: Binary("div", s, divisor), total, dtype=dtype, shape=total.shape
    )
    if not both:
        return variance
    return variance, _mean_of(lift, node, source, dims, keepdim, dtype)


@rule(aten._softmax.default, aten._log_softmax.default)
def _softmax(
    lift: Lifter, node: torch.fx.Node, x: Any, dim: int, half_to_float: bool = False
) -> Value:
    source = _float(lift.tensor(x))
    wide, shape = source.dtype.compute, source.shape
    peak = reduce(lift, node, source, dim, True, MAX, wide)
    shifted = lift.pointwise(
        node, lambda e, m: Binary("sub", e, m), source, peak, dtype=wide, shape=shape
    )
    weight = lift.pointwise(node, lambda e: Unary("exp", e), shifted, dtype=wide, shape=shape)
    total = reduce(lift, node, weight, dim, True, SUM, wide)
    if node.target is aten._softmax.default:
        return lift.pointwise(node, lambda e, t: Binary("div", e, t), weight, total)
    return lift.pointwise(node, lambda e, t: Binary("sub", e, Unary("log", t)), shifted, total)


@rule(aten.logsumexp.default)
def _logsumexp(
    lift: Lifter, node: torch.fx.Node, x: Any, dims: Any, keepdim: bool = False
) -> Value:
    source = _float(lift.tensor(x))
    wide = source.dtype.compute
    peak = reduce(lift, node, source, dims, True, MAX, wide)
    safe = lift.pointwise(node, _finite_or_zero, peak, dtype=wide, shape=peak.shape)
    weight = lift.pointwise(
        node,
        lambda e, m: Unary("exp", Binary("sub", e, m)),
        source,
        safe,
        dtype=wide,
        shape=source.shape,
    )
    total = reduce(lift, node, weight, dims, keepdim, SUM, wide)
    peak = reduce(lift, node, source, dims, keepdim, MAX, wide)
    return lift.pointwise(
        node, lambda t, m: Binary("add", Unary("log", t), _finite_or_zero(m)), total, peak
    )


def _finite_or_zero(m: Expr) -> Expr:
    return Select(Unary("isinf", m), const(0, dtype_of(m).compute), m)
