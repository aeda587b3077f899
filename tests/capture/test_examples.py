"""Tensors to tune on: in range of what they index, and such that masks of data leave some columns."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch

from flashlight.capture.examples import FEW, MOST, Examples, distinct, fill
from flashlight.ir.interpret import interpret
from flashlight.ir.nests import Program
from flashlight.ir.text import parse_program
from flashlight.options import Options
from flashlight.runtime import gpu
from flashlight.runtime.types import TORCH_TYPES

pytest.importorskip("triton")

SIZES = {"S": 1024, "T": 1536}
TEXT = """
program p
  size S, T
  dim b: 2, h: 4, q: S, k: T, d: 16
  input id: i64[2, S]
  input of: i64[2, T]
  input n: i32[2]
  input start: i32[3]
  input alive: bool[2, T]
  input dense: bool[S, T]
  input page: i64[T]
  input x: f16[2, 4, S, 16]
  input y: f16[2, 4, T, 16]
  input bias: f16[5]
  loop (b, h, q | k)
    let s(b, h, q, k) = sum(d: x[b, h, q, d] * y[b, h, page[k], d])
    carry m (b, h, q) f32: max where(CONDITION, s, -inf)
    give z (b, h, q) f32 = m
  output z
"""
CONDITIONS = {
    "documents": "id[b, q] == of[b, k]",
    "causal documents": "(id[b, q] == of[b, k]) & (k <= q)",
    "lengths": "k < n[b]",
    "starts": "(start[b] <= k) & (k < start[b + 1])",
    "padding": "!alive[b, k]",
    "dense": "dense[q, k]",
    "dense, what is masked": "!dense[q, k]",
}


@pytest.mark.parametrize("condition", CONDITIONS.values(), ids=CONDITIONS)
def test_masks_of_data_leave_some_columns(condition: str) -> None:
    program = parse_program(TEXT.replace("CONDITION", condition))
    built = gpu.build(program, torch.device("cpu"), Options(), SIZES)
    assert isinstance(built, gpu.GpuExecutable)
    every = {*built.program.inputs, *(g.buffer for s in built.steps for g in s.loop.gives)}
    buffers = {b.name: b for b in every}

    def make(name: str) -> torch.Tensor:
        return gpu.empty(buffers[name], SIZES, torch.device("cpu"))

    def run(step: gpu.Step, tensors: Mapping[str, torch.Tensor]) -> None:
        read, names = step.kernel.reads, tuple(g.name for g in step.loop.gives)
        alone = Program("alone", program.sizes, tuple(read), (step.loop,), names)
        values = interpret(alone, {b.name: tensors[b.name].numpy() for b in read}, sizes=SIZES)
        for g in step.loop.gives:
            tensors[g.name].copy_(torch.as_tensor(np.copy(values[g.name])).to(TORCH_TYPES[g.dtype]))

    examples = Examples(built.steps, make, run, SIZES)
    for step in built.steps[:-1]:
        run(step, examples.of(step))
    tensors = examples.of(built.steps[-1])
    assert FEW <= examples.share(built.steps[-1]) <= MOST
    assert not tensors["page"].any()


@pytest.mark.parametrize(
    ("sizes", "strides"),
    [((4, 8), (8, 1)), ((4, 8), (0, 1)), ((4, 8), (1, 4)), ((0, 8), (8, 1)), ((), ())],
    ids=["dense", "expanded", "transposed", "empty", "number"],
)
def test_values(sizes: tuple[int, ...], strides: tuple[int, ...]) -> None:
    for dtype in (torch.float16, torch.int64, torch.bool):
        tensor = torch.empty_strided(sizes, strides, dtype=dtype)
        fill(tensor)
        assert tensor.isfinite().all()
        distinct(tensor).fill_(1)
        assert (tensor == 1).all()
