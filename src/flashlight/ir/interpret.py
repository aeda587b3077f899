"""What a program means, slowly, in numpy: the oracle of every pass.

An expression's value is an array with one axis for each dim of its statement (size 1 where it does not depend on the dim), so
that all operators are broadcasting. Loops are ordinary reductions, in order of dependence, that read finals; `moves` claims are
not looked at (`ir.execute` follows them).

A sum of floats, a product too, is carried in f64 and rounded once to its type, and the factors of a dot are multiplied without
rounding: its order, which depends on the layout, must not be seen. At scores of 60000 one bit is a weight of 0.4 %. Nor must it be
seen how far numpy's functions of f32 are off, which depends on the machine: operators are computed in f64 too, and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias, assert_never

import numpy as np
import numpy.typing as npt

from flashlight.ir.dtypes import DType, promote
from flashlight.ir.exprs import (
    COMPARISONS,
    LOGICAL,
    Binary,
    Buffer,
    Cast,
    Const,
    Dim,
    Expr,
    Index,
    Load,
    Reduce,
    Select,
    Size,
    Unary,
    dtype_of,
)
from flashlight.ir.monoids import Monoid
from flashlight.ir.nests import Carry, Give, Loop, Nest, Program
from flashlight.ir.printer import statement_dims
from flashlight.ir.visit import children, reads, walk

Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True)
class Arithmetic:
    """How floats are computed.

    Attributes:
        single: numpy type in which f16, bf16 and f32 are computed, to which each sum and operator is rounded; f64 is always f64.
        rounds: whether casts, constants and results are rounded to their type. Without it float casts do nothing.
    """

    single: type[np.floating[Any]]
    rounds: bool

    def numpy_type(self, dtype: DType) -> type[np.generic]:
        if dtype.is_float:
            return np.float64 if dtype is DType.F64 else self.single
        return _NUMPY[dtype]


EXACT = Arithmetic(np.float64, rounds=False)
EAGER = Arithmetic(np.float32, rounds=True)
SINGLE = Arithmetic(np.float32, rounds=False)

_NUMPY: dict[DType, type[np.generic]] = {
    DType.BOOL: np.bool_,
    DType.U8: np.uint8,
    DType.I8: np.int8,
    DType.I16: np.int16,
    DType.I32: np.int32,
    DType.I64: np.int64,
}


def interpret(
    program: Program,
    inputs: Mapping[str, Array],
    exact: bool = True,
    *,
    sizes: Mapping[str, int] | None = None,
) -> dict[str, Array]:
    """The program's outputs, by name.

    Args:
        program: any valid program, of nests, loops or both.
        inputs: an array for each input, of any numpy type; 16-bit floats as f32 or f64 values.
        exact: True computes in f64 and ignores float casts (but those of constants, which say what a constant is); False rounds
            as eager does: arithmetic in f32, every sum, cast and result rounded to its type, bf16 results as f32 arrays.
        sizes: values of symbolic sizes; those that are missing follow from the shapes of the inputs.
    """
    arrays = evaluate(program, inputs, EXACT if exact else EAGER, sizes=sizes)
    return {name: arrays[name] for name in program.outputs}


def evaluate(
    program: Program,
    inputs: Mapping[str, Array],
    arithmetic: Arithmetic = EXACT,
    *,
    sizes: Mapping[str, int] | None = None,
) -> dict[str, Array]:
    """Every array of the program, by name: inputs as they are read, and results of nests, carries and gives."""
    known = infer_sizes(program, inputs, sizes)
    arrays = prepare_inputs(program, inputs, arithmetic)
    with np.errstate(all="ignore"):
        for statement in program.statements:
            frame = tuple(statement_dims(statement))
            evaluator = Evaluator(frame, arrays, known, arithmetic)
            match statement:
                case Nest():
                    arrays[statement.name] = evaluator.nest(statement)
                case Loop():
                    for result in in_order(statement):
                        value = (
                            evaluator.carry(result, statement.loop)
                            if isinstance(result, Carry)
                            else evaluator.give(result)
                        )
                        arrays[result.name] = value
                case _:
                    assert_never(statement)
    return arrays


def value_of(
    expr: Expr,
    dims: Sequence[Dim] = (),
    arrays: Mapping[str, Array] | None = None,
    sizes: Mapping[str, int] | None = None,
    exact: bool = True,
) -> Array:
    """The values of one expression over `dims`, which are the axes of the result."""
    bound = (d for node in walk(expr) if isinstance(node, Reduce) for d in node.dims)
    frame = tuple(dict.fromkeys((*dims, *bound)))
    evaluator = Evaluator(frame, dict(arrays or {}), sizes or {}, EXACT if exact else EAGER)
    with np.errstate(all="ignore"):
        return evaluator.over(evaluator.value(expr), dims)


def infer_sizes(
    program: Program, inputs: Mapping[str, Array], sizes: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Values of the symbolic sizes, from the shapes of the inputs. Raises ValueError where shapes do not fit."""
    known = dict(sizes or {})
    wanted: list[tuple[Buffer, Expr, int]] = []
    for buffer in program.inputs:
        if buffer.name not in inputs:
            raise ValueError(f"Input '{buffer.name}' is missing.")
        shape = np.shape(inputs[buffer.name])
        if len(shape) != len(buffer.shape):
            raise ValueError(f"Input '{buffer.name}' has shape {shape}, expected {buffer!r}.")
        wanted.extend((buffer, e, n) for e, n in zip(buffer.shape, shape, strict=True))
    for _, expr, n in wanted:
        if isinstance(expr, Size):
            known.setdefault(expr.name, n)
    for _, expr, n in wanted:
        unknown = {s.name for s in walk(expr) if isinstance(s, Size)} - known.keys()
        if len(unknown) == 1:
            name = unknown.pop()
            found = [m for m in range(4 * n + 65) if integer(expr, {**known, name: m}) == n]
            if found:
                known[name] = found[0]
    for size in program.sizes:
        if size.name not in known:
            raise ValueError(f"Size '{size.name}' does not follow from the inputs.")
    for buffer, expr, n in wanted:
        if integer(expr, known) != n:
            shape = np.shape(inputs[buffer.name])
            raise ValueError(f"Input '{buffer.name}' has shape {shape}, expected {buffer!r}.")
    return known


