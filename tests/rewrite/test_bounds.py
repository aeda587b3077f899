"""Tiles that are called empty are empty, and tiles that are called full are full."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashlight.ir.exprs import Const, Dim, Expr, const
from flashlight.ir.nests import Loop
from flashlight.ir.text import parse_program, print_expr
from flashlight.ir.visit import substitute
from flashlight.rewrite.bounds import loop_bounds, loop_skips
from flashlight.rewrite.intervals import interval
from flashlight.rewrite.schedule import Bounds, first, last
from flashlight.rewrite.simplify import simplify


def program_loop(body: str) -> tuple[Loop, frozenset[str]]:
    program = parse_program(f"""
program p
  size S, T
  dim b: 4, h: 4, q: S, k: S, d: 64
  input Q: bf16[4, S, 64]
  input K: bf16[4, S, 64]
  input ids: i64[4, S]
  input length: i64[4]
  input bias: f32[S, S]
  input pad: bool[4, S]
  input slope: f32[4]
  loop (b, q | k)
    carry m (b, q) f32: max {body}
    carry l (b, q) f32: sum exp({body} - ~m) moves exp(-m)
    give y (b, q) f32 = l
  output y
""")
    (loop,) = program.loops
    passes = tuple(
        dataclasses.replace(
            p, carries=tuple(dataclasses.replace(c, body=simplify(c.body)) for c in p.carries)
        )
        for p in loop.passes
    )
    return dataclasses.replace(loop, passes=passes), frozenset(b.name for b in program.inputs)


def bounds_of(body: str) -> Bounds | None:
    body = body.replace("HEADS", "sum(d: Q[h, q, d] * K[h, k, d])")
    loop, inputs = program_loop(body.replace("SCORE", "sum(d: Q[b, q, d] * K[b, k, d])"))
    (row,) = (d for d in loop.kept if d.name == "q")
    (found,) = loop_bounds(loop, inputs, (row,), loop.loop[0])
    return found


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("where(k <= q, SCORE, -inf)", ["0", "0", "q.first + 1", "q.last + 1"]),
        ("SCORE + where(k <= q, 0.0, -inf)", ["0", "0", "q.first + 1", "q.last + 1"]),
        ("where(k <= q, SCORE, -1e10)", ["0", "0", "q.first + 1", "q.last + 1"]),
        ("where(k <= q, SCORE + bias[q, k], -inf)", ["0", "0", "q.first + 1", "q.last + 1"]),
        (
            "where(k <= q, sum(h: slope[h] * HEADS), -1e10)",
            ["0", "0", "q.first + 1", "q.last + 1"],
        ),
        (
            "where(k <= q, SCORE - slope[b] * (q - k), -1e10)",
            ["0", "0", "q.first + 1", "q.last + 1"],
        ),
        (
            "where((k <= q) & (q - k <= 256), SCORE, -inf)",
            ["q.first - 256", "max(0, q.last - 256)", "q.first + 1", "q.last + 1"],
        ),
        (
            "where(abs(k - q) <= 16, SCORE, -inf)",
            ["q.first - 16", "max(0, q.last - 16)", "min(q.first + 17, S)", "q.last + 17"],
        ),
        (
            "where(k <= max(255, q), SCORE, -inf)",
            ["0", "0", "max(255, q.first) + 1", "max(255, q.last) + 1"],
        ),
        (
            "where((k <= q) | (k < length[b]), SCORE, -inf)",
            ["0", "0", "max(q.first + 1, length[b])", "max(q.last + 1, length[b])"],
        ),
        (
            "where(q - S >= k - T, SCORE, -inf)",
            ["0", "0", "T + q.first - S + 1", "T + q.last - S + 1"],
        ),
        (
            "where((k <= q) & (ids[b, q] == ids[b, k]), SCORE, -inf)",
            ["0", "0", "q.first + 1", "q.last + 1"],
        ),
        (
            "where(q // 64 == k // 64, SCORE, -inf)",
            ["q.first // 64 * 64", "S", "S", "q.last // 64 * 64 + 64"],
        ),
    ],
)
def test_closed_forms(body: str, expected: list[str]) -> None:
    found = bounds_of(body)
    assert found is not None
    ends = (found.lo, found.full_lo, found.full_hi, found.hi)
    assert [print_expr(e) for e in ends] == expected


@pytest.mark.parametrize(
    ("body", "head", "lo"),
    [
        (
            "where((k <= q) & ((k < 4) | (q - k <= 16)), SCORE, -inf)",
            "min(q.last + 1, 4)",
            "q.first - 16",
        ),
        ("where((abs(k - q) <= 16) | (k < length[b]), SCORE, -inf)", "length[b]", "q.first - 16"),
        (
            "where((abs(k - q) <= 16) | (k < 4) | (q < 4), SCORE, -inf)",
            "4",
            "min(q.first - 16, where(4 <= q.first, S, 0))",
        ),
    ],
)
def test_a_range_from_0_beside_another(body: str, head: str, lo: str) -> None:
    found = bounds_of(body)
    assert found is not None
    assert (print_expr(found.head), print_expr(found.lo)) == (head, lo)


@pytest.mark.parametrize(
    "body",
    [
        "SCORE",
        "where(k <= q, SCORE, -100.0)",  # these keys keep a weight
        "where(k < length[b], SCORE, -1e10)",  # a finite fill, and no row is known to have a live key
        "where(k <= q, SCORE, 0.0)",
        # a live key may have a score below the fill: the row's maximum is the fill then, and every filled key counts
        "where(k <= q, SCORE + bias[q, k], -1e10)",
        "where(k <= q, SCORE - bias[q, k], -1e10)",
        "where(k <= q, SCORE + 0.5 * bias[q, k], -1e10)",
        "where(k <= q, SCORE + log(bias[q, k]), -1e10)",
        "where(k <= q, SCORE + f32(pad[b, k]) * -1e9, -1e10)",
        "where(k <= q, SCORE, -inf) - where(k <= q, SCORE, -inf)",  # NaN where k > q
        # nor do heads that are mixed have scores above it, where each has a fill or a mask of its own
        "where(k <= q, sum(h: slope[h] * where(ids[h, q] == ids[h, k], HEADS, -1e10)), -1e10)",
        "where(k <= q, sum(h: slope[h] * (HEADS + bias[q, k])), -1e10)",
    ],
)
def test_nothing_is_skipped(body: str) -> None:
    assert bounds_of(body) is None


@pytest.mark.parametrize(
    ("factor", "hi"),
    [
        ("/ where(k <= q, X[q, k], 0.0)", None),
        ("/ (1.0 + exp(X[q, k]))", "q.last + 1"),
        ("* log(where(k <= q, X[q, k], 0.0))", None),
        ("* log(X[q, k])", "q.last + 1"),
        ("* (X[q, k] / where(k <= q, X[q, k], 0.0))", None),
    ],
)
def test_nothing_times_what_nothing_divides_is_no_number(factor: str, hi: str | None) -> None:
    program = parse_program(f"""
