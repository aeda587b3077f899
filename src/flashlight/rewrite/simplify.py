"""Scalar and index algebra: constants, casts of constants, ranges, `//` and `%`.

Rules keep every value, NaN and infinity included, up to a rounding of a constant. What moves NaN places is not done:
log of exp, a * 0, x + (-inf where masked) to a select.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from flashlight import trace
from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import (
    COMPARISONS,
    FALSE,
    TRUE,
    Binary,
    Cast,
    Const,
    Expr,
    Load,
    Reduce,
    Select,
    Unary,
    const,
    dtype_of,
    floordiv,
    is_literal,
    mod,
    mul,
    neg,
)
from flashlight.ir.monoids import ALL, ANY, MAX, MIN, SUM
from flashlight.ir.nests import Loop, Nest, Program
from flashlight.ir.visit import children, free_dims, rewrite, substitute, walk
from flashlight.rewrite import whole
from flashlight.rewrite.fold import fold_binary, fold_cast, fold_unary
from flashlight.rewrite.polynomial import (
    Polynomial,
    bounds,
    constant,
    expression,
    is_positive,
    is_within,
    polynomial,
)

# Expressions that no rule changes, nor any part of them. Fusion simplifies what it has put together of simple parts, and
# going through these again for each nest would make the cost of a long program quadratic.
_SIMPLE: set[Expr] = set()
MOST_REMEMBERED = 200_000

_NEGATED = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le", "eq": "ne", "ne": "eq"}
_SWAPPED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}


def simplify_program(program: Program) -> Program:
    """Simplify every body of a program of nests.

    Before:
        program p
          dim q: 8, k: 8
          input X: f16[8, 8]
          nest y (q, k) f16: where(!(k > q), X[(q * 8 + k) // 8, (q * 8 + k) % 8], f16(-1e10))
          output y
    After:
        program p
          dim q: 8, k: 8
          input X: f16[8, 8]
          nest y (q, k) f16: where(k <= q, X[q, k], -inf:f16)
          output y
    Legal when: always; values, NaN and infinities are kept.
    """
    statements = tuple(
        replace(s, body=simplify(s.body)) if isinstance(s, Nest) else s for s in program.statements
    )
    assert not any(isinstance(s, Loop) for s in statements), "simplify runs before online"
    return program.with_statements(statements)


@lru_cache(maxsize=50_000)
def simplify(expr: Expr) -> Expr:
    """The simplest equal expression that the rules reach; settles in a few rounds."""
    if len(_SIMPLE) > MOST_REMEMBERED:
        _SIMPLE.clear()
    for _ in range(12):
        new = rewrite(expr, _remembering_rule, skip=_SIMPLE)
        if new is expr:
            return expr
        expr = new
    return expr  # still right, only not the simplest


def _remembering_rule(expr: Expr) -> Expr | None:
    """`_rule`, which notes what neither it nor any part of it changes."""
    new = _rule(expr)
    if (new is None or new is expr) and all(part in _SIMPLE for part in children(expr)):
        _SIMPLE.add(expr)
    return new


def _rule(expr: Expr) -> Expr | None:
    rule = _rule_for(expr)
    new = rule(expr) if rule is not None else None
    if rule is not None and new is not None:
        trace.applied(rule, expr, new)
    return new


def _rule_for(expr: Expr) -> Callable[[Any], Expr | None] | None:
    match expr:
        case Unary():
            return _unary
        case Binary(op, _, _) if op in COMPARISONS:
            return _comparison
        case Binary("and" | "or" | "xor", _, _):
            return _bits if dtype_of(expr).is_int else _logical
        case Binary():
            return _integer if dtype_of(expr).is_int else _float
        case Select():
            return _select
        case Cast():
            return _cast
        case Reduce():
            return _reduce
        case _:
            return None


def _changed(new: Expr, old: Expr) -> Expr | None:
    return None if new is old else new


# -- Unary, casts, selects


def _unary(expr: Unary) -> Expr | None:
    x = expr.x
    if isinstance(x, Const):
        return fold_unary(expr)
    match expr.op, x:
        case "not", Unary("not", inner):
            return inner
        case "not", Binary(op, a, b) if op in _NEGATED and not _is_float(a) and not _is_float(b):
            return Binary(_NEGATED[op], a, b)  # with floats, !(a < b) also holds of NaN
        case "not", Binary("and" | "or" as op, a, b) if dtype_of(x) is DType.BOOL:
            return Binary("or" if op == "and" else "and", Unary("not", a), Unary("not", b))
        case "neg", Unary("neg", inner):
            return inner
        case "neg", _ if dtype_of(expr).is_int:
            return _changed(expression(polynomial(expr)), expr)
        case "neg", Binary("mul", a, Const(value, dtype)):
            return mul(a, Const(-value, dtype))
        case (("floor" | "ceil" | "round" | "trunc" | "anchor"), _) if dtype_of(x).is_int:
            return x
        case "abs", _ if dtype_of(x).is_int and (low := bounds(polynomial(x))[0]) is not None:
            return x if low.is_nonnegative() else None
        case _, Select(c, Const() as a, Const() as b):
            return Select(c, Unary(expr.op, a), Unary(expr.op, b))
        case _:
            return None


def _is_float(expr: Expr) -> bool:
    return dtype_of(expr).is_float


def _cast(expr: Cast) -> Expr | None:
    x, dtype = expr.x, expr.dtype
    source = dtype_of(x)
    if source is dtype:
        return x
    if isinstance(x, Const):
        return fold_cast(x, dtype)
    if source.is_float and dtype is DType.F32 and source is not DType.F64:
        return x  # 16-bit values are computed in f32 as they are
    if source is DType.BOOL:
        return Select(x, fold_cast(TRUE, dtype), fold_cast(FALSE, dtype))
    if isinstance(x, Select) and isinstance(x.a, Const) and isinstance(x.b, Const):
        return Select(x.condition, Cast(x.a, dtype), Cast(x.b, dtype))
    if dtype in (DType.I32, DType.I64) and source in (DType.I32, DType.I64) and _fits_i32(x):
        return x
    if isinstance(x, Cast) and x.dtype is DType.I64 and dtype_of(x.x) is DType.I32:
        return Cast(x.x, dtype)
    if isinstance(x, Cast) and source.is_float and dtype.is_float:
        position = whole.whole(expr)
        return None if position is None else Cast(position, dtype)
    return None


def _fits_i32(x: Expr) -> bool:
    """Positions and sizes are taken to fit in 32 bits, so that casts between int types change nothing."""
    return not any(map(_is_long, walk(x)))


def _is_long(node: Expr) -> bool:
    match node:
        case Load() | Binary("shl", _, _):
            return True
        case Cast(x, _):
            return _is_float(x)
        case _:
            return False


def _select(expr: Select) -> Expr | None:
    c, a, b = expr.condition, expr.a, expr.b
    if isinstance(c, Const):
        return _as(a if c.value else b, dtype_of(expr))
    if a is b:
        return a
    if isinstance(c, Unary) and c.op == "not":
        return Select(c.x, b, a)
    if dtype_of(expr) is DType.BOOL:
        match a, b:
            case Const(True, _), _:
                return Binary("or", c, b)
            case Const(False, _), _:
                return Binary("and", Unary("not", c), b)
            case _, Const(True, _):
                return Binary("or", Unary("not", c), a)
            case _, Const(False, _):
                return Binary("and", c, a)
    if isinstance(a, Select) and a.condition is c:
        return Select(c, a.a, b)
    if isinstance(b, Select) and b.condition is c:
        return Select(c, a, b.b)
    if isinstance(a, Select) and a.b is b and dtype_of(a) is dtype_of(expr):
        return Select(Binary("and", c, a.condition), a.a, b)
    if isinstance(b, Select) and b.b is a and dtype_of(b) is dtype_of(expr):
        return Select(Binary("and", Unary("not", c), b.condition), b.a, a)
    if isinstance(a, Const) and not isinstance(b, Const):
        return Select(_negate(c), b, a) if _negates_freely(c) else None
    return None


def _negates_freely(c: Expr) -> bool:
    """Whether !c has no `not` left after simplification, so that a fill may be moved to the second branch."""
    match c:
        case Binary(op, a, b) if op in _NEGATED:
            return not _is_float(a) and not _is_float(b)
        case Binary("and" | "or", a, b):
            return _negates_freely(a) and _negates_freely(b)
        case Unary("not", _):
            return True
        case _:
            return False


def _negate(c: Expr) -> Expr:
    return simplify(Unary("not", c))


def _as(x: Expr, dtype: DType) -> Expr:
    return x if dtype_of(x) is dtype or (dtype_of(x).compute is dtype) else Cast(x, dtype)


# -- Comparisons and logic


def _comparison(expr: Binary) -> Expr | None:
    op, a, b = expr.op, expr.a, expr.b
    if isinstance(a, Const) and isinstance(b, Const):
        return fold_binary(expr)
    if (
        isinstance(a, Select)
        and isinstance(a.a, Const)
        and isinstance(a.b, Const)
        and isinstance(b, Const)
    ):
        return Select(a.condition, Binary(op, a.a, b), Binary(op, a.b, b))
    if isinstance(a, Const) and not (dtype_of(a).is_int and dtype_of(b).is_int):
        return Binary(_SWAPPED[op], b, a)
    if dtype_of(a) is DType.BOOL and isinstance(b, Const):
        wanted = bool(b.value) == (op == "eq")
        if op in ("eq", "ne") and b.value in (0, 1):
            return a if wanted else Unary("not", a)
    if dtype_of(a).is_int and dtype_of(b).is_int:
        blocks = _common_high_bits(op, a, b)
        return blocks or _changed(_integer_comparison(op, a, b), expr)
    return whole.comparison(op, a, b) if _is_float(a) or _is_float(b) else None


def _integer_comparison(op: str, a: Expr, b: Expr) -> Expr:
    """One spelling for each affine comparison: `lhs <= rhs`, `lhs == rhs` or `lhs != rhs` without negative terms."""
    match op:
        case "lt":
            slack = polynomial(b) - polynomial(a) - constant(1)
        case "gt":
            slack = polynomial(a) - polynomial(b) - constant(1)
        case "ge":
            slack = polynomial(a) - polynomial(b)
        case _:
            slack = polynomial(b) - polynomial(a)
    low, high = bounds(slack)
    negative = high is not None and (high.scaled(-1) - constant(1)).is_nonnegative()
    if op in ("eq", "ne"):
        positive = low is not None and (low - constant(1)).is_nonnegative()
        if positive or negative:
            return const(op == "ne")
        if slack.constant == 0:
            return const(op == "eq")
        if slack.terms and slack.terms[-1][1] < 0:
            slack = slack.scaled(-1)
        return Binary(op, *_sides(slack))
    if low is not None and low.is_nonnegative():
        return TRUE
    return FALSE if negative else Binary("le", *_sides(slack))


def _common_high_bits(op: str, a: Expr, b: Expr) -> Expr | None:
    """x ^ y is 0 where x is y, and below a power of two where they are in one block of so many."""
    match op, a, b:
        case "eq" | "ne", Binary("xor", x, y), Const(0, _):
            return Binary(op, x, y)
        case "eq" | "ne", Const(0, _), Binary("xor", x, y):
            return Binary(op, x, y)
        case "le", Binary("xor", x, y), Const(low, dtype) if _is_power(int(low) + 1, dtype):
            if any(not _is_nonnegative(e) for e in (x, y)):
                return None
            block = const(int(low) + 1, dtype)
            return Binary("eq", floordiv(x, block), floordiv(y, block))
        case _:
            return None


def _is_nonnegative(x: Expr) -> bool:
    low = bounds(polynomial(x))[0]
    return low is not None and low.is_nonnegative()


def _sides(slack: Polynomial) -> tuple[Expr, Expr]:
    """lhs and rhs with rhs - lhs = slack and no negative coefficient on either side."""
    rhs = Polynomial.of((m, c) for m, c in slack.terms if c > 0)
    lhs = Polynomial.of((m, -c) for m, c in slack.terms if c < 0)
    return expression(lhs), expression(rhs)


def _logical(expr: Binary) -> Expr | None:
    op, a, b = expr.op, expr.a, expr.b
    if isinstance(a, Const) and isinstance(b, Const):
        return fold_binary(expr)
    if dtype_of(expr) is not DType.BOOL:
        return None
    if isinstance(a, Const):
        a, b = b, a
    if a is b and op != "xor":
        return a
    match op, b:
        case ("and", Const(True, _)) | ("or", Const(False, _)) | ("xor", Const(False, _)):
            return a
        case ("and", Const(False, _)) | ("or", Const(True, _)):
            return b
        case "xor", Const(True, _):
            return Unary("not", a)
        case _:
            return None


# -- Integers


def _integer(expr: Binary) -> Expr | None:
    a, b = expr.a, expr.b
    if isinstance(a, Const) and isinstance(b, Const):
        return fold_binary(expr)
    match expr.op:
        case "floordiv":
            return _changed(_divided(a, b, quotient=True), expr)
        case "mod":
            return _changed(_divided(a, b, quotient=False), expr)
        case "min" | "max":
            return _extremum(expr)
        case "shl" | "shr":
            return _shift(expr.op, a, b)
        case "add" | "sub" | "mul":
            return _changed(_typed(expression(_rejoined(polynomial(expr))), expr), expr)
        case _:
            return None


def _shift(op: str, x: Expr, count: Expr) -> Expr | None:
    """Shifts by a known number of bits as products and quotients, whose bounds are known."""
    dtype = dtype_of(x)
    if not isinstance(count, Const) or not 0 <= count.value < _value_bits(dtype):
        return None
    power = const(1 << int(count.value), dtype)
    if op == "shr":
        return floordiv(x, power)
    return mul(x, power) if count.dtype is DType.I64 and _fits_i32(x) else None


def _value_bits(dtype: DType) -> int:
    """Bits of a value, without that of its sign."""
    return dtype.bits - (dtype is not DType.U8)


def _bits(expr: Binary) -> Expr | None:
    """Masks of low bits as remainders, of high bits as quotients: of integers of either sign, as numbers are stored."""
    op, a, b = expr.op, expr.a, expr.b
    if isinstance(a, Const) and isinstance(b, Const):
        return fold_binary(expr)
    if isinstance(a, Const):
        return Binary(op, b, a)
    if a is b:
        return const(0, dtype_of(expr)) if op == "xor" else a
    if not isinstance(b, Const) or dtype_of(a) is not dtype_of(expr):
        return None
    low, dtype = int(b.value), dtype_of(expr)
    if low == 0:
        return const(0, dtype) if op == "and" else a
    if low == -1:
        return a if op == "and" else b if op == "or" else None
    match op:
        case "and" if _is_power(low + 1, dtype):
            return mod(a, const(low + 1, dtype))
        case "and" if _is_power(-low, dtype):
            return mul(floordiv(a, const(-low, dtype)), const(-low, dtype))
        case "or" if _is_power(low + 1, dtype):
            rest = mul(floordiv(a, const(low + 1, dtype)), const(low + 1, dtype))
            return Binary("add", rest, b)
        case _:
            return None


def _is_power(n: int, dtype: DType) -> bool:
    """Whether n is a power of two that is a number of the type."""
    return 1 < n < 1 << _value_bits(dtype) and n & (n - 1) == 0


def _typed(new: Expr, old: Expr) -> Expr:
    """Keep the int type: a constant result takes the type of the expression it replaces."""
    if isinstance(new, Const) and new.dtype is not dtype_of(old):
        return const(new.value, dtype_of(old))
    return new


def _extremum(expr: Binary) -> Expr | None:
    difference = polynomial(expr.a) - polynomial(expr.b)
    low, high = bounds(difference)
    if low is not None and low.is_nonnegative():
        return expr.b if expr.op == "min" else expr.a
    if high is not None and high.scaled(-1).is_nonnegative():
        return expr.a if expr.op == "min" else expr.b
    return None


def _divided(x: Expr, divisor: Expr, *, quotient: bool) -> Expr:
    """x // divisor or x % divisor: multiples of the divisor leave, a remainder proved to be in range is the answer."""
    same = floordiv(x, divisor) if quotient else mod(x, divisor)
    d = polynomial(divisor)
    if not is_positive(d) or len(d.terms) != 1:
        return same
    if d.constant == 1:
        return x if quotient else const(0)
    p = polynomial(x)
    for rounding in (math.floor, round):
        q, r = _split_multiples(p, d, rounding)
        if is_within(r, 0, d - constant(1)):
            return expression(q if quotient else r)
    q, r = _split_multiples(p, d, math.trunc)  # never larger terms, which could overflow
    if q.terms:
        if quotient:
            return expression(q + polynomial(floordiv(expression(r), divisor)))
        return mod(expression(r), divisor)
    match x:
        case Binary("floordiv", y, inner) if quotient:
            return floordiv(y, expression(d * polynomial(inner)))
        case Binary("mod", y, inner):
            # y % (a * b) // a is y // a % b, and y % (a * b) % a is y % a
            multiple, rest = _split_multiples(polynomial(inner), d, math.floor)
            if not rest.terms:
                if not quotient:
                    return mod(y, divisor)
                return mod(floordiv(y, divisor), expression(multiple))
        case Binary("xor", y, z) if quotient and _is_power(d.constant or 0, dtype_of(x)):
            return Binary("xor", floordiv(y, divisor), floordiv(z, divisor))
        case _:
            pass
    return same


def _split_multiples(
    p: Polynomial, d: Polynomial, rounding: object
) -> tuple[Polynomial, Polynomial]:
    """p = q * d + r, q from the terms that hold the divisor (symbolic), or by dividing each coefficient (constant)."""
    (atoms, scale), *_ = d.terms
    quotient = []
    for monomial, coefficient in p.terms:
        left = list(monomial)
        if all(a in left and (left.remove(a) or True) for a in atoms):  # type: ignore[func-returns-value]
            times = rounding(coefficient / scale)  # type: ignore[operator]
            quotient.append((tuple(left), times))
    q = Polynomial.of(quotient)
    return q, p - q * d


def _rejoined(p: Polynomial) -> Polynomial:
    """c * d * (x // d) + c * (x % d) is c * x."""
    for monomial, coefficient in p.terms:
        for atom in monomial:
            if not (isinstance(atom, Binary) and atom.op == "mod"):
                continue
            others = list(monomial)
            others.remove(atom)
            rest = Polynomial.of([(tuple(others), coefficient)])
            paired = rest * polynomial(atom.b) * polynomial(floordiv(atom.a, atom.b))
            if paired.terms and all(dict(p.terms).get(m) == c for m, c in paired.terms):
                whole = rest * polynomial(atom.a)
                return _rejoined(p - paired - Polynomial.of([(monomial, coefficient)]) + whole)
    return p


# -- Floats


def _float(expr: Binary) -> Expr | None:
    op, a, b = expr.op, expr.a, expr.b
    if isinstance(a, Const) and isinstance(b, Const):
        return fold_binary(expr)
    if isinstance(a, Const) and op in ("add", "mul", "min", "max"):
        return Binary(op, b, a)
    if (
        isinstance(a, Select)
        and isinstance(a.a, Const)
        and isinstance(a.b, Const)
        and isinstance(b, Const)
    ):
        return Select(a.condition, Binary(op, a.a, b), Binary(op, a.b, b))
    if (
        isinstance(b, Select)
        and isinstance(b.a, Const)
        and isinstance(b.b, Const)
        and isinstance(a, Const)
    ):
        return Select(b.condition, Binary(op, a, b.a), Binary(op, a, b.b))
    positions = whole.difference(op, a, b, dtype_of(expr))
    if positions is not None:
        return positions
    match op, b:
        case (("add" | "sub"), Const(value, _)) if value == 0:
            return _as(a, dtype_of(expr))
        case (("mul" | "div" | "pow"), Const(value, _)) if value == 1:
            return _as(a, dtype_of(expr))
        case "sub", Const(value, dtype) if dtype.is_float:
            return Binary("add", a, Const(-value, dtype))
        case "div", Const(value, dtype) if dtype.is_float and _inverts(value):
            return mul(a, Const(1.0 / value, dtype.compute))
        case "mul", Const(value, dtype) if value == -1:
            return neg(a)
        case "pow", Const(value, _) if value in (2, 3):
            return mul(a, a) if value == 2 else mul(mul(a, a), a)
        case "pow", Const(value, _) if value in (0.5, -0.5, -1):
            return Unary({0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}[float(value)], a)
        case "mul", Const(value, dtype) if isinstance(a, Binary) and a.op == "mul":
            merged = _merged(a.b, value)
            return None if merged is None else mul(a.a, merged)
        case _:
            return None


def _inverts(value: float) -> bool:
    return value != 0 and math.isfinite(value) and 2.0**-120 < abs(value) < 2.0**120


def _merged(b: Expr, value: float) -> Const | None:
    """The product of two constant factors, where neither it nor what it replaces leaves the normal range."""
    if not isinstance(b, Const) or not b.dtype.is_float:
        return None
    product = b.value * value
    return (
        Const(product, b.dtype.compute)
        if _inverts(product) and _inverts(value) and _inverts(b.value)
        else None
    )


# -- Inner reductions


def _reduce(expr: Reduce) -> Expr | None:
    monoid, dims, body = expr.monoid, expr.dims, expr.body
    single = {d: const(0) for d in dims if is_literal(d.extent, 1)}
    if single:
        rest = tuple(d for d in dims if d not in single)
        body = substitute(body, single)
        return Reduce(monoid, rest, body) if rest else _as(body, dtype_of(expr))
    if monoid.is_position:
        return None
    unused = [
        d
        for d in dims
        if d not in free_dims(body) and isinstance(d.extent, Const) and d.extent.value > 0
    ]
    if unused and monoid in (SUM, MAX, MIN, ANY, ALL):
        rest = tuple(d for d in dims if d not in unused)
        inner = Reduce(monoid, rest, body) if rest else _as(body, dtype_of(expr))
        times = math.prod(int(d.extent.value) for d in unused if isinstance(d.extent, Const))
        return inner if monoid is not SUM else mul(inner, const(times, dtype_of(expr)))
    if (
        monoid is SUM
        and isinstance(inner_sum := _unrounded(body), Reduce)
        and inner_sum.monoid is SUM
    ):
        return Reduce(SUM, (*dims, *inner_sum.dims), inner_sum.body)
    if monoid is SUM and dtype_of(expr).is_float:
        scalar, rest_body = _pull_factor(body, frozenset(dims))
        if scalar is not None:
            return mul(Reduce(SUM, dims, rest_body), scalar)
    return None


def _unrounded(expr: Expr) -> Expr:
    """A sum without the rounding of its result to 16 bits: what is added up stays in f32."""
    match expr:
        case Cast(Reduce() as x, DType.F16 | DType.BF16):
            return x
        case _:
            return expr


def _pull_factor(body: Expr, bound: frozenset[object]) -> tuple[Expr | None, Expr]:
    """Factor a *constant* out of a contraction's body: sum (Q * 0.125) * K = sum (Q * K) * 0.125.

    A rounding to 16 bits between the constant and the sum is passed: the operand that is left is exact.
    """
    match body:
        case Binary("mul", a, Const() as c) if dtype_of(a).is_float:
            inner, rest = _pull_factor(a, bound)
            return (c if inner is None else mul(inner, c)), rest
        case Binary("mul", a, b):
            left, a = _pull_factor(a, bound)
            right, b = _pull_factor(b, bound)
            if left is None and right is None:
                return None, body
            factor = left if right is None else right if left is None else mul(left, right)
            return factor, mul(a, b)
        case Unary("neg", x):
            inner, rest = _pull_factor(x, bound)
            return (None, body) if inner is None else (neg(inner), rest)
        case Cast(x, DType.F16 | DType.BF16 as dtype):
            inner, rest = _pull_factor(x, bound)
            if inner is None:
                return None, body
            return inner, rest if dtype_of(rest) is dtype else Cast(rest, dtype)
        case _:
            return None, body
