"""Reductions inside expressions: contractions as dots, folds along an axis, loops over what is too long for a tile.

A contraction is recognised by the free dims of its factors: they form two groups that share no tile axis.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from flashlight.codegen.blocks import Axis, Value
from flashlight.codegen.builder import Builder, unsupported
from flashlight.codegen.factors import Factor, dot_dtype, factors_of, is_load, parted, spared
from flashlight.codegen.places import Place, Places
from flashlight.ir.dtypes import DType, promote
from flashlight.ir.exprs import Const, Dim, Expr, Index, Reduce, dtype_of
from flashlight.ir.monoids import SUM, Monoid
from flashlight.ir.visit import free_dims, loads, substitute, walk
from flashlight.rewrite.footprint import DEEP, DEEP_CHUNK
from flashlight.rewrite.schedule import power_of_two

WIDEST = 256  # a longer dim is contracted in chunks
_CHUNK = 128
_UNROLLED = 16  # iterations of an elementwise reduction that are written out
_TILE_ELEMENTS = 16384  # an elementwise tile with a third axis may have so many elements


@dataclass
class Context:
    """What an expression is lowered in.

    Attributes:
        places: where dims are.
        carried: values of carries and gives of the same loop, by name, with their dims.
        facts: conditions known to hold here.
        clamped: maxima whose anchor may be any finite number where they are not finite themselves, with the number.
        tame: no score is huge where the facts hold, though some may be elsewhere.
    """

    places: Places
    carried: Mapping[str, tuple[tuple[Dim, ...], Value]]
    facts: frozenset[Expr] = frozenset()
    clamped: Mapping[str, float] = field(default_factory=dict)
    tame: bool = False
    memo: dict[tuple[Expr, bool], Value] = field(default_factory=dict)

    def extended(
        self,
        *,
        places: Places | None = None,
        carried: Mapping[str, tuple[tuple[Dim, ...], Value]] | None = None,
        facts: frozenset[Expr] | None = None,
    ) -> Context:
        return Context(
            self.places if places is None else places,
            self.carried if carried is None else carried,
            self.facts if facts is None else facts,
            self.clamped,
            self.tame,
        )

    def without(self, dims: tuple[Dim, ...]) -> Context:
        """The context of a body that binds `dims` anew."""
        if not any(d in self.places for d in dims):
            return self
        return self.extended(places=self.places.without(dims))


class Reductions(ABC):
    """What `Expressions` lowers reductions with.

    Attributes:
        builder: receives the operations.
        pads_dots: the least block of a contracted or accumulated axis.
        exact: axes end where their dims end (see `Schedule.exact`).
    """

    def __init__(self, builder: Builder, pads_dots: int, exact: bool) -> None:
        self.builder = builder
        self.pads_dots = 1 if exact else pads_dots
        self.exact = exact
        self._axes: dict[tuple[Dim, ...], Axis] = {}

    @abstractmethod
    def value(self, expr: Expr, ctx: Context, guarded: bool = False) -> Value:
        """The tile (or scalar) of an expression."""

    @abstractmethod
    def typed(self, expr: Expr, dtype: DType, ctx: Context, guarded: bool = False) -> Value:
        """The value of an expression, cast."""

    @abstractmethod
    def typed_index(self, expr: Expr, ctx: Context, guarded: bool) -> Value:
        """An integer expression used as a position along an axis."""

    @abstractmethod
    def dtype_in(self, expr: Expr) -> DType:
        """The type an expression is computed in."""

    # -- Whole dims.

    def whole_axis(self, dims: tuple[Dim, ...]) -> Axis:
        """The axis on which small dims lie entirely, several of them padded one by one and linearised."""
        if dims not in self._axes:
            block = 1
            for d in dims:
                block *= self._room(d)
            name = self.builder.name("_".join(d.name for d in dims))
            axis = Axis(name, "whole", max(block, self.pads_dots), dims)
            self._axes[dims] = self.builder.axis(axis)
        return self._axes[dims]

    def bind_whole(self, places: Places, dims: tuple[Dim, ...]) -> Axis:
        """Place small dims on their axis."""
        axis = self.whole_axis(dims)
        b = self.builder
        if len(dims) == 1:
            tail = not self.exact and axis.block != constant_extent(dims[0])
            places.bind(dims[0], Place(axis, tail=tail))
            places.bind_ok(axis, self._below(b.positions(axis), dims[0]) if tail else None)
            return axis
        position = b.positions(axis)
        ok: Value | None = None
        exact = self.exact or axis.block == math.prod(constant_extent(d) for d in dims)
        remaining = position
        for d in reversed(dims):
            pad = b.constant(self._room(d), DType.I32)
            last = d is dims[0]
            at = remaining if last else b.compute("remainder", remaining, pad, hint=f"{d.name}_at")
            remaining = remaining if last else b.compute("quotient", remaining, pad)
            places.bind(d, Place(axis, at=at, tail=not exact))
            if not exact:
                inside = self._below(at, d)
                ok = inside if ok is None else b.compute("and", ok, inside)
        places.bind_ok(axis, ok)
        return axis

    def _room(self, dim: Dim) -> int:
        """Positions set aside for a whole dim."""
        extent = constant_extent(dim)
        return max(extent, 1) if self.exact else power_of_two(extent)

    def _below(self, at: Value, dim: Dim) -> Value:
        extent = self.builder.constant(constant_extent(dim), DType.I32)
        return self.builder.compute("lt", at, extent, hint=f"{dim.name}_ok")

    # -- Reductions.

    def reduced(self, node: Reduce, ctx: Context, guarded: bool, acc: Value | None = None) -> Value:
        node = self._over_own_dims(node, ctx)
        if not all(isinstance(d.extent, Const) for d in node.dims):
            result = self._looped(node, ctx, guarded)
            return result if acc is None else self.builder.compute("add", acc, result)
        extents = [constant_extent(d) for d in node.dims]
        if node.monoid is SUM:
            total = self._contraction(node, extents, ctx, guarded, acc)
            if total is not None:
                return total
        if self._reads_along(node, ctx):
            result = self._along_placed(node, ctx, guarded)
        else:
            result = self._small(node, math.prod(extents), ctx, guarded)
        return result if acc is None else self.builder.compute("add", acc, result)

    def _over_own_dims(self, node: Reduce, ctx: Context) -> Reduce:
        """The reduction with its dims renamed to those of the carries that it reads along them: a tile has one axis for each."""
        mapping: dict[Dim, Dim] = {}
        for load in loads(node.body):
            if load.buffer.name not in ctx.carried:
                continue
            for own, position in zip(ctx.carried[load.buffer.name][0], load.index, strict=True):
                if not isinstance(position, Index) or position.dim not in node.dims:
                    continue
                if (
                    position.dim.extent is own.extent
                ):  # else a part of the carry, which is no axis of its tile
                    mapping.setdefault(position.dim, own)
        mapping = {d: own for d, own in mapping.items() if d is not own}
        if not mapping or set(mapping.values()) & (free_dims(node.body) - set(node.dims)):
            return node
        dims = tuple(mapping.get(d, d) for d in node.dims)
        return Reduce(node.monoid, dims, renamed(node.body, mapping))

    def _reads_along(self, node: Reduce, ctx: Context) -> bool:
        """Whether the reduction reads a carry along the reduced dims, so that its tile's axis must be used."""
        return any(
            load.buffer.name in ctx.carried and free_dims(load) & set(node.dims)
            for load in loads(node.body)
        )

    def _along_placed(self, node: Reduce, ctx: Context, guarded: bool) -> Value:
        """A fold along an axis that lies in the tile already (a give that reduces a carry)."""
        axes = {ctx.places[d].axis for d in node.dims if d in ctx.places}
        (axis,) = axes if len(axes) == 1 else (None,)
        if axis is None or set(axis.dims) != set(node.dims):
            raise unsupported(f"a reduction over {[d.name for d in node.dims]} of a larger tile")
        return self._fold(node, axis, ctx, guarded)

    def _contraction(
        self, node: Reduce, extents: Sequence[int], ctx: Context, guarded: bool, acc: Value | None
    ) -> Value | None:
        """The sum as one dot, or a chain of dots over chunks; None if its factors do not split in two."""
        bound = frozenset(node.dims)
        outside, inside = parted(factors_of(node.body), lambda e: bool(free_dims(e) & bound))
        placed = self._reads_along(node, ctx)
        sides = self._sides(inside, ctx if placed else ctx.without(node.dims), node.dims)
        if sides is None:
            return None
        if acc is not None and outside:
            total = self._contraction(node, extents, ctx, guarded, None)
            assert total is not None
            return self.builder.compute("add", acc, total)
        total = acc
        start = 0
        if not placed and not self.exact and len(node.dims) == 1 and extents[0] > DEEP:
            total = self._deep(node, extents[0] // DEEP_CHUNK, sides, ctx, guarded, acc)
            start = extents[0] // DEEP_CHUNK * DEEP_CHUNK
        for places, axis in self._chunks(node.dims, extents, ctx.places, placed, start):
            total = self._dot_at(axis, sides, ctx.extended(places=places), guarded, total)
        assert total is not None
        return self.times(total, outside, ctx, guarded)

    def _dot_at(
        self,
        axis: Axis,
        sides: tuple[Sequence[Factor], Sequence[Factor]],
        ctx: Context,
        guarded: bool,
        acc: Value | None,
    ) -> Value:
        """One dot along an axis of the contracted dims."""
        a, c = (self.product(side, ctx, guarded) for side in sides)
        a, c = self.operands(a, c, sides)
        places = ctx.places
        a, c = self._padded(a, axis, places, sides[0]), self._padded(c, axis, places, sides[1])
        dtype = DType.F64 if a.dtype is DType.F64 else DType.F32
        return self.builder.dot(a, c, axis, dtype, acc, hint="dot")

    def _deep(
        self,
        node: Reduce,
        count: int,
        sides: tuple[Sequence[Factor], Sequence[Factor]],
        ctx: Context,
        guarded: bool,
        acc: Value | None,
    ) -> Value:
        """The first `count` chunks of a contraction too deep for its operands to stay: both are fetched chunk after chunk."""
        unplaced = ctx.without(node.dims)
        axes = [a for side in sides for f in side for a in self.axes(f.expr, unplaced)]
        dtype = DType.F64 if dtype_of(node) is DType.F64 else DType.F32
        init = identity(self.builder, SUM, dtype) if acc is None else acc
        key = ("deep", acc, *self._key(node, ctx, guarded))
        return self._over_chunks(
            node.dims[0], count, False, ctx, ("dot", init, self.builder.ordered(axes)), key,
            lambda axis, inner, total: self._dot_at(axis, sides, inner, guarded, total),
        )  # fmt: skip

    def _over_chunks(
        self,
        dim: Dim,
        count: int,
        tail: bool,
        ctx: Context,
        carried: tuple[str, Value, tuple[Axis, ...]],
        key: tuple[object, ...],
        step: Callable[[Axis, Context, Value], Value],
    ) -> Value:
        """A loop over `count` chunks of a dim; `step` maps a chunk's axis and context and the value so far to the next value."""
        b = self.builder
        axis = self._chunk_axis(dim, DEEP_CHUNK)

        def body(i: Value, slots: tuple[Value, ...]) -> Sequence[Value]:
            at = b.compute("mul", i, b.constant(DEEP_CHUNK, DType.I32), hint=f"{dim.name}_at")
            places = self._on_chunk(ctx.places, dim, axis, at, tail)
            return (step(axis, ctx.extended(places=places), slots[0]),)

        zero, end = b.constant(0, DType.I32), b.constant(count, DType.I32)
        return b.loop(f"{dim.name}_chunk", zero, end, "inner", axis, [carried], body, key=key)[0]

    def _on_chunk(
        self, places: Places, dim: Dim, axis: Axis, start: Value | None, tail: bool
    ) -> Places:
        """Places in which a dim lies along a chunk of it; `tail`: the chunk may reach past its end."""
        inner = places.copy()
        inner.bind(dim, Place(axis, start=start, tail=tail))
        inner.bind_ok(axis, self._below(inner.position(dim), dim) if tail else None)
        return inner

    def _key(self, node: Reduce, ctx: Context, guarded: bool) -> tuple[object, ...]:
        """What the value of a reduction that runs as a loop depends on."""
        placed = frozenset((d, ctx.places[d]) for d in free_dims(node) if d in ctx.places)
        names = {load.buffer.name for load in loads(node)} & set(ctx.carried)
        return (node, guarded, placed, frozenset((n, ctx.carried[n][1]) for n in names))

    def _chunks(
        self,
        dims: tuple[Dim, ...],
        extents: Sequence[int],
        places: Places,
        placed: bool,
        start: int = 0,
    ) -> Iterable[tuple[Places, Axis]]:
        """Places for the contracted dims: the axis they have (`placed`), one axis, or the chunks of a long dim from `start` on."""
        if placed:
            (axis,) = {places[d].axis for d in dims}
            assert axis is not None
            yield places, axis
            return
        if len(dims) > 1 or extents[0] <= WIDEST:
            inner = places.copy()
            yield inner, self.bind_whole(inner, dims)
            return
        (dim,) = dims
        while start < extents[0]:
            left = extents[0] - start
            end = left if self.exact else max(self.pads_dots, power_of_two(left))
            block = _CHUNK if left >= _CHUNK else end
            axis = self._chunk_axis(dim, block)
            at = self.builder.constant(start, DType.I32) if start else None
            tail = not self.exact and block > left
            yield self._on_chunk(places, dim, axis, at, tail), axis
            start += block

    def _chunk_axis(self, dim: Dim, block: int) -> Axis:
        key = (dim, Dim(str(block), dim.extent))
        if key not in self._axes:
            name = self.builder.name(f"{dim.name}_chunk")
            self._axes[key] = self.builder.axis(Axis(name, "inner", block, (dim,)))
        return self._axes[key]

    def _sides(
        self, factors: Sequence[Factor], ctx: Context, dims: tuple[Dim, ...]
    ) -> tuple[list[Factor], list[Factor]] | None:
        """Factors in two groups that share no tile axis but the contracted one."""
        own = {ctx.places[d].axis for d in dims if d in ctx.places}
        if len(own) > 1 or any(a is not None and set(a.dims) != set(dims) for a in own):
            return None
        groups: list[tuple[set[Axis], list[Factor]]] = []
        free: list[Factor] = []
        for f in factors:
            axes = set(self.axes(f.expr, ctx)) - own
            if not axes:
                free.append(f)
                continue
            touching = [g for g in groups if g[0] & axes]
            members = [f]
            for g in touching:
                axes |= g[0]
                members = g[1] + members
                groups.remove(g)
            groups.append((axes, members))
        if len(groups) != 2 or any(len(axes) != 1 for axes, _ in groups):
            return None
        groups.sort(key=lambda g: self.builder.axes.index(next(iter(g[0]))))
        return spared(groups[0][1], groups[1][1], free)

    def axes(self, expr: Expr, ctx: Context) -> frozenset[Axis]:
        """Tile axes of an expression's value, those of carries it reads included."""
        found = ctx.places.axes(expr)
        for load in loads(expr):
            if load.buffer.name in ctx.carried:
                found |= frozenset(ctx.carried[load.buffer.name][1].axes)
        return found

    def product(self, factors: Sequence[Factor], ctx: Context, guarded: bool = False) -> Value:
        """The product of factors: a single load as loaded, anything else computed."""
        b = self.builder
        plain = [f for f in factors if not f.selects]
        if len(plain) == 1 and not plain[0].divides:
            total = self.value(plain[0].expr, ctx, guarded or plain[0].guarded)
        else:
            total = b.constant(1.0, DType.F32)
            total = self.times(total, plain, ctx, guarded)
        return self.times(total, [f for f in factors if f.selects], ctx, guarded)

    def times(
        self, total: Value, factors: Sequence[Factor], ctx: Context, guarded: bool = False
    ) -> Value:
        """total times the factors; products first, then quotients, then guards."""
        b = self.builder
        for f in sorted(factors, key=lambda f: (f.selects, f.divides)):
            value = self.value(f.expr, ctx, guarded or f.guarded)
            if f.selects:
                total = b.compute(
                    "select", value, total, b.constant(0.0, total.dtype), hint=total.name
                )
                continue
            dtype = promote(total.dtype, _float(value.dtype.compute))
            op = "div" if f.divides else "mul"
            total = b.compute(op, b.cast(total, dtype), b.cast(value, dtype), hint=total.name)
        return total

    def operands(
        self, a: Value, c: Value, sides: tuple[Sequence[Factor], Sequence[Factor]]
    ) -> tuple[Value, Value]:
        """Both operands in the dot's type: the 16-bit type of a loaded operand, or of all that is loaded; else f32 or f64."""
        dtype = dot_dtype(a, c, sides)
        return self.builder.cast(a, dtype), self.builder.cast(c, dtype)

    def _padded(self, x: Value, axis: Axis, places: Places, side: Sequence[Factor]) -> Value:
        """Zero where the contracted axis is padding, unless the value is a product of loads (which read 0 there)."""
        ok = places.ok(axis)
        if ok is None or axis not in x.axes or all(is_load(f) for f in side):
            return x
        zero = self.builder.constant(0.0, x.dtype)
        return self.builder.compute("select", ok, x, zero)

    def _small(self, node: Reduce, count: int, ctx: Context, guarded: bool) -> Value:
        """A reduction of an elementwise body: a fold along the whole axis, or one position after the other."""
        outer_axes = self.axes(node.body, ctx.without(node.dims))
        size = math.prod(a.block for a in outer_axes)
        wide = len(outer_axes) >= 2 and size * count > _TILE_ELEMENTS
        if len(outer_axes) >= 2 and holds_contraction(node):
            return self._looped(node, ctx, guarded)
        if len(outer_axes) >= 2 and len(node.dims) > 1 and count <= _UNROLLED and not self.exact:
            return self._unrolled(node, ctx, guarded)  # several dims are no row in memory
        if not wide and count <= WIDEST * 4:
            return self._folded(node, ctx, guarded)
        if node.monoid.is_position:
            raise unsupported(f"'{node.monoid}' over a wide inner dim")
        if count <= _UNROLLED:
            return self._unrolled(node, ctx, guarded)
        if len(node.dims) == 1 and len(outer_axes) < 2 and not self.exact:
            return self._in_chunks(node, count, ctx, guarded)
        return self._looped(node, ctx, guarded)

    def _in_chunks(self, node: Reduce, count: int, ctx: Context, guarded: bool) -> Value:
        """A long reduction of rows, a tile of them and of its dim after the other."""
        b = self.builder
        dtype = _accumulated(node.monoid, self.dtype_in(node.body))
        axes = b.ordered(self.axes(node.body, ctx.without(node.dims)))

        def step(axis: Axis, inner: Context, total: Value) -> Value:
            value = self._fold(node, axis, inner, guarded)
            return combine(b, node.monoid, total, b.cast(value, dtype))

        carried = ("total", identity(b, node.monoid, dtype), axes)
        key = ("chunks", *self._key(node, ctx, guarded))
        chunks, tail = -(-count // DEEP_CHUNK), count % DEEP_CHUNK != 0
        return self._over_chunks(node.dims[0], chunks, tail, ctx, carried, key, step)

    def _folded(self, node: Reduce, ctx: Context, guarded: bool) -> Value:
        places = ctx.places.copy()
        axis = self.bind_whole(places, node.dims)
        return self._fold(node, axis, ctx.extended(places=places), guarded)

    def _fold(self, node: Reduce, axis: Axis, ctx: Context, guarded: bool) -> Value:
        b = self.builder
        value = self.value(node.body, ctx, guarded)
        value = b.cast(value, _accumulated(node.monoid, value.dtype))
        ok = ctx.places.ok(axis)
        if ok is None and axis not in value.axes:
            ok = b.compute("ge", b.positions(axis), b.constant(0, DType.I32))
        if ok is not None:
            value = b.compute("select", ok, value, identity(b, node.monoid, value.dtype))
        return b.fold(node.monoid, value, axis)

    def _unrolled(self, node: Reduce, ctx: Context, guarded: bool) -> Value:
        total: Value | None = None
        for at in _points(node.dims):
            places = ctx.places.copy()
            for d, i in zip(node.dims, at, strict=True):
                places.bind(d, Place(at=self.builder.constant(i, DType.I32)))
            value = self.value(node.body, ctx.extended(places=places), guarded)
            value = self.builder.cast(value, _accumulated(node.monoid, value.dtype))
            total = value if total is None else combine(self.builder, node.monoid, total, value)
        assert total is not None
        return total

    def _looped(self, node: Reduce, ctx: Context, guarded: bool) -> Value:
        """A reduction one position after the other, for dims too wide for a tile or of unknown extent."""
        b = self.builder
        if node.monoid.is_position or self._reads_along(node, ctx):
            raise unsupported(f"'{node.monoid}' over a wide inner dim")
        if len(node.dims) > 1:
            head, *rest = node.dims
            nested = Reduce(node.monoid, (head,), Reduce(node.monoid, tuple(rest), node.body))
            return self._looped(nested, ctx, guarded)
        (dim,) = node.dims
        dtype = _accumulated(node.monoid, self.dtype_in(node.body))
        axes = b.ordered(self.axes(node.body, ctx.without(node.dims)))

        def body(i: Value, slots: tuple[Value, ...]) -> Sequence[Value]:
            places = ctx.places.copy()
            places.bind(dim, Place(at=i))
            value = self.typed(node.body, dtype, ctx.extended(places=places), guarded)
            return (combine(b, node.monoid, slots[0], value),)

        zero, end = b.constant(0, DType.I32), self.typed_index(dim.extent, ctx, False)
        carried = [("total", identity(b, node.monoid, dtype), axes)]
        key = ("looped", *self._key(node, ctx, guarded))
        return b.loop(f"{dim.name}_i", zero, end, "inner", None, carried, body, key=key)[0]


def holds_contraction(node: Reduce) -> bool:
    """Whether each term of a reduction is made by another one: one of several heads' scores."""
    return any(
        isinstance(n, Reduce) and not free_dims(n).isdisjoint(node.dims) for n in walk(node.body)
    )


def identity(b: Builder, monoid: Monoid, dtype: DType) -> Value:
    """The value of an empty reduction, in a type."""
    value = monoid.identity
    if dtype is DType.BOOL:
        return b.constant(bool(value), dtype)
    if dtype.is_int:
        limit = 2 ** (dtype.bits - 1)
        value = max(-limit, min(limit - 1, value))
        return b.constant(int(value), dtype)
    return b.constant(float(value), dtype)


def combine(b: Builder, monoid: Monoid, x: Value, y: Value, *, nan: bool = True) -> Value:
    """x combined with y."""
    op = monoid.combine
    if op in ("max", "min") and not nan and x.dtype.is_float:
        op += "num"
    return b.compute(op, x, y, dtype=x.dtype, hint=x.name)


def _accumulated(monoid: Monoid, dtype: DType) -> DType:
    if monoid.is_logical:
        return DType.BOOL
    return DType.I32 if dtype is DType.BOOL else dtype.compute


def _float(dtype: DType) -> DType:
    return dtype if dtype.is_float else DType.F32


def _points(dims: tuple[Dim, ...]) -> Iterable[tuple[int, ...]]:
    if not dims:
        yield ()
        return
    for i in range(constant_extent(dims[0])):
        for rest in _points(dims[1:]):
            yield (i, *rest)


def constant_extent(dim: Dim) -> int:
    """The extent of a dim that must be known to be whole in a tile."""
    if isinstance(dim.extent, Const):
        return int(dim.extent.value)
    raise unsupported(f"dim '{dim.name}' must lie in one tile, and its extent is not a constant")


def renamed(expr: Expr, mapping: Mapping[Dim, Dim]) -> Expr:
    """An expression over other dims of the same extents."""
    return substitute(expr, {d: Index(e) for d, e in mapping.items()})
