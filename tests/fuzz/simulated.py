"""Programs by kernels in which warps have roles, on a simulated Hopper, under schedules drawn at random.

Loops that have no such form are executed in numpy; see `tests.support.gluon_runs` for what a simulation shows.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from flashlight.errors import CompileError
from flashlight.ir.dtypes import DType
from flashlight.ir.execute import execute_tiled
from flashlight.ir.nests import Loop, Program
from flashlight.rewrite.schedule import Schedule
from flashlight.runtime import gpu
from flashlight.runtime.types import TORCH_TYPES
from tests.fuzz.judge import Verdict, _array, built_by, captured, load
from tests.support.gluon_runs import DEVICE, Kernel, with_roles

ORDERS = 2  # of events


def roles(text: str) -> Verdict:
    """Trace, capture, optimize and lower for a Hopper; simulate the kernels that have roles."""
    rng = random.Random(f"{load(text).SEED} roles")
    schedules: list[str] = []

    def build(
        program: Program, device: torch.device, options: Any, hints: Mapping[str, int]
    ) -> _Simulated:
        return _Simulated(program, hints, rng, schedules)

    with built_by(build), np.errstate(all="ignore"):
        verdict = captured(text)
    verdict.schedules = schedules
    return verdict


class _Simulated:
    """A program whose kernels run on a simulated machine, where their warps can have roles."""

    kernels = ()

    def __init__(
        self,
        program: Program,
        hints: Mapping[str, int],
        rng: random.Random,
        schedules: list[str],
    ) -> None:
        shortest, many = rng.choice((32, 1 << 30)), rng.choice((32, 1 << 30))
        with mock.patch.multiple(gpu, SHORTEST=shortest, MANY=many):
            self.program, self.known = gpu.with_ranges(program, hints, DEVICE)
        self.hints = hints
        self.rng = rng
        self.schedules = schedules

    def __call__(self, inputs: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        program = self.program
        known = {s.name: int(n) for s, n in zip(program.sizes, sizes, strict=True)}
        tensors = {b.name: t for b, t in zip(program.inputs, inputs, strict=True)}
        for number, loop in enumerate(program.loops):
            schedule = self.schedule(loop)
            instances = self.rng.randint(1, 3)
            try:
                kernel = Kernel(program, number, schedule, tensors, known, instances)
            except CompileError:
                tensors |= _in_numpy(program, loop, tensors, known)
                continue
            self.schedules.append(str(schedule))
            for _ in range(ORDERS):
                results = kernel.run(self.rng.randrange(1 << 20))
            tensors |= results
        return [tensors[name] for name in program.outputs]

    def schedule(self, loop: Loop) -> Schedule:
        rng = self.rng
        first = rng.choice(gpu.schedules_for(self.program, loop, self.hints, DEVICE, self.known))
        s = with_roles(
            first, rng.choice((1, 2, 2, 3, 3)), rng.choice((16, 32, 64)), rng.choice((1, 2, 2, 3))
        )
        return replace(s, merged=rng.random() < 0.2, descending=rng.random() < 0.5, skips=())


def _in_numpy(
    program: Program, loop: Loop, tensors: Mapping[str, Tensor], sizes: Mapping[str, int]
) -> dict[str, Tensor]:
    """What a loop gives, executed tile by tile."""
    buffers = [*program.inputs, *(g.buffer for other in program.loops for g in other.gives)]
    alone = replace(
        program,
        inputs=tuple(b for b in buffers if b.name in tensors),
        statements=(loop,),
        outputs=tuple(g.name for g in loop.gives),
    )
    single = not any(b.dtype is DType.F64 for b in program.inputs)
    arrays = {name: _array(t) for name, t in tensors.items()}
    found = execute_tiled(alone, arrays, 16, 1, single=single, sizes=sizes)
    return {
        g.name: torch.from_numpy(np.array(found[g.name], order="C")).to(TORCH_TYPES[g.buffer.dtype])
        for g in loop.gives
    }
