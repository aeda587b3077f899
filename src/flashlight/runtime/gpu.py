"""Triton kernels at run time: choose a schedule, write the module, launch by the tensors' strides.

The code for a call depends on facts about its tensors (alignment and strides that descriptors need, spans beyond 2^31), so each
loop keeps one plan for each combination of facts that has been met: a schedule, chosen at the first call, and its compiled kernel.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

import torch

from flashlight import trace
from flashlight.codegen import gluon
from flashlight.codegen.blocks import Fetch, Kernel, Span, Store, walk
from flashlight.codegen.lower import kernel_names, lower
from flashlight.codegen.roles import copied_buffers
from flashlight.codegen.triton import Choices, Precision, Source, descriptor_candidates, emit
from flashlight.errors import CompileError, Refusal
from flashlight.ir.exprs import Buffer, Dim, Expr
from flashlight.ir.nests import Carry, Loop, Pass, Program
from flashlight.ir.text import names_in, print_buffer, print_expr, print_statement
from flashlight.ir.visit import free_dims
from flashlight.rewrite.bounds import loop_bounds, loop_skips
from flashlight.rewrite.ranges import GRAIN, ranges_of
from flashlight.rewrite.schedule import (
    AMPERE,
    HOPPER,
    Bounds,
    Device,
    Schedule,
    evaluate,
    extent_of,
    planned_extent,
    planned_sizes,
    power_of_two,
)
from flashlight.rewrite.shapes import NEARLY_FULL, SHORT
from flashlight.rewrite.split_accumulators import closures, components, split_accumulators
from flashlight.rewrite.split_keys import parts_for, split_keys, why_not_split
from flashlight.rewrite.sweeps import swept, together, with_bounds
from flashlight.rewrite.tile import candidates, fetched, instances, row_dims
from flashlight.runtime import cache
from flashlight.runtime.executable import KernelInfo
from flashlight.runtime.launch import Key, Plan, compile_all, key_of, start
from flashlight.runtime.relaunch import Launch
from flashlight.runtime.tune import (
    HOW_MANY,
    Mode,
    Trial,
    choose,
    remember,
    remembered,
    variations,
)
from flashlight.runtime.types import TORCH_TYPES

SHORTEST = 512
"""Rows and columns from which it pays to find out first which tiles a mask of data leaves."""

MANY = 8192
"""Rows and columns from which the extremes of tiles are found in a loop of their own. Measured on an H200: at 16384 the ranges of
documents take 26 us without it."""

Float32 = Literal["split", "ieee"]
"""How products of f32 are computed at torch's matmul precision 'highest': see `Options.float32`."""

SHARED = 4
"""Score matrices that one dense mask serves from which it pays to read it first."""

MOST_CALLS = 64
"""Shapes and strides of calls for which a program remembers what to launch."""

_INTERPRETING = os.environ.get("TRITON_INTERPRET", "0") == "1"


def build(
    program: Program, device: torch.device, options: Any, hints: Mapping[str, int]
) -> GpuExecutable | Refusal:
    """Compile a program of loops for a CUDA device."""
    if len(program.loops) != len(program.statements):
        return Refusal("not-loops", "Every statement must be a loop before code is generated.")
    model = device_model(device)
    program = with_split_accumulators(program, hints, model)
    program = with_split_keys(program, hints, model)
    program, known = with_ranges(program, hints, model)
    mode: Mode = getattr(options, "tune", "off")
    f32: Float32 = getattr(options, "float32", "split")
    try:
        steps = [
            Step.of(program, n, schedules_for(program, loop, hints, model, known), mode, f32)
            for n, loop in enumerate(program.loops)
        ]
    except CompileError as error:
        return Refusal("tile-form", str(error))
    return GpuExecutable(program, steps, hints)


