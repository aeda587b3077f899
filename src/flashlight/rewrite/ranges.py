"""Block sparsity from data: a small loop before the big one finds, for each tile of rows, the columns that it needs.

A mask such as `id[q] == id[k]` is decided for whole tiles by interval arithmetic on the least and the greatest id of each tile, so
it costs time linear in the ids (and one comparison per pair of tiles). A condition that is read for each pair (a dense mask) is
folded over pairs of tiles by a loop of its own first, and so are the extremes of each tile where there are many: each tile of rows
would find those of all columns anew. What may hold somewhere gives the range that runs; the first run of tiles
where it holds everywhere needs no mask. Where masked scores are a finite number, a row without any live key
is a mean over all keys: then the loop also looks whether all rows of a tile have one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import reduce

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import (
    COMPARISONS,
    FALSE,
    TRUE,
    Binary,
    Cast,
    Const,
    Dim,
    Expr,
    Index,
    Load,
    Reduce,
    Select,
    Unary,
    add,
    const,
    dtype_of,
    floordiv,
    mod,
    mul,
    sub,
)
from flashlight.ir.monoids import ALL, ANY, MAX, MIN, Monoid
from flashlight.ir.nests import Carry, Give, Loop, Pass
from flashlight.ir.visit import free_dims, fresh_name, loads, substitute
from flashlight.rewrite.liveness import at_likely_positions
from flashlight.rewrite.schedule import Bounds, first, last
from flashlight.rewrite.simplify import simplify

GRAIN = 64
"""Positions of rows and of columns that are decided together; row tiles of up to twice as many read two entries."""


@dataclass(frozen=True)
class Ranges:
    """The loops that find the ranges (summaries of conditions and of tiles, then the ranges), and the bounds that read what they give."""

    loops: tuple[Loop, ...]
    bounds: Bounds


def ranges_of(
    condition: Expr,
    loop: Loop,
    row: Dim,
    col: Dim,
    taken: frozenset[str],
    *,
    rows_live: bool = True,
    dense: Callable[[Expr], bool] = lambda _: False,
    many: bool = False,
) -> Ranges | None:
    """Ranges of `col` for tiles of `row`, where `condition` says which elements matter; None where tiles decide nothing.

    Args:
        condition: over kept dims and `col`, what a pass may not skip.
        loop: whose pass it is.
        row: the kept dim that is tiled.
        col: the loop dim that is tiled.
        taken: names that are used in the program.
        rows_live: a row for which the condition holds nowhere needs nothing. If not (finite fills), tiles with rows that are not
            seen to have an element need every column.
        dense: whether it pays to read a condition at every pair of positions first.
        many: there are so many tiles that it pays to find the extremes of each in a loop of their own.
    """
    named = _Names(set(taken))
    rows = Dim(named(f"{row.name}_tile"), _tiles(row.extent))
    cols = Dim(named(f"{col.name}_tile"), _tiles(col.extent))
    inside = Dim(named("at"), const(GRAIN))
    decide = _Decision(row, col, rows, cols, inside, dense, many, named)
    possible, certain = (simplify(e) for e in decide.condition(condition))
    if possible is TRUE or cols not in free_dims(possible):
        return None
    kept = tuple(d for d in loop.kept if d in free_dims(condition) and d is not row)
    dims = (*kept, rows)
    here, none = Index(cols), cols.extent

    def carry(hint: str, monoid: Monoid, body: Expr) -> Carry:
        return Carry(named(hint), dims, DType.I64, monoid, body)

    full = carry("range_full", MIN, Select(certain, here, none))
    start = Load(full.buffer, tuple(Index(d) for d in dims))
    if not rows_live:
        seen = decide.some_everywhere(condition)
        live = Binary(
            "or", seen, Binary("lt", start, none)
        )  # or a tile of columns where all elements are
        possible = Binary("or", possible, Unary("not", live))
    lo = carry("range_lo", MIN, Select(possible, here, none))
    hi = carry("range_hi", MAX, Select(possible, add(here, const(1)), const(0)))
    past = Binary("and", Binary("ge", here, start), Unary("not", certain))
    end = carry("range_end", MIN, Select(past, here, none))
    gives = tuple(
        Give(named(f"{c.name}_of"), dims, DType.I32, Load(c.buffer, tuple(map(Index, dims))))
        for c in (lo, hi, full, end)
    )
    finder = Loop(dims, (cols,), (Pass((full,)), Pass((lo, hi, end), gives)))
    return Ranges((*decide.summaries, finder), _bounds(gives, kept, row, condition))


@dataclass(frozen=True)
class _Names:
    """Makes names that are not taken."""

    taken: set[str]

    def __call__(self, hint: str) -> str:
        name = fresh_name(hint, self.taken)
        self.taken.add(name)
        return name


def _tiles(extent: Expr) -> Expr:
    return simplify(floordiv(add(extent, const(GRAIN - 1)), const(GRAIN)))


def _bounds(gives: tuple[Give, ...], kept: tuple[Dim, ...], row: Dim, condition: Expr) -> Bounds:
    """Bounds of a row tile from the entries of its first and last row."""

    def entry(give: Give, position: Dim) -> Expr:
        index = (*map(Index, kept), floordiv(Index(position), const(GRAIN)))
        return Load(give.buffer, index)

    def both(give: Give, op: str) -> Expr:
        return mul(Binary(op, entry(give, first(row)), entry(give, last(row))), const(GRAIN))

    lo, hi, full, end = gives
    return Bounds(
        both(lo, "min"), both(full, "max"), both(end, "min"), both(hi, "max"), _conjuncts(condition)
    )


def _conjuncts(condition: Expr) -> tuple[Expr, ...]:
    match condition:
        case Binary("and", a, b):
            return (condition, *_conjuncts(a), *_conjuncts(b))
        case _:
            return (condition,)


@dataclass(frozen=True)
class _Decision:
    """Interval arithmetic over a pair of tiles: integers as (least, greatest), conditions as (possible, certain).

    Attributes:
        summaries: loops that fold dense conditions and tiles, which what is returned reads.
        found: the extremes that they give, by what they are of (with `inside` for the position) and how many positions there are.
    """

    row: Dim
    col: Dim
    rows: Dim
    cols: Dim
    inside: Dim
    dense: Callable[[Expr], bool]
    many: bool
    named: _Names
    summaries: list[Loop] = field(default_factory=list)
    found: dict[tuple[Expr, Expr], tuple[Give, ...]] = field(default_factory=dict)

    def condition(self, expr: Expr) -> tuple[Expr, Expr]:
        """Whether a condition may hold for some element of the tile, and whether it holds for all."""
        side = self.side(expr)
        if side is not None:
            tile = self.tile(expr, side)
            if tile is expr:
                return expr, expr
            return Reduce(ANY, (self.inside,), tile), Reduce(ALL, (self.inside,), tile)
        match expr:
            case Binary("and", a, b):
                return self.joined("and", a, b)
            case Binary("or", a, b):
                return self.joined("or", a, b)
            case Unary("not", x):
                possible, certain = self.condition(x)
                return Unary("not", certain), Unary("not", possible)
            case Binary(op, a, b) if op in COMPARISONS and not _is_float(a) and not _is_float(b):
                found = self.comparison(op, a, b)
                if found is not None:
                    return found
        if self.reads_pairs(expr) and self.dense(expr):
            return self.summary(expr)
        return TRUE, FALSE

    def reads_pairs(self, expr: Expr) -> bool:
        """Whether a condition depends on data at each pair of positions."""
        return any(self.side(load) is None for load in loads(expr))

    def summary(self, expr: Expr) -> tuple[Expr, Expr]:
        """Possible and certain for a condition that is read for each pair of positions."""
        pair = Dim(self.named("pair"), const(GRAIN * GRAIN))
        down, across = floordiv(Index(pair), const(GRAIN)), mod(Index(pair), const(GRAIN))
        kept = tuple(sorted(free_dims(expr) - {self.row, self.col}, key=lambda d: d.name))
        dims = (*kept, self.rows, self.cols)
        tile = substitute(
            expr,
            {
                self.row: _within(self.rows, down, self.row),
                self.col: _within(self.cols, across, self.col),
            },
        )
        gives = self.folded(dims, pair, (ANY, ALL), tile, DType.BOOL)
        some, every = (Load(g.buffer, tuple(map(Index, dims))) for g in gives)
        return some, every

    def folded(
        self, dims: tuple[Dim, ...], over: Dim, monoids: Iterable[Monoid], body: Expr, dtype: DType
    ) -> tuple[Give, ...]:
        """What a new summary gives: `body` folded over a dim by each monoid, accumulated in a type."""
        folds = tuple(Carry(self.named(m.name), dims, dtype, m, body) for m in monoids)
        kind = dtype_of(body)
        gives = tuple(
            Give(self.named(f"{c.name}_of"), dims, kind, Load(c.buffer, tuple(map(Index, dims))))
            for c in folds
        )
        self.summaries.append(Loop(dims, (over,), (Pass(folds, gives),)))
        return gives

    def some_everywhere(self, condition: Expr) -> Expr:
        """Whether the condition is seen to hold at some column for each row of the tile."""
        live: Expr = FALSE
        for at in at_likely_positions(condition, (self.row,), self.col):
            tile = self.tile(at, self.side(at) or "")
            each = tile if tile is at else Reduce(ALL, (self.inside,), tile)
            live = simplify(Binary("or", live, each))
        return live

    def joined(self, op: str, a: Expr, b: Expr) -> tuple[Expr, Expr]:
        (p, q), (r, s) = self.condition(a), self.condition(b)
        return Binary(op, p, r), Binary(op, q, s)

    def comparison(self, op: str, a: Expr, b: Expr) -> tuple[Expr, Expr] | None:
        """Possible and certain for a comparison of integers; None where their intervals are not known."""
        x, y = self.interval(a), self.interval(b)
        if x is None or y is None:
            return None
        (least, greatest), (low, high) = x, y
        match op:
            case "lt" | "le":
                return Binary(op, least, high), Binary(op, greatest, low)
            case "gt" | "ge":
                return Binary(op, greatest, low), Binary(op, least, high)
        meets = Binary("and", Binary("le", least, high), Binary("le", low, greatest))
        single = [Binary("eq", least, greatest), Binary("eq", low, high), Binary("eq", least, low)]
        same = reduce(lambda p, q: Binary("and", p, q), single)
        if op == "eq":
            return meets, same
        return Unary("not", same), Unary("not", meets)

    def interval(self, expr: Expr) -> tuple[Expr, Expr] | None:
        """The least and greatest value over the pair of tiles, or None."""
        if isinstance(expr, Index) and expr.dim in (self.row, self.col):
            number = self.rows if expr.dim is self.row else self.cols
            start = mul(Index(number), const(GRAIN))
            last_one = sub(expr.dim.extent, const(1))
            return start, Binary("min", add(start, const(GRAIN - 1)), last_one)
        match expr:
            case Binary("add", a, b):
                return self.pairwise(a, b, lambda p, q, r, s: (add(p, r), add(q, s)))
            case Binary("sub", a, b):
                return self.pairwise(a, b, lambda p, q, r, s: (sub(p, s), sub(q, r)))
            case Binary("mul" | "floordiv" as op, a, Const(value, _)) if value > 0:
                inner = self.interval(a)
                return None if inner is None else _each(op, inner, const(int(value)))
            case Cast(x, dtype) if dtype.is_int and dtype_of(x).is_int:
                return self.interval(x)
        side = self.side(expr)
        if side is None:
            return None
        tile = self.tile(expr, side)
        if tile is expr:
            return expr, expr
        if self.many and loads(expr):
            return self.extremes(expr, side)
        return Reduce(MIN, (self.inside,), tile), Reduce(MAX, (self.inside,), tile)

    def extremes(self, expr: Expr, side: str) -> tuple[Expr, Expr]:
        """The least and the greatest of a tile from a loop of their own, one for both sides where they are of the same numbers."""
        dim, tiles = (self.row, self.rows) if side == "rows" else (self.col, self.cols)
        key = substitute(expr, {dim: Index(self.inside)}), dim.extent
        kept = tuple(sorted(free_dims(expr) - {dim}, key=lambda d: d.name))
        if key not in self.found:
            dims, tile = (*kept, tiles), self.tile(expr, side)
            self.found[key] = self.folded(dims, self.inside, (MIN, MAX), tile, DType.I64)
        index = (*map(Index, kept), Index(tiles))
        least, greatest = (Load(g.buffer, index) for g in self.found[key])
        return least, greatest

    def pairwise(self, a: Expr, b: Expr, make: object) -> tuple[Expr, Expr] | None:
        x, y = self.interval(a), self.interval(b)
        if x is None or y is None:
            return None
        assert callable(make)
        found: tuple[Expr, Expr] = make(*x, *y)
        return found

    def side(self, expr: Expr) -> str | None:
        """Which tile an expression varies over: rows, cols, neither (""); None for both."""
        dims = free_dims(expr)
        if self.row in dims:
            return None if self.col in dims else "rows"
        return "cols" if self.col in dims else ""

    def tile(self, expr: Expr, side: str) -> Expr:
        """An expression at the positions of a tile; the last position stands for those past the end."""
        if not side:
            return expr
        dim, tiles = (self.row, self.rows) if side == "rows" else (self.col, self.cols)
        return substitute(expr, {dim: _within(tiles, Index(self.inside), dim)})


def _within(tiles: Dim, place: Expr, dim: Dim) -> Expr:
    """The position of `dim` at a place in a tile; the last one for places past the end."""
    at = add(mul(Index(tiles), const(GRAIN)), place)
    return Binary("min", at, sub(dim.extent, const(1)))


def _each(op: str, pair: tuple[Expr, Expr], by: Expr) -> tuple[Expr, Expr]:
    return Binary(op, pair[0], by), Binary(op, pair[1], by)


def _is_float(expr: Expr) -> bool:
    return dtype_of(expr).is_float or dtype_of(expr) is DType.BOOL
