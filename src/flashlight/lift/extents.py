"""Arithmetic on the sizes of FX tensors, which are ints or sympy expressions, and their translation into ours.

Sizes are compared to split and merge axes of one tensor; that two axes of different tensors have equal sizes says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

import sympy
import torch
import torch.fx
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._sympy.functions import FloorDiv

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import Binary, Cast, Expr, Size, Unary, const

Extent: TypeAlias = int | sympy.Expr


class UntranslatableSize(Exception):  # noqa: N818  (caught by the rule driver, never shown)
    """A symbolic size that our expressions cannot say."""


def extent_of(size: int | torch.SymInt | torch.SymFloat | sympy.Expr) -> Extent:
    """A size as an int where it is one."""
    expr = size.node.expr if isinstance(size, torch.SymInt | torch.SymFloat) else size
    if isinstance(expr, sympy.Integer):
        return int(expr)
    return expr


class Sizes:
    """The sizes of one graph, in symbols that hide no division.

    Grouped heads under dynamic shapes have `s // t` groups; that t divides s is known from the view that says so. Then s is
    written t * g with a new symbol g, and everything is a polynomial.

    Attributes:
        meaning: for each new symbol, the sizes it stands for.
    """

    def __init__(self, graph: torch.fx.Graph | None = None) -> None:
        self.meaning: dict[sympy.Symbol, sympy.Expr] = {}
        self._factored: dict[sympy.Symbol, sympy.Expr] = {}
        for node in graph.nodes if graph is not None else ():
            self._learn(node)

    def of(self, size: int | torch.SymInt | torch.SymFloat | sympy.Expr) -> Extent:
        """A size as an int where it is one."""
        found = extent_of(size)
        if isinstance(found, int) or not (self._factored or found.has(FloorDiv)):
            return found
        return extent_of(_divided(found.xreplace(self._factored)))

    def shape(self, value: torch.Tensor) -> tuple[Extent, ...]:
        return tuple(self.of(s) for s in value.shape)

    def _learn(self, node: torch.fx.Node) -> None:
        """Look at a reshape for what it says about divisions."""
        if node.op != "call_function" or not node.args or "view" not in str(node.target):
            return
        before, after = node.args[0], node.meta.get("val")
        source = before.meta.get("val") if isinstance(before, torch.fx.Node) else None
        if not isinstance(source, torch.Tensor) or not isinstance(after, torch.Tensor):
            return
        a, b = (product(extent_of(s) for s in v.shape) for v in (source, after))
        if isinstance(a, int) or isinstance(b, int):
            return
        same = is_same(a, b)  # equal counts say nothing about a division in both
        for division in sorted((a * b).atoms(FloorDiv), key=str):
            whole, part = division.args
            if not whole.is_Symbol or whole in self._factored:
                continue
            if not (_is_guarded(division, source) if same else _agree(a, b, division)):
                continue
            symbol = sympy.Symbol(f"{whole}_over_{part}", integer=True, positive=True)
            self.meaning[symbol] = division
            self._factored[whole] = part * symbol


def _is_guarded(division: sympy.Expr, near: torch.Tensor) -> bool:
    """Whether a guard of the graph says that a division leaves nothing over; `near`: a tensor with symbolic sizes."""
    whole, part = division.args
    sizes: Sequence[int | torch.SymInt] = near.shape
    envs = [s.node.shape_env for s in sizes if isinstance(s, torch.SymInt)]
    exact = sympy.Eq(part * division, whole)
    return any(statically_known_true(env.create_symboolnode(exact)) for env in envs[:1])


def _agree(a: sympy.Expr, b: sympy.Expr, division: sympy.Expr) -> bool:
    """Whether two unlike counts are equal if a division leaves nothing over."""
    whole, part = division.args
    quotient_ = sympy.Dummy(integer=True, positive=True)
    a, b = (e.xreplace({division: quotient_}).xreplace({whole: part * quotient_}) for e in (a, b))
    return bool(sympy.expand(a - b) == 0)


# Sizes are few and asked about again for every view; sympy takes milliseconds for each answer.
REMEMBERED = 20_000


@lru_cache(maxsize=REMEMBERED)
def _divided(expr: sympy.Expr) -> sympy.Expr:
    """Divisions that leave nothing over, carried out."""

    def carry_out(whole: sympy.Expr, part: sympy.Expr) -> sympy.Expr:
        exact = quotient(whole, part)
        return FloorDiv(whole, part) if exact is None else sympy.sympify(exact)

    return expr.replace(FloorDiv, carry_out)


def is_same(a: Extent, b: Extent) -> bool:
    """Whether two sizes are known to be equal."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return bool(a == b) or _is_zero(sympy.sympify(a) - sympy.sympify(b))


