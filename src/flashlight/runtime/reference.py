"""Programs on tensors by the interpreter: what runs where no kernel can be built."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from flashlight.ir.dtypes import DType
from flashlight.ir.interpret import interpret
from flashlight.ir.nests import Program
from flashlight.runtime.types import TORCH_TYPES


def evaluate(
    program: Program, ins: Sequence[torch.Tensor], syms: Sequence[int]
) -> list[torch.Tensor]:
    """The program's outputs, computed with eager's roundings."""
    arrays = {b.name: _array(t) for b, t in zip(program.inputs, ins, strict=True)}
    sizes = {s.name: int(n) for s, n in zip(program.sizes, syms, strict=True)}
    found = interpret(program, arrays, exact=False, sizes=sizes)
    results = program.results()
    return [_tensor(found[name], results[name].dtype, ins[0].device) for name in program.outputs]


def _array(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()


def _tensor(array: np.ndarray, dtype: DType, device: torch.device) -> torch.Tensor:
    found = torch.from_numpy(np.array(array, order="C"))
    return found.to(device=device, dtype=TORCH_TYPES[dtype])
