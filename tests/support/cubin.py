"""Compiles generated Triton kernels for devices that are not there, and reads what the compiler says about them."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashlight.codegen.blocks import Kernel
from flashlight.codegen.gluon import launch_options
from flashlight.codegen.triton import Source
from flashlight.ir.dtypes import DType
from flashlight.rewrite.schedule import Schedule

POINTERS = {
    DType.BOOL: "*i1",
    DType.U8: "*u8",
    DType.I8: "*i8",
    DType.I16: "*i16",
    DType.I32: "*i32",
    DType.I64: "*i64",
    DType.F16: "*fp16",
    DType.BF16: "*bf16",
    DType.F32: "*fp32",
    DType.F64: "*fp64",
}


@dataclass(frozen=True)
class Resources:
    """What a compiled kernel takes.

    Attributes:
        registers: per thread.
        stack: bytes of local memory per thread; more than 0 means spills.
        shared: bytes of shared memory.
        mma: tensor-core instructions, by mnemonic.
    """

    registers: int
    stack: int
    shared: int
    mma: dict[str, int]
    ptx: str
    asm: Any


def compile_kernel(
    source: Source,
    kernel: Kernel,
    schedule: Schedule,
    capability: int,
    unit_axes: dict[str, int] | None = None,
    ones: Container[str] = (),
) -> Resources:
    """Compile for a CUDA capability (80, 90, 100).

    Args:
        unit_axes: the axis of stride 1 of each buffer; the last by default. Strides and pointers count as divisible by 16.
        ones: sizes that are 1, which Triton makes constants.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from flashlight.runtime.gpu import load_function

    function = load_function(source)
    buffers = {b.name: b for b in (*kernel.reads, *kernel.writes)}
    signature: dict[str, str] = {}
    constants: dict[str, int] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for i, p in enumerate(source.parameters):
        unit = (unit_axes or {}).get(p.of, len(buffers[p.of].shape) - 1 if p.of in buffers else 0)
        match p.kind:
            case "descriptor":
                signature[p.name] = _descriptor(buffers[p.of].dtype, [n for _, n in p.tile])
                continue
            case "queue":
                signature[p.name] = "*i32"
            case "count":
                signature[p.name] = "i32"
                continue
            case "pointer":
                signature[p.name] = POINTERS[buffers[p.of].dtype]
            case "stride" if p.axis == unit:
                signature[p.name], constants[p.name] = "constexpr", 1
                continue
            case "size" if p.of in ones:
                signature[p.name], constants[p.name] = "constexpr", 1
                continue
            case _:
                signature[p.name] = "i32"
        attributes[(i,)] = [["tt.divisibility", 16]]
    options = {"num_warps": schedule.warps, "num_stages": schedule.stages}
    made: Any = ASTSource
    if schedule.consumers:
        from triton.experimental.gluon._runtime import GluonASTSource

        options, made = launch_options(schedule.consumers), GluonASTSource
    compiled = triton.compile(
        made(fn=function, signature=signature, constexprs=constants, attrs=attributes),
        target=GPUTarget("cuda", capability, 32),
        options=options,
    )
    return _resources(compiled)


def _descriptor(dtype: DType, block: list[int]) -> str:
    """Triton's name for a descriptor's type."""
    from triton.experimental.gluon import language as gl

    element = {DType.F16: gl.float16, DType.BF16: gl.bfloat16, DType.F32: gl.float32}[dtype]
    layout = gl.NVMMASharedLayout.get_default_for(block, element)
    return f"tensordesc<{POINTERS[dtype][1:]}{block},{layout!r}>"


def complaints(resources: Resources) -> list[str]:
    """What the assembler says about products that it had to run one after the other."""
    import triton

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(resources.ptx)
        done = subprocess.run(
            [tools / "ptxas", "-arch=sm_90a", "-v", source, "-o", Path(folder) / "kernel.cubin"],
            capture_output=True,
            text=True,
            check=True,
        )
    return re.findall(r"\(C75\d\d\).*", done.stdout + done.stderr)


def _resources(compiled: Any) -> Resources:
    import triton

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        text = subprocess.run(
            [tools / "cuobjdump", "-res-usage", file.name],
            capture_output=True,
            text=True,
            check=True,
        )
    usage = text.stdout + text.stderr
    registers = int(re.search(r"REG:(\d+)", usage).group(1))  # type: ignore[union-attr]
    stack = int(re.search(r"STACK:(\d+)", usage).group(1))  # type: ignore[union-attr]
    ptx = compiled.asm["ptx"]
    mma: dict[str, int] = {}
    for name in re.findall(r"^\s*(?:@\S+ )?(wgmma\.mma_async|mma\.sync|tcgen05\.mma)\b", ptx, re.M):
        mma[name] = mma.get(name, 0) + 1
    return Resources(registers, stack, compiled.metadata.shared, mma, ptx, compiled.asm)


def sass(resources: Resources) -> str:
    """The machine code, disassembled."""
    import triton

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(resources.asm["cubin"])
        file.flush()
        done = subprocess.run(
            [tools / "cuobjdump", "--dump-sass", file.name],
            capture_output=True,
            text=True,
            check=True,
        )
    return done.stdout
