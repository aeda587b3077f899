"""Interval arithmetic of a condition over the box of a row tile: the positions along the loop dim where it can hold at all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce

from flashlight.ir.exprs import (
    ZERO,
    Binary,
    Const,
    Dim,
    Expr,
    Index,
    Select,
    Size,
    Unary,
    add,
    const,
    dtype_of,
    floordiv,
    mul,
)
from flashlight.ir.visit import conjuncts, free_dims
from flashlight.rewrite.polynomial import Polynomial, polynomial
from flashlight.rewrite.schedule import first, last
from flashlight.rewrite.simplify import simplify


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
    return i.full if set(conjuncts(condition)) <= set(i.holds) else None


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
