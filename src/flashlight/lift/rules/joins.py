"""Ops that put tensors together along an axis: selects over ranges of positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from flashlight.ir.exprs import ZERO, Binary, Expr, Select, add, const, floordiv, mod
from flashlight.lift import values
from flashlight.lift.extents import Extent, expr_of, is_same
from flashlight.lift.lift import Lifter, NoRuleError, convert, rule
from flashlight.lift.rules.pointwise import exactly
from flashlight.lift.rules.views import slice_start
from flashlight.lift.values import Factors, Positions, Value, digit, fold, minus, plus

aten = torch.ops.aten


@rule(aten.cat.default)
def _cat(lift: Lifter, node: torch.fx.Node, tensors: Sequence[Any], dim: int = 0) -> Value:
    parts = [lift.tensor(t) for t in tensors]
    shape, dtype = lift.shape(node), lift.dtype(node)
    parts = [p for p in parts if len(p.shape) == len(shape)]  # a legacy empty tensor has one axis
    axis = dim % len(shape)
    parts = [p for p in parts if p.shape[axis] != 0]
    if len(parts) == 1 and parts[0].dtype is dtype:
        return parts[0]

    def body(out: Positions, _: Positions) -> Expr:
        where = fold(out[axis])
        start: Expr = ZERO
        pieces: list[tuple[Expr, Expr]] = []
        for part in parts:
            inside = digit(minus(where, start), part.shape[axis])
            element = part.at((*out[:axis], inside, *out[axis + 1 :]))
            start = plus(start, expr_of(part.shape[axis]))
            pieces.append((start, exactly(element, dtype)))
        result = pieces[-1][1]
        for end, element in reversed(pieces[:-1]):
            result = Select(Binary("lt", where, end), element, result)
        return result

    return lift.make(node, shape, body, dtype, factors=_factors(parts, axis, shape))


def _factors(parts: Sequence[Value], axis: int, shape: tuple[Extent, ...]) -> tuple[Factors, ...]:
    """Factors of the first part, but for the axis along which it is joined."""
    return (
        *parts[0].factors[:axis],
        *values.plain([shape[axis]]),
        *parts[0].factors[axis + 1 :],
    )


@rule(aten.constant_pad_nd.default)
def _pad(lift: Lifter, node: torch.fx.Node, x: Any, pad: Sequence[Any], fill: Any = 0) -> Value:
    source, shape, dtype = lift.tensor(x), lift.shape(node), lift.dtype(node)
    filler = convert(lift.operand(fill).at(()), dtype)
    rank = len(shape)
    before = {rank - 1 - i: lift.extent(p) for i, p in enumerate(pad[::2])}
    padded = [
        i for i in range(rank) if not is_same(shape[i], source.shape[i]) or before.get(i, 0) != 0
    ]

    def body(out: Positions, _: Positions) -> Expr:
        positions = list(out)
        inside: Expr | None = None
        for axis in padded:
            where = minus(fold(out[axis]), expr_of(before.get(axis, 0)))
            size = expr_of(source.shape[axis])
            fits = Binary("and", Binary("ge", where, ZERO), Binary("lt", where, size))
            inside = fits if inside is None else Binary("and", inside, fits)
            positions[axis] = digit(where, source.shape[axis])
        element = source.at(positions)
        return element if inside is None else Select(inside, element, filler)

    factors = [
        values.plain([n])[0] if i in padded else source.factors[i] for i, n in enumerate(shape)
    ]
    return lift.make(node, shape, body, dtype, factors=factors)


@rule(aten.slice_scatter.default)
def _slice_scatter(
    lift: Lifter,
    node: torch.fx.Node,
    x: Any,
    source: Any,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Value:
    base, written = lift.tensor(x), lift.tensor(source)
    dtype, axis = lift.dtype(node), dim % len(base.shape)
    begin = slice_start(lift, start, base.shape[axis])
    extent = written.shape[axis]
    if is_same(extent, base.shape[axis]):
        return lift.pointwise(node, lambda e: exactly(e, dtype), written)

    def body(out: Positions, _: Positions) -> Expr:
        where = minus(fold(out[axis]), begin)
        place = where if step == 1 else floordiv(where, const(step))
        new = written.at((*out[:axis], digit(place, extent), *out[axis + 1 :]))
        inside: Expr = Binary(
            "and", Binary("ge", where, ZERO), Binary("lt", place, expr_of(extent))
        )
        if step != 1:
            inside = Binary("and", inside, Binary("eq", mod(where, const(step)), ZERO))
        return Select(inside, exactly(new, dtype), base.at(out))

    return lift.make(node, base.shape, body, dtype, factors=_factors([base], axis, base.shape))


@rule(aten.select_scatter.default)
def _select_scatter(
    lift: Lifter, node: torch.fx.Node, x: Any, source: Any, dim: int, index: Any
) -> Value:
    base, written = lift.tensor(x), lift.tensor(source)
    dtype, axis = lift.dtype(node), dim % len(base.shape)
    place = lift.extent(index)
    size = base.shape[axis]
    at = expr_of(place)
    if isinstance(place, int) and place < 0:
        at = const(place + size) if isinstance(size, int) else add(expr_of(size), const(place))

    def body(out: Positions, _: Positions) -> Expr:
        new = written.at((*out[:axis], *out[axis + 1 :]))
        return Select(Binary("eq", fold(out[axis]), at), exactly(new, dtype), base.at(out))

    return lift.make(node, base.shape, body, dtype, factors=_factors([base], axis, base.shape))


@rule(aten.stack.default)
def _stack(lift: Lifter, node: torch.fx.Node, tensors: Sequence[Any], dim: int = 0) -> Value:
    parts = [lift.tensor(t) for t in tensors]
    shape, dtype = lift.shape(node), lift.dtype(node)
    axis = dim % len(shape)
    if not parts:
        raise NoRuleError("nothing to stack")

    def body(out: Positions, _: Positions) -> Expr:
        rest = (*out[:axis], *out[axis + 1 :])
        result = exactly(parts[-1].at(rest), dtype)
        for i, part in reversed(list(enumerate(parts[:-1]))):
            here = Binary("eq", fold(out[axis]), const(i))
            result = Select(here, exactly(part.at(rest), dtype), result)
        return result

    factors = list(parts[0].factors)
    factors.insert(axis, values.plain([shape[axis]])[0])
    return lift.make(node, shape, body, dtype, factors=factors)
