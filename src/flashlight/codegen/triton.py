"""Block programs to Triton source: one module with one kernel, to be read by people too.

Every value is a scalar or a tensor whose axes are the value's axes in order; a value with fewer axes is indexed with None to
line up. What the source needs at launch is listed in `Source.parameters`: pointers, then strides, then sizes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, assert_never

from flashlight.codegen.blocks import (
    Axis,
    Block,
    Compute,
    Constant,
    Dot,
    Fetch,
    Fold,
    For,
    Gather,
    If,
    Kernel,
    Op,
    Point,
    Positions,
    SizeOf,
    Slot,
    Span,
    Store,
    Subscript,
    Value,
    results,
    walk,
)
from flashlight.codegen.inlining import direct_yields, inlinable
from flashlight.codegen.spelling import (
    atom,
    axes_of,
    fresh_name,
    hint_of,
    lined_up,
    stripped,
    wrapped,
)
from flashlight.codegen.triton_ops import (
    HELPERS,
    TYPES,
    choice_helper,
    compute_text,
    fold_text,
    literal_text,
)
from flashlight.errors import CompileError
from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import Binary, Buffer, Const, Expr, Size

Precision = Literal["ieee", "tf32", "tf32x3"]


@dataclass(frozen=True, slots=True)
class Choices:
    """What an emitter may choose without changing the block program.

    Attributes:
        descriptors: for buffers that may be read by tile descriptors, the buffer axis of stride 1.
        precision: of f32 dots.
        wide: offsets within a tile may exceed 31 bits.
        target: "cuda", "hip", or "interpret" (no inline assembly, no libdevice).
    """

    descriptors: Mapping[str, int] = field(default_factory=dict)
    precision: Precision = "ieee"
    wide: bool = False
    target: Literal["cuda", "hip", "interpret"] = "cuda"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of the kernel: a buffer's pointer or descriptor, the stride of one of its axes, a size, or what a queue needs.

    Attributes:
        tile: of a descriptor: (axis of the buffer, positions) for each of its axes, in its order.
    """

    name: str
    kind: Literal["pointer", "stride", "size", "descriptor", "queue", "count"]
    of: str
    axis: int = 0
    tile: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """A module's text and how to call its kernel."""

    text: str
    kernel: str
    parameters: tuple[Parameter, ...]
    uses_descriptors: bool


def emit(kernel: Kernel, choices: Choices, header: Sequence[str] = ()) -> Source:
    """Triton source for a block program."""
    return Emitter(kernel, choices).source(header)


_OF_GRID = ("pid", "rest", "first", "members", "within", "point")
MOST_DIMS = 5
"""Axes of a tile descriptor at most."""


def descriptor_candidates(kernel: Kernel) -> frozenset[str]:
    """Names of buffers that descriptors could read: tiles of spans, fetched in a sweep."""
    found: dict[str, bool] = {}
    root = root_values(kernel)
    for op in walk(kernel.body):
        if isinstance(op, For) and op.kind == "sweep":
            for inner in walk(op.body):
                if isinstance(inner, Fetch):
                    good = is_describable(inner, root)
                    found[inner.buffer.name] = found.get(inner.buffer.name, True) and good
    return frozenset(name for name, good in found.items() if good)


def is_describable(op: Fetch, root: frozenset[Value]) -> bool:
    """Whether a descriptor could fetch a tile: over spans, and over points that loops move."""
    moving = [s for s in op.index if isinstance(s, Point) and not (s.at is None or s.at in root)]
    return is_box(op, lambda axis: axis.block) and 2 + len(moving) <= MOST_DIMS


def is_box(op: Fetch, length: Callable[[Axis], int]) -> bool:
    """Whether a tile is a box of its buffer of a form that descriptors have: two spans of axes of their own, and single positions.

    `length` says how many positions of an axis are fetched.
    """
    spans = [s for s in op.index if isinstance(s, Span)]
    return (
        len(spans) == len({s.axis for s in spans}) == 2
        and not any(isinstance(s, Gather) for s in op.index)
        and all(s.step == 1 and 8 <= length(s.axis) <= 256 for s in spans)
        and not op.masks
        and op.buffer.dtype in (DType.F16, DType.BF16, DType.F32)
    )


