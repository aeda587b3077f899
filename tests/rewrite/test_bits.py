"""Errors of 16-bit operands: what may be rearranged is no worse than eager, and what may not would be (algebra.md, section 7)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flashlight.errors import Refusal
from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import Cast, Expr, Load, mul
from flashlight.ir.interpret import Array, interpret, round_to
from flashlight.ir.nests import Carry, Loop, Program
from flashlight.rewrite import online
from flashlight.rewrite.bits import NO_ROUNDING, is_bounded, read_rounding
from flashlight.rewrite.factor import Product, build, product_of
from flashlight.rewrite.group import group_and_online
from tests.support.online_programs import HEAD, PV, SCORES, Row, softmax, text_of

SIXTEEN = (DType.F16, DType.BF16)
SIZES = {"S": 12, "T": 512}


def fused(*parts: str, **rest: str) -> Program:
    return Row(text_of("p", *parts, **rest), ()).fused


def loops_of(program: Program) -> Program:
    result = group_and_online(program)
    assert not isinstance(result, Refusal)
    return result


def rounded_dots(program: Program) -> Program:
    """The loops as kernels run them: a dot's computed operand is rounded to the type of the operand that is loaded."""

    def rounded(c: Carry) -> Carry:
        p = product_of(c.body)
        factors = p.num
        loaded = [f for f in factors if isinstance(f, Load) and f.buffer.dtype in SIXTEEN]
        others: list[Expr] = [f for f in factors if f not in loaded[-1:]]
        if not loaded or not others or len(c.dims) < 2:
            return c
        operand = Cast(
            build(Product(p.negative, tuple(others), p.den), c.body), loaded[-1].buffer.dtype
        )
        return replace(c, body=mul(operand, loaded[-1]))

    loops = []
    for x in program.statements:
        assert isinstance(x, Loop)
        passes = [replace(p, carries=tuple(rounded(c) for c in p.carries)) for p in x.passes]
        loops.append(replace(x, passes=tuple(passes)))
    return program.with_statements(tuple(loops))


def inputs_for(program: Program, seed: int, scale: float, offset: float) -> dict[str, Array]:
    """Inputs already rounded; V has a mean, scores a scale."""
    rng = np.random.default_rng(seed)
    found = {}
    for b in program.inputs:
        shape = [SIZES.get(getattr(e, "name", ""), getattr(e, "value", 0)) for e in b.shape]
        values = rng.normal(size=shape)
        if b.name.startswith(("Q", "K")):
            values = values * scale
        if b.name == "V":
            values = values + offset
        found[b.name] = round_to(values, DType.BF16)  # which fp16 holds as well
    return found


def error(got: Array, exact: Array) -> float:
    return float(np.sqrt(np.mean((got.astype(np.float64) - exact) ** 2)))


def errors(
    program: Program, loops: Program, scale: float = 1.0, offset: float = 0.0
) -> tuple[float, float]:
    """Root mean square errors against f64: of the loops with rounded operands, and of eager."""
    ours, eager = [], []
    name = program.outputs[0]
    for seed in range(4):
        inputs = inputs_for(program, seed, scale, offset)
        exact = interpret(program, inputs)[name]
        ours.append(error(interpret(rounded_dots(loops), inputs, exact=False)[name], exact))
        eager.append(error(interpret(program, inputs, exact=False)[name], exact))
    return float(np.mean(ours)), float(np.mean(eager))


SECOND = """
  nest t0 (q, k | d) bf16: sum Q2[q, d] * K2[k, d]
  nest t (q, k) f32: t0[q, k] * 0.5
"""
DIFFERENCE = "  nest O (q, e | k) f32: sum pd[q, k] * V[k, e]"


def difference(dtype: str) -> Program:
    """(P0 - 0.9 P1) V with the two rounded one by one (bf16), or as a difference only (f32)."""
    return fused(
        SCORES,
        SECOND,
        softmax(dtype=dtype),
        softmax("t", "p2", suffix="2", dtype=dtype),
        f"  nest r (q, k) {dtype}: p2[q, k] * 0.9\n  nest pd (q, k) bf16: p[q, k] - r[q, k]",
        DIFFERENCE,
        inputs="Q2: bf16[S, 4]; K2: bf16[T, 4]",
    )