def device_model(device: torch.device) -> Device:
    """What the tiling must know of this device."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return HOPPER
    properties = torch.cuda.get_device_properties(device)
    base = HOPPER if properties.major >= 9 and torch.version.hip is None else AMPERE
    shared = getattr(properties, "shared_memory_per_block_optin", base.shared)
    roles = (properties.major, properties.minor) == (9, 0) and base is HOPPER and gluon.is_known()
    return replace(base, shared=shared, units=properties.multi_processor_count, roles=roles)


Known = Mapping[Loop, tuple[Bounds | None, ...]]
"""Bounds that another loop of the program computes, by loop."""


def schedules_for(
    program: Program,
    loop: Loop,
    hints: Mapping[str, int],
    device: Device,
    known: Known = MappingProxyType({}),
) -> list[Schedule]:
    """Schedules for a loop, the preferred first, their passes skipping what masks exclude."""
    found = candidates(loop, hints, device)
    if loop in known:
        return [replace(s, bounds=known[loop]) for s in found if s.row_block <= 2 * GRAIN]
    first = found[0]
    if len(first.cols) != 1:
        return found
    inputs = frozenset(b.name for b in program.inputs)
    bounds = loop_bounds(loop, inputs, first.rows, first.cols[0])
    if not any(bounds):
        return found
    sizes = planned_sizes(hints)
    group = together(loop, first, sizes, device)
    found = candidates(loop, hints, device, swept(bounds, first, sizes))
    bounded = ((s, with_bounds(s, bounds, sizes, group)) for s in found)
    return [one for s, ways in bounded for one in (ways[:1] if s.consumers else ways)]


ACCUMULATED = 256
"""Words of accumulators per row up to which independent ones share a kernel. Measured on an H200: two of 128 run at 63 % of the
device's matrix rate together, two of 256 at 39 %."""

LONG = 2048
"""Columns from which half as many share one: what one kernel hands on to the other takes less time than is lost together."""


def with_split_accumulators(program: Program, hints: Mapping[str, int], device: Device) -> Program:
    """The program with accumulators in kernels of their own: independent ones where together they are too wide for registers,
    and those of one softmax where tiles of other rows each fetch much less.
    """
    for loop in program.loops:
        parts = components(loop)
        width = sum(_width(c, loop, hints) for c in loop.carries)
        columns = math.prod(planned_extent(d, hints) for d in loop.loop)
        most = ACCUMULATED // 2 if device.roles and columns >= LONG else ACCUMULATED
        if len(parts) > 1 and width > most:
            program = split_accumulators(program, loop, parts)
            continue
        parts = _by_rows(loop, hints)
        if len(parts) > 1:
            apart = sum(fetched(_alone(loop, p), hints, device) for p in parts)
            if apart <= LESS_FETCHED * fetched(loop, hints, device):
                program = split_accumulators(program, loop, parts)
    return program


LESS_FETCHED = 0.5
"""Share of the bytes of one kernel below which several that compute the weights of a softmax again are taken for faster."""


def _by_rows(loop: Loop, hints: Mapping[str, int]) -> list[list[Carry]]:
    """The closures of wide accumulators, those together that want the same dims as rows of their tiles."""
    sets: dict[tuple[Dim, ...], list[Carry]] = {}
    for members in closures(loop):
        rows = row_dims(_alone(loop, members), hints)
        known = sets.setdefault(rows, [])
        known.extend(c for c in members if c not in known)
    return list(sets.values())


def _alone(loop: Loop, carries: Sequence[Carry]) -> Loop:
    return Loop(loop.kept, loop.loop, (Pass(tuple(carries)),))


def _width(carry: Carry, loop: Loop, hints: Mapping[str, int]) -> int:
    """Elements of an accumulator per row; statistics count as nothing."""
    whole = [d for d in carry.dims if d not in loop.kept]
    return math.prod(power_of_two(extent_of(d, hints)) for d in whole) if whole else 0


def with_split_keys(program: Program, hints: Mapping[str, int], device: Device) -> Program:
    """The program with long loops of few program instances cut into parts that fill the device.

    What the parts give is no larger than the largest tensor that the program has anyway.
    """
    results = [b for name, b in program.results().items() if name in program.outputs]
    sizes = planned_sizes(hints)
    tensors = [math.prod(evaluate(e, sizes) for e in b.shape) for b in (*program.inputs, *results)]
    for loop in program.loops:
        if why_not_split(loop) is not None:
            continue
        # Row tiles as they are on a small device, which need not be cut to fill it.
        whole = candidates(loop, hints, replace(device, units=1))[0]
        filled = instances(whole, hints, planned_extent)
        length = math.prod(planned_extent(d, hints) for d in loop.loop)
        cuts = whole.row_block // candidates(loop, hints, device)[0].row_block
        if (
            cuts > 1
            and min(cuts, 2 if length > 2 * SHORT else 4) * filled >= NEARLY_FULL * device.units
        ):
            continue  # row tiles cut in halves or quarters do less harm than parts
        col = max(loop.loop, key=lambda d: extent_of(d, hints))
        given = max(math.prod(planned_extent(d, hints) for d in c.dims) for c in loop.carries)
        parts = min(
            parts_for(filled, length, device.units),
            planned_extent(col, hints),
            max(tensors) // max(given, 1),
        )
        if parts > 1:
            program = split_keys(program, loop, parts, col)
    return program