def prepare_inputs(
    program: Program, inputs: Mapping[str, Array], arithmetic: Arithmetic
) -> dict[str, Array]:
    """The inputs in the types they are computed in."""
    with np.errstate(all="ignore"):
        return {b.name: convert(inputs[b.name], b.dtype, arithmetic) for b in program.inputs}


def integer(expr: Expr, sizes: Mapping[str, int]) -> int:
    """The value of an extent."""
    match expr:
        case Const(value, _):
            return int(value)
        case Size(name):
            return sizes[name]
        case _:
            with np.errstate(all="ignore"):
                return int(Evaluator((), {}, sizes, EXACT).value(expr))


def in_order(loop: Loop) -> list[Carry | Give]:
    """Carries and gives of a loop such that each comes after those of the loop that it reads."""
    results: dict[str, Carry | Give] = {}
    for part in loop.passes:
        results.update((c.name, c) for c in part.carries)
        results.update((g.name, g) for g in part.gives)
    ordered: dict[str, Carry | Give] = {}
    opened: set[str] = set()

    def visit(name: str) -> None:
        if name in opened:
            return
        opened.add(name)
        result = results[name]
        body = result.body if isinstance(result, Carry) else result.expr
        for other in sorted(reads(body) & results.keys()):
            visit(other)
        ordered[name] = result

    for name in results:
        visit(name)
    return list(ordered.values())


