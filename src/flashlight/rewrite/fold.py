"""Arithmetic on literals, in the type that eager would use."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import COMPARISONS, Binary, Const, Expr, Unary, const, dtype_of


def round_to(value: float, dtype: DType) -> float:
    """The nearest float of the type (ties to even); beyond its range, infinity."""
    if math.isnan(value) or math.isinf(value) or value == 0:
        return value
    match dtype:
        case DType.F64:
            return value
        case DType.F16:
            limit = 65520.0
        case DType.BF16:
            bits = struct.unpack("<I", struct.pack("<f", round_to(value, DType.F32)))[0]
            bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
            return float(struct.unpack("<f", struct.pack("<I", bits))[0])
        case _:
            limit = 3.4028235677973366e38
    if abs(value) >= limit:
        return math.copysign(math.inf, value)
    code = "e" if dtype is DType.F16 else "f"
    return float(struct.unpack(f"<{code}", struct.pack(f"<{code}", value))[0])


def fold_cast(x: Const, dtype: DType) -> Const:
    """A literal converted; a non-finite float to an int type keeps no meaning and is 0."""
    if dtype is DType.BOOL:
        return const(bool(x.value), dtype)
    if dtype.is_float:
        return const(round_to(float(x.value), dtype), dtype)
    value = float(x.value) if x.dtype.is_float else x.value
    if isinstance(value, float) and not math.isfinite(value):
        return const(0, dtype)
    return const(int(value), dtype)


def _count(value: float) -> int:
    """By how many bits to shift."""
    if not 0 <= value < 64:
        raise ValueError(value)
    return int(value)


_BINARY: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "pow": lambda a, b: a**b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "and": lambda a, b: int(a) & int(b),
    "or": lambda a, b: int(a) | int(b),
    "xor": lambda a, b: int(a) ^ int(b),
    "shl": lambda a, b: int(a) << _count(b),
    "shr": lambda a, b: int(a) >> _count(b),
}


def fold_binary(expr: Binary) -> Expr | None:
    """The literal, or None where Python would raise (a division by zero is left to the kernel)."""
    assert isinstance(expr.a, Const) and isinstance(expr.b, Const)
    a, b, dtype = expr.a.value, expr.b.value, dtype_of(expr)
    if expr.op in COMPARISONS:
        return const(bool(_BINARY[expr.op](a, b)))
    if expr.op in ("min", "max"):
        if a != a or b != b:
            return const(math.nan, dtype)
        return const(min(a, b) if expr.op == "min" else max(a, b), dtype)
    try:
        value = a / b if expr.op == "div" else _BINARY[expr.op](a, b)
    except (ZeroDivisionError, OverflowError, ValueError):
        return None
    if isinstance(value, complex):
        return None
    return const(round_to(float(value), dtype) if dtype.is_float else value, dtype)


_UNARY: dict[str, Callable[[float], float]] = {
    "neg": lambda x: -x,
    "abs": abs,
    "exp": math.exp,
    "exp2": lambda x: 2.0**x,
    "log": math.log,
    "log2": math.log2,
    "log1p": math.log1p,
    "expm1": math.expm1,
    "sqrt": math.sqrt,
    "rsqrt": lambda x: 1.0 / math.sqrt(x),
    "reciprocal": lambda x: 1.0 / x,
    "sin": math.sin,
    "cos": math.cos,
    "tanh": math.tanh,
    "floor": lambda x: float(math.floor(x)),
    "ceil": lambda x: float(math.ceil(x)),
    "isnan": lambda x: x != x,
    "isinf": math.isinf,
    "anchor": lambda x: x if math.isfinite(x) else 0.0,
}


def fold_unary(expr: Unary) -> Expr | None:
    """The literal, or None where it has no finite ordinary value or the operator is not folded."""
    assert isinstance(expr.x, Const)
    dtype = dtype_of(expr)
    if expr.op == "not":
        return const(not expr.x.value) if expr.x.dtype is DType.BOOL else None
    if expr.op not in _UNARY:
        return None
    try:
        value = _UNARY[expr.op](expr.x.value)
    except (ValueError, OverflowError, ZeroDivisionError):
        return None
    return const(round_to(float(value), dtype) if dtype.is_float else value, dtype)
