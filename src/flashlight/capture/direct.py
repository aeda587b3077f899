"""An operation of Inductor's graph that calls one loop of ours without torch's dispatcher: see `runtime.loop_call`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch._inductor import ir
from torch._inductor.virtualized import V


class DirectCall(ir.ExternKernel):
    """Writes results into buffers that Inductor has allocated; the Python code it generates keeps the callee in a name of its module.

    All results are written as a user's Triton kernel writes to its arguments, since a result that nobody reads needs memory too:
    Inductor allocates none for the unread result of an operation that has others.
    """

    def __init__(
        self,
        token: str,
        number: int,
        sizes: Sequence[Any],
        reads: Sequence[Any],
        writes: Sequence[Any],
    ) -> None:
        """Add the operation to the graph that Inductor lowers.

        Args:
            token: of the region.
            number: of the loop in it.
            sizes: the values of the program's sizes.
            reads: the tensors that the loop's kernel reads, in order.
            writes: those that it writes, likewise: contiguous, and of shapes that follow from the sizes.
        """
        self.device: torch.device = writes[0].get_device()
        layouts = [_simplified(x) for x in reads]
        symbols = {s for layout in layouts for n in layout for s in n.free_symbols}
        others = sorted(symbols.difference(sizes), key=str)
        # Calls under one name differ in what they are handed alone.
        parts = token, number, str(self.device), str(layouts), torch.get_float32_matmul_precision()
        name = f"flashlight_{hashlib.sha256(repr(parts).encode()).hexdigest()[:12]}_{number}"
        self.definition = f"{name} = LoopCall({token!r}, {number})"
        super().__init__(
            None,
            ir.NoneLayout(device=self.device),
            self.unwrap_storage([*reads, *writes]),
            constant_args=(*sizes, *others),
            python_kernel_name=name,
        )
        self.mutation_outputs = [
            ir.MutationOutput(ir.NoneLayout(device=self.device), x, self) for x in writes
        ]
        V.graph.register_operation(self)

    def get_outputs(self) -> list[ir.Buffer]:
        return list(self.mutation_outputs)

    def get_device(self) -> torch.device:
        return self.device

    def codegen(self, wrapper: Any) -> None:
        wrapper.add_import_once("from flashlight.runtime.loop_call import LoopCall")
        wrapper.add_import_once(self.definition)
        self.codegen_comment(wrapper)
        arguments = self.codegen_args()
        count = len(self.inputs)
        sizes = ", ".join(arguments[count:])
        tensors = ", ".join(arguments[:count])
        wrapper.writeline(f"{self.python_kernel_name}([{sizes}], {tensors})")


def _simplified(tensor: Any) -> list[sympy.Expr]:
    """Shape, strides and offset of a tensor."""
    layout = tensor.get_layout()
    numbers = *layout.size, *layout.stride, layout.offset
    return [V.graph.sizevars.simplify(sympy.sympify(n)) for n in numbers]


def is_possible() -> bool:
    """Whether the code that Inductor is about to generate is Python that runs in this process."""
    others = ("cpp_wrapper", "fx_wrapper", "aot_mode")
    return not any(getattr(V.graph, name, False) for name in others)
