"""What has no action, clause by clause: such nests run in a later pass, and mean what they meant."""

from __future__ import annotations

import pytest

from flashlight.errors import Refusal
from flashlight.ir.dtypes import DType
from flashlight.ir.execute import execute_tiled
from flashlight.ir.exprs import Buffer, Dim, Load, Size
from flashlight.ir.interpret import interpret
from flashlight.ir.monoids import MAX, MIN
from flashlight.ir.nests import Loop, Program
from flashlight.ir.text import parse_expr
from flashlight.ir.verify import LAWS, verify
from flashlight.rewrite.bits import NO_ROUNDING
from flashlight.rewrite.factor import factor
from flashlight.rewrite.group import group, group_and_online
from flashlight.rewrite.monotone import hoist
from flashlight.rewrite.online import online
from flashlight.rewrite.split import MOST_TERMS, Split
from tests.rewrite.test_online_programs import assert_like
from tests.support.online_programs import PV, SCORES, Row, inputs_for, softmax, text_of

SOFTMAX = SCORES + softmax(dtype="f32")
OUT = "  nest O (q, e | k) bf16: sum r[q, k] * V[k, e]"


def derived(*parts: str, outputs: str = "O", inputs: str = "", dims: str = "") -> Program:
    """The loops of a program, checked against its meaning."""
    program = Row(text_of("p", *parts, outputs=outputs, inputs=inputs, dims=dims), ()).fused
    result = group_and_online(program)
    assert not isinstance(result, Refusal)
    verify(result, LAWS)
    values = inputs_for(program)
    expected = interpret(program, values)
    assert_like(interpret(result, values), expected, "as nests")
    assert_like(execute_tiled(result, values, 4, 2), expected, "in tiles")
    return result


def only_loop(*parts: str, **rest: str) -> Loop:
    (loop,) = derived(*parts, **rest).loops
    return loop


NO_ACTION = {
    "an exponent's part that reads a final and varies": (
        SCORES,
        "  nest t (q | k) f32: sum abs(s[q, k])",
        "  nest w (q, k) f32: exp(s[q, k] / t[q])",
        "  nest r (q, k) bf16: w[q, k]",
        OUT,
    ),
    "a homogeneous function of parts with different weights": (
        SOFTMAX,
        "  nest r (q, k) bf16: max(p[q, k], 0.01)",
        OUT,
    ),
    "a homogeneous function under a coef that may be negative": (
        SCORES,
        "  nest t (q | k) f32: sum s[q, k]",
        "  nest r (q, k) bf16: max(s[q, k] * t[q], 0.0)",
        OUT,
    ),
    "a comparison of different weights": (
        SOFTMAX,
        "  nest r (q, k) bf16: where(p[q, k] > 0.1, p[q, k], 0.0)",
        OUT,
    ),
    "a comparison of one weight, whose reference it would read": (
        SOFTMAX,
        "  nest r (q, k) bf16: where(w[q, k] > exp(-m[q]), 1.0, 0.0)",
        OUT,
    ),
    "a logarithm of what varies": (SOFTMAX, "  nest r (q, k) bf16: log(p[q, k] + 1.0)", OUT),
    "a tanh": (SOFTMAX, "  nest r (q, k) bf16: tanh(p[q, k])", OUT),
    "a square root of a varying sum": (
        SOFTMAX,
        "  nest r (q, k) bf16: sqrt(p[q, k] + l[q])",
        OUT,
    ),
    "a divisor of several terms": (
        SOFTMAX,
        "  nest r (q, k) bf16: 1.0 / (p[q, k] + 1.0)",
        OUT,
    ),
    "a power that is no small integer": (
        SOFTMAX,
        "  nest r (q, k) bf16: p[q, k] ** 0.3",
        OUT,
    ),
    "a maximum through a where with a fill": (
        SOFTMAX,
        "  nest O (q | k) f32: max where(k <= q, p[q, k], 0.5)",
    ),
    "a maximum under a coef that may be negative": (
        SCORES,
        "  nest t (q | k) f32: sum s[q, k]",
        "  nest O (q | k) f32: max s[q, k] * t[q]",
    ),
    "a product over the loop": (SOFTMAX, "  nest O (q | k) f32: prod 1.0 - p[q, k]"),
    "a condition in any() that moves": (
        SOFTMAX,
        "  nest big (q | k) bool: any p[q, k] > 0.3",
        "  nest O (q) f32: where(big[q], 1.0, 0.0)",
    ),
    "a shift by a maximum of something else, which may jump": (
        SCORES,
        "  nest t (q | k) f32: max abs(s[q, k])",
        "  nest O (q | k) f32: sum W[k] - t[q]",
    ),
    "shifts that move with one value and differ": (
        SCORES,
        "  nest t (q | k) f32: sum s[q, k]",
        "  nest O (q | k) f32: sum (W[k] - t[q]) * (s[q, k] - t[q])",
    ),
}


