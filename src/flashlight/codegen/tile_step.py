"""One tile of a pass: what running values become when a tile of the loop is folded into them (algebra.md, section 6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from flashlight.codegen.blocks import Axis, Value
from flashlight.codegen.builder import Builder, unsupported
from flashlight.codegen.exponents import (
    LOG2_E,
    Scaled,
    anchored,
    is_given_alone,
    is_huge,
    may_be_huge,
    scale_of,
    where_known,
)
from flashlight.codegen.expressions import Expressions
from flashlight.codegen.factors import Factor, factors_of, is_load, parted, spared
from flashlight.codegen.lagging import lags, maximum_of, positive_scale
from flashlight.codegen.places import Places
from flashlight.codegen.reductions import Context, combine, identity
from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import (
    ONE,
    Dim,
    Expr,
    Unary,
    dtype_of,
    largest,
    mul,
)
from flashlight.ir.monoids import ARGMIN, MAX, MIN, SUM, Monoid
from flashlight.ir.nests import Carry, Loop, Pass, Shift
from flashlight.ir.visit import free_dims, loads, reads
from flashlight.rewrite.schedule import Schedule
from flashlight.rewrite.simplify import simplify


@dataclass(frozen=True)
class Slot:
    """A loop-carried value of a carry: `carry` itself, or the position of an argmax."""

    name: str
    init: Value
    axes: tuple[Axis, ...]


class TileStep:
    """The running values of a loop's carries, and their change by one tile.

    Attributes:
        b: what the block program is built with.
        ex: expressions as its values.
        places: where the dims of the tile are.
        rows, cols: the axes of the tile; None where there is none.
        finals: values that are ready, by name, with their dims.
        lags: maxima that follow scores only when these are above them by so much.
    """

    def __init__(self, loop: Loop, schedule: Schedule) -> None:
        self.loop = loop
        self.schedule = schedule
        self.b = Builder(reciprocals=not schedule.exact)
        scores = frozenset(_scores(loop))
        fast = _all_sixteen(loop)
        # One multiplication more for each element is nothing against a product in f32, and right for scores of any size.
        wide = not fast or schedule.exact or may_be_huge(loop) or is_given_alone(loop)
        scaled = Scaled(LOG2_E, frozenset(schedule.rows), frozenset(loop.loop), scores, wide)
        self.ex = Expressions(self.b, scaled, fast=fast, exact=schedule.exact)
        self.places = Places(self.b)
        self.rows: Axis | None = None
        self.cols: Axis | None = None
        self.finals: dict[str, tuple[tuple[Dim, ...], Value]] = {}
        self.references: tuple[Expr, ...] = ()
        self.old_references: dict[Expr, Value] = {}
        self.clamped: dict[str, float] = {}
        self.lags: Mapping[str, float] = {}

    def slots(self, carry: Carry) -> list[Slot]:
        """The loop-carried values of a carry, the carry itself last."""
        axes = self.b.ordered(a for d in carry.dims if (a := self.places[d].axis) is not None)
        if carry.monoid.is_position:
            best = _extremum(carry.monoid)
            return [
                Slot(f"{carry.name}_best", identity(self.b, best, DType.F32), axes),
                Slot(carry.name, self.b.constant(0, DType.I32), axes),
            ]
        return [Slot(carry.name, identity(self.b, carry.monoid, carry.dtype), axes)]

    def fold(
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
            n = len(self.slots(c))
            before[c.name] = (c.dims, old[at + n - 1])
            at += n
        tame = self._is_tame(holds)
        old_ctx = Context(places, before, holds, self.clamped, tame)
        self.old_references = dict(zip(self.references, old[at:], strict=True))
        now = dict(before)
        result: list[Value] = []
        at = 0
        for c in p.carries:
            n = len(self.slots(c))
            ctx = Context(places, now, holds, self.clamped, tame)
            values = self._carry(c, p, old[at : at + n], old_ctx, ctx, linear)
            result += values
            at += n
            now = {**now, c.name: (c.dims, values[-1])}
        ctx = Context(places, now, holds, self.clamped)
        return result + [self._reference(w, ctx) for w in self.references]

    def _is_tame(self, holds: frozenset[Expr]) -> bool:
        """Whether no score is huge where some conditions hold, though some are elsewhere (fills): for results of 16 bits, as others
        would see that a tile's reference is rounded where that of the next is not.
        """
        if not self.ex.fast or self.schedule.exact or not self.ex.scaled.wide or not holds:
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
        total = combine(b, c.monoid, old[0], value, nan=nan)
        if c.name in self.lags:
            enough = b.compute("add", old[0], b.constant(self.lags[c.name], c.dtype))
            total = b.compute("select", b.compute("gt", total, enough), total, old[0], hint=c.name)
        return [total]

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
        clamped = all(maximum_of(w) in self.clamped for w in c.weight)
        if clamped:
            # References never fall, but for rounding: of an unset one, which is huge, that would be inf while the sum is 0.
            exponent = b.compute("minnum", exponent, b.constant(0.0, exponent.dtype))
        phi = b.compute("exp2" if base2 else "exp", exponent, hint="phi")
        if not clamped:
            # Leaving the unset state, the reference jumps from 0: the factor may be inf while the sum is 0.
            phi = b.compute("minnum", phi, b.constant(largest(c.dtype).value, c.dtype), hint="phi")
        seldom = len(total.axes) > 1 and all(maximum_of(w) in self.lags for w in c.weight)
        return b.compute("rescale" if seldom else "mul", total, phi, hint=c.name)

    def _difference(self, expr: Expr, before: Context, now: Context, dtype: DType) -> Value:
        """~new - ~old of an expression of carries."""
        anchor = anchored(expr)
        new = self.ex.typed(anchor, dtype, now)
        return self.b.compute("sub", new, self.ex.typed(anchor, dtype, before), dtype=dtype)

    # -- References: the exponents by which sums are scaled down, kept from tile to tile.

    def start_references(self, p: Pass) -> list[Slot]:
        """A slot for minus each weight of the pass, scaled for exp2; sets `references` and `clamped`.

        An exact schedule's tiles lie in memory: there a copy costs as much as computing the old reference once more.
        """
        weights = tuple(dict.fromkeys(w for c in p.carries for w in c.weight))
        self.references = () if self.schedule.exact else weights
        self.clamped = self._clamped(p)
        if self.schedule.consumers:  # others gain nothing by not moving their accumulators
            self.lags = lags(p, self.loop, self.schedule.rows, self.clamped)
        state = dict(self.finals)
        for c in p.carries:
            last_slot = self.slots(c)[-1]
            state[c.name] = (c.dims, last_slot.init)
        ctx = Context(self.places, state, frozenset(), self.clamped)
        slots = []
        for w in self.references:
            dims = free_dims(w)
            axes = self.b.ordered(a for d in dims if (a := self.places[d].axis) is not None)
            slots.append(Slot("ref", self._reference(w, ctx), axes))
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

        Then the factor by which sums move is never above 1. Where scores may be huge themselves, the number is the largest there
        is, and differences are taken before they are scaled.
        """
        if self.schedule.exact:  # C++'s exp2 takes no such exponents
            return {}
        # Multiplied by a scale again, the largest must not round up.
        most, below = (largest(DType.F32).value, 1 - 2.0**-22) if self.ex.scaled.wide else (1e37, 1)
        found: dict[str, float] = {}
        for c in p.carries:
            if c.monoid is not MAX or c.dtype is not DType.F32:
                continue
            readers = [d for d in p.carries if c.name in reads(d.body, *d.weight)]
            moved = all(any(maximum_of(w) == c.name for w in d.weight) for d in readers)
            if (
                readers
                and moved
                and all(positive_scale(w) is not None for d in readers for w in d.weight)
            ):
                scale = max(
                    1.0, *(s for d in readers for w in d.weight if (s := positive_scale(w)))
                )
                found[c.name] = most if scale == 1.0 else most / scale * below
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
            here = b.compute("ge", at, b.constant(0, DType.I32))
            value = b.compute("select", here, value, identity(b, SUM, c.dtype))
        if cols in value.axes:
            part = b.fold(SUM, value, cols, hint=f"{c.name}_tile")
        else:
            part = b.compute("mul", value, b.constant(_one_of(c.dtype) * cols.block, c.dtype))
        return b.compute("add", moved, part, hint=c.name)

    def _dot(self, c: Carry, moved: Value, ctx: Context) -> Value | None:
        assert self.cols is not None
        b, cols, ex = self.b, self.cols, self.ex
        # Under a condition that is known to hold, values are those of other carries.
        body = where_known(c.body, ctx.facts)
        outside, inside = parted(factors_of(body), lambda e: cols in ex.axes(e, ctx))
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
        sides = spared(left, right, free)
        if sides is None:
            return None
        a, v = ex.product(sides[0], ctx), ex.product(sides[1], ctx)
        ok = ctx.places.ok(cols)
        if ok is not None:
            a = b.compute("select", ok, a, b.constant(0.0, a.dtype), hint=a.name)
            if not all(is_load(f) for f in sides[1]):
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
            offset = b.compute("mul", start, self.index(stride, ctx.places))
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
        return simplify(product_of([d.extent for d in self.loop.loop[at + 1 :]]))

    def index(self, expr: Expr, places: Places) -> Value:
        return self.ex.typed_index(expr, Context(places, self.finals), False)


def _scores(loop: Loop) -> Iterator[Expr]:
    """Expressions whose extremum is taken, with what scaled them before `prepare`."""
    for c in loop.carries:
        if c.monoid in (MAX, MIN):
            yield c.body


def expressions_of(loop: Loop) -> list[Expr]:
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
        for load in loads(*expressions_of(loop))
        if load.buffer.name not in own and load.buffer.dtype.is_float
    ]
    return bool(floats) and any(d in (DType.F16, DType.BF16) for d in floats)


def product_of(extents: Sequence[Expr]) -> Expr:
    total: Expr = ONE
    for e in extents:
        total = e if total is ONE else mul(total, e)
    return simplify(total)


def _extremum(monoid: Monoid) -> Monoid:
    return MIN if monoid is ARGMIN else MAX


def _multiset(shifts: Sequence[Shift]) -> frozenset[tuple[Shift, int]]:
    return frozenset(Counter(shifts).items())


def _one_of(dtype: DType) -> float:
    return 1.0 if dtype.is_float else 1
