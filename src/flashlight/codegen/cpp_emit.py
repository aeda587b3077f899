"""The body of one program instance in C++: blocks into units, units into loop nests and products."""

from __future__ import annotations

from collections.abc import Sequence

from flashlight.codegen import cpp_tree
from flashlight.codegen.blocks import (
    Block,
    Compute,
    Constant,
    Dot,
    Fetch,
    Fold,
    For,
    If,
    Kernel,
    Op,
    Positions,
    SizeOf,
    Slot,
    Store,
    Value,
    results,
)
from flashlight.codegen.cpp_arrays import Arrays
from flashlight.codegen.cpp_core import Core, Home, reach_of, remaining
from flashlight.codegen.cpp_folds import Folds
from flashlight.codegen.cpp_ops import (
    compute_type,
    identifier,
    literal,
)
from flashlight.codegen.cpp_products import Products
from flashlight.codegen.cpp_tree import Elementwise, Item, Nest, Statement
from flashlight.codegen.cpp_uses import Uses, is_double, needs
from flashlight.errors import CompileError
from flashlight.ir.dtypes import DType


class Emitter:
    """Emits one kernel; see the module's docstring."""

    def __init__(self, kernel: Kernel, *, rows_are_lanes: bool) -> None:
        self.kernel = kernel
        self.uses = Uses(kernel, rows_are_lanes=rows_are_lanes)
        self.core = Core(self.uses)
        self.folds = Folds(self.core)
        self.arrays = Arrays(self.core)
        self.products = Products(self.core, self.arrays)
        self.workspace_bytes = 0
        self.double = is_double(kernel)

    def instance(self) -> str:
        """The text of one program instance."""
        self._open_instance()
        self._block(self.kernel.body)
        offsets, self.workspace_bytes = self.core.workspace.placed()
        tiles = [
            f"      {t.ctype}* const {t.name} = ({t.ctype}*)(ws + {offsets[t]});"
            for t in self.core.workspace.tiles
        ]
        return "\n".join([*tiles, *self.core.text(self.core.scopes[0].lines)])

    def _open_instance(self) -> None:
        tiled: str | None = None
        rest = "instance"
        for i in reversed(range(len(self.kernel.grid))):
            dim = self.kernel.grid[i]
            position = f"{rest} % count_{i}" if i else rest
            if dim.descending:
                position = f"count_{i} - 1 - {position}"
            name = self.core.define(dim.index, f"i32({position})")
            if dim.dim is None:
                tiled = name
            if i:
                outer = self.core.fresh("rest")
                self.core.line(f"const i64 {outer} = {rest} / count_{i};")
                rest = outer
        for axis in self.kernel.axes:
            match axis.role:
                case "rows":
                    limit = remaining(axis, tiled)
                case "whole":
                    limit = remaining(axis, None)
                case _:
                    limit = str(axis.block)
            self.core.line(f"const i64 {reach_of(axis)} = {limit};")

    def _block(self, block: Block) -> None:
        """Emit operations, elementwise ones gathered into runs that end where a result is needed."""
        run: list[Elementwise] = []
        made: set[Value] = set()
        for op in block.ops:
            if not made.isdisjoint(needs(op)) and not (
                isinstance(op, Compute | Fetch | Fold | Store) and self.uses.axes_of(op)
            ):
                self._run(run)
                run, made = [], set()
            match op:
                case For():
                    self._for(op)
                case If():
                    self._if(op)
                case Dot():
                    self.products.product(op)
                case SizeOf(result, size):
                    self.core.define(result, f"i32(size_{identifier(size.name)})")
                case Constant() | Positions():
                    pass
                case Fetch() if self.products.reads_in_place(op):
                    self.products.fetch_in_place(op)
                case _ if self.uses.axes_of(op):
                    run.append(op)
                    made.update(results(op))
                case _:
                    self._statement(op)
        self._run(run)

    def _run(self, ops: Sequence[Elementwise]) -> None:
        """A run of elementwise operations as loop nests."""
        if not ops:
            return
        tree = cpp_tree.fuse(ops, self.uses.axes_of)
        group = set(ops)
        silent: set[Op] = set()
        for op in ops:
            for value in results(op):
                if self._plan(op, value, tree, group):
                    silent.add(op)
        for item in _pruned(tree.items, silent):
            start = self.core.workspace.tick()
            self._item(item)
            self.core.workspace.nests.append((start, self.core.workspace.tick()))

    def _plan(
        self, op: Elementwise, value: Value, tree: cpp_tree.Tree, group: set[Elementwise]
    ) -> bool:
        """Decide where a value lives. Returns whether its operation has no place of its own: it is repeated where needed."""
        if self.uses.is_silent(op):
            return True
        if not value.axes:
            return False
        users = self.uses.readers(value)
        moved = any(isinstance(u, Dot | For | If) for u in users)
        path = tree.paths[op]
        buffered = isinstance(op, Fetch) and self.uses.moves_rows(op)
        if isinstance(op, Fold):
            at = next(i for i, nest in enumerate(path) if nest.axis == op.axis)
            buffered = at < len(path) - 1
            path = path[:at]
        if moved or any(u not in group for u in users):
            self.core.house(value, ())
            return False
        common = path
        for user in users:
            common = _prefix(common, tree.paths[user])
        if buffered or len(common) < len(path):
            self.core.house(value, tuple(n.axis for n in common))
        return False

    def _item(self, item: Item) -> None:
        if isinstance(item, Statement):
            self._statement(item.op)
        else:
            self._nest(item)

    def _nest(self, nest: Nest) -> None:
        in_rows = any(s.axis is self.uses.rows and s.lane for s in self.core.scopes)
        leaf = not any(isinstance(i, Nest) for i in nest.items)
        lane = nest.axis is self.uses.rows or (not in_rows and leaf)
        for fold in nest.folds:
            self.folds.open(fold, nest, lane=lane)
        index, reach = self.core.fresh("i"), reach_of(nest.axis)
        step = f"{index} += W" if lane else f"{index}++"
        with self.core.scope(
            f"for (i64 {index} = 0; {index} < {reach}; {step}) ", nest.axis, index, lane=lane
        ):
            for item in nest.items:
                self._item(item)
        for fold in nest.folds:
            self.folds.close(fold, lane=lane)

    def _statement(self, op: Op) -> None:
        match op:
            case Compute(result):
                self.core.set(result, self.core.compute_text(op))
            case Fetch() | Store() if self.uses.moves_rows(op):
                self.arrays.move_rows(op)
            case Fetch(result):
                self.core.set(result, self.arrays.fetch(op))
            case Store():
                self.arrays.store(op)
            case Fold():
                self.folds.step(op)
            case Constant() | Positions():
                if op.result in self.core.homes:
                    self.core.set(op.result, self.core.ref(op.result))
            case _:
                raise CompileError(f"No C++ for {type(op).__name__} here.")

    def _for(self, op: For) -> None:
        variables = self._open_slots(op.slots)
        lo, hi = self.core.ref(op.lo), self.core.ref(op.hi)
        index = self.core.fresh(op.index.name)
        start = self.core.workspace.tick()
        with self.core.scope(f"for (i32 {index} = {lo}; {index} < {hi}; {index}++) "):
            self.core.scopes[-1].names[op.index] = index
            if op.axis is not None:
                reach = remaining(op.axis, index)
                if op.base is not None and op.end is not None:
                    at = f"({self.core.ref(op.base)} + {index} * {op.axis.block})"
                    reach = f"least({op.axis.block}, {self.core.ref(op.end)} - {at})"
                self.core.line(f"const i64 {reach_of(op.axis)} = {reach};")
            self._body(op.slots, op.body, variables)
        self.core.workspace.loops.append((start, self.core.workspace.tick()))
        self._close_slots(op.slots, variables)

    def _if(self, op: If) -> None:
        variables = self._open_slots(op.slots)
        condition = self.core.ref(op.condition)
        with self.core.scope(f"if ({condition}) "):
            self._body(op.slots, op.body, variables)
        self._close_slots(op.slots, variables)

    def _open_slots(self, slots: tuple[Slot, ...]) -> dict[Slot, str]:
        """Variables of scalar slots and tiles of the others, set to what they start with."""
        variables: dict[Slot, str] = {}
        for slot in slots:
            if not slot.inside.axes:
                name = self.core.fresh(slot.name)
                self.core.line(
                    f"{compute_type(slot.inside.dtype)} {name} = {self.core.ref(slot.init)};"
                )
                variables[slot] = name
                continue
            home = self.core.new_home(slot.name, slot.inside.dtype, slot.inside.axes)
            self.core.homes[slot.inside] = self.core.homes[slot.result] = home
            self._move(home, slot.init)
        return variables

    def _move(self, home: Home, value: Value) -> None:
        """Set a slot's tile to a value."""
        op = self.uses.definitions.get(value)
        source = self.core.homes.get(value)
        if isinstance(op, Constant):
            number = literal(op.value, value.dtype)
            self.core.fill(home, f"-i32({number})" if value.dtype is DType.BOOL else number)
        elif source is not None and source.tile.layout == home.tile.layout:
            self.core.move(home, source)
        else:
            self.core.over(home.axes, lambda: self.core.save_ref(home, value))

    def _body(self, slots: tuple[Slot, ...], body: Block, variables: dict[Slot, str]) -> None:
        head = self.core.workspace.tick()
        for slot in slots:
            if slot in variables:
                self.core.define(slot.inside, variables[slot])
            else:
                self.core.workspace.slots[self.core.homes[slot.inside].tile] = head
        self._block(body)
        pairs = list(zip(slots, body.yields, strict=True))
        insides = {s.inside for s in slots}
        staged: dict[Value, Home] = {}
        scalars: list[tuple[str, str]] = []
        for slot, value in pairs:
            if slot in variables:
                scalars.append((variables[slot], self.core.ref(value)))
            elif value in insides and value is not slot.inside:
                staged[value] = self.core.new_home(value.name, value.dtype, value.axes)
                self._move(staged[value], value)
        for target, text in scalars:
            self.core.line(f"{target} = {text};")
        for slot, value in pairs:
            if slot in variables:
                continue
            home = self.core.homes[slot.inside]
            if value is slot.inside:
                self.core.workspace.wrote(home.tile)
            elif value in staged:
                self.core.move(home, staged[value])
            else:
                self._move(home, value)

    def _close_slots(self, slots: tuple[Slot, ...], variables: dict[Slot, str]) -> None:
        for slot in slots:
            if slot in variables:
                self.core.define(slot.result, variables[slot])


def _pruned(items: list[Item], silent: set[Op]) -> list[Item]:
    """Items without statements that are repeated where they are needed, and without nests left empty."""
    kept: list[Item] = []
    for item in items:
        if isinstance(item, Statement):
            if item.op not in silent:
                kept.append(item)
            continue
        item.items = _pruned(item.items, silent)
        if item.items:
            kept.append(item)
    return kept


def _prefix(a: tuple[Nest, ...], b: tuple[Nest, ...]) -> tuple[Nest, ...]:
    n = 0
    while n < min(len(a), len(b)) and a[n] is b[n]:
        n += 1
    return a[:n]
