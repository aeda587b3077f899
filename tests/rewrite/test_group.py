"""Which nests share a kernel, clause by clause."""

from __future__ import annotations

import pytest

from flashlight.errors import Refusal
from flashlight.ir.execute import execute_tiled
from flashlight.ir.interpret import interpret
from flashlight.ir.nests import Program
from flashlight.ir.text import parse_program
from flashlight.rewrite.group import Group, group, group_and_online
from flashlight.rewrite.unions import split_unions
from tests.rewrite.test_online_programs import assert_like
from tests.support.online_programs import HEAD, PV, SCORES, SQ, Row, inputs_for, softmax, text_of


def fused(
    *parts: str, outputs: str = "O", inputs: str = "", dims: str = "", head: str = HEAD
) -> Program:
    text = text_of("p", *parts, outputs=outputs, inputs=inputs, dims=dims, head=head)
    return Row(text, ()).fused


def groups_of(program: Program, tangents: frozenset[str] = frozenset()) -> list[Group]:
    found = group(program, tangents)
    assert not isinstance(found, Refusal)
    return found


def shape(g: Group) -> str:
    names = [",".join(d.name for d in dims) for dims in (g.frame.kept, g.frame.loop, g.frame.whole)]
    return f"({names[0]} | {names[1]}) {names[2]}".strip()


def check(program: Program) -> Program:
    """The program's loops, after comparing with its meaning."""
    result = group_and_online(program)
    assert not isinstance(result, Refusal)
    values = inputs_for(program)
    expected = interpret(program, values)
    assert_like(interpret(result, values), expected, "as nests")
    assert_like(execute_tiled(result, values, 4, 2), expected, "in tiles")
    return result


def test_nests_on_their_own_dims_are_put_on_one_frame() -> None:
    program = parse_program("""
program p
  size S
  dim q: S, k: S, d: 4, e: 6, t: S, j: S, c: 4, i: S, u: S
  input Q: f32[S, 4]
  input K: f32[S, 4]
  input V: f32[S, 6]
  nest m (q | k) f32: max sum(d: Q[q, d] * K[k, d])
  nest l (t | j) f32: sum exp(sum(c: Q[t, c] * K[j, c]) - m[t])
  nest O (e, u | i) f32: sum exp(sum(c: Q[u, c] * K[i, c]) - m[u]) / l[u] * V[i, e]
  output O
""")
    (g,) = groups_of(program)
    assert shape(g) == "(q | k) e"
    (loop,) = check(program).loops
    assert [d.name for d in loop.gives[0].dims] == ["e", "q"]
    assert len({c.body for c in loop.carries}) == 3


def test_the_matching_that_shares_most_is_chosen() -> None:
    # all extents are equal: only what the bodies read says which dim is which
    text = """
program p
  size S
  dim a: S, b: S, x: S, y: S
  input X: f32[S, S, S]
  nest m (a, b | x) f32: max X[a, b, x]
  nest l (x, y | a) f32: sum exp(X[y, x, a])
  output m, l
"""
    (g,) = groups_of(parse_program(text))
    assert [d.name for d in g.members[1].parallel] == ["b", "a"]


def test_reads_decide_where_bodies_do_not() -> None:
    text = """
program p
  size S
  dim a: S, b: S, x: S, s: S, t: S, y: S
  input X: f32[S, S]
  input Y: f32[S, S]
  nest m (a, b | x) f32: max X[a, x] + X[b, x]
  nest l (s, t | y) f32: sum Y[s, y] * Y[t, y] - m[t, s]
  output l
"""
    (g,) = groups_of(parse_program(text))
    assert [d.name for d in g.members[1].parallel] == ["b", "a"]


def test_a_final_at_another_row_is_another_kernel() -> None:
    program = fused(
        SCORES,
        softmax(dtype="f32"),
        """
  nest p2 (q, k) bf16: p[q, k] + p[k, q]
  nest O (q, e | k) bf16: sum p2[q, k] * V[k, e]
""",
        head=SQ,
    )
    assert len(check(program).loops) == 2


