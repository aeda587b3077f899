"""Triton kernels at run time: choose a schedule, write the module, launch by the tensors' strides.

The kernel for a call depends on facts about its tensors (alignment and strides that descriptors need, spans beyond 2^31), so
each loop keeps one compiled variant for each combination of facts that has been met.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from flashlight.codegen.blocks import Kernel
from flashlight.codegen.lower import lower
from flashlight.codegen.triton import Choices, Precision, Source, descriptor_candidates, emit
from flashlight.errors import CompileError, Refusal
from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import Buffer
from flashlight.ir.nests import Loop, Program
from flashlight.ir.text import print_statement
from flashlight.rewrite.bounds import loop_bounds
from flashlight.rewrite.tile import AMPERE, HOPPER, Device, Schedule, default_schedule, evaluate
from flashlight.runtime import cache
from flashlight.runtime.executable import KernelInfo

TORCH_TYPES = {
    DType.BOOL: torch.bool,
    DType.U8: torch.uint8,
    DType.I8: torch.int8,
    DType.I16: torch.int16,
    DType.I32: torch.int32,
    DType.I64: torch.int64,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.F32: torch.float32,
    DType.F64: torch.float64,
}
_LARGE_STRIDE = 1 << 23  # a stride from which an offset within a tile could pass 2^31
_INTERPRETING = os.environ.get("TRITON_INTERPRET", "0") == "1"


def build(
    program: Program, device: torch.device, options: Any, hints: Mapping[str, int]
) -> GpuExecutable | Refusal:
    """Compile a program of loops for a CUDA device."""
    target = device_model(device)
    try:
        steps = tuple(_Step.of(program, loop, hints, target, n) for n, loop in _numbered(program))
    except CompileError as error:
        return Refusal("tile-form", str(error))
    return GpuExecutable(program, steps, dict(hints))


def _numbered(program: Program) -> list[tuple[int, Loop]]:
    loops = program.loops
    if len(loops) != len(program.statements):
        msg = "Every statement must be a loop before code is generated."
        raise CompileError(msg)
    return list(enumerate(loops))


def device_model(device: torch.device) -> Device:
    """What the tiling must know of this device."""
    if device.type != "cuda":
        return HOPPER
    properties = torch.cuda.get_device_properties(device)
    base = HOPPER if properties.major >= 9 else AMPERE
    shared = getattr(properties, "shared_memory_per_block_optin", base.shared)
    return replace(base, shared=shared, units=properties.multi_processor_count)


def schedule_for(
    program: Program, loop: Loop, hints: Mapping[str, int], device: Device
) -> Schedule:
    """The default schedule with the bounds of its passes."""
    return with_bounds(program, loop, default_schedule(loop, hints, device))


def with_bounds(program: Program, loop: Loop, schedule: Schedule) -> Schedule:
    """A schedule whose passes skip what their masks exclude; then the heaviest row tiles come first."""
    if len(schedule.cols) != 1:
        return schedule
    inputs = frozenset(b.name for b in program.inputs)
    bounds = loop_bounds(loop, inputs, schedule.rows, schedule.cols[0])
    if not any(bounds):
        return schedule
    return replace(schedule, bounds=bounds, descending=True)


@dataclass(frozen=True)
class _Facts:
    """What a variant of a kernel was compiled for."""

    descriptors: tuple[tuple[str, int], ...]
    wide: bool
    precision: Precision


@dataclass
class _Variant:
    """A module that has been loaded."""

    source: Source
    function: Any


@dataclass
class _Step:
    """One loop of the program, ready to launch."""

    loop: Loop
    schedule: Schedule
    kernel: Kernel
    text: str
    candidates: frozenset[str]
    variants: dict[_Facts, _Variant] = field(default_factory=dict)

    @staticmethod
    def of(
        program: Program, loop: Loop, hints: Mapping[str, int], device: Device, number: int
    ) -> _Step:
        schedule = schedule_for(program, loop, hints, device)
        return _Step.scheduled(program, loop, schedule, number)

    @staticmethod
    def scheduled(program: Program, loop: Loop, schedule: Schedule, number: int) -> _Step:
        suffix = f"_{number}" if len(program.loops) > 1 else ""
        name = _identifier(program.name) + suffix
        kernel = lower(loop, schedule, name)
        candidates = descriptor_candidates(kernel) if schedule.tma else frozenset[str]()
        return _Step(loop, schedule, kernel, print_statement(loop), candidates)

    def facts(self, tensors: Mapping[str, torch.Tensor]) -> _Facts:
        descriptors = tuple(
            (name, unit)
            for name in sorted(self.candidates)
            if (unit := describable_axis(tensors[name])) is not None
        )
        wide = any(
            stride >= _LARGE_STRIDE and size > 1
            for t in tensors.values()
            for stride, size in zip(t.stride(), t.shape, strict=True)
            if stride * size >= 1 << 31
        )
        return _Facts(descriptors, wide, f32_precision())

    def variant(self, facts: _Facts) -> _Variant:
        found = self.variants.get(facts)
        if found is None:
            source = self.source(facts)
            found = self.variants[facts] = _Variant(source, load_function(source))
        return found

    def source(self, facts: _Facts) -> Source:
        target: Literal["cuda", "hip", "interpret"] = "cuda"
        if _INTERPRETING:
            target = "interpret"
        elif torch.version.hip:
            target = "hip"
        choices = Choices(dict(facts.descriptors), facts.precision, facts.wide, target)
        header = [
            "Generated by Flashlight from this loop:",
            *self.text.splitlines(),
            "",
            f"schedule: {self.schedule}",
        ]
        return emit(self.kernel, choices, header)

    def launch(self, tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> None:
        variant = self.variant(self.facts(tensors))
        grid = 1
        for g in self.kernel.grid:
            grid *= evaluate(g.count, sizes)
        if grid == 0:
            return
        arguments: list[Any] = []
        for p in variant.source.parameters:
            match p.kind:
                case "pointer":
                    arguments.append(tensors[p.of])
                case "stride":
                    arguments.append(tensors[p.of].stride(p.axis))
                case "size":
                    arguments.append(sizes[p.of])
        if variant.source.uses_descriptors:
            _set_allocator()
        variant.function[(grid,)](
            *arguments, num_warps=self.schedule.warps, num_stages=self.schedule.stages
        )

    def info(self, sizes: Mapping[str, int]) -> KernelInfo:
        grid = 1
        for g in self.kernel.grid:
            grid *= evaluate(g.count, sizes, unknown=1)
        facts = next(iter(self.variants), None) or _Facts((), False, f32_precision())
        return KernelInfo(
            name=self.kernel.name,
            program=self.text,
            source=self.source(facts).text,
            language="triton",
            grid=grid,
            passes=sum(bool(p.carries) for p in self.loop.passes),
            config=str(self.schedule),
        )


class GpuExecutable:
    """A program compiled for a GPU; see `runtime.executable.Executable`."""

    def __init__(self, program: Program, steps: Sequence[_Step], hints: Mapping[str, int]) -> None:
        self.program = program
        self.steps = tuple(steps)
        self.hints = hints

    @property
    def kernels(self) -> tuple[KernelInfo, ...]:
        return tuple(step.info(self.hints) for step in self.steps)

    def __call__(self, inputs: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
        known = {s.name: int(n) for s, n in zip(self.program.sizes, sizes, strict=True)}
        tensors = {b.name: t for b, t in zip(self.program.inputs, inputs, strict=True)}
        device = inputs[0].device if inputs else torch.device("cpu")
        for step in self.steps:
            for give in step.loop.gives:
                tensors[give.name] = empty(give.buffer, known, device)
            used = {b.name for b in (*step.kernel.reads, *step.kernel.writes)}
            step.launch({name: tensors[name] for name in used}, known)
        return [tensors[name] for name in self.program.outputs]


def empty(buffer: Buffer, sizes: Mapping[str, int], device: torch.device) -> torch.Tensor:
    """An uninitialised contiguous tensor for a buffer."""
    shape = [evaluate(e, sizes) for e in buffer.shape]
    return torch.empty(shape, dtype=TORCH_TYPES[buffer.dtype], device=device)


def describable_axis(t: torch.Tensor) -> int | None:
    """The axis of stride 1 if a tile descriptor can read the tensor: 16-byte aligned base and strides."""
    if t.data_ptr() % 16:
        return None
    unit = next((n for n in reversed(range(t.dim())) if t.stride(n) == 1 and t.shape[n] > 1), None)
    if unit is None:
        return None
    size = t.element_size()
    strides = [s for n, s in enumerate(t.stride()) if n != unit and t.shape[n] > 1]
    if any(s * size % 16 or s <= 0 for s in strides):
        return None
    return unit


def f32_precision() -> Precision:
    """How exact dots of f32 operands must be: torch's float32 matmul precision."""
    match torch.get_float32_matmul_precision():
        case "highest":
            return "ieee"
        case _:
            return "tf32"


def load_function(source: Source) -> Any:
    """The kernel function of a generated module, written to the cache so that Triton can read its source."""
    parts = {"kind": "triton", "source": source.text}
    if cache.load(parts) is None:
        with cache.lock(parts):
            cache.store(parts, {"kernel.py": source.text})
    path = cache.path_of(parts, "kernel.py")
    name = f"flashlight_kernel_{cache.key_of(parts)[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        msg = f"The generated module '{path}' cannot be loaded."
        raise CompileError(msg)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, source.kernel)


_allocator_set = False


def _set_allocator() -> None:
    """Give Triton memory for the descriptors that kernels make."""
    global _allocator_set
    if _allocator_set or _INTERPRETING:
        return
    import triton

    def allocate(size: int, alignment: int, stream: int | None) -> torch.Tensor:
        return torch.empty(size, device="cuda", dtype=torch.int8)

    triton.set_allocator(allocate)
    _allocator_set = True


def _identifier(name: str) -> str:
    text = "".join(c if c.isalnum() else "_" for c in name)
    return text if text[:1].isalpha() else f"kernel_{text}"


Builder = Callable[[Program, Mapping[str, int]], GpuExecutable]
