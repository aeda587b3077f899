"""Prints a block program as C++: one function that runs the whole grid with OpenMP.

Lanes. If the kernel has products and rows, vector lanes run along rows: every row statistic is a vector, folds over columns need
nothing across lanes, and in both products of attention the loaded tile (K, V) is read element by element from where it lies while
Q and the weights are already in vectors (so that even a single row reads K faster than it could be transposed). Otherwise lanes run
along the innermost axis of each loop nest.

Nothing is padded: loops over an axis end where its dims do, and the last vector is loaded and stored in part.
Elementwise operations are fused (`cpp_tree`); what must survive a nest is a tile in the thread's workspace (`cpp_memory`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Literal, TypeAlias

from flashlight.codegen.blocks import Dot, Kernel, walk
from flashlight.codegen.cpp_emit import Emitter
from flashlight.codegen.cpp_ops import MEMORY_TYPES, extent, identifier
from flashlight.ir import visit
from flashlight.ir.exprs import Size

Lanes: TypeAlias = Literal["rows", "inner"]


@dataclass(frozen=True)
class Source:
    """A kernel in C++.

    Attributes:
        name: of the extern "C" function
            `void name(void** arrays, const long long* numbers, char* workspace, long long threads)`;
            arrays are the kernel's reads and writes, numbers its sizes and then the strides of every array, in elements.
        text: the function; it needs `preamble`.
        sizes: names of the symbolic sizes, in the order of numbers.
        workspace: bytes for each thread.
        double: whether it computes in double (FL_DOUBLE).
    """

    name: str
    text: str
    sizes: tuple[str, ...]
    workspace: int
    double: bool


# Read once, with this module: an emitter and a preamble of two versions would agree to compile and not on what tiles hold.
_PREAMBLE = (resources.files("flashlight.codegen") / "cpp_preamble.h").read_text()


def preamble() -> str:
    """What every generated kernel stands on."""
    return _PREAMBLE


def translation_unit(sources: Sequence[Source]) -> str:
    """One file with all the kernels of a program."""
    double = "#define FL_DOUBLE\n" if any(s.double for s in sources) else ""
    return double + preamble() + "\n" + "\n".join(s.text for s in sources)


def emit(kernel: Kernel, lanes: Lanes | None = None) -> Source:
    """The C++ of a block program. `lanes` overrides the choice of the axis that vectors run along."""
    emitter = Emitter(kernel, rows_are_lanes=(lanes or _choose_lanes(kernel)) == "rows")
    instance = emitter.instance()
    sizes = _sizes(kernel)
    head = "\n".join(_head(kernel, sizes, emitter.workspace_bytes))
    text = f"{head}\n{instance}\n    }}\n  }}\n}}\n"
    return Source(kernel.name, text, sizes, emitter.workspace_bytes, emitter.double)


def _choose_lanes(kernel: Kernel) -> Lanes:
    rows = [a for a in kernel.axes if a.role == "rows"]
    has_dots = any(isinstance(op, Dot) for op in walk(kernel.body))
    return "rows" if rows and has_dots else "inner"


def _sizes(kernel: Kernel) -> tuple[str, ...]:
    """Every symbolic size that the kernel, its grid or the shape of an array mentions."""
    extents = [g.count for g in kernel.grid]
    extents += [d.extent for axis in kernel.axes for d in axis.dims]
    extents += [e for b in (*kernel.reads, *kernel.writes) for e in b.shape]
    found = {s.name for s in kernel.sizes}
    found |= {e.name for e in visit.walk(*extents) if isinstance(e, Size)}
    return tuple(sorted(found))


def _head(kernel: Kernel, sizes: tuple[str, ...], workspace: int) -> Iterator[str]:
    """The function up to the body of one program instance."""
    yield (
        f'extern "C" void {kernel.name}'
        "(void** arrays, const i64* numbers, char* workspace, i64 threads) {"
    )
    at = 0
    for size in sizes:
        yield f"  const i64 size_{identifier(size)} = numbers[{at}];"
        at += 1
    for i, buffer in enumerate((*kernel.reads, *kernel.writes)):
        const = "" if i >= len(kernel.reads) else "const "
        ctype, name = const + MEMORY_TYPES[buffer.dtype], identifier(buffer.name)
        yield f"  {ctype}* const p_{name} = ({ctype}*)arrays[{i}];"
        for axis in range(len(buffer.shape)):
            yield f"  const i64 s_{name}_{axis} = numbers[{at}];"
            at += 1
    counts = []
    for i, dim in enumerate(kernel.grid):
        yield f"  const i64 count_{i} = {extent(dim.count)};"
        counts.append(f"count_{i}")
    yield f"  const i64 grid = {' * '.join(counts) or '1'};"
    yield "  if (grid <= 0) return;"
    yield "  #pragma omp parallel num_threads(threads) if (threads > 1 && grid > 1)"
    yield "  {"
    yield f"    char* const ws = workspace + omp_get_thread_num() * {workspace}ll;"
    yield "    #pragma omp for schedule(dynamic, 1)"
    yield "    for (i64 instance = 0; instance < grid; instance++) {"
