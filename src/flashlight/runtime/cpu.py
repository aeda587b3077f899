"""C++ kernels at run time: compiled through torch's own code cache, called by address with the tensors' strides."""

from __future__ import annotations

import ctypes
import functools
import inspect
import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from flashlight.codegen.blocks import Kernel
from flashlight.codegen.cpp import Lanes, Source, emit, translation_unit
from flashlight.codegen.lower import kernel_names, lower
from flashlight.errors import CompileError, Refusal
from flashlight.ir.exprs import Buffer, Const, Expr
from flashlight.ir.nests import Loop, Program
from flashlight.ir.text import print_statement
from flashlight.rewrite.bounds import loop_bounds, loop_skips
from flashlight.rewrite.schedule import Schedule, evaluate
from flashlight.rewrite.tile_cpu import cpu_schedule
from flashlight.runtime.executable import KernelInfo
from flashlight.runtime.types import TORCH_TYPES

SKIPPED_COLS = 128  # columns in a tile that may be left out
# Not -fno-signed-zeros: 0 + a * b + c * d would be contracted at either product, and two kernels' scores would differ by a rounding.
FLAGS = (
    "-O3",
    "-g0",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-fwrapv",
    "-w",
)


def build(program: Program, options: Any, hints: Mapping[str, int]) -> CpuExecutable | Refusal:
    """Compile a program of loops for this machine's CPU.

    Refuses loops that no tile form is known for, and machines without a C++ compiler (with one warning). Raises CompileError
    where the compiler does not accept what was generated.
    """
    try:
        steps = [step_of(program, loop, hints, n) for n, loop in _numbered(program)]
    except CompileError as error:
        return Refusal("tile-form", str(error))
    try:
        return CpuExecutable(program, steps, hints)
    except NoCompilerError:
        _warn_once()
        return Refusal("no-compiler", "There is no working C++ compiler.", hint=_INSTALL)


def _numbered(program: Program) -> list[tuple[int, Loop]]:
    loops = program.loops
    if len(loops) != len(program.statements):
        msg = "Every statement must be a loop before code is generated."
        raise CompileError(msg)
    return list(enumerate(loops))


@dataclass(frozen=True)
class Step:
    """One loop of the program as C++."""

    loop: Loop
    schedule: Schedule
    kernel: Kernel
    source: Source

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return (*self.kernel.reads, *self.kernel.writes)


def step_of(
    program: Program,
    loop: Loop,
    hints: Mapping[str, int],
    number: int = 0,
    schedule: Schedule | None = None,
    lanes: Lanes | None = None,
) -> Step:
    """The C++ of one loop, by the default schedule unless another is given."""
    if schedule is None:
        schedule = with_bounds(program, loop, cpu_schedule(loop, hints, torch.get_num_threads()))
    kernel = lower(loop, schedule, kernel_names(program)[number])
    return Step(loop, schedule, kernel, emit(kernel, lanes))


def with_bounds(program: Program, loop: Loop, schedule: Schedule) -> Schedule:
    """A schedule whose passes skip what their masks exclude; then the heaviest row tiles come first."""
    if len(schedule.cols) != 1:
        return schedule
    inputs = frozenset(b.name for b in program.inputs)
    bounds = loop_bounds(loop, inputs, schedule.rows, schedule.cols[0])
    skips = loop_skips(loop, inputs, schedule.rows, schedule.cols[0])
    if any(s is not None for s in skips):
        schedule = replace(schedule, skips=skips, col_block=min(schedule.col_block, SKIPPED_COLS))
    if not any(bounds):
        return schedule
    return replace(schedule, bounds=bounds, descending=True)


