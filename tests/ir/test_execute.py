"""Loops run tile by tile, in parts, give what they mean."""

from __future__ import annotations

import numpy as np
import pytest

from flashlight.ir.execute import execute_tiled
from flashlight.ir.interpret import interpret
from flashlight.ir.text import parse_program
from flashlight.ir.verify import LAWS, verify
from tests.support.programs import assert_same, random_inputs

LOOPS = {
    "attention": """
program attention
  size S, T
  dim q: S, k: T, d: 4, e: 3
  input Q: bf16[S, 4]
  input K: bf16[T, 4]
  input V: bf16[T, 3]
  input alive: bool[S]
  loop (q | k)
    let s(q, k) = where((k <= q + 3) & alive[q], sum(d: Q[q, d] * K[k, d]), -inf)
    carry m (q) f32: max s
    carry l (q) f32: sum exp(s - ~m) moves exp(-m)
    carry A (q, e) f32: sum exp(s - ~m) * V[k, e] moves exp(-m)
    give O (q, e) bf16 = A / l
    give lse (q) f32 = log(l) + m
  output O, lse""",
    "delta": """
program delta
  size S, T
  dim q: S, k: T, d: 4, e: 3
  input Q: bf16[S, 4]
  input K: bf16[T, 4]
  input V: bf16[T, 3]
  input dO: bf16[S, 3]
  loop (q | k)
    let s(q, k) = sum(d: Q[q, d] * K[k, d])
    let dP(q, k) = sum(e: dO[q, e] * V[k, e])
    carry m (q) f32: max s
    carry l (q) f32: sum exp(s - ~m) moves exp(-m)
    carry D (q) f32: sum exp(s - ~m) * dP moves exp(-m)
    carry B (q, d) f32: sum exp(s - ~m) * K[k, d] moves exp(-m)
    carry G (q, d) f32: sum exp(s - ~m) * (dP - ~delta) * K[k, d] moves exp(-m) shift -delta over B
    give delta (q) f32 = D / l
    give dQ (q, d) f32 = G / l
  output dQ, delta""",
    "variance": """
program variance
  size S, T
  dim q: S, k: T
  input X: f32[S, T]
  loop (q | k)
    carry total (q) f32: sum X[q, k]
    carry c (q) f32: sum 1.0
    carry A1 (q) f32: sum X[q, k] - ~(total / c) moves shift -(total / c) over c
    carry A2 (q) f32: sum (X[q, k] - ~(total / c)) ** 2.0 moves shift -(total / c), -(total / c) over A1, c
    give var (q) f32 = (A2 - A1 * A1 / c) / f32(T)
  output var""",
    "two shifts": """
program covariance
  size S, T
  dim q: S, k: T
  input X: f32[S, T]
  input Y: f32[S, T]
  loop (q | k)
    carry sx (q) f32: sum X[q, k]
    carry sy (q) f32: sum Y[q, k]
    carry c (q) f32: sum 1.0
    carry Ax (q) f32: sum X[q, k] - ~(sx / c) moves shift -(sx / c) over c
    carry Ay (q) f32: sum Y[q, k] - ~(sy / c) moves shift -(sy / c) over c
    carry B (q) f32: sum (X[q, k] - ~(sx / c)) * (Y[q, k] - ~(sy / c)) moves shift -(sx / c), -(sy / c) over Ax, Ay, c
    give covariance (q) f32 = B
  output covariance""",
    "two addends": """
program entropy
  size S, T
  dim q: S, k: T
  input X: f32[S, T]
  loop (q | k)
    carry m (q) f32: max X[q, k]
    carry l (q) f32: sum exp(X[q, k] - ~m) moves exp(-m)
    carry E (q) f32: sum exp(X[q, k] - ~m) * (X[q, k] - ~m - ~log(l)) moves exp(-m) shift -m - log(l) over l
    give entropy (q) f32 = -(E / l)
  output entropy""",
    "softpick": """
program softpick
  size S, T
  dim q: S, k: T
  input X: f32[S, T]
  loop (q | k)
    carry m (q) f32: max X[q, k]
    carry A (q) f32: sum max(exp(X[q, k] - ~max(m, 0.0)) - exp(-(~max(m, 0.0))), 0.0) moves exp(-max(m, 0.0))
    give O (q) f32 = A * exp(~max(m, 0.0) - m)
  output O""",
    "positions and flags": """
program winners
  size S, T
  dim b: 2, q: S, k: T
  input X: f32[2, S, T]
  loop (q | b, k)
    let coarse(b, q, k) = floor(X[b, q, k])
    carry best (q) i64: argmax coarse
    carry worst (q) i64: argmin coarse
    carry low (q) f32: min coarse
    carry seen (q) bool: any X[b, q, k] > 2.0
    carry every (q) bool: all X[b, q, k] > -3.0
    carry volume (q) f32: prod cos(X[b, q, k])
    carry count (q) i64: sum i64(X[b, q, k] > 0.0)
    give i (q) i64 = best * 100 + worst
    give o (q) f32 = low + volume
    give f (q) bool = seen & every
    give n (q) i64 = count
  output i, o, f, n""",
    "two passes": """
program threshold
  size S, T
  dim q: S, k: T, e: 3
  input X: f32[S, T]
  input V: f32[T, 3]
  loop (q | k)
    let p(q, k) = exp(X[q, k] - m) / l
    carry m (q) f32: max X[q, k]
    carry l (q) f32: sum exp(X[q, k] - ~m) moves exp(-m)
    pass 2
    carry t (q) f32: sum where(p > 0.01, p, 0.0)
    carry A (q, e) f32: sum where(p > 0.01, p, 0.0) * V[k, e]
    give O (q, e) f32 = A / t
  output O""",
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops_are_valid(name: str) -> None:
    verify(parse_program(LOOPS[name]), LAWS)


@pytest.mark.parametrize("parts", [1, 2, 3, 9])
@pytest.mark.parametrize("tile", [1, 4, 7, 32])
@pytest.mark.parametrize("name", LOOPS)
def test_tiles_and_parts_do_not_matter(name: str, tile: int, parts: int) -> None:
    program = parse_program(LOOPS[name])
    for seed, scale in enumerate((1.0, 3.0, 100.0)):
        inputs = random_inputs(program, {"S": 6, "T": 23}, seed=seed, scale=scale)
        expected = interpret(program, inputs)
        got = execute_tiled(program, inputs, tile, parts)
        assert_same(got, expected, 1e-9, f"{name} at {scale}")
        got = execute_tiled(program, inputs, tile, parts, single=True)
        assert_same(got, interpret(program, inputs), 2e-3 if scale == 100.0 else 1e-5, name)


@pytest.mark.parametrize("special", [-np.inf, np.inf, np.nan, -1e4])
@pytest.mark.parametrize("place", [0, 11, 22])
def test_infinities_and_nan_stay_where_they_are(special: float, place: int) -> None:
    text = LOOPS["attention"].replace("sum(d: Q[q, d] * K[k, d])", "X[q, k]")
    program = parse_program(text.replace("input Q: bf16[S, 4]", "input X: f32[S, T]"))
    inputs = random_inputs(program, {"S": 30, "T": 23})
    inputs["X"][:, place] = special
    inputs["X"][3] = special
    expected = interpret(program, inputs)
    for parts in (1, 4):
        assert_same(execute_tiled(program, inputs, 5, parts), expected)


def test_unset_references_far_below() -> None:
    """The first tile may have scores whose exponential overflows against the unset reference 0."""
    program = parse_program(LOOPS["attention"])
    inputs = random_inputs(program, {"S": 6, "T": 23})
    inputs["Q"] = np.full((6, 4), -1e4)
    inputs["K"] = np.abs(inputs["K"])
    assert_same(execute_tiled(program, inputs, 4, 2), interpret(program, inputs))
    assert_same(execute_tiled(program, inputs, 4, 2, single=True), interpret(program, inputs), 1e-2)


def test_dims_may_have_tiles_of_their_own() -> None:
    program = parse_program(LOOPS["positions and flags"])
    inputs = random_inputs(program, {"S": 3, "T": 9})
    got = execute_tiled(program, inputs, {"b": 1, "k": 4}, 3)
    assert_same(got, interpret(program, inputs))


def test_empty_loops() -> None:
    for name in ("attention", "positions and flags", "variance"):
        program = parse_program(LOOPS[name])
        inputs = random_inputs(program, {"S": 3, "T": 0})
        assert_same(execute_tiled(program, inputs, 4, 2), interpret(program, inputs))


def test_nests_and_loops_mix() -> None:
    program = parse_program(
        """
        program mixed
          size S
          dim q: S, k: S
          input X: f32[S, S]
          loop (q | k)
            carry a (q) f32: sum X[q, k]
            give total (q) f32 = a
          nest scaled (q, k) f32: X[q, k] / total[k]
          loop (q |)
            give y (q) f32 = sum(k: scaled[q, k])
          output y
        """.replace("give y (q) f32 = sum(k: scaled[q, k])", "give y (q) f32 = scaled[q, 0]")
    )
    verify(program, LAWS)
    inputs = random_inputs(program, {"S": 5})
    assert_same(execute_tiled(program, inputs, 2, 2), interpret(program, inputs))


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("attention", "* V[k, e] moves exp(-m)", "* V[k, e] moves exp(m)"),
        ("delta", "shift -delta over B", "shift delta over B"),
        ("two shifts", "over Ax, Ay, c", "over c"),
    ],
)
def test_wrong_claims_give_wrong_numbers(name: str, right: str, wrong: str) -> None:
    """So equality above means something."""
    text = LOOPS[name]
    assert right in text
    program = parse_program(text.replace(right, wrong))
    inputs = random_inputs(program, {"S": 6, "T": 23})
    try:
        got = execute_tiled(program, inputs, 4)
    except KeyError:
        return  # a lower carry is missing altogether
    with pytest.raises(AssertionError):
        assert_same(got, interpret(program, inputs), 1e-6)
