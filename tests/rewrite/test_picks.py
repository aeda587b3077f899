"""Which comparisons of scores with entries of theirs are found, and what becomes of them."""

from __future__ import annotations

import numpy as np
import pytest

from flashlight.ir.interpret import interpret
from flashlight.ir.nests import Program
from flashlight.ir.text import parse_program
from flashlight.rewrite.picks import is_incomparable, pick_from_tiles

SCORE = "sum(d: X[{}, d] * Y[{}, d])"
TILE = SCORE.format("q", "k")


def program(condition: str, *nests: str) -> Program:
    return parse_program(
        "\n  ".join(
            [
                "program p",
                "dim q: 7, k: 9, d: 4, r: 7, c: 9",
                "input X: f64[7, 4]",
                "input Y: f64[9, 4]",
                "input at: i64[7]",
                *nests,
                f"nest n (q | k) i64: sum where({condition}, 1, 0)",
                "output n",
            ]
        )
    )


def same(before: Program, after: Program) -> None:
    rng = np.random.default_rng(0)
    inputs = {
        "X": rng.normal(size=(7, 4)),
        "Y": rng.normal(size=(9, 4)),
        "at": rng.integers(0, 9, size=7),
    }
    got, expected = interpret(after, inputs), interpret(before, inputs)
    np.testing.assert_array_equal(got["n"], expected["n"])


@pytest.mark.parametrize(
    ("condition", "picked"),
    [
        (f"{TILE} > {SCORE.format('q', 'q')}", "k_col == q_row,"),
        (f"{TILE} == {SCORE.format('q', '0')}", "k_col == 0,"),
        (f"{TILE} >= {SCORE.format('q', 'at[q]')}", "k_col == at[q_row],"),
        (f"0.3 * {TILE} + 1.0 > 0.3 * {SCORE.format('q', 'q')} + 1.0", "k_col == q_row,"),
        (f"{TILE} - {SCORE.format('q', 'q')} > 0.0", "k_col == q_row,"),
    ],
)
def test_entries_of_columns_come_from_the_row(condition: str, picked: str) -> None:
    before = program(condition)
    assert is_incomparable(before) is not None
    after = pick_from_tiles(before)
    assert picked in str(after)
    assert is_incomparable(after) is None
    same(before, after)


def test_the_whole_side_is_picked() -> None:
    """A multiplication and an addition may be one operation or two: both sides must be what one of them made."""
    after = pick_from_tiles(program(f"0.3 * {TILE} + 1.0 > 0.3 * {SCORE.format('q', 'q')} + 1.0"))
    (pick, count) = after.nests
    assert "+ 1.0, -inf" in str(pick)
    assert "> n_pick[q]" in str(count)


def test_an_entry_beside_a_maximum() -> None:
    best = f"nest m (r | c) f64: max {SCORE.format('r', 'c')}"
    before = program(f"m[q] == {SCORE.format('q', 'at[q]')}", best)
    after = pick_from_tiles(before)
    assert [n.name for n in after.nests] == ["m", "n_pick", "n"]
    assert is_incomparable(after) is None
    same(before, after)


def test_rows_of_all_columns_cannot_be_picked() -> None:
    before = program(f"{TILE} >= {SCORE.format('6', 'k')}")
    assert pick_from_tiles(before) is before
    assert is_incomparable(before) is before.nests[-1]


@pytest.mark.parametrize(
    "condition",
    [
        f"{TILE} > 0.5",
        f"{TILE} > sum(d: X[q, d] * X[q, d])",
        f"{TILE} > sum(d: X[q, d] + Y[k, d])",
        "sum(d: X[q, d] * X[q, d]) > sum(d: X[0, d] + 1.0)",
        f"exp({TILE}) > {TILE}",
        "k <= q",
    ],
)
def test_others_stay(condition: str) -> None:
    before = program(condition)
    assert pick_from_tiles(before) is before
    assert is_incomparable(before) is None
