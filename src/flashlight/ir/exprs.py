"""Scalar expressions: the body of a nest, an index of a load and an extent of a dim are all of this one language.

Nodes are frozen and interned (see `interning`), so `a is b` decides equality. Types are computed by `dtype_of`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias, assert_never

from flashlight.ir.dtypes import DType, promote
from flashlight.ir.interning import Interned
from flashlight.ir.monoids import Monoid


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Const(metaclass=Interned):
    """A literal. Floats include inf, -inf and nan."""

    value: bool | int | float
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Size(metaclass=Interned):
    """A symbolic size, known when the kernel is launched; an i64 that is never negative."""

    name: str


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Dim(metaclass=Interned):
    """A named range 0 <= i < extent. What role it plays (parallel, reduced) is a fact about a nest, not about the dim."""

    name: str
    extent: Expr


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Index(metaclass=Interned):
    """The position along a dim, as an i64 value."""

    dim: Dim


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Buffer(metaclass=Interned):
    """A named array: an input of the program or the result of a nest, carry or give."""

    name: str
    shape: tuple[Expr, ...]
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Load(metaclass=Interned):
    """The element of `buffer` at `index`, one integer expression per axis; an index may itself contain a load."""

    buffer: Buffer
    index: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Unary(metaclass=Interned):
    """`op` applied to `x`; UNARY lists the operators."""

    op: str
    x: Expr


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Binary(metaclass=Interned):
    """`op` applied to `a` and `b`; BINARY lists the operators."""

    op: str
    a: Expr
    b: Expr


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Select(metaclass=Interned):
    """`a` where `condition` holds, else `b`. A load in the branch not taken may be out of range."""

    condition: Expr
    a: Expr
    b: Expr


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Cast(metaclass=Interned):
    """`x` converted to `dtype`: float to int truncates, anything to bool compares with zero."""

    x: Expr
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Reduce(metaclass=Interned):
    """A reduction inside an expression: what a demoted nest becomes. `dims` are bound in `body`."""

    monoid: Monoid
    dims: tuple[Dim, ...]
    body: Expr


Expr: TypeAlias = Const | Size | Index | Load | Unary | Binary | Select | Cast | Reduce

ARITHMETIC = ("add", "sub", "mul", "div", "floordiv", "mod", "pow", "min", "max")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
LOGICAL = ("and", "or", "xor")
SHIFTS = ("shl", "shr")
BINARY = (*ARITHMETIC, *COMPARISONS, *LOGICAL, *SHIFTS)

# `anchor` is ~x: x where it is finite, else 0 (algebra.md, section 1). `not` is logical on bools, bitwise on ints.
# `min` and `max` propagate NaN, as torch.minimum and torch.maximum do. Shifts are of integers, by at least 0 and less bits than
# the type has; to the right they keep the sign.
UNARY = (
    "neg", "abs", "sign", "not", "anchor", "isnan", "isinf",
    "exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "reciprocal",
    "sin", "cos", "tan", "tanh", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh",
    "erf", "erfc", "sigmoid", "floor", "ceil", "round", "trunc",
)  # fmt: skip
_KEEPS_INT = ("neg", "abs", "sign", "not", "floor", "ceil", "round", "trunc", "anchor")


@lru_cache(maxsize=200_000)  # what several parents share would be typed once for each
def dtype_of(expr: Expr) -> DType:
    """The type of an expression's value. Arithmetic on 16-bit floats yields f32; a Cast back is explicit."""
    match expr:
        case Const(_, dtype) | Cast(_, dtype):
            return dtype
        case Size() | Index():
            return DType.I64
        case Load(buffer, _):
            return buffer.dtype
        case Unary(op, x):
            if op in ("isnan", "isinf"):
                return DType.BOOL
            dtype = dtype_of(x).compute
            return dtype if dtype.is_float or op in _KEEPS_INT else DType.F32
        case Binary(op, a, b):
            if op in COMPARISONS:
                return DType.BOOL
            dtype = promote(dtype_of(a), dtype_of(b))
            return DType.F32 if op == "div" and not dtype.is_float else dtype
        case Select(_, a, b):
            return dtype_of(a) if dtype_of(a) is dtype_of(b) else promote(dtype_of(a), dtype_of(b))
        case Reduce(monoid, _, body):
            if monoid.is_position:
                return DType.I64
            return DType.BOOL if monoid.is_logical else dtype_of(body).compute
        case _:
            assert_never(expr)


def is_literal(expr: Expr, value: float | None = None) -> bool:
    """Whether `expr` is a Const, and of that value when one is given (nan is never equal)."""
    return isinstance(expr, Const) and (value is None or expr.value == value)


# -- Builders: short spellings for rules and tests. They build exactly the node they name.


def const(value: bool | int | float, dtype: DType | None = None) -> Const:
    """A Const; without `dtype` a Python bool, int or float is bool, i64 or f32. Ints beyond their type wrap around."""
    if dtype is None:
        dtype = {bool: DType.BOOL, int: DType.I64, float: DType.F32}[type(value)]
    if dtype.is_float:
        value = float(value)
    elif dtype is DType.BOOL:
        value = bool(value)
    else:
        lowest = 0 if dtype is DType.U8 else -(1 << dtype.bits - 1)
        value = (int(value) - lowest) % (1 << dtype.bits) + lowest
    return Const(value, dtype)


def largest(dtype: DType) -> Const:
    """The largest finite number of a type that arithmetic runs in."""
    return const(
        {DType.F32: 3.4028234663852886e38, DType.F64: 1.7976931348623157e308}[dtype], dtype
    )


def add(a: Expr, b: Expr) -> Expr:
    return Binary("add", a, b)


def sub(a: Expr, b: Expr) -> Expr:
    return Binary("sub", a, b)


def mul(a: Expr, b: Expr) -> Expr:
    return Binary("mul", a, b)


def div(a: Expr, b: Expr) -> Expr:
    return Binary("div", a, b)


def floordiv(a: Expr, b: Expr) -> Expr:
    return Binary("floordiv", a, b)


def mod(a: Expr, b: Expr) -> Expr:
    return Binary("mod", a, b)


def neg(x: Expr) -> Expr:
    return Unary("neg", x)


def exp(x: Expr) -> Expr:
    return Unary("exp", x)


def anchor(x: Expr) -> Expr:
    """~x: x where it is finite, else 0."""
    return Unary("anchor", x)


def anchored_addends(value: Expr) -> Expr:
    """The reference of a shift: every addend of `value` anchored on its own, since ~(a + b) is not ~a + ~b where one is infinite."""
    match value:
        case Binary("add" | "sub" as op, a, b):
            return Binary(op, anchored_addends(a), anchored_addends(b))
        case Unary("neg", x):
            return Unary("neg", anchored_addends(x))
        case Unary("anchor", _):
            return value
        case _:
            return anchor(value)


NEG_INF = Const(-math.inf, DType.F32)
ZERO = Const(0, DType.I64)
ONE = Const(1, DType.I64)
TRUE = Const(True, DType.BOOL)
FALSE = Const(False, DType.BOOL)