@pytest.mark.parametrize("scale", [1.0, 0.3, 0.1, 0.02])
def test_rounded_addends_split_and_are_no_worse(scale: float) -> None:
    program = difference("bf16")
    loops = loops_of(program)
    assert len(loops.loops[0].passes) == 1
    ours, eager = errors(program, loops, scale=scale)
    assert ours <= 1.2 * eager


@pytest.mark.parametrize("scale", [1.0, 0.3, 0.1, 0.02])
def test_a_difference_in_f32_is_formed_before_it_is_rounded(scale: float) -> None:
    program = difference("f32")
    loops = loops_of(program)
    assert len(loops.loops[0].passes) == 2
    ours, eager = errors(program, loops, scale=scale)
    assert ours <= 1.2 * eager


def test_splitting_it_would_lose_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    program = difference("f32")
    monkeypatch.setattr(online, "read_rounding", lambda *_: NO_ROUNDING)
    loops = loops_of(program)
    assert len(loops.loops[0].passes) == 1
    ours, eager = errors(program, loops, scale=0.02)
    assert ours > 4 * eager


def backward(dp: str) -> Program:
    return fused(
        SCORES,
        f"""
  nest m (q | k) f32: max s[q, k]
  nest l (q | k) f32: sum exp(s[q, k] - m[q])
  nest p (q, k) f32: exp(s[q, k] - m[q]) / l[q]
  nest dp (q, k | e) {dp}: sum dO[q, e] * V[k, e]
  nest D (q | k) f32: sum p[q, k] * dp[q, k]
  nest ds (q, k) bf16: p[q, k] * dp[q, k] - p[q, k] * D[q]
  nest O (q, d | k) f32: sum ds[q, k] * K[k, d]
""",
        inputs="dO: bf16[S, 6]",
    )


@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_a_shift_of_what_eager_rounds_is_one_pass_and_no_worse(offset: float) -> None:
    program = backward("bf16")
    loops = loops_of(program)
    assert len(loops.loops[0].passes) == 1
    ours, eager = errors(program, loops, offset=offset)
    assert ours <= 1.3 * eager


@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_a_shift_of_what_eager_keeps_exact_waits(offset: float) -> None:
    program = backward("f32")
    loops = loops_of(program)
    assert len(loops.loops[0].passes) == 2
    ours, eager = errors(program, loops, offset=offset)
    assert ours <= 1.3 * eager


def test_an_exact_rest_may_be_shifted() -> None:
    program = fused(
        """
  nest t (n | c) f32: sum X[n, c]
  nest y (n, c) bf16: X[n, c] - t[n] / f32(C)
  nest Z (n, o | c) bf16: sum y[n, c] * W[c, o]
""",
        head="\n  size N, C\n  dim n: N, c: C, o: 6\n  input X: f32[N, C]\n  input W: bf16[C, 6]\n",
        outputs="Z",
    )
    assert len(loops_of(program).loops[0].passes) == 1


def test_plain_softmax_is_better_than_eager() -> None:
    program = fused(SCORES, softmax(), PV)
    ours, eager = errors(program, loops_of(program), offset=10.0)
    assert ours <= eager


# -- Range


HALF = HEAD.replace("bf16", "f16")
HALF_SCORES = SCORES.replace("bf16", "f16")
HALF_PV = PV.replace("bf16", "f16")
UNSHIFTED = """
  nest w (q, k) f32: exp(s[q, k])
  nest l (q | k) f32: sum w[q, k]
  nest p (q, k) f16: w[q, k] / l[q]
"""


