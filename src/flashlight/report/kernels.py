"""From what the capture noted to the kernels of a report."""

from __future__ import annotations

import linecache
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from flashlight.capture.record import Record, Taken
from flashlight.errors import Refusal
from flashlight.ir.interpret import integer
from flashlight.ir.nests import Program
from flashlight.report import work
from flashlight.report.materialized import Intermediate
from flashlight.report.report import Kernel
from flashlight.runtime.executable import KernelInfo
from flashlight.runtime.op import executable


@dataclass(frozen=True)
class Read:
    """The parts of a report that come from regions."""

    kernels: tuple[Kernel, ...]
    refusals: tuple[Refusal, ...]
    materialized: tuple[Intermediate, ...]
    warnings: tuple[str, ...]


def read(record: Record, largest: int) -> Read:
    """The kernels of every region, and what regions write for themselves that has more than `largest` elements."""
    kernels: list[Kernel] = []
    materialized: list[Intermediate] = []
    warnings: list[str] = []
    refusals = list(record.refusals)
    for taken in record.regions:
        built = executable(taken.token, torch.device(taken.device))
        if isinstance(built, Refusal):
            refusals.append(built)
            warnings.append(f"A region was taken and has no kernel: {built}")
            continue
        kernels.extend(_kernels(taken, built.program, built.kernels))
        materialized.extend(_between_kernels(taken, built.program, largest))
    unique = _with_unique_names(sorted(kernels, key=lambda k: k.phase != "forward"))
    return Read(tuple(unique), tuple(dict.fromkeys(refusals)), tuple(materialized), tuple(warnings))


def _kernels(taken: Taken, program: Program, infos: tuple[KernelInfo, ...]) -> Iterator[Kernel]:
    lines = tuple(dict.fromkeys(with_code(o.line) for o in taken.origins if o.line))
    for info, loop in zip(infos, program.loops, strict=True):
        yield Kernel(
            name=info.name,
            program=info.program,
            source=info.source,
            language=info.language,
            grid=info.grid,
            passes=info.passes,
            bytes_moved=work.bytes_moved(loop, program, taken.hints),
            flops=work.flops(loop, taken.hints),
            config=info.config,
            notes=info.notes,
            origins=tuple(with_code(o) for o in info.origins) or lines,
            phase=taken.phase,
        )


def with_code(line: str) -> str:
    """'/path/model.py:12' as 'model.py:12: scores = q @ k.mT', where the file can be read."""
    file, _, number = line.rpartition(":")
    if not file or not number.isdigit():
        return line
    code = linecache.getline(file, int(number)).strip()
    name = f"{file.rsplit('/', 1)[-1]}:{number}"
    return f"{name}: {code}" if code else name


def _with_unique_names(kernels: list[Kernel]) -> Iterator[Kernel]:
    """Regions of one program have kernels of one name: the second is name_2."""
    seen: dict[str, int] = {}
    for kernel in kernels:
        count = seen[kernel.name] = seen.get(kernel.name, 0) + 1
        yield kernel if count == 1 else replace(kernel, name=f"{kernel.name}_{count}")


def _between_kernels(taken: Taken, program: Program, largest: int) -> Iterator[Intermediate]:
    """What one kernel of a region writes for another."""
    for loop in program.loops:
        for give in loop.gives:
            shape = _shape(give.buffer.shape, taken.hints)
            if give.name not in program.outputs and math.prod(shape) > largest:
                line = give.origin.line if give.origin else ""
                yield Intermediate(shape, give.dtype.value, give.name, line, taken.phase)


def _shape(extents: tuple[object, ...], sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(integer(e, sizes) for e in extents)  # type: ignore[arg-type]
