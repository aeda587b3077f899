"""The one op that stands for a fused region in a graph: `flashlight::fused(Tensor[] ins, SymInt[] syms, str token) -> Tensor[]`.

The token holds all there is to know (the canonical program's text, hints and options), so that graphs restored from a cache in
another process run without anything of the compilation that made them. Kernels are built at the first call on a device.
"""

from __future__ import annotations

import base64
import json
import threading
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import torch

from flashlight import trace
from flashlight.errors import CompileError, Refusal
from flashlight.ir.exprs import Binary, Buffer, Const, Expr, Size
from flashlight.ir.nests import Program
from flashlight.ir.text import parse_program
from flashlight.options import Options
from flashlight.pipeline import optimize
from flashlight.runtime.executable import Executable, build
from flashlight.runtime.reference import evaluate
from flashlight.runtime.types import TORCH_TYPES

if TYPE_CHECKING:
    from flashlight.runtime.gpu import GpuExecutable


@dataclass(frozen=True)
class Payload:
    """What a token says.

    Attributes:
        program: canonical, of nests.
        hints: likely values of its sizes.
        options: those of the compilation.
    """

    program: Program
    hints: Mapping[str, int]
    options: Options


def token_of(program: Program, hints: Mapping[str, int], options: Options) -> str:
    """A token: base64 without quotes, as Inductor writes it into C++ and Python sources."""
    coded = {
        f.name: getattr(options, f.name) for f in fields(options) if f.metadata["affects_code"]
    }
    head = json.dumps({"hints": dict(hints), "options": coded}, sort_keys=True)
    text = f"{head}\n{program}"
    return base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode()


@lru_cache(maxsize=1024)
def payload_of(token: str) -> Payload:
    """What a token says."""
    text = zlib.decompress(base64.urlsafe_b64decode(token)).decode()
    head, _, body = text.partition("\n")
    known = json.loads(head)
    options = Options(**{**asdict(Options()), **known["options"]})
    return Payload(parse_program(body), known["hints"], options)


_built: dict[tuple[str, str], Executable | Refusal] = {}
_lock = threading.Lock()


def executable(token: str, device: torch.device) -> Executable | Refusal:
    """The kernels of a token for a device, built at the first call."""
    key = (token, str(device))
    found = _built.get(key)
    if found is None:
        with _lock:
            found = _built.get(key)
            if found is None:
                found = _built[key] = _build(token, device)
    return found


def _build(token: str, device: torch.device) -> Executable | Refusal:
    payload = payload_of(token)
    optimized = trace.step("optimize", optimize, payload.program)
    if isinstance(optimized, Refusal):
        return optimized
    try:
        with trace.timed("build"):
            built = build(optimized, device, payload.options, payload.hints)
    except CompileError as error:
        return Refusal("compile-error", str(error))
    if not isinstance(built, Refusal) and trace.listens():
        for kernel in built.kernels:
            python = kernel.language in ("triton", "gluon")
            suffix = f"{kernel.language}.py" if python else kernel.language
            trace.left(kernel.name, kernel.source, suffix=suffix)
    return built


def run(ins: Sequence[torch.Tensor], syms: Sequence[int] | None, token: str) -> list[torch.Tensor]:
    """Run a region. AOTInductor hands None for no sizes."""
    syms = syms or ()
    device = ins[0].device
    key = (token, str(device))
    found = _built.get(key) or executable(token, device)
    if not isinstance(found, Refusal):
        try:
            return found(ins, syms)
        except CompileError as error:  # kernels of a GPU are compiled at the first call
            found = _built[key] = Refusal("compile-error", str(error))
    return _without_kernels(found, ins, syms, token)


def run_loop(
    ins: Sequence[torch.Tensor], syms: Sequence[int] | None, token: str, number: int
) -> list[torch.Tensor]:
    """Run one loop of a region on what its kernel reads, in that order; see `capture.lowering`."""
    return gpu_executable(token, ins[0].device).run_loop(number, ins, syms or ())