program p
  size S
  dim q: S, k: S
  input X: f32[S, S]
  loop (q | k)
    carry c (q) f32: sum where(k <= q, exp(X[q, k]), 0.0) {factor}
    give y (q) f32 = c
  output y
""")
    (loop,) = program.loops
    (found,) = loop_bounds(loop, frozenset({"X"}), loop.kept, loop.loop[0])
    assert (None if found is None else print_expr(found.hi)) == hi


def test_masks_along_what_a_tile_holds_whole_bound_nothing() -> None:
    """Each element of `e` would begin elsewhere (fuzz 910005)."""
    program = parse_program("""
program p
  dim q: 64, k: 64, e: 8
  input X: f32[64, 64]
  input V: f32[64, 8]
  loop (q | k)
    carry A (q, e) f32: sum where(k <= e + 3, exp(X[q, k]) * V[k, e], 0.0)
    give y (q, e) f32 = A
  output y
""")
    (loop,) = program.loops
    assert loop_bounds(loop, frozenset({"X", "V"}), loop.kept, loop.loop[0]) == (None,)
    assert loop_skips(loop, frozenset({"X", "V"}), loop.kept, loop.loop[0]) == (None,)


def test_a_row_statistic_read_as_final_forbids_skipping() -> None:
    """exp(-inf - m) is NaN on a dead row, which eager shows in the whole column."""
    program = parse_program("""
