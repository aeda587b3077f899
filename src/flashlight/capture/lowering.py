"""The op as one kernel launch for each loop in Inductor's generated code, with buffers that Inductor allocates.

`register` gives `flashlight::fused` a lowering on CUDA, so that Inductor plans the memory of all results and records the launches in
CUDA graphs. In Python code each loop is called directly (`capture.direct`), which costs the host least. In code that is to run
without us (AOTInductor's packages) or that is no Python (`cpp_wrapper`, `fx_wrapper`) it becomes a user-defined Triton kernel, which
Inductor launches; a kernel in which warps have roles is no such kernel, and its loop alone becomes a call of an op. What this needs
of Inductor is private, so anything unexpected leaves the op call, which launches the same kernels itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import sympy
import torch

from flashlight import trace
from flashlight.capture.examples import Examples
from flashlight.errors import Refusal
from flashlight.ir.exprs import Binary, Const, Expr, Size
from flashlight.ir.nests import Program
from flashlight.runtime import op
from flashlight.runtime.gpu import Facts, GpuExecutable, Step, f32_precision, unit_axis
from flashlight.runtime.launch import Plan, start
from flashlight.runtime.types import TORCH_TYPES

DEVICES = ("cuda",)
"""Where Inductor runs Triton kernels."""

_registered = False


@dataclass(frozen=True)
class _Given:
    """The results of a loop that has become a kernel, and how many operations the graph had then."""

    tensors: list[Any]
    operations: int

    def is_written_since(self, reads: Iterable[tuple[str, str]]) -> bool:
        """Whether a buffer that the loop read, or a result of it, may hold something else by now."""
        from torch._inductor.virtualized import V

        names = {name for name, _ in reads} | {x.get_name() for x in self.tensors}
        later: Any = V.graph.operations[self.operations :]
        results = (x for op in later for x in op.get_outputs())
        return any(names.intersection(x.get_mutation_names()) for x in results)


@dataclass
class Known:
    """What is known of a graph that Inductor lowers: kept on the graph, and for as long.

    Attributes:
        given: what loops have given, by all that it depends on.
        unread: names of results in buffers of Inductor's that no kernel of ours reads, of one region each.
    """

    given: dict[Any, _Given] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)

    def forget(self, name: str) -> None:
        """A result is about to lie elsewhere: no other region may have it."""
        self.unread.discard(name)
        self.given = {
            key: given
            for key, given in self.given.items()
            if all(x.get_name() != name for x in given.tensors)
        }


def known_of() -> Known:
    """What is known of the graph that is being lowered."""
    from torch._inductor.virtualized import V

    graph: Any = V.graph
    if not hasattr(graph, "flashlight_known"):
        graph.flashlight_known = Known()
    known: Known = graph.flashlight_known
    return known


def register() -> None:
    """Register the lowering, once. Without it (another Inductor, no Triton) the op stays a call."""
    global _registered
    if _registered:
        return
    _registered = True
    try:
        from torch._inductor.lowering import fallback_handler, register_lowering
    except ImportError:
        return
    for overload in (op.fused, op.fused_one):
        call = fallback_handler(overload, add_to_fallback_set=False)
        register_lowering(overload, type_promotion_kind=None)(
            partial(_lower, call, overload is op.fused_one)
        )


def _lower(
    call: Callable[..., Any], one: bool, ins: Sequence[Any], syms: Sequence[Any], token: str
) -> Any:
    """A region expanded to kernels, or the call of the op; `one`: the result is the tensor, not a list of it."""
    try:
        expanded = expand(ins, syms, token)
    except Exception as error:
        trace.say(1, "lowering", "a region stays a call: %s: %s", type(error).__name__, error)
        expanded = None
    if expanded is None:
        return call(ins, syms, token)
    return expanded[0] if one else expanded


def expand(ins: Sequence[Any], syms: Sequence[Any], token: str) -> list[Any] | None:
    """The outputs of a region as Inductor's tensors, its kernels recorded; None to leave it a call."""
    device = ins[0].get_device()
    if device is None or device.type not in DEVICES or not op.payload_of(token).options.inline:
        return None
    built = op.executable(token, device)
    if isinstance(built, Refusal) or not isinstance(built, GpuExecutable):
        return None
    return _Expansion(built, ins, syms, token, device).outputs()


