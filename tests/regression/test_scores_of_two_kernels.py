"""Kernels that compute the same scores must get the same bits: one takes the maximum by which another scales its weights.

GCC fused the multiplications and additions of some blocks of a product and not those of others, so that scores of 20000 were off
by a few units in the last place, and weights by 2e-3.
"""

from __future__ import annotations

import pytest
import torch

from flashlight.ir.text import parse_program
from tests.support.on_cpu import build, inputs_of

TEXT = """
program both_ways
  size S
  dim b: 40, q: S, k: S, d: 16, c: 40, i: S, j: S, f: 16
  input Q: f32[40, S, 16]
  input K: f32[40, S, 16]
  loop (b, q | k)
    carry m (b, q) f32: max sum(d: Q[b, q, d] * K[b, k, d])
    give rows (b, q) f32 = m
  loop (c, j | i)
    carry n (c, j) f32: max sum(f: Q[c, i, f] * K[c, j, f])
    give columns (c, j) f32 = n
  output rows, columns
"""


@pytest.mark.parametrize("size", [1, 3, 7, 8, 13])
def test_same_bits(size: int) -> None:
    program, sizes = parse_program(TEXT), {"S": size}
    inputs = inputs_of(program, sizes, scale=60.0)
    rows, columns = build(program, sizes)(inputs, [size])
    assert torch.equal(rows.amax(1), columns.amax(1))
