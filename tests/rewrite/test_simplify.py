"""Index and scalar algebra: expected text, and agreement with evaluation on random values."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashlight.ir.exprs import (
    Binary,
    Const,
    Dim,
    Expr,
    Index,
    Size,
    add,
    const,
    floordiv,
    mod,
    mul,
    sub,
)
from flashlight.ir.text import parse_program, print_expr
from flashlight.ir.visit import substitute
from flashlight.rewrite import simplify as simplify_module
from flashlight.rewrite.fuse import MOST_NESTS, TooLargeError, fuse
from flashlight.rewrite.simplify import simplify


def simplified(body: str, dtype: str = "f32") -> str:
    """The text of a body over q: 48, k: 48, h: H, b: B, x: 12 and the arrays X, F (f16) and N (int)."""
    program = parse_program(f"""
program p
  size B, H
  dim q: 48, k: 48, h: H, b: B, x: 12
  input X: f32[48, 48]
  input F: f16[48, 48]
  input N: i64[48]
  nest y (q, k, h, b, x) {dtype}: {body}
  output y
""")
    return print_expr(simplify(program.nests[0].body))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("(b * H + h) // H", "b"),
        ("(b * H + h) % H", "h"),
        ("(q * 95 + k + 48) // 96", "q"),
        ("(q * 95 + k + 48) % 96", "k - q + 48"),
        ("x // 4 * 4 + x % 4", "x"),
        ("x % 6 // 3", "x // 3 % 2"),
        ("x // 2 // 3", "x // 6"),
        ("(x + 24) // 4", "x // 4 + 6"),
        ("(N[q] - N[k]) // 16", "(N[q] - N[k]) // 16"),
        ("(N[q] * 2400714819323198485) // 1024", "N[q] * 2400714819323198485 // 1024"),
        ("N[q] << 60 >> 60", "(N[q] << 60) // 1152921504606846976"),
        ("i32(x << q) + N[q]", "i32(x << q) + N[q]"),
    ],
)
def test_index_algebra(body: str, expected: str) -> None:
    assert simplified(body, "i64") == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("!(k > q)", "k <= q"),
        ("q - k >= 0", "k <= q"),
        ("k - q < 1", "k <= q"),
        ("q >= 0", "true"),
        ("k > 47", "false"),
        ("(k <= q) & true", "k <= q"),
        ("N[q] == N[q]", "true"),
        ("(q >> 3) == (k >> 3)", "k // 8 == q // 8"),
        ("(q & -8) == (k & -8)", "k // 8 * 8 == q // 8 * 8"),
        ("((q ^ k) >> 3) == 0", "k // 8 == q // 8"),
        ("(q ^ k) < 8", "k // 8 == q // 8"),
        ("k <= (q | 7)", "k <= q // 8 * 8 + 7"),
        ("(q - k & 7) == 0", "0 == (q - k) % 8"),
        ("(k << 1) <= q", "k * 2 <= q"),
    ],
)
def test_affine_comparisons_have_one_spelling(body: str, expected: str) -> None:
    assert simplified(body, "bool") == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("f16(-1e10) + F[q, k]", "F[q, k] + -inf:f16"),
        ("X[q, k] / 8.0", "X[q, k] * 0.125"),
        ("(X[q, k] * 4.0) * 0.5", "X[q, k] * 2.0"),
        ("where(k > q, -inf, X[q, k])", "where(k <= q, X[q, k], -inf)"),
        (
            "where(k <= q, where(x > 3, X[q, k], -inf), -inf)",
            "where((k <= q) & (4 <= x), X[q, k], -inf)",
        ),
        ("log(exp(X[q, k]))", "log(exp(X[q, k]))"),
        ("X[q, k] * 0.0", "X[q, k] * 0.0"),
        ("X[q, k] + where(k <= q, 0.0, -inf)", "X[q, k] + where(k <= q, 0.0, -inf)"),
        ("X[q, k] / 0.0", "X[q, k] / 0.0"),
    ],
)
def test_scalar_algebra_keeps_nan_places(body: str, expected: str) -> None:
    assert simplified(body) == expected


_DIMS = (Dim("i", const(5)), Dim("j", const(7)), Dim("k", const(12)))


def index_exprs() -> st.SearchStrategy[Expr]:
    leaves = st.one_of(st.sampled_from([Index(d) for d in _DIMS]), st.integers(-9, 30).map(const))
    divisors = st.sampled_from([const(n) for n in (1, 2, 3, 4, 5, 7, 12, 84)])
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(st.sampled_from([add, sub, mul]), inner, inner).map(
                lambda t: t[0](t[1], t[2])
            ),
            st.tuples(st.sampled_from([floordiv, mod]), inner, divisors).map(
                lambda t: t[0](t[1], t[2])
            ),
            st.builds(Binary, st.sampled_from(["and", "or", "xor"]), inner, inner),
            st.builds(Binary, st.sampled_from(["shl", "shr"]), inner, st.integers(0, 5).map(const)),
        ),
        max_leaves=8,
    )


def value(expr: Expr) -> int:
    match expr:
        case Const(v, _):
            return int(v)
        case Binary(op, a, b):
            x, y = value(a), value(b)
            return {
                "add": x + y,
                "sub": x - y,
                "mul": x * y,
                "floordiv": y and x // y,
                "mod": y and x % y,
                "and": x & y,
                "or": x | y,
                "xor": x ^ y,
                "shl": x << min(max(y, 0), 9),
                "shr": x >> min(max(y, 0), 9),
            }[op]
        case _:
            raise AssertionError(expr)


@given(index_exprs())
def test_simplified_index_has_the_same_values(expr: Expr) -> None:
    new = simplify(expr)
    for point in itertools.product(
        *(range(0, int(d.extent.value), 2) for d in _DIMS if isinstance(d.extent, Const))
    ):
        at = {d: const(v) for d, v in zip(_DIMS, point, strict=True)}
        assert value(substitute(expr, at)) == value(substitute(new, at))


def test_symbolic_sizes_are_not_taken_for_equal() -> None:
    program = parse_program("""
program p
  size B, H
  dim i: B, j: H
  input X: f32[B]
  nest y (i, j) i64: (i * H + j) % B
  output y
""")
    assert isinstance(program.nests[0].parallel[0].extent, Size)
    assert print_expr(simplify(program.nests[0].body)) != "j"


def test_what_is_known_to_be_simple_changes_nothing() -> None:
    parts = ["(b * H + h) // H", "(q * 95 + k + 48) % 96", "x // 4 * 4 + x % 4"]
    whole = " + ".join(f"({part}) * ({part})" for part in parts)
    for part in parts:
        simplified(part, "i64")
    known = simplified(whole, "i64")
    simplify.cache_clear()
    simplify_module._SIMPLE.clear()
    assert simplified(whole, "i64") == known


def test_a_program_of_many_steps_is_refused_at_once() -> None:
    nests = [
        f"  nest s{i} (q | k) f32: sum X[q, k] * {f's{i - 1}[q]' if i else '1.0'}"
        for i in range(MOST_NESTS + 1)
    ]
    text = "program p\n  dim q: 8, k: 8\n  input X: f32[8, 8]\n" + "\n".join(nests)
    with pytest.raises(TooLargeError, match="steps"):
        fuse(parse_program(f"{text}\n  output s{MOST_NESTS}\n"))
