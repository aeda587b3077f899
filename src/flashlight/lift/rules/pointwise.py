"""Ops that compute each element from elements at one place.

Tensor operands are first converted to the common type, as TensorIterator does; Python numbers stay in the type arithmetic runs
in, so that a 16-bit tensor times 0.1 is what it is in eager.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import Binary, Cast, Const, Expr, Select, Unary, const, dtype_of
from flashlight.lift.lift import DTYPES, Lifter, NoRuleError, convert, rule
from flashlight.lift.values import Positions, Value, fold, plus

aten = torch.ops.aten
prims = torch.ops.prims

_UNARY = {
    "abs": "abs", "neg": "neg", "sgn": "sign", "sign": "sign",
    "exp": "exp", "exp2": "exp2", "expm1": "expm1",
    "log": "log", "log2": "log2", "log1p": "log1p",
    "sqrt": "sqrt", "rsqrt": "rsqrt", "reciprocal": "reciprocal",
    "sin": "sin", "cos": "cos", "tan": "tan", "tanh": "tanh", "sinh": "sinh", "cosh": "cosh",
    "asin": "asin", "acos": "acos", "atan": "atan", "asinh": "asinh", "acosh": "acosh", "atanh": "atanh",
    "erf": "erf", "erfc": "erfc", "sigmoid": "sigmoid",
    "floor": "floor", "ceil": "ceil", "round": "round", "trunc": "trunc",
}  # fmt: skip
_TESTS = {"isnan": "isnan", "isinf": "isinf"}
_ARITHMETIC = {
    "mul.Tensor": "mul", "mul.Scalar": "mul", "div.Tensor": "div", "div.Scalar": "div",
    "minimum.default": "min", "maximum.default": "max",
    "clamp_min.default": "max", "clamp_min.Tensor": "max", "clamp_max.default": "min", "clamp_max.Tensor": "min",
    "remainder.Tensor": "mod", "remainder.Scalar": "mod", "floor_divide.default": "floordiv",
    "bitwise_and.Tensor": "and", "bitwise_or.Tensor": "or", "bitwise_xor.Tensor": "xor",
    "bitwise_and.Scalar": "and", "bitwise_or.Scalar": "or", "bitwise_xor.Scalar": "xor",
}  # fmt: skip
_LOGICAL = {"logical_and": "and", "logical_or": "or", "logical_xor": "xor"}


def _overloads(names: dict[str, str], overload: str = "default") -> dict[Any, str]:
    """ATen overloads by the operator of ours they are."""
    found = {}
    for name, op in names.items():
        packet, _, suffix = name.partition(".")
        found[getattr(getattr(aten, packet), suffix or overload)] = op
    return found


UNARY = _overloads(_UNARY) | _overloads(_TESTS)
ARITHMETIC = _overloads(_ARITHMETIC)
LOGICAL = _overloads(_LOGICAL)
SHIFTS = {
    getattr(packet, overload): op
    for op, packets in (
        ("shl", (aten.bitwise_left_shift, aten.__lshift__)),
        ("shr", (aten.bitwise_right_shift, aten.__rshift__)),
    )
    for packet in packets
    for overload in ("Tensor", "Scalar", "Tensor_Scalar", "Scalar_Tensor")
    if overload in packet.overloads()
}
COMPARISONS = {
    getattr(getattr(aten, op), overload): op
    for op in ("eq", "ne", "lt", "le", "gt", "ge")
    for overload in ("Tensor", "Scalar")
}


def typed(x: Expr, common: DType) -> Expr:
    """An operand in the common type of an operation. Widening of floats is left to the arithmetic."""
    have = dtype_of(x)
    if isinstance(x, Const):
        return x if have is common else convert(x, common.compute)
    if have.is_float and common.is_float:
        return Cast(x, common) if have.bits > common.bits else x
    return convert(x, common)


def arithmetic(
    lift: Lifter, node: torch.fx.Node, function: Callable[..., Expr], *args: Any
) -> Value:
    """A pointwise nest whose operands are first brought to the type of the result."""
    dtype = lift.dtype(node)
    return lift.pointwise(
        node, lambda *xs: function(*(typed(x, dtype) for x in xs)), *map(lift.operand, args)
    )


def exactly(x: Expr, dtype: DType) -> Expr:
    """x as an element of a tensor of `dtype`: numbers are rounded to it."""
    return convert(x, dtype)


@rule(*UNARY)
def _unary(lift: Lifter, node: torch.fx.Node, x: Any, **_: Any) -> Value:
    op = UNARY[node.target]
    if op in ("isnan", "isinf"):
        return lift.pointwise(node, lambda a: Unary(op, a), lift.tensor(x))
    return arithmetic(lift, node, lambda a: Unary(op, a), x)


@rule(*ARITHMETIC)
def _binary(lift: Lifter, node: torch.fx.Node, a: Any, b: Any) -> Value:
    op = ARITHMETIC[node.target]
    return arithmetic(lift, node, lambda x, y: Binary(op, x, y), a, b)


@rule(aten.add.Tensor, aten.add.Scalar)
def _add(lift: Lifter, node: torch.fx.Node, a: Any, b: Any, alpha: Any = 1) -> Value:
    return arithmetic(lift, node, lambda x, y: Binary("add", x, _times(y, alpha)), a, b)


@rule(aten.sub.Tensor, aten.sub.Scalar)
def _sub(lift: Lifter, node: torch.fx.Node, a: Any, b: Any, alpha: Any = 1) -> Value:
    return arithmetic(lift, node, lambda x, y: Binary("sub", x, _times(y, alpha)), a, b)


@rule(aten.rsub.Tensor, aten.rsub.Scalar)
def _rsub(lift: Lifter, node: torch.fx.Node, a: Any, b: Any, alpha: Any = 1) -> Value:
    return arithmetic(lift, node, lambda x, y: Binary("sub", y, _times(x, alpha)), a, b)


def _times(x: Expr, alpha: Any) -> Expr:
    if not isinstance(alpha, int | float):
        raise NoRuleError("a symbolic alpha")
    return x if alpha == 1 else Binary("mul", x, const(alpha, dtype_of(x).compute))


@rule(aten.div.Tensor_mode, aten.div.Scalar_mode)
def _div_mode(
    lift: Lifter, node: torch.fx.Node, a: Any, b: Any, rounding_mode: str | None = None
) -> Value:
    match rounding_mode:
        case None:
            return arithmetic(lift, node, lambda x, y: Binary("div", x, y), a, b)
        case "floor":
            return arithmetic(lift, node, lambda x, y: Binary("floordiv", x, y), a, b)
        case _ if lift.dtype(node).is_float:
            return arithmetic(lift, node, lambda x, y: Unary("trunc", Binary("div", x, y)), a, b)
        case _:
            return arithmetic(lift, node, _truncated_quotient, a, b)


def _truncated_quotient(x: Expr, y: Expr) -> Expr:
    """Of integers."""
    zero = const(0, dtype_of(x))
    size = Binary("floordiv", Unary("abs", x), Unary("abs", y))
    is_negative = Binary("xor", Binary("lt", x, zero), Binary("lt", y, zero))
    return Select(is_negative, Unary("neg", size), size)


@rule(*SHIFTS)
def _shift(lift: Lifter, node: torch.fx.Node, a: Any, b: Any) -> Value:
    op, dtype = SHIFTS[node.target], lift.dtype(node)
    if not dtype.is_int:
        raise NoRuleError("a shift of no integers")

    def function(x: Expr, count: Expr) -> Expr:
        zero, last = const(0, dtype), const(dtype.bits - 1, dtype)
        fits = Binary("and", Binary("ge", count, zero), Binary("le", count, last))
        past = Binary("shr", x, last) if op == "shr" and dtype is not DType.U8 else zero
        return Select(fits, Binary(op, x, Select(fits, count, zero)), past)

    return arithmetic(lift, node, function, a, b)


@rule(*LOGICAL)
def _logical(lift: Lifter, node: torch.fx.Node, a: Any, b: Any) -> Value:
    op = LOGICAL[node.target]

    def function(x: Expr, y: Expr) -> Expr:
        return Binary(op, convert(x, DType.BOOL), convert(y, DType.BOOL))

    return lift.pointwise(node, function, lift.operand(a), lift.operand(b))


@rule(aten.logical_not.default)
def _logical_not(lift: Lifter, node: torch.fx.Node, x: Any) -> Value:
    return lift.pointwise(node, lambda a: Unary("not", convert(a, DType.BOOL)), lift.tensor(x))


@rule(aten.bitwise_not.default)
def _bitwise_not(lift: Lifter, node: torch.fx.Node, x: Any) -> Value:
    return lift.pointwise(node, lambda a: Unary("not", a), lift.tensor(x))


@rule(*COMPARISONS)
def _compare(lift: Lifter, node: torch.fx.Node, a: Any, b: Any) -> Value:
    op, common = COMPARISONS[node.target], _common_dtype(a, b)

    def function(x: Expr, y: Expr) -> Expr:
        return Binary(op, _compared(x, common), _compared(y, common))

    return lift.pointwise(node, function, lift.operand(a), lift.operand(b))


def _compared(x: Expr, common: DType) -> Expr:
    return convert(x, common) if isinstance(x, Const) else typed(x, common)


def _common_dtype(a: Any, b: Any) -> DType:
    """The type in which torch compares two operands."""

    def meta(x: Any) -> Any:
        x = x.meta["val"] if isinstance(x, torch.fx.Node) else x
        if isinstance(x, torch.SymInt):
            return 1
        return 1.0 if isinstance(x, torch.SymFloat) else x

    common = torch.result_type(meta(a), meta(b))
    if common not in DTYPES:
        raise NoRuleError(f"a comparison of {common}")
    return DTYPES[common]


@rule(aten.pow.Tensor_Scalar)
def _pow(lift: Lifter, node: torch.fx.Node, x: Any, exponent: Any) -> Value:
    return arithmetic(lift, node, lambda a: power(a, exponent), x)


def power(x: Expr, exponent: Any) -> Expr:
    """x to a known power, in the operations eager uses for it."""
    if not isinstance(exponent, int | float):
        raise NoRuleError("a symbolic exponent")
    match exponent:
        case 1:
            return Binary("mul", x, const(1, dtype_of(x).compute))
        case 2:
            return Binary("mul", x, x)
        case 3:
            return Binary("mul", Binary("mul", x, x), x)
        case 0.5:
            return Unary("sqrt", x)
        case -0.5:
            return Unary("rsqrt", x)
        case -1:
            return Unary("reciprocal", x)
        case -2:
            return Unary("reciprocal", Binary("mul", x, x))
        case _:
            return Binary("pow", x, const(exponent, dtype_of(x).compute))


@rule(aten.pow.Scalar, aten.pow.Tensor_Tensor)
def _pow_tensor(lift: Lifter, node: torch.fx.Node, base: Any, exponent: Any) -> Value:
    if not lift.dtype(node).is_float:
        raise NoRuleError("integers to a power")
    if base == 2:
        return arithmetic(lift, node, lambda y: Unary("exp2", y), exponent)
    return arithmetic(lift, node, lambda x, y: Binary("pow", x, y), base, exponent)


@rule(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def _where(lift: Lifter, node: torch.fx.Node, condition: Any, a: Any, b: Any) -> Value:
    dtype = lift.dtype(node)

    def function(c: Expr, x: Expr, y: Expr) -> Expr:
        return Select(convert(c, DType.BOOL), exactly(x, dtype), exactly(y, dtype))

    return lift.pointwise(node, function, *map(lift.operand, (condition, a, b)))


@rule(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def _masked_fill(lift: Lifter, node: torch.fx.Node, x: Any, mask: Any, fill: Any) -> Value:
    return _where(lift, node, mask, fill, x)


@rule(aten.clamp.default, aten.clamp.Tensor)
def _clamp(lift: Lifter, node: torch.fx.Node, x: Any, min: Any = None, max: Any = None) -> Value:
    ends = [("max", min), ("min", max)]
    given = [(op, end) for op, end in ends if end is not None]

    def function(a: Expr, *bounds: Expr) -> Expr:
        for (op, _), bound in zip(given, bounds, strict=True):
            a = Binary(op, a, bound)
        return a

    return arithmetic(lift, node, function, x, *(end for _, end in given))


@rule(aten.fmod.Tensor, aten.fmod.Scalar)
def _fmod(lift: Lifter, node: torch.fx.Node, a: Any, b: Any) -> Value:
    """The remainder with the sign of the dividend."""

    def function(x: Expr, y: Expr) -> Expr:
        zero = const(0, dtype_of(x).compute)
        rest = Binary("mod", Unary("abs", x), Unary("abs", y))
        return Select(Binary("lt", x, zero), Unary("neg", rest), rest)

    return arithmetic(lift, node, function, a, b)


@rule(aten.relu.default)
def _relu(lift: Lifter, node: torch.fx.Node, x: Any) -> Value:
    return arithmetic(lift, node, lambda a: Binary("max", a, const(0, dtype_of(a).compute)), x)


@rule(aten.leaky_relu.default)
def _leaky_relu(lift: Lifter, node: torch.fx.Node, x: Any, slope: float = 0.01) -> Value:
    def function(a: Expr) -> Expr:
        zero, factor = (const(c, dtype_of(a).compute) for c in (0, slope))
        return Select(Binary("gt", a, zero), a, Binary("mul", a, factor))

    return arithmetic(lift, node, function, x)


@rule(aten.silu.default)
def _silu(lift: Lifter, node: torch.fx.Node, x: Any) -> Value:
    return arithmetic(lift, node, lambda a: Binary("mul", a, Unary("sigmoid", a)), x)


@rule("prims.fma.default")  # exists once Inductor is imported
def _fma(lift: Lifter, node: torch.fx.Node, a: Any, b: Any, c: Any) -> Value:
    return arithmetic(lift, node, lambda x, y, z: Binary("add", Binary("mul", x, y), z), a, b, c)


@rule(aten.addcmul.default)
def _addcmul(lift: Lifter, node: torch.fx.Node, a: Any, b: Any, c: Any, value: Any = 1) -> Value:
    return arithmetic(
        lift,
        node,
        lambda x, y, z: Binary("add", x, _times(Binary("mul", y, z), value)),
        a,
        b,
        c,
    )


@rule(aten.addcdiv.default)
def _addcdiv(lift: Lifter, node: torch.fx.Node, a: Any, b: Any, c: Any, value: Any = 1) -> Value:
    return arithmetic(
        lift, node, lambda x, y, z: Binary("add", x, Binary("div", _times(y, value), z)), a, b, c
    )


@rule(prims.convert_element_type.default)
def _convert(lift: Lifter, node: torch.fx.Node, x: Any, dtype: torch.dtype) -> Value:
    source = lift.tensor(x)
    if source.dtype is DTYPES[dtype]:
        return source
    return lift.pointwise(node, lambda a: convert(a, DTYPES[dtype]), source)


@rule(aten._to_copy.default, aten.to.dtype)
def _to_copy(lift: Lifter, node: torch.fx.Node, x: Any, *_: Any, **kwargs: Any) -> Value:
    moved = kwargs.get("device")
    if moved is not None and moved != node.args[0].meta["val"].device:  # type: ignore[union-attr]
        raise NoRuleError("a copy to another device")
    return _convert(lift, node, x, node.meta["val"].dtype)


@rule(aten.copy.default)
def _copy(lift: Lifter, node: torch.fx.Node, x: Any, source: Any, *_: Any) -> Value:
    dtype = lift.dtype(node)
    return lift.pointwise(node, lambda a: exactly(a, dtype), lift.tensor(source))


@rule(aten.tril.default, aten.triu.default)
def _triangle(lift: Lifter, node: torch.fx.Node, x: Any, diagonal: int = 0) -> Value:
    source = lift.tensor(x)
    lower = node.target is aten.tril.default

    def body(out: Positions, _: Positions) -> Expr:
        row, column = fold(out[-2]), fold(out[-1])
        edge = plus(row, const(diagonal))
        keeps = Binary("le", column, edge) if lower else Binary("ge", column, edge)
        return Select(keeps, source.at(out), const(0, source.dtype))

    return lift.make(node, source.shape, body, source.dtype, factors=source.factors)
