"""A loop and its schedule to a block program: tiles, running values and their moves (algebra.md, section 6)."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby

from flashlight.codegen.blocks import Axis, GridDim, Kernel, Subscript, Value, walk
from flashlight.codegen.blocks import Fetch as FetchOp
from flashlight.codegen.builder import Builder, unsupported
from flashlight.codegen.exponents import (
    LARGEST,
    LOG2_E,
    Scaled,
    anchored,
    is_given_alone,
    is_huge,
    may_be_huge,
    prepare,
    scale_of,
    where_known,
)
from flashlight.codegen.expressions import (
    Context,
    Expressions,
    Factor,
    combine,
    factors_of,
    identity,
)
from flashlight.codegen.places import Place, Places, interval
from flashlight.codegen.sharing import share_dims
from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import (
    ONE,
    Binary,
    Const,
    Dim,
    Expr,
    Index,
    Load,
    Unary,
    add,
    const,
    dtype_of,
    floordiv,
    mul,
)
from flashlight.ir.monoids import ANY, ARGMIN, MAX, MIN, SUM, Monoid
from flashlight.ir.nests import Carry, Give, Loop, Pass, Program, Shift
from flashlight.ir.visit import free_dims, loads, reads
from flashlight.rewrite.simplify import simplify
from flashlight.rewrite.tile import Bounds, Schedule, first, last


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


@dataclass(frozen=True)
class _Slot:
    """A loop-carried value of a carry: `carry` itself, or the position of an argmax."""

    name: str
    init: Value
    axes: tuple[Axis, ...]


class _Lowering:
    """State of one lowering. See `lower`."""

    def __init__(self, loop: Loop, schedule: Schedule, name: str) -> None:
        self.loop = loop
        self.schedule = schedule
        self.name = name
        self.b = Builder()
        scores = frozenset(_scores(loop))
        wide = may_be_huge(loop) or is_given_alone(loop)
        scaled = Scaled(LOG2_E, frozenset(schedule.rows), frozenset(loop.loop), scores, wide)
        self.ex = Expressions(self.b, scaled, fast=_all_sixteen(loop), exact=schedule.exact)
        self.places = Places(self.b)
        self.rows: Axis | None = None
        self.cols: Axis | None = None
        self.finals: dict[str, tuple[tuple[Dim, ...], Value]] = {}
        self.row_tile: Value | None = None
        self.references: tuple[Expr, ...] = ()
        self.old_references: dict[Expr, Value] = {}
        self.clamped: dict[str, float] = {}

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
                load.buffer for load in loads(*_expressions(self.loop), *self._bound_expressions())
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
        total = _product([d.extent for d in s.rows])
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
        slots = [s for c in p.carries for s in self._slots(c)]
        slots += self._references(p)
        carried = [(s.name, s.init, s.axes) for s in slots]
        if not self.loop.loop:
            values = self._step(p, [s.init for s in slots], self.places, (), frozenset())
        else:
            values = list(self._outer(number, p, carried, self.places, self.schedule.outer, ()))
        at = 0
        for c in p.carries:
            self.finals[c.name] = (c.dims, values[at + len(self._slots(c)) - 1])
            at += len(self._slots(c))

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
        end = self._index(head.extent, places)
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
        total = simplify(_product([d.extent for d in dims]))
        bounds = self.schedule.bounds[number] if number < len(self.schedule.bounds) else None
        if len(dims) > 1:
            bounds = None
        exact = self.schedule.exact
        ranges = self._positions if exact else self._ranges
        head, lo, full_lo, full_hi, hi = ranges(bounds, total, places)
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
        end = self._index(total, extremes)
        if bounds is None:
            return zero, zero, zero, end, end

        def clip(expr: Expr, low: Value, high: Value) -> Value:
            expr = simplify(expr)
            if expr is total:
                return high  # nothing is above it
            at = self._index(expr, extremes)
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
                return self._step(p, values, inner, here, holds)
            needed = self._anywhere(skip, Context(inner, self.finals, holds))
            if self.b.literal(needed) is True:
                return self._step(p, values, inner, here, holds)
            return self.b.branch(needed, values, lambda now: self._step(p, now, inner, here, holds))

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
            return self._index(simplify(expr), self._with_extremes(places))

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
        end = self._index(_product([d.extent for d in dims]), places)
        high = b.compute("sub", b.compute("min", b.compute("add", low, block), end), _one(b))
        for n, d in enumerate(reversed(dims)):
            outermost = n == len(dims) - 1
            if outermost:
                inner.bind(first(d), Place(at=low))
                inner.bind(last(d), Place(at=high))
                continue
            extent = self._index(d.extent, places)
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

    def _index(self, expr: Expr, places: Places) -> Value:
        return self.ex.typed_index(expr, Context(places, self.finals), False)

    # -- One tile.

    def _slots(self, carry: Carry) -> list[_Slot]:
        """The loop-carried values of a carry, the carry itself last."""
        axes = self.b.ordered(a for d in carry.dims if (a := self.places[d].axis) is not None)
        if carry.monoid.is_position:
            best = _extremum(carry.monoid)
            return [
                _Slot(f"{carry.name}_best", identity(self.b, best, DType.F32), axes),
                _Slot(carry.name, self.b.constant(0, DType.I32), axes),
            ]
        return [_Slot(carry.name, identity(self.b, carry.monoid, carry.dtype), axes)]

    def _step(
        self,
        p: Pass,
        old: Sequence[Value],
        places: Places,
        linear: tuple[tuple[Dim | None, Value], ...],
        holds: frozenset[Expr],
    ) -> list[Value]:
        """The values after a tile."""
        before = dict(self.finals)
        at = 0
        for c in p.carries:
            n = len(self._slots(c))
            before[c.name] = (c.dims, old[at + n - 1])
            at += n
        tame = self._is_tame(holds)
        old_ctx = Context(places, before, holds, self.clamped, tame)
        self.old_references = dict(zip(self.references, old[at:], strict=True))
        now = dict(before)
        result: list[Value] = []
        at = 0
        for c in p.carries:
            n = len(self._slots(c))
            ctx = Context(places, now, holds, self.clamped, tame)
            values = self._carry(c, p, old[at : at + n], old_ctx, ctx, linear)
            result += values
            at += n
            now = {**now, c.name: (c.dims, values[-1])}
        ctx = Context(places, now, holds, self.clamped)
        return result + [self._reference(w, ctx) for w in self.references]

    def _is_tame(self, holds: frozenset[Expr]) -> bool:
        """Whether no score is huge where some conditions hold, though some are elsewhere (fills)."""
        if self.schedule.exact or not self.ex.scaled.wide or not holds:
            return False
        if is_given_alone(self.loop):
            return False
        scores = (c.body for c in self.loop.carries if c.monoid in (MAX, MIN))
        return not any(is_huge(where_known(s, holds), self.loop) for s in scores)

    def _carry(
        self,
        c: Carry,
        p: Pass,
        old: Sequence[Value],
        before: Context,
        now: Context,
        linear: tuple[tuple[Dim | None, Value], ...],
    ) -> list[Value]:
        b = self.b
        if c.monoid.is_position:
            return self._position(c, old, now, linear)
        if c.monoid is SUM:
            moved = self._moved(c, p, old[0], before, now)
            return [self._accumulated(c, moved, now)]
        nan = self._must_propagate(c)
        scale: Expr | None = None
        apart = self.ex.separated(c.body, now) if c.dtype is DType.F32 else None
        if apart is not None and apart.tile is not None and apart.scale > 0:
            value = self._inside(apart.tile, c.monoid, now)
        else:
            apart = None
            scale, body = self._tame_scale(c, now)
            value = self._tile_value(body, c.dtype, c.monoid, now)
        if self.cols is not None and self.cols in value.axes:
            value = b.fold(c.monoid, value, self.cols, nan=nan, hint=f"{c.name}_tile")
        if scale is not None:
            value = b.compute("mul", value, self.ex.typed(scale, c.dtype, now))
        if apart is not None and apart.row is not None:
            by = b.constant(apart.scale, DType.F32)
            value = b.compute("fma", value, by, apart.row, hint=f"{c.name}_tile")
        return [combine(b, c.monoid, old[0], value, nan=nan)]

    def _tame_scale(self, c: Carry, ctx: Context) -> tuple[Expr | None, Expr]:
        """(scale, body) of an extremum: where no fill is in the way, the scale is applied to the result."""
        if not ctx.tame or c.dtype is not DType.F32:
            return None, c.body
        return scale_of(where_known(c.body, ctx.facts), frozenset(self.loop.loop))

    def _tile_value(self, body: Expr, dtype: DType, monoid: Monoid, ctx: Context) -> Value:
        """A carry's body with the monoid's identity past the end of the loop."""
        return self._inside(self.ex.typed(body, dtype, ctx), monoid, ctx)

    def _inside(self, value: Value, monoid: Monoid, ctx: Context) -> Value:
        """A tile with the monoid's identity past the end of the loop."""
        ok = ctx.places.ok(self.cols) if self.cols is not None else None
        if ok is None:
            return value
        fill = identity(self.b, monoid, value.dtype)
        return self.b.compute("select", ok, value, fill, hint=value.name)

    def _must_propagate(self, c: Carry) -> bool:
        """Whether NaN in a maximum must show in it: unless every reader also reads a sum moved by it, which is NaN itself."""
        if c.monoid not in (MAX, MIN):
            return True
        moved = {
            d.name for d in self.loop.carries if d.monoid is SUM and c.name in reads(*d.weight)
        }
        for give in self.loop.gives:
            names = reads(give.expr)
            if c.name in names and not names & moved:
                return True
        later = [d for d in self.loop.carries if c.name in reads(d.body)]
        return any(d.name not in moved for d in later)

    # -- Sums: moves and tiles.

    def _moved(self, c: Carry, p: Pass, old: Value, before: Context, now: Context) -> Value:
        """The accumulator at the new references: phi times itself and its lower carries, weighted by how the shifts moved."""
        b = self.b
        lower = {d.name: d for d in p.carries if d.name in c.lower}
        total = old
        count = len(c.shifts)
        if count:
            differences = [self._difference(s.value, before, now, c.dtype) for s in c.shifts]
            by_shifts = {_multiset(d.shifts): d for d in lower.values()}
            for size in range(count - 1, -1, -1):
                for kept in combinations(range(count), size):
                    key = _multiset([c.shifts[i] for i in kept])
                    if key not in by_shifts:
                        raise unsupported(f"'{c.name}' moves over a carry that is missing")
                    _, value = before.carried[by_shifts[key].name]
                    for i in range(count):
                        if i not in kept:
                            value = b.compute("mul", value, differences[i])
                    total = b.compute("add", total, value)
        if not c.weight:
            return total
        exponent: Value | None = None
        for w in c.weight:
            new = self._reference(w, now)
            old_reference = self.old_references.get(w) or self._reference(w, before)
            change = b.compute("sub", old_reference, new)
            exponent = change if exponent is None else b.compute("add", exponent, change)
        assert exponent is not None
        base2 = c.dtype is DType.F32
        if base2 and self.ex.scaled.wide:
            exponent = b.compute("mul", exponent, b.constant(LOG2_E, c.dtype))
        phi = b.compute("exp2" if base2 else "exp", exponent, hint="phi")
        if not all(_maximum(w) in self.clamped for w in c.weight):
            # Leaving the unset state, the reference jumps from 0: the factor may be inf while the sum is 0.
            largest = LARGEST if base2 else sys.float_info.max
            phi = b.compute("minnum", phi, b.constant(largest, c.dtype), hint="phi")
        return b.compute("mul", total, phi, hint=c.name)

    def _difference(self, expr: Expr, before: Context, now: Context, dtype: DType) -> Value:
        """~new - ~old of an expression of carries."""
        anchor = anchored(expr)
        new = self.ex.typed(anchor, dtype, now)
        return self.b.compute("sub", new, self.ex.typed(anchor, dtype, before), dtype=dtype)

    # -- References: the exponents by which sums are scaled down, kept from tile to tile.

    def _references(self, p: Pass) -> list[_Slot]:
        """A slot for minus each weight of the pass, scaled for exp2; sets `references` and `clamped`.

        An exact schedule's tiles lie in memory: there a copy costs as much as computing the old reference once more.
        """
        weights = tuple(dict.fromkeys(w for c in p.carries for w in c.weight))
        self.references = () if self.schedule.exact else weights
        self.clamped = self._clamped(p)
        state = dict(self.finals)
        for c in p.carries:
            last_slot = self._slots(c)[-1]
            state[c.name] = (c.dims, last_slot.init)
        ctx = Context(self.places, state, frozenset(), self.clamped)
        slots = []
        for w in self.references:
            dims = free_dims(w)
            axes = self.b.ordered(a for d in dims if (a := self.places[d].axis) is not None)
            slots.append(_Slot("ref", self._reference(w, ctx), axes))
        return slots

    def _reference(self, w: Expr, ctx: Context) -> Value:
        """~(-w), times log2(e) where exponents may be scaled."""
        dtype = DType.F64 if dtype_of(w) is DType.F64 else DType.F32
        expr = anchored(w.x if isinstance(w, Unary) and w.op == "neg" else Unary("neg", w))
        if dtype is DType.F32 and not self.ex.scaled.wide:
            expr = self.ex.scaled(expr)
        return self.ex.typed(expr, dtype, ctx)

    def _clamped(self, p: Pass) -> dict[str, float]:
        """Running maxima that only serve as references: an unset one may stand at a huge negative number.

        Then the factor by which sums move is never above 1, and needs no clamp itself. Where scores may be huge themselves, the
        number is the largest there is, and differences are taken before they are scaled.
        """
        if self.schedule.exact:  # C++'s exp2 takes no such exponents
            return {}
        most = LARGEST if self.ex.scaled.wide else 1e37
        found: dict[str, float] = {}
        for c in p.carries:
            if c.monoid is not MAX or c.dtype is not DType.F32:
                continue
            readers = [d for d in p.carries if c.name in reads(d.body, *d.weight)]
            moved = all(any(_maximum(w) == c.name for w in d.weight) for d in readers)
            if (
                readers
                and moved
                and all(_positive_scale(w) is not None for d in readers for w in d.weight)
            ):
                found[c.name] = most / max(
                    1.0, *(s for d in readers for w in d.weight if (s := _positive_scale(w)))
                )
        return found

    def _accumulated(self, c: Carry, moved: Value, ctx: Context) -> Value:
        """moved + the sum over this tile, as one dot with accumulator where the body's factors split."""
        b, cols = self.b, self.cols
        if cols is None:
            return b.compute("add", moved, self.ex.typed(c.body, c.dtype, ctx), hint=c.name)
        if c.dtype.is_float:
            done = self._dot(c, moved, ctx)
            if done is not None:
                return done
        value = self._tile_value(c.body, c.dtype, SUM, ctx)
        if self.schedule.exact and cols not in value.axes:
            at = ctx.places.position(
                self.schedule.cols[-1]
            )  # of this tile, so that the sum stays in its loop
            here = b.compute("ge", at, self._zero())
            value = b.compute("select", here, value, identity(b, SUM, c.dtype))
        if cols in value.axes:
            part = b.fold(SUM, value, cols, hint=f"{c.name}_tile")
        else:
            part = b.compute("mul", value, b.constant(_one_of(c.dtype) * cols.block, c.dtype))
        return b.compute("add", moved, part, hint=c.name)

    def _dot(self, c: Carry, moved: Value, ctx: Context) -> Value | None:
        assert self.cols is not None
        b, cols, ex = self.b, self.cols, self.ex
        factors = factors_of(c.body)
        outside = [f for f in factors if cols not in ex.axes(f.expr, ctx)]
        inside = [f for f in factors if f not in outside]
        left: list[Factor] = []
        right: list[Factor] = []
        free: list[Factor] = []
        for f in inside:
            axes = ex.axes(f.expr, ctx) - {cols}
            if not axes:
                free.append(f)
            elif self.rows in axes:
                left.append(f)
            else:
                right.append(f)
        used_left = frozenset[Axis]().union(*(ex.axes(f.expr, ctx) for f in left)) - {cols}
        used_right = frozenset[Axis]().union(*(ex.axes(f.expr, ctx) for f in right)) - {cols}
        if len(used_left) != 1 or len(used_right) != 1 or used_left & used_right:
            return None
        sides = (left + free, right)
        a, v = ex.product(sides[0], ctx), ex.product(sides[1], ctx)
        ok = ctx.places.ok(cols)
        if ok is not None:
            a = b.compute("select", ok, a, b.constant(0.0, a.dtype), hint=a.name)
            if not all(_is_plain(f) for f in right):
                v = b.compute("select", ok, v, b.constant(0.0, v.dtype), hint=v.name)
        a, v = ex.operands(a, v, sides)
        if outside:
            part = b.dot(a, v, cols, c.dtype, None, hint=f"{c.name}_tile")
            part = ex.times(part, outside, ctx)
            return b.compute("add", moved, part, hint=c.name)
        return b.dot(a, v, cols, c.dtype, moved, hint=c.name)

    # -- Positions.

    def _position(
        self,
        c: Carry,
        old: Sequence[Value],
        ctx: Context,
        linear: tuple[tuple[Dim | None, Value], ...],
    ) -> list[Value]:
        """(best value, its position) after a tile; the first of equals, a NaN before all."""
        b = self.b
        best = _extremum(c.monoid)
        value = self._tile_value(c.body, DType.F32, best, ctx)
        if self.cols is not None and self.cols not in value.axes:
            raise unsupported(f"'{c.name}' does not vary along its loop")
        if self.cols is not None:
            top = b.fold(best, value, self.cols, hint=f"{c.name}_top")
            at = b.fold(c.monoid, value, self.cols, hint=f"{c.name}_top_at")
        else:
            top, at = value, b.constant(0, DType.I32)
        for dim, start in linear:
            stride = ONE if dim is None else self._stride(dim)
            offset = b.compute("mul", start, self._index(stride, ctx.places))
            at = b.compute("add", at, offset)
        better = b.compute("lt" if c.monoid is ARGMIN else "gt", top, old[0])
        earlier = b.compute("and", b.compute("eq", top, old[0]), b.compute("lt", at, old[1]))
        was_nan = b.compute("isnan", old[0], dtype=DType.BOOL)
        new_nan = b.compute("isnan", top, dtype=DType.BOOL)
        first_nan = b.compute("and", new_nan, b.compute("not", was_nan))
        wins = b.compute("or", b.compute("or", better, earlier), first_nan)
        return [
            b.compute("select", wins, top, old[0], hint=f"{c.name}_best"),
            b.compute("select", wins, at, old[1], hint=c.name),
        ]

    def _stride(self, dim: Dim) -> Expr:
        """Positions of the loop's row-major order per step of an outer dim."""
        at = self.loop.loop.index(dim)
        if any(self.loop.loop.index(d) < at for d in self.schedule.cols):
            raise unsupported("a position along interchanged loop dims")
        return simplify(_product([d.extent for d in self.loop.loop[at + 1 :]]))

    # -- Results.

    def _give(self, give: Give, ctx: Context) -> None:
        value = self.ex.typed(give.expr, give.dtype, ctx)
        self.finals[give.name] = (give.dims, value)
        index: list[Subscript] = []
        masks: list[Value] = []
        for d in give.dims:
            subscript, needed = self.places.subscript(
                Index(d), d.extent, False, lambda e: self._index(e, self.places)
            )
            index.append(subscript)
            masks += [m for m in needed if m not in masks]
        self.b.store(give.buffer, tuple(index), value, tuple(masks))


