"""Ranges of columns found from data: nothing that matters is left out, and what is said to hold holds."""

from __future__ import annotations

import numpy as np
import pytest

from flashlight.ir.exprs import Buffer, Select
from flashlight.ir.interpret import evaluate
from flashlight.ir.nests import Loop, Program
from flashlight.ir.text import parse_program
from flashlight.ir.visit import loads
from flashlight.rewrite.ranges import GRAIN, ranges_of

TEXT = """
program p
  size S, T
  dim b: 2, q: S, k: T
  input id: i64[2, S]
  input of: i64[2, T]
  input alive: bool[2, T]
  input n: i64[2]
  input dense: bool[2, S, T]
  input marks: i64[S, T]
  loop (b, q | k)
    carry m (b, q) f32: max where(CONDITION, 0.5, -inf)
    give y (b, q) f32 = m
  output y
"""
CONDITIONS = {
    "documents": "id[b, q] == of[b, k]",
    "documents and causal": "(id[b, q] == of[b, k]) & (k <= q)",
    "padding": "alive[b, k]",
    "lengths and a window": "(k < n[b]) & (q - k <= 70)",
    "one of two": "(id[b, q] == of[b, k]) | (k < 40)",
    "another document": "id[b, q] != of[b, k]",
    "in order": "id[b, q] >= of[b, k] + 1",
    "dense": "dense[b, q, k]",
    "dense and padding": "dense[b, q, k] & alive[b, k]",
    "marked": "(marks[q, k] != 0) | (id[b, q] == of[b, k])",
    "blocks": "dense[b, q // 16, k // 16]",
    "not padding": "!alive[b, k] & (id[b, q] <= of[b, k])",
}


