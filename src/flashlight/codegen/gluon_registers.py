"""Tiles in the registers of a group of four warps: where they lie, and operations on them in Gluon."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from flashlight.codegen.blocks import (
    Axis,
    Compute,
    Fetch,
    Fold,
    For,
    Op,
    Store,
    Value,
)
from flashlight.codegen.gluon_ops import rescale
from flashlight.codegen.gluon_producer import Part
from flashlight.codegen.gluon_shared import Shared
from flashlight.codegen.roles import consumed, in_order_of_memory
from flashlight.codegen.spelling import atom, hint_of, lined_up, stripped
from flashlight.codegen.triton_ops import TYPES
from flashlight.errors import CompileError
from flashlight.ir.dtypes import DType
from flashlight.ir.monoids import MAX, SUM
from flashlight.rewrite.shapes import CONSUMER_ROWS


class Registers(Part):
    """Prints operations of a group of warps that computes 64 rows of each tile.

    Attributes:
        in_parts: sums that threads keep in parts.
        ordered: what registers hold in memory's order.
        turned: values in a layout of memory's order, beside those in their own.
        lined: the layout of a tile in memory's order that is being read, written or computed.
    """

    def __init__(self, module: Shared) -> None:
        super().__init__(module)
        self.in_parts = {p.fold for s in module.roles.steps for p in s.parts.values()}
        self.ordered: set[Value] = set()
        self.turned: dict[tuple[Value, str], str] = {}
        self.lined = ""

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
            with self.in_line(axes[1], op.buffer.dtype):
                yield True
        else:
            yield False

    @contextmanager
    def in_line(self, axis: Axis, dtype: DType) -> Iterator[None]:
        """Print for tiles in memory's order: that of what is written along an axis, if anything is, else of what has a type."""
        stores = (op for op in self.module.roles.after if isinstance(op, Store))
        written = (s.buffer.dtype for s in stores if s.value.axes[1:] == (axis,))
        self.lined = self.module.line(axis, next(written, dtype))
        yield
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
        text = self.turned.get((value, self.lined))
        if text is None and value in self.text:
            if value not in self.ordered:
                return super().value(value, axes)
            text = self.text[value]
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
            with self.in_line(op.result.axes[1], op.result.dtype):
                for value in self.leaves(op):
                    name = self.turned[value, self.lined] = self.fresh(hint_of(value))
                    text = f"gl.convert_layout({self.text[value]}, {self.layout(value.axes)})"
                    self.line(f"{name} = {text}")
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
        with self.in_line(op.result.axes[1], op.result.dtype):
            self.define(op.result, self.compute(op), {})

    def leaves(self, op: Compute) -> Iterator[Value]:
        """What is known of the values that an operation combines with a tile in memory's order, but not yet in that order."""
        for value in op.args:
            if value in self.inlined and value not in self.text:
                yield from self.leaves(self.inlined[value])
            elif not value.axes or value not in self.text or value in self.ordered:
                continue
            elif (value, self.lined) not in self.turned:
                yield value

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
                if op in self.in_parts:
                    # two chains in each thread, and no exchange with the others of a row
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
        if op.op == "rescale" and op.args[0].axes == op.result.axes:
            x, y = (self.value(a, op.result.axes) for a in op.args)
            name = rescale(op.result.axes[1].block)
            self.helpers.add(name)
            return f"{name}({stripped(x)}, {stripped(y)})"
        kinds = (op.args[0].dtype, op.result.dtype)
        if op.op == "cast" and kinds == (DType.BF16, DType.F32) and op.result.axes:
            self.helpers.add("_widen")
            return f"_widen({stripped(self.value(op.args[0], op.result.axes))})"
        return super().compute(op)

    def descriptor(self, op: Fetch) -> str | None:
        return None

    def hoist_addresses(self, loop: For) -> None:
        return

    def all(self, ops: Iterable[Op]) -> None:
        """Print operations, but for those that are printed where they are used."""
        for op in ops:
            if not (isinstance(op, Compute) and op.result in self.inlined):
                self.op(op, {})
