"""Floats that hold whole numbers: positions written as floats compare and subtract as the integers that they are.

`arange(n, dtype=float32)` holds every position exactly up to 2^24, and so do sums and differences that stay below that. Masks of
such positions then bound loops like those of integers, and biases of distances have one spelling.
"""

from __future__ import annotations

import math

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import FALSE, TRUE, Binary, Cast, Const, Expr, Unary, const, dtype_of
from flashlight.ir.visit import loads
from flashlight.rewrite.polynomial import bounds, polynomial

BITS = {DType.F64: 53, DType.F32: 24, DType.F16: 11, DType.BF16: 8}
"""Bits of a whole number, beside its sign, that each type holds."""


def whole(expr: Expr) -> Expr | None:
    """The integer expression whose value a float has exactly, 0 for both zeros; None where it is not known to have one."""
    dtype = dtype_of(expr)
    if not dtype.is_float:
        return None
    match expr:
        case Const(value, _) if math.isfinite(value) and value == int(value):
            found: Expr = const(int(value))
        case Cast(x, _):
            inner = x if dtype_of(x).is_int else whole(x)
            if inner is None:
                return None
            found = inner
        case Unary("floor" | "ceil" | "round" | "trunc" | "abs" | "neg" as op, x):
            inner = whole(x)
            return Unary(op, inner) if inner is not None and op in ("abs", "neg") else inner
        case Binary("add" | "sub" | "mul" | "min" | "max" as op, a, b):
            left, right = whole(a), whole(b)
            if left is None or right is None:
                return None
            found = Binary(op, left, right)
            if op in ("min", "max"):
                return found
        case _:
            return None
    return found if _is_exact(found, dtype) else None


def _is_exact(x: Expr, dtype: DType) -> bool:
    """Whether a float type holds every value of an integer expression of positions."""
    if loads(x):
        return False
    most = 2 ** BITS[dtype]
    low, high = bounds(polynomial(x))
    ends = [end.constant for end in (low, high) if end is not None]
    return len(ends) == 2 and all(end is not None and abs(end) <= most for end in ends)


def comparison(op: str, a: Expr, b: Expr) -> Expr | None:
    """A comparison of floats, or of a float and an integer, as one of integers, or None."""
    kind = dtype_of(b) if dtype_of(a).is_int else dtype_of(a)
    a, b = (Cast(e, kind) if dtype_of(e).is_int else e for e in (a, b))
    x = whole(a)
    if x is None:
        return None
    y = whole(b)
    if y is not None:
        return Binary(op, x, y)
    if not isinstance(b, Const) or math.isnan(b.value):
        return None
    # Between two whole numbers, or past all of them.
    if op in ("eq", "ne"):
        return TRUE if op == "ne" else FALSE
    below = op in ("lt", "le")
    if math.isinf(b.value):
        return TRUE if below == (b.value > 0) else FALSE
    return Binary("le" if below else "gt", x, const(math.floor(b.value)))


def difference(op: str, a: Expr, b: Expr, dtype: DType) -> Expr | None:
    """A sum or difference of floats, one of them a position, as that of integers; None where it is not exact."""
    if op not in ("add", "sub") or not any(isinstance(e, Cast) for e in (a, b)):
        return None
    if not all(isinstance(e, Cast | Const) for e in (a, b)):
        return None
    found = whole(Binary(op, a, b))
    return None if found is None else Cast(found, dtype)
