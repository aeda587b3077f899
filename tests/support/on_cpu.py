"""Runs programs of loops through the C++ emitter, and compares them with the interpreter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from flashlight.codegen.cpp import Lanes
from flashlight.ir.dtypes import DType
from flashlight.ir.interpret import Array, interpret
from flashlight.ir.nests import Loop, Program
from flashlight.rewrite.schedule import Schedule, evaluate
from flashlight.rewrite.tile_cpu import cpu_schedule
from flashlight.runtime import cpu
from flashlight.runtime.types import TORCH_TYPES

TOLERANCE = {DType.F64: 1e-12, DType.F32: 2e-5, DType.F16: 2e-3, DType.BF16: 1.2e-2}


def build(
    program: Program,
    sizes: Mapping[str, int],
    *,
    row_block: int | None = None,
    col_block: int | None = None,
    lanes: Lanes | None = None,
    hints: Mapping[str, int] | None = None,
) -> cpu.CpuExecutable:
    """An executable with the default schedule, or with other blocks."""
    steps = []
    for n, loop in enumerate(program.loops):
        schedule = _schedule(program, loop, hints or sizes, row_block, col_block)
        steps.append(cpu.step_of(program, loop, sizes, n, schedule, lanes))
    return cpu.CpuExecutable(program, steps, sizes)


def _schedule(
    program: Program,
    loop: Loop,
    sizes: Mapping[str, int],
    row_block: int | None,
    col_block: int | None,
) -> Schedule:
    schedule = cpu_schedule(loop, sizes)
    if row_block and schedule.rows:
        schedule = replace(schedule, row_block=row_block)
    if col_block and schedule.cols:
        schedule = replace(schedule, col_block=col_block)
    return cpu.with_bounds(program, loop, schedule)


def inputs_of(
    program: Program, sizes: Mapping[str, int], seed: int = 0, scale: float = 1.0
) -> list[torch.Tensor]:
    """Random tensors: integers in [0, 4), bools mostly True."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for buffer in program.inputs:
        shape = [evaluate(e, sizes) for e in buffer.shape]
        dtype = TORCH_TYPES[buffer.dtype]
        if buffer.dtype.is_float:
            values = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
            found.append(values.to(dtype))
        elif buffer.dtype is DType.BOOL:
            found.append(torch.rand(shape, generator=generator) < 0.7)
        else:
            found.append(torch.randint(0, 4, shape, generator=generator).to(dtype))
    return found


def array_of(t: torch.Tensor) -> Array:
    return (t.double() if t.is_floating_point() else t).numpy()


def check(
    program: Program,
    sizes: Mapping[str, int],
    inputs: list[torch.Tensor],
    executable: cpu.CpuExecutable,
    tolerance: Mapping[DType, float] = TOLERANCE,
) -> list[torch.Tensor]:
    """Run and compare with the interpreter: same shapes, dtypes and non-finite places, values within the dtype's tolerance."""
    outputs = executable(inputs, [sizes[s.name] for s in program.sizes])
    arrays = {b.name: array_of(t) for b, t in zip(program.inputs, inputs, strict=True)}
    expected = interpret(program, arrays, sizes=sizes)
    results = program.results()
    for name, tensor in zip(program.outputs, outputs, strict=True):
        dtype = results[name].dtype
        assert tensor.dtype is TORCH_TYPES[dtype]
        got, want = array_of(tensor), np.asarray(expected[name])
        assert got.shape == want.shape, name
        if not dtype.is_float:
            np.testing.assert_array_equal(got, want, err_msg=name)
            continue
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want), err_msg=name)
        infinite = np.isinf(want)
        np.testing.assert_array_equal(got[infinite], want[infinite], err_msg=name)
        finite = np.isfinite(want)
        size = float(np.abs(want[finite]).max(initial=0.0))
        error = float(np.abs(got[finite] - want[finite]).max(initial=0.0))
        assert error <= tolerance[dtype] * max(size, 1e-30), f"{name}: off by {error} of {size}"
    return outputs
