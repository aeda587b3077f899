"""The op becomes user Triton kernels in Inductor's code: checked on the code, for a device that is not there."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from flashlight.capture.lowering import _Given
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


FINDER, ATTENTION = "fused_min2_max_min", "fused_max_sum"


@pytest.mark.parametrize(
    ("options", "kernels"),
    [((), [FINDER, ATTENTION, ATTENTION]), (("written",), [FINDER, ATTENTION] * 2)],
    ids=["same", "written"],
)
def test_the_mask_of_two_layers_is_looked_at_once(
    options: tuple[str, ...], kernels: list[str]
) -> None:
    code = generated_code("document", "dynamic", "twice", *options)
    launched = [name.rstrip("_0123456789") for name in re.findall(r"(\w+)\.run\(", code)]
    assert [name for name in launched if name in (FINDER, ATTENTION)] == kernels


def test_a_loop_that_inductor_cannot_launch_is_a_call() -> None:
    """And the mask is still looked at once, by a kernel of Inductor's own."""
    code = generated_code("document", "twice", "roles")
    assert len(re.findall(r"^ +flashlight_\w+_1\(.*, out=\w+\)", code, re.M)) == 2
    assert "torch.ops.flashlight" not in code
    launched = [name.rstrip("_0123456789") for name in re.findall(r"(\w+)\.run\(", code)]
    assert [name for name in launched if name in (FINDER, ATTENTION)] == [FINDER]


def test_what_is_written_in_place_is_read_again() -> None:
    from torch._inductor.virtualized import V

    def named(name: str) -> Any:
        return SimpleNamespace(get_name=lambda: name, get_mutation_names=lambda: [name])

    graph: Any = SimpleNamespace(operations=[named("ids"), named("other")])
    with V.set_graph_handler(graph):
        assert not _Given([named("y")], 1).is_written_since([("ids", "")])
        assert _Given([named("y")], 0).is_written_since([("ids", "")])
        assert _Given([named("other")], 1).is_written_since([("ids", "")])


def test_views_of_one_buffer_are_not_the_same_tensor() -> None:
    code = generated_code("vanilla", "turned")
    assert len(re.findall(r"fused_\w*\.run\(", code)) == 2
