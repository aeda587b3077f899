"""A region as a program: names that depend on the region only, inputs at its frontier, outputs in the layout eager gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import torch
import torch.fx

from flashlight.capture.borders import Region
from flashlight.capture.reading import readers
from flashlight.ir.exprs import Buffer, Dim, Expr, Index, Load, Size
from flashlight.ir.nests import Nest, Origin, Program
from flashlight.ir.visit import loads, rewrite, substitute, walk
from flashlight.lift.cells import Cell, indices, origin_of
from flashlight.lift.extents import Extent, expr_of, hint, is_one, is_same, product
from flashlight.lift.lift import Lifter
from flashlight.lift.values import Factors, Position, Value, fold
from flashlight.rewrite.simplify import simplify

Node = torch.fx.Node


@dataclass(frozen=True)
class Output:
    """A result of a region.

    Attributes:
        nodes: FX nodes that are it.
        shape: their shape.
        order: their axes from outermost to innermost in memory.
    """

    nodes: tuple[Node, ...]
    shape: tuple[Extent, ...]
    order: tuple[int, ...]


@dataclass(frozen=True)
class Emitted:
    """A region's program and what it is in the graph.

    Attributes:
        program: lifted, one nest for each op.
        inputs: an FX node for each input of the program.
        outputs: what each output of the program is.
    """

    program: Program
    inputs: tuple[Node, ...]
    outputs: tuple[Output, ...]


def emit(
    region: Region, lifter: Lifter, hints: Mapping[str, int], read: Set[str] = frozenset()
) -> Emitted:
    """The program of a region; `read`: names of cells that regions read and do not compute."""
    return _Emitter(region, lifter, hints, read).run()


def emit_nodes(nodes: Sequence[Node], lifter: Lifter, hints: Mapping[str, int]) -> Emitted:
    """A program that computes FX tensors from the graph's leaves, with everything on the way that has a rule."""
    emitter = _Emitter(Region(set(), set(), set(lifter.cells)), lifter, hints)
    return emitter.run_nodes(nodes)


@dataclass(frozen=True)
class _Place:
    """Where in the graph a root is taken from: its own tensor, or a copy of it into another layout."""

    node: Node
    value: Value
    order: tuple[int, ...]


