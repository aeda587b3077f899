"""The Gluon function of a group of four warps that computes 64 rows of each tile."""

from __future__ import annotations

from flashlight.codegen.blocks import (
    Axis,
    Dot,
    Fetch,
    Slot,
    Value,
    operands,
)
from flashlight.codegen.gluon_producer import general
from flashlight.codegen.gluon_registers import Registers
from flashlight.codegen.gluon_shared import Copied, Shared
from flashlight.codegen.partial_sums import PartialSum, zeros_of
from flashlight.codegen.phases import phases
from flashlight.codegen.roles import Step, consumed
from flashlight.codegen.spelling import hint_of, stripped
from flashlight.codegen.triton_ops import TYPES
from flashlight.errors import CompileError
from flashlight.ir.dtypes import DType


class Consumer(Registers):
    """The function of a group of four warps that computes 64 rows of each tile."""

    def __init__(self, module: Shared) -> None:
        super().__init__(module)
        self.slot_names: list[str] = []
        self.weights: list[str] = []
        self.halves: list[str] = []
        self.held: list[str] = []  # other operands that registers hold
        self.unset: dict[int, str] = {}

    def body(self) -> None:
        m = self.module
        n = m.consumers
        for name in ("stage", "phase", "sums_stage", "sums_phase", "slot", "slot_phase"):
            self.names.add(name)
            self.line(f"{name} = 0")
        if m.closing:
            self.line("closing_phase = 0")
        step = phases(m.roles.steps[0])[0]
        for weight in step.weights:
            name = self.fresh("weights")
            self.weights.append(name)
            self.line(f"{name} = {self.full(weight.axes, '0.0', weight.dtype)}")
        if m.takes_turns:
            self.line(f"if GROUP_ID == {n - 1}:")
            self.line("    _pass_turn(GROUP_ID)  # the first group begins")
        self.line("mbarrier.wait(rows_full.index(GROUP_ID), 0)")
        self.line("pid = gl.max(drawn.index(0).load(GROUP), 0)")
        with self.nested_lines("while pid < tiles:"):
            self.grid()
            self.all(op for op in m.roles.before if op not in m.roles.resident)
            for c, op in zip(m.resident, m.roles.resident, strict=True):
                self.text[op.result] = self.shared(c, f"slot * {n} + GROUP_ID")
            for value, ring in m.kept.items():
                self.line(f"{ring}.index(GROUP_ID).store({stripped(self.text[value])})")
            self.chain()
            self.load_closing()
            self.end(m.roles.after)
            self.line(f"mbarrier.wait(rows_full.index(slot * {n} + GROUP_ID), slot_phase)")
            self.line("pid = gl.max(drawn.index(slot).load(GROUP), 0)")
        if m.takes_turns:
            self.line("if GROUP_ID == 0:")
            self.line("    _wait_turn(GROUP_ID)  # what the last group passed on")

    def load_closing(self) -> None:
        """The tiles that the end reads, into registers."""
        closing = self.module.closing
        if not closing:
            return
        self.line("mbarrier.wait(closing_full.index(GROUP_ID), closing_phase)")
        for op, c in closing.items():
            self.text[op.result] = self.shared(c, "GROUP_ID")
            self.load_tile(c, op)
        self.line("fence_async_shared()")
        self.line("mbarrier.arrive(closing_free.index(GROUP_ID), count=1)")
        self.line("closing_phase ^= 1")

    def turn(self, what: str) -> None:
        """Take or pass the turn to start products: groups that start theirs one after the other keep out of step, so that
        some compute weights while others' products run.
        """
        if self.module.takes_turns:
            self.line(f"_{what}_turn(GROUP_ID)")

    def shared(self, c: Copied, at: str) -> str:
        """A tile in shared memory, as a matrix of the order it lies in."""
        text = f"{c.ring}.index({at})"
        if len(c.block) == 2:
            return text
        return f"{text}.reshape([{', '.join(str(consumed(a)) for a in c.axes)}])"

    def chain(self) -> None:
        """All tiles of the loops; see `roles`."""
        m = self.module
        steps = m.roles.steps
        first, ranges = self.ranges()
        self.slot_names = []
        self.unset = self.sums_from_zero(steps[0])
        parts = steps[0].parts
        for n, slot in enumerate(steps[0].loop.slots):
            name = self.fresh(slot.name)
            if n not in parts and n not in self.unset:
                self.line(f"{name} = {self.initial(slot)}")
            self.slot_names.append(name)
        for step in steps:
            for slot, name in zip(step.loop.slots, self.slot_names, strict=True):
                self.text[slot.inside] = self.text[slot.result] = name
        self.line(f"tile = {first}")
        self.names.add("tile")
        self.step(general(m.roles), begins=True)
        for step, (start, end) in zip(steps, ranges, strict=True):
            kind = "full" if step.loop.full else "edge"
            self.line(f"# {kind} tiles")
            with self.nested_lines(f"for tile in tl.range({start}, {end}):"):
                self.step(step, begins=False)
        self.line(f"mbarrier.arrive(rows_free.index(slot * {m.consumers} + GROUP_ID), count=1)")
        self.advance("slot", "slot_phase", m.slots)
        for name in (self.slot_names[n] for n in parts):
            text = f"gl.convert_layout(tl.sum({name}, 1), ROWS, assert_trivial=True)"
            self.line(f"{name} = {text}")
        *_, last = phases(steps[-1])
        self.round_weights(last)
        self.turn("wait")
        self.start_sums(last, waits=last is steps[-1])
        self.turn("pass")
        self.finish_sums(last, leaves=True)

    def initial(self, slot: Slot) -> str:
        return stripped(self.like(slot.init, slot.inside.axes))

    def sums_from_zero(self, step: Step) -> dict[int, str]:
        """Slots of accumulators that are 0 until the first tile's weights are there, with that 0: until then they take no registers."""
        sums = {d.result for d in step.sums}
        zeros = zeros_of(self.kernel)
        return {
            n: self.initial(slot)
            for n, slot in enumerate(step.loop.slots)
            if step.loop.body.yields[n] in sums and slot.init in zeros
        }

    def step(self, step: Step, *, begins: bool) -> None:
        """One tile: its weights; and the sums of the weights before it, unless it `begins`."""
        m = self.module
        loop = step.loop
        self.text[loop.index] = "tile"
        parts = phases(step)
        fetches = any(isinstance(op, Fetch) for op in step.light)
        for n, part in enumerate(parts):
            before = None if begins and n == 0 else parts[n - 1]
            if before is not None:
                self.round_weights(before)
            if n == 0:
                if fetches:
                    self.all(step.light)  # while the tile is under way
                self.line("mbarrier.wait(scores_full.index(stage), phase)")
            for c, op in zip(m.early, step.early, strict=True):
                at = f"stage * {m.consumers} + GROUP_ID" if c.per_group else "stage"
                self.text[op.result] = self.shared(c, at)
            self.turn("wait")
            tokens = self.start_scores(part)
            if before is not None:
                self.start_sums(before, waits=before is parts[0])
            self.turn("pass")
            if n == 0 and not fetches:
                self.all(step.light)
            waiting = 0 if before is None else len(before.sums)
            listed = ", ".join(tokens)
            self.line(f"{listed} = warpgroup_mma_wait({waiting}, deps=({listed},))")
            for name in self.held:
                self.line(f"_keep({name})")
            self.load_terms(part)
            if n == len(parts) - 1:
                self.line("mbarrier.arrive(scores_free.index(stage), count=1)")
                self.advance("stage", "phase", m.stages)
            self.load_kept(part)
            self.all(part.heavy)
            if before is not None:
                self.finish_sums(before, leaves=before is parts[-1])
            self.carry(part, begins=begins)

    def load_kept(self, step: Step) -> None:
        """What shared memory keeps for the weights of all tiles, into registers."""
        read = {v for op in step.heavy for v in operands(op)}
        for value, ring in self.module.kept.items():
            if value in read:
                self.define(value, f"{ring}.index(GROUP_ID).load(COLS)", {})

    def load_terms(self, step: Step) -> None:
        """Tiles in shared memory that are added to scores, into registers."""
        read = {v for op in step.heavy for v in operands(op)}
        early = zip(self.module.early, step.early, strict=True)
        found = [(c, op) for c, op in early if op.result in read]
        for c, op in found:
            self.load_tile(c, op)
        if found:
            self.line("fence_async_shared()")

    def load_tile(self, c: Copied, op: Fetch) -> None:
        """A tile in shared memory into registers."""
        name = self.fresh(hint_of(op.result))
        transposed = c.axes != op.result.axes
        view = f"{self.text[op.result]}{'.permute((1, 0))' if transposed else ''}"
        self.line(f"{name} = {view}.load({self.layout(op.result.axes)})")
        self.text[op.result] = name

    def start_scores(self, step: Step) -> list[str]:
        """The products of a tile; the last weights' registers take them, as those are rounded by now."""
        rows, cols = self.module.roles.rows, self.module.roles.cols
        free = list(self.weights)
        self.held = []
        tokens: list[str] = []
        for d in step.scores:
            a, b = (d.a, d.b) if rows in d.a.axes else (d.b, d.a)
            first = self.operand(a, (rows, d.axis), step)
            second = self.operand(b, (d.axis, cols), step)
            if d.acc is not None and self.text.get(d.acc) in tokens:
                name = self.text[d.acc]
                self.line(f"{name} = warpgroup_mma({first}, {second}, {name}, is_async=True)")
            elif d.acc is not None:
                raise CompileError("A product is added to what is no product.")
            else:
                name = self.fresh(hint_of(d.result))
                into = free.pop(0) if free else self.full((rows, cols), "0.0", DType.F32)
                self.line(
                    f"{name} = warpgroup_mma({first}, {second}, {into}, use_acc=False, is_async=True)"
                )
                tokens.append(name)
            self.text[d.result] = name
        return tokens

    def operand(self, value: Value, axes: tuple[Axis, Axis], step: Step) -> str:
        """An operand of a product as it lies in shared memory, or as registers hold it."""
        m = self.module
        copies = [
            *zip(m.resident, m.roles.resident, strict=True),
            *zip(m.early, step.early, strict=True),
        ]
        copies += zip(m.late, step.late, strict=True)
        for c, op in copies:
            if op.result is value:
                return self.text[value] + ("" if c.axes == axes else ".permute((1, 0))")
        if value.axes != axes:
            raise CompileError("An operand in registers lies across.")
        layout = f"gl.DotOperandLayout(0, {m.tile(m.roles.cols)}, 2)"
        name = self.fresh("held")
        text = f"gl.convert_layout({stripped(self.value(value))}, {layout}, assert_trivial=True)"
        self.line(f"{name} = {text}")
        self.held.append(name)
        return name

    def round_weights(self, step: Step) -> None:
        """The weights of the tile before, as operands; at once, or scores would not find their registers free."""
        self.helpers.add("_keep")
        self.halves = []
        for n, name in enumerate(self.weights):
            dot = next(d for d in step.sums if step.weight_of(d) == n)
            dtype = TYPES[dot.a.dtype]
            axis = next(a for a in dot.b.axes if a != dot.axis)
            layout = f"gl.DotOperandLayout(0, {self.module.tile(axis)}, 2)"
            half = self.fresh("half")
            self.line(
                f"{half} = _keep(gl.convert_layout({name}.to({dtype}), {layout}, assert_trivial=True))"
            )
            self.halves.append(half)

    def start_sums(self, step: Step, *, waits: bool) -> None:
        """Start the products that sum weights; `waits`: they are the first that read their tile."""
        m = self.module
        if waits:
            self.line("mbarrier.wait(sums_full.index(sums_stage), sums_phase)")
        for c, op in zip(m.late, step.late, strict=True):
            self.text[op.result] = self.shared(c, "sums_stage")
        for d in step.sums:
            axis = next(a for a in d.b.axes if a != d.axis)
            name = self.accumulator(step, d)
            half = self.halves[step.weight_of(d)]
            b = self.operand(d.b, (d.axis, axis), step)
            self.line(f"{name} = warpgroup_mma({half}, {b}, {name}, is_async=True)")

    def finish_sums(self, step: Step, *, leaves: bool) -> None:
        """Wait for those products; `leaves`: they are the last that read their tile."""
        names = [self.accumulator(step, d) for d in step.sums]
        listed = ", ".join(names)
        self.line(f"{listed} = warpgroup_mma_wait(0, deps=({listed},))")
        for half in self.halves:
            self.line(f"_keep({half})")
        if leaves:
            self.line("mbarrier.arrive(sums_free.index(sums_stage), count=1)")
            self.advance("sums_stage", "sums_phase", self.module.stages)

    def accumulator(self, step: Step, dot: Dot) -> str:
        return self.slot_names[step.loop.body.yields.index(dot.result)]

    def carry(self, step: Step, *, begins: bool) -> None:
        """Move accumulators, and keep the weights and the other slots for the next tile."""
        sums = {d.result: d for d in step.sums}
        unset = self.unset if begins else {}
        if not unset.keys() >= {n for n in step.slots if step.loop.body.yields[n] in sums}:
            self.all(step.moves)
        for name, weight in zip(self.weights, step.weights, strict=True):
            self.line(f"{name} = {self.value(weight)}")
        pending = []
        for n in step.slots:
            name, slot, value = self.slot_names[n], step.loop.slots[n], step.loop.body.yields[n]
            if n in step.parts:
                pending.append((name, self.part(step.parts[n], "" if begins else name)))
                continue
            if n in unset:
                self.line(f"{name} = {unset[n]}")
                continue
            dot = sums.get(value)
            source = value if dot is None else dot.acc
            assert source is not None
            pending.append((name, stripped(self.like(source, slot.inside.axes))))
        self.assign(pending)

    def part(self, part: PartialSum, before: str) -> str:
        """What a thread has of a sum: this tile's part, and what it had `before`, moved."""
        added = self.value(part.fold.result)
        if not before:
            return added
        if part.factor is None:
            return f"{before} + {added}"
        factor = self.value(part.factor)
        if part.factor.axes:
            layout = f"gl.SliceLayout(1, {added}.type.layout)"
            factor = (
                f"gl.convert_layout({stripped(factor)}, {layout}, assert_trivial=True)[:, None]"
            )
        return f"{before} * {factor} + {added}"
