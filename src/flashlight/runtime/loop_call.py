"""One loop of a region as Inductor's generated code calls it, on tensors that this code allocated.

An op would cost torch's dispatcher, a look at every tensor and an allocation for each call: more than a short kernel runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

from flashlight.runtime import op
from flashlight.runtime.launch import Key, key_of
from flashlight.runtime.relaunch import Launch

MOST = 64
"""Kinds of calls whose launches are remembered."""


class LoopCall:
    """A loop with one result, of the code of one graph.

    Args:
        token: of the region.
        number: of the loop in it.
        static: the tensors' shapes and strides are the same in all calls, so that calls differ in addresses alone.
    """

    def __init__(self, token: str, number: int, static: bool) -> None:
        self.token = token
        self.number = number
        self.static = static
        self.sizes = len(op.payload_of(token).program.sizes)
        self.launches: dict[Key, Launch | None] = {}

    def __call__(self, *arguments: torch.Tensor | int, out: torch.Tensor) -> None:
        """Launch on the tensors that the loop's kernel reads, in order, followed by the sizes of the region's program."""
        count = len(arguments) - self.sizes
        tensors: list[torch.Tensor] = [*arguments[:count], out]  # type: ignore[list-item]
        sizes: Sequence[int] = arguments[count:]  # type: ignore[assignment]
        if self.static:
            key: Key = tuple([t.data_ptr() & 15 for t in tensors])
        else:
            key = key_of(tensors, sizes, None)
        if key not in self.launches:
            if len(self.launches) >= MOST:
                self.launches.clear()
            self.launches[key] = self.first(tensors, sizes)
        elif (launch := self.launches[key]) is not None:
            launch(tensors)

    def first(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> Launch | None:
        """Launch as if it were the first time; returns how to do so again. Raises CompileError where no kernel can be built."""
        built = op.gpu_executable(self.token, tensors[-1].device)
        return built.first_into(self.number, tensors, sizes)


@lru_cache(maxsize=1024)
def loop_call(token: str, number: int, static: bool) -> LoopCall:
    """The call of a loop; Inductor's code asks for it once, when it is loaded."""
    return LoopCall(token, number, static)
