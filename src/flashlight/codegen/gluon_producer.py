"""The Gluon function of the warp that copies tiles, and what it has in common with that of the consumers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from flashlight.codegen.blocks import (
    Compute,
    Constant,
    Fetch,
    Op,
    Point,
    SizeOf,
    Span,
    Subscript,
    Value,
    operands,
    results,
)
from flashlight.codegen.gluon_ops import spelled
from flashlight.codegen.gluon_shared import Copied, Shared
from flashlight.codegen.inlining import inlinable
from flashlight.codegen.roles import Roles, Step
from flashlight.codegen.spelling import stripped
from flashlight.codegen.triton import Emitter
from flashlight.errors import CompileError
from flashlight.rewrite.shapes import CONSUMER_ROWS


class Part(Emitter):
    """What a producer's and a consumer's function have in common: parameters, the queue, and the ranges of the loops."""

    def __init__(self, module: Shared) -> None:
        super().__init__(module.kernel, module.choices)
        self.module = module
        self.parameters = module.parameters
        self.helpers = module.helpers
        self.buffers = module.buffers
        self.names |= {p.name for p in module.parameters} | module.taken
        self.inlined = inlinable(self.kernel.body)

    def function(self) -> list[str]:
        """The lines of the function's body, in Gluon."""
        self.body()
        return [spelled(line) for line in self.lines]

    def body(self) -> None:
        raise NotImplementedError

    @contextmanager
    def nested_lines(self, head: str) -> Iterator[None]:
        """Lines of a block; its variables end with it."""
        self.line(head)
        with self.scope():
            yield

    def advance(self, at: str, phase: str, count: int) -> None:
        """The next place of a ring."""
        if count == 1:
            self.line(f"{phase} ^= 1")
            return
        self.line(f"{at} += 1")
        self.line(f"if {at} == {count}:")
        self.line(f"    {at} = 0")
        self.line(f"    {phase} ^= 1")

    # -- The order of tiles: the first one that is not empty, then the loops without it. Where all are empty, tile 0 stands for a
    # first one: what bounds leave out adds nothing.

    def ranges(self) -> tuple[str, list[tuple[str, str]]]:
        """The first tile, and where each loop starts and ends after it."""
        loops = [step.loop for step in self.module.roles.steps]
        begin, end = self.literal(loops[0].lo), self.literal(loops[-1].hi)
        if len(loops) == 1 and begin is not None and end is not None:
            return str(begin if begin < end else 0), [(str(begin + 1), str(end))]
        limits = [(stripped(self.value(op.lo)), stripped(self.value(op.hi))) for op in loops]
        first = self.fresh("first")
        self.line(f"{first} = gl.to_tensor(0)")
        for lo, hi in reversed(limits):
            self.line(f"{first} = tl.where({hi} > {lo}, {lo}, {first})")
        found: list[tuple[str, str]] = []
        unbegun = "1"
        for lo, hi in limits:
            start = self.fresh("start")
            self.line(f"{start} = {lo} + {unbegun}")
            found.append((start, hi))
            if len(found) == len(limits):
                break
            now = f"tl.where({hi} > {lo}, 0, {unbegun})"
            unbegun = self.fresh("unbegun")
            self.line(f"{unbegun} = {now}")
        return first, found

    def literal(self, value: Value) -> int | None:
        return int(self.text[value]) if value in self.constants else None


