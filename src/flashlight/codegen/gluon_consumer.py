"""The Gluon function of a group of four warps that computes 64 rows of each tile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from flashlight.codegen.blocks import (
    Axis,
    Compute,
    Dot,
    Fetch,
    Fold,
    For,
    Op,
    Store,
    Value,
    operands,
)
from flashlight.codegen.gluon_producer import Part, general
from flashlight.codegen.gluon_shared import Copied, Shared
from flashlight.codegen.partial_sums import PartialSum
from flashlight.codegen.phases import phases
from flashlight.codegen.roles import Step, consumed, in_order_of_memory
from flashlight.codegen.spelling import atom, hint_of, lined_up, stripped
from flashlight.codegen.triton_ops import TYPES
from flashlight.errors import CompileError
from flashlight.ir.dtypes import DType
from flashlight.ir.monoids import MAX, SUM
from flashlight.rewrite.shapes import CONSUMER_ROWS


class Consumer(Part):
    """The function of a group of four warps that computes 64 rows of each tile."""

    def __init__(self, module: Shared) -> None:
        super().__init__(module)
        self.slot_names: list[str] = []
        self.weights: list[str] = []
        self.halves: list[str] = []
        self.held: list[str] = []  # other operands that registers hold
        self.in_parts = {p.fold for s in module.roles.steps for p in s.parts.values()}
        self.ordered: set[Value] = set()  # what registers hold in memory's order
        self.turned: dict[Value, str] = {}  # values in memory's order beside those in their own
        self.lined = ""  # the layout of a tile in memory's order that is being read or written

    # -- How tiles lie in registers.

    def layout(self, axes: tuple[Axis, ...]) -> str:
        m = self.module
        rows, cols = m.roles.rows, m.roles.cols
        if self.lined:
            of_one = f"gl.SliceLayout({int(axes[0] == rows)}, {self.lined})"
            return self.lined if len(axes) == 2 else of_one
        if axes == (rows,):
            return "ROWS"
        if axes == (cols,):
            return "COLS"
        if len(axes) == 2 and axes[0] == rows:
            return m.tile(axes[1])
        if len(axes) == 1:
            return f"gl.SliceLayout(0, {m.tile(axes[0])})"
        raise CompileError("A tile has no place in the registers of a group of warps.")

    def aligned(self, text: str, have: tuple[Axis, ...], want: tuple[Axis, ...]) -> str:
        rows, cols = self.module.roles.rows, self.module.roles.cols
        if self.lined and have:
            text = f"gl.convert_layout({stripped(text)}, {self.layout(have)})"
        elif have == (rows,) and len(want) == 2 and want[1] != cols:
            layout = f"gl.SliceLayout(1, {self.layout(want)})"
            text = f"gl.convert_layout({stripped(text)}, {layout}, assert_trivial=True)"
        return super().aligned(text, have, want)

    def shape(self, axes: Iterable[Axis]) -> str:
        return f"[{', '.join(str(consumed(a)) for a in axes)}]"

    def full(self, axes: tuple[Axis, ...], text: str, dtype: DType) -> str:
        if not axes:
            return f"tl.cast({text}, {TYPES[dtype]})"
        return f"tl.full({self.shape(axes)}, {text}, {TYPES[dtype]}, {self.layout(axes)})"

    def arange(self, axis: Axis) -> str:
        text = f"tl.arange(0, {consumed(axis)}, {self.layout((axis,))})"
        return f"GROUP_ID * {CONSUMER_ROWS} + {text}" if axis.role == "rows" else text

    def positions(self, axis: Axis, axes: tuple[Axis, ...]) -> str:
        if not self.lined:
            return super().positions(axis, axes)
        return lined_up(f"({self.arange(axis)})", (axis,), axes)

    @contextmanager
    def in_order(self, op: Fetch | Store, axes: tuple[Axis, ...]) -> Iterator[bool]:
        """Read or write a tile of rows as it lies in memory: where products leave it, a warp would touch eight rows at a time."""
        rows, cols = self.module.roles.rows, self.module.roles.cols
        if len(axes) == 2 and axes[0] == rows and axes[1] != cols and not op.masks:
            self.lined = self.memory_line(axes[1], op.buffer.dtype)
        yield bool(self.lined)
        self.lined = ""

    def write(self, op: Store, axes: tuple[Axis, ...], value: str) -> None:
        with self.in_order(op, axes) as ordered:
            if ordered and op.value not in self.ordered:
                value = f"gl.convert_layout({value}, {self.lined})"
            super().write(op, axes, value)

    def fetch(self, op: Fetch) -> str:
        axes = op.result.axes
        with self.in_order(op, axes) as ordered:
            text = super().fetch(op)
        if not ordered or op.result in self.ordered:
            return text
        return f"gl.convert_layout({text}, {self.layout(axes)})"

    def value(self, value: Value, axes: tuple[Axis, ...] | None = None) -> str:
        if not self.lined:
            return super().value(value, axes)
        if value in self.text and value not in self.ordered and value not in self.turned:
            return super().value(value, axes)
        text = self.turned.get(value) or self.text.get(value)
        text = text or atom(self.compute(self.inlined[value]))
        return text if axes is None else lined_up(text, value.axes, axes)

    def end(self, ops: Iterable[Op]) -> None:
        """What follows the loops. Where it combines a tile that is read with accumulators, those are turned to memory's order, and
        before the tile is read: both would not fit the registers.
        """
        ops = [op for op in ops if op not in self.module.closing]
        self.ordered = in_order_of_memory(ops, self.module.roles)
        self.turned = {}
        combined = [op for op in ops if isinstance(op, Compute) and op.result in self.ordered]
        for op in combined:
            self.lined = self.memory_line(op.result.axes[1], op.result.dtype)
            for value in self.leaves(op):
                text = f"gl.convert_layout({self.text[value]}, {self.layout(value.axes)})"
                self.turned[value] = self.fresh(hint_of(value))
                self.line(f"{self.turned[value]} = {text}")
        self.lined = ""
        for each in ops:
            if isinstance(each, Compute) and each.result in self.ordered:
                if each.result not in self.inlined:
                    self.combine(each)
                continue
            if isinstance(each, Store) and each.value in self.ordered & self.inlined.keys():
                self.combine(self.inlined[each.value])
            self.all([each])

    def combine(self, op: Compute) -> None:
        """An operation in memory's order."""
        self.lined = self.memory_line(op.result.axes[1], op.result.dtype)
        self.define(op.result, self.compute(op), {})
        self.lined = ""

    def leaves(self, op: Compute) -> Iterator[Value]:
        """What is known of the values that an operation combines with a tile in memory's order, but not yet in that order."""
        for value in op.args:
            if value in self.inlined and value not in self.text:
                yield from self.leaves(self.inlined[value])
            elif value.axes and value in self.text and value not in {*self.ordered, *self.turned}:
                yield value

    def memory_line(self, axis: Axis, dtype: DType) -> str:
        """The layout of a tile in memory's order: of what is written along an axis, if anything is."""
        stores = (op for op in self.module.roles.after if isinstance(op, Store))
        written = (s.buffer.dtype for s in stores if s.value.axes[1:] == (axis,))
        return self.module.line(axis, next(written, dtype))

    def named(self, key: tuple[object, ...], hint: str, text: str) -> str:
        return super().named((*key, self.lined), hint, text)

    def broadcast(self, text: str, have: tuple[Axis, ...], want: tuple[Axis, ...]) -> str:
        raise CompileError("A result is constant along an axis.")

    def define(self, value: Value, text: str, direct: Mapping[Value, object]) -> None:
        if value.axes:
            self.layout(value.axes)  # refuses a tile that has no place
        super().define(value, text, {})

    def op(self, op: Op, direct: Mapping[Value, object]) -> None:
        rows, cols = self.module.roles.rows, self.module.roles.cols
        if isinstance(op, Fold) and op.result.axes == (rows,) and op.axis == cols:
            name = {MAX: "max", SUM: "sum"}.get(op.monoid)
            if name is not None and (name == "sum" or not op.nan):
                x = stripped(self.value(op.x))
                if (
                    op in self.in_parts
                ):  # two chains in each thread, and no exchange with the others of a row
                    split = f"tl.reshape({x}, [{CONSUMER_ROWS}, {cols.block // 8}, 4, 2])"
                    self.helpers.add("_here")
                    self.define(op.result, f"_here(tl.{name}(tl.{name}({split}, 1), 2))", {})
                    return
                split = f"tl.reshape({x}, [{CONSUMER_ROWS}, {cols.block // 8}, 8])"
                text = f"tl.{name}(tl.{name}({split}, 1), 1)"
                self.define(op.result, f"tl.convert_layout({text}, ROWS, assert_trivial=True)", {})
                return
        if isinstance(op, Fold) and op.axis != cols:
            if op.axis == rows or op.result.axes != (rows,):
                raise CompileError("A reduction crosses groups of warps.")
            start = len(self.lines)
            super().op(op, {})
            head, _, text = self.lines[start].partition(" = ")
            self.lines[start] = f"{head} = gl.convert_layout({text}, ROWS, assert_trivial=True)"
            return
        super().op(op, {})

    def compute(self, op: Compute) -> str:
        if op.op == "exp2" and op.result.dtype is DType.F32 and op.result.axes:
            self.helpers.add("_exp2")
            return f"_exp2({stripped(self.value(op.args[0], op.result.axes))})"
        kinds = (op.args[0].dtype, op.result.dtype)
        if op.op == "cast" and kinds == (DType.BF16, DType.F32) and op.result.axes:
            self.helpers.add("_widen")
            return f"_widen({stripped(self.value(op.args[0], op.result.axes))})"
        return super().compute(op)

    def may_choose(self, op: Compute) -> bool:
        return False

    def descriptor(self, op: Fetch) -> str | None:
        return None

    def hoist_addresses(self, loop: For) -> None:
        return

    def all(self, ops: Iterable[Op]) -> None:
        """Print operations, but for those that are printed where they are used."""
        for op in ops:
            if not (isinstance(op, Compute) and op.result in self.inlined):
                self.op(op, {})

    # -- The function.

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
        parts = steps[0].parts
        for n, slot in enumerate(steps[0].loop.slots):
            name = self.fresh(slot.name)
            if n not in parts:
                self.line(f"{name} = {stripped(self.like(slot.init, slot.inside.axes))}")
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

    def step(self, step: Step, *, begins: bool) -> None:
        """One tile: its weights; and the sums of the weights before it, unless it `begins`."""
        m = self.module
        loop = step.loop
        self.text[loop.index] = "tile"
        parts = phases(step)
        for n, part in enumerate(parts):
            before = None if begins and n == 0 else parts[n - 1]
            if before is not None:
                self.round_weights(before)
            fetches = any(isinstance(op, Fetch) for op in step.light)
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
        self.all(step.moves)
        for name, weight in zip(self.weights, step.weights, strict=True):
            self.line(f"{name} = {self.value(weight)}")
        sums = {d.result: d for d in step.sums}
        pending = []
        for n in step.slots:
            name, slot, value = self.slot_names[n], step.loop.slots[n], step.loop.body.yields[n]
            if n in step.parts:
                pending.append((name, self.part(step.parts[n], "" if begins else name)))
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
