"""The body of one program instance in C++: blocks into units, units into loop nests and products."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from flashlight.codegen import cpp_tree
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
    operands,
    results,
    walk,
)
from flashlight.codegen.cpp_memory import Tile, Workspace
from flashlight.codegen.cpp_ops import (
    MEMORY_TYPES,
    compute,
    compute_type,
    extent,
    fold_function,
    fold_identity,
    identifier,
    literal,
    tile_type,
    vector_type,
)
from flashlight.codegen.cpp_tree import Elementwise, Item, Nest, Statement
from flashlight.errors import CompileError
from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import Buffer

_CHEAP = frozenset(
    (
        *("add", "sub", "mul", "neg", "fma", "abs", "anchor", "maxnum", "minnum"),
        *("and", "or", "xor", "not", "lt", "le", "gt", "ge", "eq", "ne", "select", "cast"),
    )
)
_CHEAP_LIMIT = 4
_KEEP = 1000
_PAD = 16  # lanes of the widest vector: tiles are laid out alike for every width


@dataclass(frozen=True)
class _Copy:
    """Move `source` into `target`, unless they share a place."""

    pad: str
    target: Tile
    source: Tile


@dataclass(eq=False)
class _Scope:
    """An open C++ block, and the values that have a variable in it.

    Attributes:
        axis, index: if the block is a step along an axis, where it stands.
        lane: the step is a whole vector.
    """

    lines: list[_Line] = field(default_factory=list)
    names: dict[object, str] = field(default_factory=dict)
    axis: Axis | None = None
    index: str = ""
    lane: bool = False


_Line: TypeAlias = str | _Copy | _Scope


@dataclass(frozen=True)
class _Home:
    """Where a value is stored.

    Attributes:
        axes: what the tile spans; the value's other axes are those of an enclosing nest, of which one step is kept.
        vectors: elements are vectors along rows.
    """

    tile: Tile
    axes: tuple[Axis, ...]
    vectors: bool


@dataclass(frozen=True)
class _Direct:
    """An operand of a product that may be read where it lies: variables with its address and its stride along each axis."""

    pointer: str
    strides: dict[Axis, str]


@dataclass
class _Address:
    """A subscripted array in the current scope.

    Attributes:
        pointer: of lane 0.
        step: stride between lanes; "0" if the lanes' axis does not occur.
        conditions: scalar checks.
        low, high: lanes [low, high) are in range, besides the tile's own end.
        gathers: (vector of positions, stride, extent or None if unchecked).
        masks: vector masks.
    """

    pointer: str
    step: str = "0"
    conditions: list[str] = field(default_factory=list)
    low: list[str] = field(default_factory=list)
    high: list[str] = field(default_factory=list)
    gathers: list[tuple[str, str, str | None]] = field(default_factory=list)
    masks: list[str] = field(default_factory=list)


class Emitter:
    """Emits one kernel; see the module's docstring."""

    def __init__(self, kernel: Kernel, *, rows_are_lanes: bool) -> None:
        self.kernel = kernel
        rows = [a for a in kernel.axes if a.role == "rows"]
        self.rows = rows[0] if rows and rows_are_lanes else None
        self.order = {a: i for i, a in enumerate(kernel.axes)}
        if self.rows is not None:
            self.order[self.rows] = -1
        self.workspace = Workspace()
        self.workspace_bytes = 0
        self.double = _is_double(kernel)
        self._definitions: dict[Value, Op] = {}
        self._users: dict[Value, list[Op]] = {}
        self._costs: dict[Value, int] = {}
        self._homes: dict[Value, _Home] = {}
        self._direct: dict[Value, _Direct] = {}
        self._scopes: list[_Scope] = [_Scope()]
        self._time = 0
        self._writes: dict[Tile, list[int]] = {}
        self._reads: dict[Tile, list[int]] = {}
        self._slots: dict[Tile, int] = {}
        self._loops: list[tuple[int, int]] = []
        self._nests: list[tuple[int, int]] = []
        self._wishes: list[tuple[Tile, Tile]] = []
        self._fold_names: dict[Fold, tuple[str, ...]] = {}
        self._packed: list[Tile] = []
        self._counter = 0
        self._index(kernel.body)

    def instance(self) -> str:
        """The text of one program instance."""
        self._open_instance()
        self._block(self.kernel.body)
        self._lives()
        for a, b in self._wishes:
            self.workspace.share(a, b)
        offsets, self.workspace_bytes = self.workspace.layout(self._nests)
        tiles = [
            f"      {t.ctype}* const {t.name} = ({t.ctype}*)(ws + {offsets[t]});"
            for t in self.workspace.tiles
        ]
        return "\n".join([*tiles, *self._text(self._scopes[0].lines)])

    # -- What is known before.

    def _index(self, body: Block) -> None:
        for op in walk(body):
            for value in results(op):
                self._definitions[value] = op
            for value in operands(op):
                self._users.setdefault(value, []).append(op)
            if isinstance(op, For | If):
                for value in op.body.yields:
                    self._users.setdefault(value, []).append(op)

    def _sorted(self, axes: Iterable[Axis]) -> tuple[Axis, ...]:
        return tuple(sorted(set(axes), key=lambda a: self.order[a]))

    def _axes_of(self, op: Elementwise) -> tuple[Axis, ...]:
        """The axes an operation steps over, outermost first."""
        if self.rows is not None and self._moves_rows(op):
            return (self.rows,)  # the columns are its own business
        match op:
            case Fold(_, _, x, axis):
                if axis is self.rows and x.axes != (axis,):
                    raise CompileError("A fold of tiles over rows has no C++ form.")
                return self._sorted(x.axes)
            case Store(_, index, _, _):
                spans = [s.axis for s in index if isinstance(s, Span)]
                return self._sorted([*spans, *(a for v in operands(op) for a in v.axes)])
            case _:
                return self._sorted(op.result.axes)

    def _moves_rows(self, op: Op) -> bool:
        """Whether an array is read or written a vector of rows and all columns at a time (see `load_rows` in the preamble)."""
        if self.rows is None or not isinstance(op, Fetch | Store) or op.masks:
            return False
        value = op.result if isinstance(op, Fetch) else op.value
        spans = [s.axis for s in op.index if isinstance(s, Span)]
        return (
            len(spans) == 2
            and set(spans) == set(value.axes)
            and self.rows in spans
            and not any(isinstance(s, Gather) for s in op.index)
            and not any(isinstance(s, Point) and s.at is not None and s.at.axes for s in op.index)
        )

    def _cost(self, value: Value) -> int:
        """Operations to compute a value again from scalars, positions and products; large if it should be kept."""
        if value not in self._costs:
            self._costs[value] = self._new_cost(value)
        return self._costs[value]

    def _new_cost(self, value: Value) -> int:
        if not value.axes:
            return 0
        match self._definitions.get(value):
            case Constant() | Positions():
                return 0
            case Dot():
                return 1
            case Fetch() if len(value.axes) == 1:
                return 1  # it becomes a short tile, or is at hand already
            case Compute(_, op, args) if op in _CHEAP and value.dtype not in (
                DType.F16,
                DType.BF16,
            ):
                return 1 + sum(self._cost(a) for a in args)
            case _:
                return _KEEP

    def _is_cheap(self, value: Value) -> bool:
        return self._cost(value) <= _CHEAP_LIMIT

    # -- Text.

    def _line(self, text: str, scope: _Scope | None = None) -> None:
        scope = scope or self._scopes[-1]
        scope.lines.append("  " * (self._scopes.index(scope) + 3) + text)

    def _fresh(self, hint: str) -> str:
        self._counter += 1
        return f"{identifier(hint)}_{self._counter}"

    @contextmanager
    def _scope(
        self, head: str, axis: Axis | None = None, index: str = "", *, lane: bool = False
    ) -> Iterator[_Scope]:
        """An open C++ block; it stands where the enclosing scope's text ends when it closes."""
        inner = _Scope(axis=axis, index=index, lane=lane)
        self._scopes.append(inner)
        yield inner
        self._scopes.pop()
        self._line(head + "{")
        self._scopes[-1].lines.append(inner)
        self._line("}")

    def _text(self, lines: list[_Line]) -> Iterator[str]:
        for line in lines:
            match line:
                case _Copy(pad, target, source):
                    if self.workspace.place_of(target) is not self.workspace.place_of(source):
                        yield f"{pad}copy({target.name}, {source.name}, {target.elements});"
                case _Scope():
                    yield from self._text(line.lines)
                case _:
                    yield line

    # -- Lives of tiles.

    def _tick(self) -> int:
        self._time += 1
        return self._time

    def _lives(self) -> None:
        """Turn what was written and read when into spans, lengthened over loops that come back to a read."""
        for tile in self.workspace.tiles:
            writes = sorted(self._writes.get(tile, [0]))
            reads = self._reads.get(tile, [])
            if tile in self._slots:
                start, back = writes[0], writes[-1]
                head = self._slots[tile]
                inside = [self._last(head, t) for t in reads if t < back]
                after = [self._last(head, t) for t in reads if t >= back]
                # A body that replaces the value unread may still not run: what it started with lasts until its head.
                tile.spans.append((start, max(inside, default=head)))
                tile.spans.append((back, max(after, default=back + 1)))
                continue
            last = max((self._last(writes[0], t) for t in reads), default=writes[0])
            tile.spans.append((writes[0], max(last, writes[-1])))

    def _last(self, born: int, read: int) -> int:
        """When a value born at one step and read at another is needed no more."""
        for start, end in self._loops:
            if start <= read <= end and not start <= born <= end:
                read = max(read, end)
        return read

    def _wrote(self, tile: Tile) -> None:
        self._writes.setdefault(tile, []).append(self._tick())

    def _read(self, tile: Tile) -> None:
        self._reads.setdefault(tile, []).append(self._tick())

    # -- The instance's own scalars.

    def _open_instance(self) -> None:
        tiled: str | None = None
        rest = "instance"
        for i in reversed(range(len(self.kernel.grid))):
            dim = self.kernel.grid[i]
            position = f"{rest} % count_{i}" if i else rest
            if dim.descending:
                position = f"count_{i} - 1 - {position}"
            name = self._define(dim.index, f"i32({position})")
            if dim.dim is None:
                tiled = name
            if i:
                outer = self._fresh("rest")
                self._line(f"const i64 {outer} = {rest} / count_{i};")
                rest = outer
        for axis in self.kernel.axes:
            match axis.role:
                case "rows":
                    limit = _remaining(axis, tiled)
                case "whole":
                    limit = _remaining(axis, None)
                case _:
                    limit = str(axis.block)
            self._line(f"const i64 {_reach(axis)} = {limit};")

    def _define(self, value: Value, text: str) -> str:
        """A variable for a scalar."""
        name = self._fresh(value.name)
        self._line(f"const {compute_type(value.dtype)} {name} = {text};")
        self._scopes[-1].names[value] = name
        return name

    # -- Blocks.

    def _block(self, block: Block) -> None:
        """Emit operations, elementwise ones gathered into runs that end where a result is needed."""
        run: list[Elementwise] = []
        made: set[Value] = set()
        for op in block.ops:
            if not made.isdisjoint(_needs(op)) and not (
                isinstance(op, Compute | Fetch | Fold | Store) and self._axes_of(op)
            ):
                self._run(run)
                run, made = [], set()
            match op:
                case For():
                    self._for(op)
                case If():
                    self._if(op)
                case Dot():
                    self._dot(op)
                case SizeOf(result, size):
                    self._define(result, f"i32(size_{identifier(size.name)})")
                case Constant() | Positions():
                    pass
                case Fetch() if self._reads_in_place(op):
                    self._fetch_in_place(op)
                case _ if self._axes_of(op):
                    run.append(op)
                    made.update(results(op))
                case _:
                    self._statement(op)
        self._run(run)

    def _run(self, ops: Sequence[Elementwise]) -> None:
        """A run of elementwise operations as loop nests."""
        if not ops:
            return
        tree = cpp_tree.fuse(ops, self._axes_of)
        group = set(ops)
        silent: set[Op] = set()
        for op in ops:
            for value in results(op):
                if self._plan(op, value, tree, group):
                    silent.add(op)
        for item in _pruned(tree.items, silent):
            start = self._tick()
            self._item(item)
            self._nests.append((start, self._tick()))

    def _plan(
        self, op: Elementwise, value: Value, tree: cpp_tree.Tree, group: set[Elementwise]
    ) -> bool:
        """Decide where a value lives. Returns whether its operation has no place of its own: it is repeated where needed."""
        if self._is_silent(op):
            return True
        if not value.axes:
            return False
        users = self._readers(value)
        moved = any(isinstance(u, Dot | For | If) for u in users)
        path = tree.paths[op]
        buffered = isinstance(op, Fetch) and self._moves_rows(op)
        if isinstance(op, Fold):
            at = next(i for i, nest in enumerate(path) if nest.axis == op.axis)
            buffered = at < len(path) - 1
            path = path[:at]
        if moved or any(u not in group for u in users):
            self._house(value, ())
            return False
        common = path
        for user in users:
            common = _prefix(common, tree.paths[user])
        if buffered or len(common) < len(path):
            self._house(value, tuple(n.axis for n in common))
        return False

    def _is_silent(self, op: Op) -> bool:
        """Whether an operation is repeated wherever its result is read."""
        if not isinstance(op, Compute) or not op.result.axes or not self._is_cheap(op.result):
            return False
        users = self._users.get(op.result, [])
        return not any(isinstance(u, Dot | For | If) or self._moves_rows(u) for u in users)

    def _readers(self, value: Value) -> list[Op]:
        """Operations that read a value where they stand, through others that are repeated there."""
        found: dict[int, Op] = {}
        for user in self._users.get(value, []):
            if isinstance(user, Compute) and self._is_silent(user):
                found.update((id(u), u) for u in self._readers(user.result))
            else:
                found[id(user)] = user
        return list(found.values())

    def _house(self, value: Value, stepped: tuple[Axis, ...]) -> _Home:
        """Give a value a tile over its axes but those that an enclosing nest steps over."""
        home = self._new_home(value.name, value.dtype, value.axes, stepped)
        self._homes[value] = home
        return home

    def _new_home(
        self, hint: str, dtype: DType, axes: tuple[Axis, ...], stepped: tuple[Axis, ...] = ()
    ) -> _Home:
        over = tuple(a for a in self._sorted(axes) if a not in stepped)
        vectors = self.rows is not None and self.rows in axes
        shape = [_padded(a.block) if a is over[-1] or a is self.rows else a.block for a in over]
        elements = _PAD if vectors and self.rows not in over else 1
        if not over:
            elements = _PAD
        for n in shape:
            elements *= n
        layout = (over, vectors)
        tile = Tile(f"t_{self._fresh(hint)}", tile_type(dtype), elements, layout)
        return _Home(self.workspace.add(tile), over, vectors)

    # -- Nests and statements.

    def _item(self, item: Item) -> None:
        if isinstance(item, Statement):
            self._statement(item.op)
        else:
            self._nest(item)

    def _nest(self, nest: Nest) -> None:
        in_rows = any(s.axis is self.rows and s.lane for s in self._scopes)
        leaf = not any(isinstance(i, Nest) for i in nest.items)
        lane = nest.axis is self.rows or (not in_rows and leaf)
        for fold in nest.folds:
            self._open_fold(fold, nest, lane=lane)
        index, reach = self._fresh("i"), _reach(nest.axis)
        step = f"{index} += W" if lane else f"{index}++"
        with self._scope(
            f"for (i64 {index} = 0; {index} < {reach}; {step}) ", nest.axis, index, lane=lane
        ):
            for item in nest.items:
                self._item(item)
        for fold in nest.folds:
            self._close_fold(fold, lane=lane)

    def _statement(self, op: Op) -> None:
        match op:
            case Compute(result):
                self._set(result, self._compute_text(op))
            case Fetch() | Store() if self._moves_rows(op):
                self._move_rows(op)
            case Fetch(result):
                self._set(result, self._fetch(op))
            case Store():
                self._store(op)
            case Fold():
                self._fold_step(op)
            case Constant() | Positions():
                if op.result in self._homes:
                    self._set(op.result, self._ref(op.result))
            case _:
                raise CompileError(f"No C++ for {type(op).__name__} here.")

    def _set(self, value: Value, text: str) -> None:
        """A variable for a value in the current scope, and its tile if it has one."""
        name = self._fresh(value.name)
        self._line(f"const {self._type(value)} {name} = {text};")
        self._scopes[-1].names[value] = name
        if value in self._homes:
            self._save(self._homes[value], value.dtype, name)

    def _save(self, home: _Home, dtype: DType, name: str) -> None:
        at, vector = self._place(home)
        if vector:
            self._line(f"tile_store({at}, {name});")
        elif dtype is DType.BOOL:
            self._line(f"*({at}) = -i32({name});")
        else:
            self._line(f"*({at}) = {name};")
        self._wrote(home.tile)

    def _lane(self) -> _Scope | None:
        return next((s for s in self._scopes if s.lane), None)

    def _is_vector(self, value: Value) -> bool:
        """Whether the value is a vector in the current scope."""
        lane = self._lane()
        return lane is not None and lane.axis in value.axes

    def _type(self, value: Value) -> str:
        return vector_type(value.dtype) if self._is_vector(value) else compute_type(value.dtype)

    def _step_of(self, axis: Axis) -> str:
        """The current position along an axis (of lane 0)."""
        for scope in reversed(self._scopes):
            if scope.axis == axis:
                return scope.index
        raise CompileError(f"Axis '{axis.name}' is not stepped over here.")

    def _place(self, home: _Home) -> tuple[str, bool]:
        """(address in the home's tile at the current position, whether a vector is there)."""
        lane = self._lane()
        terms: list[str] = []
        if home.vectors:
            others = [a for a in home.axes if a is not self.rows]
            for i, axis in enumerate(others):
                scale = _product(a.block for a in others[i + 1 :])
                terms.append(f"{self._step_of(axis)} * ({scale} * W)")
            if self.rows in home.axes:
                assert self.rows is not None
                terms.append(f"{self._step_of(self.rows)} * {_product(a.block for a in others)}")
            return " + ".join([home.tile.name, *terms]), True
        for axis, scale in _row_major(home.axes).items():
            terms.append(f"{self._step_of(axis)} * {scale}" if scale != 1 else self._step_of(axis))
        vector = lane is not None and lane.axis in home.axes
        if vector and lane is not None and lane.axis != home.axes[-1]:
            raise CompileError("A tile is read along an axis that is not its last.")
        return " + ".join([home.tile.name, *terms]), vector

    def _scope_of(self, value: Value) -> _Scope:
        """The outermost open scope in which all the value's axes are stepped over."""
        best = 0
        for i, scope in enumerate(self._scopes):
            if scope.axis is None or scope.axis in value.axes:
                best = i
        return self._scopes[best]

    def _ref(self, value: Value) -> str:
        """The value in the current scope: a scalar, or a vector if it varies along the lanes."""
        for scope in reversed(self._scopes):
            if value in scope.names:
                return scope.names[value]
        op = self._definitions.get(value)
        match op:
            case Constant(_, number):
                text = literal(number, value.dtype)
                return f"spread({text})" if self._is_vector(value) else text
            case Positions(_, axis):
                step = f"i32({self._step_of(axis)})"
                return f"(iota() + {step})" if self._is_vector(value) else step
        target = self._scope_of(value)
        keep = self._scopes
        self._scopes = keep[: keep.index(target) + 1]
        try:
            name = self._fresh(value.name)
            if value in self._homes:
                text = self._load_tile(value)
            elif isinstance(op, Compute):
                text = self._compute_text(op)
            else:
                raise CompileError(f"'{value.name}' is not available where it is used.")
            self._line(f"const {self._type(value)} {name} = {text};")
            target.names[value] = name
        finally:
            self._scopes = keep
        return name

    def _load_tile(self, value: Value) -> str:
        home = self._homes[value]
        at, vector = self._place(home)
        self._read(home.tile)
        if vector:
            return f"tile_load({at})"
        return f"(*({at}) != 0)" if value.dtype is DType.BOOL else f"*({at})"

    def _vector(self, value: Value) -> str:
        """The value as a vector, spread if it is the same in all lanes."""
        text = self._ref(value)
        return text if self._is_vector(value) else f"spread({text})"

    def _compute_text(self, op: Compute) -> str:
        read = self._vector if self._is_vector(op.result) else self._ref
        source = op.args[-1].dtype
        rounds = any(not isinstance(u, Dot | Store) for u in self._users.get(op.result, []))
        return compute(op.op, [read(a) for a in op.args], source, op.result.dtype, rounds=rounds)

    # -- Folds.

    def _open_fold(self, op: Fold, nest: Nest, *, lane: bool) -> None:
        """Accumulators before the nest over the folded axis: variables, or a tile where more axes are stepped over inside."""
        inner = self._axes_of(op)
        inner = inner[inner.index(op.axis) + 1 :]
        identity = fold_identity(op)
        if inner:
            home = self._homes[op.result]
            if op.monoid.is_position:
                raise CompileError(
                    "A position along an axis that is not the innermost has no C++ form."
                )
            number = f"-i32({identity})" if op.x.dtype is DType.BOOL else identity
            self._fill(home, number)
            return
        vector = lane or self._is_vector(op.x)
        ctype = vector_type(op.x.dtype) if vector else compute_type(op.x.dtype)
        first = f"spread({identity})" if vector else identity
        names = [self._fresh(op.result.name)]
        self._line(f"{ctype} {names[0]} = {first};")
        if op.monoid.is_position:
            names.append(self._fresh(f"{op.result.name}_at"))
            self._line(f"vi32 {names[1]}{{}};" if vector else f"i32 {names[1]} = 0;")
        self._fold_names[op] = tuple(names)

    def _fill(self, home: _Home, number: str) -> None:
        """Set what the home keeps at the current position of the nests around (their axes are not part of it, or are outermost)."""
        stepped = [a for a in home.axes if any(s.axis == a for s in self._scopes)]
        count = home.tile.elements
        at = home.tile.name
        if stepped:
            with_zero = [_Scope(axis=a, index="0") for a in home.axes if a not in stepped]
            keep = self._scopes
            self._scopes = keep + with_zero
            at, _ = self._place(home)
            self._scopes = keep
            count = 1
            for axis in home.axes:
                if axis not in stepped:
                    count *= (
                        _padded(axis.block)
                        if axis is home.axes[-1] and not home.vectors
                        else axis.block
                    )
            if home.vectors:
                self._line(f"fill({at}, {count} * W, {number});")
                self._wrote(home.tile)
                return
        self._line(f"fill({at}, {count}, {home.tile.ctype}({number}));")
        self._wrote(home.tile)

    def _fold_step(self, op: Fold) -> None:
        names = self._fold_names.get(op)
        lane = self._lane()
        function = fold_function(op)
        if names is None:
            home = self._homes[op.result]
            at, vector = self._place(home)
            x = self._vector(op.x) if vector else self._ref(op.x)
            if vector:
                self._line(f"tile_store({at}, {function}(tile_load({at}), {x}));")
            elif op.x.dtype is DType.BOOL:
                self._line(f"*({at}) = -i32({function}(*({at}) != 0, {x}));")
            else:
                self._line(f"*({at}) = {function}(*({at}), {x});")
            self._read(home.tile)
            return
        along = lane is not None and lane.axis == op.axis
        vector = along or self._is_vector(op.x)
        x = self._vector(op.x) if vector else self._ref(op.x)
        if along and lane is not None:
            tail = f"first({_reach(op.axis)} - {lane.index})"
            x_name = self._fresh("x")
            self._line(f"{vector_type(op.x.dtype)} {x_name} = {x};")
            self._line(
                f"if ({lane.index} + W > {_reach(op.axis)})"
                f" {x_name} = select({tail}, {x_name}, spread({fold_identity(op)}));"
            )
            x = x_name
        if not op.monoid.is_position:
            self._line(f"{names[0]} = {function}({names[0]}, {x});")
            return
        step = f"i32({self._step_of(op.axis)})"
        position = f"iota() + {step}" if along else f"spread({step})" if vector else step
        better = self._fresh("better")
        kind = op.monoid.name[-3:]
        self._line(f"const auto {better} = beats_{kind}({x}, {names[0]});")
        self._line(f"{names[1]} = select({better}, {position}, {names[1]});")
        self._line(f"{names[0]} = select({better}, {x}, {names[0]});")

    def _close_fold(self, op: Fold, *, lane: bool) -> None:
        names = self._fold_names.get(op)
        if names is None:
            return
        text = names[-1]
        if lane:
            kind = op.monoid.name[-3:]
            if op.monoid.is_position:
                text = f"winner_{kind}({names[0]}, {names[1]})"
            else:
                text = f"across_{fold_function(op)}({names[0]})"
        self._set(op.result, text)

    # -- Arrays.

    def _address(
        self, buffer: Buffer, index: tuple[Subscript, ...], masks: tuple[Value, ...]
    ) -> _Address:
        name = identifier(buffer.name)
        lane = self._lane()
        found = _Address(f"p_{name}")
        steps: list[str] = []
        for i, subscript in enumerate(index):
            stride, reach = f"s_{name}_{i}", extent(buffer.shape[i])
            match subscript:
                case Point(None):
                    pass
                case Point(at) | Gather(at) if at is not None and not self._is_vector(at):
                    position = f"i64({self._ref(at)})"
                    if isinstance(subscript, Gather) and subscript.checked:
                        position = self._checked(found, position, reach)
                    found.pointer += f" + {position} * {stride}"
                case Gather(at, checked):
                    found.gathers.append((self._ref(at), stride, reach if checked else None))
                case Span(axis, start, step):
                    base = f"i64({self._ref(start)})" if start is not None else "0"
                    at_step = self._step_of(axis)
                    scaled = at_step if step == 1 else f"{step} * {at_step}"
                    position = f"({base} + {scaled})"
                    if lane is None or lane.axis != axis:
                        if subscript.below or subscript.above:
                            position = self._checked(found, position, reach)
                        found.pointer += f" + {position} * {stride}"
                    elif step != 1 and (subscript.below or subscript.above):
                        at_name = self._fresh("at")
                        self._line(f"const vi32 {at_name} = iota() * {step} + i32({position});")
                        found.gathers.append((at_name, stride, reach))
                    else:
                        found.pointer += f" + {position} * {stride}"
                        steps.append(f"{step} * {stride}" if step != 1 else stride)
                        if subscript.below:
                            found.low.append(f"-{position}")
                        if subscript.above:
                            found.high.append(f"{reach} - {position}")
        for mask in masks:
            (found.masks if self._is_vector(mask) else found.conditions).append(self._ref(mask))
        found.step = " + ".join(steps) or "0"
        return found

    def _checked(self, found: _Address, position: str, reach: str) -> str:
        name = self._fresh("at")
        self._line(f"const i64 {name} = {position};")
        found.conditions.append(f"{name} >= 0 && {name} < {reach}")
        return name

    def _lanes_left(self, address: _Address) -> tuple[str, str]:
        """(low, high) of the lanes that exist."""
        lane = self._lane()
        assert lane is not None and lane.axis is not None
        high = f"{_reach(lane.axis)} - {lane.index}"
        for limit in address.high:
            high = f"least({high}, {limit})"
        low = "0"
        for limit in address.low:
            low = f"most({low}, {limit})"
        return low, high

    def _fetch(self, op: Fetch) -> str:
        ctype = MEMORY_TYPES[op.buffer.dtype]
        vector = self._is_vector(op.result)
        address = self._address(op.buffer, op.index, op.masks)
        kind = vector_type(op.result.dtype) if vector else compute_type(op.result.dtype)
        ok = " && ".join(f"({c})" for c in address.conditions)
        if not vector:
            text = f"{kind}(value_of(*({address.pointer})))"
            return f"{ok} ? {text} : {kind}(0)" if ok else text
        low, high = self._lanes_left(address)
        if address.gathers:
            return self._gather(op, address, kind, ok, low, high)
        mask = "".join(f" & {m}" for m in address.masks)
        parts = [address.pointer, address.step, low, high]
        if mask:
            parts.append(mask[3:])
        text = f"load<{ctype}>({', '.join(parts)})"
        return f"({ok}) ? {text} : {kind}{{}}" if ok else text

    def _gather(self, op: Fetch, address: _Address, kind: str, ok: str, low: str, high: str) -> str:
        name = self._fresh("gathered")
        self._line(f"{kind} {name}{{}};")
        with self._each_lane(address, ok, low, high) as pointer:
            self._line(f"{name}[w] = lane_of(*({pointer}));")
        return name

    @contextmanager
    def _each_lane(self, address: _Address, ok: str, low: str, high: str) -> Iterator[str]:
        """A loop over the lanes that exist, are in range and not masked; yields the address of lane w."""
        head = f"for (i64 w = {low}; w < W && w < {high}; w++) "
        with self._scope(f"if ({ok}) " if ok else ""), self._scope(head):
            pointer = f"{address.pointer} + w * ({address.step})"
            checks = [f"{m}[w]" for m in address.masks]
            for at, stride, reach in address.gathers:
                position = f"i64({at}[w])"
                pointer += f" + {position} * {stride}"
                if reach is not None:
                    checks += [f"{position} >= 0", f"{position} < {reach}"]
            if checks:
                self._line(f"if ({' && '.join(checks)})")
            yield pointer

    def _store(self, op: Store) -> None:
        ctype = MEMORY_TYPES[op.buffer.dtype]
        address = self._address(op.buffer, op.index, op.masks)
        ok = " && ".join(f"({c})" for c in address.conditions)
        if self._lane() is None:
            value = self._ref(op.value)
            guard = f"if ({ok}) " if ok else ""
            self._line(f"{guard}*({address.pointer}) = Narrow<{ctype}>::at({value});")
            return
        value = self._vector(op.value)
        low, high = self._lanes_left(address)
        if address.gathers:
            with self._each_lane(address, ok, low, high) as pointer:
                self._line(f"*({pointer}) = Narrow<{ctype}>::at({value}[w]);")
            return
        parts = [address.pointer, address.step, low, high, value]
        if address.masks:
            parts.append(" & ".join(address.masks))
        guard = f"if ({ok}) " if ok else ""
        self._line(f"{guard}store<{ctype}>({', '.join(parts)});")

    def _move_rows(self, op: Fetch | Store) -> None:
        """Move a vector of rows between an array and a tile."""
        lane = self._lane()
        assert lane is not None and lane.axis is not None
        name, ctype = identifier(op.buffer.name), MEMORY_TYPES[op.buffer.dtype]
        value = op.result if isinstance(op, Fetch) else op.value
        (columns,) = (a for a in value.axes if a is not self.rows)
        pointer, limits, strides = f"p_{name}", {}, {}
        for i, subscript in enumerate(op.index):
            stride, reach = f"s_{name}_{i}", extent(op.buffer.shape[i])
            match subscript:
                case Point(at) if at is not None:
                    pointer += f" + i64({self._ref(at)}) * {stride}"
                case Span(axis, start, step, below, above):
                    at_start = f"i64({self._ref(start)})" if start is not None else "0"
                    here = f"{at_start} + {step} * {lane.index}" if axis is self.rows else at_start
                    pointer += f" + ({here}) * {stride}"
                    strides[axis] = f"{step} * {stride}"
                    limits[axis] = self._limits(axis, f"({here})", step, reach, below, above)
        (lo, hi), (first, last) = limits[lane.axis], limits[columns]
        home = self._operand(value) if isinstance(op, Store) else self._homes[value]
        zero = _Scope(axis=columns, index="0")
        self._scopes.append(zero)
        tile, _ = self._place(home)
        self._scopes.pop()
        ranges = f"{strides[lane.axis]}, {strides[columns]}, {lo}, {hi}, {first}, {last}, {_reach(columns)}"
        if isinstance(op, Fetch):
            self._line(f"load_rows<{ctype}>({tile}, {pointer}, {ranges});")
            self._wrote(home.tile)
        else:
            self._line(f"store_rows<{ctype}>({pointer}, {ranges}, {tile});")
            self._read(home.tile)

    def _limits(
        self, axis: Axis, here: str, step: int, reach: str, below: bool, above: bool
    ) -> tuple[str, str]:
        """(first, last + 1) of the positions from `here` on that exist along an axis."""
        lane = self._lane()
        assert lane is not None
        low, high = "0", _reach(axis)
        if axis is self.rows:
            high = f"{high} - {lane.index}"
        if step < 0:
            below, above, here = above, below, f"({reach} - 1 - {here})"
        if below:
            low = f"ceil_div(-{here}, {abs(step)})" if abs(step) != 1 else f"-{here}"
        if above:
            high = f"least({high}, ceil_div({reach} - {here}, {abs(step)}))"
        return low, high

    # -- Products.

    def _roles(self, op: Dot) -> tuple[Value, Value, Axis | None, Axis]:
        """(element operand, vector operand, m, n): lanes of the result run along n."""
        axes = self._sorted(op.result.axes)
        if not axes or len(axes) > 2:
            raise CompileError("A product has one or two axes.")
        n = axes[0] if axes[0] is self.rows else axes[-1]
        m = next((a for a in axes if a is not n), None)
        element, vector = (op.a, op.b) if n in op.b.axes else (op.b, op.a)
        if set(vector.axes) != {n, op.axis} or set(element.axes) != {op.axis} | (
            {m} if m else set()
        ):
            raise CompileError("The operands of a product are a matrix each.")
        return element, vector, m, n

    def _reads_in_place(self, op: Fetch) -> bool:
        """Whether an array may be an operand of products without becoming a tile."""
        users = self._users.get(op.result, [])
        if not users or not all(isinstance(u, Dot) for u in users) or op.masks:
            return False
        if op.buffer.dtype not in (DType.F32, DType.F64) or any(
            isinstance(s, Gather) for s in op.index
        ):
            return False
        axes = [s.axis for s in op.index if isinstance(s, Span)]
        if len(axes) != len(set(axes)) or set(axes) != set(op.result.axes):
            return False
        return all(isinstance(u, Dot) and self._roles(u)[0] is op.result for u in users)

    def _fetch_in_place(self, op: Fetch) -> None:
        """Point at the array if the tile lies inside it, else copy what there is of it."""
        name = identifier(op.buffer.name)
        ctype = MEMORY_TYPES[op.buffer.dtype]
        pointer = f"p_{name}"
        checks: list[str] = []
        strides: dict[Axis, str] = {}
        home = self._house(op.result, ())
        rows = _row_major(home.axes)
        variable = self._fresh(op.result.name)
        for i, subscript in enumerate(op.index):
            stride, reach = f"s_{name}_{i}", extent(op.buffer.shape[i])
            match subscript:
                case Point(at) if at is not None:
                    pointer += f" + i64({self._ref(at)}) * {stride}"
                case Span(axis, start, step, below, above):
                    base = f"i64({self._ref(start)})" if start is not None else "0"
                    end = f"({base} + ({_reach(axis)} - 1) * {step})"
                    low, high = (base, end) if step > 0 else (end, base)
                    if below:
                        checks.append(f"{low} >= 0")
                    if above:
                        checks.append(f"{high} < {reach}")
                    pointer += f" + {base} * {stride}"
                    strides[axis] = f"{step} * {stride}" if step != 1 else stride
        self._line(f"const {ctype}* {variable} = {pointer};")
        names: dict[Axis, str] = {}
        for axis, text in strides.items():
            names[axis] = self._fresh(f"{op.result.name}_{axis.name}")
            self._line(f"i64 {names[axis]} = {text};")
        if checks:
            with self._scope(f"if (!({' && '.join(checks)})) "):
                self._over(home.axes, lambda: self._set(op.result, self._fetch(op)))
                self._line(f"{variable} = {home.tile.name};")
                for axis, text in names.items():
                    self._line(f"{text} = {rows[axis]};")
        else:
            self._wrote(home.tile)
        self._direct[op.result] = _Direct(variable, names)

    def _over(self, axes: tuple[Axis, ...], body: Callable[[], None]) -> None:
        """A loop nest over axes around what `body` emits."""
        start = self._tick()
        self._over_rest(axes, body)
        self._nests.append((start, self._tick()))

    def _over_rest(self, axes: tuple[Axis, ...], body: Callable[[], None]) -> None:
        if not axes:
            body()
            return
        in_rows = any(s.axis is self.rows and s.lane for s in self._scopes)
        lane = axes[0] is self.rows or (not in_rows and len(axes) == 1)
        index = self._fresh("i")
        step = f"{index} += W" if lane else f"{index}++"
        head = f"for (i64 {index} = 0; {index} < {_reach(axes[0])}; {step}) "
        with self._scope(head, axes[0], index, lane=lane):
            self._over_rest(axes[1:], body)

    def _operand(self, value: Value) -> _Home:
        """The tile of a product's operand, made now if the value is computed on demand."""
        if value not in self._homes:
            home = self._new_home(value.name, value.dtype, value.axes)
            self._over(home.axes, lambda: self._save_ref(home, value))
            self._homes[value] = home
        return self._homes[value]

    def _save_ref(self, home: _Home, value: Value) -> None:
        lane = self._lane()
        vector = lane is not None and (home.vectors or lane.axis in home.axes)
        self._save(home, value.dtype, self._vector(value) if vector else self._ref(value))

    def _dot(self, op: Dot) -> None:
        element, vector, m, n = self._roles(op)
        ctype = compute_type(op.result.dtype)
        for operand in (element, vector):
            if compute_type(operand.dtype) != ctype:
                raise CompileError("A product's operands and result are of one precision.")
        a, am, ak = self._elements(element, m, op.axis)
        b, bk, bj = self._vectors(vector, n, op.axis, ctype)
        home = self._house(op.result, ())
        add = False
        if op.acc is not None and not self._is_zero(op.acc):
            source = self._operand(op.acc)
            self._read(source.tile)
            self._scopes[-1].lines.append(
                _Copy("  " * (len(self._scopes) + 2), home.tile, source.tile)
            )
            self._wishes.append((home.tile, source.tile))
            add = True
        c, cm, cj = self._vectors_of(home, n, m)
        self._wrote(home.tile)
        rows = _reach(m) if m else "1"
        self._line(
            f"product<{ctype}>({rows}, ceil_div({_reach(n)}, W), {_reach(op.axis)}, {a}, {am}, {ak},"
            f" {b}, {bk}, {bj}, {c}, {cm}, {cj}, {'true' if add else 'false'});"
        )
        for operand in (element, vector):
            if operand in self._homes:
                self._read(self._homes[operand].tile)
        while self._packed:
            self._read(self._packed.pop())

    def _is_zero(self, value: Value) -> bool:
        op = self._definitions.get(value)
        return isinstance(op, Constant) and op.value == 0

    def _elements(self, value: Value, m: Axis | None, k: Axis) -> tuple[str, str, str]:
        """(address, stride along m, stride along k) of the operand that is read element by element."""
        if value in self._direct:
            direct = self._direct[value]
            return direct.pointer, direct.strides[m] if m else "0", direct.strides[k]
        home = self._operand(value)
        if home.vectors:
            raise CompileError("An operand with rows is read element by element.")
        strides = _row_major(home.axes)
        return home.tile.name, str(strides[m]) if m else "0", str(strides[k])

    def _vectors(self, value: Value, n: Axis, k: Axis, ctype: str) -> tuple[str, str, str]:
        """(address, stride along k, stride between vectors along n) of the operand that is read in vectors."""
        home = self._operand(value)
        if home.vectors or home.axes[-1] is n:
            return self._vectors_of(home, n, k)
        packed = Tile(
            f"t_{self._fresh('packed')}", ctype, _padded(n.block) * _padded(k.block), None
        )
        self.workspace.add(packed)
        self._wrote(packed)
        strides = _row_major(home.axes)
        self._read(home.tile)
        self._line(
            f"pack<{ctype}>({_reach(n)}, {_reach(k)}, {home.tile.name}, {strides[k]}, {strides[n]}, {packed.name});"
        )
        self._packed.append(packed)
        return packed.name, "W", f"{_reach(k)} * W"

    def _vectors_of(self, home: _Home, n: Axis, other: Axis | None) -> tuple[str, str, str]:
        if home.vectors:
            inner = other.block if other else 1
            return home.tile.name, "W", f"{inner} * W"
        strides = _row_major(home.axes)
        return home.tile.name, str(strides[other]) if other else "0", "W"

    # -- Loops.

    def _for(self, op: For) -> None:
        variables = self._open_slots(op.slots, f"loop {op.index.name}")
        lo, hi = self._ref(op.lo), self._ref(op.hi)
        index = self._fresh(op.index.name)
        start = self._tick()
        with self._scope(f"for (i32 {index} = {lo}; {index} < {hi}; {index}++) "):
            self._scopes[-1].names[op.index] = index
            if op.axis is not None:
                reach = _remaining(op.axis, index)
                if op.base is not None and op.end is not None:
                    at = f"({self._ref(op.base)} + {index} * {op.axis.block})"
                    reach = f"least({op.axis.block}, {self._ref(op.end)} - {at})"
                self._line(f"const i64 {_reach(op.axis)} = {reach};")
            self._body(op.slots, op.body, variables)
        self._loops.append((start, self._tick()))
        self._close_slots(op.slots, variables)

    def _if(self, op: If) -> None:
        variables = self._open_slots(op.slots, "if")
        condition = self._ref(op.condition)
        with self._scope(f"if ({condition}) "):
            self._body(op.slots, op.body, variables)
        self._close_slots(op.slots, variables)

    def _open_slots(self, slots: tuple[Slot, ...], hint: str) -> dict[Slot, str]:
        """Variables of scalar slots and tiles of the others, set to what they start with."""
        variables: dict[Slot, str] = {}
        for slot in slots:
            if not slot.inside.axes:
                name = self._fresh(slot.name)
                self._line(f"{compute_type(slot.inside.dtype)} {name} = {self._ref(slot.init)};")
                variables[slot] = name
                continue
            home = self._new_home(slot.name, slot.inside.dtype, slot.inside.axes)
            self._homes[slot.inside] = self._homes[slot.result] = home
            self._move(home, slot.init)
        return variables

    def _move(self, home: _Home, value: Value) -> None:
        """Set a slot's tile to a value."""
        op = self._definitions.get(value)
        source = self._homes.get(value)
        if isinstance(op, Constant):
            number = literal(op.value, value.dtype)
            self._fill(home, f"-i32({number})" if value.dtype is DType.BOOL else number)
        elif source is not None and source.tile.layout == home.tile.layout:
            self._read(source.tile)
            self._scopes[-1].lines.append(
                _Copy("  " * (len(self._scopes) + 2), home.tile, source.tile)
            )
            self._writes.setdefault(home.tile, []).append(self._time)
            self._wishes.append((home.tile, source.tile))
        else:
            self._over(home.axes, lambda: self._save_ref(home, value))

    def _body(self, slots: tuple[Slot, ...], body: Block, variables: dict[Slot, str]) -> None:
        head = self._tick()
        for slot in slots:
            if slot in variables:
                self._define(slot.inside, variables[slot])
            else:
                self._slots[self._homes[slot.inside].tile] = head
        self._block(body)
        pairs = list(zip(slots, body.yields, strict=True))
        insides = {s.inside for s in slots}
        staged: dict[Value, _Home] = {}
        scalars: list[tuple[str, str]] = []
        for slot, value in pairs:
            if slot in variables:
                scalars.append((variables[slot], self._ref(value)))
            elif value in insides and value is not slot.inside:
                staged[value] = self._new_home(value.name, value.dtype, value.axes)
                self._move(staged[value], value)
        for target, text in scalars:
            self._line(f"{target} = {text};")
        for slot, value in pairs:
            if slot in variables:
                continue
            home = self._homes[slot.inside]
            if value is slot.inside:
                self._wrote(home.tile)
            elif value in staged:
                self._scopes[-1].lines.append(
                    _Copy("  " * (len(self._scopes) + 2), home.tile, staged[value].tile)
                )
                self._read(staged[value].tile)
                self._wrote(home.tile)
            else:
                self._move(home, value)

    def _close_slots(self, slots: tuple[Slot, ...], variables: dict[Slot, str]) -> None:
        for slot in slots:
            if slot in variables:
                self._define(slot.result, variables[slot])


