"""Text says exactly what a program is, in space linear in it."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import (
    Binary,
    Buffer,
    Const,
    Dim,
    Expr,
    Index,
    Load,
    Unary,
    add,
    const,
    mul,
)
from flashlight.ir.nests import Program
from flashlight.ir.text import (
    TextError,
    parse_expr,
    parse_program,
    print_expr,
    print_program,
    print_statement,
)
from tests.support.programs import BUFFERS, DIMS, S, T, expressions, loop_programs, programs

NAMES = (S, T, *DIMS, *BUFFERS)

ATTENTION = """\
program attention
  size S, T
  dim q: S, k: T, d: 64, e: 64
  input Q: bf16[S, 64]
  input K: bf16[T, 64]
  input V: bf16[T, 64]
  nest scores (q, k | d) bf16: sum Q[q, d] * K[k, d]
  nest weight (q, k) f32: exp(scores[q, k] - 1.0)
  loop (q | k)
    let s(q, k) = where(k <= q, sum(d: Q[q, d] * K[k, d]) * 0.25, -inf)
    carry m (q) f32: max s
    carry l (q) f32: sum exp(s - ~m) moves exp(-m)
    carry A (q, e) f32: sum exp(s - ~m) * V[k, e] moves exp(-m)
    carry B (q, e) f32: sum exp(s - ~m) * (V[k, e] - ~l) moves exp(-m) shift -l over A
    give O (q, e) bf16 = A / l
    pass 2
    carry C (q, e) f32: sum (exp(s - m) / l > 0.01) * V[k, e]
    give P (q, e) bf16 = A / l + B + C
  output O, P"""


def test_reads_as_the_contract_says() -> None:
    program = parse_program(ATTENTION)
    assert print_program(program) == ATTENTION
    assert str(program) == ATTENTION
    assert [len(p.carries) for p in program.loops[0].passes] == [4, 1]
    assert program.loops[0].carries[3].lower == ("A",)


@given(programs())
def test_programs_round_trip(program: Program) -> None:
    assert parse_program(print_program(program)) == program


@given(loop_programs())
def test_loops_round_trip(program: Program) -> None:
    text = print_program(program)
    assert parse_program(text) == program
    assert print_program(parse_program(text)) == text


@given(expressions())
def test_expressions_round_trip(expr: Expr) -> None:
    assert parse_expr(print_expr(expr), NAMES) is expr


@given(expressions())
def test_pickling_keeps_identity(expr: Expr) -> None:
    assert pickle.loads(pickle.dumps(expr)) is expr


X = parse_expr("X[q, d]", NAMES)


@pytest.mark.parametrize(
    "text",
    [
        "a - (b - c)",
        "a - b - c",
        "a / (b * c)",
        "a ** (b ** c)",
        "(a ** b) ** c",
        "-a ** b",
        "(-a) ** b",
        "-(a * b)",
        "-a * b",
        "-(-a)",
        "~(-a)",
        "-(1.0)",
        "-1.0",
        "-(1.0 ** b)",
        "(-1.0) ** b",
        "-(inf)",
        "-inf:f64",
        "a - -1.0",
        "!(a < b)",
        "(a < b) & c",
        "a < (b & c)",
        "(a < b) == c",
        "a | b ^ c & a",
        "(a | b) ^ c",
        "a // b % c",
        "min(a, max(b, c))",
        "max(d: a)",
        "sum(d, k: a * b)",
        "argmax(d: a)",
        "f32(bf16(a))",
        "where(a < b, b, nan:f16)",
        "1:i32 + 7",
        "0.5:f64 * 1e-30",
        "-0.0",
        "Z[] + T",
        "X[q + 1, d // 2 * 2]",
        "exp[a] + exp(a)",
    ],
)
def test_spelling_has_no_parenthesis_too_many(text: str) -> None:
    names = [Dim("a", S), Dim("b", S), Dim("c", S), Buffer("Z", (), DType.F32), *NAMES]
    expr = parse_expr(text, names)
    assert print_expr(expr) == text
    assert parse_expr(print_expr(expr), names) is expr


def _tower(height: int) -> Expr:
    """A graph with 2 ** (height / 2) paths."""
    x = X
    for i in range(height):
        x = mul(x, x) if i % 2 else Unary("exp", add(x, const(1.0)))
    return x


def test_shared_graphs_print_in_linear_space() -> None:
    sizes = [len(print_expr(_tower(n))) for n in (100, 200, 400)]
    assert sizes[2] < 5 * sizes[0]
    assert parse_expr(print_expr(_tower(400)), NAMES) is _tower(400)


def test_deep_chains_parse() -> None:
    nested, flat = X, X
    for _ in range(3000):
        nested = Unary("tanh", nested)
        flat = Binary("add", flat, X)
    assert parse_expr(print_expr(nested), NAMES) is nested
    assert parse_expr(print_expr(flat), NAMES) is flat


def test_lets_may_stand_under_a_nest() -> None:
    text = """\