def test_an_fp16_operand_gets_a_reference() -> None:
    program = fused(HALF_SCORES, UNSHIFTED, HALF_PV, head=HALF)
    loops = loops_of(program)
    (loop,) = loops.loops
    assert len(loop.passes) == 1
    assert [c.monoid.name for c in loop.carries] == ["max", "sum", "sum"]
    assert loop.carries[-1].weight
    inputs = inputs_for(program, 0, 4.0, 0.0)
    exact = interpret(program, inputs)["O"]
    got = interpret(rounded_dots(loops), inputs, exact=False)["O"]
    assert (
        np.exp(np.max(inputs["Q"] @ inputs["K"].T) * 0.5) > 65504
    )  # without a reference the operand is inf
    assert np.isfinite(got).all()
    assert error(got, exact) < 2e-2


@pytest.mark.parametrize(
    ("exponent", "monoids"),
    [
        ("s[q, k]", ["max", "sum", "sum"]),  # times a value it may be infinite, and finite divided
        ("5.0 * tanh(s[q, k])", ["sum", "sum"]),
        ("-abs(s[q, k])", ["sum", "sum"]),
        ("-0.5 * (s[q, k] * s[q, k])", ["sum", "sum"]),
        ("0.5 * (s[q, k] * s[q, k])", ["max", "sum", "sum"]),
    ],
)
def test_a_bf16_operand_needs_one_if_it_is_divided(exponent: str, monoids: list[str]) -> None:
    unshifted = UNSHIFTED.replace("f16", "bf16").replace("s[q, k]", exponent)
    (loop,) = loops_of(fused(SCORES, unshifted, PV)).loops
    assert [c.monoid.name for c in loop.carries] == monoids


def test_an_exponential_that_is_not_divided_stays() -> None:
    """Infinite in eager, it decides the sign of the sum."""
    late = """
  nest w (q, k) bf16: exp(s[q, k])
  nest l (q | k) f32: sum w[q, k]
  nest A (q, e | k) f32: sum w[q, k] * V[k, e]
  nest O (q, e) f32: A[q, e] / l[q]
"""
    (loop,) = loops_of(fused(SCORES, late)).loops
    assert [c.monoid.name for c in loop.carries] == ["sum", "sum"]


def test_an_fp16_operand_that_may_grow_waits_for_its_divisor() -> None:
    normalised = UNSHIFTED.replace("exp(s[q, k])", "max(s[q, k], 0.0) * max(s[q, k], 0.0)")
    program = fused(HALF_SCORES, normalised, HALF_PV, head=HALF)
    assert len(loops_of(program).loops[0].passes) == 2
    program = fused(SCORES, normalised.replace("f16", "bf16"), PV)
    assert len(loops_of(program).loops[0].passes) == 1


def test_an_operand_that_eager_has_itself_may_stay() -> None:
    program = fused(
        HALF_SCORES,
        """
  nest w (q, k) f16: max(s[q, k], 0.0) * max(s[q, k], 0.0)
  nest l (q | k) f32: sum w[q, k]
  nest A (q, e | k) f32: sum w[q, k] * V[k, e]
  nest O (q, e) f16: A[q, e] / l[q]
""",
        head=HALF,
    )
    assert len(loops_of(program).loops[0].passes) == 1


def test_bounded_operands() -> None:
    program = fused(
        "  nest O (q | k) f32: sum sigmoid(X[q, k]) * 1.4 - tanh(X[q, k])", inputs="X: f32[S, T]"
    )
    (nest,) = program.nests
    assert is_bounded(nest.body)
    program = fused("  nest O (q | k) f32: sum sigmoid(X[q, k]) * X[q, k]", inputs="X: f32[S, T]")
    (nest,) = program.nests
    assert not is_bounded(nest.body)


def test_dots_are_known_by_their_operands() -> None:
    bodies = {
        "bf16(exp(X[q, k])) * V[k, e]": DType.BF16,
        "exp(X[q, k]) * V[k, e]": None,
        "bf16(exp(X[q, k])) * bf16(X[q, k])": None,
        "bf16(exp(X[q, k])) * f32(V[k, e])": DType.BF16,
    }
    for body, expected in bodies.items():
        program = fused(f"  nest O (q, e | k) f32: sum {body}", inputs="X: f32[S, T]")
        (nest,) = program.nests
        assert read_rounding(nest.body, frozenset(nest.reduced)).dot is expected, body
