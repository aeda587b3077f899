"""Launching a kernel: arguments from tensors, remembered for calls whose tensors differ in nothing but where they are.

Triton looks at every argument of every call; calls like an earlier one go straight to the kernel that was compiled for that.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from flashlight.codegen import gluon
from flashlight.codegen.blocks import Kernel
from flashlight.codegen.triton import Parameter, Source
from flashlight.rewrite.schedule import Schedule, evaluate

COUNTERS = 2048
"""Launches on a device that may be under way at once, each with a counter of its own."""

# Ints between counters: Triton compiles anew for pointers that are not multiples of 16 bytes.
_APART = 4

_lock = threading.Lock()
_counters: dict[torch.device, Iterator[torch.Tensor]] = {}
_layouts: dict[tuple[object, ...], Any] = {}


@dataclass(frozen=True)
class Plan:
    """A schedule with its kernel, its source for some facts, and the loaded function."""

    schedule: Schedule
    kernel: Kernel
    source: Source
    function: Any


Key: TypeAlias = tuple[object, ...]
"""What a launch depends on, but for addresses."""


def key_of(tensors: Sequence[torch.Tensor], sizes: Sequence[int], other: object) -> Key:
    """The key of a call on one device; `other` is whatever else its code depends on."""
    layouts = [(t.shape, t.stride(), t.data_ptr() % 16) for t in tensors]
    return (other, tensors[0].device, *layouts, *sizes)


@dataclass(frozen=True)
class Launch:
    """A kernel that was launched, and may be again on other tensors of the same layouts.

    Attributes:
        run: Triton's launcher of what it compiled, for a number of instances.
        arguments: those of the first launch, without its tensors.
        pointers, described: which argument is the address or a descriptor of which tensor.
        queues: which arguments are counters.
        device: of the tensors.
        scratch: whether it takes memory of Triton's allocator.
        spills: 32-bit words of local memory per thread.
    """

    run: Any
    arguments: tuple[Any, ...]
    pointers: tuple[tuple[int, int], ...]
    described: tuple[tuple[int, int], ...]
    queues: tuple[int, ...]
    device: torch.device
    scratch: bool
    spills: int

    def __call__(self, tensors: Sequence[torch.Tensor]) -> None:
        """Launch on tensors in the order of those it was first launched on."""
        arguments = list(self.arguments)
        for i, n in self.pointers:
            arguments[i] = tensors[n].data_ptr()
        for i, n in self.described:
            arguments[i] = _based(arguments[i], tensors[n])
        for i in self.queues:
            arguments[i] = counter(self.device)
        if self.scratch:
            _set_allocator()
        if self.device.index == torch.cuda.current_device():  # Triton takes the current one
            self.run(*arguments)
            return
        with torch.cuda.device(self.device):
            self.run(*arguments)


def start(
    plan: Plan, tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int]
) -> Launch | None:
    """Launch a kernel on its tensors' device, compiled if need be; None where there is nothing to do."""
    count = _instances(plan, sizes)
    if count == 0:
        return None
    device = next(iter(tensors.values())).device
    source = plan.source
    arguments = [_argument(p, tensors, sizes, count) for p in source.parameters]
    if source.uses_descriptors:
        _set_allocator()
    if plan.schedule.consumers:
        count = min(count, torch.cuda.get_device_properties(device).multi_processor_count)
    with torch.cuda.device_of(next(iter(tensors.values()))):  # Triton takes the current one
        compiled = plan.function[(count,)](*arguments, **_options(plan.schedule))
    if compiled is None:  # interpreted
        return None
    kept = tuple(
        _based(a, None) if p.kind == "descriptor" else a if isinstance(a, int) else None
        for p, a in zip(source.parameters, arguments, strict=True)
    )
    place = {name: n for n, name in enumerate(tensors)}

    def of(kind: str) -> tuple[tuple[int, int], ...]:
        parameters = enumerate(source.parameters)
        return tuple((i, place[p.of]) for i, p in parameters if p.kind == kind)

    queues = tuple(i for i, p in enumerate(source.parameters) if p.kind == "queue")
    return Launch(
        compiled[(count, 1, 1)], kept, of("pointer"), of("descriptor"), queues, device,
        source.uses_descriptors, int(getattr(compiled, "n_spills", 0) or 0),
    )  # fmt: skip


