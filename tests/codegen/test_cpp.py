"""Generated C++ against the meaning of its program: shapes, dtypes, strides, lanes, and every operator."""

from __future__ import annotations

import math

import pytest
import torch

from flashlight.codegen.cpp import Lanes, emit
from flashlight.codegen.lower import lower
from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import UNARY
from flashlight.ir.text import parse_program
from flashlight.rewrite.tile_cpu import cpu_schedule
from tests.support.loops import CASES, attention
from tests.support.on_cpu import array_of, build, check, inputs_of

SOFTMAX = attention(dtype="f32", D=16, E=24)
COLUMNS = """
program columns
  size S, T
  dim k: T, q: S, d: 8, e: 5
  input Q: f32[S, 8]
  input K: f32[T, 8]
  input dO: f32[S, 5]
  loop (k | q)
    let p(k, q) = exp(sum(d: Q[q, d] * K[k, d]) * 0.25)
    carry c (k) f32: sum p
    carry A (k, e) f32: sum p * dO[q, e]
    carry n (k) i64: sum 1
    give C (k) f32 = c
    give V (e, k) f32 = A
    give N (k) i64 = n
  output C, V, N
"""
SHIFTED = """
program shifted
  size S, T
  dim q: S, k: T, d: 12, e: 20
  input Q: f32[S, 12]
  input K: f32[T, 12]
  input V: f32[T, 20]
  input dO: f32[S, 20]
  loop (q | k)
    let s(q, k) = sum(d: Q[q, d] * K[k, d]) * 0.25
    let dP(q, k) = sum(e: dO[q, e] * V[k, e])
    carry m (q) f32: max s
    carry l (q) f32: sum exp(s - ~m) moves exp(-m)
    carry D (q) f32: sum exp(s - ~m) * dP moves exp(-m)
    carry B (q, d) f32: sum exp(s - ~m) * K[k, d] moves exp(-m)
    carry G (q, d) f32: sum exp(s - ~m) * (dP - ~(D / l)) * K[k, d] moves exp(-m) shift -(D / l) over B
    give delta (q) f32 = D / l
    give dQ (q, d) f32 = G / l
  output delta, dQ
"""
THRESHOLD = """
program threshold
  size S, T
  dim q: S, k: T, d: 8, e: 9
  input Q: f32[S, 8]
  input K: f32[T, 8]
  input V: f32[T, 9]
  loop (q | k)
    let s(q, k) = sum(d: Q[q, d] * K[k, d])
    carry m (q) f32: max s
    carry l (q) f32: sum exp(s - ~m) moves exp(-m)
    pass 2
    let p(q, k) = where(exp(s - m) / l > 0.05, exp(s - m) / l, 0.0)
    carry t (q) f32: sum p
    carry A (q, e) f32: sum p * V[k, e]
    give O (q, e) f32 = A / t
    give M (q) f32 = m
  output O, M
"""
LOGIC = """
program logic
  size S, T
  dim q: S, k: T
  input M: bool[S, T]
  input X: i64[S, T]
  input Y: i32[T]
  input F: f32[S, T]
  loop (q | k)
    carry a (q) bool: any M[q, k] & (X[q, k] > 1)
    carry b (q) bool: all M[q, k] | (Y[k] == i32(X[q, k]))
    carry c (q) i64: sum X[q, k] * i64(Y[k])
    carry d (q) i64: max X[q, k] - 2
    carry e (q) i64: argmax F[q, k]
    carry f (q) i64: argmin where(M[q, k], F[q, k], inf)
    carry g (q) f32: prod F[q, k]
    carry h (q) f32: min F[q, k]
    give A (q) bool = a
    give B (q) bool = !b
    give C (q) i64 = c // 3 + c % 3
    give D (q) i64 = d
    give E (q) i64 = e
    give G (q) i64 = f
    give H (q) f32 = g
    give I (q) f32 = h
  output A, B, C, D, E, G, H, I
"""
HEADS = """
program heads
  size S, T
  dim q: S, k: T, d: 8, h: 3, g: 3, e: 7
  input Q: f32[3, S, 8]
  input K: f32[3, T, 8]
  input V: f32[3, T, 7]
  input W: f32[3, 3]
  loop (q | k)
    let s(h, q, k) = sum(g: W[h, g] * sum(d: Q[g, q, d] * K[g, k, d]))
    carry m (h, q) f32: max s
    carry l (h, q) f32: sum exp(s - ~m) moves exp(-m)
    carry A (h, q, e) f32: sum exp(s - ~m) * V[h, k, e] moves exp(-m)
    give O (h, q, e) f32 = A / l
  output O
"""
TWO_KERNELS = """
program two
  size S, T
  dim q: S, k: T
  input X: f32[S, T]
  loop (q | k)
    carry m (q) f32: max X[q, k]
    carry l (q) f32: sum exp(X[q, k] - ~m) moves exp(-m)
    give lse (q) f32 = log(l) + m
  loop (q, k | )
    give Y (q, k) f32 = exp(X[q, k] - lse[q])
  output Y, lse
"""
NO_KEPT = """
program total
  size S, T
  dim q: S, k: T
  input X: f32[S, T]
  loop ( | q, k)
    carry a () f32: sum X[q, k] * X[q, k]
    carry m () f32: max X[q, k]
    give A () f32 = sqrt(a)
    give M () f32 = m
  output A, M
"""
NESTED = """
program nested
  size S, T
  dim q: S, k: T, i: T, j: T
  input X: f32[S, T]
  input Y: f32[T, T]
  loop (q | k)
    carry a (q) f32: sum X[q, k] * sum(i, j: Y[i, k] * X[q, j])
    carry m (q) f32: max sum(i: abs(Y[i, k] - X[q, i]))
    give A (q) f32 = a
    give M (q) f32 = m + max(i: X[q, i])
  output A, M
"""
PROGRAMS = {
    "softmax": SOFTMAX,
    "columns": COLUMNS,
    "shifted": SHIFTED,
    "threshold": THRESHOLD,
    "logic": LOGIC,
    "heads": HEADS,
    "two_kernels": TWO_KERNELS,
    "no_kept": NO_KEPT,
    "nested": NESTED,
}
EMPTY_IS_AN_ERROR = {"logic"}  # argmax of nothing


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    case = CASES[name]
    program = parse_program(case.program)
    blocks = {"row_block": case.row_block, "col_block": case.col_block}
    executable = build(program, case.sizes, **blocks)
    check(program, case.sizes, inputs_of(program, case.sizes), executable)


