"""The interpreter is the oracle, so it is compared with torch, operator by operator and program by program."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import (
    COMPARISONS,
    UNARY,
    Binary,
    Buffer,
    Cast,
    Dim,
    Expr,
    Index,
    Load,
    Reduce,
    Unary,
    const,
)
from flashlight.ir.interpret import (
    EAGER,
    Array,
    Evaluator,
    evaluate,
    infer_sizes,
    interpret,
    round_to,
    value_of,
)
from flashlight.ir.monoids import SUM
from flashlight.ir.text import parse_program

F32, F64, I64, I32 = DType.F32, DType.F64, DType.I64, DType.I32
POINTS = [-math.inf, -2.5, -1.0, -0.5, -0.0, 0.0, 0.3, 0.5, 1.0, 1.5, 2.0, 30.0, math.inf, math.nan]
TORCH_NAMES = {"not": "logical_not"}


def column(values: list[float] | list[int] | list[bool], dtype: DType, name: str) -> Expr:
    return Load(Buffer(name, (const(len(values)),), dtype), (Index(Dim(name, const(len(values)))),))


def run(expr: Expr, **arrays: list[float] | list[int] | list[bool]) -> Array:
    dims = [Dim(name, const(len(values))) for name, values in arrays.items()]
    return value_of(expr, dims, {n: np.array(v) for n, v in arrays.items()})


@pytest.mark.parametrize("op", [o for o in UNARY if o not in ("not", "anchor")])
def test_unary_is_torchs(op: str) -> None:
    got = run(Unary(op, column(POINTS, F64, "x")), x=POINTS)
    expected = getattr(torch, op)(torch.tensor(POINTS, dtype=torch.float64)).numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-13)
    assert got.dtype == expected.dtype


@pytest.mark.parametrize("op", ["neg", "abs", "sign", "not", "floor", "exp", "sqrt", "isnan"])
def test_unary_of_ints(op: str) -> None:
    values = [-3, 0, 2]
    got = run(Unary(op, column(values, I32, "x")), x=np.array(values, np.int32))
    name = "bitwise_not" if op == "not" else op
    expected = getattr(torch, name)(torch.tensor(values, dtype=torch.int32)).numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_anchor() -> None:
    got = run(Unary("anchor", column(POINTS, F64, "x")), x=POINTS)
    np.testing.assert_array_equal(got, np.where(np.isfinite(POINTS), POINTS, 0.0))


BINARY_NAMES = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "div": "div",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "pow",
    "min": "minimum",
    "max": "maximum",
    **{c: c for c in COMPARISONS},
}


@pytest.mark.parametrize("op", BINARY_NAMES)
def test_binary_is_torchs(op: str) -> None:
    expr = Binary(op, column(POINTS, F64, "x"), column(POINTS, F64, "y"))
    got = run(expr, x=POINTS, y=POINTS)
    x = torch.tensor(POINTS, dtype=torch.float64)
    expected = getattr(torch, BINARY_NAMES[op])(x[:, None], x[None, :]).numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-13)
    assert got.dtype == expected.dtype


@pytest.mark.parametrize("op", ["add", "sub", "mul", "floordiv", "mod", "pow", "min", "max", "lt"])
def test_binary_of_ints(op: str) -> None:
    x, y = [-7, -1, 0, 1, 7], [-2, 3, 5]
    expr = Binary(op, column(x, I64, "x"), column(y, I64, "y"))
    got = run(expr, x=x, y=y)
    tensors = torch.tensor(x)[:, None], torch.tensor(y)[None, :]
    expected = getattr(torch, BINARY_NAMES[op])(*tensors).numpy()
    np.testing.assert_array_equal(got, expected)


def test_division_of_ints_is_of_floats() -> None:
    got = run(Binary("div", column([1, 7], I64, "x"), const(2)), x=[1, 7])
    np.testing.assert_array_equal(got, [0.5, 3.5])


@pytest.mark.parametrize("op", ["and", "or", "xor"])
def test_logic(op: str) -> None:
    bits, words = [False, True], [0b1100, 0b1010]
    both = Binary(op, column(bits, DType.BOOL, "x"), column(bits, DType.BOOL, "y"))
    expected = getattr(np, f"logical_{op}")(np.array(bits)[:, None], bits)
    np.testing.assert_array_equal(run(both, x=bits, y=bits), expected)
    both = Binary(op, column(words, I64, "x"), column(words, I64, "y"))
    expected = getattr(np, f"bitwise_{op}")(np.array(words)[:, None], words)
    np.testing.assert_array_equal(run(both, x=words, y=words), expected)


def test_casts() -> None:
    x = column(POINTS, F64, "x")
    finite = [-2.5, -0.5, 0.0, 1.9]
    cast = Cast(column(finite, F64, "x"), I32)
    np.testing.assert_array_equal(run(cast, x=finite), [-2, 0, 0, 1])
    truth = run(Cast(x, DType.BOOL), x=POINTS)
    np.testing.assert_array_equal(truth, np.array(POINTS) != 0)
    wrapped = run(Cast(column([300, -1], I64, "x"), DType.U8), x=[300, -1])
    np.testing.assert_array_equal(wrapped, [44, 255])


@pytest.mark.parametrize(
    ("dtype", "torch_dtype"),
    [(DType.BF16, torch.bfloat16), (DType.F16, torch.float16), (F32, torch.float32)],
)
def test_rounding_is_torchs(dtype: DType, torch_dtype: torch.dtype) -> None:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=4000) * 10.0 ** rng.integers(-45, 38, 4000)).astype(np.float32)
    x[:8] = [np.nan, np.inf, -np.inf, 0.0, -0.0, 3.4e38, 65519.0, 65520.0]
    expected = torch.tensor(x).to(torch_dtype).float().numpy()
    np.testing.assert_array_equal(round_to(x, dtype), expected)


def test_exact_ignores_casts_of_values_but_not_of_constants() -> None:
    x = [0.1]
    value = Cast(column(x, F64, "x"), DType.BF16)
    assert run(value, x=x) == 0.1
    assert value_of(Cast(const(-1e10), DType.F16)) == -math.inf
    assert value_of(Cast(const(0.1), DType.BF16)) == 0.10009765625
    dims, arrays = [Dim("x", const(1))], {"x": np.array(x)}
    assert value_of(value, dims, arrays, exact=False) == 0.10009765625


def test_exact_false_is_eager() -> None:
    """Attention in bf16 with the casts eager makes gives eager's bits, sums aside."""
    program = parse_program(
        """
        program attention
          size S, T
          dim h: 4, q: S, k: T, d: 16, e: 8
          input Q: bf16[4, S, 16]
          input K: bf16[2, T, 16]
          input V: bf16[2, T, 8]
          input id: i64[T]
          nest scores (h, q, k | d) bf16: sum Q[h, q, d] * K[h // 2, k, d]
          nest s (h, q, k) bf16: where((k <= q) & (id[q] == id[k]), scores[h, q, k] * 0.25, -inf)
          nest m (h, q | k) f32: max s[h, q, k]
          nest w (h, q, k) f32: exp(s[h, q, k] - m[h, q])
          nest l (h, q | k) f32: sum w[h, q, k]
          nest p (h, q, k) bf16: w[h, q, k] / l[h, q]
          nest O (h, q, e | k) bf16: sum p[h, q, k] * V[h // 2, k, e]
          output O
        """
    )
    torch.manual_seed(0)
    q, k, v = torch.randn(4, 12, 16), torch.randn(2, 12, 16), torch.randn(2, 12, 8)
    ids = torch.arange(12) // 5
    inputs = {"Q": q.numpy(), "K": k.numpy(), "V": v.numpy(), "id": ids.numpy()}

    def eager(dtype: torch.dtype) -> Array:
        qd, kd, vd = (
            x.to(dtype) for x in (q, k.repeat_interleave(2, 0), v.repeat_interleave(2, 0))
        )
        i = torch.arange(12)
        mask = (i[None, :] <= i[:, None]) & (ids[:, None] == ids[None, :])
        s = torch.where(mask, qd @ kd.mT * 0.25, -torch.inf)
        return (torch.softmax(s, -1) @ vd).double().numpy()

    rounded = interpret(program, inputs, exact=False)["O"]
    np.testing.assert_allclose(rounded, eager(torch.bfloat16), rtol=1e-2, atol=1e-6)
    assert (rounded == eager(torch.bfloat16)).mean() > 0.9
    np.testing.assert_array_equal(rounded, round_to(rounded, DType.BF16))
    exact = interpret(program, inputs)["O"]
    np.testing.assert_allclose(exact, eager(torch.float64), rtol=1e-12)


