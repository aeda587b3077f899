"""Which sums over features of pairs are computed again for each score, which by a kernel of their own, and which never stored."""

from __future__ import annotations

import pytest

from flashlight.ir.execute import execute_tiled
from flashlight.ir.interpret import interpret
from flashlight.ir.nests import Loop
from flashlight.ir.text import parse_program
from flashlight.pipeline import optimize, prepare
from tests.rewrite.test_online_programs import assert_like
from tests.support.online_programs import inputs_for

ATTENTION = """
program p
  dim b: {B}, h: {H}, q: 24, k: 24, d: 8, e: 8, f: {F}, c: 3, g: {F}
  input Q: f32[{B}, {H}, 24, 8]
  input K: f32[{B}, {H}, 24, 8]
  input V: f32[{B}, {H}, 24, 8]
  input X: f32[24, 3]
  input Z: f32[24, 24]
  input A: f32[{F}]
  input C: f32[{F}]
  input M: f32[{F}, {F}]
  input W: f32[{F}, {H}]
  nest dot (b, h, q, k | d) f32: sum Q[b, h, q, d] * K[b, h, k, d]
  {bias}
  nest s (b, h, q, k) f32: dot[b, h, q, k] + bias[q, k, h]
  nest m (b, h, q | k) f32: max s[b, h, q, k]
  nest l (b, h, q | k) f32: sum exp(s[b, h, q, k] - m[b, h, q])
  nest O (b, h, q, e | k) f32: sum exp(s[b, h, q, k] - m[b, h, q]) / l[b, h, q] * V[b, h, k, e]
  output O
"""
RELATIVE = "nest bias (q, k, h | f) f32: sum max(f32(q - k) * A[f] + C[f], 0.0) * W[f, h]"
DISTANCE = "nest y (q, k | c) f32: sum (X[q, c] - X[k, c]) * (X[q, c] - X[k, c])\n"
GAUSSIAN = DISTANCE + "  nest bias (q, k, h | f) f32: sum exp(y[q, k] * A[f]) * W[f, h]"
GIVEN = "nest bias (q, k, h | f) f32: sum exp(Z[q, k] * A[f]) * W[f, h]"
HIDDEN = """nest u (q, k, g | f) f32: sum max(f32(q - k) * A[f] + C[f], 0.0) * M[f, g]
  nest bias (q, k, h | g) f32: sum max(u[q, k, g], 0.0) * W[g, h]"""
NORM = """nest n (q, k | f) f32: sum (f32(q - k) * A[f]) ** 2.0
  nest bias (q, k, h | f) f32: sum f32(q - k) * A[f] * rsqrt(n[q, k]) * W[f, h]"""


def loops(bias: str, B: int = 1, H: int = 2, F: int = 16) -> tuple[Loop, ...]:
    """The kernels of attention with a bias."""
    return checked(ATTENTION.format(bias=bias, B=B, H=H, F=F), 8)


def checked(text: str, block: int) -> tuple[Loop, ...]:
    """The kernels of a program, after comparing them with its meaning."""
    program, _ = prepare(parse_program(text))
    result = optimize(program)
    values = inputs_for(program)
    expected = interpret(program, values)
    assert_like(interpret(result, values), expected, "as loops")
    assert_like(execute_tiled(result, values, block, block), expected, "in tiles")
    return result.loops


@pytest.mark.parametrize("bias", [RELATIVE, GAUSSIAN, GIVEN])
def test_few_heads_compute_features_again(bias: str) -> None:
    assert len(loops(bias)) == 1


@pytest.mark.parametrize(("B", "H", "F"), [(16, 2, 16), (2, 16, 32)])
def test_features_for_many_samples_or_heads_are_computed_once(B: int, H: int, F: int) -> None:
    bias, attention = loops(GAUSSIAN, B, H, F)
    assert [len(g.dims) for g in bias.gives] == [3]  # the bias; neither features nor distances
    assert "exp" in str(bias)
    assert len(attention.carries) == 3


def test_a_hidden_layer_is_read_once() -> None:
    """It is stored, and larger than what is made of it: no head reads it again."""
    *_, made, attention = loops(HIDDEN)
    assert [len(g.dims) for g in made.gives] == [3]
    assert len(attention.carries) == 3


def test_a_few_coordinates_are_no_hidden_layer() -> None:
    assert len(loops(HIDDEN, F=4)) == 1


def test_a_norm_over_features_shares_their_loop() -> None:
    bias, _ = loops(NORM)
    assert len(bias.carries) == 2


MIXED = """
program p
  dim g: {H}, h: {H}, q: 12, k: 12, d: {D}, e: 4
  input Q: f32[{H}, 12, {D}]
  input K: f32[{H}, 12, {D}]
  input V: f32[{H}, 12, 4]
  input W: f32[{H}, {H}]
  input U: f32[{H}, {H}]
  nest dot (h, q, k | d) f32: sum Q[h, q, d] * K[h, k, d]
  {body}
  output O
"""
SOFTMAX = """nest m ({h}, q | k) f32: max {s}[{h}, q, k]
  nest l ({h}, q | k) f32: sum exp({s}[{h}, q, k] - m[{h}, q])
  nest p ({h}, q, k) f32: exp({s}[{h}, q, k] - m[{h}, q]) / l[{h}, q]
"""
BEFORE = "nest s (g, q, k | h) f32: sum W[g, h] * dot[h, q, k]\n  "
AFTER = "  nest t (g, q, k | h) f32: sum U[g, h] * p[h, q, k]\n"
RESULT = "  nest O (g, q, e | k) f32: sum {p}[g, q, k] * V[g, k, e]"
BODIES = {
    "before": BEFORE + SOFTMAX.format(h="g", s="s") + RESULT.format(p="p"),
    "after": SOFTMAX.format(h="h", s="dot") + AFTER + RESULT.format(p="t"),
}


def kernels_of_mixed(body: str, H: int, D: int) -> tuple[Loop, ...]:
    return checked(MIXED.format(body=BODIES[body], H=H, D=D), 4)


@pytest.mark.parametrize(("body", "kernels"), [("before", 1), ("after", 2)])
def test_scores_of_a_few_heads_are_computed_for_each(body: str, kernels: int) -> None:
    loops_ = kernels_of_mixed(body, 3, 4)
    assert len(loops_) == kernels
    assert all(len(g.dims) < 3 or g.name == "y0" for loop in loops_ for g in loop.gives)


@pytest.mark.parametrize(("body", "kernels"), [("before", 2), ("after", 3)])
def test_too_many_products_are_not_computed_again(body: str, kernels: int) -> None:
    assert len(kernels_of_mixed(body, 16, 80)) == kernels
