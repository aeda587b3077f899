"""Text and values: open C++ blocks, variables and tiles, and how a value is read where the text stands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from flashlight.codegen.blocks import (
    Axis,
    Compute,
    Constant,
    Dot,
    Positions,
    Store,
    Value,
)
from flashlight.codegen.cpp_memory import Tile, Workspace
from flashlight.codegen.cpp_ops import (
    compute,
    compute_type,
    extent,
    identifier,
    literal,
    tile_type,
    vector_type,
)
from flashlight.codegen.cpp_uses import Uses
from flashlight.errors import CompileError
from flashlight.ir.dtypes import DType

PAD = 16  # lanes of the widest vector: tiles are laid out alike for every width


@dataclass(frozen=True)
class Copy:
    """Move `source` into `target`, unless they share a place."""

    pad: str
    target: Tile
    source: Tile


@dataclass(eq=False)
class Scope:
    """An open C++ block, and the values that have a variable in it.

    Attributes:
        axis, index: if the block is a step along an axis, where it stands.
        lane: the step is a whole vector.
    """

    lines: list[Line] = field(default_factory=list)
    names: dict[object, str] = field(default_factory=dict)
    axis: Axis | None = None
    index: str = ""
    lane: bool = False


Line: TypeAlias = str | Copy | Scope


@dataclass(frozen=True)
class Home:
    """Where a value is stored.

    Attributes:
        axes: what the tile spans; the value's other axes are those of an enclosing nest, of which one step is kept.
        vectors: elements are vectors along rows.
    """

    tile: Tile
    axes: tuple[Axis, ...]
    vectors: bool


class Core:
    """The text under construction, and where values are.

    Attributes:
        uses: what is known of the kernel's values.
        workspace: tiles.
        homes: the tile of each value that has one.
        scopes: open C++ blocks, outermost first.
    """

    def __init__(self, uses: Uses) -> None:
        self.uses = uses
        self.workspace = Workspace()
        self.homes: dict[Value, Home] = {}
        self.scopes: list[Scope] = [Scope()]
        self._counter = 0

    def line(self, text: str, scope: Scope | None = None) -> None:
        """Add a line to a scope, the innermost unless another is given."""
        scope = scope or self.scopes[-1]
        scope.lines.append("  " * (self.scopes.index(scope) + 3) + text)

    def fresh(self, hint: str) -> str:
        """An identifier like `hint` that no other thing has."""
        self._counter += 1
        return f"{identifier(hint)}_{self._counter}"

    @contextmanager
    def scope(
        self, head: str, axis: Axis | None = None, index: str = "", *, lane: bool = False
    ) -> Iterator[Scope]:
        """An open C++ block; it stands where the enclosing scope's text ends when it closes."""
        inner = Scope(axis=axis, index=index, lane=lane)
        self.scopes.append(inner)
        yield inner
        self.scopes.pop()
        self.line(head + "{")
        self.scopes[-1].lines.append(inner)
        self.line("}")

    def text(self, lines: list[Line]) -> Iterator[str]:
        """Lines in order; a copy between tiles that share a place is none."""
        for line in lines:
            match line:
                case Copy(pad, target, source):
                    if self.workspace.place_of(target) is not self.workspace.place_of(source):
                        yield f"{pad}copy({target.name}, {source.name}, {target.elements});"
                case Scope():
                    yield from self.text(line.lines)
                case _:
                    yield line

    def move(self, target: Home, source: Home) -> None:
        """Copy a tile into another of the same layout, unless they get one place."""
        if (target.axes, target.vectors) != (source.axes, source.vectors):
            raise CompileError("A tile is copied into one of other axes.")
        self.scopes[-1].lines.append(Copy("  " * (len(self.scopes) + 2), target.tile, source.tile))
        self.workspace.moved(target.tile, source.tile)

    def define(self, value: Value, text: str) -> str:
        """A variable for a scalar."""
        name = self.fresh(value.name)
        self.line(f"const {compute_type(value.dtype)} {name} = {text};")
        self.scopes[-1].names[value] = name
        return name

    def house(self, value: Value, stepped: tuple[Axis, ...]) -> Home:
        """Give a value a tile over its axes but those that an enclosing nest steps over."""
        home = self.new_home(value.name, value.dtype, value.axes, stepped)
        self.homes[value] = home
        return home

    def new_home(
        self, hint: str, dtype: DType, axes: tuple[Axis, ...], stepped: tuple[Axis, ...] = ()
    ) -> Home:
        """A new tile over axes, and how it is laid out."""
        over = tuple(a for a in self.uses.sorted(axes) if a not in stepped)
        vectors = self.uses.rows is not None and self.uses.rows in axes
        shape = [padded(a.block) if a is over[-1] or a is self.uses.rows else a.block for a in over]
        elements = PAD if vectors and self.uses.rows not in over else 1
        if not over:
            elements = PAD
        for n in shape:
            elements *= n
        layout = (over, vectors)
        tile = Tile(f"t_{self.fresh(hint)}", tile_type(dtype), elements, layout)
        return Home(self.workspace.add(tile), over, vectors)

    def set(self, value: Value, text: str) -> None:
        """A variable for a value in the current scope, and its tile if it has one."""
        name = self.fresh(value.name)
        self.line(f"const {self.type_of(value)} {name} = {text};")
        self.scopes[-1].names[value] = name
        if value in self.homes:
            self.save(self.homes[value], value.dtype, name)

    def save(self, home: Home, dtype: DType, name: str) -> None:
        """Store a variable in a tile at the current position."""
        at, vector = self.place(home)
        if vector:
            self.line(f"tile_store({at}, {name});")
        elif dtype is DType.BOOL:
            self.line(f"*({at}) = -i32({name});")
        else:
            self.line(f"*({at}) = {name};")
        self.workspace.wrote(home.tile)

    def lane(self) -> Scope | None:
        """The scope that steps a whole vector at a time, if one is open."""
        return next((s for s in self.scopes if s.lane), None)

    def is_vector(self, value: Value) -> bool:
        """Whether the value is a vector in the current scope."""
        lane = self.lane()
        return lane is not None and lane.axis in value.axes

    def type_of(self, value: Value) -> str:
        """The C++ type of a value in the current scope."""
        return vector_type(value.dtype) if self.is_vector(value) else compute_type(value.dtype)

    def step_of(self, axis: Axis) -> str:
        """The current position along an axis (of lane 0)."""
        for scope in reversed(self.scopes):
            if scope.axis == axis:
                return scope.index
        raise CompileError(f"Axis '{axis.name}' is not stepped over here.")

    def place(self, home: Home) -> tuple[str, bool]:
        """(address in the home's tile at the current position, whether a vector is there)."""
        lane = self.lane()
        terms: list[str] = []
        if home.vectors:
            others = [a for a in home.axes if a is not self.uses.rows]
            for i, axis in enumerate(others):
                scale = product_of(a.block for a in others[i + 1 :])
                terms.append(f"{self.step_of(axis)} * ({scale} * W)")
            if self.uses.rows in home.axes:
                assert self.uses.rows is not None
                terms.append(
                    f"{self.step_of(self.uses.rows)} * {product_of(a.block for a in others)}"
                )
            return " + ".join([home.tile.name, *terms]), True
        for axis, scale in row_major(home.axes).items():
            terms.append(f"{self.step_of(axis)} * {scale}" if scale != 1 else self.step_of(axis))
        vector = lane is not None and lane.axis in home.axes
        if vector and lane is not None and lane.axis != home.axes[-1]:
            raise CompileError("A tile is read along an axis that is not its last.")
        return " + ".join([home.tile.name, *terms]), vector

    def _scope_of(self, value: Value) -> Scope:
        """The outermost open scope in which all the value's axes are stepped over."""
        best = 0
        for i, scope in enumerate(self.scopes):
            if scope.axis is None or scope.axis in value.axes:
                best = i
        return self.scopes[best]

    def ref(self, value: Value) -> str:
        """The value in the current scope: a scalar, or a vector if it varies along the lanes."""
        for scope in reversed(self.scopes):
            if value in scope.names:
                return scope.names[value]
        op = self.uses.definitions.get(value)
        match op:
            case Constant(_, number):
                text = literal(number, value.dtype)
                return f"spread({text})" if self.is_vector(value) else text
            case Positions(_, axis):
                step = f"i32({self.step_of(axis)})"
                return f"(iota() + {step})" if self.is_vector(value) else step
        target = self._scope_of(value)
        keep = self.scopes
        self.scopes = keep[: keep.index(target) + 1]
        try:
            name = self.fresh(value.name)
            if value in self.homes:
                text = self._load_tile(value)
            elif isinstance(op, Compute):
                text = self.compute_text(op)
            else:
                raise CompileError(f"'{value.name}' is not available where it is used.")
            self.line(f"const {self.type_of(value)} {name} = {text};")
            target.names[value] = name
        finally:
            self.scopes = keep
        return name

    def _load_tile(self, value: Value) -> str:
        home = self.homes[value]
        at, vector = self.place(home)
        self.workspace.read(home.tile)
        if vector:
            return f"tile_load({at})"
        return f"(*({at}) != 0)" if value.dtype is DType.BOOL else f"*({at})"

    def vector(self, value: Value) -> str:
        """The value as a vector, spread if it is the same in all lanes."""
        text = self.ref(value)
        return text if self.is_vector(value) else f"spread({text})"

    def compute_text(self, op: Compute) -> str:
        """An operation spelled on operands as they are in the current scope."""
        read = self.vector if self.is_vector(op.result) else self.ref
        source = op.args[-1].dtype
        rounds = any(not isinstance(u, Dot | Store) for u in self.uses.users.get(op.result, []))
        return compute(op.op, [read(a) for a in op.args], source, op.result.dtype, rounds=rounds)

    def fill(self, home: Home, number: str) -> None:
        """Set what the home keeps at the current position of the nests around (their axes are not part of it, or are outermost)."""
        stepped = [a for a in home.axes if any(s.axis == a for s in self.scopes)]
        count = home.tile.elements
        at = home.tile.name
        if stepped:
            with_zero = [Scope(axis=a, index="0") for a in home.axes if a not in stepped]
            keep = self.scopes
            self.scopes = keep + with_zero
            at, _ = self.place(home)
            self.scopes = keep
            count = 1
            for axis in home.axes:
                if axis not in stepped:
                    count *= (
                        padded(axis.block)
                        if axis is home.axes[-1] and not home.vectors
                        else axis.block
                    )
            if home.vectors:
                self.line(f"fill({at}, {count} * W, {number});")
                self.workspace.wrote(home.tile)
                return
        self.line(f"fill({at}, {count}, {home.tile.ctype}({number}));")
        self.workspace.wrote(home.tile)

    def over(self, axes: tuple[Axis, ...], body: Callable[[], None]) -> None:
        """A loop nest over axes around what `body` emits."""
        start = self.workspace.tick()
        self._over_rest(axes, body)
        self.workspace.nests.append((start, self.workspace.tick()))

    def _over_rest(self, axes: tuple[Axis, ...], body: Callable[[], None]) -> None:
        if not axes:
            body()
            return
        in_rows = any(s.axis is self.uses.rows and s.lane for s in self.scopes)
        lane = axes[0] is self.uses.rows or (not in_rows and len(axes) == 1)
        index = self.fresh("i")
        step = f"{index} += W" if lane else f"{index}++"
        head = f"for (i64 {index} = 0; {index} < {reach_of(axes[0])}; {step}) "
        with self.scope(head, axes[0], index, lane=lane):
            self._over_rest(axes[1:], body)

    def operand(self, value: Value) -> Home:
        """The tile of a product's operand, made now if the value is computed on demand."""
        if value not in self.homes:
            home = self.new_home(value.name, value.dtype, value.axes)
            self.over(home.axes, lambda: self.save_ref(home, value))
            self.homes[value] = home
        return self.homes[value]

    def save_ref(self, home: Home, value: Value) -> None:
        """Store a value in a tile at the current position."""
        lane = self.lane()
        vector = lane is not None and (home.vectors or lane.axis in home.axes)
        self.save(home, value.dtype, self.vector(value) if vector else self.ref(value))


def product_of(numbers: Iterable[int]) -> int:
    """The product of some integers."""
    total = 1
    for n in numbers:
        total *= n
    return total


def padded(n: int) -> int:
    """A length rounded up to whole vectors, whatever their width."""
    return (n + PAD - 1) // PAD * PAD


def row_major(axes: tuple[Axis, ...]) -> dict[Axis, int]:
    """Strides of a tile whose last axis is contiguous and padded to whole vectors."""
    strides: dict[Axis, int] = {}
    scale = 1
    for axis in reversed(axes):
        strides[axis] = scale
        scale *= padded(axis.block) if axis is axes[-1] else axis.block
    return strides


def reach_of(axis: Axis) -> str:
    """The variable that holds how many positions of a tile exist."""
    return f"n_{identifier(axis.name)}"


def remaining(axis: Axis, tile: str | None) -> str:
    """How many positions the tile of that number has."""
    total = " * ".join(extent(d.extent) for d in axis.dims) or "1ll"
    if tile is None:
        return f"least({axis.block}, {total})"
    return f"most(0, least({axis.block}, {total} - i64({tile}) * {axis.block}))"
