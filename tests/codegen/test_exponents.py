"""Which scores may not be multiplied by log2(e) before their reference is subtracted, and which sums are divided by as they are."""

from __future__ import annotations

import pytest

from flashlight.codegen.exponents import has_its_maximum, may_be_huge, prepare
from flashlight.codegen.lower import lower
from flashlight.ir.text import parse_program
from flashlight.rewrite.tile import default_schedule
from tests.support.loops import DOT as SCORE
from tests.support.loops import attention

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


@pytest.mark.parametrize(
    ("score", "sums", "holds"),
    [
        (SCORE, "s - ~m", True),
        (f"{SCORE} * 0.25", "s - ~m", True),
        (f"where(k <= q, {SCORE} * 0.25, -inf)", "s - ~m", True),
        (f"{SCORE} + f32(k)", "s - ~m", True),
        (SCORE, "s + s - ~m", False),
        (SCORE, "s * 2.0 - ~m", False),
        (f"{SCORE} * 0.25", "s", False),
    ],
)
def test_sums_that_have_a_term_of_one(score: str, sums: str, holds: bool) -> None:
    text = attention(score).replace("sum exp(s - ~m) moves", f"sum exp({sums}) moves")
    (loop,) = parse_program(text).loops
    carries = prepare(loop).passes[0].carries
    found = {c.name: has_its_maximum(c, carries, frozenset(loop.loop)) for c in carries}
    assert found == {"m": False, "l": holds, "A": False}


def test_only_ordinary_sums_are_divided_by_without_care() -> None:
    (loop,) = parse_program(attention(give="A / l")).loops
    (other,) = parse_program(attention(give="A / (l - 1.0)")).loops
    texts = [str(lower(x, default_schedule(x, {"S": 64, "T": 64}), "k")) for x in (loop, other)]
    assert [str(2.0**32) in text for text in texts] == [False, True]
