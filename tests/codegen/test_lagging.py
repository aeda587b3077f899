"""Which references may lag: those that only quotients of their sums, and logarithms beside them, are results of."""

from __future__ import annotations

import math

import pytest

from flashlight.codegen.exponents import prepare
from flashlight.codegen.lagging import POWERS, lags
from flashlight.ir.nests import Loop
from flashlight.ir.text import parse_program
from tests.support.loops import DOT, attention


def found(text: str) -> dict[str, float]:
    """By how much the maxima of a program's loop may lag."""
    program = parse_program(text)
    (loop,) = program.loops
    assert isinstance(loop, Loop)
    loop = prepare(loop)
    rows = [d for d in loop.kept if d.name == "q"]
    return dict(lags(loop.passes[0], loop, rows, ["m"]))


MAY = {
    "quotient": attention(),
    "masked": attention(f"where(k <= q, {DOT}, -inf)"),
    "table": attention(f"{DOT} + f32(B[k - q + 100])", ("B: f16[1000]",)),
    "gated": attention(inputs=("G: f16[2, 2, S, 64]",), give="A / l * sigmoid(G[b, h, q, e])"),
    "logarithm": attention(extra=("give L (b, h, q) f32 = log(l) + m",), outputs="O, L"),
}
MAY_NOT = {
    "maximum_given": attention(extra=("give M (b, h, q) f32 = m",), outputs="O, M"),
    "sum_given": attention(extra=("give L (b, h, q) f32 = l",), outputs="O, L"),
    "sum_alone": attention(give="A"),
    "logarithm_alone": attention(extra=("give L (b, h, q) f32 = log(l)",), outputs="O, L"),
    "twice_the_maximum": attention(
        extra=("give L (b, h, q) f32 = log(l) + m * 2.0",), outputs="O, L"
    ),
    "sum_plus_one": attention(give="A / (l + 1.0)"),
    # A reference that is passed in every tile moves in every tile.
    "position": attention(f"{DOT} + f32(k - q) * 0.1"),
    # What is rounded to 16 bits beside another factor might pass their range.
    "factor_of_pairs": attention(inputs=("W: f16[S, T]",), value="(f32(W[q, k]) * V[b, h, k, e])"),
    "factor_of_columns": attention(inputs=("W: f16[T]",), value="(f32(W[k]) * V[b, h, k, e])"),
    "other_exponent": attention(value="V[b, h, k, e]").replace(
        "sum exp(s - ~m) * V", "sum exp(s * 2.0 - ~m) * V"
    ),
}


@pytest.mark.parametrize("name", MAY)
def test_may(name: str) -> None:
    slack = found(MAY[name])["m"]
    scale = (
        1.0 if name == "table" else 0.125
    )  # the maximum is taken of scores without their common factor
    assert math.isclose(2.0**POWERS, math.exp(scale * slack))


@pytest.mark.parametrize("name", MAY_NOT)
def test_may_not(name: str) -> None:
    assert not found(MAY_NOT[name])
