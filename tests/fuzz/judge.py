"""Judges one program as `tests.support.oracle` does. Three ways, each slower: loops executed in Python, C++ kernels between eager ops,
and torch.compile. A fourth is `tests.fuzz.interpreted`: Triton kernels between eager ops."""

from __future__ import annotations

import ctypes
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from flashlight.backend import decompositions
from flashlight.capture.capture import capture
from flashlight.capture.record import Record, collecting
from flashlight.errors import CompileError, Refusal
from flashlight.ir.dtypes import DType
from flashlight.ir.execute import execute_tiled
from flashlight.ir.nests import Program
from flashlight.options import Options
from flashlight.runtime import cpu, op
from flashlight.runtime.types import TORCH_TYPES
from tests.support.oracle import (
    FACTOR,
    GRANTED,
    ROUNDING,
    allowed,
    exactly,
    relative_error,
    tensors,
)

PRODUCTS = ("mm", "bmm", "addmm", "baddbmm")


@dataclass
class Verdict:
    """What became of a program.

    Attributes:
        failure: its kind and facts, or "".
        regions: how many became kernels.
        standing: whether a product with more elements than all inputs and outputs is left.
        refusals: their codes.
        schedules: of the kernels, where they were drawn.
    """

    failure: str = ""
    regions: int = 0
    standing: bool = False
    refusals: list[str] = field(default_factory=list)
    schedules: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """The failure without its numbers."""
        return self.failure.split(":")[0]

    @property
    def is_fused(self) -> bool:
        return self.regions > 0 and not self.standing


def load(text: str) -> types.ModuleType:
    """A program's file as a module. Its lines are kept for tracebacks."""
    import linecache

    name = f"program_{abs(hash(text)):x}.py"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    module = types.ModuleType(name[:-3])
    exec(compile(text, name, "exec"), module.__dict__)
    return module


def quick(text: str) -> Verdict:
    """Trace, capture, optimize and lower; execute loops tile by tile in numpy and everything else eagerly."""
    with _loops_in_python(tile=5, parts=2):
        return captured(text)


def kernels(text: str) -> Verdict:
    """The same with C++ kernels, whose results and workspaces are full of NaN at first."""
    with _poisoned():
        return captured(text)


def captured(text: str) -> Verdict:
    """Trace and capture a program; run kernels as they are built here, and everything else eagerly."""
    module = load(text)
    calls = _calls(module)
    verdict = Verdict()
    with torch.no_grad(), collecting() as record:
        traced = _traced(module, calls[0])
        capture(traced.graph, Options(strict=True))
        traced.recompile()
        _note(verdict, record)
        verdict.standing = _stands(traced.graph)
        for args in calls:
            if not _is_guarded_for(traced, args):
                continue  # torch.compile would compile anew
            got = traced(*args)
            verdict.failure = difference(module.fn, args, got, traced)
            if verdict.failure:
                break
    if "compile-error" in verdict.refusals:
        verdict.failure = verdict.failure or "compile-error: the C++ compiler's"
    return verdict


def _traced(module: types.ModuleType, args: Sequence[Any]) -> torch.fx.GraphModule:
    """The ATen graph of a program, which writes to no argument."""
    mode: Literal["symbolic", "fake"] = "symbolic" if module.DYNAMIC else "fake"

    def trace(fn: Callable[..., Any]) -> torch.fx.GraphModule:
        table = decompositions()
        return make_fx(functionalize(fn), decomposition_table=table, tracing_mode=mode)(*args)

    traced = trace(module.fn)
    if any("aten.copy" in str(n.target) for n in traced.graph.nodes):
        traced = trace(traced)  # a decomposition wrote in place
        for node in traced.graph.find_nodes(op="call_function", target=torch.ops.aten.copy.default):
            node.replace_all_uses_with(node.args[1])
    traced.graph.eliminate_dead_code()
    return traced


def _is_guarded_for(traced: torch.fx.GraphModule, args: Sequence[Any]) -> bool:
    """Whether a graph holds for arguments, by the guards that tracing and capturing have left."""
    given: dict[Any, int] = {}
    guards: list[Any] = []
    for node, arg in zip(traced.graph.find_nodes(op="placeholder"), args, strict=True):
        for size, n in zip(getattr(node.meta["val"], "shape", ()), arg.shape, strict=True):
            if isinstance(size, torch.SymInt):
                guards = size.node.shape_env.guards
                if size.node._expr.is_Symbol:
                    given[size.node._expr] = n
    return not any(guard.expr.subs(given) == False for guard in guards)  # noqa: E712


