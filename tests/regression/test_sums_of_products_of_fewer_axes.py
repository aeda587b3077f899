"""A product of a tile starts from another that it is added to, which may not lie along the same axes: one has no rows here.

The shorter tile was copied in place of the longer one in C++, whose other rows were what memory held.
"""

from __future__ import annotations

import pytest

from flashlight.ir.text import parse_program
from tests.support.on_cpu import build, check, inputs_of
from tests.support.triton_process import Case, run_cases

PROGRAM = """
program concatenated
  dim b: 3, h: 5, q: 90, k: 8, d: 16, e: 16
  input x: f32[3, 5, 16]
  input w: f32[8, 16]
  input y: f32[3, 90, 16]
  input u: f32[8, 16]
  input v: f32[8]
  loop (b, h, q | k)
    carry s (b, h, q) f32: sum tanh({}) * v[k]
    give z (b, h, q) f32 = s
  output z
"""
SHORT, LONG = "sum(d: x[b, h, d] * w[k, d])", "sum(e: y[b, q, e] * u[k, e])"
TEXTS = [PROGRAM.format(f"{a} + {b}") for a, b in ((SHORT, LONG), (LONG, SHORT))]


@pytest.mark.parametrize("text", TEXTS, ids=["short first", "long first"])
def test_on_a_cpu(text: str) -> None:
    program = parse_program(text)
    check(program, {}, inputs_of(program, {}), build(program, {}))


def test_in_triton() -> None:
    for result in run_cases([Case(text) for text in TEXTS]):
        assert max(result["errors"].values()) < 1e-5, result