def compile_all(
    plans: Iterable[Plan], tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int]
) -> None:
    """Compile kernels side by side for launches on some tensors: most of that time is spent outside of Python.

    Errors are left to the launches, which compile again what is not there.
    """
    import triton

    if not hasattr(triton, "AsyncCompileMode"):
        return
    with (
        ThreadPoolExecutor() as threads,
        torch.cuda.device_of(next(iter(tensors.values()))),
        triton.AsyncCompileMode(threads, ignore_errors=True),
    ):
        for plan in plans:
            with contextlib.suppress(Exception):
                count = _instances(plan, sizes)
                arguments = [_argument(p, tensors, sizes, count) for p in plan.source.parameters]
                plan.function.warmup(*arguments, grid=(1,), **_options(plan.schedule))


def _instances(plan: Plan, sizes: Mapping[str, int]) -> int:
    return math.prod(evaluate(g.count, sizes) for g in plan.kernel.grid)


def _options(schedule: Schedule) -> dict[str, int]:
    """What Triton is told beside the arguments."""
    if schedule.consumers:
        return gluon.launch_options(schedule.consumers)
    return {"num_warps": schedule.warps, "num_stages": schedule.stages}


def _argument(
    p: Parameter, tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int], count: int
) -> Any:
    match p.kind:
        case "pointer":
            return tensors[p.of]
        case "stride":
            return tensors[p.of].stride(p.axis)
        case "size":
            return sizes[p.of]
        case "descriptor":
            return descriptor(tensors[p.of], p)
        case "queue":
            return counter(next(iter(tensors.values())).device)
        case "count":
            return count


# -- What kernels with roles need besides pointers.


def counter(device: torch.device) -> torch.Tensor:
    """A counter at 0, from which a kernel deals out row tiles and which it leaves at 0 again.

    A recorded graph has one of its own, as its launches may be repeated beside others.
    """
    if torch.cuda.is_current_stream_capturing():
        return torch.zeros(1, dtype=torch.int32, device=device)
    found = _counters.get(device)
    if found is None:
        with _lock:
            found = _counters.get(device)
            if found is None:
                zeros = torch.zeros(COUNTERS * _APART, dtype=torch.int32, device=device)
                torch.cuda.synchronize(device)  # other streams may launch next
                views = [zeros[n : n + 1] for n in range(0, len(zeros), _APART)]
                found = _counters[device] = itertools.cycle(views)
    with _lock:
        return next(found)


def descriptor(tensor: torch.Tensor, parameter: Parameter) -> Any:
    """A tile descriptor of a tensor, its axes in the parameter's order."""
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    order = [axis for axis, _ in parameter.tile]
    block = [n for _, n in parameter.tile]
    shape = [tensor.shape[n] for n in order]
    # The stride of an axis of one element says nothing, and may be none that a descriptor takes.
    strides = [tensor.stride(n) if tensor.shape[n] > 1 else 16 for n in order]
    strides[-1] = 1
    return TensorDescriptor(tensor, shape, strides, block, _layout(tuple(block), tensor.dtype))


def _based(described: Any, tensor: torch.Tensor | None) -> Any:
    """A descriptor of another tensor like the one it was made for, which has passed its checks."""
    other = object.__new__(type(described))
    other.__dict__.update(described.__dict__, base=tensor)
    return other


def _layout(block: tuple[int, ...], dtype: torch.dtype) -> Any:
    """How the tiles of a block lie in shared memory."""
    key = (block, dtype)
    if key not in _layouts:
        from triton.experimental.gluon import language as gl

        name = str(dtype).removeprefix("torch.")
        _layouts[key] = gl.NVMMASharedLayout.get_default_for(list(block), getattr(gl, name))
    return _layouts[key]


def _set_allocator() -> None:
    """Give Triton memory for the descriptors that kernels make: for this thread, and unless the user gave it some."""
    import triton
    from triton.runtime import _allocation

    if triton.knobs.runtime.interpret:
        return
    if isinstance(_allocation._allocator.get(), _allocation.NullAllocator):
        triton.set_allocator(_allocate)


def _allocate(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    return torch.empty(size, device="cuda", dtype=torch.int8)