def found(
    condition: str, S: int, T: int, seed: int, *,
    ordered: bool, rows_live: bool = True, many: bool = False,
):  # fmt: skip
    """(mask[b, q, k], lo, full, end, hi of each row tile)."""
    program = parse_program(TEXT.replace("CONDITION", condition))
    (loop,) = program.loops
    body = loop.carries[0].body
    assert isinstance(body, Select)
    q, k = loop.kept[1], loop.loop[0]
    made = ranges_of(
        body.condition, loop, q, k, frozenset("bqk"),
        rows_live=rows_live, dense=lambda _: True, many=many,
    )  # fmt: skip
    assert made is not None
    names = tuple(g.name for g in made.loops[-1].gives)
    finder = Program("finder", program.sizes, program.inputs, made.loops, names)
    rng = np.random.default_rng(seed)
    inputs = {
        "id": rng.integers(0, 5, (2, S)),
        "of": rng.integers(0, 5, (2, T)),
        "alive": np.broadcast_to(np.arange(T) < T // 3, (2, T)) ^ (rng.random((2, 1)) < 0.5),
        "n": rng.integers(0, T, 2),
        "dense": np.tri(S, T, -40, dtype=bool)
        ^ (rng.random((2, 1, T // 50 + 1)) < 0.2).repeat(50, 2)[:, :, :T],
        "marks": np.tri(S, T, 70, dtype=int),
    }
    if ordered:
        inputs["id"].sort(1)
        inputs["of"].sort(1)
    sizes = {"S": S, "T": T}
    whole = evaluate_condition(body.condition, loop, inputs, sizes)
    arrays = evaluate(finder, inputs, sizes=sizes)
    lo, hi, full, end = (np.asarray(arrays[n]) for n in names)
    return whole, lo, full, end, hi


def evaluate_condition(condition, loop, inputs, sizes):
    from flashlight.ir.interpret import value_of

    return np.asarray(value_of(condition, (*loop.kept, *loop.loop), inputs, sizes)) != 0


@pytest.mark.parametrize("many", [False, True], ids=["few", "many"])
@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "shuffled"])
@pytest.mark.parametrize("shape", [(64, 64), (200, 300), (300, 130)])
@pytest.mark.parametrize("name", CONDITIONS)
def test_sound(name: str, shape: tuple[int, int], ordered: bool, many: bool) -> None:
    S, T = shape
    mask, lo, full, end, hi = found(CONDITIONS[name], S, T, 3, ordered=ordered, many=many)
    tiles = lo.shape[-1]
    for b in range(2):
        for t in range(tiles):
            rows = mask[b, t * GRAIN : (t + 1) * GRAIN]
            at = np.minimum(b, lo.shape[0] - 1) if lo.ndim == 2 else ()
            first, last = (x[at, t] if lo.ndim == 2 else x[t] for x in (lo, hi))
            assert not rows[:, : first * GRAIN].any()
            assert not rows[:, last * GRAIN :].any()
            begin, stop = (x[at, t] if lo.ndim == 2 else x[t] for x in (full, end))
            assert rows[:, begin * GRAIN : stop * GRAIN].all()


@pytest.mark.parametrize("shape", [(64, 64), (200, 200), (300, 130)])
@pytest.mark.parametrize("name", CONDITIONS)
def test_a_dead_row_needs_every_column(name: str, shape: tuple[int, int]) -> None:
    S, T = shape
    mask, lo, _, _, hi = found(CONDITIONS[name], S, T, 4, ordered=False, rows_live=False)
    for b in range(2):
        for t in range(lo.shape[-1]):
            rows = mask[b, t * GRAIN : (t + 1) * GRAIN]
            at = np.minimum(b, lo.shape[0] - 1) if lo.ndim == 2 else ()
            first, last = (x[at, t] if lo.ndim == 2 else x[t] for x in (lo, hi))
            if not rows.any(1).all():
                assert (first, last) == (0, -(-T // GRAIN))
            assert not rows[:, : first * GRAIN].any()
            assert not rows[:, last * GRAIN :].any()


def test_padded_causal_rows_are_live_from_the_diagonal() -> None:
    condition = "(k <= q) & (k >= n[b])"  # padding on the left
    S = 320
    mask, lo, _, _, hi = found(condition, S, S, 6, ordered=False, rows_live=False)
    for b in range(2):
        for t in range(S // GRAIN):
            rows = mask[b, t * GRAIN : (t + 1) * GRAIN]
            live = bool(rows[np.arange(GRAIN), t * GRAIN + np.arange(GRAIN)].all())
            assert (hi[b, t] == t + 1) if live else (hi[b, t] == S // GRAIN)
            assert live or lo[b, t] == 0


@pytest.mark.parametrize("name", CONDITIONS)
def test_summaries_change_nothing(name: str) -> None:
    few, many = (
        found(CONDITIONS[name], 200, 300, 7, ordered=True, many=many)[1:] for many in (False, True)
    )
    for a, b in zip(few, many, strict=True):
        assert np.array_equal(a, b)


def test_one_summary_serves_rows_and_columns() -> None:
    text = TEXT.replace("CONDITION", "(id[b, q] == id[b, k]) & (k <= q)").replace("k: T", "k: S")
    (loop,) = parse_program(text).loops
    body = loop.carries[0].body
    assert isinstance(body, Select)
    q, k = loop.kept[1], loop.loop[0]
    made = ranges_of(body.condition, loop, q, k, frozenset("bqk"), many=True)
    assert made is not None
    extremes, finder = made.loops
    assert [str(c.monoid) for c in extremes.carries] == ["min", "max"]
    assert {b.name for b in loads_of(finder)} == {g.name for g in extremes.gives} | {
        c.name for c in finder.carries
    }


def loads_of(loop: Loop) -> list[Buffer]:
    bodies = [*(c.body for c in loop.carries), *(g.expr for g in loop.gives)]
    return [load.buffer for load in loads(*bodies)]


def test_sharp_for_documents_in_order() -> None:
    mask, lo, full, end, hi = found(CONDITIONS["documents"], 640, 640, 5, ordered=True)
    kept = sum(mask[b, t * 64 : t * 64 + 64].any(0).sum() for b in range(2) for t in range(10))
    ranged = (hi - lo).sum() * GRAIN
    assert ranged <= kept + 2 * 20 * GRAIN
    assert ((end > full) & (end < 99)).any()


def test_no_ranges_where_tiles_decide_nothing() -> None:
    (loop,) = parse_program(TEXT.replace("CONDITION", "dense[b, q, k]")).loops
    body = loop.carries[0].body
    assert isinstance(body, Select)
    assert ranges_of(body.condition, loop, loop.kept[1], loop.loop[0], frozenset()) is None


def test_sharp_for_a_dense_mask() -> None:
    S = 5 * GRAIN
    _, lo, full, end, hi = found("marks[q, k] == 1", S, S, 7, ordered=True)  # k <= q + 70
    assert list(lo) == [0] * 5
    assert list(hi) == [3, 4, 5, 5, 5]
    assert list(full) == [0] * 5
    assert list(np.minimum(end, 5)) == [1, 2, 3, 4, 5]