def gpu_executable(token: str, device: torch.device) -> GpuExecutable:
    """The kernels of a token whose loops are called one by one. Raises CompileError where they cannot be built."""
    from flashlight.runtime.gpu import GpuExecutable

    found = executable(token, device)
    if not isinstance(found, GpuExecutable):
        msg = f"A loop that was compiled for a GPU cannot be built here: {found}"
        raise CompileError(msg)
    return found


def _without_kernels(
    refusal: Refusal, ins: Sequence[torch.Tensor], syms: Sequence[int], token: str
) -> list[torch.Tensor]:
    """A region whose kernels cannot be built here, although they could where the graph was made: slow, and right."""
    warnings.warn(
        f"Flashlight runs a fused region without kernels, which is slow: {refusal}", stacklevel=2
    )
    return evaluate(payload_of(token).program, ins, syms)


def outputs_like(program: Program, like: torch.Tensor, syms: Sequence[Any]) -> list[torch.Tensor]:
    """Empty tensors of the shapes and types of a program's outputs."""
    results = program.results()
    return _empty([results[name] for name in program.outputs], program, like, syms)


def _empty(
    buffers: Sequence[Buffer], program: Program, like: torch.Tensor, syms: Sequence[Any]
) -> list[torch.Tensor]:
    sizes = {size.name: value for size, value in zip(program.sizes, syms, strict=True)}
    return [
        like.new_empty([extent(e, sizes) for e in b.shape], dtype=TORCH_TYPES[b.dtype])
        for b in buffers
    ]


def extent(expr: Expr, sizes: Mapping[str, Any]) -> Any:
    """The value of an extent, an int or a SymInt."""
    match expr:
        case Const(value, _):
            return int(value)
        case Size(name):
            return sizes[name]
        case Binary(op, a, b):
            x, y = extent(a, sizes), extent(b, sizes)
            match op:
                case "add":
                    return x + y
                case "sub":
                    return x - y
                case "mul":
                    return x * y
                case "floordiv":
                    return x // y
                case "mod":
                    return x % y
                case "min":
                    return torch.sym_min(x, y)
                case "max":
                    return torch.sym_max(x, y)
    raise CompileError(f"'{expr}' is no extent.")


# -- Registration

_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
_library = torch.library.Library("flashlight", "FRAGMENT")


def _register(
    name: str, more: str, run: Callable[..., list[torch.Tensor]], fake: Callable[..., Any]
) -> None:
    """An op of tensors, sizes, a token and what is `more`, as two overloads: from a list of one tensor Inductor's C++ wrapper would
    take the list itself for the tensor.
    """

    def only(function: Callable[..., Any]) -> Callable[..., torch.Tensor]:
        def one(*arguments: Any) -> torch.Tensor:
            (tensor,) = function(*arguments)
            return cast(torch.Tensor, tensor)

        return one

    for overload, result, real, meta in (
        (name, "Tensor[]", run, fake),
        (f"{name}.one", "Tensor", only(run), only(fake)),
    ):
        schema = f"{overload}(Tensor[] ins, SymInt[] syms, str token{more}) -> {result}"
        _library.define(schema, tags=_TAGS)
        _library.impl(overload, real, "CompositeExplicitAutograd")
        torch.library.register_fake(f"flashlight::{overload}", meta, lib=_library)


def _fake(ins: Sequence[torch.Tensor], syms: Sequence[Any], token: str) -> list[torch.Tensor]:
    return outputs_like(payload_of(token).program, ins[0], syms)


def _fake_loop(
    ins: Sequence[torch.Tensor], syms: Sequence[Any], token: str, number: int
) -> list[torch.Tensor]:
    built = executable(token, ins[0].device)
    if isinstance(built, Refusal):
        raise CompileError(str(built))
    gives = built.program.loops[number].gives
    return _empty([g.buffer for g in gives], built.program, ins[0], syms)


_register("fused", "", run, _fake)
_register("loop", ", int number", run_loop, _fake_loop)
fused = torch.ops.flashlight.fused.default
fused_one = torch.ops.flashlight.fused.one
loop = torch.ops.flashlight.loop.default
loop_one = torch.ops.flashlight.loop.one
