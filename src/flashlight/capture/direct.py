"""An operation of Inductor's graph that calls one loop of ours without torch's dispatcher: see `runtime.loop_call`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch._inductor import ir
from torch._inductor.virtualized import V


class DirectCall(ir.ExternKernelOut):
    """Writes one result, which Inductor allocates; the Python code it generates keeps the callee in a name of its module."""

    def __init__(
        self,
        inputs: Sequence[Any],
        sizes: Sequence[Any],
        result: tuple[Sequence[Any], torch.dtype, torch.device],
        loop: tuple[str, int],
    ) -> None:
        shape, dtype, device = result
        token, number = loop
        layouts = [x.get_layout() for x in inputs]
        static = all(
            isinstance(n, int | sympy.Integer)
            for n in (*sizes, *(n for x in layouts for n in (*x.size, *x.stride, x.offset)))
        )
        digest = hashlib.sha256(token.encode()).hexdigest()[:12]
        name = f"flashlight_{digest}_{number}{'' if static else '_any'}"
        self.definition = f"{name} = flashlight_loop_call({token!r}, {number}, {static})"
        super().__init__(
            layout=ir.FixedLayout(
                device, dtype, list(shape), ir.FlexibleLayout.contiguous_strides(shape)
            ),
            inputs=list(inputs),
            constant_args=list(sizes),
            python_kernel_name=name,
        )

    def codegen(self, wrapper: Any) -> None:
        wrapper.add_import_once(
            "from flashlight.runtime.loop_call import loop_call as flashlight_loop_call"
        )
        wrapper.add_import_once(self.definition)
        super().codegen(wrapper)


def is_possible() -> bool:
    """Whether the code that Inductor is about to generate is Python that runs in this process."""
    others = ("cpp_wrapper", "fx_wrapper", "aot_mode")
    return not any(getattr(V.graph, name, False) for name in others)
