"""Arguments of kernels: addresses, strides, sizes, tile descriptors, counters; and the memory that Triton asks for."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from flashlight.codegen.triton import Parameter

COUNTERS = 2048
"""Launches on a device that may be under way at once, each with a counter of its own."""

# Ints between counters: Triton compiles anew for pointers that are not multiples of 16 bytes.
_APART = 4

_lock = threading.Lock()
_counters: dict[torch.device, Iterator[torch.Tensor]] = {}
_layouts: dict[tuple[object, ...], Any] = {}


def argument(
    p: Parameter, tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int], count: int
) -> Any:
    """What a parameter is in a call on some tensors, for a number of program instances."""
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
                # While torch warms a CUDA graph up, what this thread allocates is the graph's memory, and must not outlive the call.
                with ThreadPoolExecutor(1) as other:
                    views = other.submit(_zeros, device).result()
                found = _counters[device] = itertools.cycle(views)
    with _lock:
        return next(found)


def _zeros(device: torch.device) -> list[torch.Tensor]:
    zeros = torch.zeros(COUNTERS * _APART, dtype=torch.int32, device=device)
    torch.cuda.synchronize(device)  # other streams may launch next
    return [zeros[n : n + 1] for n in range(0, len(zeros), _APART)]


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


def based(described: Any, tensor: torch.Tensor | None) -> Any:
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


def set_allocator() -> None:
    """Give Triton memory for the descriptors that kernels make: for this thread, and unless the user gave it some."""
    import triton
    from triton.runtime import _allocation

    if triton.knobs.runtime.interpret:
        return
    if isinstance(_allocation._allocator.get(), _allocation.NullAllocator):
        triton.set_allocator(_allocate)


def _allocate(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    return torch.empty(size, device="cuda", dtype=torch.int8)