class _Expansion:
    """One region becoming kernels."""

    def __init__(
        self,
        built: GpuExecutable,
        ins: Sequence[Any],
        syms: Sequence[Any],
        token: str,
        device: torch.device,
    ) -> None:
        from torch._inductor import ir

        from flashlight.capture import direct

        self.direct = direct.is_possible()
        self.program: Program = built.program
        self.steps = built.steps
        self.token = token
        self.device = device
        self.sizes = {s.name: v for s, v in zip(self.program.sizes, syms, strict=True)}
        realized = [ir.ExternKernel.realize_input(x) for x in ins]
        # Every tensor handed on must be a TensorBox: a bare view would be taken for a constant.
        self.tensors: dict[str, Any] = {
            b.name: x if isinstance(x, ir.TensorBox) else ir.TensorBox(x)
            for b, x in zip(self.program.inputs, realized, strict=True)
        }
        for x in self.tensors.values():
            x.freeze_layout()

    def outputs(self) -> list[Any]:
        """All plans first, so that nothing is recorded if one of them fails."""
        shapes = {
            give.name: [extent(e, self.sizes) for e in give.buffer.shape]
            for step in self.steps
            for give in step.loop.gives
        }
        for number, plan in enumerate(self.plans(shapes)):
            self.give(number, plan, shapes)
        return [self.tensors[name] for name in self.program.outputs]

    def give(self, number: int, plan: Plan, shapes: Mapping[str, Sequence[Any]]) -> None:
        """The results of a loop, by a kernel; or those that another region of the graph has from the same loop on the same
        tensors: what a mask of data leaves of the keys is found once for all layers.
        """
        from torch._inductor.virtualized import V

        known = known_of()
        step = self.steps[number]
        names = [g.name for g in step.loop.gives]
        reads = tuple(self.place(b.name) for b in plan.kernel.reads)
        key = (step.text, plan.source.text, reads, tuple(map(str, self.sizes.values())))
        given = known.given.get(key)
        if given is not None and not given.is_written_since(reads):
            self.tensors.update(zip(names, given.tensors, strict=True))
            known.unread -= {x.get_name() for x in given.tensors}
            return
        if plan.schedule.consumers and not self.direct:
            self.call_op(number)
        else:
            for g in step.loop.gives:
                self.tensors[g.name] = self.empty(shapes[g.name], TORCH_TYPES[g.dtype])
            if self.direct:
                self.call(number)
                read = {b.name for step in self.steps for b in step.kernel.reads}
                known.unread |= {self.tensors[n].get_name() for n in names if n not in read}
            else:
                self.record(plan)
        results = [self.tensors[name] for name in names]
        known.given[key] = _Given(results, len(V.graph.operations))

    def call(self, number: int) -> None:
        """The results of a loop by a call of ours in Inductor's Python code."""
        from flashlight.capture.direct import DirectCall

        kernel = self.steps[number].kernel
        reads = [self.tensors[b.name] for b in kernel.reads]
        writes = [self.tensors[b.name] for b in kernel.writes]
        DirectCall(self.token, number, list(self.sizes.values()), reads, writes)

    def call_op(self, number: int) -> None:
        """The results of a loop by our op: it alone launches kernels with roles where code is no Python."""
        from torch._inductor.lowering import fallback_handler

        step = self.steps[number]
        ins = [self.tensors[b.name] for b in step.kernel.reads]
        names = [g.name for g in step.loop.gives]
        overload = op.loop_one if len(names) == 1 else op.loop
        run = fallback_handler(overload, add_to_fallback_set=False)
        found = run(ins, list(self.sizes.values()), self.token, number)
        self.tensors.update(zip(names, [found] if len(names) == 1 else found, strict=True))

    def place(self, name: str) -> tuple[str, str]:
        """Where in memory a tensor is: views of one buffer have its name, and a layout each."""
        tensor = self.tensors[name]
        found = tensor.get_layout()
        return tensor.get_name(), f"{found.size} {found.stride} {found.offset} {found.dtype}"

    def empty(self, shape: Sequence[Any], dtype: torch.dtype) -> Any:
        """A buffer of Inductor's."""
        from torch._inductor import ir
        from torch._inductor.lowering import lowerings

        strides = ir.FlexibleLayout.contiguous_strides(shape)
        make = lowerings[torch.ops.aten.empty_strided.default]
        tensor = make(shape, strides, dtype=dtype, device=self.device)
        tensor.realize()
        tensor.freeze_layout()
        return tensor

    def plans(self, shapes: Mapping[str, Sequence[Any]]) -> list[Plan]:
        """The schedules and sources for the layouts at hand, tuned on tensors like these."""
        steps = [(step, self.facts(step, shapes)) for step in self.steps]
        if all(facts in step.plans for step, facts in steps):
            return [step.plans[facts] for step, facts in steps]
        if not torch.cuda.is_available():
            return [step.plan(step.schedules[0], facts) for step, facts in steps]
        hints = {name: hint(value) for name, value in self.sizes.items()}
        found: dict[str, Plan] = {}

        def run(step: Step, tensors: Mapping[str, torch.Tensor]) -> None:
            start(found[step.name], tensors, hints)

        examples = Examples(self.steps, partial(self.example, shapes, self.device), run, hints)
        for step, facts in steps:
            tensors = examples.of(step)
            if facts not in step.plans:
                step.plans[facts] = step.choose(facts, tensors, hints)
            found[step.name] = step.plans[facts]
            run(step, tensors)
        return list(found.values())

    def facts(self, step: Step, shapes: Mapping[str, Sequence[Any]]) -> Facts:
        if self.direct:  # a call looks at its own tensors: here those it is likely to have
            like = partial(self.example, shapes, torch.device("meta"))
            return step.facts({name: like(name) for name in step.tensors})
        from torch._inductor.virtualized import V

        descriptors = tuple((name, self.describable(name, shapes)) for name in step.described)
        wide = any(self.is_wide(name, shapes) for name in step.tensors)
        return Facts(descriptors, wide, f32_precision(step.f32), roles=not V.graph.aot_mode)

    def layout(
        self, name: str, shapes: Mapping[str, Sequence[Any]]
    ) -> tuple[Sequence[Any], Sequence[Any], Any]:
        """Shape, strides and offset of a buffer."""
        if name in self.tensors:
            found = self.tensors[name].get_layout()
            return found.size, found.stride, found.offset
        from torch._inductor import ir

        return shapes[name], ir.FlexibleLayout.contiguous_strides(shapes[name]), 0

    def dtype(self, name: str) -> torch.dtype:
        if name in self.tensors:
            found: torch.dtype = self.tensors[name].get_dtype()
            return found
        return next(
            TORCH_TYPES[g.dtype] for step in self.steps for g in step.loop.gives if g.name == name
        )

    def describable(self, name: str, shapes: Mapping[str, Sequence[Any]]) -> int:
        """The axis of stride 1 if descriptors can read the buffer for all sizes that the code is for, else -1."""
        from torch._inductor.virtualized import V

        size, stride, offset = self.layout(name, shapes)
        itemsize = self.dtype(name).itemsize
        known = V.graph.sizevars.statically_known_multiple_of
        if name in self.tensors and self.tensors[name].get_name() in V.graph.unaligned_buffers:
            return -1
        if not known(sympy.sympify(offset) * itemsize, 16):
            return -1
        strides = []
        for s in stride:
            if isinstance(s, int | sympy.Integer):
                strides.append(int(s))
            else:  # a multiple of 16 bytes whatever the sizes, or anything that is not
                strides.append(16 if known(s * itemsize, 16) else 3)
        return unit_axis([hint(n) for n in size], strides, itemsize)

    def is_wide(self, name: str, shapes: Mapping[str, Sequence[Any]]) -> bool:
        """Whether offsets may pass 2^31: where sizes are symbolic, they may."""
        size, stride, _ = self.layout(name, shapes)
        total = sympy.Integer(1)
        for n, s in zip(size, stride, strict=True):
            total += (sympy.sympify(n) - 1) * sympy.sympify(s)
        return not isinstance(total, sympy.Integer) or int(total) >= 1 << 31

    def example(
        self, shapes: Mapping[str, Sequence[Any]], device: torch.device, name: str
    ) -> torch.Tensor:
        """Memory of the likely sizes of a buffer."""
        size, stride, _ = self.layout(name, shapes)
        sizes, strides = [hint(n) for n in size], [hint(s) for s in stride]
        return torch.empty_strided(sizes, strides, dtype=self.dtype(name), device=device)

    def record(self, plan: Plan) -> None:
        """One user-defined Triton kernel."""
        import triton
        from torch._higher_order_ops.triton_kernel_wrap import (
            kernel_side_table,
            triton_kernel_wrapper_mutation,
        )
        from torch._inductor.lowering import lowerings

        arguments: dict[str, Any] = {}
        for p in plan.source.parameters:
            match p.kind:
                case "pointer":
                    arguments[p.name] = self.tensors[p.of]
                case "stride":
                    arguments[p.name] = plain(self.tensors[p.of].get_stride()[p.axis])
                case "size":
                    arguments[p.name] = plain(self.sizes[p.of])
        constants = {n: v for n, v in arguments.items() if isinstance(v, int)}
        config = triton.Config({}, num_warps=plan.schedule.warps, num_stages=plan.schedule.stages)
        tuned = triton.autotune(configs=[config], key=[])(plan.function)
        grid: Any = sympy.Integer(1)
        for g in plan.kernel.grid:
            grid = grid * extent(g.count, self.sizes)
        lowerings[triton_kernel_wrapper_mutation](
            kernel_idx=kernel_side_table.add_kernel(tuned),
            constant_args_idx=kernel_side_table.add_constant_args(constants),
            grid=[(plain(grid), 1, 1)],
            tma_descriptor_metadata={},
            kwargs={n: v for n, v in arguments.items() if n not in constants},
        )


def plain(value: Any) -> Any:
    """An int where a sympy expression is one."""
    return int(value) if isinstance(value, int | sympy.Integer) else value


def hint(value: Any) -> int:
    """The likely value of a size."""
    if isinstance(value, int | sympy.Integer):
        return int(value)
    from torch._inductor.virtualized import V

    sizes: Any = V.graph.sizevars
    find = getattr(sizes, "optimization_hint", None) or sizes.size_hint  # 2.13 renamed it
    return int(find(value, fallback=4096))


def extent(expr: Expr, sizes: Mapping[str, Any]) -> Any:
    """An extent over Inductor's symbols."""
    from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod

    match expr:
        case Const(value, _):
            return sympy.Integer(int(value))
        case Size(name):
            return sympy.sympify(sizes[name])
        case Binary(name, a, b):
            x, y = extent(a, sizes), extent(b, sizes)
            match name:
                case "add":
                    return x + y
                case "sub":
                    return x - y
                case "mul":
                    return x * y
                case "floordiv":
                    return FloorDiv(x, y)
                case "mod":
                    return Mod(x, y)
                case "min":
                    return Min(x, y)
                case "max":
                    return Max(x, y)
    raise TypeError(f"'{expr}' is no extent.")
