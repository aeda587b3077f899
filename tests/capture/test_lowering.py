"""What becomes of the op in Inductor's code: checked on the code, for a device that is not there."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from flashlight.capture.direct import is_possible
from flashlight.capture.lowering import _Given
from tests.support.inductor_process import generated_code

pytest.importorskip("triton")
pytestmark = pytest.mark.slow


def calls(code: str) -> list[tuple[str, str]]:
    """The direct calls in a wrapper: the name, which ends with the number of the loop in its region, and the arguments."""
    return re.findall(r"^ +(flashlight_\w+)\((.*)\)$", code, re.M)


@pytest.mark.parametrize("name", ["softcap", "diff"])
def test_a_loop_is_called_directly(name: str) -> None:
    code = generated_code(name)
    ((called, _),) = calls(code)
    assert re.search(rf"^{called} = LoopCall\(", code, re.M)
    assert "torch.ops.flashlight" not in code
    assert ".run(" not in code


def test_code_that_is_no_python_has_a_kernel_of_triton() -> None:
    code = generated_code("diff", "recorded")
    assert not calls(code)
    assert "torch.ops.flashlight" not in code
    assert re.search(r"fused_\w*\.run\(", code)
    assert re.search(r"def fused_max\w*\(", code)


def test_symbolic_lengths() -> None:
    ((_, given),) = calls(generated_code("causal", "dynamic"))
    sizes, tensors = given.removeprefix("[").split("], ", 1)
    assert all(re.fullmatch(r"s\d+( // s\d+)?", size) for size in sizes.split(", "))
    assert re.search(r", buf\d+$", tensors)


def test_the_grid_of_a_recorded_kernel_follows_the_length() -> None:
    launch = re.search(r"fused_\w*\.run\((.*)\)", generated_code("causal", "dynamic", "recorded"))
    assert launch
    assert re.search(r"\bs\d+\b.*//", launch.group(1))


@pytest.mark.parametrize(
    ("options", "loops"), [((), "011"), (("written",), "0101")], ids=["same", "written"]
)
def test_the_mask_of_two_layers_is_looked_at_once(options: tuple[str, ...], loops: str) -> None:
    code = generated_code("document", "dynamic", "twice", *options)
    assert "".join(name[-1] for name, _ in calls(code)) == loops


FINDER, ATTENTION = "fused_min2_max_min", "fused_max_sum"


def test_the_mask_of_two_layers_is_looked_at_once_by_recorded_kernels() -> None:
    code = generated_code("document", "dynamic", "twice", "recorded")
    launched = [name.rstrip("_0123456789") for name in re.findall(r"(\w+)\.run\(", code)]
    found = [name for name in launched if name in (FINDER, ATTENTION)]
    assert found == [FINDER, ATTENTION, ATTENTION]


def test_several_results_are_written_by_one_call() -> None:
    """Of a kernel of Triton's, and read by kernels in which warps have roles."""
    code = generated_code("document", "twice", "roles")
    (_, found), *others = calls(code)
    results = re.findall(r"\bbuf\d+\b", found)
    assert len(results) == 4
    assert [name[-1] for name, _ in others] == ["1", "1"]
    for name in results:
        assert re.search(rf"^ +{name} = empty_strided", code.split(found)[0], re.M)
        assert all(name in re.findall(r"\bbuf\d+\b", given) for _, given in others)
    assert "torch.ops.flashlight" not in code
    assert ".run(" not in code


def test_a_kernel_that_inductor_cannot_launch_is_an_op_where_code_is_no_python() -> None:
    """And the mask is still looked at once, by a kernel of Triton's."""
    code = generated_code("document", "twice", "roles", "recorded")
    assert not calls(code)
    assert len(re.findall(r"= torch\.ops\.flashlight\.loop\.one\(", code)) == 2
    launched = [name.rstrip("_0123456789") for name in re.findall(r"(\w+)\.run\(", code)]
    assert [name for name in launched if name in (FINDER, ATTENTION)] == [FINDER]


@pytest.mark.parametrize("mode", [None, "cpp_wrapper", "fx_wrapper", "aot_mode"])
def test_direct_calls_are_for_python(mode: str | None) -> None:
    from torch._inductor.virtualized import V

    modes = ("cpp_wrapper", "fx_wrapper", "aot_mode")
    graph: Any = SimpleNamespace(**{name: name == mode for name in modes})
    with V.set_graph_handler(graph):
        assert is_possible() == (mode is None)


def test_what_is_written_in_place_is_read_again() -> None:
    from torch._inductor.virtualized import V

    def named(name: str) -> Any:
        return SimpleNamespace(get_name=lambda: name)

    def writing(*names: str) -> Any:
        """As a user's kernel does: each mutation is a result of its own."""
        results = [SimpleNamespace(get_mutation_names=lambda n=name: [n]) for name in names]
        return SimpleNamespace(get_outputs=lambda: results)

    graph: Any = SimpleNamespace(operations=[writing("ids"), writing("z", "other")])
    with V.set_graph_handler(graph):
        assert not _Given([named("y")], 1).is_written_since([("ids", "")])
        assert _Given([named("y")], 0).is_written_since([("ids", "")])
        assert _Given([named("other")], 1).is_written_since([("ids", "")])


def test_views_of_one_buffer_are_not_the_same_tensor() -> None:
    """Nor is what their calls remember, which says nothing of strides."""
    code = generated_code("vanilla", "turned")
    (one, _), (other, _) = calls(code)
    assert one != other
    assert len(set(re.findall(r"LoopCall\('([^']+)', 0\)", code))) == 1