class Evaluator:
    """Values of the expressions of one statement, over all positions of its dims or a box of them."""

    def __init__(
        self,
        frame: Sequence[Dim],
        arrays: Mapping[str, Array],
        sizes: Mapping[str, int],
        arithmetic: Arithmetic,
        ranges: Mapping[Dim, tuple[int, int]] | None = None,
    ) -> None:
        """`frame` are the axes of values; `arrays` may gain entries meanwhile; `ranges` narrow some dims to start and stop."""
        self.arrays = arrays
        self._sizes = sizes
        self._arithmetic = arithmetic
        self._axis = {dim: i for i, dim in enumerate(frame)}
        self._ranges = {d: (0, integer(d.extent, sizes)) for d in frame} | dict(ranges or {})
        self._rank = len(frame)
        self._memo: dict[Expr, Array] = {}
        self._constant: set[Expr] = set()

    # -- Results

    def nest(self, nest: Nest) -> Array:
        value = (
            self.value(nest.body)
            if nest.monoid is None
            else self.reduced(nest.monoid, nest.reduced, nest.body)
        )
        return convert(self.over(value, nest.parallel), nest.dtype, self._arithmetic)

    def carry(self, carry: Carry, loop: Sequence[Dim]) -> Array:
        value = self.reduced(carry.monoid, loop, carry.body)
        return convert(self.over(value, carry.dims), carry.dtype, self._arithmetic)

    def give(self, give: Give) -> Array:
        return convert(self.over(self.value(give.expr), give.dims), give.dtype, self._arithmetic)

    def over(self, value: Array, dims: Sequence[Dim]) -> Array:
        """A value with `dims` as its axes, from one in the frame."""
        shape = list(value.shape)
        for dim in dims:
            shape[self._axis[dim]] = self._length(dim)
        axes = [self._axis[d] for d in dims]
        rest = [i for i in range(self._rank) if i not in set(axes)]
        full = np.broadcast_to(value, shape).transpose(*axes, *rest)
        return np.ascontiguousarray(full).reshape([self._length(d) for d in dims])

    def forget(self, name: str) -> None:
        """Drop what was computed from an array that has changed."""
        for node in [n for n in self._memo if name in _reads(n)]:
            del self._memo[node]

    # -- Expressions

    def value(self, root: Expr) -> Array:
        """The value of an expression in the frame."""
        memo = self._memo
        stack = [root]
        while stack:
            node = stack[-1]
            if node in memo:
                stack.pop()
                continue
            missing = [c for c in self._operands(node) if c not in memo]
            if missing:
                stack.extend(missing)
                continue
            memo[node] = self._compute(node)
            stack.pop()
        return memo[root]

    def reduced(self, monoid: Monoid, dims: Sequence[Dim], body: Expr) -> Array:
        """The reduction of `body` over `dims`, which keep size 1."""
        dtype = dtype_of(Reduce(monoid, tuple(dims), body))
        kind = self._arithmetic.numpy_type(dtype)
        if not _is_dot(monoid, body):
            return self._fold(monoid, dims, self.value(body), dtype).astype(kind)
        assert isinstance(body, Binary)
        a, b = (self._as(x, dtype).astype(np.float64, copy=False) for x in (body.a, body.b))
        total = self._dot(dims, a, b)
        if total is None:
            total = self._fold(monoid, dims, a * b, dtype)
        return total.astype(kind)

    def _length(self, dim: Dim) -> int:
        start, stop = self._ranges[dim]
        return stop - start

    def _operands(self, node: Expr) -> tuple[Expr, ...]:
        """What has to be known before `node` is computed."""
        match node:
            case Reduce(monoid, _, body) if _is_dot(monoid, body):
                return children(body)
            case Load(_, index) if self._plain(node) is not None:
                return tuple(i for i in index if not isinstance(i, Index | Const))
            case _:
                return children(node)

    def _compute(self, node: Expr) -> Array:
        match node:
            case Const(value, dtype):
                self._constant.add(node)
                array = np.asarray(value, self._arithmetic.numpy_type(dtype))
                if self._arithmetic.rounds:
                    array = convert(array, dtype, self._arithmetic)
                return array.reshape((1,) * self._rank)
            case Size(name):
                return np.full((1,) * self._rank, self._sizes[name], np.int64)
            case Index(dim):
                return self._along(dim)
            case Load():
                return self._load(node)
            case Unary(op, x):
                self._mark(node, x)
                return rounded_once(_UNARY[op], self._as(x, _operand_type(node)))
            case Binary(op, a, b):
                self._mark(node, a, b)
                dtype = _operand_type(node)
                return rounded_once(_BINARY[op], self._as(a, dtype), self._as(b, dtype))
            case Select(c, a, b):
                self._mark(node, c, a, b)
                dtype = dtype_of(node)
                condition = self._as(c, DType.BOOL)
                return np.where(condition, self._as(a, dtype), self._as(b, dtype))
            case Cast(x, dtype):
                self._mark(node, x)
                exactly = Arithmetic(self._arithmetic.single, rounds=True)
                return convert(
                    self.value(x), dtype, exactly if node in self._constant else self._arithmetic
                )
            case Reduce(monoid, dims, body):
                return self.reduced(monoid, dims, body)
            case _:
                assert_never(node)

    def _mark(self, node: Expr, *parts: Expr) -> None:
        if all(part in self._constant for part in parts):
            self._constant.add(node)

    def _as(self, expr: Expr, dtype: DType) -> Array:
        value = self.value(expr)
        if dtype is DType.BOOL:
            return value if value.dtype == np.bool_ else value != 0
        return value.astype(self._arithmetic.numpy_type(dtype), copy=False)

    def _along(self, dim: Dim) -> Array:
        shape = [1] * self._rank
        shape[self._axis[dim]] = -1
        return np.arange(*self._ranges[dim], dtype=np.int64).reshape(shape)

    # -- Loads

    def _load(self, node: Load) -> Array:
        array = self.arrays[node.buffer.name]
        plain = self._plain(node)
        if plain is not None:
            return self._sliced(array[plain], node.index)
        where = [self.value(i) for i in node.index]
        if 0 in array.shape:
            shape = np.broadcast_shapes((1,) * self._rank, *(w.shape for w in where))
            return np.zeros(shape, array.dtype)
        # out of range only in the branch of a select that is not taken
        clamped = [np.clip(w, 0, n - 1) for w, n in zip(where, array.shape, strict=True)]
        return np.asarray(array[tuple(clamped)])

    def _plain(self, node: Load) -> tuple[slice | int, ...] | None:
        """The slices of a load whose indices are distinct dims and constants, all in range; else None."""
        array = self.arrays[node.buffer.name]
        if array.ndim != len(node.index):
            raise ValueError(f"'{node!r}' reads an array of rank {array.ndim}.")
        slices: list[slice | int] = []
        seen: set[Dim] = set()
        for index, n in zip(node.index, array.shape, strict=True):
            match index:
                case Index(dim):
                    start, stop = self._ranges[dim]
                    if dim in seen or stop > n:
                        return None
                    seen.add(dim)
                    slices.append(slice(start, stop))
                case Const(value, _):
                    if not 0 <= value < n:
                        return None
                    slices.append(int(value))
                case _:
                    return None
        return tuple(slices)

    def _sliced(self, array: Array, index: Sequence[Expr]) -> Array:
        axes = [self._axis[i.dim] for i in index if isinstance(i, Index)]
        shape = [1] * self._rank
        for axis, n in zip(axes, array.shape, strict=True):
            shape[axis] = n
        return np.asarray(array).transpose(np.argsort(axes, kind="stable")).reshape(shape)

    # -- Reductions

    def _fold(self, monoid: Monoid, dims: Sequence[Dim], value: Array, dtype: DType) -> Array:
        axes = tuple(self._axis[d] for d in dims)
        shape = list(value.shape)
        for dim in dims:
            shape[self._axis[dim]] = self._length(dim)
        value = np.broadcast_to(value, shape)
        if monoid.is_position:
            return _position(monoid, axes, value)
        fold = _FOLD[monoid.name]
        if monoid.name in ("sum", "prod"):
            wide = np.float64 if dtype.is_float else np.int64
            return np.asarray(fold(value, axes, dtype=wide, keepdims=True))
        initial = identity(monoid, dtype)
        return np.asarray(fold(value, axes, keepdims=True, initial=initial))

    def _dot(self, dims: Sequence[Dim], a: Array, b: Array) -> Array | None:
        """Sum of a * b as a batched matrix product; None where that is no gain or not what it is."""
        reduced = {self._axis[d] for d in dims}
        if any(1 in (a.shape[i], b.shape[i]) or a.shape[i] != b.shape[i] for i in reduced):
            return None
        full = np.broadcast_shapes(a.shape, b.shape)
        if math.prod(full) < _SMALL:
            return None
        contracted = sorted(reduced)
        kept = [i for i in range(self._rank) if i not in reduced and full[i] > 1]
        batch = [i for i in kept if a.shape[i] > 1 and b.shape[i] > 1]
        left = [i for i in kept if b.shape[i] == 1]
        right = [i for i in kept if a.shape[i] == 1]
        product = np.matmul(
            _matrix(a, batch, left, contracted), _matrix(b, batch, contracted, right)
        )
        order = [*batch, *left, *right]
        product = product.reshape([full[i] for i in order]).transpose(np.argsort(order))
        return np.asarray(product.reshape([1 if i in reduced else n for i, n in enumerate(full)]))


