"""Monoids obey their laws on the values that matter: infinities, NaN, ties."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import BINARY, Buffer, Dim, Index, Load, Reduce, const
from flashlight.ir.interpret import identity, value_of
from flashlight.ir.monoids import MONOIDS, Monoid

VALUES = [-math.inf, -2.0, -0.0, 0.0, 1.5, math.inf, math.nan]
FOLDING = [m for m in MONOIDS.values() if not m.is_position]


def combined(monoid: Monoid, *values: float | bool) -> float | bool:
    """The inner reduction of the values, by the interpreter."""
    dtype = DType.BOOL if monoid.is_logical else DType.F64
    dim = Dim("i", const(len(values)))
    buffer = Buffer("X", (dim.extent,), dtype)
    array = np.array(values, bool if monoid.is_logical else float)
    expr = Reduce(monoid, (dim,), Load(buffer, (Index(dim),)))
    return value_of(expr, (), {"X": array}).item()


def samples(monoid: Monoid) -> list[float | bool]:
    return [False, True] if monoid.is_logical else list(VALUES)


def same(a: float | bool, b: float | bool) -> bool:
    return a == b or (a != a and b != b)


@pytest.mark.parametrize("monoid", MONOIDS.values(), ids=str)
def test_combine_is_an_operator(monoid: Monoid) -> None:
    assert monoid.combine in BINARY
    assert MONOIDS[monoid.name] is monoid


@pytest.mark.parametrize("monoid", FOLDING, ids=str)
def test_identity(monoid: Monoid) -> None:
    for x in samples(monoid):
        assert same(combined(monoid, x, monoid.identity), combined(monoid, x))
        assert same(combined(monoid, x), x)
    assert combined(monoid) == monoid.identity


@pytest.mark.parametrize("monoid", FOLDING, ids=str)
def test_commutative_and_associative(monoid: Monoid) -> None:
    for x in samples(monoid):
        for y in samples(monoid):
            assert same(combined(monoid, x, y), combined(monoid, y, x))
            for z in samples(monoid):
                left = combined(monoid, combined(monoid, x, y), z)
                assert same(left, combined(monoid, x, combined(monoid, y, z)))


@pytest.mark.parametrize("monoid", FOLDING, ids=str)
def test_idempotent(monoid: Monoid) -> None:
    keeps = all(same(combined(monoid, x, x), x) for x in samples(monoid))
    assert keeps == monoid.idempotent


def test_maximum_of_none_in_integers() -> None:
    assert identity(MONOIDS["max"], DType.I32) == -(2**31)
    assert identity(MONOIDS["min"], DType.U8) == 255
    assert identity(MONOIDS["sum"], DType.I64) == 0


@pytest.mark.parametrize(
    ("name", "values", "place"),
    [
        ("argmax", [1.0, 3.0, 3.0], 1),
        ("argmin", [1.0, -3.0, -3.0], 1),
        ("argmax", [1.0, math.nan, 5.0, math.nan], 1),
        ("argmin", [math.nan, math.nan, -5.0], 0),
        ("argmax", [-math.inf, -math.inf], 0),
        ("argmax", [-0.0, 0.0], 0),
        ("argmax", [], 0),
    ],
)
def test_positions(name: str, values: list[float], place: int) -> None:
    assert combined(MONOIDS[name], *values) == place


def test_positions_are_row_major_in_the_order_of_the_dims() -> None:
    i, j = Dim("i", const(2)), Dim("j", const(3))
    buffer = Buffer("X", (i.extent, j.extent), DType.F32)
    body = Load(buffer, (Index(i), Index(j)))
    array = np.array([[0.0, 1.0, 2.0], [9.0, 3.0, 4.0]])
    argmax = MONOIDS["argmax"]
    assert value_of(Reduce(argmax, (i, j), body), (), {"X": array}) == 3
    assert value_of(Reduce(argmax, (j, i), body), (), {"X": array}) == 1