@pytest.mark.parametrize("lanes", ["rows", "inner"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_sizes_known_at_launch(name: str, lanes: Lanes) -> None:
    """One kernel for every size: several tiles, parts of a tile, one position, none."""
    program = parse_program(PROGRAMS[name])
    executable = build(program, {"S": 40, "T": 70}, row_block=16, col_block=16, lanes=lanes)
    for S, T in ((40, 70), (16, 16), (1, 1), (3, 33), (0, 5), (5, 0)):
        sizes = {"S": S, "T": T}
        if name in EMPTY_IS_AN_ERROR and 0 in (S, T):
            continue
        check(program, sizes, inputs_of(program, sizes), executable)


def test_any_strides() -> None:
    """Transposed, sliced, expanded and broadcast inputs are read where they lie."""
    program = parse_program(SOFTMAX)
    sizes = {"S": 19, "T": 37}
    executable = build(program, sizes)
    q, k, v = inputs_of(program, sizes)
    q = q.transpose(1, 2).contiguous().transpose(1, 2)
    k = k.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    v = torch.cat([v, v], -1)[..., ::2][..., :24]
    check(program, sizes, [q, k, v], executable)
    check(program, sizes, [q, k[:, :1].expand(-1, 2, -1, -1), v[..., :1].expand_as(v)], executable)
    check(program, sizes, [q[:, :, :1].expand_as(q), k, v], executable)


@pytest.mark.parametrize("special", [math.inf, -math.inf, math.nan])
def test_not_finite(special: float) -> None:
    program = parse_program(SOFTMAX)
    sizes = {"S": 20, "T": 30}
    executable = build(program, sizes, col_block=16)
    q, k, v = inputs_of(program, sizes)
    k[0, 0, 3] = special
    q[1, 1, 2] = special
    check(program, sizes, [q, k, v], executable)


def test_extreme_logits() -> None:
    program = parse_program(SOFTMAX)
    sizes = {"S": 20, "T": 50}
    executable = build(program, sizes, col_block=16)
    for scale in (0.01, 30.0, 1000.0):
        check(program, sizes, inputs_of(program, sizes, scale=scale), executable)


UNARY_TEXT = """
program unary
  size N
  dim n: N
  input X: {dtype}[N]
  loop (n | )
    give Y (n) {dtype} = {op}(X[n])
  output Y
"""
_POSITIVE = ("log", "log2", "sqrt", "rsqrt")
_UNIT = ("asin", "acos", "atanh")


def _points(op: str, dtype: torch.dtype) -> torch.Tensor:
    if op in _POSITIVE:
        x = torch.logspace(-30, 30, 999, dtype=torch.float64)
    elif op in _UNIT:
        x = torch.linspace(-0.999, 0.999, 999, dtype=torch.float64)
    elif op == "acosh":
        x = torch.linspace(1.0, 80.0, 999, dtype=torch.float64)
    elif op == "log1p":
        x = torch.linspace(-0.99, 80.0, 999, dtype=torch.float64)
    else:
        x = torch.linspace(-60.0, 60.0, 999, dtype=torch.float64)
    special = [0.0, -0.0, 1.0, -1.0, 2.5, math.inf, -math.inf, math.nan, 1e-40, 3e38]
    return torch.cat([x, torch.tensor(special, dtype=torch.float64)]).to(dtype)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_unary_is_torchs(dtype: str) -> None:
    """All operators in one translation unit; values to a few units in the last place, special values exactly."""
    torch_dtype = {"f32": torch.float32, "f64": torch.float64}[dtype]
    ops = [o for o in UNARY if o not in ("neg", "not", "anchor", "isnan", "isinf")]
    text = UNARY_TEXT.format(dtype=dtype, op="exp").replace("  output Y\n", "")
    head, _ = text.split("  loop")
    loops = "".join(f"  loop (n | )\n    give Y_{o} (n) {dtype} = {o}(X_{o}[n])\n" for o in ops)
    inputs = "".join(f"  input X_{o}: {dtype}[N]\n" for o in ops)
    head = head.replace(f"  input X: {dtype}[N]\n", inputs)
    program = parse_program(head + loops + "  output " + ", ".join(f"Y_{o}" for o in ops) + "\n")
    points = [_points(o, torch_dtype) for o in ops]
    sizes = {"N": points[0].numel()}
    points = [p[: sizes["N"]] if p.numel() >= sizes["N"] else p for p in points]
    results = build(program, sizes)(points, [sizes["N"]])
    tolerance = {"f32": 3e-7, "f64": 1e-15}[dtype]
    for op, x, got in zip(ops, points, results, strict=True):
        want = getattr(torch, op)(x.double())
        reference = want.to(torch_dtype).double()
        tiny = reference.abs() < torch.finfo(torch_dtype).tiny
        error = (got.double() - reference).abs() / reference.abs().clamp_min(1e-37)
        assert error[reference.isfinite() & ~tiny].max() < tolerance, op
        assert (got[tiny].abs() < torch.finfo(torch_dtype).tiny * 2).all(), op
        assert torch.equal(got.isnan(), reference.isnan()), op
        assert torch.equal(got.double()[reference.isinf()], reference[reference.isinf()]), op


def test_16_bit_conversions() -> None:
    """Every half, and many floats, rounded to nearest even."""
    text = """
program convert
  size N
  dim n: N
  input H: f16[N]
  input X: f32[N]
  loop (n | )
    give A (n) f32 = H[n]
    give B (n) bf16 = X[n]
    give C (n) f16 = X[n]
    give D (n) f32 = f16(X[n]) + bf16(X[n])
  output A, B, C, D
"""
    program = parse_program(text)
    h = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16)
    bits = torch.randint(-(2**31), 2**31 - 1, (2**16,), generator=torch.Generator().manual_seed(0))
    x = bits.to(torch.int32).view(torch.float32)
    a, b, c, d = build(program, {"N": 2**16})([h, x], [2**16])
    torch.testing.assert_close(a, h.float(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(b, x.bfloat16(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(c, x.half(), rtol=0, atol=0, equal_nan=True)
    want = x.half().float() + x.bfloat16().float()
    torch.testing.assert_close(d, want, rtol=0, atol=0, equal_nan=True)


def test_exact_dtype_of_narrow_integers() -> None:
    text = """
program narrow
  size N
  dim n: N
  input X: i8[N]
  input Y: u8[N]
  input Z: i16[N]
  loop (n | )
    give A (n) i8 = X[n] * X[n]
    give B (n) u8 = Y[n] - u8(200:u8)
    give C (n) i16 = Z[n] // i16(7:i16) + Z[n] % i16(7:i16)
    give D (n) u8 = u8(X[n])
  output A, B, C, D
"""
    program = parse_program(text)
    x = torch.arange(-128, 128).to(torch.int8)
    y = torch.arange(256).to(torch.uint8)
    z = torch.arange(-128, 128).to(torch.int16) * 250
    a, b, c, d = build(program, {"N": 256})([x, y, z], [256])
    assert torch.equal(a, x * x)
    assert torch.equal(b, y - 200)
    assert torch.equal(c, z // 7 + z % 7)
    assert torch.equal(d, x.to(torch.uint8))


def test_tiles_share_memory() -> None:
    """The accumulator of attention is updated in place: no copies, one tile of scores besides."""
    program = parse_program(SOFTMAX)
    (loop,) = program.loops
    sizes = {"S": 512, "T": 512}
    schedule = cpu_schedule(loop, sizes)
    source = emit(lower(loop, schedule))
    assert "copy(" not in source.text
    words = schedule.row_block * (schedule.col_block * 2 + 16 + 24 * 2 + 32) + 256 * 64
    assert source.workspace <= 4 * words


def test_double_is_computed_in_double() -> None:
    program = parse_program(CASES["f64"].program)
    sizes = CASES["f64"].sizes
    executable = build(program, sizes)
    outputs = check(program, sizes, inputs_of(program, sizes), executable, {DType.F64: 1e-14})
    assert array_of(outputs[0]).dtype.itemsize == 8
