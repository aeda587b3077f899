"""Kernels of a loop that is cut into parts: past the end of the last part a condition guards what is read."""

from __future__ import annotations

from flashlight.ir.text import parse_program
from flashlight.rewrite.schedule import HOPPER
from flashlight.rewrite.split_keys import split_keys
from flashlight.runtime import gpu
from tests.codegen.test_triton_text import body_of_full_tiles
from tests.support.loops import attention


def test_full_tiles_of_a_part_are_read_and_scored_once() -> None:
    program = parse_program(attention(sizes=(2, 2, 40, 1000)))
    program = split_keys(program, program.loops[0], 4)
    schedules = gpu.schedules_for(program, program.loops[0], {}, HOPPER)
    step = gpu.Step.of(program, 0, schedules, "off")
    text = step.source(step.schedules[0], step.kernel, gpu.Facts()).text
    body = body_of_full_tiles(text)
    assert body.count("tl.dot(") == 2
    assert body.count("tl.load(") == 2
    assert "k_in_at + cols_at" not in body
