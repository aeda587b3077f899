"""Split keys: the two loops mean what the one did, and what cannot be cut says why."""

from __future__ import annotations

import numpy as np
import pytest

from flashlight.ir.execute import execute_tiled
from flashlight.ir.interpret import interpret
from flashlight.ir.text import parse_program
from flashlight.rewrite.split_keys import parts_for, split_keys, why_not_split

DECODE = """
program decode
  size S
  dim q: 3, k: S, e: 4
  input X: f32[3, S]
  input V: f32[S, 4]
  loop (q | k)
    carry m (q) f32: max X[q, k]
    carry l (q) f32: sum exp(X[q, k] - ~m) moves exp(-m)
    carry A (q, e) f32: sum exp(X[q, k] - ~m) * V[k, e] moves exp(-m)
    give y (q, e) f32 = A / l
    give lse (q) f32 = log(l) + m
  output y, lse
"""


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("length", [1, 127, 128, 300, 700])
def test_parts_merge_to_the_whole(parts: int, length: int) -> None:
    program = parse_program(DECODE)
    cut = split_keys(program, program.loops[0], parts)
    assert len(cut.loops) == 2
    rng = np.random.default_rng(length)
    x = rng.normal(size=(3, length)) * 50
    x[1] = -np.inf  # a dead row is NaN, in either form
    x[2, : length // 2] = -np.inf  # a part without a live key
    inputs = {"X": x, "V": rng.normal(size=(length, 4))}
    for run in (interpret, lambda p, i: execute_tiled(p, i, 32, 1)):
        got, expected = run(cut, inputs), interpret(program, inputs)
        for name in expected:
            np.testing.assert_allclose(got[name], expected[name], rtol=1e-9, atol=1e-12)


PAGED = """
program paged
  size P
  dim q: 2, p: P, i: 16, e: 4
  input T: i64[P]
  input L: i64[]
  input X: f32[2, 9, 16]
  input V: f32[9, 16, 4]
  loop (q | p, i)
    let s(q, p, i) = where(p * 16 + i < L[], X[q, T[p], i], -inf)
    carry m (q) f32: max s
    carry l (q) f32: sum exp(s - ~m) moves exp(-m)
    carry A (q, e) f32: sum exp(s - ~m) * V[T[p], i, e] moves exp(-m)
    give y (q, e) f32 = A / l
  output y
"""


@pytest.mark.parametrize("pages", [1, 8, 17, 40])
def test_parts_are_whole_pages(pages: int) -> None:
    program = parse_program(PAGED)
    cut = split_keys(program, program.loops[0], 3)
    first = cut.loops[0]
    assert [d.name for d in first.loop] == ["p_in", "i"]
    rng = np.random.default_rng(pages)
    inputs = {
        "T": rng.integers(0, 9, pages),
        "L": np.array(pages * 16 - 5),
        "X": rng.normal(size=(2, 9, 16)) * 9,
        "V": rng.normal(size=(9, 16, 4)),
    }
    expected = interpret(program, inputs)["y"]
    for run in (interpret, lambda p, i: execute_tiled(p, i, 32, 1)):
        np.testing.assert_allclose(run(cut, inputs)["y"], expected, rtol=1e-9, atol=1e-12)


def test_what_cannot_be_cut_says_why() -> None:
    variance = parse_program("""
program variance
  dim q: 2, k: 8
  input X: f32[2, 8]
  loop (q | k)
    carry S (q) f32: sum X[q, k]
    carry c (q) f32: sum 1.0
    carry A1 (q) f32: sum X[q, k] - ~(S / c) moves shift S / c over c
    give y (q) f32 = A1
  output y
""")
    assert "shifts" in (why_not_split(variance.loops[0]) or "")
    constant = parse_program(
        "program p\n  dim k: 8\n  loop (| k)\n    give y () f32 = 0.0\n  output y\n"
    )
    assert "nothing" in (why_not_split(constant.loops[0]) or "")


def test_parts_fill_the_device_and_stay_long() -> None:
    assert parts_for(rows=1000, length=16384, units=132) == 1
    assert parts_for(rows=8, length=16384, units=132) == 32  # of equal length
    assert parts_for(rows=8, length=16383, units=132) == 33
    assert (
        parts_for(rows=64, length=16383, units=132) == 4
    )  # 5 would leave half of a third wave idle
    assert parts_for(rows=1, length=1024, units=132) == 4
    assert parts_for(rows=1, length=300, units=132) == 1
