"""Block programs to Gluon source for Hopper: a warp that copies tiles, and groups of four warps that compute with them.

`roles` says which operation is whose. Everything elementwise is printed as for Triton; this module adds where tiles lie: scores
and accumulators as the products of a group of warps leave them, rows and columns as slices of those, tiles of loops in rings in
shared memory. A program instance takes one row tile after the other from a queue, so that what one begins with and ends with
runs beside the loops of others.

Measured shapes of kernels, and what the compiler needs to be told, are from docs/decisions/0013.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flashlight.codegen.blocks import Kernel
from flashlight.codegen.gluon_consumer import Consumer
from flashlight.codegen.gluon_ops import helper, spelled, turns
from flashlight.codegen.gluon_producer import Producer
from flashlight.codegen.gluon_shared import Copied, Shared
from flashlight.codegen.spelling import fresh_name, wrapped
from flashlight.codegen.triton import Choices, Parameter, Source
from flashlight.codegen.triton_ops import TYPES

VERSIONS = ("3.6",)
"""Releases of Triton whose Gluon this module was tested with."""

REGISTERS = {1: (240, 24, 240), 2: (240, 24, 168), 3: (160, 32, 128), 4: (112, 24, 96)}
"""For each number of consumers: registers of a consumer's thread, of the producer's, and of all before they part."""


def is_known() -> bool:
    """Whether the Triton that is installed is one whose Gluon this module was tested with."""
    try:
        import triton
    except ImportError:
        return False
    return str(triton.__version__).startswith(VERSIONS)


def launch_options(consumers: int) -> dict[str, int]:
    """What Triton is told beside the arguments."""
    return {"num_warps": 4, "maxnreg": REGISTERS[consumers][2]}


def emit(
    kernel: Kernel, choices: Choices, consumers: int, stages: int, header: Sequence[str] = ()
) -> Source:
    """Gluon source for a block program whose row tile is that of all consumers. Raises CompileError where its form is another.

    Args:
        kernel: the block program.
        choices: as for Triton; all buffers that tiles are copied from must be described.
        consumers: groups of four warps, of `CONSUMER_ROWS` rows each.
        stages: tiles of columns in shared memory.
        header: lines of a comment.
    """
    return _Module(Shared(kernel, choices, consumers, stages)).source(header)


class _Module:
    """Prints the functions and the kernel that starts them."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared

    def source(self, header: Sequence[str]) -> Source:
        m, k = self.shared, self.shared.kernel
        for buffer in (*k.reads, *k.writes):
            m.parameters[Parameter(m.buffers[buffer.name], "pointer", buffer.name)] = None
        for size in k.sizes:
            m.parameters[Parameter(fresh_name(size.name, m.taken), "size", size.name)] = None
        m.tile(m.roles.cols)
        produce = Producer(m).function()
        consume = Consumer(m).function()
        m.parameters[Parameter("queue", "queue", "")] = None
        m.parameters[Parameter("tiles", "count", "")] = None
        kinds = ("descriptor", "pointer", "stride", "size", "queue", "count")
        parameters = sorted(m.parameters, key=lambda p: kinds.index(p.kind))
        names = [p.name for p in parameters]
        lines = [
            *(f"# {line}".rstrip() for line in header),
            "from triton.experimental import gluon",
            "from triton.experimental.gluon import language as gl",
            "from triton.experimental.gluon.language.nvidia.hopper import (",
            "    fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait,",
            ")",
            "",
        ]
        if any("libdevice." in line for line in (*produce, *consume)):
            lines.insert(-1, "from triton.language.extra import libdevice")
        helpers = [helper(name) for name in sorted(m.helpers)]
        if any("tl." in line for line in (*produce, *consume, *helpers)):
            lines.insert(-1, "from triton import language as tl")
        cols = m.roles.cols.block
        for block, name in m.layouts.items():
            lines.append(
                f"{name} = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, {block}, 16]))"
            )
        lines += [f"{name} = gl.constexpr({layout})" for layout, name in m.lines.items()]
        lines += [
            f"ROWS = gl.constexpr(gl.SliceLayout(1, TILE_{cols}.value))",
            f"COLS = gl.constexpr(gl.SliceLayout(0, TILE_{cols}.value))",
            "GROUP = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))",
            "WARP = gl.constexpr(gl.BlockedLayout([1], [32], [1], [0]))",
        ]
        if m.kept:
            lines.append("LINE = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))")
        if m.takes_turns:
            lines += turns(m.consumers)
        for text in helpers:
            lines += ["", "", *text.strip().splitlines()]
        handed = m.names()
        for name, body in (("produce", produce), ("consume", consume)):
            lines += ["", "", "@gluon.jit", f"def {name}("]
            extra = ["GROUP_ID: gl.constexpr"] if name == "consume" else []
            lines += [f"    {p}," for p in wrapped([*handed, *names, *extra])]
            lines += ["):", *body]
        name = k.name if k.name not in names else f"{k.name}_kernel"
        lines += ["", "", '@gluon.jit(do_not_specialize=["tiles"])', f"def {name}("]
        lines += [f"    {p}," for p in wrapped(names)]
        lines += ["):", *self.entry(handed, names), ""]
        return Source("\n".join(lines), name, tuple(parameters), False)

    def entry(self, handed: Sequence[str], names: Sequence[str]) -> Iterator[str]:
        """The kernel: shared memory, barriers, and the roles of warps."""
        m = self.shared
        n, st, slots = m.consumers, m.stages, m.slots

        def ring(c: Copied, count: int) -> str:
            shape = ", ".join(map(str, (count * (n if c.per_group else 1), *c.block)))
            return f"    {c.ring} = gl.allocate_shared_memory({c.descriptor}.dtype, [{shape}], {c.descriptor}.layout)"

        for c in m.resident:
            yield ring(c, slots)
        for c in (*m.early, *m.late):
            yield ring(c, st)
        for c in m.closing.values():
            yield ring(c, 1)
        for value, name in m.kept.items():
            shape = f"[{n}, {m.roles.cols.block}]"
            yield f"    {name} = gl.allocate_shared_memory({spelled(TYPES[value.dtype])}, {shape}, LINE)"
        yield "    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()"
        yield f"    drawn = gl.allocate_shared_memory(gl.int32, [{slots}, 1], BARRIER)"
        counts = {"rows": slots * n, "scores": st, "sums": st, "closing": n if m.closing else 0}
        for name, count in counts.items():
            if not count:
                continue
            for state in ("full", "free"):
                yield f"    {name}_{state} = gl.allocate_shared_memory(gl.int64, [{count}, 1], BARRIER)"
        yield f"    for i in gl.static_range({slots * n}):"
        yield "        mbarrier.init(rows_full.index(i), count=2)"
        yield "        mbarrier.init(rows_free.index(i), count=1)"
        if m.closing:
            yield f"    for i in gl.static_range({n}):"
            for state in ("full", "free"):
                yield f"        mbarrier.init(closing_{state}.index(i), count=1)"
        yield f"    for i in gl.static_range({st}):"
        for name in ("scores", "sums"):
            yield f"        mbarrier.init({name}_full.index(i), count=1)"
            yield f"        mbarrier.init({name}_free.index(i), count={n})"
        arguments = [*handed, *names]
        consumer, producer, _ = REGISTERS[n]
        yield "    gl.warp_specialize(["
        for group in range(n):
            yield "        (consume, ("
            yield from (f"            {line}," for line in wrapped([*arguments, str(group)]))
            yield "        )),"
        yield "        (produce, ("
        yield from (f"            {line}," for line in wrapped(arguments))
        yield "        )),"
        warps = ", ".join(["4"] * (n - 1) + ["1"])
        registers = ", ".join([str(consumer)] * (n - 1) + [str(producer)])
        yield f"    ], [{warps}], [{registers}])"