def _scores(loop: Loop) -> Iterator[Expr]:
    """Expressions whose extremum is taken, with what scaled them before `prepare`."""
    for c in loop.carries:
        if c.monoid in (MAX, MIN):
            yield c.body


def _expressions(loop: Loop) -> list[Expr]:
    found: list[Expr] = []
    for p in loop.passes:
        for c in p.carries:
            found += [c.body, *c.weight, *(s.value for s in c.shifts)]
        found += [g.expr for g in p.gives]
    return found


def _all_sixteen(loop: Loop) -> bool:
    """Whether every float result is rounded to 16 bits or computed from 16-bit values alone."""
    own = {c.name for c in loop.carries} | {g.name for g in loop.gives}
    floats = [
        load.buffer.dtype
        for load in loads(*_expressions(loop))
        if load.buffer.name not in own and load.buffer.dtype.is_float
    ]
    return bool(floats) and any(d in (DType.F16, DType.BF16) for d in floats)


def _product(extents: Sequence[Expr]) -> Expr:
    total: Expr = ONE
    for e in extents:
        total = e if total is ONE else mul(total, e)
    return simplify(total)


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


def _extremum(monoid: Monoid) -> Monoid:
    return MIN if monoid is ARGMIN else MAX


def _maximum(w: Expr) -> str | None:
    """The carry m whose value is minus a weight: -m or -(m * scale)."""
    match w:
        case Unary("neg", Load(buffer, _)) | Unary("neg", Binary("mul", Load(buffer, _), _)):
            return buffer.name
        case _:
            return None


def _positive_scale(w: Expr) -> float | None:
    """The scale of such a weight, if it is a positive constant."""
    match w:
        case Unary("neg", Load()):
            return 1.0
        case Unary("neg", Binary("mul", Load(), Const(value, _))) if value > 0:
            return float(value)
        case _:
            return None


def _multiset(shifts: Sequence[Shift]) -> frozenset[tuple[Shift, int]]:
    return frozenset(Counter(shifts).items())


def _one(b: Builder) -> Value:
    return b.constant(1, DType.I32)


def _one_of(dtype: DType) -> float:
    return 1.0 if dtype.is_float else 1


def _is_plain(factor: Factor) -> bool:
    return not factor.divides and not factor.selects and isinstance(factor.expr, Load)
