"""How one operation on scalars or vectors is spelled in C++ (with the functions of cpp_preamble.h)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flashlight.codegen.blocks import Fold
from flashlight.errors import CompileError
from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import Binary, Const, Expr, Size

MEMORY_TYPES = {
    DType.BOOL: "bool",
    DType.U8: "u8",
    DType.I8: "i8",
    DType.I16: "i16",
    DType.I32: "i32",
    DType.I64: "i64",
    DType.F16: "f16",
    DType.BF16: "bf16",
    DType.F32: "f32",
    DType.F64: "f64",
}
_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "shl": "<<", "shr": ">>"}
_COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_LOGIC = {"and": "&", "or": "|", "xor": "^"}
_SAME_ON_INTS = ("floor", "ceil", "round", "trunc", "anchor")
_NARROW = {DType.I8: "wrap_i8", DType.U8: "wrap_u8", DType.I16: "wrap_i16"}
_LOWEST = {DType.I64: "(-9223372036854775807ll - 1)"}
_HIGHEST = {DType.I64: "9223372036854775807ll"}


def identifier(name: str) -> str:
    """`name` as part of a C++ identifier."""
    return "".join(c if c.isalnum() and c.isascii() else "_" for c in name)


def compute_type(dtype: DType) -> str:
    """The C++ type of a scalar in registers: 16-bit floats are f32, narrow integers i32."""
    match dtype:
        case DType.BOOL:
            return "bool"
        case DType.F16 | DType.BF16 | DType.F32:
            return "f32"
        case DType.F64:
            return "f64"
        case DType.I64:
            return "i64"
        case _:
            return "i32"


def tile_type(dtype: DType) -> str:
    """The C++ type of an element of a tile; bools are masks (0 or -1)."""
    return "i32" if dtype is DType.BOOL else compute_type(dtype)


def vector_type(dtype: DType) -> str:
    """The C++ type of a vector of values."""
    return f"v{tile_type(dtype)}"


def literal(value: bool | int | float, dtype: DType) -> str:
    """A scalar constant."""
    ctype = compute_type(dtype)
    if ctype == "bool":
        return "true" if value else "false"
    if ctype in ("i32", "i64"):
        number = int(value)
        if ctype == "i64":
            return _LOWEST[dtype] if number == -(2**63) else f"{number}ll"
        return f"i32({number}ll)"
    number_f = float(value)
    suffix = "f" if ctype == "f32" else ""
    if math.isnan(number_f):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(number_f) or (ctype == "f32" and abs(number_f) > 3.4028235677973366e38):
        return ("-" if number_f < 0 else "") + f"__builtin_inf{suffix}()"
    text = repr(number_f)
    if "e" not in text and "." not in text:
        text += ".0"
    return f"({text}{suffix})" if text.startswith("-") else text + suffix


def compute(op: str, args: Sequence[str], source: DType, result: DType, *, rounds: bool) -> str:
    """`op` on operands of type `source`; operands are all vectors or all scalars. `rounds`: a cast to 16 bits must show."""
    match op, tuple(args):
        case "cast", (x,):
            return _cast(x, source, result, rounds=rounds)
        case "select", (c, a, b):
            return f"select({c}, {a}, {b})"
        case "fma", (a, b, c):
            if _is_zero(a) or _is_zero(b):
                return f"({_binary('mul', a, b, source, result)} + {c})"
            return _wrapped(f"fma3({a}, {b}, {c})", result)
        case _, (a, b):
            return _binary(op, a, b, source, result)
        case _, (x,):
            return _wrapped(_unary(op, x, source), result)
    raise CompileError(f"No C++ for '{op}' with {len(args)} operands.")


def _is_zero(operand: str) -> bool:
    """Whether an operand is a literal 0 of a float type."""
    return operand.removeprefix("spread(").rstrip(")") in ("0.0f", "-0.0f", "0.0", "-0.0")


def _binary(op: str, a: str, b: str, source: DType, result: DType) -> str:
    if source is DType.BOOL:
        return _binary_bool(op, a, b)
    if op in _COMPARE:
        return f"mask({a} {_COMPARE[op]} {b})"
    if op == "mul" and result.is_float and (_is_zero(a) or _is_zero(b)):
        return f"times_zero({b if _is_zero(a) else a})"
    if op in _INFIX:
        return _wrapped(f"({a} {_INFIX[op]} {b})", result)
    if op in _LOGIC:
        return f"({a} {_LOGIC[op]} {b})"
    if op in ("min", "max"):
        return f"{op}_{'nan' if source.is_float else 'any'}({a}, {b})"
    if op in ("minnum", "maxnum"):
        return f"{op[:3]}_any({a}, {b})"
    if op in ("floordiv", "mod"):
        return f"{op}({a}, {b})"
    if op in ("quotient", "remainder"):
        return f"{op}({a}, {b})"
    if op == "pow":
        return _wrapped(f"power({a}, {b})", result)
    raise CompileError(f"No C++ for '{op}'.")


def _binary_bool(op: str, a: str, b: str) -> str:
    match op:
        case "and" | "mul" | "min":
            return f"both({a}, {b})"
        case "or" | "add" | "max":
            return f"either({a}, {b})"
        case "xor" | "ne" | "sub":
            return f"({a} ^ {b})"
        case "eq":
            return f"negate({a} ^ {b})"
        case "lt":
            return f"both(negate({a}), {b})"
        case "le":
            return f"either(negate({a}), {b})"
        case "gt":
            return f"both({a}, negate({b}))"
        case "ge":
            return f"either({a}, negate({b}))"
    raise CompileError(f"No C++ for '{op}' on bools.")


def _unary(op: str, x: str, source: DType) -> str:
    if op == "not":
        return f"negate({x})" if source is DType.BOOL else f"(~{x})"
    if op == "neg":
        return f"(-{x})"
    if not source.is_float:
        if op in _SAME_ON_INTS or source is DType.BOOL:
            return x
        if op in ("isnan", "isinf"):
            return f"mask({x} != {x})"
        if op not in ("abs", "sign"):
            raise CompileError(f"No C++ for '{op}' on {source.value}.")
    match op:
        case "isnan":
            return f"is_nan({x})"
        case "isinf":
            return f"is_inf({x})"
        case "anchor":
            return f"anchor({x})"
        case _:
            return f"m_{op}({x})"


def _cast(x: str, source: DType, result: DType, *, rounds: bool) -> str:
    if result is DType.BOOL:
        return x if source is DType.BOOL else f"is_set({x})"
    ctype = compute_type(result)
    if source is DType.BOOL:
        return f"from_bool<{ctype}>({x})"
    text = x if compute_type(source) == ctype else f"to<{ctype}>({x})"
    if result in (DType.F16, DType.BF16) and rounds and source is not result:
        return f"round_{result.value}({text})"
    return _wrapped(text, result) if source is not result else text


def _wrapped(text: str, dtype: DType) -> str:
    """Arithmetic of narrow integers, done in i32, brought back into range."""
    return f"{_NARROW[dtype]}({text})" if dtype in _NARROW else text


def fold_function(op: Fold) -> str:
    """The binary function that combines two values of the fold."""
    dtype = op.x.dtype
    match op.monoid.name:
        case "sum":
            return "either" if dtype is DType.BOOL else "plus"
        case "prod":
            return "both" if dtype is DType.BOOL else "times"
        case "any":
            return "either"
        case "all":
            return "both"
        case "max" | "argmax" if dtype is DType.BOOL:
            return "either"
        case "min" | "argmin" if dtype is DType.BOOL:
            return "both"
        case name:
            return f"{name[-3:]}_{'nan' if op.nan and dtype.is_float else 'any'}"


def fold_identity(op: Fold) -> str:
    """What an empty fold yields (of its values), as a scalar."""
    dtype = op.x.dtype
    match op.monoid.name:
        case "sum":
            return literal(0, dtype)
        case "prod":
            return literal(1, dtype)
        case "any":
            return "false"
        case "all":
            return "true"
        case name:
            highest = name.endswith("min")
            if dtype is DType.BOOL:
                return "true" if highest else "false"
            if dtype.is_float:
                return literal(math.inf if highest else -math.inf, dtype)
            bits = 64 if dtype is DType.I64 else 32
            return literal(2 ** (bits - 1) - 1 if highest else -(2 ** (bits - 1)), dtype)


def extent(expr: Expr) -> str:
    """An integer expression over sizes, as i64."""
    match expr:
        case Const(value, _):
            return f"{int(value)}ll"
        case Size(name):
            return f"size_{identifier(name)}"
        case Binary(op, a, b):
            x, y = extent(a), extent(b)
            match op:
                case "add" | "sub" | "mul":
                    return f"({x} {_INFIX[op]} {y})"
                case "floordiv" | "mod":
                    return f"{op}({x}, {y})"
                case "min":
                    return f"least({x}, {y})"
                case "max":
                    return f"most({x}, {y})"
    raise CompileError(f"'{expr}' is no extent.")
