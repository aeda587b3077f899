"""Programs of loops as something that runs: picks the target by device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from flashlight.errors import Refusal
from flashlight.ir.nests import Program

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """What `explain` shows of one kernel.

    Attributes:
        name: of the kernel function.
        program: the text of its loop.
        source: in `language`.
        grid: program instances at the sizes of the hints.
        passes: runs over the loop dims.
        config: the schedule, as text.
        notes: what it leaves out, a sentence each.
        origins: lines of the user's code.
    """

    name: str
    program: str
    source: str
    language: str
    grid: int
    passes: int
    config: str
    notes: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()


class Executable(Protocol):
    """A compiled program."""

    @property
    def program(self) -> Program:
        """The program as it runs: the target may have cut its loops, and added some."""
        ...

    @property
    def kernels(self) -> tuple[KernelInfo, ...]: ...

    def __call__(self, inputs: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
        """Run on tensors in the order of `Program.inputs` and sizes in the order of `Program.sizes`."""
        ...


def build(
    program: Program, device: torch.device, options: Any, hints: Mapping[str, int]
) -> Executable | Refusal:
    """Compile a program of loops for a device.

    Args:
        program: statements are loops only.
        device: where its inputs live.
        options: the `Options` of the compilation.
        hints: likely values of the symbolic sizes, by name.
    """
    if device.type == "cpu":
        from flashlight.runtime import cpu

        return cpu.build(program, options, hints)
    if device.type == "cuda":
        from flashlight.runtime import gpu

        return gpu.build(program, device, options, hints)
    return Refusal("device", f"Expected a device of type 'cpu' or 'cuda', got '{device.type}'.")
