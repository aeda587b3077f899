"""Every clause of validity has a program that breaks it."""

from __future__ import annotations

import pytest
from hypothesis import given

from flashlight.errors import VerifyError
from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import Binary, Buffer, Const, Dim, Expr, Index, Load, Size, Unary, const
from flashlight.ir.monoids import SUM
from flashlight.ir.nests import Nest, Program
from flashlight.ir.text import parse_program
from flashlight.ir.verify import LAWS, LOOPS, STRUCTURE, verify
from tests.support.programs import programs

F32, I64 = DType.F32, DType.I64
Q, K = Dim("q", const(4)), Dim("k", const(5))
X = Buffer("X", (const(4), const(5)), F32)
X_QK = Load(X, (Index(Q), Index(K)))

ATTENTION = """\
program attention
  size S, T
  dim q: S, k: T, d: 4, e: 3
  input Q: bf16[S, 4]
  input K: bf16[T, 4]
  input V: bf16[T, 3]
  nest shift (q) f32: Q[q, 0]
  loop (q | k)
    let s(q, k) = sum(d: Q[q, d] * K[k, d]) - shift[q]
    carry m (q) f32: max s
    carry l (q) f32: sum exp(s - ~m) moves exp(-m)
    carry A (q, e) f32: sum exp(s - ~m) * V[k, e] moves exp(-m)
    carry B (q, e) f32: sum exp(s - ~m) * V[k, e] * (V[k, 0] - ~mean) moves exp(-m) shift -mean over A
    give mean (q) f32 = l / f32(T)
    give O (q, e) bf16 = A / l
    pass 2
    carry n (q) f32: sum exp(s - m) / l
    carry seen (q) bool: any s > m - 1.0
    give N (q) f32 = where(seen, n, 0.0)
  output O, N"""


def test_a_valid_program() -> None:
    verify(parse_program(ATTENTION), LAWS)


@given(programs())
def test_random_programs_are_valid(program: Program) -> None:
    verify(program, LAWS)