class CpuExecutable:
    """A program compiled for a CPU; see `runtime.executable.Executable`."""

    def __init__(self, program: Program, steps: Sequence[Step], hints: Mapping[str, int]) -> None:
        self.program = program
        self.steps = tuple(steps)
        self.hints = dict(hints)
        library = load_library(translation_unit([s.source for s in steps]))
        self._sizes = tuple(s.name for s in program.sizes)
        self._places = {b.name: n for n, b in enumerate(program.inputs)}
        self._launches = tuple(self._prepared(step, library) for step in self.steps)
        self._outputs = tuple(self._places[name] for name in program.outputs)

    def _prepared(self, step: Step, library: ctypes.CDLL) -> _Launch:
        """A step with everything looked up that does not depend on a call; gives its results places among the tensors."""
        for give in step.loop.gives:
            self._places[give.name] = len(self._places)
        buffers = step.buffers
        return _Launch(
            function=_function(library, step.source.name),
            gives=tuple((_shape(g.buffer), TORCH_TYPES[g.dtype]) for g in step.loop.gives),
            sizes=step.source.sizes,
            arrays=tuple(self._places[b.name] for b in buffers),
            pointers=ctypes.c_void_p * len(buffers),
            numbers=ctypes.c_longlong
            * (len(step.source.sizes) + sum(len(b.shape) for b in buffers)),
            workspace=step.source.workspace,
        )

    @property
    def kernels(self) -> tuple[KernelInfo, ...]:
        return tuple(self._info(step) for step in self.steps)

    def _info(self, step: Step) -> KernelInfo:
        grid = 1
        for g in step.kernel.grid:
            grid *= evaluate(g.count, self.hints, unknown=1)
        return KernelInfo(
            name=step.kernel.name,
            program=print_statement(step.loop),
            source=step.source.text,
            language="cpp",
            grid=grid,
            passes=sum(bool(p.carries) for p in step.loop.passes),
            config=str(step.schedule),
            notes=step.schedule.notes(),
        )

    def __call__(self, inputs: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
        known = dict(zip(self._sizes, sizes, strict=True))
        tensors = list(inputs)
        threads = thread_count()
        for launch in self._launches:
            for shape, dtype in launch.gives:
                fixed = [n if isinstance(n, int) else evaluate(n, known) for n in shape]
                tensors.append(torch.empty(fixed, dtype=dtype))
            numbers = [known[name] for name in launch.sizes]
            pointers = []
            for place in launch.arrays:
                tensor = tensors[place]
                pointers.append(tensor.data_ptr())
                numbers += tensor.stride()
            launch.function(
                launch.pointers(*pointers),
                launch.numbers(*numbers),
                workspace(launch.workspace * threads),
                threads,
            )
        return [tensors[place] for place in self._outputs]


@dataclass(frozen=True)
class _Launch:
    """What a call does for one kernel.

    Attributes:
        function: the kernel.
        gives: (shape, type) of each result, in order of the places they get.
        sizes: symbolic sizes it is handed.
        arrays: places of the tensors it is handed.
        pointers, numbers: ctypes arrays of the right lengths.
        workspace: bytes for each thread.
    """

    function: Any
    gives: tuple[tuple[tuple[int | Expr, ...], torch.dtype], ...]
    sizes: tuple[str, ...]
    arrays: tuple[int, ...]
    pointers: type[ctypes.Array[ctypes.c_void_p]]
    numbers: type[ctypes.Array[ctypes.c_longlong]]
    workspace: int


def _shape(buffer: Buffer) -> tuple[int | Expr, ...]:
    return tuple(int(e.value) if isinstance(e, Const) else e for e in buffer.shape)


def _function(library: ctypes.CDLL, name: str) -> Any:
    function = getattr(library, name)
    function.argtypes = [
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.POINTER(ctypes.c_longlong),
        ctypes.c_void_p,
        ctypes.c_longlong,
    ]
    function.restype = None
    return function


# -- Threads. Each calling thread has a workspace of its own, kept for its next call.

_local = threading.local()
_forked = False


def _after_fork() -> None:
    global _forked
    _forked = True  # the parent's OpenMP threads are not here, and waiting for them would never end


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def thread_count() -> int:
    """Threads to run on: torch's setting, but one in a forked child."""
    return 1 if _forked else torch.get_num_threads()


def workspace(size: int) -> int:
    """The address of at least `size` bytes for the calling thread's use until its next call."""
    held: torch.Tensor | None = getattr(_local, "held", None)
    if held is None or held.numel() < size:
        held = _local.held = torch.empty(max(size, 1 << 16), dtype=torch.uint8)
    return held.data_ptr()


# -- The compiler.

_INSTALL = "Install g++ or clang++ ('apt install g++', 'xcode-select --install'), or set CXX."
_warned = False


class NoCompilerError(CompileError):
    """This machine has no C++ compiler that works."""


def _warn_once() -> None:
    global _warned
    if not _warned:
        _warned = True
        message = f"Flashlight found no working C++ compiler and leaves CPU regions to Inductor. {_INSTALL}"
        warnings.warn(message, stacklevel=2)


def load_library(text: str) -> ctypes.CDLL:
    """Compile and load C++ source; equal sources are compiled once and found in torch's cache later."""
    from torch._inductor.codecache import CppCodeCache
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        return CppCodeCache.load(text, "cpu", **_arguments(CppCodeCache))  # type: ignore[no-any-return]
    except (InvalidCxxCompiler, FileNotFoundError) as error:
        raise NoCompilerError(str(error)) from error
    except Exception as error:
        raise CompileError(_first_error(str(error))) from error


@functools.cache
def _arguments(cache: Any) -> dict[str, Any]:
    """How to compile: for this machine, whose vectors need no flags beyond -march=native (finding out takes torch seconds)."""
    found: dict[str, Any] = {"extra_flags": FLAGS}
    if "needs_vec_isa" in inspect.signature(cache.load_async).parameters:
        found["needs_vec_isa"] = False
    return found


def _first_error(text: str) -> str:
    """The compiler's first complaint, or the first line of what was raised."""
    lines = [line for line in text.strip().splitlines() if line]
    found = next((line for line in lines if "error:" in line), lines[0] if lines else "no output")
    return f"The C++ compiler failed: {found.strip()}"
