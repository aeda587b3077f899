"""Walks visit shared nodes once; substitution captures nothing."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import Binary, Buffer, Dim, Expr, Index, Load, Unary, add, const, mul
from flashlight.ir.interpret import value_of
from flashlight.ir.text import parse_expr, print_expr
from flashlight.ir.visit import (
    bound_dims,
    children,
    free_dims,
    fresh_name,
    loads,
    reads,
    rebuild,
    replace_loads,
    rewrite,
    substitute,
    walk,
)
from tests.support.programs import expressions

Q, K, D = (Dim(n, const(3)) for n in ("q", "k", "d"))
X = Buffer("X", (const(3), const(3)), DType.F32)
NAMES = (Q, K, D, X)


def parsed(text: str) -> Expr:
    return parse_expr(text, NAMES)


@given(expressions())
def test_walk_is_children_first_and_distinct(expr: Expr) -> None:
    seen: set[Expr] = set()
    for node in walk(expr):
        assert node not in seen
        assert set(children(node)) <= seen
        seen.add(node)
    assert expr in seen


@given(expressions())
def test_rebuild_of_children_is_the_node(expr: Expr) -> None:
    assert all(rebuild(node, children(node)) is node for node in walk(expr))
    assert rewrite(expr, lambda _: None) is expr


def test_shared_graphs_are_linear() -> None:
    x: Expr = parsed("X[q, k]")
    for _ in range(200):
        x = mul(x, x)
    assert len(list(walk(x))) == 203  # the load and its two indices below
    doubled = rewrite(x, lambda n: add(n, n) if isinstance(n, Load) else None)
    assert len(list(walk(doubled))) == 204
    moved = substitute(x, {Q: add(Index(Q), const(1))})
    assert free_dims(moved) == {Q, K}


def test_rewrite_is_bottom_up_and_once() -> None:
    expr = parsed("exp(exp(X[q, k]))")
    inner = rewrite(expr, lambda n: Unary("log", n) if isinstance(n, Unary) else None)
    assert print_expr(inner) == "log(exp(log(exp(X[q, k]))))"


def test_free_and_bound_dims() -> None:
    expr = parsed("sum(d: X[q, d] * X[k, d]) + X[q, d]")
    assert free_dims(expr) == {Q, K, D}
    assert bound_dims(expr) == {D}
    assert free_dims(parsed("sum(d, k: X[k, d])")) == set()


def test_loads() -> None:
    expr = parsed("X[q, k] * X[k, q] + X[q, k]")
    assert [print_expr(n) for n in loads(expr)] == ["X[q, k]", "X[k, q]"]
    assert reads(expr) == {"X"}


def test_substitution_renames_what_would_be_captured() -> None:
    expr = parsed("sum(d: X[q, d] * X[k, d]) + X[q, d]")
    assert print_expr(substitute(expr, {Q: Index(K)})) == "sum(d: X[k, d] * X[k, d]) + X[k, d]"
    captured = substitute(expr, {Q: Index(D)})
    assert print_expr(captured) == "sum(d': X[d, d'] * X[k, d']) + X[d, d]"
    assert substitute(expr, {D: const(1)}) is parsed("sum(d: X[q, d] * X[k, d]) + X[q, 1]")
    swapped = substitute(parsed("X[q, k]"), {Q: Index(K), K: Index(Q)})
    assert swapped is parsed("X[k, q]")


@given(st.permutations(["q", "k", "d"]), st.integers(0, 2))
def test_substitution_means_evaluation_there(order: list[str], at: int) -> None:
    """value(e[q := i])[...] == value(e)[q at i]."""
    expr = parsed("sum(d: X[q, d] * X[d, k]) * X[q, d] + max(q: X[q, k])")
    rng = np.random.default_rng(at)
    arrays = {"X": rng.normal(size=(3, 3))}
    dims = [{"q": Q, "k": K, "d": D}[n] for n in order]
    target = dims[0]
    whole = value_of(expr, dims, arrays)
    there = value_of(substitute(expr, {target: const(at)}), dims[1:], arrays)
    np.testing.assert_array_equal(whole[at], there)
    # by an expression of a dim that inner reductions bind
    flipped = Binary("sub", const(2), Index(dims[1]))
    value = value_of(substitute(expr, {target: flipped}), dims[1:], arrays)
    expected = whole[[2, 1, 0], [0, 1, 2]] if len(dims) > 1 else whole
    np.testing.assert_allclose(value, expected)


def test_fresh_names() -> None:
    assert fresh_name("d", {"q"}) == "d"
    assert fresh_name("d", {"d", "d'"}) == "d''"


def test_replacing_loads() -> None:
    other = Buffer("Y", X.shape, DType.BF16)
    moved = replace_loads(parsed("X[q, k] + 1.0"), lambda load: Load(other, load.index))
    assert print_expr(moved) == "Y[q, k] + 1.0"
    kept = replace_loads(parsed("X[q, k]"), lambda _: None)
    assert kept is parsed("X[q, k]")