def refused(text: str, level: int) -> str:
    """The message of a program that is valid below `level` and not at it."""
    program = parse_program(text)
    if level > STRUCTURE:
        verify(program, level - 1)
    with pytest.raises(VerifyError) as error:
        verify(program, level)
    assert error.value.__notes__ == [str(program)]
    return str(error.value)


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("output O, N", "output O, M", "Outputs: 'M' is no result"),
        ("output O, N", "output A", "Outputs: 'A' is no result"),
        ("output O, N", "output Q", "Outputs: 'Q' is no result"),
        ("shift (q) f32: Q[q, 0]", "shift (q) f32: Q[q]", "with 1 indices"),
        ("shift (q) f32: Q[q, 0]", "shift (q) f32: Q[q, 0.0]", "'0.0', which is no integer"),
        ("shift (q) f32: Q[q, 0]", "shift (q) f32: Q[q, d]", "'d' is not in scope"),
        ("shift (q) f32: Q[q, 0]", "shift (q, q) f32: Q[q, 0]", "dim 'q' occurs twice"),
        ("shift (q) f32: Q[q, 0]", "shift (q | q) f32: sum Q[q, 0]", "dim 'q' occurs twice"),
        ("shift (q) f32: Q[q, 0]", "shift (q |) f32: sum Q[q, 0]", "exactly when"),
        ("shift (q) f32: Q[q, 0]", "shift (q) f32: O[q, 0]", "reads 'O', which is not known there"),
        ("shift (q) f32: Q[q, 0]", "shift (q) f32: shift[q]", "'shift', which is not known there"),
        ("shift (q) f32: Q[q, 0]", "shift (q) i64: Q[q, 0]", "has a bf16 value but is i64"),
        ("shift (q) f32: Q[q, 0]", "shift (q) f32: f32(q < 1) & q", "'and' of a float"),
        (
            "shift (q) f32: Q[q, 0]",
            "shift (q) f32: where(q, 1.0, 2.0)",
            "condition that is no bool",
        ),
        ("shift (q) f32: Q[q, 0]", "shift (q) f32: f32(!Q[q, 0])", "'not' of a float"),
        ("shift (q) f32: Q[q, 0]", "shift (q) f32: f32(-(q < 1))", "'neg' of a bool"),
        ("shift (q) f32: Q[q, 0]", "shift (q) f32: sum(d: q < d)", "'sum' of a bool value"),
        ("shift (q) f32: Q[q, 0]", "shift (q) f32: f32(any(d: d))", "'any' of a i64 value"),
        ("shift (q) f32: Q[q, 0]", "shift (q) f32: sum(: 1.0)", "'sum' reduces no dim"),
        ("shift (q) f32: Q[q, 0]", "shift (q) f32: sum(d, d: 1.0)", "dim 'd' occurs twice"),
        ("f32: max s", "f32: max s + l", "reads 'l', which is not known there"),
        ("f32: max s", "f32: max s + ~N", "reads 'N', which is not known there"),
        ("f32: max s", "f32: max sum(k: Q[q, 0])", "binds the dim 'k' of the loop"),
        ("carry m (q) f32: max s", "carry m (q) bf16: max s", "accumulates in bf16"),
        ("carry m (q) f32: max s", "carry m (q) i64: max s", "has a f32 value but is i64"),
        ("carry B (q, e) f32", "carry B (q) f32", "'e' is not in scope"),
        ("- shift[q]", "- shift[q] * N[0]", "reads 'N', which is not known there"),
        ("carry A (q, e) f32", "carry A (e) f32", "lacks the kept dim 'q'"),
        ("carry A (q, e) f32", "carry A (q, k) f32", "dim 'k' occurs twice"),
        ("give O (q, e) bf16 = A / l", "give O (e) bf16 = 1.0", "lacks the kept dim 'q'"),
        ("give O (q, e) bf16 = A / l", "give O (q, e) bf16 = s", "'k' is not in scope"),
        ("give O (q, e) bf16 = A / l", "give O (q, e) bf16 = sum(k: V[k, e])", "binds the dim 'k'"),
        ("give O (q, e) bf16 = A / l", "give O (q, e) bf16 = n", "reads 'n', which is not known"),
        ("sum exp(s - ~m) moves exp(-m)", "sum exp(s - ~m) moves exp(s)", "'k' is not in scope"),
        ("sum exp(s - ~m) moves exp(-m)", "sum exp(s - ~m) moves exp(q)", "which is no float"),
        ("loop (q | k)", "loop (q, e | k)", "lacks the kept dim 'e'"),
        ("loop (q | k)", "loop (q | q, k)", "dim 'q' occurs twice"),
    ],
)
def test_structure(right: str, wrong: str, message: str) -> None:
    assert right in ATTENTION
    assert message in refused(ATTENTION.replace(right, wrong, 1), STRUCTURE)


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("exp(s - ~m) * V[k, e] moves", "exp(s - m) * V[k, e] moves", "without an anchor"),
        ("(V[k, 0] - ~mean)", "(V[k, 0] - mean)", "reads the running value of 'mean' without"),
        ("* V[k, e] moves exp(-m)", "* V[k, e]", "'m' and does not move with it"),
        (" shift -mean over A", "", "reads the running value of 'l' and does not move"),
        ("carry seen (q) bool: any s > m - 1.0", "carry seen (q) bool: any s > ~n", "no law of"),
        ("carry m (q) f32: max s", "carry m (q) f32: max s moves exp(-1.0)", "no law of motion"),
        ("shift -mean over A", "shift -mean", "no lower carry with the shifts 'none'"),
        (
            "shift -mean over A",
            "shift -mean, -mean over A",
            "no lower carry with the shifts '-mean",
        ),
        ("shift -mean over A", "shift -mean over A, l", "has no part in its move"),
        ("shift -mean over A", "shift -mean over A, n", "'n' is no carry of its pass"),
        ("shift -mean over A", "shift -mean over m", "has another weight"),
        ("give O (q, e) bf16 = A / l", "give O (q, e) bf16 = A / l[q + 1]", "not its own row"),
        ("sum exp(s - m) / l", "sum exp(s - m[k]) / l", "not its own row"),
        ("sum exp(s - m) / l", "sum exp(s - m) * A[q, k]", "varies along the loop"),
    ],
)
def test_claims(right: str, wrong: str, message: str) -> None:
    assert right in ATTENTION
    assert message in refused(ATTENTION.replace(right, wrong, 1), LOOPS)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("sum exp(s - ~m) moves exp(-m)", "sum exp(s - ~m) moves exp(m)"),
        ("sum exp(s - ~m) moves exp(-m)", "sum exp(s - ~m) moves exp(-m, -m)"),
        ("exp(s - ~m) * V[k, e] moves", "abs(s - ~m) * V[k, e] moves"),
        ("exp(s - ~m) * V[k, e] moves", "max(exp(s - ~m), 1.0) * V[k, e] moves"),
        ("exp(s - ~m) * V[k, e] moves", "tanh(exp(s - ~m)) * V[k, e] moves"),
        ("shift -mean over A", "shift mean over A"),
        ("(V[k, 0] - ~mean) moves", "(V[k, 0] - ~mean * 2.0) moves"),
        ("shift -mean over A", "shift -mean over l"),
    ],
)
def test_laws(right: str, wrong: str) -> None:
    assert right in ATTENTION
    message = refused(ATTENTION.replace(right, wrong, 1), LAWS)
    assert "does not move as it claims" in message