@lru_cache(maxsize=REMEMBERED)
def _is_zero(expr: sympy.Expr) -> bool:
    return bool(sympy.expand(expr) == 0)


def is_one(a: Extent) -> bool:
    return isinstance(a, int) and a == 1


def product(extents: Iterable[Extent]) -> Extent:
    result: Extent = 1
    for e in extents:
        result = result * e
    return extent_of(sympy.expand(result)) if isinstance(result, sympy.Expr) else result


def quotient(a: Extent, b: Extent) -> Extent | None:
    """a / b where b is known to divide a."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b and a % b == 0 else None
    return _symbolic_quotient(a, b)


@lru_cache(maxsize=REMEMBERED)
def _symbolic_quotient(a: Extent, b: Extent) -> Extent | None:
    numerator, denominator = sympy.fraction(sympy.cancel(sympy.sympify(a) / sympy.sympify(b)))
    if denominator != 1:
        return None
    whole = all(c.is_integer for c in sympy.Poly(numerator).coeffs()) if numerator.args else True
    return extent_of(numerator) if whole else None


def hint(a: Extent, hints: Mapping[str, int]) -> int:
    """The size at the first call: for estimates, never for legality."""
    if isinstance(a, int):
        return a
    known = {s: hints.get(str(s), 64) for s in a.free_symbols}
    try:
        return max(int(a.subs(known)), 0)
    except TypeError:
        return 64


def count_of(shape: Iterable[Extent], hints: Mapping[str, int]) -> int:
    """Elements of a shape at the first call."""
    return math.prod(hint(a, hints) for a in shape)


def expr_of(a: Extent) -> Expr:
    """A size as an expression of ours."""
    return const(a) if isinstance(a, int) else _translate(a)


def scalar_of(a: sympy.Expr | float) -> Expr:
    """A Python number that is computed from sizes, in Python's types: i64 or f64."""
    if isinstance(a, bool | int):
        return const(a)
    if isinstance(a, float):
        return const(a, DType.F64)
    return _translate(a)


_UNARY = {
    "OpaqueUnaryFn_sqrt": "sqrt",
    "OpaqueUnaryFn_exp": "exp",
    "OpaqueUnaryFn_log": "log",
    "OpaqueUnaryFn_log2": "log2",
}


def _translate(a: sympy.Expr) -> Expr:
    if isinstance(a, sympy.Symbol):
        return Size(str(a))
    if isinstance(a, sympy.Integer):
        return const(int(a))
    if isinstance(a, sympy.Rational | sympy.Float):
        return const(float(a), DType.F64)
    parts = [_translate(x) for x in a.args]
    match type(a).__name__:
        case "Add" | "Mul" | "Max" | "Min" as name:
            return _chain({"Add": "add", "Mul": "mul", "Max": "max", "Min": "min"}[name], parts)
        case "FloorDiv" | "CleanDiv":
            return Binary("floordiv", *parts)
        case "Mod" | "PythonMod":
            return Binary("mod", *parts)
        case "FloatTrueDiv" | "IntTrueDiv":
            return Binary("div", _f64(parts[0]), _f64(parts[1]))
        case "ToFloat":
            return _f64(parts[0])
        case "FloatPow":
            return Binary("pow", _f64(parts[0]), _f64(parts[1]))
        case "Pow" | "PowByNatural" if isinstance(a.args[1], sympy.Integer) and a.args[1] > 0:
            return _chain("mul", [parts[0]] * int(a.args[1]))
        case name if name in _UNARY:
            return Unary(_UNARY[name], _f64(parts[0]))
        case _:
            raise UntranslatableSize(str(a))


def _chain(op: str, parts: list[Expr]) -> Expr:
    result = parts[0]
    for part in parts[1:]:
        result = Binary(op, result, part)
    return result


def _f64(x: Expr) -> Expr:
    return Cast(x, DType.F64)
