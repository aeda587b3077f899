"""Two comparisons as one: lo <= x and x <= hi, for integers, is x - lo <= hi - lo without signs.

A window `(k <= q) & (q <= k + 256)` then costs an element one subtraction and one comparison.
"""

from __future__ import annotations

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import Binary, Expr, dtype_of
from flashlight.ir.visit import conjuncts
from flashlight.rewrite.polynomial import Polynomial, constant, expression, polynomial


def ranges_in(condition: Expr) -> tuple[list[tuple[Expr, int]], list[Expr]]:
    """A conjunction as pairs (x, c) that mean 0 <= x <= c, and what is left of it."""
    left = [(part, _not_negative(part)) for part in conjuncts(condition)]
    pairs: list[tuple[Expr, int]] = []
    rest: list[Expr] = []
    while left:
        part, p = left.pop(0)
        for other in left:
            length = None if p is None or other[1] is None else (p + other[1]).constant
            if p is not None and length is not None and 0 <= length < 1 << 31:
                pairs.append((expression(p), length))
                left.remove(other)
                break
        else:
            rest.append(part)
    return pairs, rest


def _not_negative(condition: Expr) -> Polynomial | None:
    """What a comparison of integers says is at least 0."""
    match condition:
        case Binary("le" | "lt" as op, a, b) | Binary("ge" | "gt" as op, b, a):
            if not all(dtype_of(x).is_int and dtype_of(x) is not DType.BOOL for x in (a, b)):
                return None
            least = constant(1 if op in ("lt", "gt") else 0)
            return polynomial(b) - polynomial(a) - least
        case _:
            return None