def with_ranges(
    program: Program, hints: Mapping[str, int], device: Device
) -> tuple[Program, Known]:
    """The program with loops before each one whose mask depends on data, and the bounds which those find."""
    inputs = frozenset(b.name for b in program.inputs)
    known: dict[Loop, tuple[Bounds | None, ...]] = {}
    statements: list[Loop] = []
    taken = _names(program)
    for loop in program.loops:
        found = _ranges(loop, inputs, hints, device, taken)
        if found is not None:
            known[loop] = found[1]
            statements.extend(found[0])
            taken |= _names(replace(program, statements=found[0], outputs=()))
        statements.append(loop)
    return program.with_statements(tuple(statements)), known


def _names(program: Program) -> frozenset[str]:
    return frozenset(x.name for x in names_in(program))


def _ranges(
    loop: Loop,
    inputs: frozenset[str],
    hints: Mapping[str, int],
    device: Device,
    taken: frozenset[str],
) -> tuple[tuple[Loop, ...], tuple[Bounds | None, ...]] | None:
    schedule = candidates(loop, hints, device)[0]
    if len(schedule.rows) != 1 or len(schedule.cols) != 1:
        return None
    (row,), (col,) = schedule.rows, schedule.cols
    if min(planned_extent(row, hints), planned_extent(col, hints)) < SHORTEST:
        return None
    skips = loop_skips(loop, inputs, (row,), col, proved=False)
    if skips[0] is None:
        return None
    rows_live = loop_skips(loop, inputs, (row,), col)[0] is not None

    def is_shared(mask: Expr) -> bool:
        others = [d for d in loop.kept if d is not row and d not in free_dims(mask)]
        return math.prod(extent_of(d, hints) for d in others) >= SHARED

    many = min(planned_extent(row, hints), planned_extent(col, hints)) >= MANY
    found = ranges_of(
        skips[0], loop, row, col, taken, rows_live=rows_live, dense=is_shared, many=many
    )
    if found is None:
        return None
    closed = loop_bounds(loop, inputs, (row,), col)
    bounds = [found.bounds if s is skips[0] else c for s, c in zip(skips, closed, strict=True)]
    return found.loops, tuple(bounds)


@dataclass(frozen=True)
class Facts:
    """What the code of a call depends on.

    Attributes:
        descriptors: for each buffer that descriptors could read, its axis of stride 1, or -1 where strides or alignment forbid.
        wide: some offset within a tile could pass 2^31.
        precision: of f32 dots.
        roles: whether warps may have roles of their own; not where kernels are packaged, as only ours launches those.
    """

    descriptors: tuple[tuple[str, int], ...] = ()
    wide: bool = False
    precision: Precision = "ieee"
    roles: bool = True


