"""Lifting: a whole FX graph as cells, one nest for each op that computes and nothing for a view.

Backward and lazily in effect: views compose as functions from positions to expressions, and nothing is decided about regions
here. What has no rule, or an element type that we do not know, is a leaf.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import torch
import torch.fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import Buffer, Cast, Const, Dim, Expr, Index, Load, const, dtype_of
from flashlight.ir.monoids import Monoid
from flashlight.ir.nests import Nest
from flashlight.ir.visit import rewrite
from flashlight.lift import values
from flashlight.lift.cells import Cell, Leaf, key_of, origin_of
from flashlight.lift.extents import (
    Extent,
    Sizes,
    UntranslatableSize,
    count_of,
    expr_of,
    is_one,
    is_same,
    product,
    scalar_of,
)
from flashlight.lift.values import (
    Factors,
    Position,
    Positions,
    Value,
    digit,
    fold,
    plain,
    refine,
    split,
)
from flashlight.rewrite.fold import fold_cast
from flashlight.rewrite.simplify import simplify

DTYPES = {
    torch.bool: DType.BOOL,
    torch.uint8: DType.U8,
    torch.int8: DType.I8,
    torch.int16: DType.I16,
    torch.int32: DType.I32,
    torch.int64: DType.I64,
    torch.float16: DType.F16,
    torch.bfloat16: DType.BF16,
    torch.float32: DType.F32,
    torch.float64: DType.F64,
}
TORCH_DTYPES = {ours: theirs for theirs, ours in DTYPES.items()}

Result: TypeAlias = Value | tuple[Value | None, ...] | None
Rule: TypeAlias = Callable[..., Result]
R = TypeVar("R", bound=Rule)
Body: TypeAlias = Callable[[Positions, Positions], Expr]

_RULES: dict[Any, tuple[Rule, bool]] = {}


def rule(*targets: Any, view: bool = False) -> Callable[[R], R]:
    """Register a rule for ATen overloads, or names of such.

    It is called with (lifter, node, *args, **kwargs), FX nodes among the arguments as they are, and
    returns the value(s) of the node, or None where these arguments have no rule. `view` marks ops that only move elements.
    """

    def register(function: R) -> R:
        for target in targets:
            _RULES[target] = (function, view)
        return function

    return register


def has_rule(target: Any) -> bool:
    return target in _RULES or str(target) in _RULES


class Lifter:
    """The state of one lifting: what each FX node is, and the cells made so far.

    Attributes:
        values: for each FX node of tensor type (or several), how to read it.
        cells: by name of the nest, in order of dependence.
        leaves: by name of the buffer.
        views: FX nodes that only move elements of another one.
        made: for each FX node that computes, the cells of its rule.
        sizes: how sizes are written.
        hints: likely values of its symbolic sizes.
        returned: FX nodes that the graph returns.
    """

    def __init__(self, graph: torch.fx.Graph) -> None:
        self.graph = graph
        self.sizes = Sizes(graph)
        self.hints = hints_of(graph)
        self.returned = {n for o in graph.find_nodes(op="output") for n in o.all_input_nodes}
        self.values: dict[torch.fx.Node, Result] = {}
        self.cells: dict[str, Cell] = {}
        self.leaves: dict[str, Leaf] = {}
        self.views: set[torch.fx.Node] = set()
        self.made: dict[torch.fx.Node, list[Cell]] = {}
        self._by_key: dict[tuple[object, ...], Cell] = {}

        for node in graph.nodes:
            if node.op != "output":
                self.values[node] = self._value(node)

    # -- Nodes

    def _value(self, node: torch.fx.Node) -> Result:
        if node.op == "call_function":
            if node.target is operator.getitem:
                return self._getitem(node)
            found = self._by_rule(node)
            if found is not None:
                return found
        if node.op == "get_attr":
            found = self._constant(node)
            if found is not None:
                return found
        return self.leaf(node)

    def _by_rule(self, node: torch.fx.Node) -> Result:
        entry = _RULES.get(node.target) or _RULES.get(str(node.target))
        if entry is None or not _is_plain(node.meta.get("val")):
            return None
        function, is_view = entry
        if is_view and self._is_stored(node):
            return None  # a real tensor, which no operator of the graph may be handed but the one that copies it
        known = len(self.cells)
        try:
            result = function(self, node, *node.args, **node.kwargs)
        except (UntranslatableSize, NoRuleError):
            self._forget(node, known)
            return None
        moves_only = is_view or any(
            isinstance(a, torch.fx.Node) and self.values.get(a) is result for a in node.args
        )
        if moves_only and isinstance(result, Value) and node in self.returned:
            part = self._part(node, result)
            moves_only, result = part is None, part or result
        if result is not None and moves_only:
            self.views.add(node)
        elif isinstance(result, Value) and result.source:
            self.cells[result.source].tensors.append(node)
        return result

    def _forget(self, node: torch.fx.Node, known: int) -> None:
        """Undo the steps of a rule that gave up: their names are free again, first of all for the node itself."""
        self.made.pop(node, None)
        for name in list(self.cells)[known:]:
            nest = self.cells.pop(name).nest
            key = key_of(nest.parallel, nest.reduced, nest.dtype, nest.monoid, nest.body)
            self._by_key.pop(key, None)

    def _part(self, node: torch.fx.Node, view: Value) -> Value | None:
        """A copy of a view that leaves out elements of a cell, or None for other views.

        Where it is returned, as one row of weights is, nothing else of the cell need be in memory.
        """
        read = view.at(_dims("p", view.factors)[1])
        cell = self.cells.get(read.buffer.name) if isinstance(read, Load) else None
        if cell is None or count_of(view.shape, self.hints) >= count_of(cell.extents(), self.hints):
            return None
        return self.pointwise(node, lambda e: e, view)

    def _is_stored(self, node: torch.fx.Node) -> bool:
        """Whether the node reads a tensor constant whose elements are not known."""
        source = node.args[0] if node.args else None
        if not isinstance(source, torch.fx.Node) or source.op != "get_attr":
            return False
        value = self.values.get(source)
        return not (isinstance(value, Value) and value.is_index)

    def _getitem(self, node: torch.fx.Node) -> Result:
        source, index = node.args
        found = self.values.get(source) if isinstance(source, torch.fx.Node) else None
        if isinstance(found, tuple) and isinstance(index, int) and found[index] is not None:
            value = found[index]
            assert value is not None
            if value.source and source not in self.views:
                self.cells[value.source].tensors.append(node)
            else:
                self.views.add(node)
            return value
        return self.leaf(node)

    def leaf(self, node: torch.fx.Node) -> Value | None:
        """A tensor that is read from memory, or None for what is no tensor that we know."""
        tensor = node.meta.get("val")
        if not isinstance(tensor, torch.Tensor) or not _is_plain(tensor):
            return None
        try:
            shape = self.sizes.shape(tensor)
            buffer = Buffer(node.name, tuple(expr_of(n) for n in shape), DTYPES[tensor.dtype])
        except UntranslatableSize:
            return None
        why = "" if node.op != "call_function" else str(node.target)
        self.leaves[buffer.name] = Leaf(buffer, node, shape, why)

        def read(positions: Positions) -> Expr:
            return Load(buffer, tuple(simplify(fold(p)) for p in positions))

        return Value(shape, buffer.dtype, plain(shape), read)

    def _constant(self, node: torch.fx.Node) -> Value | None:
        """A tensor of one element that is part of the graph, as the number it holds."""
        tensor: Any = self.graph.owning_module
        for part in str(node.target).split("."):
            tensor = getattr(tensor, part, None)
        if not isinstance(tensor, torch.Tensor) or tensor.numel() != 1 or not _is_plain(tensor):
            return None
        if type(tensor) is not torch.Tensor or tensor.device.type == "meta":
            return None
        dtype = DTYPES[tensor.dtype]
        with unset_fake_temporarily():  # a constant of the graph is a real tensor
            value = const(tensor.item(), dtype)
        shape = self.sizes.shape(tensor)
        return Value(shape, dtype, plain(shape), lambda _: value, is_index=True)

    # -- For rules

    def operand(self, arg: Any) -> Value:
        """An argument of an op as a value: a tensor, or a number as a scalar of its Python type."""
        if isinstance(arg, torch.fx.Node):
            found = self.values.get(arg)
            if isinstance(found, Value):
                return found
            val = arg.meta.get("val")
            if isinstance(val, torch.SymInt | torch.SymFloat | int | float):
                return self.number(val)
            raise NoRuleError(str(arg))
        if isinstance(arg, bool | int | float | torch.SymInt | torch.SymFloat):
            return self.number(arg)
        raise NoRuleError(str(arg))

    def number(self, x: Any) -> Value:
        if isinstance(x, torch.SymInt | torch.SymFloat):
            x = self.sizes.of(x)
        expr = scalar_of(x)
        return values.scalar(expr, dtype_of(expr))

    def tensor(self, arg: Any) -> Value:
        """An argument that must be a tensor."""
        found = self.values.get(arg) if isinstance(arg, torch.fx.Node) else None
        if not isinstance(found, Value):
            raise NoRuleError(str(arg))
        return found

    def extent(self, arg: Any) -> Extent:
        """An argument that is a size."""
        if isinstance(arg, torch.fx.Node):
            arg = arg.meta.get("val")
        if isinstance(arg, int):
            return arg
        if isinstance(arg, torch.SymInt):
            return self.sizes.of(arg)
        raise NoRuleError(str(arg))

    def literal(self, arg: Any) -> int:
        """An argument that must be a known int."""
        found = self.extent(arg)
        if not isinstance(found, int):
            raise NoRuleError(str(arg))
        return found

    def shape(self, node: torch.fx.Node, item: int | None = None) -> tuple[Extent, ...]:
        """The FX shape of a node's result."""
        val = node.meta["val"] if item is None else node.meta["val"][item]
        return self.sizes.shape(val)

    def dtype(self, node: torch.fx.Node, item: int | None = None) -> DType:
        val = node.meta["val"] if item is None else node.meta["val"][item]
        return DTYPES[val.dtype]

    def make(
        self,
        node: torch.fx.Node,
        shape: tuple[Extent, ...],
        body: Body,
        dtype: DType,
        *,
        factors: Sequence[Factors] | None = None,
        reduced: Sequence[Factors] = (),
        monoid: Monoid | None = None,
        contraction: bool = False,
    ) -> Value:
        """A nest over the axes of `shape` (each split into `factors`), reduced over axes that are split into `reduced`.

        `body` gets a position for each axis, and for each reduced one.
        """
        axes = plain(shape) if factors is None else _checked(shape, factors)
        parallel, out = _dims("p", axes)
        bound, inner = _dims("r", reduced)
        expr = simplify_loads(body(out, inner))
        key = key_of(parallel, bound, dtype, monoid, expr)
        cell = self._by_key.get(key)
        if cell is None or cell.axes != axes:
            nest = Nest(self._name(node), parallel, bound, dtype, monoid, expr, origin_of(node))
            cell = Cell(nest, shape, axes, _op_name(node), contraction)
            cell.is_index = monoid is None and all(self._is_index(e) for e in cell.loads())
            self._by_key[key] = cell
            self.cells[cell.name] = cell
        self.made.setdefault(node, []).append(cell)
        return _value_of(cell, shape, axes)

    def _is_index(self, load: Load) -> bool:
        cell = self.cells.get(load.buffer.name)
        return cell is not None and cell.is_index

    def _name(self, node: torch.fx.Node) -> str:
        name, n = node.name, 1
        while name in self.cells or name in self.leaves:
            name, n = f"{node.name}.{n}", n + 1
        return name

    def pointwise(
        self,
        node: torch.fx.Node,
        function: Callable[..., Expr],
        *operands: Value,
        dtype: DType | None = None,
        shape: tuple[Extent, ...] | None = None,
    ) -> Value:
        """`function` of one element of each operand, which are broadcast to the node's shape."""
        shape = self.shape(node) if shape is None else shape
        wide = [values.broadcast(x, shape) for x in operands]

        def body(out: Positions, _: Positions) -> Expr:
            return function(*(x.at(out) for x in wide))

        return self.make(
            node, shape, body, dtype or self.dtype(node), factors=common_factors(shape, operands)
        )


