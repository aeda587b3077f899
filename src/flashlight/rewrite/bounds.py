"""Block sparsity from the program itself: which positions of a loop dim a tile of rows can need at all.

A tile may be skipped where every carry of its pass would only meet its monoid's identity there. `liveness` reads the condition
for that off a body, `interval` turns the condition into positions along the loop dim by interval arithmetic over a row tile.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import (
    FALSE,
    TRUE,
    ZERO,
    Binary,
    Cast,
    Const,
    Dim,
    Expr,
    Index,
    Load,
    Reduce,
    Select,
    Size,
    Unary,
    add,
    const,
    dtype_of,
    floordiv,
    mul,
)
from flashlight.ir.monoids import ANY, MAX, SUM
from flashlight.ir.nests import Carry, Loop, Pass
from flashlight.ir.visit import children, free_dims, substitute, walk
from flashlight.rewrite.polynomial import Polynomial, polynomial
from flashlight.rewrite.simplify import simplify
from flashlight.rewrite.tile import Bounds, first, last

HUGE_FILL = -6e4
"""A finite fill at or below this is a mask: the least float16 is one, -10000 is a bias whose keys keep their weight."""


def loop_bounds(
    loop: Loop, inputs: frozenset[str], rows: tuple[Dim, ...], col: Dim
) -> tuple[Bounds | None, ...]:
    """For each pass, where along `col` a tile of `rows` has anything to do; None where nothing is known.

    Args:
        loop: the loop, its bodies anchored.
        inputs: names of the program's inputs. Any other array read without an anchor is a row statistic of another loop or pass,
            which may be -inf on a dead row; exp(-inf - -inf) is NaN there, so such a body never counts as its identity.
        rows: dims of the row tile.
        col: the loop dim that is tiled.
    """
    return tuple(_pass_bounds(p, inputs, rows, col) for p in loop.passes)


def _pass_bounds(
    step: Pass, inputs: frozenset[str], rows: tuple[Dim, ...], col: Dim
) -> Bounds | None:
    condition = _live_condition(step, inputs, rows, col)
    if condition is None:
        return None
    found = interval(condition, frozenset(rows), col)
    if found.lo is None and found.hi is None and found.full is None:
        return None
    extent = col.extent
    lo = ZERO if found.lo is None else found.lo
    hi = extent if found.hi is None else found.hi
    full_lo, full_hi = found.full or (extent, extent)
    head = ZERO if found.head is None else found.head
    return Bounds(lo, full_lo, full_hi, hi, found.holds if found.full else (), head)


def loop_skips(
    loop: Loop, inputs: frozenset[str], rows: tuple[Dim, ...], col: Dim, *, proved: bool = True
) -> tuple[Expr | None, ...]:
    """For each pass, the condition of `Schedule.skips`, where it depends on data and is cheap to look at; else None.

    Args:
        loop: the loop.
        inputs: as of `loop_bounds`.
        rows: dims of the row tile.
        col: the loop dim that is tiled.
        proved: leave out conditions that also need every row to have a live key (finite fills), where that is not known here.
    """
    return tuple(_pass_skip(p, inputs, rows, col, proved) for p in loop.passes)


def _pass_skip(
    step: Pass, inputs: frozenset[str], rows: tuple[Dim, ...], col: Dim, proved: bool
) -> Expr | None:
    condition = _live_condition(step, inputs, rows, col, proved)
    if condition is None:
        return None
    nodes = list(walk(condition))
    loaded = [n for n in nodes if isinstance(n, Load)]
    if not any(free_dims(n) & {*rows, col} for n in loaded) or len(nodes) > _CHEAP_NODES:
        return None
    if any(isinstance(n, Reduce) for n in nodes) or any(
        n.buffer.name not in inputs for n in loaded
    ):
        return None
    return condition


_CHEAP_NODES = 60


def _live_condition(
    step: Pass, inputs: frozenset[str], rows: tuple[Dim, ...], col: Dim, proved: bool = True
) -> Expr | None:
    """Outside of which positions no carry of a pass changes; None if that is all of them, or rests on an unproved live key."""
    if not step.carries:
        return None
    live = reduce(_or, [liveness(c, inputs) for c in step.carries])
    if isinstance(live.condition, Const):
        return None
    if live.finite and live.doubtful:
        return None
    if live.finite and proved and not has_live_position(live.condition, rows, col):
        return None
    return live.condition


# -- When does an element matter?


@dataclass(frozen=True, slots=True)
class Live:
    """An element of a body may differ from the identity only where `condition` holds.

    Attributes:
        finite: this rests on a finite fill, and so on the row having some live element that outweighs it.
        doubtful: an element that is live may still be no more than the fill, for a term that is read as it stands (a bias, a mask)
            can be -inf or a fill of its own.
    """

    condition: Expr
    finite: bool = False
    doubtful: bool = False


_ALWAYS = Live(TRUE)
_NEVER = Live(FALSE)


def liveness(carry: Carry, inputs: frozenset[str]) -> Live:
    """Where the body of a carry can be other than the identity of its monoid, all references being finite."""
    if _reads_unanchored(carry.body, inputs):
        return _ALWAYS
    if carry.monoid is MAX:
        return _not_least(carry.body)
    if carry.monoid is SUM:
        return _not_zero(carry.body)
    if carry.monoid is ANY:
        return Live(carry.body)
    return _ALWAYS


def _reads_unanchored(expr: Expr, inputs: frozenset[str]) -> bool:
    match expr:
        case Unary("anchor", _):
            return False
        case Load(buffer, _) if buffer.name not in inputs:
            return True
        case _:
            return any(_reads_unanchored(c, inputs) for c in children(expr))


def _not_least(expr: Expr) -> Live:
    """Where a value can be other than -inf (or a huge negative fill)."""
    match expr:
        case Const(value, _):
            if value == -math.inf:
                return _NEVER
            return Live(FALSE, finite=True) if value <= HUGE_FILL else _ALWAYS
        case Select(c, a, b):
            return _branches(c, _not_least(a), _not_least(b))
        case Binary("add", a, b):
            return _and(_not_least(a), _not_least(b))
        case Binary("sub", a, b):
            return _and(_not_least(a), Live(TRUE, doubtful=_may_mask(b)))
        case Binary("mul" | "div", a, Const(value, _)) if value > 0:
            return _not_least(a)
        case Cast(x, dtype) if dtype.is_float and dtype_of(x).is_float:
            return _not_least(x)
        case _:
            return Live(TRUE, doubtful=_may_mask(expr))


def _may_mask(expr: Expr) -> bool:
    """Whether a term of a score can be infinite or huge by itself: not a contraction, a position, or a multiple of these."""
    match expr:
        case Const(value, _):
            return abs(value) >= -HUGE_FILL
        case Load(buffer, _):
            return buffer.dtype.is_float
        case Reduce() | Unary("anchor" | "tanh" | "sigmoid" | "sin" | "cos" | "erf", _):
            return False
        case Binary("mul", a, b):
            factors = [f for f in (a, b) if not isinstance(f, Const)]
            return _may_mask_const(a, b) or all(_may_mask(f) for f in factors)
        case Binary("div", a, _):
            return _may_mask(a)
        case Unary("log" | "log2" | "log1p", x):
            return any(isinstance(n, Load | Reduce) for n in walk(x))
        case _:
            return any(_may_mask(c) for c in children(expr))


def _may_mask_const(*factors: Expr) -> bool:
    return any(isinstance(f, Const) and _may_mask(f) for f in factors)


def _not_zero(expr: Expr) -> Live:
    """Where a value can be other than 0."""
    match expr:
        case Const(value, _):
            return _NEVER if value == 0 else _ALWAYS
        case Select(c, a, b):
            return _branches(c, _not_zero(a), _not_zero(b))
        case Binary("mul", a, b):
            return _and(_not_zero(a), _not_zero(b))
        case Binary("div", a, _):
            return _not_zero(a)
        case Binary("add" | "sub", a, b):
            return _or(_not_zero(a), _not_zero(b))
        case Unary("exp" | "exp2" | "sigmoid", x):
            return _not_least(x)
        case Unary("neg" | "abs" | "sqrt" | "tanh", x):
            return _not_zero(x)
        case Cast(x, dtype) if dtype is not DType.BOOL:
            return _not_zero(x) if dtype_of(x) is not DType.BOOL else Live(x)
        case Reduce(monoid, dims, body) if monoid is SUM:
            inner = _not_zero(body)
            return _ALWAYS if free_dims(inner.condition) & set(dims) else inner
        case _:
            return _ALWAYS


def _branches(c: Expr, a: Live, b: Live) -> Live:
    if a.condition is TRUE and b.condition is TRUE:
        return _ALWAYS
    when = _and(Live(c), a)
    otherwise = _and(Live(simplify(Unary("not", c))), b)
    return _or(when, otherwise)


def _and(a: Live, b: Live) -> Live:
    """Either factor vanishing is enough; a finite fill is relied on only where it decides."""
    doubtful = a.doubtful or b.doubtful
    if a.condition is TRUE:
        return Live(b.condition, b.finite, doubtful)
    if b.condition is TRUE:
        return Live(a.condition, a.finite, doubtful)
    condition = simplify(Binary("and", a.condition, b.condition))
    return Live(condition, a.finite or b.finite, doubtful)


def _or(a: Live, b: Live) -> Live:
    condition = simplify(Binary("or", a.condition, b.condition))
    return Live(condition, a.finite or b.finite, a.doubtful or b.doubtful)


def has_live_position(condition: Expr, rows: tuple[Dim, ...], col: Dim) -> bool:
    """Whether every row is proved to have a position along `col` where `condition` holds."""
    return any(c is TRUE for c in at_likely_positions(condition, rows, col))


def at_likely_positions(condition: Expr, rows: tuple[Dim, ...], col: Dim) -> list[Expr]:
    """A condition at the positions along `col` where masks mostly let rows see a key: the first, and the row's own."""
    guesses: list[Expr] = [ZERO]
    guesses += [Index(d) for d in rows if d.extent is col.extent]
    return [simplify(substitute(condition, {col: g})) for g in guesses]


