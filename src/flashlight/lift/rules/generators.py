"""Ops that make tensors of nothing: constants and positions. They make no nest either."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from flashlight.ir.exprs import Binary, Expr
from flashlight.lift import values
from flashlight.lift.lift import Lifter, convert, rule
from flashlight.lift.values import Positions, Value, fold, plain, plus, times

aten = torch.ops.aten
prims = torch.ops.prims


def _filled(lift: Lifter, node: torch.fx.Node, fill: Any) -> Value:
    """A tensor of one number, which is first converted to its type: −1e10 in f16 is −inf."""
    dtype = lift.dtype(node)
    element = convert(lift.operand(fill).at(()), dtype)
    return values.broadcast(values.scalar(element, dtype), lift.shape(node))


@rule(aten.full.default, aten.full_like.default, aten.new_full.default)
def _full(lift: Lifter, node: torch.fx.Node, first: Any, *args: Any, **_: Any) -> Value:
    return _filled(lift, node, args[-1])


@rule(aten.scalar_tensor.default)
def _scalar_tensor(lift: Lifter, node: torch.fx.Node, x: Any, **_: Any) -> Value:
    return _filled(lift, node, x)


@rule(
    aten.zeros.default,
    aten.zeros_like.default,
    aten.new_zeros.default,
    aten.empty.memory_format,  # whoever reads it may find anything
    aten.empty_like.default,
    aten.new_empty.default,
)
def _zeros(lift: Lifter, node: torch.fx.Node, *_: Any, **__: Any) -> Value:
    return _filled(lift, node, 0)


@rule(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def _ones(lift: Lifter, node: torch.fx.Node, *_: Any, **__: Any) -> Value:
    return _filled(lift, node, 1)


@rule(prims.iota.default)
def _iota(
    lift: Lifter, node: torch.fx.Node, length: Any, *, start: Any, step: Any, **_: Any
) -> Value:
    return _range(lift, node, start, step)


@rule(aten.arange.default, aten.arange.start, aten.arange.start_step)
def _arange(lift: Lifter, node: torch.fx.Node, *args: Any, **_: Any) -> Value:
    start = args[0] if len(args) > 1 else 0
    return _range(lift, node, start, args[2] if len(args) > 2 else 1)


def _range(lift: Lifter, node: torch.fx.Node, start: Any, step: Any) -> Value:
    dtype, shape = lift.dtype(node), lift.shape(node)
    first, by = (lift.operand(a).at(()) for a in (start, step))

    def read(positions: Positions) -> Expr:
        return convert(plus(first, times(fold(positions[0]), by)), dtype)

    return Value(shape, dtype, plain(shape), read, is_index=True)


@rule(aten.eye.default, aten.eye.m)
def _eye(lift: Lifter, node: torch.fx.Node, *_: Any, **__: Any) -> Value:
    dtype, shape = lift.dtype(node), lift.shape(node)

    def read(positions: Positions) -> Expr:
        return convert(Binary("eq", *(fold(p) for p in positions)), dtype)

    return Value(shape, dtype, plain(shape), read, is_index=True)