@pytest.mark.parametrize("body", ["dot", "dot of equals", "sum"])
def test_a_sum_has_the_same_bits_in_every_layout(body: str) -> None:
    """Formed or as a matrix product, all at once or for a few rows, reduced over any axis."""
    q, k, d = (Dim(name, const(n)) for name, n in (("q", 33), ("k", 37), ("d", 16)))
    buffers = Buffer("Q", (q.extent, d.extent), F32), Buffer("K", (d.extent, k.extent), F32)
    a, b = Load(buffers[0], (Index(q), Index(d))), Load(buffers[1], (Index(d), Index(k)))
    terms = {
        "dot": Binary("mul", a, b),
        "dot of equals": Binary("mul", a, a),
        "sum": Binary("add", a, b),
    }
    total = Reduce(SUM, (d,), terms[body])
    rng = np.random.default_rng(0)
    arrays = {"Q": rng.normal(size=(33, 16)) * 60, "K": rng.normal(size=(16, 37)) * 60}
    arrays = {name: x.astype(np.float32) for name, x in arrays.items()}
    whole = value_of(total, (q, k), arrays, exact=False)
    assert whole.dtype == np.float32
    np.testing.assert_array_equal(value_of(total, (k, q), arrays, exact=False).T, whole)
    nests = {axes: Evaluator(axes, arrays, {}, EAGER) for axes in itertools.permutations((q, k, d))}
    for evaluator in nests.values():
        np.testing.assert_array_equal(evaluator.over(evaluator.value(total), (q, k)), whole)
    few = Evaluator((d, q, k), arrays, {}, EAGER, {q: (7, 10)})
    np.testing.assert_array_equal(few.over(few.value(total), (q, k)), whole[7:10])


