"""The programs of the algebra come out in the kernels, passes and carries they should, and mean what they meant."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from flashlight.errors import Refusal
from flashlight.ir.execute import execute_tiled
from flashlight.ir.interpret import Array, interpret
from flashlight.ir.nests import Program
from flashlight.ir.text import parse_program
from flashlight.ir.verify import LAWS, verify
from flashlight.pipeline import CANONICAL
from flashlight.rewrite.group import group_and_online
from tests.support.online_programs import ROWS, Row, inputs_for
from tests.support.programs import Case, cases

each = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)


def assert_like(got: dict[str, Array], expected: dict[str, Array], what: str) -> None:
    """Equal to 1e-9 of each array's size, finite at the same places."""
    for name, right in expected.items():
        left = got[name]
        if right.dtype.kind != "f":
            assert np.array_equal(left, right), f"{what}: {name}"
            continue
        finite = np.isfinite(right)
        assert np.array_equal(np.isfinite(left), finite), f"{what}: {name} is finite elsewhere"
        size = max(np.abs(right[finite]).max(initial=0.0), 1.0)
        error = np.abs(left[finite] - right[finite]).max(initial=0.0)
        assert error <= 1e-9 * size, f"{what}: {name} is off by {error}"


def loops_of(program: Program) -> Program:
    result = group_and_online(program)
    assert not isinstance(result, Refusal), str(result)
    return result


@each
def test_kernels_passes_and_carries(row: Row) -> None:
    result = loops_of(row.fused)
    assert not result.nests
    assert tuple((len(x.passes), len(x.carries)) for x in result.loops) == row.kernels


@each
def test_claims_hold(row: Row) -> None:
    result = loops_of(row.fused)
    verify(result, LAWS)
    assert parse_program(str(result)) == result


@each
@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_meaning(row: Row, scale: float) -> None:
    program = row.fused
    result = loops_of(program)
    inputs = inputs_for(program, seed=int(scale), scale=scale)
    expected = interpret(program, inputs)
    assert_like(interpret(result, inputs), expected, "as nests")
    for tile, parts in ((4, 1), (5, 3), (16, 2)):
        got = execute_tiled(result, inputs, tile, parts)
        assert_like(got, expected, f"tiles of {tile} in {parts} parts")


@each
def test_is_deterministic(row: Row) -> None:
    assert str(loops_of(row.fused)) == str(loops_of(row.fused))


@given(cases())
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_random_programs(case: Case) -> None:
    program = case.program
    for step in CANONICAL:
        program = step(program)
    result = loops_of(program)
    verify(result, LAWS)
    expected = interpret(program, case.inputs, sizes=case.sizes)
    assert_like(interpret(result, case.inputs, sizes=case.sizes), expected, "as nests")
    for tile, parts in ((1, 1), (3, 2)):
        got = execute_tiled(result, case.inputs, tile, parts, sizes=case.sizes)
        assert_like(got, expected, f"tiles of {tile} in {parts} parts")


@pytest.mark.parametrize("name", ["softmax", "causal", "entropy_lsm", "lse", "softpick"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_bad_inputs(name: str, bad: float) -> None:
    program = ROWS[name].fused
    result = loops_of(program)
    inputs = inputs_for(program)
    inputs["K"][3, 1] = bad
    inputs["Q"][5] = np.abs(inputs["Q"][5])
    expected = interpret(program, inputs)
    assert_like(interpret(result, inputs), expected, "as nests")
    assert_like(execute_tiled(result, inputs, 4, 2), expected, "in tiles")
