"""Reductions over tensors side by side: cut at the border where one part is small, or where the dim is one of features."""

from __future__ import annotations

import numpy as np
import pytest

from flashlight.ir.interpret import integer, interpret
from flashlight.ir.text import parse_program, print_program
from flashlight.rewrite.simplify import simplify_program
from flashlight.rewrite.unions import split_unions

MEMORY = """
program memory
  size T
  dim q: 5, kk: T + 9, d: 3
  input Q: f32[5, 3]
  input M: f32[9, 3]
  input K: f32[T, 3]
  nest y (q | kk) f32: max sum(d: Q[q, d] * where(kk < 9, M[kk, d], K[kk - 9, d]))
  output y
"""
BOTH_SMALL = """
program both_small
  dim q: 5, kk: 20
  input M: f32[5, 8]
  input K: f32[5, 12]
  nest y (q | kk) f32: sum where(kk < 8, M[q, kk], K[q, kk - 8])
  output y
"""
THREE = """
program three
  size T
  dim q: 5, kk: T + 5
  input M: f32[5, 4]
  input N: f32[5]
  input K: f32[5, T]
  nest y (q | kk) f32: max where(kk < 4, M[q, kk], where(kk < 5, N[q], K[q, kk - 5]))
  output y
"""
FEATURES = """
program features
  size T
  dim q: 5, k: T, d: 200
  input Q: f32[5, 200]
  input K: f32[T, 128]
  input R: f32[T, 72]
  nest y (q | k) f32: max sum(d: Q[q, d] * where(d < 128, K[k, d], R[k, d - 128]))
  output y
"""


@pytest.mark.parametrize("text", [MEMORY, BOTH_SMALL, THREE, FEATURES])
def test_the_same_values_without_a_choice_in_the_loop(text: str) -> None:
    program = parse_program(text)
    cut = simplify_program(split_unions(program))
    sizes = {s.name: 7 for s in program.sizes}
    rng = np.random.default_rng(0)
    shapes = {b.name: [integer(n, sizes) for n in b.shape] for b in program.inputs}
    inputs = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    expected = interpret(program, inputs, sizes=sizes)
    np.testing.assert_allclose(interpret(cut, inputs, sizes=sizes)["y"], expected["y"], rtol=1e-12)
    assert "where" not in print_program(cut)
