"""Runs generated Gluon kernels on the simulated machine and compares them with the interpreter of programs.

What this cannot show: how fast functions round, registers that are too few, what Triton's compiler refuses (types that change in
a loop, say) or reorders, and traffic of other kernels. `tests.support.cubin` compiles kernels, tests/gpu runs them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from triton.experimental.gluon import language as gl

from flashlight.codegen.triton import Parameter, Source
from flashlight.ir.interpret import interpret
from flashlight.ir.nests import Program
from flashlight.ir.text import parse_program
from flashlight.rewrite.schedule import HOPPER, Schedule, evaluate
from flashlight.rewrite.shapes import CONSUMER_ROWS
from flashlight.runtime import arguments as of_kernels
from flashlight.runtime import gpu
from flashlight.runtime.types import TORCH_TYPES
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


class Kernel:
    """A loop of a program under a schedule with roles, what it reads, and how many instances run beside each other at most.

    Raises CompileError where the loop has another form.
    """

    def __init__(
        self,
        program: Program,
        number: int,
        schedule: Schedule,
        given: Mapping[str, torch.Tensor],
        sizes: Mapping[str, int],
        instances: int,
    ) -> None:
        self.loop = program.loops[number]
        self.given = dict(given)
        self.sizes = dict(sizes)
        self.instances = instances
        step = gpu.Step.of(program, number, [schedule], "off")
        self.lowered = step.kernel
        facts = step.facts({b.name: self.given[b.name] for b in step.kernel.reads})
        self.source: Source = step.source(schedule, step.kernel, facts)

    def run(
        self, seed: int, change: Callable[[str], str] = lambda text: text
    ) -> dict[str, torch.Tensor]:
        """The results in an order of events. Raises `MachineError`."""
        tensors = dict(self.given)
        for give in self.loop.gives:
            shape = [evaluate(e, self.sizes) for e in give.buffer.shape]
            kind = TORCH_TYPES[give.buffer.dtype]
            strange = torch.nan if kind.is_floating_point else 77
            tensors[give.name] = torch.full(shape, strange).to(kind)
        memories = {name: memory_of(name, t) for name, t in tensors.items()}
        queue = Memory("queue", torch.zeros(1, dtype=torch.int32), 0, gl.int32)
        count = math.prod(evaluate(g.count, self.sizes) for g in self.lowered.grid)

        def argument(p: Parameter) -> Any:
            match p.kind:
                case "pointer":
                    return Pointer(memories[p.of], memories[p.of].offset)
                case "descriptor":
                    return Descriptor(of_kernels.descriptor(tensors[p.of], p), memories[p.of])
                case "stride":
                    return number(tensors[p.of].stride(p.axis))
                case "size":
                    return number(self.sizes[p.of])
                case "queue":
                    return Pointer(queue, 0)
                case "count":
                    return Tensor(np.int32(count), gl.int32)

        arguments = [argument(p) for p in self.source.parameters]
        instances = min(self.instances, count)
        launch(change(self.source.text), self.source.kernel, arguments, instances, seed)
        if queue.data[0]:
            raise AssertionError("the queue is not left as it was found")
        results = {}
        for give in self.loop.gives:
            memory, t = memories[give.name], tensors[give.name]
            if not (memory.times == 1).all():
                raise AssertionError(f"not every element of {give.name} is stored once")
            results[give.name] = torch.from_numpy(memory.data).reshape(t.shape).to(t.dtype)
        return results


class Prepared:
    """A case's kernel, and what its program means."""

    def __init__(self, case: Case) -> None:
        program = parse_program(case.program)
        tensors, arrays = draw(program, case)
        self.outputs = program.outputs
        self.expected = interpret(program, arrays, sizes=case.sizes)
        if case.across:
            tensors = [across(t) for t in tensors]
        given = dict(zip((b.name for b in program.inputs), tensors, strict=True))
        likely = {s.name: LONG for s in program.sizes}
        with patch.object(gpu, "SHORTEST", 32 if case.ranges else 1 << 30):
            program, known = gpu.with_ranges(program, likely, DEVICE)
        *others, loop = program.loops
        names = tuple(g.name for other in others for g in other.gives)
        if names:
            before = replace(program, statements=tuple(others), outputs=names)
            found = interpret(before, arrays, sizes=case.sizes)
            given |= {name: torch.from_numpy(np.array(found[name])) for name in names}
        schedule = with_roles(
            gpu.schedules_for(program, loop, likely, DEVICE, known)[0],
            case.consumers,
            case.col_block,
            case.stages,
        )
        self.kernel = Kernel(program, len(others), schedule, given, case.sizes, case.instances)
        self.source = self.kernel.source

    def run(self, seed: int, change: Callable[[str], str] = lambda text: text) -> dict[str, Any]:
        """How far the results are off in an order of events. Raises `MachineError`."""
        results = self.kernel.run(seed, change)
        return compared(self.outputs, [results[name] for name in self.outputs], self.expected)


def with_roles(schedule: Schedule, consumers: int, col_block: int, stages: int) -> Schedule:
    """A schedule for other tiles, with that many groups of warps that compute."""
    rows = CONSUMER_ROWS * consumers
    return replace(
        schedule, row_block=rows, col_block=col_block, stages=stages, consumers=consumers
    )


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
