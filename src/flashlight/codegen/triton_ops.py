"""How each operation on tiles is spelled in Triton."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from flashlight.codegen.blocks import Compute
from flashlight.codegen.spelling import stripped
from flashlight.errors import CompileError
from flashlight.ir.dtypes import DType
from flashlight.ir.monoids import ALL, ANY, ARGMAX, ARGMIN, MAX, MIN, PROD, SUM, Monoid

TYPES = {
    DType.BOOL: "tl.int1",
    DType.U8: "tl.uint8",
    DType.I8: "tl.int8",
    DType.I16: "tl.int16",
    DType.I32: "tl.int32",
    DType.I64: "tl.int64",
    DType.F16: "tl.float16",
    DType.BF16: "tl.bfloat16",
    DType.F32: "tl.float32",
    DType.F64: "tl.float64",
}
NAN = "tl.PropagateNan.ALL"


@dataclass(frozen=True, slots=True)
class Helper:
    """A function a kernel may need beside it."""

    text: str
    uses_libdevice: bool = False


HELPERS = {
    "_max_nan": Helper(
        f"""
@triton.jit
def _max_nan(a, b):
    return tl.maximum(a, b, propagate_nan={NAN})
"""
    ),
    "_min_nan": Helper(
        f"""
@triton.jit
def _min_nan(a, b):
    return tl.minimum(a, b, propagate_nan={NAN})
"""
    ),
    "_product": Helper(
        """
@triton.jit
def _product(a, b):
    return a * b
"""
    ),
    "_argmax": Helper(
        """
@triton.jit
def _argmax(x, axis: tl.constexpr):
    # the first NaN, else the first maximum
    nan = (x != x).to(tl.int32)
    top = tl.argmax(tl.where(nan != 0, float("-inf"), x), axis, tie_break_left=True)
    return tl.where(tl.max(nan, axis) != 0, tl.argmax(nan, axis, tie_break_left=True), top)
"""
    ),
    "_argmin": Helper(
        """
@triton.jit
def _argmin(x, axis: tl.constexpr):
    # the first NaN, else the first minimum
    nan = (x != x).to(tl.int32)
    top = tl.argmin(tl.where(nan != 0, float("inf"), x), axis, tie_break_left=True)
    return tl.where(tl.max(nan, axis) != 0, tl.argmax(nan, axis, tie_break_left=True), top)
"""
    ),
    "_fast_tanh": Helper(
        """
@triton.jit
def _fast_tanh(x):
    # relative error 2^-11: the result is rounded to 16 bits further on
    return tl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )
"""
    ),
    "_sigmoid": Helper(
        """
@triton.jit
def _sigmoid(x):
    # four instructions: an ordinary quotient cares for divisors of sizes that 1 + exp(-x) never has
    return tl.inline_asm_elementwise(
        "{ .reg .f32 t; mul.f32 t, $1, 0fBFB8AA3B; ex2.approx.ftz.f32 t, t; add.f32 t, t, 0f3F800000; rcp.approx.ftz.f32 $0, t; }",
        "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )
"""
    ),
    "_floordiv": Helper(
        """
@triton.jit
def _floordiv(a, b):
    # towards minus infinity; `//` on tensors truncates
    q = a // b
    return tl.where((q * b != a) & ((a < 0) != (b < 0)), q - 1, q)
"""
    ),
    "_mod": Helper(
        """
@triton.jit
def _mod(a, b):
    # has the sign of the divisor; `%` on tensors has the dividend's
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)
"""
    ),
}

# Comparisons of integers that may choose an element themselves: (condition code, type) in PTX. "within" is unsigned.
_CHOICES = {
    **{(op, DType.I32): (op, "s32") for op in ("lt", "le", "gt", "ge", "eq", "ne")},
    **{(op, DType.I64): (op, "s64") for op in ("lt", "le", "gt", "ge", "eq", "ne")},
    ("within", DType.I32): ("le", "u32"),
}


def choice_helper(op: str, dtype: DType) -> str | None:
    """The helper (a, b, x, y) that is x where a comparison of a and b holds and y elsewhere; None where there is none.

    x and y are f32. The conditions of a whole tile would otherwise be computed while its product runs, and wait for it packed in
    registers: two instructions more for an element and condition, seen in the machine code for sm_90.
    """
    return f"_where_{'_'.join(_CHOICES[op, dtype])}" if (op, dtype) in _CHOICES else None


def _choice(code: str, kind: str) -> Helper:
    register = "l" if kind == "s64" else "r"
    return Helper(
        f"""
