"""Generated Triton kernels, run in Triton's interpreter, against the meaning of their programs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.loops import CASES
from tests.support.triton_process import run_cases

pytestmark = [pytest.mark.triton_interpreter, pytest.mark.slow]
TOLERANCE = 2e-2  # bf16 results; the other types are held to less below


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, Any]]:
    """All cases in one process of the interpreter."""
    return dict(zip(CASES, run_cases(list(CASES.values())), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_same_as_program(results: dict[str, dict[str, Any]], name: str) -> None:
    result = results[name]
    assert "failed" not in result, result["failed"]
    assert result["same_places"]
    text = CASES[name].program
    tolerance = TOLERANCE if "bf16" in text else 4e-3 if "f16" in text else 2e-5
    assert max(result["errors"].values()) < tolerance, result["errors"]
