"""Generated Triton kernels, run in Triton's interpreter, against the meaning of their programs."""

from __future__ import annotations

from typing import Any

import pytest

from flashlight.ir.text import parse_program
from flashlight.rewrite.fuse import fuse
from tests.support.loops import CASES
from tests.support.triton_process import Case, run_cases

pytestmark = [pytest.mark.triton_interpreter, pytest.mark.slow]
TOLERANCE = 2e-2  # bf16 results; the other types are held to less below


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, Any]]:
    """All cases in one process of the interpreter."""
    return dict(zip(CASES, run_cases(list(CASES.values())), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_same_as_program(results: dict[str, dict[str, Any]], name: str) -> None:
    result = results[name]
    assert "failed" not in result, result["failed"]
    assert result["same_places"]
    text = CASES[name].program
    tolerance = TOLERANCE if "bf16" in text else 4e-3 if "f16" in text else 2e-5
    assert max(result["errors"].values()) < tolerance, result["errors"]


BIASED = """
program biased
  dim b: {B}, h: 2, q: 40, k: 40, d: 16, e: 16, f: {F}
  input Q: f32[{B}, 2, 40, 16]
  input K: f32[{B}, 2, 40, 16]
  input V: f32[{B}, 2, 40, 16]
  input A: f32[{F}]
  input W: f32[{F}, 2]
  nest bias (q, k, h | f) f32: sum max(f32(q - k) * A[f], 0.0) * W[f, h]
  nest s (b, h, q, k | d) f32: sum Q[b, h, q, d] * K[b, h, k, d]
  nest m (b, h, q | k) f32: max s[b, h, q, k] + bias[q, k, h]
  nest l (b, h, q | k) f32: sum exp(s[b, h, q, k] + bias[q, k, h] - m[b, h, q])
  nest O (b, h, q, e | k) f32: sum exp(s[b, h, q, k] + bias[q, k, h] - m[b, h, q]) / l[b, h, q] * V[b, h, k, e]
  output O
"""


def test_biases_of_features_of_pairs() -> None:
    """In the loop of the scores, and as a kernel of their own."""
    programs = [str(fuse(parse_program(BIASED.format(B=b, F=f)))) for b, f in ((1, 24), (8, 48))]
    assert ["nest bias" in p for p in programs] == [False, True]
    for result in run_cases([Case(p, optimize=True) for p in programs]):
        assert "failed" not in result, result["failed"]
        assert max(result["errors"].values()) < 2e-5


MIXED = """
program mixed
  dim g: 3, h: 3, q: 40, k: 40, d: 16, e: 16
  input Q: f32[3, 40, 16]
  input K: f32[3, 40, 16]
  input V: f32[3, 40, 16]
  input W: f32[3, 3]
  nest dot (h, q, k | d) f32: sum Q[h, q, d] * K[h, k, d]
  {nests}
  nest O (g, q, e | k) f32: sum {weight} * V[g, k, e]
  output O
"""
BEFORE = """nest s (g, q, k | h) f32: sum W[g, h] * dot[h, q, k]
  nest m (g, q | k) f32: max s[g, q, k]
  nest l (g, q | k) f32: sum exp(s[g, q, k] - m[g, q])"""
AFTER = """nest m (h, q | k) f32: max dot[h, q, k]
  nest l (h, q | k) f32: sum exp(dot[h, q, k] - m[h, q])
  nest p (g, q, k | h) f32: sum W[g, h] * (exp(dot[h, q, k] - m[h, q]) / l[h, q])"""


def test_mixed_heads() -> None:
    before = MIXED.format(nests=BEFORE, weight="exp(s[g, q, k] - m[g, q]) / l[g, q]")
    after = MIXED.format(nests=AFTER, weight="p[g, q, k]")
    programs = [fuse(parse_program(text)) for text in (before, after)]
    assert all("(g, q, k" not in str(p) for p in programs)
    for result in run_cases([Case(str(p), optimize=True) for p in programs]):
        assert "failed" not in result, result["failed"]
        assert max(result["errors"].values()) < 2e-5