def test_a_final_at_a_shifted_row_is_another_kernel() -> None:
    program = fused(
        SCORES,
        softmax(),
        """
  nest O (q | k) f32: sum w[q, k] / l[max(q - 1, 0)]
""",
    )
    assert len(check(program).loops) == 2


def test_a_final_along_the_loop_is_another_kernel() -> None:
    program = fused(
        SCORES,
        "  nest a (q | k) f32: sum s[q, k]\n  nest O (q | k) f32: sum s[q, k] * a[k]",
        head=SQ,
    )
    assert len(check(program).loops) == 2


def test_no_cycle_through_another_kernel() -> None:
    # r1 (q|k) -> r2 (k|q) -> r3 (q|k): r3 may not join r1, and all three come in order of need
    program = fused(
        SCORES,
        """
  nest r1 (q | k) f32: sum s[q, k]
  nest r2 (k | q) f32: sum s[q, k] * r1[q]
  nest r3 (q | k) f32: sum s[q, k] * r2[k]
  nest O (q) f32: r1[q] + r3[q]
""",
    )
    groups = groups_of(program)
    assert [sorted(g.names) for g in groups] == [["r1"], ["r2"], ["O", "r3"]]
    check(program)


def test_kernels_come_in_topological_order() -> None:
    # O joins the first group after the second was opened, which it reads: the second must come first
    program = fused(
        SCORES,
        """
  nest r1 (q | k) f32: sum s[q, k]
  nest r2 (k | q) f32: max s[q, k]
  nest O (q | k) f32: sum s[q, k] * r1[q] * r2[k]
""",
    )
    groups = groups_of(program)
    assert [sorted(g.names) for g in groups] == [["r2"], ["O", "r1"]]
    check(program)


def test_what_depends_on_a_tangent_is_grouped_apart() -> None:
    program = fused(
        SCORES,
        softmax(),
        PV,
        "  nest D (q | k) f32: sum p[q, k] * G[q, k]",
        inputs="G: f32[S, T]",
        outputs="O, D",
    )
    assert len(groups_of(program)) == 1
    assert len(groups_of(program, frozenset({"G"}))) == 2


def test_equal_extents_alone_make_no_kernel() -> None:
    program = fused(
        """
  nest s (q, k | d) f32: sum Q[q, d] * K[k, d]
  nest t (q, k | d) f32: sum Q2[q, d] * K2[k, d]
  nest r1 (q | k) f32: max s[q, k]
  nest r2 (q | k) f32: max t[q, k]
""",
        inputs="Q2: f32[S, 4]; K2: f32[T, 4]",
        outputs="r1, r2",
    )
    assert len(groups_of(program)) == 2
    joined = fused(
        """
  nest s (q, k | d) f32: sum Q[q, d] * K[k, d]
  nest t (q, k | d) f32: sum Q2[q, d] * K2[k, d]
  nest r1 (q | k) f32: max s[q, k]
  nest r2 (q | k) f32: max t[q, k]
  nest O (q) f32: r1[q] - r2[q]
""",
        inputs="Q2: f32[S, 4]; K2: f32[T, 4]",
    )
    assert len(groups_of(joined)) == 1
    check(joined)


def test_pointwise_rows_become_gives() -> None:
    program = fused(
        SCORES,
        softmax(),
        PV,
        """
  nest lse (q) f32: m[q] + log(l[q])
  nest gated (q, e) bf16: O[q, e] * sigmoid(G[q, e])
""",
        inputs="G: bf16[S, 6]",
        outputs="lse, gated",
    )
    (loop,) = check(program).loops
    assert sorted(g.name for g in loop.gives) == ["gated", "lse"]


def test_a_norm_over_a_whole_dim_becomes_part_of_a_give() -> None:
    program = fused(
        SCORES,
        softmax(),
        PV,
        """
  nest n (q | f) f32: sum O[q, f] * O[q, f]
  nest Y (e, q) bf16: O[q, e] * rsqrt(n[q])
""",
        outputs="Y",
    )
    (loop,) = check(program).loops
    assert "sum(f:" in str(loop.gives[0].expr)