# -- Which positions are those?


@dataclass(frozen=True, slots=True)
class Interval:
    """Positions along the loop dim: outside [lo, hi) and [0, head) the condition is false for all rows of the tile.

    Attributes:
        lo, hi: None: no such bound.
        full: where every condition of `holds` is true for all rows of the tile (None: no such range is known).
        head: None: nothing before lo.
        level: the condition reads no position of the loop dim; its range is everything or nothing.
    """

    lo: Expr | None = None
    hi: Expr | None = None
    full: tuple[Expr, Expr] | None = None
    holds: tuple[Expr, ...] = ()
    head: Expr | None = None
    level: bool = False

    def hull(self) -> Interval:
        """The same as one range."""
        if self.head is None:
            return self
        hi = None if self.hi is None else _extremum("max", [self.head, self.hi])
        return replace(self, lo=None, hi=hi, head=None)


_UNKNOWN = Interval()


def interval(condition: Expr, rows: frozenset[Dim], col: Dim) -> Interval:
    """Interval arithmetic of a condition over the box of a row tile."""
    match condition:
        case Binary("and", a, b):
            return _intersection(interval(a, rows, col), interval(b, rows, col))
        case Binary("or", a, b):
            return _union(interval(a, rows, col), interval(b, rows, col), (a, b), condition)
        case Binary("le", a, b):
            return _half_line(polynomial(b) - polynomial(a), condition, rows, col)
        case Binary("eq", a, b) if dtype_of(a).is_int and dtype_of(b).is_int:
            slack = polynomial(b) - polynomial(a)
            below = _half_line(slack, condition, rows, col)
            above = _half_line(slack.scaled(-1), condition, rows, col)
            both = _intersection(below, above)
            return Interval(
                both.lo, both.hi
            )  # what holds of both halves is no condition of the program
        case _:
            return _UNKNOWN


