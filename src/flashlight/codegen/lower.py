"""A loop and its schedule to a block program: the grid, the passes, and their sweeps over tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from flashlight.codegen.blocks import Axis, GridDim, Kernel, Subscript, Value, walk
from flashlight.codegen.blocks import Fetch as FetchOp
from flashlight.codegen.builder import Builder
from flashlight.codegen.exponents import has_its_maximum, prepare
from flashlight.codegen.places import Place, Places, interval
from flashlight.codegen.reductions import Context
from flashlight.codegen.sharing import share_dims
from flashlight.codegen.tile_step import TileStep, expressions_of, product_of
from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import (
    Binary,
    Const,
    Dim,
    Expr,
    Index,
    add,
    const,
    floordiv,
)
from flashlight.ir.monoids import ANY
from flashlight.ir.nests import Give, Loop, Pass, Program
from flashlight.ir.visit import loads
from flashlight.rewrite.schedule import Bounds, Schedule, first, last
from flashlight.rewrite.simplify import simplify


def kernel_names(program: Program) -> tuple[str, ...]:
    """A name for each loop's kernel: the monoids it folds, such as `fused_max_sum2`, numbered where loops are several."""
    names = []
    for number, loop in enumerate(program.loops):
        runs = [
            (name, len(list(run))) for name, run in groupby(c.monoid.name for c in loop.carries)
        ]
        folds = "_".join(name + (str(n) if n > 1 else "") for name, n in runs)
        suffix = f"_{number}" if len(program.loops) > 1 else ""
        names.append(f"fused_{folds or 'map'}{suffix}")
    return tuple(names)


def lower(loop: Loop, schedule: Schedule, name: str = "kernel") -> Kernel:
    """The block program of a loop. Raises CompileError where no tile form is known."""
    return _Lowering(share_dims(prepare(loop)), schedule, name).kernel()


