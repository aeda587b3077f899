"""The op becomes user Triton kernels in Inductor's code: checked on the code, for a device that is not there."""

from __future__ import annotations

import re

import pytest

from tests.support.inductor_process import generated_code

pytest.importorskip("triton")
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["softcap", "diff"])
def test_kernels_in_place_of_the_call(name: str) -> None:
    code = generated_code(name)
    assert "flashlight.fused" not in code
    assert re.search(r"canonical\w*\.run\(", code)
    assert "def canonical(" in code


def test_symbolic_lengths() -> None:
    code = generated_code("causal", dynamic=True)
    assert "flashlight.fused" not in code
    launch = re.search(r"canonical\w*\.run\((.*)\)", code)
    assert launch
    assert re.search(r"\bs\d+\b.*//", launch.group(1)), "the grid follows the length"