def compiled(text: str) -> Verdict:
    """By torch.compile, with real kernels."""
    module = load(text)
    calls = _calls(module)
    torch._dynamo.reset()
    verdict = Verdict()
    fn: Any = torch.compile(module.fn, backend="flashlight", dynamic=module.DYNAMIC)
    with torch.no_grad(), collecting() as record:
        for args in calls:
            verdict.failure = difference(module.fn, args, fn(*args), fn)
            if verdict.failure:
                break
    _note(verdict, record)
    return verdict


def guarded(judge: Callable[[str], Verdict], text: str) -> Verdict:
    """A verdict in which whatever is raised is the failure."""
    try:
        return judge(text)
    except Exception as error:
        line = str(error).strip().splitlines()
        return Verdict(f"{type(error).__name__}: {line[0][:200] if line else ''}{_place(error)}")


def _place(error: BaseException) -> str:
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "flashlight" in f.filename] or frames
    return f" @ {ours[-1].filename.rsplit('/', 1)[-1]}:{ours[-1].lineno}" if ours else ""


def _calls(module: types.ModuleType) -> list[tuple[Any, ...]]:
    dtype = getattr(torch, module.DTYPES[0])
    return [
        module.make("cpu", dtype, "tiny", torch.Generator().manual_seed(1234 + n), **kw)
        for n, kw in enumerate(getattr(module, "CALLS", [{}]))
    ]


def _note(verdict: Verdict, record: Record) -> None:
    verdict.regions = len(record.regions)
    verdict.refusals = [r.code for r in record.refusals]


def difference(
    fn: Callable[..., Any], args: Sequence[Any], got: Any, run: Callable[..., Any] | None = None
) -> str:
    """How a result differs from eager's, or nothing.

    Args:
        fn: the program.
        args: its arguments.
        got: the result for them.
        run: what the result is of; where it is known, an error is judged by several draws of roundings.
    """
    eagers, exacts = tensors(fn(*args)), tensors(fn(*exactly(args)))
    for i, (g, e, x) in enumerate(zip(tensors(got), eagers, exacts, strict=True)):
        if g.shape != e.shape:
            return f"shape of {i}: {tuple(g.shape)}, eager {tuple(e.shape)}"
        if g.dtype != e.dtype:
            return f"dtype of {i}: {g.dtype}, eager {e.dtype}"
        if not e.is_floating_point():
            decided = e == x  # elsewhere eager's own rounding chose
            if not torch.equal(g[decided], e[decided]):
                return f"integers of {i}: differ"
            continue
        # each as eager's or as the exact one: f32 overflows in fewer places than 16 bits and in more than f64
        if not ((_kinds(g) == _kinds(e)) | (_kinds(g) == _kinds(x.to(e.dtype)))).all():
            return f"places of {i}: {_places(g)}, eager {_places(e)}"
        error, limit = relative_error(g, x), allowed(e, x)
        if error > limit and error > limit + _sensitivity(fn, args, i, x):
            if run is not None:
                error, limit = _typical(fn, run, args, i)
            if error > limit:
                return f"error of {i}: {error:.2e}, at most {limit:.2e}"
    return ""


DRAWS = 16


def _typical(
    fn: Callable[..., Any], run: Callable[..., Any], args: Sequence[Any], i: int
) -> tuple[float, float]:
    """A result's error and what it may be by the errors of eager, both as root mean squares over draws of roundings.

    Where a few elements make up an error, such as rows of large scores with two keys in question, eager's is one draw of a few
    roundings: another program of the same roundings in another order has twice its error in one draw of twenty. A compiler that
    adds roundings has more in all of them. This draw is one of those counted, each other one moves every input by a unit of its type.
    """
    generator = torch.Generator().manual_seed(0)

    def moved(a: Any) -> Any:
        if not isinstance(a, Tensor) or not a.is_floating_point():
            return a
        noise = torch.randn(a.shape, generator=generator, dtype=torch.float64)
        return (a * (1 + torch.finfo(a.dtype).eps * noise)).to(a.dtype)

    errors, limits = [], []
    for n in range(1 + DRAWS):
        now = args if n == 0 else [moved(a) for a in args]
        got, eager, exact = (tensors(r)[i] for r in (run(*now), fn(*now), fn(*exactly(now))))
        errors.append(relative_error(got, exact))
        limits.append(relative_error(eager, exact))
    rounding = GRANTED * ROUNDING[eager.dtype]
    return _root_mean_square(errors), FACTOR * _root_mean_square(limits) + rounding


def _root_mean_square(values: Sequence[float]) -> float:
    return (sum(v * v for v in values) / len(values)) ** 0.5


