"""What a mask lets a loop skip changes no bit: the same kernels with and without bounds, on finite inputs.

Tiles end where bounds end, so sums have another order; the inputs are whole numbers and weights powers of two, for which none counts.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from flashlight.ir.nests import Program
from flashlight.ir.text import parse_program
from flashlight.rewrite.schedule import Schedule
from flashlight.rewrite.tile_cpu import cpu_schedule
from flashlight.runtime import cpu
from tests.support.loops import DOT, attention
from tests.support.on_cpu import inputs_of

FILLS = ("-inf", "-1e10")
MASKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "causal": ("k <= q + (T - S)", ()),
    "window": ("(k <= q) & (q - k < 9)", ()),
    "band": ("(q - k <= 5) & (k - q <= 5)", ()),
    "prefix": ("(k <= q) | (k < 13)", ()),
    "lengths": ("k < n[b]", ("n: i64[2]",)),
    "dense": ("M[q, k]", ("M: bool[S, T]",)),
}
BLOCKS = (8, 16)


LINEAR = """
program linear
  size S, T
  dim b: 2, h: 2, q: S, k: T, d: 8, e: 8
  input Q: f32[2, 2, S, 8]
  input K: f32[2, 2, T, 8]
  input V: f32[2, 2, T, 8]
{inputs}
  loop (b, h, q | k)
    let s(b, h, q, k) = sum(d: Q[b, h, q, d] * K[b, h, k, d])
    carry m (b, h, q) f32: max where({mask}, s, -inf)
    carry seen (b, h, q) bool: any {mask}
    carry A (b, h, q, e) f32: sum where({mask}, max(s, 0.0), 0.0) * V[b, h, k, e]
    give peak (b, h, q) f32 = m
    give live (b, h, q) bool = seen
    give O (b, h, q, e) f32 = A
  output peak, live, O
"""


def _built(program: Program, sizes: dict[str, int], *, skips: bool) -> cpu.CpuExecutable:
    steps = []
    for n, loop in enumerate(program.loops):
        schedule: Schedule = cpu_schedule(loop, sizes)
        if skips:
            schedule = cpu.with_bounds(program, loop, schedule)
        schedule = replace(schedule, row_block=BLOCKS[0], col_block=BLOCKS[1])
        steps.append(cpu.step_of(program, loop, sizes, n, schedule))
    return cpu.CpuExecutable(program, steps, sizes)


def _inputs(program: Program, sizes: dict[str, int], seed: int) -> list[torch.Tensor]:
    """Whole numbers; ids are sorted as documents lie, and a dense mask has stretches without any."""
    found = inputs_of(program, sizes, seed, scale=3.0)
    for n, (buffer, tensor) in enumerate(zip(program.inputs, found, strict=True)):
        match buffer.name:
            case "a" | "c":
                found[n] = tensor.sort(-1).values
            case "n":
                found[n] = tensor * sizes["T"] // 3
            case "M":
                found[n] = tensor & (torch.arange(sizes["T"]) // 8 % 3 != 1)
            case _ if tensor.is_floating_point():
                found[n] = tensor.round()
    return found


def _check(program: Program, *, uniform: bool) -> None:
    hints = {"S": 64, "T": 64}
    with_skips, without = (_built(program, hints, skips=s) for s in (True, False))
    for seed, (S, T) in enumerate(((64, 64), (41, 70), (70, 41), (1, 33), (33, 1))):
        sizes = {"S": S, "T": T}
        tensors = _inputs(program, sizes, seed)
        if uniform:
            tensors[0].zero_()
        known = [sizes[s.name] for s in program.sizes]
        for a, b in zip(with_skips(tensors, known), without(tensors, known), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("mask", MASKS)
def test_sums_and_maxima(mask: str) -> None:
    condition, inputs = MASKS[mask]
    text = LINEAR.format(mask=condition, inputs="\n".join(f"  input {i}" for i in inputs))
    _check(parse_program(text), uniform=False)


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("mask", MASKS)
def test_averages(mask: str, fill: str) -> None:
    condition, inputs = MASKS[mask]
    text = attention(f"where({condition}, {DOT}, {fill})", inputs, dtype="f32", D=8, E=8)
    _check(parse_program(text), uniform=True)


@pytest.mark.parametrize("mask", MASKS)
def test_there_is_something_to_skip(mask: str) -> None:
    condition, inputs = MASKS[mask]
    program = parse_program(attention(f"where({condition}, {DOT}, -inf)", inputs, dtype="f32"))
    schedule = cpu.with_bounds(
        program, program.loops[0], cpu_schedule(program.loops[0], {"S": 64, "T": 64})
    )
    assert schedule.bounds or schedule.skips
