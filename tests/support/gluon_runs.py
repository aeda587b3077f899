"""Runs generated Gluon kernels on the simulated machine and compares them with the interpreter of programs.

What this cannot show: how fast functions round, registers that are too few, what Triton's compiler refuses (types that change in
a loop, say) or reorders, and traffic of other kernels. `tests.support.cubin` compiles kernels, tests/gpu runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from triton.experimental.gluon import language as gl

from flashlight.codegen.lower import lower
from flashlight.codegen.triton import Parameter, Source
from flashlight.ir.interpret import interpret
from flashlight.ir.text import parse_program
from flashlight.rewrite.schedule import HOPPER, Schedule, evaluate
from flashlight.rewrite.shapes import CONSUMER_ROWS
from flashlight.runtime import gpu
from flashlight.runtime import launch as launching
from tests.support.gluon_language import Descriptor, Memory, Pointer, Tensor, launch
from tests.support.triton_process import compared, draw

DEVICE = replace(HOPPER, roles=True)
LONG = 4096  # what a size counts as when schedules are chosen


@dataclass
class Case:
    """A program of loops, the last of which runs with roles, and how to run it.

    Attributes:
        instances: program instances that run beside each other, at most.
        ranges: find ranges of data-dependent masks first, however short.
        across: inputs lie in memory as if their last dims but one and two were swapped (heads next to features).
    """

    program: str
    sizes: dict[str, int] = field(default_factory=dict)
    consumers: int = 2
    col_block: int = 32
    stages: int = 2
    instances: int = 2
    ranges: bool = False
    across: bool = False
    scale: float = 1.0
    seed: int = 0


class Prepared:
    """A case's kernel, and its inputs and results."""

    def __init__(self, case: Case) -> None:
        self.case = case
        program = parse_program(case.program)
        self.tensors, self.arrays = draw(program, case)
        if case.across:
            self.tensors = [across(t) for t in self.tensors]
        self.whole = program
        likely = {s.name: LONG for s in program.sizes}
        with patch.object(gpu, "SHORTEST", 32 if case.ranges else 1 << 30):
            program, known = gpu.with_ranges(program, likely, DEVICE)
        self.program = program
        self.loop = program.loops[-1]
        first = gpu.schedules_for(program, self.loop, likely, DEVICE, known)[0]
        self.schedule: Schedule = replace(
            first,
            row_block=CONSUMER_ROWS * case.consumers,
            col_block=case.col_block,
            stages=case.stages,
            consumers=case.consumers,
        )
        self.step = gpu.Step.of(program, len(program.loops) - 1, [self.schedule], "off")

    @cached_property
    def expected(self) -> dict[str, Any]:
        return interpret(self.whole, self.arrays, sizes=self.case.sizes)

    @cached_property
    def given(self) -> dict[str, torch.Tensor]:
        """What the loop reads: inputs, and what other loops find."""
        found = dict(zip((b.name for b in self.program.inputs), self.tensors, strict=True))
        others = self.program.loops[:-1]
        names = tuple(g.name for loop in others for g in loop.gives)
        if names:
            before = replace(self.program, statements=others, outputs=names)
            results = interpret(before, self.arrays, sizes=self.case.sizes)
            found |= {name: torch.from_numpy(np.array(results[name])) for name in names}
        return found

    @cached_property
    def source(self) -> Source:
        used = {b.name: self.given[b.name] for b in self.step.kernel.reads}
        kernel = lower(self.loop, self.schedule, self.step.name)
        return self.step.source(self.schedule, kernel, self.step.facts(used))

    def run(self, seed: int, change: Callable[[str], str] = lambda text: text) -> dict[str, Any]:
        """How far the results are off in an order of events. Raises `MachineError`."""
        case, source = self.case, self.source
        tensors = dict(self.given)
        for give in self.loop.gives:
            shape = [evaluate(e, case.sizes) for e in give.buffer.shape]
            kind = gpu.TORCH_TYPES[give.buffer.dtype]
            tensors[give.name] = torch.full(shape, torch.nan if kind.is_floating_point else 77).to(
                kind
            )
        memories = {name: memory_of(name, t) for name, t in tensors.items()}
        queue = Memory("queue", torch.zeros(1, dtype=torch.int32), 0, gl.int32)
        count = 1
        for g in self.step.kernel.grid:
            count *= evaluate(g.count, case.sizes)

        def argument(p: Parameter) -> Any:
            match p.kind:
                case "pointer":
                    return Pointer(memories[p.of], memories[p.of].offset)
                case "descriptor":
                    return Descriptor(launching.descriptor(tensors[p.of], p), memories[p.of])
                case "stride":
                    return number(tensors[p.of].stride(p.axis))
                case "size":
                    return number(case.sizes[p.of])
                case "queue":
                    return Pointer(queue, 0)
                case "count":
                    return Tensor(np.int32(count), gl.int32)

        arguments = [argument(p) for p in source.parameters]
        launch(change(source.text), source.kernel, arguments, min(case.instances, count), seed)
        if queue.data[0]:
            raise AssertionError("the queue is not left as it was found")
        results = []
        for name in self.program.outputs:
            memory, t = memories[name], tensors[name]
            if not (memory.times == 1).all():
                raise AssertionError(f"not every element of {name} is stored once")
            results.append(torch.from_numpy(memory.data).reshape(t.shape).to(t.dtype))
        return compared(self.program.outputs, results, self.expected)


def number(value: int) -> Any:
    """A size or stride as Triton hands it over: 1 becomes a constant."""
    return 1 if value == 1 else Tensor(np.int32(value), gl.int32)


def across(t: torch.Tensor) -> torch.Tensor:
    """The same tensor with two axes before the last swapped in memory."""
    if t.dim() < 3:
        return t
    return t.transpose(-3, -2).contiguous().transpose(-3, -2)


def memory_of(name: str, t: torch.Tensor) -> Memory:
    whole = torch.empty(0, dtype=t.dtype).set_(t.untyped_storage())
    dtype = {torch.bool: "int1", torch.uint8: "uint8"}.get(t.dtype) or str(t.dtype).split(".")[1]
    return Memory(name, whole, t.storage_offset(), getattr(gl, dtype))