class NoRuleError(Exception):
    """These arguments of an op have no rule."""


def common_factors(shape: tuple[Extent, ...], operands: Sequence[Value]) -> tuple[Factors, ...]:
    """How to split each axis of a broadcast result: as finely as all operands that vary along it allow."""
    result = []
    for i, n in enumerate(shape):
        found: Factors = () if is_one(n) else (n,)
        for x in operands:
            axis = i - (len(shape) - len(x.shape))
            if axis >= 0 and not is_one(x.shape[axis]):
                found = refine(found, x.factors[axis]) or found
        result.append(found)
    return tuple(result)


def convert(x: Expr, dtype: DType) -> Expr:
    """x in another type, constants folded."""
    if dtype_of(x) is dtype:
        return x
    if isinstance(x, Const):
        return fold_cast(x, dtype) or Cast(x, dtype)
    return Cast(x, dtype)


def simplify_loads(body: Expr) -> Expr:
    """`body` with the indices of its loads simplified; arithmetic is left as the user wrote it."""
    return rewrite(
        body,
        lambda e: (
            Load(e.buffer, tuple(simplify(i) for i in e.index)) if isinstance(e, Load) else None
        ),
    )


def _value_of(cell: Cell, shape: tuple[Extent, ...], axes: tuple[Factors, ...]) -> Value:
    if cell.is_index and cell.is_pointwise and isinstance(cell.nest.body, Const):
        body = cell.nest.body
        return Value(shape, cell.dtype, axes, lambda _: body, is_index=True)
    buffer = cell.buffer

    def read(positions: Positions) -> Expr:
        index: list[Expr] = []
        for position, factors in zip(positions, axes, strict=True):
            index.extend(fold(p) for p in split(position, factors))
        return Load(buffer, tuple(simplify(i) for i in index))

    return Value(shape, cell.dtype, axes, read, cell.is_index, cell.name)