def _sensitivity(fn: Callable[..., Any], args: Sequence[Any], i: int, exact: Tensor) -> float:
    """How far a result moves, times a few, where every input moves by a unit of rounding of its type.

    Eager's error may be a lucky draw where terms cancel (and is none at all in float64); nobody's is smaller than this for long.
    In 16 bits every intermediate is rounded too, by eager as by a kernel's caller: the sign of a score that cancels to less than a
    unit is anyone's, and a layer norm of what a relu leaves of it shows which.
    """
    generator = torch.Generator().manual_seed(0)
    floats = [a.dtype for a in args if isinstance(a, Tensor) and a.is_floating_point()]
    unit = max((torch.finfo(dtype).eps for dtype in floats), default=0.0) / 2

    def moved(a: Any) -> Any:
        if not isinstance(a, Tensor) or not a.is_floating_point():
            return a
        return a * (1 + unit * torch.randn(a.shape, generator=generator, dtype=torch.float64))

    tries = [tensors(fn(*map(moved, exactly(args))))[i] for _ in range(8)]
    return 4 * max(relative_error(t, exact) for t in tries)


def _kinds(x: Tensor) -> Tensor:
    """0 for a finite element, 1 or -1 for an infinite one, 2 for NaN."""
    return torch.where(x.isnan(), 2, torch.where(x.isinf(), x.sign(), 0))


def _places(x: Tensor) -> str:
    return f"{int(x.isnan().sum())} nan {int(x.isinf().sum())} inf of {x.numel()}"


def _stands(graph: torch.fx.Graph) -> bool:
    """Whether a product writes more elements than every input and output has."""

    def count(node: Any) -> int:
        val = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
        return int(val.numel()) if isinstance(val, Tensor) else 0

    ends = [n for n in graph.nodes if n.op == "placeholder"]
    ends += next(n for n in graph.nodes if n.op == "output").all_input_nodes
    largest = max(map(count, ends), default=0)
    return any(
        n.op == "call_function"
        and str(n.target).removeprefix("aten.").split(".")[0] in PRODUCTS
        and count(n) > largest
        for n in graph.nodes
    )


class InPython:
    """A program of loops, executed by the laws of tiles. Its C++ is generated and not compiled."""

    kernels = ()

    def __init__(self, program: Program, tile: int, parts: int) -> None:
        self.program, self.tile, self.parts = program, tile, parts

    def __call__(self, inputs: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        """The outputs; 16-bit floats are computed in float32, as kernels do."""
        program = self.program
        arrays = {b.name: _array(t) for b, t in zip(program.inputs, inputs, strict=True)}
        known = {s.name: int(n) for s, n in zip(program.sizes, sizes, strict=True)}
        single = not any(b.dtype is DType.F64 for b in program.inputs)
        found = execute_tiled(program, arrays, self.tile, self.parts, single=single, sizes=known)
        results = program.results()
        return [
            torch.from_numpy(np.array(found[name], order="C")).to(TORCH_TYPES[results[name].dtype])
            for name in program.outputs
        ]


def _array(t: Tensor) -> np.ndarray:
    return (t.float() if t.dtype in (torch.bfloat16, torch.float16) else t).numpy()


@contextmanager
def _loops_in_python(tile: int, parts: int) -> Iterator[None]:
    def build(
        program: Program, device: torch.device, options: Any, hints: Mapping[str, int]
    ) -> InPython | Refusal:
        try:
            for n, loop in enumerate(program.loops):
                cpu.step_of(program, loop, hints, n)
        except CompileError as error:
            return Refusal("tile-form", str(error))
        return InPython(program, tile, parts)

    with built_by(build):
        yield


@contextmanager
def built_by(build: Callable[..., Any]) -> Iterator[None]:
    """Until the end, regions become what `build` makes of them; see `runtime.executable.build`."""
    before = op.build  # type: ignore[attr-defined]
    op.build = build  # type: ignore[attr-defined]
    built, op._built = op._built, {}
    try:
        yield
    finally:
        op.build = before  # type: ignore[attr-defined]
        op._built = built


@contextmanager
def _poisoned() -> Iterator[None]:
    """Whatever a kernel has not written is NaN, or true."""
    workspace, deterministic = cpu.workspace, torch.are_deterministic_algorithms_enabled()

    def poisoned(size: int) -> int:
        address = workspace(size)
        ctypes.memset(address, 0xFF, size)
        return address

    cpu.workspace = poisoned
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills what torch.empty returns
    try:
        yield
    finally:
        cpu.workspace = workspace
        torch.use_deterministic_algorithms(deterministic)
