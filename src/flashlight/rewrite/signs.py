"""Which expressions are proved never negative (NaN aside)."""

from __future__ import annotations

from collections.abc import Callable

from flashlight.ir.exprs import Binary, Cast, Const, Expr, Index, Load, Reduce, Select, Size, Unary
from flashlight.ir.monoids import ARGMAX, ARGMIN, MAX, MIN, PROD, SUM

_NEVER_NEGATIVE = (
    "exp",
    "exp2",
    "abs",
    "sqrt",
    "rsqrt",
    "sigmoid",
    "isnan",
    "isinf",
    "erfc",
    "cosh",
)
_KEEP_SIGN = (
    "anchor", "sign", "tanh", "sinh", "asinh", "atan", "asin", "erf", "expm1", "log1p",
    "floor", "ceil", "round", "trunc", "reciprocal",
)  # fmt: skip


def is_nonneg(expr: Expr, load: Callable[[Load], bool]) -> bool:
    """Whether `expr` is proved >= 0 or NaN; `load` decides for loads."""

    def go(e: Expr) -> bool:
        match e:
            case Const(value, _):
                return value >= 0
            case Size() | Index():
                return True
            case Load():
                return load(e)
            case Unary(op, x):
                return op in _NEVER_NEGATIVE or (op in _KEEP_SIGN and go(x))
            case Binary("mul", a, b) if a is b:
                return True
            case Binary("add" | "mul" | "div" | "floordiv" | "min", a, b):
                return go(a) and go(b)
            case Binary("max", a, b):
                return go(a) or go(b)
            case Binary("pow", a, b):
                return go(a) or (isinstance(b, Const) and b.value % 2 == 0)
            case Binary("sub", a, b):
                return False
            case Select(_, a, b):
                return go(a) and go(b)
            case Cast(x, _):
                return go(x)
            case Reduce(monoid, _, body):
                return monoid in (ARGMAX, ARGMIN) or (monoid in (SUM, PROD, MAX, MIN) and go(body))
            case _:
                return True  # comparisons and logic

    return go(expr)
