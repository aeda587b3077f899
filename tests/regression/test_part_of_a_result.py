"""A sum over the first few of a loop's results reads a part of their axis: it is not a sum over that axis."""

from __future__ import annotations

import pytest

from flashlight.codegen.lower import lower
from flashlight.errors import CompileError
from flashlight.ir.nests import Program
from flashlight.ir.text import parse_program
from flashlight.pipeline import optimize
from flashlight.rewrite.tile_cpu import cpu_schedule
from tests.support.on_cpu import build, check, inputs_of

NESTS = """
program part
  dim q: 20, k: 12, e: 24, t: 20, j: 16, p: 4
  input x: f32[20, 12]
  input w: f32[12, 24]
  input z: f32[20, 16]
  nest y (q, e | k) f32: sum exp(x[q, k]) * w[k, e]
  nest s (t, j | p) f32: sum tanh(y[t, p]) * z[t, j]
  output y
  output s
"""

LOOP = """
program part
  dim q: 20, k: 12, e: 24, p: 4
  input x: f32[20, 12]
  input w: f32[12, 24]
  loop (q | k)
    carry y_sum (q, e) f32: sum exp(x[q, k]) * w[k, e]
    give y (q, e) f32 = y_sum
    give s (q) f32 = sum(p: tanh(y_sum[q, p]))
  output y
  output s
"""


def test_values() -> None:
    program = optimize(parse_program(NESTS))
    assert isinstance(program, Program)
    check(program, {}, inputs_of(program, {}), build(program, {}))


def test_no_kernel_sums_the_whole_axis() -> None:
    (loop,) = parse_program(LOOP).loops
    with pytest.raises(CompileError):
        lower(loop, cpu_schedule(loop, {}))
