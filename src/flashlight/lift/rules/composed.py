"""Functions of one or two elements that have no operator of their own: written in those there are, zeros and infinities included."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.fx

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import Binary, Expr, Select, Unary, const, dtype_of
from flashlight.lift.lift import Lifter, rule
from flashlight.lift.rules.pointwise import arithmetic
from flashlight.lift.values import Value

aten = torch.ops.aten


def _number(x: float, like: Expr) -> Expr:
    return const(x, dtype_of(like).compute)


@rule(aten.log10.default)
def _log10(lift: Lifter, node: torch.fx.Node, x: Any) -> Value:
    def function(a: Expr) -> Expr:
        return Binary("mul", Unary("log", a), _number(1 / math.log(10), a))

    return arithmetic(lift, node, function, x)


@rule(aten.ldexp.Tensor)
def _ldexp(lift: Lifter, node: torch.fx.Node, x: Any, exponent: Any) -> Value:
    return arithmetic(lift, node, lambda a, n: Binary("mul", a, Unary("exp2", n)), x, exponent)


@rule(aten.hypot.default)
def _hypot(lift: Lifter, node: torch.fx.Node, x: Any, y: Any) -> Value:
    """The longer side times what the shorter adds to it: squares of sides that fit might not."""

    def function(a: Expr, b: Expr) -> Expr:
        a, b = Unary("abs", a), Unary("abs", b)
        long, short = Binary("max", a, b), Binary("min", a, b)
        ratio = Binary("div", short, long)
        square = Binary("add", Binary("mul", ratio, ratio), _number(1, a))
        length = Binary("mul", long, Unary("sqrt", square))
        is_infinite = Binary("or", Unary("isinf", a), Unary("isinf", b))  # beside no number, too
        finite = Select(Binary("eq", long, _number(0, a)), long, length)
        return Select(is_infinite, _number(math.inf, a), finite)

    return arithmetic(lift, node, function, x, y)


@rule(aten.signbit.default)
def _signbit(lift: Lifter, node: torch.fx.Node, x: Any) -> Value:
    return lift.pointwise(node, _is_negative, lift.tensor(x), dtype=DType.BOOL)


@rule(aten.copysign.Tensor, aten.copysign.Scalar)
def _copysign(lift: Lifter, node: torch.fx.Node, x: Any, sign: Any) -> Value:
    return arithmetic(lift, node, _signed, x, sign)


@rule(aten.atan2.default)
def _atan2(lift: Lifter, node: torch.fx.Node, y: Any, x: Any) -> Value:
    def function(b: Expr, a: Expr) -> Expr:
        both = Binary("and", Unary("isinf", a), Unary("isinf", b))
        up, right = (Select(both, _signed(_number(1, s), s), s) for s in (b, a))
        half_turn = _signed(_number(math.pi, b), b)
        turn = Select(_is_negative(a), half_turn, _number(0, b))
        angle = Binary("add", Unary("atan", Binary("div", up, right)), turn)
        level = Binary("and", Binary("eq", b, _number(0, b)), Binary("eq", a, a))
        return Select(level, Select(_is_negative(a), half_turn, b), angle)

    return arithmetic(lift, node, function, y, x)


def _is_negative(x: Expr) -> Expr:
    """Whether the sign of x is set, that of a zero too. A value that is no number counts as positive."""
    zero = const(0, dtype_of(x))
    if not dtype_of(x).is_float:
        return Binary("lt", x, zero)
    below = Binary("lt", Unary("reciprocal", x), zero)
    return Binary("or", Binary("lt", x, zero), Binary("and", Binary("eq", x, zero), below))


def _signed(x: Expr, like: Expr) -> Expr:
    size = Unary("abs", x)
    return Select(_is_negative(like), Unary("neg", size), size)