class Producer(Part):
    """The function of the warp that copies tiles."""

    def body(self) -> None:
        m = self.module
        self.line("stage = 0")
        self.line("phase = 1")
        self.line("slot = 0")
        self.line("slot_phase = 1")
        if m.closing:
            self.line("closing_phase = 1")
        self.line("pid = tl.program_id(0)")
        with self.nested_lines("while pid < tiles:"):
            self.grid()
            wanted = [v for step in m.roles.steps for v in (step.loop.lo, step.loop.hi)]
            copies = [*m.roles.resident, *(f for s in m.roles.steps for f in (*s.early, *s.late))]
            copies += m.closing
            wanted += [v for f in copies for v in places(f.index)]
            self.scalars((*m.roles.before, *m.roles.after), self.needed(wanted))
            self.rows()
            first, ranges = self.ranges()
            step = general(m.roles)
            self.line(f"tile = {first}")
            self.push(step, "tile")
            for step, (start, end) in zip(m.roles.steps, ranges, strict=True):
                with self.nested_lines(f"for tile in tl.range({start}, {end}):"):
                    self.push(step, "tile")
            self.close()
            self.line("pid = following")
        self.announce("tiles")
        with self.nested_lines(f"for i in gl.static_range({m.consumers}):"):
            self.line(f"mbarrier.arrive(rows_full.index(slot * {m.consumers} + i), count=2)")

    def needed(self, values: Iterable[Value]) -> set[Value]:
        """Values, and what they are computed of."""
        made = {v: op for op in self.everything() for v in results(op)}
        todo, found = list(values), set[Value]()
        while todo:
            v = todo.pop()
            if v not in found:
                found.add(v)
                todo += operands(made[v]) if v in made else ()
        return found

    def everything(self) -> Iterator[Op]:
        yield from self.module.roles.before
        yield from self.module.roles.after
        for step in self.module.roles.steps:
            yield from step.light

    def scalars(self, ops: Iterable[Op], values: Iterable[Value]) -> None:
        """The operations that make some scalars."""
        wanted = set(values)
        for op in ops:
            if not wanted & set(results(op)):
                continue
            if any(v.axes for v in results(op)) or not isinstance(
                op, Compute | Constant | SizeOf | Fetch
            ):
                raise CompileError("Where tiles are depends on tiles.")
            if isinstance(op, Compute):
                self.define(op.result, self.compute(op), {})
            else:
                self.op(op, {})

    def rows(self) -> None:
        """The tiles of rows of the next row tile, its number, and the number after it."""
        m = self.module
        n = m.consumers
        self.announce("pid")
        with self.nested_lines(f"for i in gl.static_range({n}):"):
            self.line(f"group = slot * {n} + i")
            total = sum(c.bytes for c in m.resident)
            self.line(f"mbarrier.expect(rows_full.index(group), {total})")
            for c, op in zip(m.resident, m.roles.resident, strict=True):
                self.copy(c, op, "rows_full.index(group)", "group", "i")
            self.line("mbarrier.arrive(rows_full.index(group), count=1)")
        self.advance("slot", "slot_phase", m.slots)
        self.line("turn = tl.atomic_add(queue, 1)")
        self.line("following = turn + gl.num_programs(0)")
        self.line("if turn == tiles - 1:")
        self.line("    tl.store(queue, 0)  # each instance has drawn its last number")

    def announce(self, number: str) -> None:
        """The number of the next row tile, when no consumer reads what is in its slot any more."""
        n = self.module.consumers
        with self.nested_lines(f"for i in gl.static_range({n}):"):
            self.line(f"mbarrier.wait(rows_free.index(slot * {n} + i), slot_phase)")
        self.line(f"drawn.index(slot).store(tl.full([1], {number}, tl.int32, WARP))")

    def push(self, step: Step, tile: str) -> None:
        """One tile of a loop, when there is room."""
        m = self.module
        self.text[step.loop.index] = tile
        wanted = self.needed(v for f in (*step.early, *step.late) for v in places(f.index))
        self.scalars(step.light, wanted)
        for name, copies, ops in (("scores", m.early, step.early), ("sums", m.late, step.late)):
            self.line(f"mbarrier.wait({name}_free.index(stage), phase)")
            total = sum(c.bytes * (m.consumers if c.per_group else 1) for c in copies)
            self.line(f"mbarrier.expect({name}_full.index(stage), {total})")
            for c, op in zip(copies, ops, strict=True):
                bar = f"{name}_full.index(stage)"
                if not c.per_group:
                    self.copy(c, op, bar, "stage", "")
                    continue
                for i in range(m.consumers):
                    self.copy(c, op, bar, f"stage * {m.consumers} + {i}", str(i))
        self.advance("stage", "phase", m.stages)

    def close(self) -> None:
        """The tiles that the end of this row tile reads."""
        m = self.module
        if not m.closing:
            return
        with self.nested_lines(f"for i in gl.static_range({m.consumers}):"):
            self.line("mbarrier.wait(closing_free.index(i), closing_phase)")
            total = sum(c.bytes for c in m.closing.values())
            self.line(f"mbarrier.expect(closing_full.index(i), {total})")
            for op, c in m.closing.items():
                self.copy(c, op, "closing_full.index(i)", "i", "i")
        self.line("closing_phase ^= 1")

    def copy(self, c: Copied, op: Fetch, bar: str, at: str, group: str) -> None:
        starts = []
        for n in c.order:
            s = op.index[n]
            at_value = s.start if isinstance(s, Span) else s.at
            text = "0" if at_value is None else self.value(at_value)
            if isinstance(s, Span) and s.axis.role == "rows" and group != "0":
                text = f"{text} + {group} * {CONSUMER_ROWS}"
            starts.append(stripped(text))
        self.line(
            f"tma.async_copy_global_to_shared({c.descriptor}, [{', '.join(starts)}], {bar}, {c.ring}.index({at}))"
        )


def general(roles: Roles) -> Step:
    """The step whose body is right for any tile: one that checks, if there is any."""
    return next((s for s in roles.steps if not s.loop.full), roles.steps[-1])


def places(index: Sequence[Subscript]) -> tuple[Value, ...]:
    """The scalars in some subscripts."""
    found = (s.start if isinstance(s, Span) else s.at for s in index if isinstance(s, Span | Point))
    return tuple(v for v in found if v is not None)
