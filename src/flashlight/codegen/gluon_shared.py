"""What the functions of a Gluon module share: roles, parameters, and the tiles that go through shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from flashlight.codegen.blocks import Axis, Compute, Fetch, Kernel, Span, Value, operands
from flashlight.codegen.inlining import inlinable
from flashlight.codegen.roles import Roles, consumed, copied_axes, divide
from flashlight.codegen.spelling import fresh_name, hint_of
from flashlight.codegen.triton import Choices, Parameter
from flashlight.errors import CompileError
from flashlight.ir.dtypes import DType
from flashlight.rewrite.schedule import HOPPER
from flashlight.rewrite.shapes import CONSUMER_ROWS

SHARED = HOPPER.shared

_CLOSING_BARS = ("closing_full", "closing_free")
_BARS = ("rows_full", "rows_free", "scores_full", "scores_free", "sums_full", "sums_free")
_OWN = (
    *(*_CLOSING_BARS, "closing_phase"),
    *("drawn", *_BARS, "queue", "tiles", "GROUP_ID", "GROUP", "WARP", "ROWS", "COLS", "BARRIER"),
    *("stage", "phase", "sums_stage", "sums_phase", "slot", "slot_phase", "tile", "i", "group"),
    *("pid", "rest", "first", "members", "within", "point", "turn", "following"),
    *("produce", "consume", "fence_async_shared", "warpgroup_mma", "warpgroup_mma_wait"),
)
"""Names that a module has whatever its kernel."""


@dataclass(frozen=True, slots=True)
class Copied:
    """A tile that the copy engine fetches.

    Attributes:
        descriptor: the parameter that describes its buffer.
        ring: the shared memory it is copied to.
        order: axes of the buffer, as the descriptor has them.
        block: elements along each.
        per_group: whether each consumer has a tile of its own.
    """

    descriptor: str
    ring: str
    order: tuple[int, ...]
    block: tuple[int, ...]
    axes: tuple[Axis, ...]
    per_group: bool
    dtype: DType

    @property
    def bytes(self) -> int:
        size = self.dtype.bits // 8
        for n in self.block:
            size *= n
        return size


class Shared:
    """What the functions of a module share: parameters, rings and roles."""

    def __init__(self, kernel: Kernel, choices: Choices, consumers: int, stages: int) -> None:
        self.kernel = kernel
        self.choices = choices
        self.consumers = consumers
        self.stages = stages
        self.roles: Roles = divide(kernel, choices.descriptors)
        if self.roles.rows.block != consumers * CONSUMER_ROWS:
            raise CompileError("A row tile must be that of all consumers.")
        self.parameters: dict[Parameter, None] = {}
        self.taken = set(_OWN)
        self.buffers: dict[str, str] = {}
        for b in (*kernel.reads, *kernel.writes):
            self.buffers[b.name] = fresh_name(b.name, self.taken)
        self.helpers: set[str] = set()
        self.layouts: dict[int, str] = {}
        self.lines: dict[str, str] = {}
        self.takes_turns = consumers == 3
        first = self.roles.steps[0]
        self.resident = [self.copied(f, "rows") for f in self.roles.resident]
        self.early = [self.copied(f, "ring") for f in first.early]
        self.late = [self.copied(f, "ring") for f in first.late]
        ring = sum(c.bytes * (consumers if c.per_group else 1) for c in (*self.early, *self.late))
        rows = consumers * sum(c.bytes for c in self.resident)
        self.kept = self._kept()
        room = SHARED - stages * ring - 1024
        room -= consumers * self.roles.cols.block * sum(v.dtype.bits // 8 for v in self.kept)
        self.slots = 2 if 2 * rows <= room else 1
        room -= self.slots * rows
        if room < 0:
            raise CompileError("The tiles of this kernel do not fit into shared memory.")
        self.closing = self._closing(room)

    def _kept(self) -> dict[Value, str]:
        """What the weights of all tiles read along the columns, by the shared memory that keeps it: registers of many groups do not
        hold it beside their scores.
        """
        if self.consumers < 3:
            return {}
        inlined = inlinable(self.kernel.body)
        read = {v for step in self.roles.steps for op in step.heavy for v in operands(op)}
        found = [
            op.result
            for op in self.roles.before
            if isinstance(op, Compute | Fetch) and op.result.axes == (self.roles.cols,)
        ]
        return {
            v: fresh_name(f"{hint_of(v)}_kept", self.taken)
            for v in found
            if v in read and v not in inlined and v.dtype.bits == 32
        }

    def _closing(self, room: int) -> dict[Fetch, Copied]:
        """The tiles that the end reads and the copy engine fetches, as far as there is room beside what turns results to memory's
        order.
        """
        found: dict[Fetch, Copied] = {}
        for op in self.roles.closing:
            unit = self.choices.descriptors[op.buffer.name]
            each = (
                self.consumers * CONSUMER_ROWS * op.result.axes[1].block * op.buffer.dtype.bits // 8
            )
            if isinstance(op.index[unit], Span) and 2 * each <= room:
                found[op] = self.copied(op, "closing")
                room -= each
        return found

    def copied(self, op: Fetch, kind: str) -> Copied:
        name = op.buffer.name
        order = copied_axes(op, self.choices.descriptors[name])
        spans = [s.axis if isinstance(s := op.index[n], Span) else None for n in order]
        block = tuple(consumed(a) if a is not None else 1 for a in spans)
        if not isinstance(op.index[order[-1]], Span):
            raise CompileError(f"Tiles of '{name}' do not lie along its axis of stride 1.")
        tile = tuple(zip(order, block, strict=True))
        parameter = next((p for p in self.parameters if p.of == name and p.tile == tile), None)
        if parameter is None:
            described = fresh_name(f"{self.buffers[name]}_tiles", self.taken)
            parameter = Parameter(described, "descriptor", name, tile=tile)
            self.parameters[parameter] = None
        ring = fresh_name(f"{parameter.name}_{kind}", self.taken)
        axes = tuple(a for a in spans if a is not None)
        return Copied(
            parameter.name, ring, order, block, axes,
            self.roles.rows in axes, op.buffer.dtype,
        )  # fmt: skip

    def tile(self, axis: Axis) -> str:
        """The layout of rows by an axis."""
        return self.layouts.setdefault(axis.block, f"TILE_{axis.block}")

    def line(self, axis: Axis, dtype: DType) -> str:
        """The layout of rows by an axis in memory's order: each thread has 16 bytes in a row."""
        each = min(128 // dtype.bits, axis.block)
        threads = min(32, axis.block // each)
        layout = f"gl.BlockedLayout([1, {each}], [{32 // threads}, {threads}], [4, 1], [1, 0])"
        return self.lines.setdefault(layout, f"LINE_{axis.block}_{dtype.value.upper()}")

    def names(self) -> list[str]:
        """What the functions are handed before the parameters."""
        tiles = (*self.resident, *self.early, *self.late, *self.closing.values())
        bars = (*_BARS, *(_CLOSING_BARS if self.closing else ()))
        return [*(c.ring for c in tiles), *self.kept.values(), "drawn", *bars]