@dataclass
class Step:
    """One loop of the program, ready to launch.

    Attributes:
        schedules: the preferred first.
        kernel: the block program of the preferred schedule.
        readable: buffers that descriptors could read.
        copied: those that a warp of its own could copy by descriptors.
        tiled: for each buffer, the axes along which its tiles lie.
        plans: by facts, chosen at the first call that has them.
    """

    loop: Loop
    name: str
    text: str
    schedules: tuple[Schedule, ...]
    kernel: Kernel
    readable: tuple[str, ...]
    copied: tuple[str, ...]
    tiled: Mapping[str, frozenset[int]]
    mode: Mode
    f32: Float32
    plans: dict[Facts, Plan] = field(default_factory=dict)

    @staticmethod
    def of(
        program: Program,
        number: int,
        schedules: Sequence[Schedule],
        mode: Mode,
        f32: Float32 = "split",
    ) -> Step:
        loop = program.loops[number]
        name = kernel_names(program)[number]
        kernel = lower(loop, schedules[0], name)
        described = any(s.tma for s in schedules)
        readable = tuple(sorted(descriptor_candidates(kernel))) if described else ()
        copied = copied_by(loop, schedules, name)
        text = print_statement(loop)
        axes = tiled_axes(kernel)
        return Step(loop, name, text, tuple(schedules), kernel, readable, copied, axes, mode, f32)

    # -- Sources.

    def facts(self, tensors: Mapping[str, torch.Tensor]) -> Facts:
        descriptors = tuple((name, describable_axis(tensors[name])) for name in self.described)
        wide = any(is_wide(t, self.tiled.get(name, frozenset())) for name, t in tensors.items())
        return Facts(descriptors, wide, f32_precision(self.f32))

    @property
    def described(self) -> tuple[str, ...]:
        """Buffers whose strides decide about descriptors."""
        return tuple(sorted({*self.readable, *self.copied}))

    def source(self, schedule: Schedule, kernel: Kernel, facts: Facts) -> Source:
        target: Literal["cuda", "hip", "interpret"] = "hip" if torch.version.hip else "cuda"
        if _INTERPRETING:
            target = "interpret"
        header = ["Generated by Flashlight from", *self.text.splitlines(), f"with {schedule}"]
        known = {n: axis for n, axis in facts.descriptors if axis >= 0}
        if schedule.consumers:
            choices = Choices(known, facts.precision, facts.wide, target)
            return gluon.emit(kernel, choices, schedule.consumers, schedule.stages, header)
        described = {n: known[n] for n in self.readable if n in known and schedule.tma}
        choices = Choices(described, facts.precision, facts.wide, target)
        return emit(kernel, choices, header)

    def plan(self, schedule: Schedule, facts: Facts) -> Plan:
        same = schedule == self.schedules[0]
        kernel = self.kernel if same else lower(self.loop, schedule, self.name)
        source = self.source(schedule, kernel, facts)
        return Plan(schedule, kernel, source, load_function(source))

    # -- Launching.

    @property
    def tensors(self) -> tuple[str, ...]:
        """What the kernel reads and writes, in the order in which launches take them."""
        return tuple(b.name for b in (*self.kernel.reads, *self.kernel.writes))

    def launch(
        self, tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int]
    ) -> Launch | None:
        """Launch the kernel; returns how to do so again, or None where there is nothing to do."""
        facts = self.facts(tensors)
        plan = self.plans.get(facts)
        if plan is None:
            if not all(evaluate(g.count, sizes) for g in self.kernel.grid):
                return None
            plan = self.plans[facts] = self.choose(facts, tensors, sizes)
        return start(plan, tensors, sizes)

    def choose(
        self, facts: Facts, tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int]
    ) -> Plan:
        """The plan for calls with these facts. Raises CompileError where no schedule runs on the device."""
        if _INTERPRETING:
            return self.plan(self.schedules[0], facts)
        key = self.key(facts, tensors, sizes)
        known = remembered(key, self.schedules[0])
        if torch.cuda.is_current_stream_capturing():  # nothing may be timed or compared
            return self.plan(known or self.schedules[0], facts)
        tried = _Trials(self, facts, tensors, sizes)
        if known is not None and tried(known, False) is not None:
            return tried.plans[known]
        allowed = [s for s in self.schedules if facts.roles or not s.consumers]
        schedules = variations(allowed, self.mode)
        if self.mode != "off":
            tried.compile(schedules[: HOW_MANY[self.mode]])
        schedule = choose(schedules, self.mode, tried)
        if schedule is None:
            message = f"No schedule of '{self.name}' runs on this device: {tried.error}"
            raise CompileError(message)
        trace.say(2, "tune", "%s: %s", self.name, schedule)
        remember(key, schedule)
        return tried.plans[schedule]

    def key(
        self, facts: Facts, tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int]
    ) -> dict[str, str]:
        """What a tuned schedule is for: the kernel, the class of sizes, the device and the versions."""
        import triton

        device = next(iter(tensors.values())).device
        classes = {name: max(0, n - 1).bit_length() for name, n in sizes.items()}
        dims = (*self.loop.kept, *self.loop.loop)
        extents = {d.name: print_expr(d.extent) for d in dims}
        return {
            "kind": "schedule",
            "program": self.text,
            "buffers": repr(list(map(print_buffer, (*self.kernel.reads, *self.kernel.writes)))),
            "extents": repr(extents),
            "default": str(self.schedules[0]),
            "facts": repr(facts),
            "sizes": repr(sorted(classes.items())),
            "mode": self.mode,
            "device": torch.cuda.get_device_name(device),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "package": cache.package_fingerprint(),
        }

    def info(self, hints: Mapping[str, int]) -> KernelInfo:
        plan = next(iter(self.plans.values()), None)
        schedule = plan.schedule if plan else self.schedules[0]
        units = tuple((n, _last_axis(self.kernel, n)) for n in self.described)
        default = Facts(units, False, f32_precision(self.f32))
        source = plan.source if plan else self.source(schedule, self.kernel, default)
        return KernelInfo(
            name=self.name,
            program=self.text,
            source=source.text,
            language="gluon" if schedule.consumers else "triton",
            grid=instances(schedule, hints),
            passes=sum(bool(p.carries) for p in self.loop.passes),
            config=str(schedule),
            notes=schedule.notes(),
        )


