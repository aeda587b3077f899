"""The order of memory in which operands are computed that tiles of columns read one position of a small axis at a time."""

from __future__ import annotations

import re

import pytest
import torch

from flashlight.capture.layouts import is_elementwise, wanted_order
from flashlight.codegen.blocks import Kernel
from flashlight.codegen.lower import lower
from flashlight.ir.text import parse_program
from flashlight.rewrite.tile import default_schedule
from tests.support.inductor_process import generated_code
from tests.support.loops import DOT, attention

POINTS = "sum(p, x: (X[b, h, q, p, x] - Y[b, h, k, p, x]) * (X[b, h, q, p, x] - Y[b, h, k, p, x]))"


def kernel(text: str) -> Kernel:
    program = parse_program(text)
    (loop,) = program.loops
    return lower(loop, default_schedule(loop, {"S": 1024, "T": 1024}), "kernel")


@pytest.fixture(scope="module")
def points() -> Kernel:
    inputs = ("X: f16[2, 2, S, 4, 3]", "Y: f16[2, 2, T, 4, 3]")
    return kernel(attention(f"{DOT} - {POINTS}", inputs, dims=", p: 4, x: 3"))


def test_columns_of_points_are_innermost(points: Kernel) -> None:
    assert wanted_order([points], "Y") == (0, 1, 3, 4, 2)


@pytest.mark.parametrize("name", ["X", "Q", "K", "V"])
def test_others_stay(points: Kernel, name: str) -> None:
    assert wanted_order([points], name) is None


def test_only_what_is_computed_element_by_element() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x + 1).view(3, 2), x @ y, x.t(), (x @ y).t(), (x + 1)[:, :, None].expand(2, 3, 9)

    graph = torch.fx.experimental.proxy_tensor.make_fx(program)(torch.ones(2, 3), torch.ones(3, 3))
    results = next(n for n in graph.graph.nodes if n.op == "output").args[0]
    assert [is_elementwise(n) for n in results] == [True, False, False, False, False]


@pytest.mark.slow
def test_inductor_computes_points_so() -> None:
    """The kernel that adds the frames' origins writes them in that order: no copy is made."""
    text = generated_code("invariant_points")
    (name,) = re.findall(
        r"(buf\d+) = empty_strided_cpu\(\(3, 40, 4, 3\), \(480, 1, 120, 40\)", text
    )
    calls = re.findall(r"flashlight_\w+\(\[\], .*\)", text)
    assert len(calls) == 2
    assert all(f" {name}," in call for call in calls)
    writers = re.findall(rf"triton_\w+\.run\(.*\b{name}\b.*\)", text)
    assert len(writers) == 1
    assert "_add_" in writers[0]