@pytest.mark.parametrize("parts", NO_ACTION.values(), ids=NO_ACTION)
def test_no_action(parts: tuple[str, ...]) -> None:
    loop = only_loop(*parts, inputs="W: f32[T]")
    assert len(loop.passes) == 2


def test_an_inner_sum_whose_coef_mentions_its_dim_takes_another_pass() -> None:
    loop = only_loop(
        SCORES,
        "  nest t (q | k) f32: sum s[q, k]",
        "  nest O (q | k) f32: max sum(c: W[k, c] * exp(s[q, k] * t[q] * f32(c)))",
        inputs="W: f32[T, 3]",
    )
    assert len(loop.passes) == 2


def test_a_shift_by_what_is_not_running_waits_for_it() -> None:
    # t is accumulated in pass 2 only; the entropy-like shift by it cannot run in pass 1, nor in pass 2 by t's own running value
    loop = only_loop(
        SOFTMAX,
        "  nest t (q | k) f32: sum log(p[q, k] + 1.0)",
        "  nest O (q | k) f32: sum w[q, k] * (s[q, k] - t[q])",
    )
    assert len(loop.passes) == 2
    assert loop.passes[1].carries[-1].shifts


def test_later_passes_read_earlier_finals_as_they_are() -> None:
    loop = only_loop(SOFTMAX, "  nest r (q, k) bf16: tanh(p[q, k])", OUT)
    (carry,) = loop.passes[1].carries
    assert not carry.weight
    assert "sum(d: Q[q, d] * K[k, d]) * 0.5 - m[q] * 0.5" in str(carry.body)


def test_too_many_terms() -> None:
    q, k = Dim("q", Size("S")), Dim("k", Size("T"))
    names = [q, k, *(Buffer(n, (Size("S"),), DType.F32) for n in "abcdefghij")]
    names += [Buffer(n, (Size("S"), Size("T")), DType.F32) for n in "stuvxyzwop"]
    sums = [f"({y}[q, k] * {x}[q] + {y}[q, k] * {y}[q, k])" for x, y in zip("abcde", "stuvx")]
    product = parse_expr(" * ".join(sums), names)
    split = Split(frozenset("abcdefghij"), frozenset((k,)), lambda _: False, NO_ROUNDING)
    assert split(product) is None
    few = split(parse_expr(" * ".join(sums[:4]), names))
    assert few is not None
    assert len(few) == MOST_TERMS


def test_factoring_forms_the_difference_first() -> None:
    k = Dim("k", Size("T"))
    names = [k, *(Buffer(n, (Size("T"),), DType.F32) for n in "pu"), Buffer("d", (), DType.F32)]
    body = parse_expr("p[k] * u[k] - p[k] * d[]", names)
    found = factor(body, lambda e: "d[]" in str(e), lambda e: "[k]" in str(e))
    assert str(found) == "p[k] * (u[k] - d[])"