def copied_by(loop: Loop, schedules: Sequence[Schedule], name: str) -> tuple[str, ...]:
    """Buffers whose tiles a warp of its own would copy, under the first schedule in which warps have roles."""
    parted = next((s for s in schedules if s.consumers), None)
    try:
        return copied_buffers(lower(loop, parted, name)) if parted is not None else ()
    except CompileError:
        return ()


@dataclass
class _Trials:
    """Runs schedules on a call's own tensors; results of the first become the reference of the others.

    Attributes:
        made: plans of schedules that were compiled side by side.
        plans: of the schedules that ran.
        error: what the last one that did not run raised.
    """

    step: Step
    facts: Facts
    tensors: Mapping[str, torch.Tensor]
    sizes: Mapping[str, int]
    made: dict[Schedule, Plan] = field(default_factory=dict)
    plans: dict[Schedule, Plan] = field(default_factory=dict)
    reference: dict[str, torch.Tensor] = field(default_factory=dict)
    error: Exception | None = None

    def compile(self, schedules: Iterable[Schedule]) -> None:
        """Compile the kernels of schedules that will be tried; what goes wrong is seen when they are."""
        for s in schedules:
            with contextlib.suppress(Exception):
                self.made[s] = self.step.plan(s, self.facts)
        compile_all(self.made.values(), self.tensors, self.sizes)

    @property
    def tolerance(self) -> float:
        """Mean difference of results, beside their mean, that rounding explains. A schedule that Triton 3.6 compiled wrongly for
        f32 was off by 3e-4.
        """
        floats = {t.dtype for t in self.tensors.values() if t.is_floating_point()}
        exact = floats <= {torch.float32, torch.float64} and self.facts.precision != "tf32"
        return 5e-5 if exact else 1e-2

    def __call__(self, schedule: Schedule, timed: bool) -> Trial | None:
        """What came of a schedule, or None where it does not compile or does not fit the device."""
        try:
            plan = self.made.get(schedule) or self.step.plan(schedule, self.facts)
            launch = start(plan, self.tensors, self.sizes)
        except Exception as error:
            # A kernel with roles is one more to try: whatever is wrong with it, others run.
            more = (
                schedule.consumers and self.plans and not isinstance(error, torch.OutOfMemoryError)
            )
            if not is_refusal(error) and not more:
                raise
            trace.say(1, "tune", "%s: %s: %s", schedule, type(error).__name__, error)
            self.error = error
            return None
        self.plans[schedule] = plan
        spills = launch.spills if launch is not None else 0
        if not timed:
            return Trial(spills)
        names = [g.name for g in self.step.loop.gives]
        if not self.reference:
            self.reference.update({n: self.tensors[n].clone() for n in names})
        most = self.tolerance
        agrees = all(_close(self.tensors[n], self.reference[n], most) for n in names)
        device = next(iter(self.tensors.values())).device
        given = list(self.tensors.values())
        time = milliseconds(lambda: launch and launch(given), device)
        return Trial(spills, time, agrees)


def is_refusal(error: Exception) -> bool:
    """Whether an error says that a kernel does not compile or does not fit: Triton's own, or one of the passes below it.

    Those raise RuntimeError, as do launches; memory that runs out is the caller's affair.
    """
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import OutOfResources, PTXASError

    if isinstance(error, torch.OutOfMemoryError):
        return False
    kinds = (CompileError, CompilationError, OutOfResources, PTXASError, RuntimeError)
    return isinstance(error, kinds)