_FOLD: dict[str, Callable[..., Any]] = {
    "sum": np.sum,
    "prod": np.prod,
    "max": np.max,
    "min": np.min,
    "any": np.logical_or.reduce,
    "all": np.logical_and.reduce,
}
_SMALL = 4096  # elements of a product below which it is formed


def _is_dot(monoid: Monoid, body: Expr) -> bool:
    return (
        monoid.name == "sum"
        and isinstance(body, Binary)
        and body.op == "mul"
        and dtype_of(body).is_float
    )


def _matrix(x: Array, batch: list[int], rows: list[int], columns: list[int]) -> Array:
    """`x` as batch axes, one axis for rows and one for columns."""
    order = [*batch, *rows, *columns]
    ones = [i for i in range(x.ndim) if i not in set(order)]
    count = math.prod(x.shape[i] for i in rows), math.prod(x.shape[i] for i in columns)
    return x.transpose(*order, *ones).reshape(*(x.shape[i] for i in batch), *count)


def _position(monoid: Monoid, axes: tuple[int, ...], value: Array) -> Array:
    """Row-major position of the winner; the first on ties, and a NaN wins."""
    rest = [i for i in range(value.ndim) if i not in set(axes)]
    kept = [1 if i in set(axes) else n for i, n in enumerate(value.shape)]
    flat = value.transpose(*rest, *axes).reshape([value.shape[i] for i in rest] + [-1])
    if flat.shape[-1] == 0:
        return np.zeros(kept, np.int64)
    find = np.argmax if monoid.name == "argmax" else np.argmin
    return np.asarray(find(flat, axis=-1)).astype(np.int64).reshape(kept)


