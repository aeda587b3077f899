"""The order of memory in which operands are computed that tiles of columns read one position of a small axis at a time."""

from __future__ import annotations

import re

import pytest
import torch

from flashlight.capture.layouts import Access, access_of, is_elementwise, repacked, wanted_order
from flashlight.codegen.blocks import Kernel
from flashlight.codegen.lower import lower
from flashlight.ir.text import parse_program
from flashlight.rewrite.schedule import HOPPER
from flashlight.rewrite.tile import default_schedule
from flashlight.runtime import gpu
from tests.support.inductor_process import generated_code
from tests.support.loops import DOT, attention

POINTS = "sum(p, x: (X[b, h, q, p, x] - Y[b, h, k, p, x]) * (X[b, h, q, p, x] - Y[b, h, k, p, x]))"


POINTS_PROGRAM = attention(
    f"{DOT} - {POINTS}", ("X: f16[2, 2, S, 4, 3]", "Y: f16[2, 2, T, 4, 3]"), dims=", p: 4, x: 3"
)
HINTS = {"S": 1024, "T": 1024}


def kernel(text: str) -> Kernel:
    program = parse_program(text)
    (loop,) = program.loops
    return lower(loop, default_schedule(loop, HINTS), "kernel")


@pytest.fixture(scope="module")
def points() -> Kernel:
    return kernel(POINTS_PROGRAM)


def test_columns_of_points_are_innermost(points: Kernel) -> None:
    assert wanted_order([points], "Y") == (0, 1, 3, 4, 2)


@pytest.mark.parametrize("name", ["X", "Q", "K", "V"])
def test_others_stay(points: Kernel, name: str) -> None:
    assert wanted_order([points], name) is None


def test_access_of_a_tile_of_rows_and_columns(points: Kernel) -> None:
    program = parse_program(POINTS_PROGRAM)
    step = gpu.Step.of(
        program, 0, gpu.schedules_for(program, program.loops[0], HINTS, HOPPER), "off"
    )
    tiles = HINTS["S"] // step.schedules[0].row_block
    assert access_of([step], "Q", HINTS) == Access(None, ((frozenset({2, 3}), 1),))
    assert access_of([step], "K", HINTS) == Access(None, ((frozenset({2, 3}), tiles),))
    found = access_of([step], "Y", HINTS)
    assert found == Access(wanted_order([points], "Y"), ((frozenset({2}), tiles),))


HEADS_INNERMOST = (12 * 768, 1, 12)
"""Strides of a bias [q, h, k] of 768 residues and 12 heads."""


def test_a_bias_of_which_tiles_read_one_head_is_copied() -> None:
    tile, heads = (frozenset({0, 2}), 1), (frozenset({1, 2}), 1)
    assert repacked((768, 12, 768), HEADS_INNERMOST, 2, [tile]) == (1, 0, 2)
    assert repacked((768, 12, 768), HEADS_INNERMOST, 2, [heads, tile]) == (1, 0, 2)


def test_a_bias_that_all_rows_of_an_alignment_share_is_copied() -> None:
    """Four heads waste little, but the tiles of 512 rows fetch it."""
    strides = (1, 4 * 512, 4)
    assert repacked((4, 512, 512), strides, 2, [(frozenset({1, 2}), 1)]) is None
    assert repacked((4, 512, 512), strides, 2, [(frozenset({1, 2}), 512)]) == (0, 1, 2)


def test_a_large_tensor_is_copied_beside_a_larger_one() -> None:
    sizes, strides, tiles = (4, 2048, 2048), (1, 4 * 2048, 4), [(frozenset({1, 2}), 512)]
    assert repacked(sizes, strides, 2, tiles, largest=128 << 20) is None
    assert repacked(sizes, strides, 2, tiles, largest=512 << 20) == (0, 1, 2)


@pytest.mark.parametrize(
    ("sizes", "strides", "tiles"),
    [
        ((768, 12, 768), HEADS_INNERMOST, [{1, 2}]),  # all heads of some keys are one run of memory
        ((768, 12, 768), (768, 768 * 768, 1), [{0, 2}]),  # keys are innermost
        ((4096, 12, 4096), (12 * 4096, 1, 12), [{0, 2}]),  # far too large
        ((64, 12, 64), (12 * 64, 1, 12), [{0, 2}]),  # so small that it does not matter
        ((768, 12, 768), (0, 1, 12), [{0, 2}]),  # expanded
        ((768, 2, 768), (2 * 768, 1, 2), [{0, 2}]),  # half of what is moved is used
        ((768, 12, 768), HEADS_INNERMOST, []),  # gathered
    ],
)
def test_a_tensor_stays(
    sizes: tuple[int, ...], strides: tuple[int, ...], tiles: list[set[int]]
) -> None:
    assert repacked(sizes, strides, 2, [(frozenset(t), 1) for t in tiles]) is None


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