def _half_line(slack: Polynomial, atom: Expr, rows: frozenset[Dim], col: Dim) -> Interval:
    """Where slack >= 0, for a slack that is linear in the position along `col`, or in the position // a constant."""
    varying = [(m, c) for m, c in slack.terms if any(col in free_dims(a) for a in m)]
    if not varying:
        return _all_or_nothing(slack, atom, rows, col)
    if len(varying) != 1 or len(varying[0][0]) != 1:
        return _UNKNOWN
    ((position,), slope) = varying[0]
    rest = slack - Polynomial.of(varying)
    match position:
        case Index():
            block = 1
        case Binary("floordiv", Index(), Const(value, _)) if value > 0:
            block = int(value)
        case Unary("abs", x):
            ends = polynomial(x), polynomial(x).scaled(-1)
            return _extremum_line(ends, "max", slope, rest, atom, rows, col)
        case Binary("min" | "max" as op, a, b):
            return _extremum_line((polynomial(a), polynomial(b)), op, slope, rest, atom, rows, col)
        case _:
            return _UNKNOWN
    least, greatest = extreme(rest, rows, greatest=False), extreme(rest, rows, greatest=True)
    if slope > 0:  # position >= ceil(-rest / slope)
        lo = None if greatest is None else _times(_ceil_div(greatest, slope), block)
        full = None if least is None else (_times(_ceil_div(least, slope), block), col.extent)
        return Interval(lo, None, full, (atom,) if full else ())
    hi = None if greatest is None else _times(_floor_div_up(greatest, -slope), block)
    full = None if least is None else (ZERO, _times(_floor_div_up(least, -slope), block))
    return Interval(None, hi, full, (atom,) if full else ())


