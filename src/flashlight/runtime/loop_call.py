"""One loop of a region as Inductor's generated code calls it, on tensors that this code allocated.

An op would cost torch's dispatcher, a look at every tensor and an allocation for each call, and a launch by Inductor a walk through
its own launcher and Triton's: more than a short kernel runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from flashlight.runtime import op
from flashlight.runtime.launch import Key
from flashlight.runtime.relaunch import Launch

MOST = 64
"""Kinds of calls whose launches are remembered."""


class LoopCall:
    """A loop, of the code of one graph.

    Args:
        token: of the region.
        number: of the loop in it.
    """

    def __init__(self, token: str, number: int) -> None:
        self.token = token
        self.number = number
        self.launches: dict[Key, Launch] = {}

    def __call__(self, sizes: Sequence[int], *tensors: torch.Tensor) -> None:
        """Launch the loop's kernel. Raises CompileError where no kernel can be built.

        Args:
            sizes: of the region's program, in order, then whatever else the tensors' shapes and strides depend on.
            tensors: what the kernel reads, in order, then what it writes, likewise; all on one device, the same in all calls.
        """
        key = (*sizes, *[t.data_ptr() & 15 for t in tensors])
        launch = self.launches.get(key)
        if launch is not None:
            launch(tensors)
            return
        launch = self.first(sizes, tensors)
        if launch is None:  # nothing to do, or interpreted
            return
        if len(self.launches) >= MOST:
            self.launches.clear()
        self.launches[key] = launch

    def first(self, sizes: Sequence[int], tensors: Sequence[torch.Tensor]) -> Launch | None:
        """Launch as if it were the first time; returns how to do so again."""
        built = op.gpu_executable(self.token, tensors[-1].device)
        return built.first_into(self.number, tensors, sizes[: len(built.program.sizes)])
