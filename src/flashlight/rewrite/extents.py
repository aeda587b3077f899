"""What is known of a loop's positions: their number as the n of a mean, and conditions that hold at one of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import isclose

from flashlight.ir.exprs import (
    ONE,
    ZERO,
    Binary,
    Cast,
    Const,
    Dim,
    Expr,
    Index,
    div,
    dtype_of,
    is_literal,
    mul,
    sub,
)
from flashlight.ir.visit import rewrite, substitute
from flashlight.rewrite.polynomial import polynomial
from flashlight.rewrite.simplify import simplify


def counted(x: Expr, loop: tuple[Dim, ...], count: Callable[[], Expr]) -> Expr:
    """`x` with divisions by the number of the loop's positions as divisions by `count`.

    Only a reference is computed from this, and any value is a legal one: a literal that equals the extent by chance does no harm.
    """
    size = loop[0].extent
    for d in loop[1:]:
        size = mul(size, d.extent)
    extent = polynomial(size)

    def rule(node: Expr) -> Expr | None:
        match node:
            case Binary("div", a, b) if is_extent(b):
                return div(a, count())
            case Binary("mul", a, Const(value, _)) if is_reciprocal(value):
                return div(a, count())
            case _:
                return None

    def is_extent(b: Expr) -> bool:
        while isinstance(b, Cast):
            b = b.x
        if isinstance(b, Const):
            return extent.constant is not None and b.value == extent.constant
        return dtype_of(b).is_int and polynomial(b) == extent

    def is_reciprocal(value: float) -> bool:
        n = extent.constant
        return n is not None and n > 1 and isclose(value * n, 1.0, rel_tol=1e-6)

    return rewrite(x, rule)


def holds_somewhere(guard: Expr, kept: tuple[Dim, ...], loop: tuple[Dim, ...]) -> bool:
    """Whether a condition is proved to hold for some position of every row: at the first, at the last or on the diagonal."""
    places: list[list[Expr]] = []
    for d in loop:
        diagonal = [Index(k) for k in kept if k.extent is d.extent]
        places.append([ZERO, simplify(sub(d.extent, ONE)), *diagonal])
    for picked in product(*places):
        at: dict[Dim, Expr] = dict(zip(loop, picked, strict=True))
        if is_literal(simplify(substitute(guard, at)), True):
            return True
    return False