def test_a_pointwise_nest_over_other_dims_is_a_kernel() -> None:
    program = fused(softmax("X"), "  nest O (q, k) bf16: w[q, k] / l[q]", inputs="X: f32[S, T]")
    first, second = check(program).loops
    assert first.loop
    assert not second.loop
    assert not second.carries


def test_a_prologue_is_a_kernel() -> None:
    program = parse_program("""
program p
  size S
  dim i: S, q: S, k: S
  input X: f32[S]
  input Y: f32[S, S]
  nest z (i) f32: exp(X[i])
  nest O (q | k) f32: sum Y[q, k] * z[k]
  output O
""")
    first, second = check(program).loops
    assert not first.loop
    assert second.loop


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (("  nest O (q, e | k) f32: sum X[q, k] * V[k, e]",), "(q | k) e"),
        (("  nest O (q, f | k) f32: sum X[q, k] * Y[q, f, k]",), "(q,f | k)"),
        (("  nest O (q | k) f32: sum X[q, k]",), "(q | k)"),
        (("  nest O (f, e | k) f32: sum V[k, e] * Z[f, k]",), "(f | k) e"),
        (("  nest O (q, g | k) f32: sum X[q, k] * B[k, g]",), "(q,g | k)"),
    ],
)
def test_whole_dims(parts: tuple[str, ...], expected: str) -> None:
    program = fused(
        *parts, inputs="X: f32[S, T]; Y: f32[S, 6, T]; Z: f32[6, T]; B: f32[T, 513]", dims="g: 513"
    )
    (g,) = groups_of(program)
    assert shape(g) == expected


def test_beside_a_statistic_every_feature_dim_is_whole() -> None:
    program = fused(
        SCORES,
        softmax(),
        "  nest O (q, f | k) f32: sum p[q, k] * Y[q, k, f]",
        inputs="Y: f32[S, T, 6]",
    )
    (g,) = groups_of(program)
    assert shape(g) == "(q | k) f"


def test_a_row_statistic_keeps_its_small_dim() -> None:
    program = fused(
        """
  nest s (h, q, k | d) f32: sum Qh[h, q, d] * K[k, d]
  nest m (h, q | k) f32: max s[h, q, k]
  nest O (h, q | k) f32: sum exp(s[h, q, k] - m[h, q])
""",
        inputs="Qh: f32[2, S, 4]",
    )
    (g,) = groups_of(program)
    assert shape(g) == "(h,q | k)"


def test_a_reduction_over_more_dims_is_cut() -> None:
    program = fused(
        """
  nest s (h, q, k | d) f32: sum Qh[h, q, d] * K[k, d]
  nest m (h, q | k) f32: max s[h, q, k]
  nest top (h | q, k) f32: max s[h, q, k]
""",
        inputs="Qh: f32[2, S, 4]",
        outputs="m, top",
    )
    first, second = check(program).loops
    assert len(first.carries) == 1
    assert [d.name for d in second.loop] == ["q"]


def test_a_cut_needs_something_to_share() -> None:
    program = fused(
        SCORES,
        "  nest m (q | k) f32: max s[q, k]\n  nest t ( | q, k) f32: sum X[q, k]",
        inputs="X: f32[S, T]",
        outputs="m, t",
    )
    assert [len(g.frame.loop) for g in groups_of(program)] == [1, 2]


def test_an_argmax_is_not_cut() -> None:
    program = fused(
        SCORES,
        "  nest m (q | k) f32: max s[q, k]\n  nest t ( | q, k) i64: argmax s[q, k]",
        outputs="m, t",
    )
    assert [len(g.frame.loop) for g in groups_of(program)] == [1, 2]