def _extremum_line(
    choices: tuple[Polynomial, Polynomial],
    op: str,
    slope: int,
    rest: Polynomial,
    atom: Expr,
    rows: frozenset[Dim],
    col: Dim,
) -> Interval:
    """Where slope * min or max of two choices + rest >= 0: for both choices, or for one of them."""
    a, b = (_half_line(rest + c.scaled(slope), atom, rows, col) for c in choices)
    if (op == "min") == (slope > 0):
        both = _intersection(a, b)
        return both if a.full and b.full else replace(both, full=None, holds=())
    if a.level or b.level:
        return _UNKNOWN
    return _union(a, b, (atom, atom), atom)


def _all_or_nothing(slack: Polynomial, atom: Expr, rows: frozenset[Dim], col: Dim) -> Interval:
    """Where slack >= 0, for a slack that does not vary along `col`."""
    least, greatest = extreme(slack, rows, greatest=False), extreme(slack, rows, greatest=True)
    if least is None or greatest is None:
        return _UNKNOWN
    possible, sure = (simplify(Binary("le", ZERO, end)) for end in (greatest, least))
    return Interval(
        simplify(Select(possible, ZERO, col.extent)),
        simplify(Select(possible, col.extent, ZERO)),
        (simplify(Select(sure, ZERO, col.extent)), col.extent),
        (atom,),
        level=True,
    )


def _times(position: Expr, block: int) -> Expr:
    """The first position of the block with this number."""
    return position if block == 1 else simplify(mul(position, const(block)))


def _ceil_div(rest: Expr, slope: int) -> Expr:
    """ceil(-rest / slope) = -(rest // slope)."""
    return simplify(Unary("neg", floordiv(rest, const(slope)) if slope != 1 else rest))


def _floor_div_up(rest: Expr, slope: int) -> Expr:
    """floor(rest / slope) + 1."""
    return simplify(add(floordiv(rest, const(slope)) if slope != 1 else rest, const(1)))


def extreme(p: Polynomial, rows: frozenset[Dim], *, greatest: bool) -> Expr | None:
    """The least or greatest value of a polynomial over a tile of rows, as an expression in the tile's ends; None if unknown."""
    total: Expr = ZERO
    for monomial, coefficient in p.terms:
        upward = greatest if coefficient > 0 else not greatest
        product: Expr = const(coefficient)
        for atom in monomial:
            end = _atom_extreme(atom, rows, greatest=upward)
            if end is None or (len(monomial) > 1 and not isinstance(atom, Size | Index)):
                return None
            product = mul(product, end)
        total = add(total, product)
    return simplify(total)