class _Emitter:
    def __init__(
        self,
        region: Region,
        lifter: Lifter,
        hints: Mapping[str, int],
        read: Set[str] = frozenset(),
    ) -> None:
        self.region = region
        self.read = read
        self.lifter = lifter
        self.hints = hints
        self.inputs: dict[str, tuple[Buffer, Node]] = {}
        self.sizes: dict[Size, None] = {}
        self.names: dict[str, str] = {}
        self.nests: dict[str, Nest] = {}
        self.layouts: dict[str, tuple[int, ...]] = {}  # of results whose dims are reordered
        self._taken: set[str] = set()

    def run(self) -> Emitted:
        """Emit every root with what it needs."""
        places = {root.name: self._place(root) for root in self.region.roots}
        copies: list[tuple[Cell, _Place]] = []
        for root in self.region.roots:
            place = places[root.name]
            layout = self._layout(root, place)
            if layout is None:
                copies.append((root, place))
            else:
                self.layouts[root.name] = layout
        for cell in self._needed([root.name for root in self.region.roots]):
            self._nest(cell)
        outputs = []
        names = []
        for root in self.region.roots:
            place = places[root.name]
            moved = place.node not in root.tensors
            nodes = (place.node,) if moved else tuple(root.tensors)
            outputs.append(Output(nodes, place.value.shape, place.order))
            copied = any(root is r for r, _ in copies)
            names.append(self._copy(place) if copied else self.names[root.name])
        return self._emitted(names, outputs)

    def run_nodes(self, nodes: Sequence[Node]) -> Emitted:
        """Emit a copy of each FX tensor with what it needs."""
        places = []
        for node in nodes:
            value = self.lifter.values[node]
            assert isinstance(value, Value)
            places.append(_Place(node, value, tuple(range(len(value.shape)))))
        reads = [
            load.buffer.name
            for place in places
            for load in loads(place.value.at(self._copy_dims("o", place)[1]))
        ]
        for cell in self._needed([name for name in reads if name in self.lifter.cells]):
            self._nest(cell)
        names = tuple(self._copy(place) for place in places)
        outputs = tuple(Output((p.node,), p.value.shape, p.order) for p in places)
        return self._emitted(names, outputs)

    def _emitted(self, names: Sequence[str], outputs: Sequence[Output]) -> Emitted:
        program = Program(
            "region",
            tuple(self.sizes),
            tuple(b for b, _ in self.inputs.values()),
            tuple(self.nests.values()),
            tuple(names),
        )
        return Emitted(program, tuple(n for _, n in self.inputs.values()), tuple(outputs))

    def _needed(self, names: Sequence[str]) -> list[Cell]:
        """Members that some cells depend on, themselves included, in order of dependence."""
        cells = self.lifter.cells
        found: set[str] = set()
        work = list(names)
        while work:
            name = work.pop()
            if name not in found:
                found.add(name)
                work.extend(
                    e.buffer.name
                    for e in cells[name].loads()
                    if e.buffer.name in self.region.members
                )
        return [c for name, c in cells.items() if name in found]

    # -- Names

    def _name(self, stem: str) -> str:
        name, n = stem, 1
        while name in self._taken:
            n += 1
            name = f"{stem}{n}" if not stem[-1].isdigit() else f"{stem}_{n}"
        self._taken.add(name)
        return name

    def _dims(self, name: str, dims: tuple[Dim, ...], stem: str) -> tuple[Dim, ...]:
        return tuple(Dim(f"{name}_{stem}{i}", self._sized(d.extent)) for i, d in enumerate(dims))

    def _sized(self, expr: Expr) -> Expr:
        """Note the sizes of an expression."""
        for node in walk(expr):
            if isinstance(node, Size):
                self.sizes.setdefault(node)
        return expr

    # -- Nests

    def _nest(self, cell: Cell) -> None:
        name = self.names[cell.name] = self._name(_stem(cell.target))
        parallel = self._dims(name, cell.nest.parallel, "d")
        reduced = self._dims(name, cell.nest.reduced, "r")
        mapping: dict[Dim, Expr] = dict(
            zip(
                (*cell.nest.parallel, *cell.nest.reduced),
                indices((*parallel, *reduced)),
                strict=True,
            )
        )
        body = self._body(substitute(cell.nest.body, mapping))
        layout = self.layouts.get(cell.name)
        if layout is not None:
            parallel = tuple(parallel[i] for i in layout)
        origin = cell.nest.origin
        nest = Nest(name, parallel, reduced, cell.dtype, cell.nest.monoid, body, origin)
        self.nests[cell.name] = nest

    def _body(self, body: Expr) -> Expr:
        return self._sized(rewrite(body, lambda e: self._load(e) if isinstance(e, Load) else None))

    def _load(self, load: Load) -> Expr:
        name = load.buffer.name
        if name in self.nests:
            layout = self.layouts.get(name, tuple(range(len(load.index))))
            return Load(self.nests[name].buffer, tuple(load.index[i] for i in layout))
        if name in self.lifter.leaves:
            leaf = self.lifter.leaves[name]
            return Load(self._input(name, leaf.node, leaf.buffer), load.index)
        cell = self.lifter.cells[name]
        shape = tuple(expr_of(n) for n in cell.shape)
        buffer = self._input(name, cell.tensors[0], Buffer(name, shape, cell.dtype))
        return Load(buffer, _unfactored(load.index, cell.axes))

    def _input(self, name: str, node: Node, buffer: Buffer) -> Buffer:
        if name not in self.inputs:
            for extent in buffer.shape:
                self._sized(extent)
            renamed = Buffer(self._name(f"x{len(self.inputs)}"), buffer.shape, buffer.dtype)
            self.inputs[name] = renamed, node
        return self.inputs[name][0]

    # -- Outputs

    def _place(self, root: Cell) -> _Place:
        """Follow a root to the copy that puts it into the layout its reader wants, if that is all that happens to it."""
        node = root.tensors[0]
        value = self.lifter.values[node]
        assert isinstance(value, Value)
        best = _Place(node, value, self._memory_order(node))
        if len(root.tensors) > 1 or len(readers(root, self.lifter)) != 1:
            return best
        if root.name in self.read:
            return best  # views of the tensor itself, and not the copy, are what another region begins with
        while len(node.users) == 1:
            (user,) = node.users
            found = self.lifter.values.get(user)
            if user not in self.lifter.views or not isinstance(found, Value):
                break
            if not is_same(product(found.shape), product(root.shape)):
                break
            node = user
            if node.target is torch.ops.aten.clone.default:
                best = _Place(node, found, self._memory_order(node))
        return best

    def _memory_order(self, node: Node) -> tuple[int, ...]:
        """Axes by falling stride, where the tensor is dense."""
        tensor = node.meta["val"]
        rank = len(tensor.shape)
        sizes = [hint(self.lifter.sizes.of(s), self.hints) for s in tensor.shape]
        strides = [hint(self.lifter.sizes.of(s), self.hints) for s in tensor.stride()]
        order = sorted(range(rank), key=lambda i: (-strides[i], i))
        expected = 1
        for axis in reversed(order):
            if sizes[axis] == 1:
                continue
            if strides[axis] != expected:
                return tuple(range(rank))
            expected *= sizes[axis]
        moved = [a for a in order if sizes[a] != 1]
        return tuple(range(rank)) if moved == sorted(moved) else tuple(order)

    def _layout(self, root: Cell, place: _Place) -> tuple[int, ...] | None:
        """The order of the root's own dims in which it is what is wanted, or None if it must be copied."""
        _, wanted = self._copy_dims("o", place)
        body = place.value.at(wanted)
        if not isinstance(body, Load) or body.buffer is not root.buffer:
            return None
        dims = [d for position in (wanted[a] for a in place.order) for d, _ in position]
        where = {d: i for i, d in enumerate(dims)}
        if sorted(where.values()) != list(range(len(body.index))):
            return None
        if any(i not in where for i in body.index):
            return None
        inverse = {where[e]: axis for axis, e in enumerate(body.index)}
        if len(inverse) != len(body.index):
            return None
        return tuple(inverse[i] for i in range(len(body.index)))

    def _copy_dims(self, name: str, place: _Place) -> tuple[tuple[Dim, ...], tuple[Position, ...]]:
        """Dims of a copy in memory order, and a position for each axis of the FX tensor."""
        positions: dict[int, Position] = {}
        dims: list[Dim] = []
        for axis in place.order:
            digits = []
            for extent in place.value.factors[axis]:
                if is_one(extent):
                    continue
                dims.append(Dim(f"{name}_d{len(dims)}", expr_of(extent)))
                digits.append((Index(dims[-1]), extent))
            positions[axis] = tuple(digits)
        return tuple(dims), tuple(positions[a] for a in range(len(place.value.shape)))

    def _copy(self, place: _Place) -> str:
        name = self._name("copy")
        dims, positions = self._copy_dims(name, place)
        for dim in dims:
            self._sized(dim.extent)
        body = self._body(place.value.at(positions))
        self.nests[name] = Nest(
            name, dims, (), place.value.dtype, None, body, origin_of(place.node)
        )
        return name


def _unfactored(index: tuple[Expr, ...], axes: tuple[Factors, ...]) -> tuple[Expr, ...]:
    """An index over the dims of a nest as one over the axes of its FX tensor."""
    result: list[Expr] = []
    left = list(index)
    for factors in axes:
        digits = tuple((left.pop(0), extent) for extent in factors)
        result.append(simplify(fold(digits)))
    return tuple(result)


def _stem(target: str) -> str:
    """A name for what an op computes."""
    name = target.split(".")[1] if "." in target else target
    name = name.strip("_") or "value"
    return {"convert_element_type": "cast", "where": "select_", "max": "peak"}.get(name, name)


def origins_of(program: Program) -> tuple[Origin, ...]:
    """Where the nests of a program come from, each place once."""
    found: dict[str, Origin] = {}
    for nest in program.nests:
        if nest.origin is not None and nest.origin.line:
            found.setdefault(nest.origin.line, nest.origin)
    return tuple(found.values())
