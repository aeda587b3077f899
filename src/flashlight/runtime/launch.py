"""Launching a kernel for the first time, and compiling those that may be launched."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from flashlight.codegen import gluon
from flashlight.codegen.blocks import Kernel
from flashlight.codegen.triton import Source
from flashlight.rewrite.schedule import Schedule, evaluate
from flashlight.runtime.arguments import argument, set_allocator
from flashlight.runtime.relaunch import Launch


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


def start(
    plan: Plan, tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int]
) -> Launch | None:
    """Launch a kernel on its tensors' device, compiled if need be; None where there is nothing to do."""
    count = _instances(plan, sizes)
    if count == 0:
        return None
    device = next(iter(tensors.values())).device
    source = plan.source
    arguments = [argument(p, tensors, sizes, count) for p in source.parameters]
    if source.uses_descriptors:
        set_allocator()
    if plan.schedule.consumers:
        count = min(count, torch.cuda.get_device_properties(device).multi_processor_count)
    with torch.cuda.device_of(next(iter(tensors.values()))):  # Triton takes the current one
        compiled = plan.function[(count,)](*arguments, **_options(plan.schedule))
    if compiled is None:  # interpreted
        return None
    return Launch.of(
        compiled, count, source.parameters, arguments, tensors, source.uses_descriptors
    )


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
                arguments = [argument(p, tensors, sizes, count) for p in plan.source.parameters]
                plan.function.warmup(*arguments, grid=(1,), **_options(plan.schedule))


def _instances(plan: Plan, sizes: Mapping[str, int]) -> int:
    return math.prod(evaluate(g.count, sizes) for g in plan.kernel.grid)


def _options(schedule: Schedule) -> dict[str, int]:
    """What Triton is told beside the arguments."""
    if schedule.consumers:
        return gluon.launch_options(schedule.consumers)
    return {"num_warps": schedule.warps, "num_stages": schedule.stages}