@triton.jit
def _where_{code}_{kind}(a, b, x, y):
    # compares when x is there, not before: the conditions of a tile would take registers
    return tl.inline_asm_elementwise(
        "{{ .reg .pred p; setp.{code}.{kind} p, $2, $3; selp.f32 $0, $1, $4, p; }}",
        "=f,f,{register},{register},f", [x, a, b, y], dtype=tl.float32, is_pure=True, pack=1
    )
"""
    )


HELPERS |= {f"_where_{code}_{kind}": _choice(code, kind) for code, kind in _CHOICES.values()}

_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "rescale": "*",
    "div": "/",
    "quotient": "//",
    "remainder": "%",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "eq": "==",
    "ne": "!=",
    "and": "&",
    "or": "|",
    "xor": "^",
    "shl": "<<",
    "shr": ">>",
}
_DIRECT = {
    "abs": "tl.abs",
    "exp": "tl.exp",
    "exp2": "tl.exp2",
    "log": "tl.log",
    "log2": "tl.log2",
    "sqrt": "tl.sqrt",
    "rsqrt": "tl.rsqrt",
    "sin": "tl.sin",
    "cos": "tl.cos",
    "erf": "tl.erf",
    "sigmoid": "tl.sigmoid",
    "floor": "tl.floor",
    "ceil": "tl.ceil",
}
_LIBDEVICE = {
    "tanh": "tanh",
    "expm1": "expm1",
    "log1p": "log1p",
    "tan": "tan",
    "sinh": "sinh",
    "cosh": "cosh",
    "asin": "asin",
    "acos": "acos",
    "atan": "atan",
    "asinh": "asinh",
    "acosh": "acosh",
    "atanh": "atanh",
    "erfc": "erfc",
    "round": "nearbyint",
    "trunc": "trunc",
}
# What stands for libdevice in Triton's interpreter, which has none; right to rounding for ordinary arguments.
_INTERPRETED = {
    "tanh": "(2.0 * tl.sigmoid(2.0 * {0}) - 1.0)",
    "expm1": "(tl.exp({0}) - 1.0)",
    "log1p": "tl.log(1.0 + {0})",
    "tan": "(tl.sin({0}) / tl.cos({0}))",
    "sinh": "(0.5 * (tl.exp({0}) - tl.exp(-{0})))",
    "cosh": "(0.5 * (tl.exp({0}) + tl.exp(-{0})))",
    "erfc": "(1.0 - tl.erf({0}))",
    "round": "tl.floor({0} + 0.5)",
    "trunc": "tl.where({0} < 0, tl.ceil({0}), tl.floor({0}))",
}


def literal_text(value: bool | int | float) -> str:
    """A Python literal."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def compute_text(
    op: Compute,
    args: Sequence[str],
    dtypes: Sequence[DType],
    target: Literal["cuda", "hip", "interpret"],
) -> tuple[str, set[str]]:
    """(expression, helpers it calls) for an elementwise operation on argument texts."""
    name, dtype = op.op, op.result.dtype
    if name in _INFIX:
        return f"{args[0]} {_INFIX[name]} {args[1]}", set()
    if name == "within":  # as unsigned numbers, negative ones are the largest
        return f"{args[0]}.to(tl.uint32) <= {args[1]}", set()
    if name == "sigmoid" and target == "cuda" and dtype is DType.F32 and op.result.axes:
        return f"_sigmoid({stripped(args[0])})", {"_sigmoid"}
    if name in _DIRECT:
        return f"{_DIRECT[name]}({', '.join(map(stripped, args))})", set()
    if name == "tanh" and op.fast and target == "cuda" and dtype is DType.F32:
        return f"_fast_tanh({stripped(args[0])})", {"_fast_tanh"}
    if name in _LIBDEVICE:
        if target != "interpret":
            return f"libdevice.{_LIBDEVICE[name]}({stripped(args[0])})", set()
        if name in _INTERPRETED:
            return _INTERPRETED[name].format(args[0]), set()
    if name in _TEMPLATES:
        bare = [stripped(a) for a in args] if "(" in _TEMPLATES[name] else args
        return _TEMPLATES[name].format(*bare), set()
    if dtype.is_float:
        return _float_text(name, args, dtype, dtypes[0], target), set()
    return _integer_text(name, args, dtype)


