"""Generated Triton kernels on a device, against the meaning of their programs."""

from __future__ import annotations

import pytest

from tests.support.loops import CASES
from tests.support.triton_process import run

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("descriptors", [False, True], ids=["pointers", "descriptors"])
@pytest.mark.parametrize("name", CASES)
def test_same_as_program(name: str, descriptors: bool) -> None:
    case = CASES[name]
    case = type(case)(**{**vars(case), "descriptors": descriptors})
    result = run(case, "cuda")
    assert result["same_places"]
    tolerance = 2e-2 if "bf16" in case.program else 5e-3 if "f16" in case.program else 1e-4
    assert max(result["errors"].values()) < tolerance, result["errors"]