def identity(monoid: Monoid, dtype: DType) -> Any:
    """The value of an empty reduction in a type: the least i64 for the maximum of none."""
    if dtype.is_float or not math.isinf(monoid.identity):
        return monoid.identity
    if dtype is DType.BOOL:
        return monoid.identity > 0
    limits = np.iinfo(np.dtype(_NUMPY[dtype]))
    return limits.max if monoid.identity > 0 else limits.min


def _operand_type(node: Unary | Binary) -> DType:
    """The type the operands of an operator are converted to."""
    match node:
        case Unary(op, x):
            return dtype_of(x).compute if op in ("isnan", "isinf") else dtype_of(node)
        case Binary(op, a, b) if op in COMPARISONS or op in LOGICAL:
            return promote(dtype_of(a), dtype_of(b))
        case Binary():
            return dtype_of(node)
        case _:
            assert_never(node)


@lru_cache(maxsize=20_000)
def _reads(node: Expr) -> frozenset[str]:
    return reads(node)


# -- Conversions


def convert(x: Array, dtype: DType, arithmetic: Arithmetic) -> Array:
    """A value in another type: as a cast does, rounded if `arithmetic` rounds."""
    x = np.asarray(x)
    kind = arithmetic.numpy_type(dtype)
    if dtype is DType.BOOL:
        return x if x.dtype == np.bool_ else x != 0
    if arithmetic.rounds and dtype.is_float:
        return round_to(x, dtype).astype(kind)
    return x.astype(kind, copy=False)