@pytest.mark.parametrize("op", ["exp", "log", "tanh", "sigmoid", "sqrt", "rsqrt", "sin"])
def test_functions_are_as_good_as_f32_can_be(op: str) -> None:
    """Not what numpy makes of them, which is off by up to 4 units in the last place, on some machines."""
    x = np.linspace(0.01, 3, 1000, dtype=np.float32)
    dim = Dim("x", const(1000))
    value = Unary(op, Load(Buffer("x", (dim.extent,), F32), (Index(dim),)))
    exact = value_of(value, [dim], {"x": x.astype(np.float64)})
    single = value_of(value, [dim], {"x": x}, exact=False)
    np.testing.assert_array_equal(single, exact.astype(np.float32))


def test_loads_are_gathers_slices_and_reversals() -> None:
    program = parse_program(
        """
        program loads
          size S
          dim q: S, r: 3
          input X: f32[S, 4]
          input at: i32[S]
          nest gather (q) f32: X[at[q], 1]
          nest flip (q) f32: X[S - 1 - q, 0]
          nest diagonal (r) f32: X[r, r]
          nest turned (r, q) f32: X[q, r]
          nest table (q) i64: i64(at[at[q]])
          output gather, flip, diagonal, turned, table
        """
    )
    x, at = np.arange(20.0).reshape(5, 4), np.array([4, 0, 2, 2, 1])
    got = interpret(program, {"X": x, "at": at})
    np.testing.assert_array_equal(got["gather"], x[at, 1])
    np.testing.assert_array_equal(got["flip"], x[::-1, 0])
    np.testing.assert_array_equal(got["diagonal"], np.diag(x)[:3])
    np.testing.assert_array_equal(got["turned"], x[:, :3].T)
    np.testing.assert_array_equal(got["table"], at[at])


@pytest.mark.parametrize("exact", [True, False])
def test_guarded_loads_may_be_out_of_range(exact: bool) -> None:
    program = parse_program(
        """
        program cat
          size S, T
          dim q: S + T
          input X: f32[S]
          input Y: f32[T]
          nest both (q) f32: where(q < S, X[q], Y[q - S])
          output both
        """
    )
    for n in (3, 0):
        x, y = np.arange(4.0), np.arange(10.0, 10.0 + n)
        got = interpret(program, {"X": x, "Y": y}, exact)
        np.testing.assert_array_equal(got["both"], np.concatenate([x, y]))


def test_dims_that_a_body_does_not_mention_count() -> None:
    program = parse_program(
        """
        program constant
          size S
          dim q: 2, k: S, d: 3
          input X: f32[S]
          nest count (q | k) f32: sum 1.0
          nest power (q | k, d) f32: prod 2.0
          nest inner (q) f32: sum(k, d: X[k])
          nest outer (q) f32: 7.0
          nest none (q | k) f32: max X[k]
          output count, power, inner, outer, none
        """
    )
    got = interpret(program, {"X": np.array([1.0, 2.0])})
    assert [got[n].tolist() for n in program.outputs] == [
        [2.0, 2.0], [64.0, 64.0], [9.0, 9.0], [7.0, 7.0], [2.0, 2.0],
    ]  # fmt: skip
    empty = interpret(program, {"X": np.zeros(0)})
    assert [empty[n][0] for n in program.outputs] == [0.0, 1.0, 0.0, 7.0, -math.inf]


