"""Matrix products: which operand is read element by element and which in vectors, and where each of them lies."""

from __future__ import annotations

from dataclasses import dataclass

from flashlight.codegen.blocks import (
    Axis,
    Constant,
    Dot,
    Fetch,
    Gather,
    Point,
    Span,
    Value,
)
from flashlight.codegen.cpp_arrays import Arrays
from flashlight.codegen.cpp_core import Core, Home, padded, reach_of, row_major
from flashlight.codegen.cpp_memory import Tile
from flashlight.codegen.cpp_ops import (
    MEMORY_TYPES,
    compute_type,
    extent,
    identifier,
)
from flashlight.errors import CompileError
from flashlight.ir.dtypes import DType


@dataclass(frozen=True)
class _Direct:
    """An operand of a product that may be read where it lies: variables with its address and its stride along each axis."""

    pointer: str
    strides: dict[Axis, str]


class Products:
    """Emits products, and operands that are read where they lie in an array."""

    def __init__(self, core: Core, arrays: Arrays) -> None:
        self.core = core
        self.uses = core.uses
        self.arrays = arrays
        self._direct: dict[Value, _Direct] = {}
        self._packed: list[Tile] = []

    def _roles(self, op: Dot) -> tuple[Value, Value, Axis | None, Axis]:
        """(element operand, vector operand, m, n): lanes of the result run along n."""
        axes = self.uses.sorted(op.result.axes)
        if not axes or len(axes) > 2:
            raise CompileError("A product has one or two axes.")
        n = axes[0] if axes[0] is self.uses.rows else axes[-1]
        m = next((a for a in axes if a is not n), None)
        element, vector = (op.a, op.b) if n in op.b.axes else (op.b, op.a)
        if set(vector.axes) != {n, op.axis} or set(element.axes) != {op.axis} | (
            {m} if m else set()
        ):
            raise CompileError("The operands of a product are a matrix each.")
        return element, vector, m, n

    def reads_in_place(self, op: Fetch) -> bool:
        """Whether an array may be an operand of products without becoming a tile."""
        users = self.uses.users.get(op.result, [])
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

    def fetch_in_place(self, op: Fetch) -> None:
        """Point at the array if the tile lies inside it, else copy what there is of it."""
        name = identifier(op.buffer.name)
        ctype = MEMORY_TYPES[op.buffer.dtype]
        pointer = f"p_{name}"
        checks: list[str] = []
        strides: dict[Axis, str] = {}
        home = self.core.house(op.result, ())
        rows = row_major(home.axes)
        variable = self.core.fresh(op.result.name)
        for i, subscript in enumerate(op.index):
            stride, reach = f"s_{name}_{i}", extent(op.buffer.shape[i])
            match subscript:
                case Point(at) if at is not None:
                    pointer += f" + i64({self.core.ref(at)}) * {stride}"
                case Span(axis, start, step, below, above):
                    base = f"i64({self.core.ref(start)})" if start is not None else "0"
                    end = f"({base} + ({reach_of(axis)} - 1) * {step})"
                    low, high = (base, end) if step > 0 else (end, base)
                    if below:
                        checks.append(f"{low} >= 0")
                    if above:
                        checks.append(f"{high} < {reach}")
                    pointer += f" + {base} * {stride}"
                    strides[axis] = f"{step} * {stride}" if step != 1 else stride
        self.core.line(f"const {ctype}* {variable} = {pointer};")
        names: dict[Axis, str] = {}
        for axis, text in strides.items():
            names[axis] = self.core.fresh(f"{op.result.name}_{axis.name}")
            self.core.line(f"i64 {names[axis]} = {text};")
        if checks:
            with self.core.scope(f"if (!({' && '.join(checks)})) "):
                self.core.over(home.axes, lambda: self.core.set(op.result, self.arrays.fetch(op)))
                self.core.line(f"{variable} = {home.tile.name};")
                for axis, text in names.items():
                    self.core.line(f"{text} = {rows[axis]};")
        else:
            self.core.workspace.wrote(home.tile)
        self._direct[op.result] = _Direct(variable, names)

    def product(self, op: Dot) -> None:
        """Emit a matrix product."""
        element, vector, m, n = self._roles(op)
        ctype = compute_type(op.result.dtype)
        for operand in (element, vector):
            if compute_type(operand.dtype) != ctype:
                raise CompileError("A product's operands and result are of one precision.")
        a, am, ak = self._elements(element, m, op.axis)
        b, bk, bj = self._vectors(vector, n, op.axis, ctype)
        home = self.core.house(op.result, ())
        add = False
        if op.acc is not None and not self._is_zero(op.acc):
            self.core.move(home, self.core.operand(op.acc))
            add = True
        c, cm, cj = self._vectors_of(home, n, m)
        self.core.workspace.wrote(home.tile)
        rows = reach_of(m) if m else "1"
        self.core.line(
            f"product<{ctype}>({rows}, ceil_div({reach_of(n)}, W), {reach_of(op.axis)}, {a}, {am}, {ak},"
            f" {b}, {bk}, {bj}, {c}, {cm}, {cj}, {'true' if add else 'false'});"
        )
        for operand in (element, vector):
            if operand in self.core.homes:
                self.core.workspace.read(self.core.homes[operand].tile)
        while self._packed:
            self.core.workspace.read(self._packed.pop())

    def _is_zero(self, value: Value) -> bool:
        op = self.uses.definitions.get(value)
        return isinstance(op, Constant) and op.value == 0

    def _elements(self, value: Value, m: Axis | None, k: Axis) -> tuple[str, str, str]:
        """(address, stride along m, stride along k) of the operand that is read element by element."""
        if value in self._direct:
            direct = self._direct[value]
            return direct.pointer, direct.strides[m] if m else "0", direct.strides[k]
        home = self.core.operand(value)
        if home.vectors:
            raise CompileError("An operand with rows is read element by element.")
        strides = row_major(home.axes)
        return home.tile.name, str(strides[m]) if m else "0", str(strides[k])

    def _vectors(self, value: Value, n: Axis, k: Axis, ctype: str) -> tuple[str, str, str]:
        """(address, stride along k, stride between vectors along n) of the operand that is read in vectors."""
        home = self.core.operand(value)
        if home.vectors or home.axes[-1] is n:
            return self._vectors_of(home, n, k)
        packed = Tile(
            f"t_{self.core.fresh('packed')}", ctype, padded(n.block) * padded(k.block), None
        )
        self.core.workspace.add(packed)
        self.core.workspace.wrote(packed)
        strides = row_major(home.axes)
        self.core.workspace.read(home.tile)
        self.core.line(
            f"pack<{ctype}>({reach_of(n)}, {reach_of(k)}, {home.tile.name}, {strides[k]}, {strides[n]}, {packed.name});"
        )
        self._packed.append(packed)
        return packed.name, "W", f"{reach_of(k)} * W"

    def _vectors_of(self, home: Home, n: Axis, other: Axis | None) -> tuple[str, str, str]:
        if home.vectors:
            inner = other.block if other else 1
            return home.tile.name, "W", f"{inner} * W"
        strides = row_major(home.axes)
        return home.tile.name, str(strides[other]) if other else "0", "W"