def _atom_extreme(atom: Expr, rows: frozenset[Dim], *, greatest: bool) -> Expr | None:
    if not free_dims(atom) & rows:
        return atom
    match atom:
        case Index(dim):
            return Index(last(dim) if greatest else first(dim))
        case Binary("min" | "max" as op, a, b):
            ends = [extreme(polynomial(x), rows, greatest=greatest) for x in (a, b)]
            return None if ends[0] is None or ends[1] is None else Binary(op, ends[0], ends[1])
        case Binary("floordiv", a, Const(value, _) as divisor) if value > 0:
            end = extreme(polynomial(a), rows, greatest=greatest)
            return None if end is None else floordiv(end, divisor)
        case _:
            return None


def _intersection(a: Interval, b: Interval) -> Interval:
    """A part that is unknown stays to be checked in the tile; the known part still bounds and still is decided."""
    known = [i for i in (a, b) if i.full is not None]
    full = None
    if known:
        full = (
            _extremum("max", [i.full[0] for i in known if i.full]),
            _extremum("min", [i.full[1] for i in known if i.full]),
        )
    holds = tuple(h for i in known for h in i.holds)
    if (
        a.level or b.level
    ):  # where a row tile has nothing at all, its loop may run: bounds stay simple
        rest = _UNKNOWN if a.level and b.level else b if a.level else a
        return replace(rest, full=full, holds=holds)
    if (a.head is None) == (b.head is None) or (a if a.head is None else b).lo is not None:
        a, b = a.hull(), b.hull()  # two ranges that do not both begin at 0 are not kept apart
    heads = [i.head if i.head is not None else i.hi for i in (a, b)]
    return Interval(
        _extremum("max", [i.lo for i in (a, b) if i.lo is not None]) if a.lo or b.lo else None,
        _extremum("min", [i.hi for i in (a, b) if i.hi is not None]) if a.hi or b.hi else None,
        full,
        holds,
        _extremum("min", heads) if a.head or b.head else None,
    )


def _union(a: Interval, b: Interval, either: tuple[Expr, Expr], whole: Expr) -> Interval:
    """A range that begins at 0 beside one that does not, or the hull; what is full is joined where the two ranges share an end.

    Args:
        a: where the first of `either` holds.
        b: where the second does.
        either: two conditions of which one must hold.
        whole: the condition that this is.
    """
    decided = _decided(a, either[0]), _decided(b, either[1])
    full = decided[0] if b.level else decided[1] if a.level else _joined(*decided)
    for one, other, best in ((a, b, decided[1]), (b, a, decided[0])):
        if _begins(one) and other.lo is not None and other.head is None and not other.level:
            kept = best or full
            return Interval(other.lo, other.hi, kept, (whole,) if kept else (), one.hi)
    if not a.level and not b.level:
        a, b = a.hull(), b.hull()
    lo = _extremum("min", [a.lo, b.lo]) if a.lo is not None and b.lo is not None else None
    hi = _extremum("max", [a.hi, b.hi]) if a.hi is not None and b.hi is not None else None
    head = None if lo is None else a.head if a.head is not None else b.head
    return Interval(lo, hi, full, (whole,) if full else (), head, a.level and b.level)


def _begins(i: Interval) -> bool:
    """Whether it is one range from 0 to a known end."""
    return i.lo is None and i.hi is not None and i.head is None


def _decided(i: Interval, condition: Expr) -> tuple[Expr, Expr] | None:
    """The full range of a branch, if all of the branch holds there and not only some of its conjuncts."""
    return i.full if set(_conjuncts(condition)) <= set(i.holds) else None


def _conjuncts(condition: Expr) -> tuple[Expr, ...]:
    match condition:
        case Binary("and", a, b):
            return (*_conjuncts(a), *_conjuncts(b))
        case _:
            return (condition,)


def _joined(a: tuple[Expr, Expr] | None, b: tuple[Expr, Expr] | None) -> tuple[Expr, Expr] | None:
    if a is None or b is None:
        return a or b
    if a[0] is b[0]:
        return a[0], _extremum("max", [a[1], b[1]])
    if a[1] is b[1]:
        return _extremum("min", [a[0], b[0]]), a[1]
    return a


def _extremum(op: str, ends: Iterable[Expr | None]) -> Expr:
    found = [e for e in ends if e is not None]
    return simplify(reduce(lambda x, y: Binary(op, x, y), found))
