"""What the GPU runtime decides from tensors alone, without a device."""

from __future__ import annotations

import pytest
import torch

from flashlight.ir.text import parse_program
from flashlight.rewrite.tile import HOPPER, candidates, instances
from flashlight.runtime import gpu
from tests.support.loops import CASES, DOT, attention

HINTS = {"S": 4096, "T": 4096}


def test_descriptors_need_aligned_strides() -> None:
    t = torch.empty(2, 3, 40, 64, dtype=torch.float16)
    assert gpu.describable_axis(t) == 3
    assert gpu.describable_axis(t.transpose(1, 2)) == 3
    assert gpu.describable_axis(t.transpose(2, 3)) == 2
    assert gpu.describable_axis(t[..., :63]) == 3
    assert gpu.describable_axis(t[..., 1:]) == -1, "the base is not aligned"
    assert gpu.describable_axis(torch.empty(4, 63, dtype=torch.float16)) == -1
    assert gpu.describable_axis(torch.empty(4, 64)[:, ::2]) == -1
    assert gpu.describable_axis(torch.empty(1, 64).expand(4, 64)) == -1


def test_axes_of_one_element_do_not_matter() -> None:
    assert gpu.unit_axis((1, 8), (7, 1), 2) == 1
    assert gpu.unit_axis((8, 1), (1, 1), 2) == 0
    assert gpu.unit_axis((1, 1), (3, 5), 2) == -1


def test_wide_strides() -> None:
    assert not gpu.is_wide(torch.empty(4, 64))
    assert gpu.is_wide(torch.empty(1, device="meta").as_strided((1 << 9, 1 << 10), (1 << 23, 1)))
    assert not gpu.is_wide(torch.empty(1, device="meta").as_strided((1, 1 << 10), (1 << 33, 1)))


def test_precision_follows_torch() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        assert gpu.f32_precision() == "ieee"
        torch.set_float32_matmul_precision("high")
        assert gpu.f32_precision() == "tf32"
    finally:
        torch.set_float32_matmul_precision(before)


def test_few_rows_are_cut_along_the_keys() -> None:
    program = parse_program(CASES["decode"].program)
    cut = gpu.with_split_keys(program, {"S": 1, "T": 16384}, HOPPER)
    assert len(cut.loops) == 2
    first = candidates(cut.loops[0], {"S": 1, "T": 16384}, HOPPER)[0]
    assert instances(first, {"S": 1, "T": 16384}) >= HOPPER.units
    assert gpu.with_split_keys(program, HINTS, HOPPER) is program


def test_document_masks_are_looked_at_first() -> None:
    text = attention(f"where(I[b, q] == J[b, k], {DOT}, -inf)", ("I: i64[2, S]", "J: i64[2, T]"))
    program, known = gpu.with_ranges(parse_program(text), HINTS, HOPPER)
    assert len(program.loops) == 2
    (bounds,) = known.values()
    schedules = gpu.schedules_for(program, program.loops[1], HINTS, HOPPER, known)
    assert all(s.bounds == bounds for s in schedules)
    short, nothing = gpu.with_ranges(parse_program(text), {"S": 64, "T": 64}, HOPPER)
    assert len(short.loops) == 1
    assert not nothing


@pytest.mark.parametrize(
    ("score", "descending"),
    [(f"where(k <= q, {DOT}, -inf)", True), (f"where(k >= q, {DOT}, -inf)", False)],
    ids=["causal", "anticausal"],
)
def test_heaviest_tiles_first(score: str, descending: bool) -> None:
    program = parse_program(attention(score))
    schedule = gpu.schedules_for(program, program.loops[0], HINTS, HOPPER)[0]
    assert schedule.bounds
    assert schedule.descending is descending