def root_values(kernel: Kernel) -> frozenset[Value]:
    """Values defined outside all loops."""
    found = {g.index for g in kernel.grid}
    for op in kernel.body.ops:
        found.update(results(op))
    return frozenset(found)


class Emitter:
    """Prints one kernel; what depends on how tiles lie in registers is in methods of its own."""

    def __init__(self, kernel: Kernel, choices: Choices) -> None:
        self.kernel = kernel
        self.choices = choices
        self.lines: list[str] = []
        self.depth = 1
        self.text: dict[Value, str] = {}  # how a value is spelled where it is used
        self.constants: set[Value] = set()
        self.measured: set[Value] = set()  # sizes
        self.inlined: dict[Value, Compute] = {}
        self.root = root_values(kernel)
        self.names: set[str] = set(_OF_GRID)
        self.buffers: dict[str, str] = {}
        self.parameters: dict[Parameter, None] = {}
        self.helpers: set[str] = set()
        self.addresses: dict[tuple[object, ...], str] = {}
        self.descriptors: dict[tuple[object, ...], str] = {}
        self.sizes = {s.name: s for s in kernel.sizes}

    def source(self, header: Sequence[str]) -> Source:
        k = self.kernel
        for buffer in (*k.reads, *k.writes):
            self.buffers[buffer.name] = self.fresh(buffer.name)
            self.parameters[Parameter(self.buffers[buffer.name], "pointer", buffer.name)] = None
        for size in k.sizes:
            self.size_text(size)
        self.inlined = inlinable(k.body)
        self.line("pid = tl.program_id(0)")
        self.grid()
        self.block(k.body, ())
        parameters = sorted(
            self.parameters, key=lambda p: ("pointer", "stride", "size").index(p.kind)
        )
        name = self.fresh(k.name)
        lines = [
            *(f"# {line}".rstrip() for line in header),
            "import triton",
            "import triton.language as tl",
        ]
        if any(HELPERS[h].uses_libdevice for h in self.helpers) or any(
            "libdevice." in line for line in self.lines
        ):
            lines.append("from triton.language.extra import libdevice")
        for helper in sorted(self.helpers):
            lines += ["", "", *HELPERS[helper].text.strip().splitlines()]
        lines += ["", "", "@triton.jit", f"def {name}("]
        lines += [f"    {p}," for p in wrapped([p.name for p in parameters])]
        lines += ["):", *self.lines, ""]
        return Source("\n".join(lines), name, tuple(parameters), bool(self.descriptors))

    # -- Names and parameters.

    def fresh(self, hint: str) -> str:
        return fresh_name(hint, self.names)

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def stride(self, buffer: Buffer, axis: int) -> str:
        for p in self.parameters:
            if p.kind == "stride" and p.of == buffer.name and p.axis == axis:
                return p.name
        name = self.fresh(f"{self.buffers[buffer.name]}_s{axis}")
        self.parameters[Parameter(name, "stride", buffer.name, axis)] = None
        return name

    def size_text(self, size: Size) -> str:
        for p in self.parameters:
            if p.kind == "size" and p.of == size.name:
                return p.name
        name = self.fresh(size.name)
        self.parameters[Parameter(name, "size", size.name)] = None
        return name

    def extent(self, expr: Expr) -> str:
        """An extent as text over constants and size parameters."""
        match expr:
            case Const(value, _):
                return str(int(value))
            case Size():
                return self.size_text(expr)
            case Binary(("min" | "max") as op, a, b):
                return f"tl.{op}imum({self.extent(a)}, {self.extent(b)})"
            case Binary(op, a, b):
                sign = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%"}[op]
                return f"({self.extent(a)} {sign} {self.extent(b)})"
            case _:
                msg = f"An extent is arithmetic on sizes, got '{expr}'."
                raise CompileError(msg)

    # -- The grid.

    def grid(self) -> None:
        """Recover the position in the logical grid from `pid`."""
        dims = list(self.kernel.grid)
        for g in dims:
            self.text[g.index] = self.fresh(g.index.name)
        if self.kernel.group > 1 and len(dims) > 1 and dims[-1].dim is None:
            self.grouped_tiles()
            rest, dims = "point", dims[:-1]
        else:
            rest = "pid"
        for n, g in enumerate(reversed(dims)):
            name = self.text[g.index]
            count = self.extent(g.count)
            outermost = n == len(dims) - 1
            at = rest if outermost else f"{rest} % {count}"
            if g.descending:
                at = f"{count} - 1 - {at}" if outermost else f"{count} - 1 - ({at})"
            self.line(f"{name} = {at}")
            if not outermost:
                self.line(f"rest = {rest} // {count}")
                rest = "rest"

    def grouped_tiles(self) -> None:
        """Row tiles of `group` neighbouring grid points side by side, the last group perhaps smaller."""
        *outer, tiles = self.kernel.grid
        points = " * ".join(self.extent(g.count) for g in outer)
        count, group = self.extent(tiles.count), self.kernel.group
        self.line(f"first = pid // ({group} * {count}) * {group}")
        self.line(f"members = tl.minimum({points} - first, {group})")
        self.line(f"within = pid % ({group} * {count})")
        at = "within // members"
        if tiles.descending:
            at = f"{count} - 1 - {at}"
        self.line(f"{self.text[tiles.index]} = {at}")
        self.line("point = first + within % members")

    # -- Blocks.

    def block(self, block: Block, slots: Sequence[Slot]) -> None:
        direct = direct_yields(block, slots, self.inlined)
        for op in block.ops:
            self.op(op, direct)
        self.yields(block, slots, direct)

    def yields(self, block: Block, slots: Sequence[Slot], direct: Mapping[Value, Slot]) -> None:
        """Assign the next values of the slots."""
        pending = []
        for slot, value in zip(slots, block.yields, strict=True):
            if direct.get(value) is slot:
                continue
            target, text = self.text[slot.inside], self.like(value, slot.inside.axes)
            pending.append((target, text))
        self.assign(pending)

    def assign(self, values: Iterable[tuple[str, str]]) -> None:
        """Assign (variable, text), at once where one could overwrite what another reads."""
        pending = [(target, text) for target, text in values if target != text]
        targets = {t for t, _ in pending}
        hazard = any(
            set(re.findall(r"\w+", text)) & (targets - {target}) for target, text in pending
        )
        if hazard:
            self.line(f"{', '.join(t for t, _ in pending)} = {', '.join(x for _, x in pending)}")
        else:
            for target, text in pending:
                self.line(f"{target} = {text}")

    def op(self, op: Op, direct: Mapping[Value, Slot]) -> None:
        match op:
            case Constant(result, value):
                self.text[result] = literal_text(value)
                self.constants.add(result)
            case SizeOf(result, size):
                self.text[result] = self.size_text(size)
                self.measured.add(result)
            case Positions(result, axis):
                self.define(result, self.arange(axis), direct)
            case Compute(result):
                if result not in self.inlined:
                    self.define(result, self.compute(op), direct)
            case Fetch(result):
                self.define(result, self.fetch(op), direct)
            case Store():
                self.store(op)
            case Dot(result):
                self.define(result, self.dot(op), direct)
            case Fold(result, monoid, x, axis, nan):
                text, helpers = fold_text(
                    monoid, self.value(x), x.dtype, x.axes.index(axis), nan, len(x.axes)
                )
                self.helpers |= helpers
                self.define(result, text, direct)
            case For():
                self.loop(op)
            case If():
                self.branch(op)
            case _:
                assert_never(op)

    def define(self, value: Value, text: str, direct: Mapping[Value, Slot]) -> None:
        slot = direct.get(value)
        name = self.text[slot.inside] if slot is not None else self.fresh(hint_of(value))
        if slot is not None and value.axes != slot.inside.axes:
            text = self.broadcast(text, value.axes, slot.inside.axes)
        self.text[value] = name
        self.line(f"{name} = {stripped(text)}")

    def value(self, value: Value, axes: tuple[Axis, ...] | None = None) -> str:
        """A value's text, lined up with `axes` (its own by default)."""
        text = self.text.get(value)
        if text is None:
            text = atom(self.compute(self.inlined[value]))
        return text if axes is None else self.aligned(text, value.axes, axes)

    def like(self, value: Value, axes: tuple[Axis, ...]) -> str:
        """A value's text as a tensor that has all of `axes`."""
        text = self.value(value)
        if value in self.constants or self.may_be_python(value):
            return self.full(axes, stripped(text), value.dtype)
        return text if value.axes == axes else self.broadcast(text, value.axes, axes)

    def may_be_python(self, value: Value) -> bool:
        """Whether a scalar without a variable may be a Python number: Triton takes sizes that are 1 for constants."""
        return not value.axes and (value in self.inlined or value in self.measured)

    def converted(self, value: Value, text: str, to: str) -> str:
        """A value's text in another type."""
        return (
            f"tl.cast({stripped(text)}, {to})" if self.may_be_python(value) else f"{text}.to({to})"
        )

    # -- How tiles lie in registers.

    def aligned(self, text: str, have: tuple[Axis, ...], want: tuple[Axis, ...]) -> str:
        """Text of a tensor over `have`, indexed so that it broadcasts over `want`."""
        return lined_up(text, have, want)

    def shape(self, axes: Iterable[Axis]) -> str:
        return f"[{', '.join(str(a.block) for a in axes)}]"

    def full(self, axes: tuple[Axis, ...], text: str, dtype: DType) -> str:
        """A tensor of one number."""
        return f"tl.full({self.shape(axes)}, {text}, {TYPES[dtype]})"

    def arange(self, axis: Axis) -> str:
        """0..block-1."""
        return f"tl.arange(0, {axis.block})"

    def broadcast(self, text: str, have: tuple[Axis, ...], want: tuple[Axis, ...]) -> str:
        return f"tl.broadcast_to({stripped(self.aligned(text, have, want))}, {self.shape(want)})"

    def compute(self, op: Compute) -> str:
        args = [self.value(a, op.result.axes) for a in op.args]
        dtypes = [a.dtype for a in op.args]
        if op.op == "cast" and op.args[0] in self.constants:
            return self.full(op.result.axes, args[0], op.result.dtype)
        if op.op == "cast" and self.may_be_python(op.args[0]):
            return f"tl.cast({stripped(args[0])}, {TYPES[op.result.dtype]})"
        if op.op == "not" and self.may_be_python(op.args[0]) and op.result.dtype is DType.BOOL:
            return f"{args[0]} == 0"  # ~True is -2
        if op.op == "fma" and op.args[2] in self.inlined:
            third = self.inlined[op.args[2]]
            if third.op == "neg":
                return f"{args[0]} * {args[1]} - {self.value(third.args[0], op.result.axes)}"
        if op.op == "select" and self.may_choose(op):
            return self.chosen(op.args[0], stripped(args[1]), stripped(args[2]), op.result.axes)
        text, helpers = compute_text(op, args, dtypes, self.choices.target)
        self.helpers |= helpers
        return text

    def may_choose(self, op: Compute) -> bool:
        """Whether a select of scores has a comparison among its conditions that may be made with the choice."""
        if self.choices.target != "cuda" or op.result.dtype is not DType.F32:
            return False
        return any(map(self.choice, self.conjuncts(op.args[0])))

    def conjuncts(self, condition: Value) -> list[Value]:
        """The parts of a conjunction that has no variables."""
        op = self.inlined.get(condition)
        if op is None or op.op != "and":
            return [condition]
        return [part for arg in op.args for part in self.conjuncts(arg)]

    def choice(self, condition: Value) -> str | None:
        """The helper that compares and chooses, or None."""
        op = self.inlined.get(condition)
        if op is None or not {"rows", "cols"} <= {axis.role for axis in condition.axes}:
            return None
        dtype = op.args[0].dtype
        if dtype is DType.I64 and any(a in self.constants for a in op.args):
            return None  # a literal would be taken for one of 32 bits
        return choice_helper(op.op, dtype)

    def chosen(self, condition: Value, x: str, y: str, axes: tuple[Axis, ...]) -> str:
        """x where all parts of a condition hold, else y."""
        for part in self.conjuncts(condition):
            helper = self.choice(part)
            if helper is None:
                x = f"tl.where({stripped(self.value(part, axes))}, {x}, {y})"
                continue
            self.helpers.add(helper)
            a, b = (stripped(self.value(v, axes)) for v in self.inlined[part].args)
            x = f"{helper}({a}, {b}, {x}, {y})"
        return x

    def dot(self, op: Dot) -> str:
        a, b = self.value(op.a), self.value(op.b)
        if op.a.axes[-1] != op.axis:
            a = f"tl.trans({stripped(a)})"
        if op.b.axes[0] != op.axis:
            b = f"tl.trans({stripped(b)})"
        first, second = stripped(a), stripped(b)
        flipped = op.result.axes and op.a.axes and op.result.axes[0] not in op.a.axes
        extra = ""
        if op.acc is not None:
            acc = stripped(self.like(op.acc, op.result.axes))
            extra += f", acc=tl.trans({acc})" if flipped else f", {acc}"
        if op.a.dtype is DType.F32:
            extra += f', input_precision="{self.choices.precision}"'
        if op.a.dtype is DType.F64:
            extra += ", out_dtype=tl.float64"
        text = f"tl.dot({first}, {second}{extra})"
        return f"tl.trans({text})" if flipped else text

    # -- Loops.

    def loop(self, op: For) -> None:
        self.slots_before(op.slots)
        self.hoist_addresses(op)
        names = set(self.names)
        index = self.fresh(hint_of(op.index))
        self.text[op.index] = index
        lo, hi = self.value(op.lo), self.value(op.hi)
        options = ""
        if op.single:
            options = ", num_stages=1"
        maker = "tl.static_range" if op.unroll else "tl.range"
        bounds = f"{stripped(lo)}, {stripped(hi)}"
        if op.kind == "sweep":
            self.line(
                f"# {'full' if op.full else 'edge'} tiles of {op.axis.name if op.axis else ''}"
            )
        self.line(f"for {index} in {maker}({bounds}{options}):")
        if self.choices.target == "interpret":  # there the index may be a Python int
            self.lines.append(
                "    " * (self.depth + 1) + f"{index} = tl.full([], {index}, tl.int32)"
            )
        self.nested(op.body, op.slots)
        if index not in names:
            self.names.discard(index)
        for slot in op.slots:
            self.text[slot.result] = self.text[slot.inside]

    def branch(self, op: If) -> None:
        self.slots_before(op.slots)
        self.line(f"if {stripped(self.value(op.condition))}:")
        self.nested(op.body, op.slots)
        for slot in op.slots:
            self.text[slot.result] = self.text[slot.inside]

    def nested(self, body: Block, slots: Sequence[Slot]) -> None:
        with self.scope():
            start = len(self.lines)
            self.block(body, slots)
            if len(self.lines) == start:
                self.line("pass")

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Lines of a nested block; its variables end with it."""
        self.depth += 1
        before, described, names = dict(self.addresses), dict(self.descriptors), set(self.names)
        yield
        self.addresses, self.descriptors = before, described
        self.names = names | {p.name for p in self.parameters}
        self.depth -= 1

    def slots_before(self, slots: Sequence[Slot]) -> None:
        """A variable for each slot, holding its initial value; loops that chain share it."""
        for slot in slots:
            init = self.text.get(slot.init)
            chained = (
                init is not None
                and slot.init not in self.constants
                and any(slot.init is r for r in self.slot_results())
                and slot.init.axes == slot.inside.axes
            )
            if chained and init is not None:
                self.text[slot.inside] = init
                continue
            name = self.fresh(slot.name)
            self.line(f"{name} = {stripped(self.like(slot.init, slot.inside.axes))}")
            self.text[slot.inside] = name

    def slot_results(self) -> Iterator[Value]:
        for op in walk(self.kernel.body):
            if isinstance(op, For | If):
                for slot in op.slots:
                    yield slot.result
                    yield slot.inside

    # -- Memory.

    def fetch(self, op: Fetch) -> str:
        described = self.described(op)
        if described is not None:
            return described
        axes = op.result.axes
        address = self.address(op.buffer, op.index, axes)
        mask = self.mask(op.buffer, op.index, op.masks, axes)
        if not mask:
            return f"tl.load({address})"
        return f"tl.load({address}, mask={mask}, other=0)"

    def store(self, op: Store) -> None:
        axes = axes_of(self.kernel, op.index, op.masks)
        self.write(op, axes, stripped(self.like(op.value, axes)))

    def write(self, op: Store, axes: tuple[Axis, ...], value: str) -> None:
        """Store text that is a tensor over `axes`."""
        address = self.address(op.buffer, op.index, axes)
        mask = self.mask(op.buffer, op.index, op.masks, axes)
        self.line(f"tl.store({address}, {value}{f', mask={mask}' if mask else ''})")

    def address(self, buffer: Buffer, index: tuple[Subscript, ...], axes: tuple[Axis, ...]) -> str:
        """Pointer text: what the whole program instance shares is named once, before the loops."""
        base, inner, tile = self.terms(buffer, index, axes)
        pointer = self.named_base(buffer, base)
        offsets = self.named_tile(buffer, tile)
        return " + ".join([pointer, *inner, *([offsets] if offsets else [])])

    def terms(
        self, buffer: Buffer, index: tuple[Subscript, ...], axes: tuple[Axis, ...]
    ) -> tuple[list[str], list[str], list[str]]:
        """Offset terms: scalars known outside all loops, other scalars, and tiles."""
        base: list[str] = []
        inner: list[str] = []
        tile: list[str] = []
        for n, s in enumerate(index):
            match s:
                case Span(axis, start, step):
                    if start is not None:
                        text = f"{self.wide(start)} * {self.stride(buffer, n)}"
                        (base if start in self.root else inner).append(text)
                    along = self.positions(axis, axes)
                    if self.choices.wide:
                        along = f"{along}.to(tl.int64)"
                    along = along if step == 1 else f"{step} * {along}"
                    tile.append(f"{along} * {self.stride(buffer, n)}")
                case Point(at):
                    if at is not None:
                        text = f"{self.wide(at)} * {self.stride(buffer, n)}"
                        (base if at in self.root else inner).append(text)
                case Gather(at):
                    text = self.converted(at, self.value(at, axes), "tl.int64")
                    text = f"{text} * {self.stride(buffer, n)}"
                    tile.append(text)
                case _:
                    assert_never(s)
        return base, inner, tile

    def wide(self, value: Value) -> str:
        """A scalar position in 64 bits."""
        text = self.value(value)
        return text if value in self.constants else self.converted(value, text, "tl.int64")

    def named_base(self, buffer: Buffer, terms: list[str]) -> str:
        pointer = self.buffers[buffer.name]
        return self.named((buffer.name, *terms), f"{pointer}_base", " + ".join([pointer, *terms]))

    def named_tile(self, buffer: Buffer, terms: list[str]) -> str:
        if not terms:
            return ""
        text = " + ".join(terms)
        return self.named((buffer.name, "tile", *terms), f"{self.buffers[buffer.name]}_at", text)

    def named(self, key: tuple[object, ...], hint: str, text: str) -> str:
        """A variable for an address, defined where it is first needed."""
        if " " not in text:
            return text
        if key not in self.addresses:
            name = self.fresh(hint)
            self.line(f"{name} = {text}")
            self.addresses[key] = name
        return self.addresses[key]

    def hoist_addresses(self, loop: For) -> None:
        """Name, before a loop of the top level, the addresses and descriptors that fetches inside it share."""
        if self.depth != 1:
            return
        for op in walk(loop.body):
            if not isinstance(op, Fetch | Store):
                continue
            if isinstance(op, Fetch) and self.descriptor(op) is not None:
                continue
            gathers = [s.at for s in op.index if isinstance(s, Gather)]
            if any(v not in self.text for v in gathers):
                continue
            axes = axes_of(self.kernel, op.index, op.masks)
            scalars = [s for s in op.index if not isinstance(s, Gather)]
            base = self.terms_known(op.buffer, op.index)
            self.named_base(op.buffer, base)
            if len(scalars) == len(op.index):
                tile = self.terms_tile(op.buffer, op.index, axes)
                self.named_tile(op.buffer, tile)

    def terms_known(self, buffer: Buffer, index: tuple[Subscript, ...]) -> list[str]:
        """The scalar terms known outside all loops (others may have no text yet)."""
        base = []
        for n, s in enumerate(index):
            at = s.start if isinstance(s, Span) else s.at
            if not isinstance(s, Gather) and at is not None and at in self.root:
                base.append(f"{self.wide(at)} * {self.stride(buffer, n)}")
        return base

    def terms_tile(
        self, buffer: Buffer, index: tuple[Subscript, ...], axes: tuple[Axis, ...]
    ) -> list[str]:
        spans = tuple(
            Span(s.axis, None, s.step) if isinstance(s, Span) else Point(None) for s in index
        )
        return self.terms(buffer, spans, axes)[2]

    def positions(self, axis: Axis, axes: tuple[Axis, ...]) -> str:
        """0..block-1 along an axis, lined up with `axes`."""
        key = ("positions", axis)
        if key not in self.addresses:
            for value, text in self.text.items():
                if value.axes == (axis,) and value.name == f"{axis.name}_at" and value in self.root:
                    self.addresses[key] = text
                    break
            else:
                name = self.fresh(f"{axis.name}_at")
                self.line(f"{name} = {self.arange(axis)}")
                self.addresses[key] = name
        return self.aligned(self.addresses[key], (axis,), axes)

    def mask(
        self,
        buffer: Buffer,
        index: tuple[Subscript, ...],
        masks: tuple[Value, ...],
        axes: tuple[Axis, ...],
    ) -> str:
        """The conjunction of range checks and masks, or "" where there is none."""
        parts = []
        for s, extent in zip(index, buffer.shape, strict=True):
            match s:
                case Span(axis, start, step, below, above) if below or above:
                    along = self.positions(axis, (axis,))
                    along = along if step == 1 else f"{step} * {along}"
                    along = along if start is None else f"{self.value(start)} + {along}"
                    checks = [f"({along} >= 0)"] if below else []
                    checks += [f"({along} < {self.extent(extent)})"] if above else []
                    text = " & ".join(checks)
                    parts.append(
                        self.aligned(f"({text})" if len(checks) > 1 else text, (axis,), axes)
                    )
                case Gather(at, True):
                    text = self.value(at, axes)
                    parts.append(f"({text} >= 0) & ({text} < {self.extent(extent)})")
        parts += [self.value(m, axes) for m in masks]
        return " & ".join(parts)

    # -- Descriptors.

    def described(self, op: Fetch) -> str | None:
        """A fetch through a descriptor, or None."""
        name = self.descriptor(op)
        if name is None:
            return None
        order = self.descriptor_order(op)
        starts = []
        for n in order:
            s = op.index[n]
            assert not isinstance(s, Gather)
            at = s.start if isinstance(s, Span) else s.at
            starts.append("0" if at is None else stripped(self.value(at)))
        text = f"{name}.load([{', '.join(starts)}])"
        loaded = tuple(s.axis for n in order if isinstance(s := op.index[n], Span))
        if len(loaded) < len(order):
            text = f"{text}.reshape({self.shape(loaded)})"
        return text if loaded == op.result.axes else f"tl.trans({text})"

    def descriptor_order(self, op: Fetch) -> list[int]:
        """Buffer axes that the descriptor ranges over, the one of stride 1 last: those of spans and of points that loops move."""
        unit = self.choices.descriptors[op.buffer.name]
        ranging = [
            n
            for n, s in enumerate(op.index)
            if isinstance(s, Span)
            or (isinstance(s, Point) and s.at is not None and s.at not in self.root)
        ]
        return [n for n in ranging if n != unit] + [unit]

    def descriptor(self, op: Fetch) -> str | None:
        """The descriptor a fetch reads through, made before the loop; None if it reads by pointers."""
        unit = self.choices.descriptors.get(op.buffer.name)
        if unit is None or not is_describable(op, self.root):
            return None
        if not isinstance(op.index[unit], Span):
            return None
        order = self.descriptor_order(op)
        base = self.terms_known(
            op.buffer, tuple(Point(None) if isinstance(s, Span) else s for s in op.index)
        )
        blocks = tuple(s.axis.block if isinstance(s := op.index[n], Span) else 1 for n in order)
        key = ("descriptor", op.buffer.name, *base, *order, *blocks)
        if key not in self.descriptors:
            if self.depth != 1:
                return None
            pointer = self.named_base(op.buffer, base)
            shape = ", ".join(self.extent(op.buffer.shape[n]) for n in order)
            strides = ", ".join([*(self.stride(op.buffer, n) for n in order[:-1]), "1"])
            name = self.fresh(f"{self.buffers[op.buffer.name]}_tiles")
            self.line(
                f"{name} = tl.make_tensor_descriptor({pointer}, shape=[{shape}], strides=[{strides}],"
                f" block_shape=[{', '.join(map(str, blocks))}])"
            )
            self.descriptors[key] = name
        return self.descriptors[key]