@pytest.mark.parametrize(
    ("body", "monoid", "inner", "outer"),
    [
        ("s[k] * 0.25", MAX, "max s[k]", "R * 0.25"),
        ("where(k < 3, s[k] * 0.25, -inf)", MAX, "max where(k < 3, s[k], -inf)", "R * 0.25"),
        ("where(k < 3, s[k] * 0.25, 0.0)", MAX, "max where(k < 3, s[k] * 0.25, 0.0)", "R"),
        ("s[k] * -0.25", MAX, "max s[k] * -0.25", "R"),
        ("exp(s[k] - m[]) / exp(m[])", MAX, "max s[k]", "exp(R - m[]) / exp(m[])"),
        ("m[] - s[k]", MAX, "min s[k]", "m[] - R"),
        ("-(s[k] - m[])", MIN, "max s[k]", "-(R - m[])"),
        ("s[k] / m[]", MAX, "max s[k] / m[]", "R"),
    ],
)
def test_monotone_wrappers(body: str, monoid: object, inner: str, outer: str) -> None:
    k = Dim("k", Size("T"))
    names = [k, Buffer("s", (Size("T"),), DType.F32), Buffer("m", (), DType.F32)]
    result = Buffer("R", (), DType.F32)
    found = hoist(
        monoid,  # type: ignore[arg-type]
        parse_expr(body, names),
        frozenset((k,)),
        lambda e: "m[]" in str(e),
        lambda _: False,
    )
    assert f"{found.monoid} {found.body}" == inner
    assert str(found.wrap(Load(result, ()))).replace("R[]", "R") == outer


def test_every_legal_choice_is_returned_the_default_first() -> None:
    program = Row(
        text_of(
            "p",
            SCORES,
            """
  nest p (q, k) f32: exp(s[q, k] - mI[q])
  nest dp (q, k | e) bf16: sum dO[q, e] * V[k, e]
  nest D (q | k) f32: sum p[q, k] * dp[q, k]
  nest ds (q, k) bf16: p[q, k] * dp[q, k] - p[q, k] * D[q]
  nest O (q, d | k) bf16: sum ds[q, k] * K[k, d]
""",
            inputs="dO: bf16[S, 6]; mI: f32[S]",
        ),
        (),
    ).fused
    (g,) = group(program)  # type: ignore[misc]
    wanted = {"O": g.members[-1].parallel}
    choices = online(g.frame.kept, g.frame.loop, g.members, wanted)
    assert [(c.passes, c.dots, c.carries) for c in choices] == [(1, 4, 3), (2, 5, 2)]
    assert all(c.loop.kept == g.frame.kept for c in choices)


def test_shared_maxima_are_one_carry() -> None:
    loop = only_loop(
        SCORES, softmax(), PV, "  nest mx (q | k) f32: max s[q, k] * 2.0", outputs="O, mx"
    )
    assert sum(c.monoid is MAX for c in loop.carries) == 1


def test_a_dead_row_test_reads_the_maximum() -> None:
    loop = only_loop(
        SCORES,
        "  nest x (q, k) f32: where(M[q, k], s[q, k], -inf)",
        softmax("x"),
        "  nest dead (q | k) bool: all x[q, k] == -inf",
        "  nest r (q, k) bf16: where(dead[q], 0.0, p[q, k])",
        OUT,
        inputs="M: bool[S, T]",
    )
    assert [c.monoid.name for c in loop.carries] == ["max", "sum", "sum"]


def test_a_guard_that_surely_holds_needs_no_bit() -> None:
    parts = ("  nest r (q, k) bf16: where({}, p[q, k], 0.0)", OUT)
    for guard, seen in (("k <= q", 0), ("k < q", 1), ("M[q, k]", 1)):
        loop = only_loop(SOFTMAX, parts[0].format(guard), parts[1], inputs="M: bool[S, T]")
        assert sum(c.monoid.name == "any" for c in loop.carries) == seen, guard


def test_names_of_carries_are_new() -> None:
    result = derived(SCORES, softmax(), PV, outputs="O, m, l")
    names = [c.name for x in result.loops for c in x.carries]
    gives = [g.name for x in result.loops for g in x.gives]
    assert gives == ["m", "l", "O"]
    assert not set(names) & set(gives)
