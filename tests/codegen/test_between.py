"""Conjunctions of comparisons as ranges."""

from __future__ import annotations

import pytest

from flashlight.codegen.between import ranges_in
from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import Binary, Dim, Expr, Index, add, const, sub

Q, K = Index(Dim("q", const(512))), Index(Dim("k", const(512)))
CAUSAL = Binary("le", K, Q)


def _and(*parts: Expr) -> Expr:
    found = parts[0]
    for p in parts[1:]:
        found = Binary("and", found, p)
    return found


@pytest.mark.parametrize(
    ("recent", "length"),
    [
        (Binary("le", Q, add(K, const(256))), 256),
        (Binary("lt", sub(Q, K), const(256)), 255),
        (Binary("ge", K, sub(Q, const(256))), 256),
        (Binary("gt", add(K, const(1)), Q), 0),
    ],
)
def test_a_window_is_one_range(recent: Expr, length: int) -> None:
    for condition in (_and(CAUSAL, recent), _and(recent, CAUSAL)):
        ((_, most),), rest = ranges_in(condition)
        assert most == length
        assert not rest


def test_the_rest_of_a_conjunction_stays() -> None:
    other = Binary("lt", K, const(100))
    pairs, rest = ranges_in(_and(CAUSAL, other, Binary("le", Q, add(K, const(8)))))
    assert [most for _, most in pairs] == [8]
    assert rest == [other]


@pytest.mark.parametrize(
    "condition",
    [
        CAUSAL,
        _and(CAUSAL, Binary("lt", K, const(100))),
        _and(CAUSAL, Binary("le", K, add(Q, const(3)))),
        _and(CAUSAL, Binary("le", add(Q, const(1)), K)),
        _and(Binary("le", const(0.0, DType.F32), const(1.0, DType.F32)), CAUSAL),
    ],
    ids=["one", "other", "same side", "empty", "floats"],
)
def test_what_is_no_range(condition: Expr) -> None:
    assert not ranges_in(condition)[0]