program p
  size S
  dim q: S, k: S
  input X: f32[S, S]
  loop (q | k)
    carry m (q) f32: max where(k <= q, X[q, k], -inf)
    give peak (q) f32 = m
  dim i: S, j: S
  loop (j | i)
    carry c (j) f32: sum exp(where(j <= i, X[i, j], -inf) - peak[i])
    give y (j) f32 = c
  output y
""")
    second = program.loops[1]
    assert loop_bounds(second, frozenset({"X"}), second.kept, second.loop[0]) == (None,)


_ROWS, _COLS = 24, 30
_Q, _K = Dim("q", const(_ROWS)), Dim("k", const(_COLS))


def conditions() -> st.SearchStrategy[Expr]:
    """Conditions over q and k from a grammar: affine comparisons, blocks, minima, and, or, not."""
    atoms = st.sampled_from(
        [
            "k <= q", "q <= k", "q - k < 7", "k - q < 3", "k < 11", "4 <= k", "k <= max(9, q)", "k <= min(q, 12)",
            "2 * k <= q + 5", "q <= 3 * k", "k // 4 <= q // 4", "q // 5 == k // 5", "q + k < 30", "k == q", "k != q",
            "k % 3 == q % 3", "q < 9", "14 <= q",
            "abs(q - k) <= 3", "5 <= abs(k - q)", "abs(2 * k - q) < 9", "k - min(q, 5) <= 2", "max(k, q) < 15",
        ]
    )  # fmt: skip
    texts = st.recursive(
        atoms,
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from("&|"), inner).map(
                lambda t: f"({t[0]}) {t[1]} ({t[2]})"
            ),
            inner.map(lambda t: f"!({t})"),
        ),
        max_leaves=6,
    )
    return texts.map(_condition)


def _condition(text: str) -> Expr:
    program = parse_program(f"""
program p
  dim q: {_ROWS}, k: {_COLS}
  nest y (q, k) bool: {text}
  output y
""")
    return simplify(program.nests[0].body)


def _value(expr: Expr, at: dict[Dim, Expr]) -> int:
    result = simplify(substitute(expr, at))
    assert isinstance(result, Const), print_expr(result)
    return int(result.value)


@given(conditions(), st.sampled_from([(0, 8), (5, 13), (16, 24), (0, 24), (11, 12)]))
def test_random_conditions(condition: Expr, rows: tuple[int, int]) -> None:
    found = interval(condition, frozenset((_Q,)), _K)
    ends = {first(_Q): const(rows[0]), last(_Q): const(rows[1] - 1)}
    lo = 0 if found.lo is None else _value(found.lo, ends)
    hi = _COLS if found.hi is None else _value(found.hi, ends)
    head = 0 if found.head is None else _value(found.head, ends)
    full = (0, 0) if found.full is None else tuple(_value(e, ends) for e in found.full)
    for q in range(*rows):
        for k in range(_COLS):
            at: dict[Dim, Expr] = {_Q: const(q), _K: const(k)}
            if not (lo <= k < hi or k < head):
                assert not _value(condition, at)
            if full[0] <= k < full[1]:
                assert all(_value(h, at) for h in found.holds)


def test_a_window_has_full_tiles() -> None:
    assert interval(_condition("(k <= q) & (q - k < 7)"), frozenset((_Q,)), _K).full is not None