def test_large_products_are_the_sum_of_products() -> None:
    """Reductions of products take a matrix product; it must agree with the plain sum for every placing of dims."""
    program = parse_program(
        """
        program dots
          dim b: 3, q: 9, k: 8, d: 7, e: 6
          input X: f32[9, 3, 7]
          input Y: f32[7, 3, 8, 6]
          input Z: f32[7]
          nest batched (b, k, q | d) f32: sum X[q, b, d] * Y[d, b, k, 0]
          nest slow (b, k, q | d) f32: sum X[q, b, d] * Y[d, b, k, 0] + 0.0
          nest two (q, e | b, d) f32: sum X[q, b, d] * Y[d, b, 1, e]
          nest slow_two (q, e | b, d) f32: sum X[q, b, d] * Y[d, b, 1, e] + 0.0
          nest one (q, e | k, d, b) f32: sum X[q, b, d] * Y[d, b, k, e]
          nest slow_one (q, e | k, d, b) f32: sum X[q, b, d] * Y[d, b, k, e] + 0.0
          nest nested (q, e | k) f32: sum sum(d: X[q, 0, d] * Y[d, 0, k, 0]) * sum(d: Y[d, 1, k, e] * Z[d])
          nest slow_nested (q, e | k) f32: sum (sum(d: X[q, 0, d] * Y[d, 0, k, 0] + 0.0) * sum(d: Y[d, 1, k, e] * Z[d] + 0.0)) + 0.0
          output batched
        """
    )
    rng = np.random.default_rng(0)
    shapes = {"X": (9, 3, 7), "Y": (7, 3, 8, 6), "Z": (7,)}
    arrays = evaluate(program, {n: rng.normal(size=s) for n, s in shapes.items()})
    for name in ("batched", "two", "one", "nested"):
        slow = "slow" if name == "batched" else f"slow_{name}"
        np.testing.assert_allclose(arrays[name], arrays[slow], rtol=1e-12)


LOOP = """
program loop
  size S, T
  dim q: S, k: T, e: 2
  input X: f32[S, T]
  input V: f32[T, 2]
  loop (q | k)
    carry l (q) f32: sum exp(X[q, k] - ~m) moves exp(-m)
    carry m (q) f32: max X[q, k]
    carry A (q, e) f32: sum exp(X[q, k] - ~m) * (V[k, e] - ~mean) moves exp(-m) shift -mean over l
    give mean (q) f32 = l / f32(T)
    give O (e, q) bf16 = A / l
    pass 2
    carry n (q) i64: sum i64(exp(X[q, k] - m) / l > 0.2)
    give N (q) i64 = n
  output O, N
"""


def test_loops_are_reductions_in_order_of_dependence() -> None:
    program = parse_program(LOOP)
    rng = np.random.default_rng(0)
    x, v = rng.normal(size=(3, 5)), rng.normal(size=(5, 2))
    got = interpret(program, {"X": x, "V": v})
    w = np.exp(x - x.max(1, keepdims=True))
    total = w.sum(1)
    a = np.einsum("qk,qke->eq", w, v[None] - (total / 5)[:, None, None])
    np.testing.assert_allclose(got["O"], a / total)
    np.testing.assert_array_equal(got["N"], (w / total[:, None] > 0.2).sum(1))
    assert got["N"].dtype == np.int64
    assert evaluate(program, {"X": x, "V": v}).keys() >= {"m", "l", "A", "mean", "n"}


def test_sizes_follow_from_shapes() -> None:
    program = parse_program(
        """
        program sizes
          size S, T, U
          dim q: S
          input X: f32[S * 2 + 1, T]
          input Y: f32[U // 4, S]
          nest y (q) f32: f32(T)
          output y
        """
    )
    x, y = np.zeros((7, 5)), np.zeros((2, 3))
    assert infer_sizes(program, {"X": x, "Y": y}) == {"S": 3, "T": 5, "U": 8}
    assert interpret(program, {"X": x, "Y": y}, sizes={"U": 11})["y"].tolist() == [5.0] * 3
    with pytest.raises(ValueError, match="Input 'X' has shape"):
        infer_sizes(program, {"X": np.zeros((8, 5)), "Y": y})
    with pytest.raises(ValueError, match="Input 'Y' has shape"):
        infer_sizes(program, {"X": x, "Y": np.zeros(3)})
    with pytest.raises(ValueError, match="Input 'Y' is missing"):
        infer_sizes(program, {"X": x})


def test_unknown_sizes_are_named() -> None:
    program = parse_program("program p\nsize S\ndim q: S\nnest y (q) f32: 1.0\noutput y")
    with pytest.raises(ValueError, match="Size 'S' does not follow"):
        interpret(program, {})
    assert interpret(program, {}, sizes={"S": 2})["y"].tolist() == [1.0, 1.0]