def _is_double(kernel: Kernel) -> bool:
    """Whether vectors should be sized for doubles: the products are, or there are none and some tile is."""
    values = [v for op in walk(kernel.body) for v in results(op)]
    products = {op.result.dtype for op in walk(kernel.body) if isinstance(op, Dot)}
    if products:
        return DType.F64 in products
    return any(v.axes and v.dtype is DType.F64 for v in values)


def _needs(op: Op) -> set[Value]:
    """Values an operation reads, in nested blocks too."""
    found = set(operands(op))
    if isinstance(op, For | If):
        found.update(op.body.yields)
        for inner in walk(op.body):
            found.update(operands(inner))
            if isinstance(inner, For | If):
                found.update(inner.body.yields)
    return found


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


def _product(numbers: Iterable[int]) -> int:
    total = 1
    for n in numbers:
        total *= n
    return total


def _padded(n: int) -> int:
    return (n + _PAD - 1) // _PAD * _PAD


def _row_major(axes: tuple[Axis, ...]) -> dict[Axis, int]:
    """Strides of a tile whose last axis is contiguous and padded to whole vectors."""
    strides: dict[Axis, int] = {}
    scale = 1
    for axis in reversed(axes):
        strides[axis] = scale
        scale *= _padded(axis.block) if axis is axes[-1] else axis.block
    return strides


def _reach(axis: Axis) -> str:
    """The variable that holds how many positions of a tile exist."""
    return f"n_{identifier(axis.name)}"


def _remaining(axis: Axis, tile: str | None) -> str:
    """How many positions the tile of that number has."""
    total = " * ".join(extent(d.extent) for d in axis.dims) or "1ll"
    if tile is None:
        return f"least({axis.block}, {total})"
    return f"most(0, least({axis.block}, {total} - i64({tile}) * {axis.block}))"
