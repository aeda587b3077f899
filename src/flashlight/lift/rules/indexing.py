"""Ops that read at positions found in integer tensors, loads whose indices contain loads; and writing where a mask holds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import torch
import torch.fx

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import (
    ZERO,
    Binary,
    Const,
    Dim,
    Expr,
    Index,
    Select,
    add,
    const,
    is_literal,
)
from flashlight.ir.monoids import ANY
from flashlight.ir.visit import free_dims
from flashlight.lift import values
from flashlight.lift.extents import Extent, expr_of, is_one, is_same
from flashlight.lift.lift import Lifter, NoRuleError, common_factors, rule
from flashlight.lift.rules.pointwise import exactly
from flashlight.lift.values import Factors, Position, Positions, Value, digit, fold, minus, plus
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


@rule(aten.index_put.default, aten._unsafe_index_put.default)
def _index_put(
    lift: Lifter, node: torch.fx.Node, x: Any, index: Any, new: Any, accumulate: bool = False
) -> Value:
    """`x[mask] = new` where all places that the mask selects get the same: a select. The same for a list of positions."""
    source, written, dtype = lift.tensor(x), lift.tensor(new), lift.dtype(node)
    found = {axis: lift.tensor(i) for axis, i in enumerate(index) if i is not None}
    if accumulate or not found:
        raise NoRuleError("adding at positions, or writing at none")
    ((first, mask), *others) = found.items()
    if others or mask.dtype is not DType.BOOL:
        where = {axis: _integer(i) for axis, i in found.items()}
        return _put_at_places(lift, node, source, where, written)
    # The axes of the mask are one of the selection.
    after = first + len(mask.shape)
    kept = len(source.shape) - len(mask.shape) + 1
    chosen = first - (kept - len(written.shape))
    if chosen >= 0 and _varies(written, chosen):
        raise NoRuleError("an element for each place that is chosen")

    def body(out: Positions, _: Positions) -> Expr:
        places: Positions = (*out[:first], (), *out[after:])
        element = written.at(places[kept - len(written.shape) :])
        return Select(mask.at(out[first:after]), exactly(element, dtype), source.at(out))

    return lift.make(node, source.shape, body, dtype, factors=source.factors)


def _put_at_places(
    lift: Lifter, node: torch.fx.Node, source: Value, where: dict[int, Value], written: Value
) -> Value:
    """`x[rows, columns] = new`, with lists of positions that have axes of their own, or run along a diagonal.

    Of lists that share an axis one must be its positions in order, so that where it is written says where the others are read.
    """
    dtype = lift.dtype(node)
    rank = max(len(i.shape) for i in where.values())
    varying = {a: {n for n in range(rank) if _varies_at(i, n, rank)} for a, i in where.items()}
    listed: dict[int, Value] = {}
    solved: dict[int, tuple[int, Expr, Extent]] = {}
    for axis, axes in varying.items():
        sharing = [a for a, others in varying.items() if axes & others]
        if sharing == [axis]:
            listed[axis] = _is_listed(lift, node, where[axis], source.shape[axis])
        elif sharing:
            if any(varying[a] != axes for a in sharing) or len(axes) > 1:
                raise NoRuleError("writing at positions of a table")
            (n,) = axes
            solved[n] = solved.get(n) or _solver(where, sharing, n, rank)
    first = _place(sorted(where))
    kept = [axis for axis in range(len(source.shape)) if axis not in where]
    missing = len(kept) + rank - len(written.shape)
    loose = [n for n in range(rank) if n not in solved and first + n - missing >= 0]
    if any(_varies(written, first + n - missing) for n in loose):
        raise NoRuleError("an element for each place that is chosen")

    def body(out: Positions, _: Positions) -> Expr:
        along: list[Position] = [()] * rank
        here: list[Expr] = []
        for n, (axis, offset, count) in solved.items():
            number = minus(fold(out[axis]), offset)
            along[n] = digit(number, count)
            if not is_literal(offset, 0) or not is_same(count, source.shape[axis]):
                here += [Binary("ge", number, ZERO), Binary("lt", number, expr_of(count))]
        for axis, i in where.items():
            if axis in listed:
                here.append(listed[axis].at([out[axis]]))
            elif axis not in [a for a, _, _ in solved.values()]:
                at = wrapped(i.at(along[rank - len(i.shape) :]), source.shape[axis])
                here.append(Binary("eq", fold(out[axis]), at))
        places = [out[axis] for axis in kept]
        places[first:first] = along
        element = exactly(written.at(places[missing:]), dtype)
        return Select(reduce(partial(Binary, "and"), here), element, source.at(out))

    return lift.make(node, source.shape, body, dtype, factors=source.factors)


def _varies_at(x: Value, axis: int, rank: int) -> bool:
    """Whether elements may differ along an axis of the shape that `x` is broadcast to, of `rank` axes."""
    own = axis - (rank - len(x.shape))
    return own >= 0 and _varies(x, own)


def _solver(
    where: dict[int, Value], sharing: Sequence[int], axis: int, rank: int
) -> tuple[int, Expr, Extent]:
    """Of lists that vary along one axis, one that counts: where it writes, at which position it begins, and how many there are."""
    for at in sharing:
        x = where[at]
        own = axis - (rank - len(x.shape))
        along = Dim("along", expr_of(x.shape[own]))
        places = [digit(Index(along), n) if m == own else () for m, n in enumerate(x.shape)]
        offset = simplify(minus(x.at(places), Index(along)))
        if isinstance(offset, Const) and isinstance(offset.value, int) and offset.value >= 0:
            return at, offset, x.shape[own]
    raise NoRuleError("writing at pairs of positions")


def _varies(x: Value, axis: int) -> bool:
    """Whether elements differ along an axis, or may: a number that is expanded does not."""
    along = Dim("along", expr_of(x.shape[axis]))
    at = [digit(Index(along) if n == axis else ZERO, size) for n, size in enumerate(x.shape)]
    return not is_one(x.shape[axis]) and along in free_dims(x.at(at))


def _is_listed(lift: Lifter, node: torch.fx.Node, where: Value, size: Extent) -> Value:
    """For each position of an axis, whether a list names it."""

    def body(out: Positions, inner: Positions) -> Expr:
        places = inner or [()] * len(where.shape)
        return Binary("eq", fold(out[0]), wrapped(where.at(places), size))

    reduced = where.factors if any(where.factors) else ()
    monoid = ANY if reduced else None
    return lift.make(node, (size,), body, DType.BOOL, reduced=reduced, monoid=monoid)


@rule(aten.scatter.value, aten.scatter.src)
def _scatter(lift: Lifter, node: torch.fx.Node, x: Any, dim: int, index: Any, new: Any) -> Value:
    """One element written along an axis, as in a one-hot row: a comparison with its position."""
    source, where = lift.tensor(x), _integer(lift.tensor(index))
    written, dtype = lift.operand(new), lift.dtype(node)
    if not source.shape:
        raise NoRuleError("writing into a scalar")
    axis = dim % len(source.shape)
    rest = [n for n in range(len(source.shape)) if n != axis]
    if not is_one(where.shape[axis]) or not all(
        is_same(where.shape[n], source.shape[n]) for n in rest
    ):
        raise NoRuleError("several elements written along an axis")

    def body(out: Positions, _: Positions) -> Expr:
        place = (*out[:axis], (), *out[axis + 1 :])
        here = Binary("eq", fold(out[axis]), where.at(place))
        element = written.at(place if written.shape else ())
        return Select(here, exactly(element, dtype), source.at(out))

    return lift.make(node, source.shape, body, dtype, factors=source.factors)


@rule(aten.as_strided_scatter.default)
def _as_strided_scatter(
    lift: Lifter,
    node: torch.fx.Node,
    x: Any,
    new: Any,
    size: Sequence[Any],
    stride: Sequence[Any],
    offset: Any = None,
) -> Value:
    """A diagonal written in place (`fill_diagonal_`): where row and column are the same."""
    source = lift.tensor(x)
    if len(source.shape) != 2 or len(size) != 1 or offset not in (None, 0):
        raise NoRuleError("writing through strides")
    columns = source.shape[1]
    last = x.meta["val"].stride()[-1]
    first = lift.extent(x.meta["val"].stride()[0])
    if last != 1 or not is_same(first, columns) or not is_same(lift.extent(stride[0]), columns + 1):
        raise NoRuleError("writing through strides")
    written = lift.tensor(new)
    is_whole = any(is_same(written.shape[0], extent) for extent in source.shape)
    return _with_diagonal(lift, node, source, written, 0, (0, 1), is_whole=is_whole)


@rule(aten.diagonal_scatter.default)
def _diagonal_scatter(
    lift: Lifter,
    node: torch.fx.Node,
    x: Any,
    new: Any,
    offset: int = 0,
    dim1: int = 0,
    dim2: int = 1,
) -> Value:
    source = lift.tensor(x)
    axes = (dim1 % len(source.shape), dim2 % len(source.shape))
    return _with_diagonal(lift, node, source, lift.tensor(new), offset, axes, is_whole=True)


def _with_diagonal(
    lift: Lifter,
    node: torch.fx.Node,
    source: Value,
    written: Value,
    offset: int,
    axes: tuple[int, int],
    *,
    is_whole: bool,
) -> Value:
    """`source` with `written`, whose last axis runs along it, on a diagonal of two axes; on its beginning if not `is_whole`."""
    dtype, extent = lift.dtype(node), written.shape[-1]
    kept = [axis for axis in range(len(source.shape)) if axis not in axes]

    def body(out: Positions, _: Positions) -> Expr:
        row, column = (fold(out[axis]) for axis in axes)
        along = row if offset >= 0 else column
        here = Binary("eq", plus(row, const(offset)), column)
        if not is_whole:
            here = Binary("and", here, Binary("lt", along, expr_of(extent)))
        element = written.at((*(out[axis] for axis in kept), digit(along, extent)))
        return Select(here, exactly(element, dtype), source.at(out))

    return lift.make(node, source.shape, body, dtype, factors=source.factors)