_TEMPLATES = {
    "fma": "{0} * {1} + {2}",
    "neg": "-{0}",
    "not": "~{0}",
    "isnan": "{0} != {0}",
    "isinf": 'tl.abs({0}) == float("inf")',
    "reciprocal": "1.0 / {0}",
    "select": "tl.where({0}, {1}, {2})",
}
_EXTREMA = {
    "max": "tl.maximum",
    "maxnum": "tl.maximum",
    "min": "tl.minimum",
    "minnum": "tl.minimum",
}


def _float_text(name: str, args: Sequence[str], dtype: DType, source: DType, target: str) -> str:
    """Operators whose spelling for floats is their own."""
    match name:
        case "cast" if dtype is DType.BF16 and not source.is_float:
            return f"{args[0]}.to(tl.float32).to(tl.bfloat16)"
        case "cast":
            return f"{args[0]}.to({TYPES[dtype]})"
        case "sign":
            return f"tl.where({args[0]} != {args[0]}, {args[0]}, {_sign(args[0], dtype)})"
        case "max" | "min":
            return (
                f"{_EXTREMA[name]}({stripped(args[0])}, {stripped(args[1])}, propagate_nan={NAN})"
            )
        case "maxnum" | "minnum":
            return f"{_EXTREMA[name]}({stripped(args[0])}, {stripped(args[1])})"
        case "floordiv":
            return f"tl.floor({args[0]} / {args[1]})"
        case "mod":
            return f"{args[0]} - tl.floor({args[0]} / {args[1]}) * {args[1]}"
        case "pow" if target != "interpret":
            return f"libdevice.pow({stripped(args[0])}, {stripped(args[1])})"
        case "pow":
            return f"tl.exp2({args[1]} * tl.log2({stripped(args[0])}))"
        case _:
            raise _unspelled(name, dtype)


def _integer_text(name: str, args: Sequence[str], dtype: DType) -> tuple[str, set[str]]:
    """Operators whose spelling for ints and bools is their own."""
    match name:
        case "cast":
            return f"{args[0]}.to({TYPES[dtype]})", set()
        case "sign":
            return _sign(args[0], dtype), set()
        case "max" | "min" | "maxnum" | "minnum":
            return f"{_EXTREMA[name]}({stripped(args[0])}, {stripped(args[1])})", set()
        case "floordiv" | "mod":
            return f"_{name}({stripped(args[0])}, {stripped(args[1])})", {f"_{name}"}
        case _:
            raise _unspelled(name, dtype)


def _sign(x: str, dtype: DType) -> str:
    return f"({x} > 0).to({TYPES[dtype]}) - ({x} < 0).to({TYPES[dtype]})"


def _unspelled(name: str, dtype: DType) -> CompileError:
    return CompileError(f"'{name}' on '{dtype.value}' has no spelling in Triton.")


def fold_text(
    monoid: Monoid, x: str, dtype: DType, axis: int, nan: bool, rank: int
) -> tuple[str, set[str]]:
    """(expression, helpers) for a reduction along an axis."""
    x = stripped(x)
    propagate = nan and dtype.is_float
    if monoid is SUM:
        return f"tl.sum({x}, {axis})", set()
    if monoid is MAX:
        if propagate:
            return f"tl.reduce({x}, {axis}, _max_nan)", {"_max_nan"}
        return f"tl.max({x}, {axis})", set()
    if monoid is MIN:
        if propagate:
            return f"tl.reduce({x}, {axis}, _min_nan)", {"_min_nan"}
        return f"tl.min({x}, {axis})", set()
    if monoid is PROD:
        return f"tl.reduce({x}, {axis}, _product)", {"_product"}
    if monoid is ANY:
        return f"(tl.max(({x}).to(tl.int32), {axis}) != 0)", set()
    if monoid is ALL:
        return f"(tl.min(({x}).to(tl.int32), {axis}) != 0)", set()
    if monoid in (ARGMAX, ARGMIN):
        helper = f"_{monoid.name}"
        return f"{helper}({x}, {axis})", {helper}
    msg = f"'{monoid}' has no spelling in Triton."
    raise CompileError(msg)
