"""What eager rounds to 16 bits, and what may therefore be rearranged (algebra.md, section 7).

Casts of floats are kept in programs up to `online`: they say which values eager rounds. The algebra has no use for them
beyond that, so they are read here and stripped.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import (
    COMPARISONS,
    Binary,
    Cast,
    Const,
    Dim,
    Expr,
    Load,
    Select,
    Unary,
    dtype_of,
)
from flashlight.ir.visit import children, free_dims, loads, rebuild, rewrite, walk
from flashlight.rewrite.factor import product, product_of
from flashlight.rewrite.signs import is_nonneg
from flashlight.rewrite.terms import is_slot

SIXTEEN = (DType.F16, DType.BF16)
LARGEST_FACTOR = 64.0
"""A constant factor up to this is taken for small (1 / (1 - dropout))."""


@dataclass(frozen=True)
class Rounding:
    """What the casts of a nest's body say, asked of the body without its casts.

    Attributes:
        dot: the 16-bit type of a dot's operands, or None where the nest is no 16-bit dot.
        rounded: stripped addends and factors that eager rounds to 16 bits (or loads in 16 bits).
    """

    dot: DType | None
    rounded: frozenset[Expr]

    def is_rounded(self, expr: Expr) -> bool:
        """Whether eager has `expr`, up to sign and factors of it, in 16 bits."""
        return expr in self.rounded or any(f in self.rounded for f in _chain(expr))


NO_ROUNDING = Rounding(None, frozenset())


def strip_casts(expr: Expr) -> Expr:
    """Without conversions between floats that are computed in the same type; others mean something.

    What is compared is rounded all the same, once: numbers that differ may be equal in 16 bits.
    """
    done: dict[Expr, Expr] = {}
    for node in walk(expr):
        parts = tuple(done[x] for x in children(node))
        if isinstance(node, Binary) and node.op in COMPARISONS:
            parts = tuple(map(_rounded_as, parts, children(node)))
        new = rebuild(node, parts)
        done[node] = _without_cast(new) or new
    return done[expr]


def compared(expr: Expr) -> frozenset[Load]:
    """What comparisons within an expression load."""
    sides = (x for x in walk(expr) if isinstance(x, Binary) and x.op in COMPARISONS)
    return frozenset(load for x in sides for load in loads(x))


def _rounded_as(expr: Expr, before: Expr) -> Expr:
    """An expression rounded as it was before casts were taken out of it."""
    while isinstance(before, Cast) and dtype_of(before.x) in SIXTEEN:
        before = before.x
    kind, dtype = dtype_of(before), dtype_of(expr)
    return Cast(Cast(expr, kind), dtype) if kind in SIXTEEN and dtype not in SIXTEEN else expr


def _without_cast(expr: Expr) -> Expr | None:
    if not isinstance(expr, Cast) or not expr.dtype.is_float:
        return None
    source = dtype_of(expr.x)
    if source.is_float and source.compute is expr.dtype.compute:
        return expr.x
    return None


def read_rounding(body: Expr, reduced: frozenset[Dim]) -> Rounding:
    """Which parts of a sum's body eager rounds to 16 bits, and whether the sum is a dot of 16-bit operands."""
    rounded: set[Expr] = set()

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Cast) and node.dtype in SIXTEEN:
            rounded.add(node.x)
        if isinstance(node, Load) and node.buffer.dtype in SIXTEEN:
            rounded.add(node)
        return _without_cast(node)

    rewrite(body, rule)
    return Rounding(_dot_type(body, reduced), frozenset(rounded))


def _dot_type(body: Expr, reduced: frozenset[Dim]) -> DType | None:
    """The operands' type if the body is a product of two 16-bit factors over different dims, both of which are reduced."""
    factors = [f for f in _chain(body) if dtype_of(f) in SIXTEEN and free_dims(f) & reduced]
    for i, a in enumerate(factors):
        for b in factors[i + 1 :]:
            if free_dims(a) - free_dims(b) and free_dims(b) - free_dims(a):
                return dtype_of(a)
    return None


def _chain(expr: Expr) -> Iterator[Expr]:
    """Factors of a product; casts, signs and guards are looked through, but not the 16-bit casts themselves."""
    match expr:
        case Binary("mul", a, b):
            yield from _chain(a)
            yield from _chain(b)
        case Binary("div", a, _) | Unary("neg", a):
            yield from _chain(a)
        case Cast(x, dtype) if dtype.is_float and dtype not in SIXTEEN:
            yield from _chain(x)
        case Select(_, a, b) if not _is_zero(b) or not _is_zero(a):
            yield expr
            if _is_zero(b):
                yield from _chain(a)
        case _:
            yield expr


def _is_zero(expr: Expr) -> bool:
    return getattr(expr, "value", None) == 0


def is_bounded(operand: Expr) -> bool:
    """Whether an fp16 operand is proved small: exponentials under a reference and functions with bounded values."""
    match operand:
        case Const(value, _):
            return abs(value) <= LARGEST_FACTOR
        case Unary("exp", x):
            return any(is_slot(node) for node in walk(x))
        case Unary("sigmoid" | "tanh" | "erf" | "sign" | "sin" | "cos", _):
            return True
        case Unary("neg" | "abs", x):
            return is_bounded(x)
        case Binary("add" | "sub" | "mul" | "max" | "min", a, b):
            return is_bounded(a) and is_bounded(b)
        case Select(_, a, b):
            return is_bounded(a) and is_bounded(b)
        case Cast(x, _):
            return dtype_of(x) is DType.BOOL
        case _:
            return False


def may_be_operand(rest: Expr, rounding: Rounding) -> bool:
    """Rule 3: whether the factors of an fp16 dot beside its 16-bit input stay in range: eager has the same, or they are bounded."""
    factors = [f for f in product_of(rest).num]
    beside = [f for f in factors if not (isinstance(f, Load) and f.buffer.dtype in SIXTEEN)]
    if not beside or product(beside, rest) in rounding.rounded:
        return True
    return all(is_bounded(f) for f in beside)


TAME = 64.0
"""exp of it times any value, summed over any loop, is no infinity in f32."""


def is_tame(exponent: Expr) -> bool:
    """Whether an exponent is proved to be no large positive number: bounded, or minus what is never negative."""
    return _magnitude(exponent) <= TAME or _is_never_positive(exponent)


def _magnitude(expr: Expr) -> float:
    """A bound of the absolute value, infinite where none is known."""
    match expr:
        case Const(value, _):
            return abs(value)
        case Unary("sigmoid" | "tanh" | "erf" | "sign" | "sin" | "cos", _):
            return 1.0
        case Unary("neg" | "abs", x):
            return _magnitude(x)
        case Cast(x, _):
            return 1.0 if dtype_of(x) is DType.BOOL else _magnitude(x)
        case Binary("add" | "sub", a, b):
            return _magnitude(a) + _magnitude(b)
        case Binary("mul", a, b):
            return _magnitude(a) * _magnitude(b)
        case Binary("div", a, Const(value, _)) if value != 0:
            return _magnitude(a) / abs(value)
        case Binary("max" | "min", a, b) | Select(_, a, b):
            return max(_magnitude(a), _magnitude(b))
        case _:
            return math.inf


def _is_never_positive(expr: Expr) -> bool:
    p = product_of(expr)
    odd = [f for f, n in Counter((*p.num, *p.den)).items() if n % 2]
    negative = [f for f in odd if isinstance(f, Const) and f.value < 0]
    is_minus = p.negative != (len(negative) % 2 == 1)
    return is_minus and all(is_nonneg(f, lambda _: False) for f in odd if f not in negative)