def _dims(stem: str, axes: Sequence[Factors]) -> tuple[tuple[Dim, ...], Positions]:
    dims: list[Dim] = []
    positions: list[Position] = []
    for factors in axes:
        digits = []
        for extent in factors:
            dims.append(Dim(f"{stem}{len(dims)}", expr_of(extent)))
            digits.append((Index(dims[-1]), extent))
        positions.append(tuple(digits))
    return tuple(dims), tuple(positions)


def _checked(shape: tuple[Extent, ...], factors: Sequence[Factors]) -> tuple[Factors, ...]:
    """Factors without ones; an axis whose factors do not multiply to its size is left whole."""
    result = []
    for n, parts in zip(shape, factors, strict=True):
        clean = tuple(e for e in parts if not is_one(e))
        whole = digit(Index(Dim("p", expr_of(n))), n)
        fits = len(split(whole, clean)) == len(clean) and _is_product(clean, n)
        result.append(clean if fits else plain([n])[0])
    return tuple(result)


def _is_product(factors: Factors, n: Extent) -> bool:
    return is_same(product(factors), n)


def _is_plain(val: Any) -> bool:
    """Whether a result is made of strided tensors whose element types we know."""
    if isinstance(val, tuple | list):
        return all(_is_plain(v) for v in val)
    if not isinstance(val, torch.Tensor):
        return False
    return val.layout is torch.strided and val.dtype in DTYPES


def _op_name(node: torch.fx.Node) -> str:
    return str(node.target)


def hints_of(graph: torch.fx.Graph) -> Mapping[str, int]:
    """The sizes of symbols at the first call."""
    found: dict[str, int] = {}
    for node in graph.nodes:
        if node.op != "placeholder":
            continue
        val = node.meta.get("val")
        sizes = [val] if isinstance(val, torch.SymInt) else getattr(val, "shape", ())
        for size in sizes:
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol and size.node.has_hint():
                found[str(size.node.expr)] = int(size.node.hint)
    return found