@dataclass(frozen=True)
class _Stage:
    """A loop of a call like an earlier one: the tensors it gives, those its launch takes, and the launch."""

    gives: tuple[tuple[str, torch.Size, torch.dtype], ...]
    takes: tuple[str, ...]
    launch: Launch | None


class GpuExecutable:
    """A program compiled for a GPU; see `runtime.executable.Executable`.

    A call whose tensors differ from those of an earlier one only in where they are goes straight to its launches: finding out about
    tensors and schedules takes the host longer than many kernels run.
    """

    def __init__(self, program: Program, steps: Sequence[Step], hints: Mapping[str, int]) -> None:
        self.program = program
        self.steps = tuple(steps)
        self.hints = dict(hints)
        self.names = tuple(b.name for b in program.inputs)
        self.stages: dict[Key, tuple[_Stage, ...]] = {}

    @property
    def kernels(self) -> tuple[KernelInfo, ...]:
        return tuple(step.info(self.hints) for step in self.steps)

    def __call__(self, inputs: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
        tensors = dict(zip(self.names, inputs, strict=True))
        self.run(self.steps, tensors, key_of(inputs, sizes, self.precision), sizes)
        return [tensors[name] for name in self.program.outputs]

    def run_loop(
        self, number: int, inputs: Sequence[torch.Tensor], sizes: Sequence[int]
    ) -> list[torch.Tensor]:
        """What one loop gives, from what its kernel reads."""
        step = self.steps[number]
        names = [b.name for b in step.kernel.reads]
        tensors = dict(zip(names, inputs, strict=True))
        self.run([step], tensors, key_of(inputs, sizes, (number, self.precision)), sizes)
        return [tensors[g.name] for g in step.loop.gives]

    def first_into(
        self, number: int, tensors: Sequence[torch.Tensor], sizes: Sequence[int]
    ) -> Launch | None:
        """Run one loop on what its kernel reads and what it is to write; returns how to do so again.

        What it is to write may have another shape, where it is part of something else.
        """
        step = self.steps[number]
        known = {s.name: int(n) for s, n in zip(self.program.sizes, sizes, strict=True)}
        found = dict(zip(step.tensors, tensors, strict=True))
        for b in step.kernel.writes:
            found[b.name] = found[b.name].view([evaluate(n, known) for n in b.shape])
        return step.launch(found, known)

    @property
    def precision(self) -> Precision:
        return f32_precision(self.steps[0].f32)

    def run(
        self,
        steps: Sequence[Step],
        tensors: dict[str, torch.Tensor],
        key: Key,
        sizes: Sequence[int],
    ) -> None:
        """Run loops, and add to `tensors` what they give."""
        device = next(iter(tensors.values())).device
        for stage in self.stages.get(key, ()):
            for name, shape, dtype in stage.gives:
                tensors[name] = torch.empty(shape, dtype=dtype, device=device)
            if stage.launch is not None:
                stage.launch([tensors[name] for name in stage.takes])
        if key in self.stages:
            return
        known = {s.name: int(n) for s, n in zip(self.program.sizes, sizes, strict=True)}
        stages = tuple(self.first(step, tensors, known, device) for step in steps)
        if len(self.stages) >= MOST_CALLS:
            self.stages.clear()
        if not _INTERPRETING:
            self.stages[key] = stages

    def first(
        self,
        step: Step,
        tensors: dict[str, torch.Tensor],
        sizes: Mapping[str, int],
        device: torch.device,
    ) -> _Stage:
        """Run a loop as if it were the first time; returns how to do so again."""
        for give in step.loop.gives:
            tensors[give.name] = empty(give.buffer, sizes, device)
        launch = step.launch({name: tensors[name] for name in step.tensors}, sizes)
        made = [(g.name, tensors[g.name]) for g in step.loop.gives]
        return _Stage(tuple((n, t.shape, t.dtype) for n, t in made), step.tensors, launch)


# -- Facts about tensors.


def empty(buffer: Buffer, sizes: Mapping[str, int], device: torch.device) -> torch.Tensor:
    """An uninitialised contiguous tensor for a buffer."""
    shape = [evaluate(e, sizes) for e in buffer.shape]
    return torch.empty(shape, dtype=TORCH_TYPES[buffer.dtype], device=device)


def describable_axis(t: torch.Tensor) -> int:
    """The axis of stride 1 if a tile descriptor can read the tensor (16-byte aligned base and strides), else -1."""
    if t.data_ptr() % 16 or not t.numel():
        return -1
    return unit_axis(t.shape, t.stride(), t.element_size())


def unit_axis(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> int:
    """The axis of stride 1 if all other strides are multiples of 16 bytes, and positive where there is more than one element."""
    axes = range(len(shape))
    unit = next((n for n in reversed(axes) if shape[n] > 1 and strides[n] == 1), -1)
    others = [n for n in axes if n != unit]
    if any(strides[n] * itemsize % 16 or (strides[n] <= 0 and shape[n] > 1) for n in others):
        return -1
    return unit


def tiled_axes(kernel: Kernel) -> dict[str, frozenset[int]]:
    """For each buffer, the axes along which its tiles lie (but for gathered ones, whose offsets have 64 bits anyway)."""
    found: dict[str, frozenset[int]] = {}
    for op in walk(kernel.body):
        if isinstance(op, Fetch | Store):
            spans = frozenset(n for n, s in enumerate(op.index) if isinstance(s, Span))
            found[op.buffer.name] = found.get(op.buffer.name, frozenset()) | spans
    return found


def is_wide(t: torch.Tensor, tiled: Iterable[int]) -> bool:
    """Whether an offset within a tile over some of a tensor's axes could pass 2^31 (a tile may start before the tensor does)."""
    return sum(t.shape[n] * t.stride(n) for n in tiled) >= 1 << 30


def f32_precision(f32: Float32 = "split") -> Precision:
    """How dots of f32 operands multiply: as torch's float32 matmul precision asks (docs/decisions/0012)."""
    if torch.get_float32_matmul_precision() != "highest":
        return "tf32"
    return "ieee" if f32 == "ieee" or torch.version.hip else "tf32x3"


def _last_axis(kernel: Kernel, name: str) -> int:
    return next(len(b.shape) - 1 for b in kernel.reads if b.name == name)


# -- Modules, memory, time.


def load_function(source: Source) -> Any:
    """The kernel function of a generated module, written to the cache so that Triton can read its source."""
    parts = {"kind": "triton", "source": source.text}
    if cache.load(parts) is None:
        with cache.lock(parts):
            cache.store(parts, {"kernel.py": source.text})
    path = cache.path_of(parts, "kernel.py")
    name = f"flashlight_kernel_{cache.key_of(parts)[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise CompileError(f"The generated module '{path}' cannot be loaded.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, source.kernel)


MEASURED = 20.0
"""Milliseconds that the launches of a trial take together, but for at least `LAUNCHES` and at most twenty times as many."""

LAUNCHES = 8


def milliseconds(run: Callable[[], object], device: torch.device) -> float:
    """Time of a launch: the least of many, each with nothing in the second-level cache.

    One process measures on a device at a time. Others may run what they compile: the device then serves them in turns that are
    longer than most kernels, so that the least time is undisturbed if there are enough launches, whatever the mean says.
    """
    from triton.runtime import driver

    which = str(torch.cuda.get_device_properties(device).uuid)
    with cache.lock({"kind": "timing", "device": which}), torch.cuda.device(device):
        flushed = driver.active.get_empty_cache_for_benchmark()

        def times(count: int) -> list[float]:
            pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
            for begin, end in pairs:
                driver.active.clear_cache(flushed)
                begin.record()
                run()
                end.record()
            torch.cuda.synchronize(device)
            return [float(begin.elapsed_time(end)) for begin, end in pairs]

        least = min(times(LAUNCHES))
        more = min(int(MEASURED / max(least, 1e-3)), 20 * LAUNCHES) - LAUNCHES
        return min([least, *times(max(0, more))])


def _close(a: torch.Tensor, b: torch.Tensor, most: float) -> bool:
    """Whether two results of one program agree up to `most` (mean difference beside the mean), NaN places included."""
    if not a.is_floating_point():
        return bool(torch.equal(a, b))
    x, y = a.double(), b.double()
    if not torch.equal(x.isnan(), y.isnan()):
        return False
    x, y = x.nan_to_num(0.0), y.nan_to_num(0.0)
    size = float(y.abs().mean()) + 1e-30
    return float((x - y).abs().mean()) <= most * size
