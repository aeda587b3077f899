"""Launching a kernel again, on tensors that differ from those of its first launch only in where they are.

Triton's own way from a compiled kernel to the device looks at every argument and encodes every tile descriptor anew. What does not
change is done once here: the releases of Triton that Gluon's kernels run on are known, and so is what their C launcher takes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from flashlight import trace
from flashlight.codegen import gluon
from flashlight.codegen.triton import Parameter
from flashlight.runtime.arguments import based, counter, set_allocator

MOST = 256
"""Addresses whose descriptors are remembered for an argument."""


@dataclass(frozen=True)
class Launch:
    """A kernel that was launched.

    Attributes:
        run: launches it with a list of arguments.
        arguments: those of the first launch, with None for what tensors give.
        pointers: which argument is the address of which tensor.
        described: which argument describes which tensor's tiles, and how.
        queues: which arguments are counters.
        device: of the tensors.
        scratch: whether it takes memory of Triton's allocator.
        spills: 32-bit words of local memory per thread.
    """

    run: Callable[[list[Any]], None]
    arguments: tuple[Any, ...]
    pointers: tuple[tuple[int, int], ...]
    described: tuple[tuple[int, int, Callable[[torch.Tensor], Any]], ...]
    queues: tuple[int, ...]
    device: torch.device
    scratch: bool
    spills: int

    @staticmethod
    def of(
        compiled: Any,
        count: int,
        parameters: Sequence[Parameter],
        arguments: Sequence[Any],
        tensors: Mapping[str, torch.Tensor],
        scratch: bool,
    ) -> Launch:
        """From the first launch.

        Args:
            compiled: what Triton made of it.
            count: program instances.
            parameters: of the kernel.
            arguments: one for each.
            tensors: by name, in the order in which later calls hand theirs.
            scratch: whether it takes memory of Triton's allocator.
        """
        kinds = [p.kind for p in parameters]
        raw = None if scratch else _Raw.of(compiled, count, kinds.count("descriptor"))
        place = {name: n for n, name in enumerate(tensors)}
        metas = iter(raw.metas if raw is not None else ())
        flat: list[Any] = []
        pointers, queues = [], []
        described: list[tuple[int, int, Callable[[torch.Tensor], Any]]] = []
        for p, a in zip(parameters, arguments, strict=True):
            at = len(flat)
            flat.append(a if isinstance(a, int) else None)
            match p.kind:
                case "pointer":
                    pointers.append((at, place[p.of]))
                case "queue":
                    queues.append(at)
                case "descriptor" if raw is None:
                    described.append((at, place[p.of], partial(based, based(a, None))))
                case "descriptor":
                    encoded = _Encoded(based(a, None), next(metas))
                    described.append((at, place[p.of], encoded))
                    flat += [*a.shape, *a.strides]
        return Launch(
            raw.run if raw is not None else lambda values: compiled[count, 1, 1](*values),
            tuple(flat), tuple(pointers), tuple(described), tuple(queues),
            next(iter(tensors.values())).device, scratch, int(getattr(compiled, "n_spills", 0) or 0),
        )  # fmt: skip

    def __call__(self, tensors: Sequence[torch.Tensor]) -> None:
        """Launch on tensors in the order of those it was first launched on."""
        arguments = list(self.arguments)
        for i, n in self.pointers:
            arguments[i] = tensors[n].data_ptr()
        for i, n, describe in self.described:
            arguments[i] = describe(tensors[n])
        counters = [counter(self.device) for _ in self.queues]  # alive until it is launched
        for i, zero in zip(self.queues, counters, strict=True):
            arguments[i] = zero.data_ptr()
        if self.scratch:
            set_allocator()
        if self.device.index == torch.cuda.current_device():  # launches go to the current one
            self.run(arguments)
            return
        with torch.cuda.device(self.device):
            self.run(arguments)


class _Encoded:
    """Tile descriptors of tensors of one layout, as the device takes them, by address."""

    def __init__(self, like: Any, meta: Any) -> None:
        self.like = like
        self.meta = meta
        self.known: dict[int, Any] = {}

    def __call__(self, tensor: torch.Tensor) -> Any:
        address = tensor.data_ptr()
        found = self.known.get(address)
        if found is None:
            from triton.backends.nvidia.driver import make_tensordesc_arg

            if len(self.known) >= MOST:
                self.known.clear()
            found, *_ = make_tensordesc_arg(based(self.like, tensor), self.meta)
            self.known[address] = found
        return found


@dataclass(frozen=True)
class _Raw:
    """The C function below Triton's launcher for CUDA.

    Attributes:
        launch: the function.
        before, after: what it takes before and after the stream, ahead of the metadata of a launch.
        metas: how descriptors are encoded, one for each of its descriptors.
        compiled: Triton's kernel.
        knobs: Triton's, with the hooks that profilers set.
    """

    launch: Callable[..., None]
    before: tuple[int, int, int]
    after: tuple[Any, ...]
    metas: tuple[Any, ...]
    compiled: Any
    knobs: Any

    @staticmethod
    def of(compiled: Any, count: int, described: int) -> _Raw | None:
        """None where the release of Triton, the device or the kernel (by its number of descriptors) is none that this is for."""
        try:
            from triton import knobs
            from triton.backends.nvidia.driver import CudaLauncher

            launcher = compiled.run
            if not gluon.is_known() or not isinstance(launcher, CudaLauncher):
                return None
            if launcher.global_scratch_size or launcher.profile_scratch_size:
                return None
            metas = tuple(getattr(compiled.metadata, "tensordesc_meta", None) or ())
            if len(metas) != described:
                return None
            launch = launcher.launch
            if metas:
                launch = inspect.getclosurevars(launch).nonlocals["launcher"]
            options = (launcher.launch_cooperative_grid, launcher.launch_pdl)
            after = (compiled.function, *options, None, None, compiled.packed_metadata)
        except (ImportError, AttributeError, KeyError, TypeError) as error:
            trace.say(1, "launch", "Triton's launcher: %s: %s", type(error).__name__, error)
            return None
        return _Raw(launch, (count, 1, 1), after, metas, compiled, knobs.runtime)

    def run(self, arguments: list[Any]) -> None:
        stream = torch._C._cuda_getCurrentRawStream(torch.cuda.current_device())
        hooks = self.knobs.launch_enter_hook, self.knobs.launch_exit_hook
        enter, leave = (h if getattr(h, "calls", h) else None for h in hooks)
        metadata = None
        if enter is not None:
            metadata = self.compiled.launch_metadata(self.before, stream)
        self.launch(*self.before, stream, *self.after, metadata, enter, leave, *arguments)