class _Lowering(TileStep):
    """The grid, the passes and their sweeps over tiles. See `lower`."""

    def __init__(self, loop: Loop, schedule: Schedule, name: str) -> None:
        super().__init__(loop, schedule)
        self.name = name
        self.row_tile: Value | None = None

    def kernel(self) -> Kernel:
        grid = self._grid()
        if self.schedule.cols:
            self.cols = self.b.axis(
                Axis("cols", "cols", self.schedule.col_block, self.schedule.cols)
            )
        self._bind_whole_dims()
        for i, p in enumerate(self.loop.passes):
            self._pass(i, p)
        body = self.b.finish()
        used = {op.buffer.name: op.buffer for op in walk(body) if isinstance(op, FetchOp)}
        reads_ = tuple(
            buffer
            for buffer in dict.fromkeys(
                load.buffer
                for load in loads(*expressions_of(self.loop), *self._bound_expressions())
            )
            if buffer.name in used
        )
        writes = tuple(g.buffer for g in self.loop.gives)
        sizes = tuple(sorted(self.b.sizes, key=lambda s: s.name))
        return Kernel(
            self.name, grid, tuple(self.b.axes), sizes, reads_, writes, body, self.schedule.group
        )

    def _bound_expressions(self) -> list[Expr]:
        return [
            e for b in self.schedule.bounds if b for e in (b.head, b.lo, b.full_lo, b.full_hi, b.hi)
        ]

    # -- The grid and the tile of rows.

    def _grid(self) -> tuple[GridDim, ...]:
        b, s = self.b, self.schedule
        grid = []
        for d in s.grid:
            index = b.argument(d.name, DType.I32)
            self.places.bind(d, Place(at=index))
            grid.append(GridDim(index, d.extent, d))
        if not s.rows:
            return tuple(grid)
        block = s.row_block
        total = product_of([d.extent for d in s.rows])
        count = simplify(floordiv(add(total, const(block - 1)), const(block)))
        index = self.row_tile = b.argument("row_tile", DType.I32)
        grid.append(GridDim(index, count, None, s.descending))
        self.rows = b.axis(Axis("rows", "rows", block, s.rows))
        start = b.compute("mul", index, b.constant(block, DType.I32), hint="row_start")
        tail = not s.exact and not _divides(block, total)
        self._bind_linear(self.places, self.rows, start, s.rows, total, tail)
        return tuple(grid)

    def _bind_linear(
        self,
        places: Places,
        axis: Axis,
        start: Value | None,
        dims: tuple[Dim, ...],
        total: Expr,
        tail: bool,
    ) -> None:
        """Place dims along an axis that they share linearised."""
        b = self.b
        if len(dims) == 1:
            places.bind(dims[0], Place(axis, start=start, tail=tail))
            at = places.position(dims[0])
        else:
            at = b.positions(axis)
            if start is not None:
                at = b.compute("add", start, at, hint=f"{axis.name}_linear")
            remaining = at
            for d in reversed(dims[1:]):
                extent = self.ex.typed_index(d.extent, Context(places, {}), False)
                place = b.compute("remainder", remaining, extent, hint=f"{d.name}_at")
                remaining = b.compute("quotient", remaining, extent, hint=f"{d.name}_rest")
                places.bind(d, Place(axis, at=place, tail=tail))
            places.bind(dims[0], Place(axis, at=remaining, tail=tail))
        if tail:
            end = self.ex.typed_index(total, Context(places, {}), False)
            places.bind_ok(axis, b.compute("lt", at, end, hint=f"{axis.name}_ok"))
        else:
            places.bind_ok(axis, None)

    def _bind_whole_dims(self) -> None:
        """Small dims of carries and gives: one axis for those that occur together."""
        placed = set(self.loop.kept) | set(self.loop.loop)
        groups: list[list[Dim]] = []
        results = [c.dims for c in self.loop.carries] + [g.dims for g in self.loop.gives]
        for result in results:
            dims = [d for d in result if d not in placed]
            if not dims:
                continue
            touching = [g for g in groups if set(g) & set(dims)]
            merged = list(dict.fromkeys([d for g in touching for d in g] + dims))
            groups = [g for g in groups if g not in touching] + [merged]
        for g in groups:
            self.ex.bind_whole(self.places, tuple(g))

    # -- Passes.

    def _pass(self, number: int, p: Pass) -> None:
        if p.carries:
            self._sweep(number, p)
        ctx = Context(self.places, self.finals)
        for give in p.gives:
            self._give(give, ctx)
            ctx = Context(self.places, self.finals)

    def _sweep(self, number: int, p: Pass) -> None:
        slots = [s for c in p.carries for s in self.slots(c)]
        slots += self.start_references(p)
        carried = [(s.name, s.init, s.axes) for s in slots]
        if not self.loop.loop:
            values = self.fold(p, [s.init for s in slots], self.places, (), frozenset())
        else:
            values = list(self._outer(number, p, carried, self.places, self.schedule.outer, ()))
        at = 0
        for c in p.carries:
            final = values[at + len(self.slots(c)) - 1]
            self.finals[c.name] = (c.dims, final)
            if has_its_maximum(c, p.carries, frozenset(self.loop.loop)):
                self.b.ordinary(final)
            at += len(self.slots(c))

    def _outer(
        self,
        number: int,
        p: Pass,
        carried: list[tuple[str, Value, tuple[Axis, ...]]],
        places: Places,
        dims: tuple[Dim, ...],
        linear: tuple[tuple[Dim, Value], ...],
    ) -> tuple[Value, ...]:
        """Loops over single positions of the outer loop dims, around the sweep."""
        if not dims:
            return self._tiles(number, p, carried, places, linear)
        head, rest = dims[0], dims[1:]

        def body(i: Value, values: tuple[Value, ...]) -> Sequence[Value]:
            inner = places.copy()
            inner.bind(head, Place(at=i))
            now = [(n, v, a) for (n, _, a), v in zip(carried, values, strict=True)]
            return self._outer(number, p, now, inner, rest, (*linear, (head, i)))

        zero = self.b.constant(0, DType.I32)
        end = self.index(head.extent, places)
        return self.b.loop(head.name, zero, end, "outer", None, carried, body)

    def _tiles(
        self,
        number: int,
        p: Pass,
        carried: list[tuple[str, Value, tuple[Axis, ...]]],
        places: Places,
        linear: tuple[tuple[Dim, Value], ...],
    ) -> tuple[Value, ...]:
        """The sweep over tiles: those before a gap, edge tiles, full tiles, edge tiles."""
        assert self.cols is not None
        axis, dims = self.cols, self.schedule.cols
        total = simplify(product_of([d.extent for d in dims]))
        bounds = self.schedule.bounds[number] if number < len(self.schedule.bounds) else None
        if len(dims) > 1:
            bounds = None
        exact = self.schedule.exact
        ranges = self._positions if exact else self._ranges
        head, lo, full_lo, full_hi, hi = ranges(bounds, total, places)
        if self.schedule.merged and bounds is not None:
            full_lo = full_hi = hi
        ragged = not exact and not _divides(axis.block, total)
        values = [v for _, v, _ in carried]
        rest_is_ragged = bounds is None or simplify(bounds.full_hi) is total
        short = bounds is not None and _at_most(bounds.head, axis.block)
        for start, end, full, single in (
            (self._zero(), head, False, short),
            (lo, full_lo, False, False),
            (full_lo, full_hi, True, False),
            (full_hi, hi, False, rest_is_ragged),
        ):
            holds = frozenset(map(simplify, bounds.holds)) if full and bounds else frozenset()
            tail = ragged and not full
            base = start if exact else None
            skip = self._skip(number)
            body = self._tile_body(p, places, axis, total, tail, linear, holds, base, skip)
            now = [(n, v, a) for (n, _, a), v in zip(carried, values, strict=True)]
            first, last = (self._zero(), self._tiles_in(start, end)) if exact else (start, end)
            values = list(
                self.b.loop(
                    *("tile", first, last, "sweep", axis, now, body),
                    full=full,
                    base=base,
                    end=end if exact else None,
                    single=single,
                )
            )
        return tuple(values)

    def _zero(self) -> Value:
        return self.b.constant(0, DType.I32)

    def _tiles_in(self, start: Value, end: Value) -> Value:
        """Tiles that cover the positions from start to end."""
        assert self.cols is not None
        b, block = self.b, self.cols.block
        if start is end:
            return self._zero()
        count = b.compute("sub", end, start)
        rounded = b.compute("add", count, b.constant(block - 1, DType.I32))
        return b.compute("quotient", rounded, b.constant(block, DType.I32))

    def _positions(
        self, bounds: Bounds | None, total: Expr, places: Places
    ) -> tuple[Value, Value, Value, Value, Value]:
        """head, lo, full_lo, full_hi, hi of a schedule whose tiles end exactly there."""
        b, zero = self.b, self._zero()
        extremes = self._with_extremes(places)
        end = self.index(total, extremes)
        if bounds is None:
            return zero, zero, zero, end, end

        def clip(expr: Expr, low: Value, high: Value) -> Value:
            expr = simplify(expr)
            if expr is total:
                return high  # nothing is above it
            at = self.index(expr, extremes)
            if b.literal(at) == 0:
                return low  # nothing is below 0
            return b.compute("min", b.compute("max", at, low), high)

        head = clip(bounds.head, zero, end)
        hi = clip(bounds.hi, head, end)
        lo = clip(bounds.lo, head, hi)
        full_lo = clip(bounds.full_lo, lo, hi)
        return head, lo, full_lo, clip(bounds.full_hi, full_lo, hi), hi

    def _tile_body(
        self,
        p: Pass,
        places: Places,
        axis: Axis,
        total: Expr,
        tail: bool,
        linear: tuple[tuple[Dim, Value], ...],
        holds: frozenset[Expr],
        base: Value | None,
        skip: Expr | None,
    ) -> Callable[[Value, tuple[Value, ...]], Sequence[Value]]:
        def body(tile: Value, values: tuple[Value, ...]) -> Sequence[Value]:
            inner = places.copy()
            block = self.b.constant(axis.block, DType.I32)
            start = self.b.compute("mul", tile, block, hint="col_start")
            if base is not None:
                start = self.b.compute("add", base, start, hint="col_start")
            self._bind_linear(inner, axis, start, self.schedule.cols, total, tail)
            here = (*linear, (None, start))
            if skip is None:
                return self.fold(p, values, inner, here, holds)
            needed = self._anywhere(skip, Context(inner, self.finals, holds))
            if self.b.literal(needed) is True:
                return self.fold(p, values, inner, here, holds)
            return self.b.branch(needed, values, lambda now: self.fold(p, now, inner, here, holds))

        return body

    def _skip(self, number: int) -> Expr | None:
        skips = self.schedule.skips
        return skips[number] if number < len(skips) else None

    def _anywhere(self, condition: Expr, ctx: Context) -> Value:
        """Whether a condition holds for some element of the tile."""
        value = self.ex.typed(condition, DType.BOOL, ctx)
        for axis in reversed(value.axes):
            ok = ctx.places.ok(axis)
            if ok is not None:
                value = self.b.compute("and", value, ok)
            value = self.b.fold(ANY, value, axis)
        return value

    def _ranges(
        self, bounds: Bounds | None, total: Expr, places: Places
    ) -> tuple[Value, Value, Value, Value, Value]:
        """head, lo, full_lo, full_hi, hi in tiles."""
        assert self.cols is not None
        b, block = self.b, self.cols.block
        zero = b.constant(0, DType.I32)

        def index(expr: Expr) -> Value:
            return self.index(simplify(expr), self._with_extremes(places))

        tiles = index(floordiv(add(total, const(block - 1)), const(block)))
        whole = index(floordiv(total, const(block)))
        if bounds is None:
            return zero, zero, zero, whole, tiles
        size = b.constant(block, DType.I32)

        def down(expr: Expr) -> Value:
            op = "quotient" if interval(expr)[0] >= 0 else "floordiv"
            return b.compute(op, index(expr), size)

        def up(expr: Expr) -> Value:
            return down(simplify(add(expr, const(block - 1))))

        def clip(at: Value, low: Value, high: Value) -> Value:
            if b.literal(at) == 0:
                return low  # nothing is below 0
            return b.compute("min", b.compute("max", at, low), high)

        head = clip(up(bounds.head), zero, tiles)
        hi = clip(up(bounds.hi), head, tiles)
        lo = clip(down(bounds.lo), head, hi)
        full_lo = clip(up(bounds.full_lo), lo, hi)
        full_hi = b.compute("min", down(bounds.full_hi), whole)
        return head, lo, full_lo, clip(full_hi, full_lo, hi), hi

    def _with_extremes(self, places: Places) -> Places:
        """Places that also know the first and last positions of the row tile."""
        if self.rows is None:
            return places
        b = self.b
        inner = places.copy()
        dims = self.schedule.rows
        block = b.constant(self.rows.block, DType.I32)
        assert self.row_tile is not None
        low = b.compute("mul", self.row_tile, block, hint="row_start")
        end = self.index(product_of([d.extent for d in dims]), places)
        high = b.compute("sub", b.compute("min", b.compute("add", low, block), end), _one(b))
        for n, d in enumerate(reversed(dims)):
            outermost = n == len(dims) - 1
            if outermost:
                inner.bind(first(d), Place(at=low))
                inner.bind(last(d), Place(at=high))
                continue
            extent = self.index(d.extent, places)
            above_low = b.compute("quotient", low, extent)
            above_high = b.compute("quotient", high, extent)
            same = b.compute("eq", above_low, above_high)
            most = b.compute("sub", extent, _one(b))
            at_low, at_high = (
                b.compute("remainder", low, extent),
                b.compute("remainder", high, extent),
            )
            zero = b.constant(0, DType.I32)
            inner.bind(first(d), Place(at=b.compute("select", same, at_low, zero)))
            inner.bind(last(d), Place(at=b.compute("select", same, at_high, most)))
            low, high = above_low, above_high
        return inner

    # -- Results.

    def _give(self, give: Give, ctx: Context) -> None:
        value = self.ex.typed(give.expr, give.dtype, ctx)
        self.finals[give.name] = (give.dims, value)
        index: list[Subscript] = []
        masks: list[Value] = []
        for d in give.dims:
            subscript, needed = self.places.subscript(
                Index(d), d.extent, False, lambda e: self.index(e, self.places)
            )
            index.append(subscript)
            masks += [m for m in needed if m not in masks]
        self.b.store(give.buffer, tuple(index), value, tuple(masks))


def _at_most(expr: Expr, limit: int) -> bool:
    match expr:
        case Const(value, _):
            return value <= limit
        case Binary("min", a, b):
            return _at_most(a, limit) or _at_most(b, limit)
        case _:
            return False


def _divides(block: int, total: Expr) -> bool:
    return isinstance(total, Const) and int(total.value) % block == 0


def _one(b: Builder) -> Value:
    return b.constant(1, DType.I32)
