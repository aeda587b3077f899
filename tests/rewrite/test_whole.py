"""Positions written as floats compare as integers where the float type holds them, and only there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flashlight.ir.interpret import interpret
from flashlight.ir.text import parse_program, print_program
from flashlight.rewrite.simplify import simplify_program

TEXT = """
program p
  size S
  dim i: 300, j: 257, n: S
  nest y (i, j, n) bool: CONDITION
  output y
"""
HELD = {
    "order": "f32(i) >= f32(j)",
    "equal": "f32(i) == f64(j + 1)",
    "through types": "f64(f32(f64(i))) < f64(j)",
    "distance": "f32(i) - f32(j) <= 20.5",
    "distance, absolute": "abs(f32(i) - f32(j)) < 7.0",
    "scaled": "f32(i) * 2.0 + 1.0 > f32(j)",
    "with an integer": "f32(i) > j",
    "equal to an integer": "f32(i) == 3",
    "never": "f32(i) == 2.5",
    "always": "f32(i) != 2.5",
    "past all": "f32(i) < 1e30",
    "past all, infinite": "f32(i) > -inf",
    "negative": "-f32(i) > -20.25",
    "extremes": "min(f32(i), f32(j)) >= max(f32(j) - 3.0, 1.0)",
    "floor": "floor(f32(i)) <= f32(j)",
}
NOT_HELD = {
    "bf16 has eight bits": "bf16(i) >= bf16(j)",
    "a size may be any": "f32(n) >= f32(i)",
    "a part": "f32(i) * 0.5 >= f32(j)",
    "a product past 2^24": "f32(i) * f32(i) * f32(i) >= f32(j)",
}


def _simplified(condition: str) -> tuple[str, Any, Any]:
    before = parse_program(TEXT.replace("CONDITION", condition))
    after = simplify_program(before)
    values = [interpret(p, {}, exact=False, sizes={"S": 31})["y"] for p in (before, after)]
    return print_program(after), *values


@pytest.mark.parametrize("condition", HELD.values(), ids=HELD)
def test_held(condition: str) -> None:
    text, before, after = _simplified(condition)
    assert not any(f"{t}(" in text for t in ("f32", "f64", "bf16"))
    assert np.array_equal(before, after)


@pytest.mark.parametrize("condition", NOT_HELD.values(), ids=NOT_HELD)
def test_not_held(condition: str) -> None:
    text, before, after = _simplified(condition)
    assert "f32(" in text or "bf16(" in text
    assert np.array_equal(before, after)