program p
  dim q: 4
  input X: f32[4]
  nest y (q) f32: t * t
    let t(q) = exp(X[q] * 2.0 + 1.0)
  output y"""
    program = parse_program(text)
    assert str(program) == text
    body = program.nests[0].body
    assert isinstance(body, Binary)
    assert body.a is body.b


def test_let_names_avoid_what_is_there() -> None:
    text = """\
program p
  dim t: 4
  input s: f32[4]
  nest y (t) f32: exp(s[t] * 2.0 + 1.0) * exp(s[t] * 2.0 + 1.0)
  output y"""
    program = parse_program(text)
    assert parse_program(str(program)) == program
    assert "let t2(t)" in str(program)


def test_order_does_not_matter_to_the_parser() -> None:
    """So that tests of the verifier can say wrong things."""
    program = parse_program(
        "program p\ndim q: 4\nnest a (q) f32: b[q]\nnest b (q) f32: 1.0\noutput a  # comment"
    )
    assert [n.name for n in program.nests] == ["a", "b"]


def test_repr_is_text() -> None:
    program = parse_program(ATTENTION)
    loop = program.loops[0]
    assert repr(program) == ATTENTION
    assert repr(program.nests[0]) == "nest scores (q, k | d) bf16: sum Q[q, d] * K[k, d]"
    assert repr(program.nests[0].body) == "Q[q, d] * K[k, d]"
    assert repr(program.inputs[0]) == "Q: bf16[S, 64]"
    assert repr(DIMS[1]) == "k: T + 1"
    assert repr(loop.gives[0]) == "give O (q, e) bf16 = A[q, e] / l[q]"
    assert repr(loop.carries[0]).startswith("carry m (q) f32: max where(k <= q, ")
    assert repr(loop) == print_statement(loop)
    assert repr(loop).startswith("loop (q | k)\n  let s(q, k) = ")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nest y (q) f32: Y[q]", "Unknown buffer 'Y'"),
        ("nest y (q) f32: z + 1.0", "Unknown name 'z'"),
        ("nest y (r) f32: 1.0", "Unknown dim 'r'"),
        ("nest y (q) f31: 1.0", "Expected a type, got 'f31'"),
        ("nest y (q) f32: foo(X[q])", "Unknown function 'foo' of 1 arguments"),
        ("nest y (q) f32: X[q", "Expected ',', got 'the end of the line'"),
        ("nest y (q) f32: X[q] X[q]", "Expected the end of the line, got 'X'"),
        ("nest y (q) f32: q < q < q", "Comparisons do not chain"),
        ("nest y (q) f32: 1.5:i32", "no literal of type i32"),
        ("nest y (q | q) f32: X[q]", "Expected a monoid, got 'X'"),
        ("nest X (q) f32: 1.0", "The name 'X' is taken"),
        ("nest inf (q) f32: 1.0", "The name 'inf' is taken"),
        ("carry y (q) f32: sum 1.0", "A 'carry' belongs under a loop"),
        ("let y = 1.0", "A 'let' belongs under a nest or loop"),
        ("nst y (q) f32: 1.0", "Unknown statement 'nst'"),
        ("nest y (q) f32: 1.0 $ 2.0", "Unexpected character '$'"),
    ],
)
def test_errors_say_where(line: str, message: str) -> None:
    with pytest.raises(TextError) as error:
        parse_program(f"program p\n  dim q: 4\n  input X: f32[4]\n  {line}\n  output y")
    assert message in str(error.value)
    assert "Line 4: " in str(error.value)


@given(st.integers(-5, 5), st.sampled_from(list(DType)))
def test_literals_are_exact(value: int, dtype: DType) -> None:
    literal = const(value, dtype)
    parsed = parse_expr(print_expr(literal))
    assert parsed is literal
    assert isinstance(parsed, Const)
    assert type(parsed.value) is type(literal.value)


def test_own_dims_only_are_left_out() -> None:
    """`m` is m at the loop's own row; any other row is written."""
    text = """\
program p
  dim q: 4, r: 4, k: 5
  input X: f32[4, 5]
  loop (q | k)
    carry m (q) f32: max X[q, k]
    give y (q) f32 = m + m[q + 1]
  output y"""
    program = parse_program(text)
    assert str(program) == text.replace(", r: 4", "")
    first = program.loops[0].gives[0].expr
    assert isinstance(first, Binary)
    assert first.a is Load(program.loops[0].carries[0].buffer, (Index(program.loops[0].kept[0]),))


def test_sizes_that_share_terms_are_printed_in_full() -> None:
    padded = "n1 // 2 + (4 + -1 * (n1 // 2 % 4)) % 4"
    text = f"""program p
  size n1
  dim i: ({padded}) // (({padded}) // 4), j: n1
  input x: f32[({padded}) // (({padded}) // 4), n1]
  nest y (i, j) f32: x[i, j]
  output y"""
    program = parse_program(text)
    assert "let" not in print_program(program)
    assert parse_program(print_program(program)) == program
