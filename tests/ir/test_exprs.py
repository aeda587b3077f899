"""Nodes: interning, types."""

from __future__ import annotations

import copy
import gc
import math
import pickle

import pytest
from hypothesis import given

from flashlight.ir.dtypes import DType, promote
from flashlight.ir.exprs import (
    Binary,
    Buffer,
    Cast,
    Const,
    Dim,
    Expr,
    Index,
    Load,
    Reduce,
    Select,
    Size,
    Unary,
    add,
    anchor,
    anchored_addends,
    const,
    dtype_of,
    is_literal,
    mul,
)
from flashlight.ir.monoids import ANY, ARGMAX, SUM
from flashlight.ir.text import parse_expr, print_expr
from tests.support.programs import expressions

F16, BF16, F32, F64 = DType.F16, DType.BF16, DType.F32, DType.F64
HALF = Load(Buffer("H", (), F16), ())
BRAIN = Load(Buffer("B", (), BF16), ())
SINGLE = Load(Buffer("S", (), F32), ())
DOUBLE = Load(Buffer("D", (), F64), ())
BYTE = Load(Buffer("U", (), DType.U8), ())
WORD = Load(Buffer("I", (), DType.I32), ())
BIT = Load(Buffer("L", (), DType.BOOL), ())


def test_equal_nodes_are_one_object() -> None:
    assert Size("n") is Size("n")
    assert Dim("q", Size("n")) is Dim(extent=Size("n"), name="q")
    assert mul(HALF, const(2.0)) is Binary("mul", HALF, Const(2.0, F32))


def test_literals_differ_by_type_and_bits() -> None:
    kinds = {Const(1, DType.I64), Const(1.0, F32), Const(True, DType.BOOL), Const(1.0, F64)}
    assert len(kinds) == 4
    assert Const(0.0, F32) is not Const(-0.0, F32)
    assert Const(math.nan, F32) is Const(math.nan, F32)


@given(expressions())
def test_copies_are_the_same_object(expr: Expr) -> None:
    assert pickle.loads(pickle.dumps(expr)) is expr
    assert copy.deepcopy(expr) is expr


def test_the_pool_frees_nodes() -> None:
    pool = Size._pool  # type: ignore[attr-defined]
    gc.collect()
    before = len(pool)
    made = [Size(f"gone{i}") for i in range(50)]
    assert len(pool) == before + 50
    del made
    gc.collect()
    assert len(pool) == before


@pytest.mark.parametrize(
    ("a", "b", "common"),
    [
        (HALF, BRAIN, F32),
        (HALF, HALF, F32),
        (HALF, WORD, F32),
        (SINGLE, DOUBLE, F64),
        (WORD, const(1), DType.I64),
        (BYTE, BIT, DType.U8),
    ],
)
def test_arithmetic_promotes(a: Expr, b: Expr, common: DType) -> None:
    assert dtype_of(Binary("add", a, b)) is common
    assert dtype_of(Binary("add", b, a)) is common
    assert promote(dtype_of(a), dtype_of(b)) is common


@pytest.mark.parametrize(
    ("expr", "dtype"),
    [
        (Unary("exp", HALF), F32),
        (Unary("exp", WORD), F32),
        (Unary("neg", WORD), DType.I32),
        (Unary("isnan", HALF), DType.BOOL),
        (Unary("exp", DOUBLE), F64),
        (Binary("div", WORD, WORD), F32),
        (Binary("floordiv", WORD, WORD), DType.I32),
        (Binary("lt", HALF, DOUBLE), DType.BOOL),
        (Binary("and", BIT, BIT), DType.BOOL),
        (Select(BIT, HALF, HALF), F16),
        (Select(BIT, HALF, SINGLE), F32),
        (Cast(SINGLE, BF16), BF16),
        (Reduce(SUM, (Dim("d", const(3)),), HALF), F32),
        (Reduce(ANY, (Dim("d", const(3)),), BIT), DType.BOOL),
        (Reduce(ARGMAX, (Dim("d", const(3)),), HALF), DType.I64),
        (Index(Dim("d", const(3))), DType.I64),
        (Size("n"), DType.I64),
    ],
    ids=repr,
)
def test_types(expr: Expr, dtype: DType) -> None:
    assert dtype_of(expr) is dtype


def test_const_takes_the_type_of_its_value() -> None:
    assert const(1) is Const(1, DType.I64)
    assert const(1.0) is Const(1.0, F32)
    assert const(True) is Const(True, DType.BOOL)
    assert const(1, F16) is Const(1.0, F16)
    assert const(2.0, DType.I32) is Const(2, DType.I32)


def test_is_literal() -> None:
    assert is_literal(const(0.0))
    assert is_literal(const(0), 0)
    assert not is_literal(const(math.nan), math.nan)
    assert not is_literal(HALF)


def test_addends_are_anchored_one_by_one() -> None:
    names = [Buffer("a", (), F32), Buffer("b", (), F32)]
    value = parse_expr("-a[] - (b[] / 2.0 + ~a[])", names)
    assert print_expr(anchored_addends(value)) == "-(~a[]) - (~(b[] / 2.0) + ~a[])"
    assert anchored_addends(anchored_addends(value)) is anchored_addends(value)
    assert anchored_addends(HALF) is anchor(HALF)


def test_what_is_shared_is_typed_once() -> None:
    """A bisection reads each of its steps several times: typing every path to them would never end."""
    x: Expr = const(1.0)
    for n in range(100):
        x = add(mul(x, const(float(n))), x)
    assert dtype_of(x) is DType.F32
