"""Which scores may not be multiplied by log2(e) before their reference is subtracted."""

from __future__ import annotations

import pytest

from flashlight.codegen.exponents import may_be_huge
from flashlight.ir.text import parse_program

DOT = "sum(d: Q[h, q, d] * K[h, k, d])"


@pytest.mark.parametrize(
    ("score", "huge"),
    [
        ("sum(d: Q[b, q, d] * K[b, k, d])", False),
        ("where(k <= q, sum(d: Q[b, q, d] * K[b, k, d]), -inf)", False),
        ("where(k <= q, sum(d: Q[b, q, d] * K[b, k, d]), -1e9)", True),
        ("sum(d: Q[b, q, d] * K[b, k, d]) + bias[q, k]", True),
        (f"sum(h: mix[b, h] * {DOT})", False),
        (f"sum(h: mix[b, h] * where(k <= q, {DOT}, -1e9))", True),
        (f"sum(h: mix[b, h] * ({DOT} + bias[q, k]))", True),
    ],
)
def test_fills_and_masks_may_be_huge(score: str, huge: bool) -> None:
    program = parse_program(f"""
program p
  size S
  dim b: 4, h: 4, q: S, k: S, d: 64
  input Q: bf16[4, S, 64]
  input K: bf16[4, S, 64]
  input bias: f32[S, S]
  input mix: f32[4, 4]
  loop (b, q | k)
    carry m (b, q) f32: max {score}
    give y (b, q) f32 = m
  output y
""")
    (loop,) = program.loops
    assert may_be_huge(loop) is huge
