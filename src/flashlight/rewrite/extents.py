"""The extent of a loop as it appears in expressions: the n of a mean."""

from __future__ import annotations

from collections.abc import Callable
from math import isclose

from flashlight.ir.exprs import Binary, Cast, Const, Dim, Expr, div, dtype_of, mul
from flashlight.ir.visit import rewrite
from flashlight.rewrite.polynomial import polynomial


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