@pytest.mark.parametrize(
    "body",
    [
        "exp(s - ~m) moves exp(-m)",
        "max(exp(s - ~m) - exp(Y[k] - ~m), 0.0) moves exp(-m)",
        "where(k <= q, exp(s - ~m), 0.0) moves exp(-m)",
        "where(exp(s - ~m) > exp(Y[k] - ~m), exp(s - ~m), 0.0) moves exp(-m)",
        "exp(s - ~m) ** 2.0 moves exp(-m, -m)",
        "exp(s - ~m) * exp(Y[k] + ~n) moves exp(-m, n)",
        "exp(s - (~m + ~log(n))) moves exp(-m, -log(n))",
    ],
)
def test_true_claims(body: str) -> None:
    verify(
        parse_program(
            f"""
            program p
              size S, T
              dim q: S, k: T
              input X: f32[S, T]
              input Y: f32[T]
              loop (q | k)
                let s(q, k) = X[q, k]
                carry m (q) f32: max s
                carry n (q) f32: sum abs(s)
                carry A (q) f32: sum {body}
                give O (q) f32 = A
              output O
            """
        ),
        LAWS,
    )


def test_an_anchor_holds_for_the_whole_of_what_it_is_above() -> None:
    """~(-m - log n) is not ~(-m) + ~(-log n): with one of two references unset they differ."""
    text = """\
program p
  size S, T
  dim q: S, k: T
  input X: f32[S, T]
  loop (q | k)
    carry m (q) f32: max X[q, k]
    carry n (q) f32: sum abs(X[q, k])
    carry A (q) f32: sum exp(X[q, k] + ~(-m - log(n))) moves exp(-m - log(n))
    give O (q) f32 = A
  output O"""
    verify(parse_program(text), LAWS)
    refused(text.replace("moves exp(-m - log(n))", "moves exp(-m, -log(n))"), LAWS)


def one_nest(body: Expr, **changed: object) -> Program:
    nest = Nest("y", (Q,), (K,), F32, SUM, body)
    fields: dict[str, object] = {
        "name": "p",
        "sizes": (),
        "inputs": (X,),
        "statements": (nest,),
        "outputs": ("y",),
    }
    return Program(**(fields | changed))  # type: ignore[arg-type]


def message_of(program: Program) -> str:
    with pytest.raises(VerifyError) as error:
        verify(program)
    return str(error.value)


def test_what_text_cannot_say() -> None:
    verify(one_nest(X_QK))
    stale = Buffer("X", (const(4), const(6)), F32)
    assert "which is 'X: f32[4, 5]'" in message_of(one_nest(Load(stale, X_QK.index)))
    other = Dim("q", const(3))
    assert "'q' is used 2 times" in message_of(one_nest(Load(X, (Index(other), Index(K)))))
    assert "unknown operator 'gelu'" in message_of(one_nest(Unary("gelu", X_QK)))
    assert "unknown operator 'atan2'" in message_of(one_nest(Binary("atan2", X_QK, X_QK)))
    assert "a literal 1 of type f32" in message_of(one_nest(Const(1, F32)))
    assert "a literal 1 of type bool" in message_of(one_nest(Unary("not", Const(1, DType.BOOL))))
    assert "size 'S' is not declared" in message_of(one_nest(Binary("mul", X_QK, Size("S"))))
    assert "'a-b' cannot be written" in message_of(one_nest(X_QK, name="a-b"))
    assert "'nan' cannot be written" in message_of(
        one_nest(X_QK, inputs=(X, Buffer("nan", (), F32)))
    )
    twice = (Nest("y", (Q,), (K,), F32, SUM, X_QK),) * 2
    assert "'y' is used 2 times" in message_of(one_nest(X_QK, statements=twice))


def test_extents_are_made_of_declared_sizes() -> None:
    undeclared = Buffer("Z", (Size("S"),), F32)
    assert "the undeclared size 'S'" in message_of(one_nest(X_QK, inputs=(X, undeclared)))
    loaded = Buffer("Z", (Index(Q),), F32)
    assert "is not made of sizes" in message_of(one_nest(X_QK, inputs=(X, loaded)))
    floating = Buffer("Z", (const(1.5),), F32)
    assert "is no integer" in message_of(one_nest(X_QK, inputs=(X, floating)))


def test_inner_dims_may_be_free_elsewhere() -> None:
    verify(
        parse_program(
            """
            program p
              size S
              dim q: S, k: S, d: 4
              input X: f32[S, 4]
              loop (q | k)
                carry B (q, d) f32: sum sum(d: X[q, d] * X[k, d]) * X[k, d]
                give O (q, d) f32 = B
              output O
            """
        ),
        LAWS,
    )