@np.errstate(all="ignore")
def round_to(x: Array, dtype: DType) -> Array:
    """The nearest values of a float type, ties to even; bf16 in an f32 array."""
    match dtype:
        case DType.BF16:
            single = np.ascontiguousarray(x, np.float32)
            bits = single.view(np.uint32)
            half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
            rounded = ((bits + half) & np.uint32(0xFFFF0000)).view(np.float32)
            return np.where(np.isfinite(single), rounded, single).reshape(np.shape(x))
        case DType.F16:
            return x.astype(np.float16).astype(np.float32)
        case DType.F32:
            return x.astype(np.float32)
        case _:
            return x.astype(np.float64)


# -- Operators


def rounded_once(op: Callable[..., Array], *operands: Array) -> Array:
    """The result of an operator on arrays of one type, computed in f64 where that is f32.

    Of +, -, *, / and sqrt these are the bits of f32 arithmetic.
    """
    if operands[0].dtype != np.float32:
        return op(*operands)
    result = op(*(x.astype(np.float64) for x in operands))
    return result.astype(np.float32) if result.dtype == np.float64 else result


def _sign(x: Array) -> Array:
    return np.where(x != x, 0, np.sign(x)).astype(x.dtype, copy=False)  # torch: 0 for NaN


def _round_int_or(fn: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda x: fn(x) if x.dtype.kind == "f" else x


def _elementwise(fn: Callable[[float], float]) -> Callable[[Array], Array]:
    slow = np.frompyfunc(fn, 1, 1)
    return lambda x: np.asarray(slow(x)).astype(x.dtype)


def _anchor(x: Array) -> Array:
    return np.where(np.isfinite(x), x, np.zeros((), x.dtype))


def _power(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.asarray(np.power(a, b))
    positive = np.power(a, np.maximum(b, 0))
    inverse = np.where(a == 1, 1, np.where(a == -1, np.where(b % 2 == 0, 1, -1), 0))
    return np.where(b < 0, inverse, positive).astype(a.dtype)


def _logical(ufunc: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    def apply(a: Array, b: Array) -> Array:
        return ufunc(a != 0, b != 0) if a.dtype.kind == "f" else ufunc(a, b)

    return apply


def _subtract(a: Array, b: Array) -> Array:
    return np.asarray(a ^ b if a.dtype == np.bool_ else a - b)


_UNARY: dict[str, Callable[[Array], Array]] = {
    "neg": np.negative,
    "abs": np.abs,
    "sign": _sign,
    "not": np.invert,
    "anchor": _anchor,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "tanh": np.tanh,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "erf": _elementwise(math.erf),
    "erfc": _elementwise(math.erfc),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "floor": _round_int_or(np.floor),
    "ceil": _round_int_or(np.ceil),
    "round": _round_int_or(np.round),
    "trunc": _round_int_or(np.trunc),
}

_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": _subtract,
    "mul": np.multiply,
    "div": np.divide,
    "floordiv": np.floor_divide,
    "mod": np.mod,
    "pow": _power,
    "min": np.minimum,
    "max": np.maximum,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": _logical(np.bitwise_and),
    "or": _logical(np.bitwise_or),
    "xor": _logical(np.bitwise_xor),
    "shl": np.left_shift,
    "shr": np.right_shift,
}