@pytest.mark.parametrize(
    ("nest", "expected"),
    [
        ("nest O (| q, k) f32: sum exp(s[q, k])", ["(q | k)", "( | q)"]),
        ("nest O (| k, q) f32: max abs(X[q] - Y[k])", ["(k | q)", "( | k)"]),
        ("nest O (e | q, k) f32: sum exp(s[q, k]) * X[q] * V[k, e]", ["(q | k) e", "(e | q)"]),
        ("nest O (q | k) f32: sum s[q, k] * Y[k]", ["(q | k)"]),
        ("nest O (| k, e) f32: sum V[k, e]", ["( | k,e)"]),
        ("nest O (| q, i) f32: sum X[q] - Z[i]", ["( | q,i)"]),  # the pairs have few columns
    ],
)
def test_a_reduction_over_all_pairs_keeps_rows(nest: str, expected: list[str]) -> None:
    program = fused(SCORES, f"  {nest}", inputs="X: f32[S]; Y: f32[T]; Z: f32[7]", dims="i: 7")
    assert [shape(g) for g in groups_of(program)] == expected
    check(program)


def test_a_sink_column_splits_off() -> None:
    program = fused(
        SCORES,
        """
  nest c2 (q, kk) f32: where(kk < T, s[q, kk], sink[kk - T])
  nest m (q | kk) f32: max c2[q, kk]
  nest O (q | kk) f32: sum exp(c2[q, kk] - m[q])
""",
        inputs="sink: f32[1]",
        dims="kk: T + 1",
    )
    (loop,) = check(program).loops
    assert len(loop.carries) == 2


def test_a_leading_column_splits_off() -> None:
    program = fused(
        SCORES,
        """
  nest c2 (q, kk) f32: where(kk < 2, sink[kk], s[q, kk - 2])
  nest m (q | kk) f32: max c2[q, kk]
  nest O (q | kk) f32: sum exp(c2[q, kk] - m[q])
""",
        inputs="sink: f32[2]",
        dims="kk: T + 2",
    )
    (loop,) = check(program).loops
    assert len(loop.carries) == 2


@pytest.mark.parametrize(
    "nest",
    [
        "max where(kk < T, s[q, kk], -inf)",  # a mask
        "argmax where(kk < T, s[q, kk], sink[0])",  # positions would have to be mended
        "max where((kk < T) & (q < 3), s[q, min(kk, T - 1)], sink[0])",  # the comparison does not decide
    ],
)
def test_no_union(nest: str) -> None:
    dtype = "i64" if "argmax" in nest else "f32"
    program = fused(
        SCORES, f"  nest O (q | kk) {dtype}: {nest}", inputs="sink: f32[1]", dims="kk: T + 1"
    )
    assert split_unions(program) is program


def test_two_large_parts_stay_one_loop() -> None:
    program = fused(
        "  nest O (q | kk) f32: max where(kk < T, X[q, min(kk, T - 1)], Y[q, max(kk - T, 0)])",
        inputs="X: f32[S, T]; Y: f32[S, S]",
        dims="kk: T + S",
    )
    assert split_unions(program) is program


def test_a_whole_dim_that_would_be_confused_is_renamed_apart() -> None:
    # the second nest calls its feature dim by the name of the first one's rows
    program = parse_program("""
program p
  size T
  dim q: 6, k: T, r: 6
  input X: f32[6, T]
  input V: f32[T, 6]
  nest m (q | k) f32: sum X[q, k]
  nest O (r, q | k) f32: sum X[r, k] / m[r] * V[k, q]
  output O
""")
    (loop,) = check(program).loops
    assert [d.name for d in loop.gives[0].dims] == ["q", "q'"]


def test_loops_are_not_made_twice() -> None:
    program = check(fused(SCORES, softmax(), PV))
    again = group_and_online(program)
    assert isinstance(again, Refusal)
    assert again.code == "loops-already"


def test_another_choice_may_be_taken() -> None:
    program = fused(
        SCORES,
        """
  nest p (q, k) f32: exp(s[q, k] - mI[q])
  nest D (q | k) f32: sum p[q, k] * s[q, k]
  nest ds (q, k) f32: p[q, k] * s[q, k] - p[q, k] * D[q]
  nest O (q, d | k) f32: sum ds[q, k] * K[k, d]
""",
        inputs="mI: f32[S]",
    )
    first, last = (group_and_online(program, choose=lambda c, i=i: c[i]) for i in (0, -1))
    assert not isinstance(first, Refusal)
    assert not isinstance(last, Refusal)
    assert [len(p.loops[0].passes) for p in (first, last)] == [1, 2]
