"""An FX tensor as a way to read its elements, and the views, which only change where one reads.

A position along an FX axis is a tuple of *digits* (expression, extent), most significant first: merging axes concatenates their
digits and splitting takes them apart, so that a round trip of views leaves nothing behind. Only a view that cuts across digits
makes an expression with `//` and `%`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import ONE, ZERO, Expr, add, const, floordiv, is_literal, mod, mul, sub
from flashlight.lift.extents import Extent, expr_of, is_one, is_same, product, quotient

Digit: TypeAlias = tuple[Expr, Extent]
Position: TypeAlias = tuple[Digit, ...]
Positions: TypeAlias = tuple[Position, ...]
Factors: TypeAlias = tuple[Extent, ...]


@dataclass(frozen=True, eq=False)
class Value:
    """An FX tensor.

    Attributes:
        shape: of the FX tensor, size-1 axes included.
        dtype: its element type.
        factors: for each axis, extents it is known to be a row-major product of; a nest made from it gets a dim for each.
        read: the element at one position for each axis.
        is_index: whether elements depend on positions and sizes only: nothing is loaded.
        source: name of the nest whose result this is, unmoved; empty for views.
    """

    shape: tuple[Extent, ...]
    dtype: DType
    factors: tuple[Factors, ...]
    read: Callable[[Positions], Expr]
    is_index: bool = False
    source: str = ""

    def at(self, positions: Sequence[Position]) -> Expr:
        """The element at `positions`, with those of size-1 axes ignored."""
        clean = tuple(() if is_one(n) else p for n, p in zip(self.shape, positions, strict=True))
        return self.read(clean)


def digit(expr: Expr, extent: Extent) -> Position:
    """A position of one digit, or of none where there is only one position."""
    return () if is_one(extent) else ((expr, extent),)


def plain(shape: Sequence[Extent]) -> tuple[Factors, ...]:
    """Axes that are not known to be products."""
    return tuple(() if is_one(n) else (n,) for n in shape)


def scalar(expr: Expr, dtype: DType) -> Value:
    """A tensor without axes that is no load."""
    return Value((), dtype, (), lambda _: expr, is_index=True)


# -- Index arithmetic


def fold(position: Position) -> Expr:
    """A position as one expression."""
    result: Expr = ZERO
    for expr, extent in position:
        result = plus(times(result, expr_of(extent)), expr)
    return result


def plus(a: Expr, b: Expr) -> Expr:
    if is_literal(a, 0):
        return b
    if is_literal(b, 0):
        return a
    return add(a, b)


def minus(a: Expr, b: Expr) -> Expr:
    return a if is_literal(b, 0) else sub(a, b)


def times(a: Expr, b: Expr) -> Expr:
    if is_literal(a, 0) or is_literal(b, 0):
        return ZERO
    if is_literal(a, 1):
        return b
    if is_literal(b, 1):
        return a
    return mul(a, b)


def _over(a: Expr, b: Extent) -> Expr:
    return a if is_one(b) else floordiv(a, expr_of(b))


def _rest(a: Expr, b: Extent) -> Expr:
    return ZERO if is_one(b) else mod(a, expr_of(b))


# -- Splitting and merging


def regroup(digits: Sequence[Digit], extents: Sequence[Extent]) -> tuple[Position, ...] | None:
    """Digits shared out to axes of `extents` (same product), or None where an axis would cut across a digit unevenly."""
    left = list(digits)
    result: list[Position] = []
    for extent in reversed(extents):
        taken: list[Digit] = []
        need = extent
        while not is_one(need):
            if not left:
                return None
            expr, size = left.pop()
            if is_same(size, need):
                taken.insert(0, (expr, size))
                need = 1
            elif (rest := quotient(need, size)) is not None:
                taken.insert(0, (expr, size))
                need = rest
            elif (high := quotient(size, need)) is not None:
                left.append((_over(expr, need), high))
                taken.insert(0, (_rest(expr, need), need))
                need = 1
            else:
                return None
        result.insert(0, tuple(taken))
    return tuple(result) if not left else None


def split(position: Position, extents: Sequence[Extent]) -> tuple[Position, ...]:
    """A position along an axis as positions along the axes it is a row-major product of."""
    found = regroup(position, extents)
    if found is not None:
        return found
    whole = fold(position)
    result: list[Position] = []
    outermost = next((i for i, e in enumerate(extents) if not is_one(e)), 0)
    for i, extent in enumerate(extents):
        stride = product(extents[i + 1 :])
        high = _over(whole, stride)
        result.append(digit(high if i <= outermost else _rest(high, extent), extent))
    return tuple(result)


def groups(
    a: Sequence[Extent], b: Sequence[Extent]
) -> list[tuple[tuple[int, int], tuple[int, int]]] | None:
    """Ranges of axes of `a` and of `b` with equal products, as fine as can be told; None if the products are unlike."""
    result = []
    i = j = 0
    while i < len(a) or j < len(b):
        start = (i, j)
        pa: Extent = 1
        pb: Extent = 1
        while i == start[0] or j == start[1] or not is_same(pa, pb):
            if i < len(a) and (i == start[0] or j == len(b) or not _is_behind(pb, pa)):
                pa, i = product((pa, a[i])), i + 1
            elif j < len(b):
                pb, j = product((pb, b[j])), j + 1
            else:
                break
        if not is_same(pa, pb):
            return None
        result.append(((start[0], i), (start[1], j)))
    return result


def _is_behind(a: Extent, b: Extent) -> bool:
    """Whether a product must grow to reach b. Symbolic ones are compared by divisibility."""
    if isinstance(a, int) and isinstance(b, int):
        return a < b
    return quotient(b, a) is not None and not is_same(a, b)


def reshape(x: Value, shape: tuple[Extent, ...]) -> Value:
    """The same elements in row-major order under another shape."""
    found = groups(shape, x.shape)
    if found is None:
        found = [((0, len(shape)), (0, len(x.shape)))]

    def read(positions: Positions) -> Expr:
        inner: list[Position] = []
        for (a, b), (c, d) in found:
            digits = tuple(p for position in positions[a:b] for p in position)
            inner.extend(split(digits, x.shape[c:d]))
        return x.at(inner)

    return Value(shape, x.dtype, _reshaped_factors(x, shape, found), read, x.is_index)


def _reshaped_factors(
    x: Value,
    shape: tuple[Extent, ...],
    found: list[tuple[tuple[int, int], tuple[int, int]]],
) -> tuple[Factors, ...]:
    result: list[Factors] = []
    for (a, b), (c, d) in found:
        digits = [(ZERO, e) for factors in x.factors[c:d] for e in factors]
        parts = regroup(digits, shape[a:b])
        if parts is None:
            result.extend(plain(shape[a:b]))
        else:
            result.extend(tuple(e for _, e in p) for p in parts)
    return tuple(result)


def refine(a: Factors, b: Factors) -> Factors | None:
    """The coarsest factors that both split into, or None."""
    left, right = list(a), list(b)
    result: list[Extent] = []
    while left and right:
        x, y = left.pop(), right.pop()
        if is_same(x, y):
            result.insert(0, x)
        elif (q := quotient(x, y)) is not None:
            result.insert(0, y)
            left.append(q)
        elif (q := quotient(y, x)) is not None:
            result.insert(0, x)
            right.append(q)
        else:
            return None
    return tuple(result) if not left and not right else None


# -- Views of one tensor


def permute(x: Value, order: Sequence[int]) -> Value:
    """Axis i of the result is axis order[i] of x."""

    def read(positions: Positions) -> Expr:
        inner: list[Position] = [()] * len(order)
        for axis, source in enumerate(order):
            inner[source] = positions[axis]
        return x.at(inner)

    shape = tuple(x.shape[i] for i in order)
    return Value(shape, x.dtype, tuple(x.factors[i] for i in order), read, x.is_index)


def broadcast(x: Value, shape: tuple[Extent, ...]) -> Value:
    """x with axes put in front and size-1 axes widened."""
    extra = len(shape) - len(x.shape)

    def read(positions: Positions) -> Expr:
        return x.at(positions[extra:])

    factors = tuple(
        x.factors[i - extra] if i >= extra and not is_one(x.shape[i - extra]) else plain([n])[0]
        for i, n in enumerate(shape)
    )
    return Value(shape, x.dtype, factors, read, x.is_index)


def insert_axis(x: Value, axis: int) -> Value:
    def read(positions: Positions) -> Expr:
        return x.at(positions[:axis] + positions[axis + 1 :])

    shape = (*x.shape[:axis], 1, *x.shape[axis:])
    factors = (*x.factors[:axis], (), *x.factors[axis:])
    return Value(shape, x.dtype, factors, read, x.is_index)


def drop_axes(x: Value, axes: Sequence[int]) -> Value:
    """x without some of its size-1 axes."""
    kept = [i for i in range(len(x.shape)) if i not in axes]

    def read(positions: Positions) -> Expr:
        inner: list[Position] = [()] * len(x.shape)
        for axis, source in enumerate(kept):
            inner[source] = positions[axis]
        return x.at(inner)

    shape = tuple(x.shape[i] for i in kept)
    return Value(shape, x.dtype, tuple(x.factors[i] for i in kept), read, x.is_index)


def select(x: Value, axis: int, index: Expr) -> Value:
    """x at one place of an axis."""

    def read(positions: Positions) -> Expr:
        place = digit(index, x.shape[axis])
        return x.at((*positions[:axis], place, *positions[axis:]))

    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    factors = (*x.factors[:axis], *x.factors[axis + 1 :])
    return Value(shape, x.dtype, factors, read, x.is_index)


def slice_axis(x: Value, axis: int, start: Expr, step: int, extent: Extent) -> Value:
    """Every step-th element of an axis from `start`. `step` is negative for a flip."""
    if is_literal(start, 0) and step == 1 and is_same(extent, x.shape[axis]):
        return x

    def read(positions: Positions) -> Expr:
        where = plus(start, times(fold(positions[axis]), const(step)))
        place = digit(where, x.shape[axis])
        return x.at((*positions[:axis], place, *positions[axis + 1 :]))

    shape = (*x.shape[:axis], extent, *x.shape[axis + 1 :])
    factors = (*x.factors[:axis], plain([extent])[0], *x.factors[axis + 1 :])
    return Value(shape, x.dtype, factors, read, x.is_index)


def flip(x: Value, axis: int) -> Value:
    last = minus(expr_of(x.shape[axis]), ONE)

    def read(positions: Positions) -> Expr:
        place = digit(minus(last, fold(positions[axis])), x.shape[axis])
        return x.at((*positions[:axis], place, *positions[axis + 1 :]))

    return Value(x.shape, x.dtype, x.factors, read, x.is_index)


def diagonal(x: Value, offset: int, first: int, second: int, extent: Extent) -> Value:
    """The diagonal of two axes as a last axis."""
    kept = [i for i in range(len(x.shape)) if i not in (first, second)]

    def read(positions: Positions) -> Expr:
        inner: list[Position] = [()] * len(x.shape)
        for axis, source in enumerate(kept):
            inner[source] = positions[axis]
        along = fold(positions[-1])
        inner[first] = digit(plus(along, const(max(-offset, 0))), x.shape[first])
        inner[second] = digit(plus(along, const(max(offset, 0))), x.shape[second])
        return x.at(inner)

    shape = (*(x.shape[i] for i in kept), extent)
    factors = (*(x.factors[i] for i in kept), plain([extent])[0])
    return Value(shape, x.dtype, factors, read, x.is_index)


def windows(x: Value, axis: int, step: int, extents: tuple[Extent, Extent]) -> Value:
    """Windows along an axis, one every `step` elements: their number and width are `extents`, the width is a last axis."""
    count, width = extents

    def read(positions: Positions) -> Expr:
        where = plus(times(fold(positions[axis]), const(step)), fold(positions[-1]))
        place = digit(where, x.shape[axis])
        return x.at((*positions[:axis], place, *positions[axis + 1 : -1]))

    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :], width)
    between = x.factors[axis + 1 :]
    factors = (*x.factors[:axis], *plain([count]), *between, *plain([width]))
    return Value(shape, x.dtype, factors, read, x.is_index)


def repeat(x: Value, repeats: Sequence[int]) -> Value:
    """x tiled: the position along a tiled axis modulo its size."""
    extra = len(repeats) - len(x.shape)

    def read(positions: Positions) -> Expr:
        inner = []
        for i, n in enumerate(x.shape):
            axis = i + extra
            tiled = (
                positions[axis]
                if is_one(repeats[axis])
                else split(positions[axis], (repeats[axis], n))[1]
            )
            inner.append(tiled)
        return x.at(inner)

    shape: list[Extent] = []
    factors: list[Factors] = []
    for axis, times_ in enumerate(repeats):
        n: Extent = x.shape[axis - extra] if axis >= extra else 1
        inner_factors = x.factors[axis - extra] if axis >= extra else ()
        shape.append(product((times_, n)))
        factors.append((*(() if times_ == 1 else (times_,)), *inner_factors))
    return Value(tuple(shape), x.dtype, tuple(factors), read, x.is_index)


def rotate(x: Value, axis: int, by: int) -> Value:
    """x with the positions of an axis of known size moved on cyclically."""
    size = x.shape[axis]
    assert isinstance(size, int)

    def read(positions: Positions) -> Expr:
        moved = mod(plus(fold(positions[axis]), const(size - by)), const(size))
        return x.at((*positions[:axis], digit(moved, size), *positions[axis + 1 :]))

    return x if by == 0 else Value(x.shape, x.dtype, x.factors, read, x.is_index)
