"""Ops that only move elements: their rules change where one reads, and make no nest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from flashlight.ir.exprs import Expr, const
from flashlight.lift import values
from flashlight.lift.extents import Extent, expr_of, is_one
from flashlight.lift.lift import Lifter, NoRuleError, rule
from flashlight.lift.values import Value, plus

aten = torch.ops.aten
prims = torch.ops.prims


@rule(
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten._reshape_alias.default,
    aten.flatten.using_ints,
    aten.unflatten.int,
    view=True,
)
def _reshape(lift: Lifter, node: torch.fx.Node, x: Any, *_: Any) -> Value:
    return values.reshape(lift.tensor(x), lift.shape(node))


@rule(
    aten.alias.default,
    aten.clone.default,
    aten.detach.default,
    aten.contiguous.default,
    aten.lift_fresh_copy.default,
    aten.lift_fresh.default,
    view=True,
)
def _same(lift: Lifter, node: torch.fx.Node, x: Any, **_: Any) -> Value:
    return lift.tensor(x)


@rule(aten.permute.default, view=True)
def _permute(lift: Lifter, node: torch.fx.Node, x: Any, dims: Sequence[int]) -> Value:
    source = lift.tensor(x)
    return values.permute(source, [d % len(source.shape) for d in dims])


@rule(aten.transpose.int, view=True)
def _transpose(lift: Lifter, node: torch.fx.Node, x: Any, first: int, second: int) -> Value:
    source = lift.tensor(x)
    order = list(range(len(source.shape)))
    order[first], order[second] = order[second], order[first]
    return values.permute(source, order)


@rule(aten.t.default, view=True)
def _t(lift: Lifter, node: torch.fx.Node, x: Any) -> Value:
    source = lift.tensor(x)
    return values.permute(source, list(range(len(source.shape)))[::-1])


@rule(aten.expand.default, prims.broadcast_in_dim.default, view=True)
def _expand(lift: Lifter, node: torch.fx.Node, x: Any, *args: Any, **_: Any) -> Value:
    source = lift.tensor(x)
    if node.target is prims.broadcast_in_dim.default:
        for axis in range(len(lift.shape(node))):
            if axis not in args[1]:
                source = values.insert_axis(source, axis)
    return values.broadcast(source, lift.shape(node))


@rule(aten.unsqueeze.default, view=True)
def _unsqueeze(lift: Lifter, node: torch.fx.Node, x: Any, dim: int) -> Value:
    source = lift.tensor(x)
    return values.insert_axis(source, dim % (len(source.shape) + 1))


@rule(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, view=True)
def _squeeze(lift: Lifter, node: torch.fx.Node, x: Any, dims: Any = None) -> Value:
    source = lift.tensor(x)
    rank = len(source.shape)
    wanted = range(rank) if dims is None else [dims] if isinstance(dims, int) else dims
    return values.drop_axes(source, [d % rank for d in wanted if is_one(source.shape[d % rank])])


@rule(aten.select.int, view=True)
def _select(lift: Lifter, node: torch.fx.Node, x: Any, dim: int, index: Any) -> Value:
    source = lift.tensor(x)
    axis = dim % len(source.shape)
    return values.select(source, axis, _wrapped(lift, index, source.shape[axis]))


@rule(aten.slice.Tensor, view=True)
def _slice(
    lift: Lifter,
    node: torch.fx.Node,
    x: Any,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Value:
    source = lift.tensor(x)
    axis = dim % len(source.shape)
    begin = slice_start(lift, start, source.shape[axis])
    return values.slice_axis(source, axis, begin, step, lift.shape(node)[axis])


def slice_start(lift: Lifter, start: Any, size: Extent) -> Expr:
    """Where a slice of an axis begins; starts beyond either end are clamped, as slicing does."""
    begin = 0 if start is None else lift.extent(start)
    if isinstance(begin, int) and isinstance(size, int):
        return const(min(max(begin + size if begin < 0 else begin, 0), size))
    if isinstance(begin, int):
        return const(begin) if begin >= 0 else plus(expr_of(size), const(begin))
    return expr_of(begin)


def _wrapped(lift: Lifter, index: Any, size: Extent) -> Expr:
    where = lift.extent(index)
    if isinstance(where, int) and where < 0:
        return (
            plus(expr_of(size), const(where)) if not isinstance(size, int) else const(where + size)
        )
    return expr_of(where)


@rule(
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.split.sizes,
    aten.split_with_sizes_copy.default,
    view=True,
)
def _split(
    lift: Lifter, node: torch.fx.Node, x: Any, sizes: Any, dim: int = 0
) -> tuple[Value | None, ...]:
    source = lift.tensor(x)
    axis = dim % len(source.shape)
    start: Expr = const(0)
    parts: list[Value | None] = []
    for part in node.meta["val"]:
        extent = lift.sizes.shape(part)[axis]
        parts.append(values.slice_axis(source, axis, start, 1, extent))
        start = plus(start, expr_of(extent))
    return tuple(parts)


@rule(aten.unbind.int, view=True)
def _unbind(lift: Lifter, node: torch.fx.Node, x: Any, dim: int = 0) -> tuple[Value | None, ...]:
    source = lift.tensor(x)
    axis = dim % len(source.shape)
    return tuple(values.select(source, axis, const(i)) for i in range(len(node.meta["val"])))


@rule(aten.flip.default, prims.rev.default, view=True)
def _flip(lift: Lifter, node: torch.fx.Node, x: Any, dims: Sequence[int]) -> Value:
    result = lift.tensor(x)
    for dim in dims:
        result = values.flip(result, dim % len(result.shape))
    return result


@rule(aten.diagonal.default, view=True)
def _diagonal(
    lift: Lifter, node: torch.fx.Node, x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Value:
    source = lift.tensor(x)
    rank = len(source.shape)
    return values.diagonal(source, offset, dim1 % rank, dim2 % rank, lift.shape(node)[-1])


@rule(aten.unfold.default, view=True)
def _unfold(lift: Lifter, node: torch.fx.Node, x: Any, dim: int, size: Any, step: Any) -> Value:
    source, shape = lift.tensor(x), lift.shape(node)
    if not source.shape:
        raise NoRuleError("windows of a scalar")
    axis = dim % len(source.shape)
    return values.windows(source, axis, lift.literal(step), (shape[axis], shape[-1]))


@rule(aten.repeat.default, view=True)
def _repeat(lift: Lifter, node: torch.fx.Node, x: Any, repeats: Sequence[Any]) -> Value:
    source = lift.tensor(x)
    return values.repeat(source, [lift.literal(r) for r in repeats])


@rule(aten.roll.default, view=True)
def _roll(lift: Lifter, node: torch.fx.Node, x: Any, shifts: Any, dims: Any = ()) -> Value:
    if len(shifts) != len(dims):
        raise NoRuleError("roll of the flattened tensor")
    result = lift.tensor(x)
    for shift, dim in zip(shifts, dims, strict=True):
        axis = dim % len(result.shape)
        size = result.shape[axis]
        if not isinstance(size, int) or not isinstance(shift, int):
            raise NoRuleError("roll by a symbol")
        result = values.rotate(result, axis, shift % size if size else 0)
    return result
