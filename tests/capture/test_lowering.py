"""The op becomes user Triton kernels in Inductor's code: checked on the code, for a device that is not there."""

from __future__ import annotations

import re

import pytest
import torch

from flashlight.capture.lowering import example
from tests.support.inductor_process import generated_code

pytest.importorskip("triton")
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["softcap", "diff"])
def test_kernels_in_place_of_the_call(name: str) -> None:
    code = generated_code(name)
    assert "flashlight.fused" not in code
    assert re.search(r"fused_\w*\.run\(", code)
    assert re.search(r"def fused_max\w*\(", code)


def test_symbolic_lengths() -> None:
    code = generated_code("causal", "dynamic")
    assert "flashlight.fused" not in code
    launch = re.search(r"fused_\w*\.run\((.*)\)", code)
    assert launch
    assert re.search(r"\bs\d+\b.*//", launch.group(1)), "the grid follows the length"


def test_the_mask_of_two_layers_is_looked_at_once() -> None:
    code = generated_code("document", "dynamic", "twice")
    launched = re.findall(r"(fused_\w*)\.run\(", code)
    assert [name.rstrip("_0123456789") for name in launched] == [
        "fused_min2_max_min",
        "fused_max_sum",
        "fused_max_sum",
    ]


@pytest.mark.parametrize(
    ("sizes", "strides"),
    [((4, 8), (8, 1)), ((4, 8), (0, 1)), ((4, 8), (1, 4)), ((0, 8), (8, 1)), ((), ())],
    ids=["dense", "expanded", "transposed", "empty", "number"],
)
def test_tensors_to_tune_on(sizes: tuple[int, ...], strides: tuple[int, ...]) -> None:
    for dtype in (torch.float16, torch.int64, torch.bool):
        tensor = example(sizes, strides, dtype, torch.device("cpu"))
        assert (tensor.shape, tensor.stride()) == (sizes, strides)
        assert tensor.isfinite().all()
