"""Kernels back into the graph: one call of `flashlight::fused` for a region, views around it, and what it replaces gone.

Nothing is changed before everything is known to fit: new nodes are dead until their results take the place of the roots.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import sympy
import torch
import torch.fx
from torch._guards import detect_fake_mode

from flashlight.capture.emit import Emitted, Output
from flashlight.capture.layouts import Access, Order, is_elementwise, likely, repacked
from flashlight.ir.exprs import ZERO, Binary, Const, Expr, Size
from flashlight.ir.nests import Program
from flashlight.lift.extents import Extent, Sizes, UntranslatableSize, expr_of, extent_of, is_same
from flashlight.rewrite.canonical import AxisView, InputView
from flashlight.rewrite.simplify import simplify
from flashlight.runtime.op import fused, fused_one

Node = torch.fx.Node
aten = torch.ops.aten


@dataclass(frozen=True)
class Splice:
    """A region ready to go into the graph.

    Attributes:
        emitted: its lifted program and the FX nodes it touches.
        views: how the canonical program's inputs are views of the lifted one's.
        accesses: how its kernels read each of these.
        sizes: the lifted program's sizes, in the order in which the canonical one takes them.
        program: canonical.
        token: for the call.
    """

    emitted: Emitted
    views: tuple[InputView, ...]
    accesses: tuple[Access, ...]
    sizes: tuple[Size, ...]
    program: Program
    token: str


def _order_for(node: Node, access: Access, largest: int) -> Order | None:
    """The order of memory that a tensor should have and does not have, or None; `largest`: bytes of the largest one beside it."""
    if access.order is not None and is_elementwise(node):
        return access.order
    tensor = node.meta["val"]
    sizes, strides = ([likely(n) for n in x] for x in (tensor.shape, tensor.stride()))
    return repacked(sizes, strides, tensor.dtype.itemsize, access.tiles, largest)


def _bytes(node: Node) -> int:
    """Of a tensor, at the likely sizes."""
    tensor = node.meta["val"]
    return math.prod(map(likely, tensor.shape)) * int(tensor.dtype.itemsize)


def acyclic(splices: Sequence[Splice]) -> list[Splice]:
    """The splices that can stand together: none may need its own results to compute its inputs."""
    kept: list[Splice] = []
    for splice in splices:
        if not _needs_itself(splice, kept):
            kept.append(splice)
    return kept


def _needs_itself(splice: Splice, others: Sequence[Splice]) -> bool:
    """Whether an input depends on an output, when each of the others is one node."""
    replaced = {
        node: other.emitted.inputs
        for other in others
        for output in other.emitted.outputs
        for node in output.nodes
    }
    own = {node for output in splice.emitted.outputs for node in output.nodes}
    seen: set[Node] = set()
    work = list(splice.emitted.inputs)
    while work:
        node = work.pop()
        if node in own:
            return True
        if node not in seen:
            seen.add(node)
            work.extend(replaced.get(node, node.all_input_nodes))
    return False


def apply(graph: torch.fx.Graph, splices: Sequence[Splice], sizes: Sizes) -> None:
    """Put all splices into the graph; on any error the graph is as it was."""
    if not splices:
        return
    before = set(graph.nodes)
    try:
        writer = Writer(graph, sizes)
        results = [pair for splice in splices for pair in writer.write(splice)]
    except BaseException:
        for node in reversed([n for n in graph.nodes if n not in before]):
            graph.erase_node(node)
        raise
    for old, new in results:
        old.replace_all_uses_with(new)
    sort(graph)
    graph.eliminate_dead_code()
    graph.lint()


def shapes_from_inputs(graph: torch.fx.Graph) -> None:
    """Compute sizes from the graph's inputs, where the graph asks intermediate tensors for them: those may be fused away."""
    asked = [
        n
        for n in graph.nodes
        if n.op == "call_function"
        and n.target is aten.sym_size.int
        and n.args[0].op != "placeholder"
        and isinstance(n.meta.get("val"), torch.SymInt)
    ]
    if not asked:
        return
    writer = Writer(graph, Sizes())
    for node in asked:
        try:
            size = writer.size(extent_of(node.meta["val"]))
        except (UntranslatableSize, KeyError, ValueError):
            continue
        if size is not node:
            node.replace_all_uses_with(size)
    sort(graph)
    graph.eliminate_dead_code()


class Writer:
    """Makes new nodes at the end of a graph; `sort` later puts them where they belong."""

    def __init__(self, graph: torch.fx.Graph, sizes: Sizes) -> None:
        self.graph = graph
        self.sizes = sizes
        self.end = next(n for n in graph.nodes if n.op == "output")
        self.fake_mode = detect_fake_mode(
            [n.meta["val"] for n in graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)]
        )
        self._symbols = dict(self._symbol_nodes())
        self._made: dict[Expr, Any] = {}
        self._packed: dict[tuple[Node, InputView, Order], Node] = {}

    def write(self, splice: Splice) -> Iterator[tuple[Node, Node]]:
        """The call of one region; yields what replaces each root."""
        sources = dict(
            zip((b.name for b in splice.emitted.program.inputs), splice.emitted.inputs, strict=True)
        )
        device = device_of(splice.emitted.inputs)
        ins = [self._moved(self._view(v, sources[v.source]), device) for v in splice.views]
        largest = max(map(_bytes, ins))
        keys = [(sources[v.source], v) for v in splice.views]
        ins = [
            self._ordered(node, access, largest, key)
            for node, access, key in zip(ins, splice.accesses, keys, strict=True)
        ]
        syms = [self._size(s) for s in splice.sizes]
        outputs = splice.emitted.outputs
        op = fused_one if len(outputs) == 1 else fused
        call = self.call(op, ins, syms, splice.token)
        call.meta["flashlight"] = splice.program.name
        first = outputs[0].nodes[0]
        for key in ("stack_trace", "nn_module_stack", "recompute", "ac_graph_id"):
            if key in first.meta:
                call.meta[key] = first.meta[key]
        results = (
            [self.call(operator.getitem, call, i) for i in range(len(outputs))]
            if op is fused
            else [call]
        )
        for result, output in zip(results, outputs, strict=True):
            yield from self._results(result, output)

    def call(self, target: Callable[..., Any], *args: Any, **others: Any) -> Node:
        """A node with the value it has on fake tensors."""
        with self.graph.inserting_before(self.end):
            node = self.graph.call_function(target, args, others)
        with self.fake_mode or nullcontext():
            node.meta["val"] = target(*torch.fx.map_arg(args, lambda n: n.meta["val"]), **others)
        return node

    # -- Inputs

    def _view(self, view: InputView, node: Node) -> Node:
        """An input of the canonical program as views of an FX tensor."""
        at = 0
        for axis in view.axes:
            node = self._axis(node, at, axis)
            at += len(axis.sizes)
        if view.order != tuple(range(len(view.order))):
            node = self.call(aten.permute.default, node, list(view.order))
        return node

    def _moved(self, node: Node, device: torch.device) -> Node:
        """A scalar tensor from the CPU, where the kernel finds it."""
        if node.meta["val"].device == device:
            return node
        return self.call(torch.ops.prims.device_put.default, node, device)

    def _ordered(
        self, node: Node, access: Access, largest: int, key: tuple[Node, InputView]
    ) -> Node:
        """A tensor in the order of memory in which it is read best, if that costs less than it spares; one for all regions."""
        order = _order_for(node, access, largest)
        if order is None:
            return node
        if (*key, order) not in self._packed:
            self._packed[(*key, order)] = self._in_order(node, order)
        return self._packed[(*key, order)]

    def _in_order(self, node: Node, order: Order) -> Node:
        turned = self.call(aten.permute.default, node, list(order))
        copied = self.call(aten.clone.default, turned, memory_format=torch.contiguous_format)
        back = sorted(range(len(order)), key=order.__getitem__)
        return self.call(aten.permute.default, copied, back)

    def _axis(self, node: Node, at: int, axis: AxisView) -> Node:
        if not axis.sizes:
            return self.call(aten.select.int, node, at, self._size(axis.start))
        length = _product(axis.sizes)
        size = self.sizes.of(node.meta["val"].shape[at])
        is_whole = axis.start is ZERO and axis.step == 1
        if not (is_whole and _is_equal(length, expr_of(size))):
            last = simplify(
                Binary(
                    "add",
                    Binary("add", axis.start, Const(1, ZERO.dtype)),
                    Binary(
                        "mul",
                        Binary("sub", length, Const(1, ZERO.dtype)),
                        Const(axis.step, ZERO.dtype),
                    ),
                )
            )
            start, end = self._size(axis.start), self._size(last)
            node = self.call(aten.slice.Tensor, node, at, start, end, axis.step)
        if len(axis.sizes) > 1:
            shape: list[Any] = [self._extent(s) for s in node.meta["val"].shape]
            shape[at : at + 1] = [self._size(s) for s in axis.sizes]
            node = self.call(aten.view.default, node, shape)
        return node

    # -- Outputs

    def _results(self, result: Node, output: Output) -> Iterator[tuple[Node, Node]]:
        """A result in the FX shape and axis order, for each node it replaces."""
        for old in output.nodes:
            shape = [self.sizes.of(s) for s in old.meta["val"].shape]
            wanted = [shape[a] for a in output.order]
            have = [self.sizes.of(s) for s in result.meta["val"].shape]
            new = result
            if len(have) != len(wanted) or not all(map(is_same, have, wanted)):
                new = self.call(aten.view.default, new, [self._extent(n) for n in wanted])
            if output.order != tuple(range(len(output.order))):
                back = sorted(range(len(output.order)), key=output.order.__getitem__)
                new = self.call(aten.permute.default, new, back)
            yield old, new

    # -- Sizes

    def _extent(self, size: Any) -> Any:
        """An FX argument for a size of a tensor."""
        return self._size(expr_of(size if isinstance(size, int) else self.sizes.of(size)))

    def size(self, extent: Extent) -> Any:
        """An FX argument for a size: an int or a node."""
        return self._size(expr_of(extent))

    def _size(self, expr: Expr) -> Any:
        """An FX argument for a size expression: an int or a node."""
        if isinstance(expr, Const):
            return int(expr.value)
        if expr not in self._made:
            self._made[expr] = self._compute(expr)
        return self._made[expr]

    def _compute(self, expr: Expr) -> Any:
        match expr:
            case Size(name):
                return self._symbol(sympy.Symbol(name))
            case Binary(op, a, b) if op in _OPERATORS:
                return self.call(_OPERATORS[op], self._size(a), self._size(b))
            case _:
                msg = f"'{expr}' is no size."
                raise ValueError(msg)

    def _symbol(self, symbol: sympy.Symbol) -> Any:
        for known, meaning in self.sizes.meaning.items():
            if str(known) == str(symbol):
                whole, part = meaning.args
                return self.call(operator.floordiv, self.size(whole), self.size(part))
        return self._symbols[str(symbol)]()

    def _symbol_nodes(self) -> Iterator[tuple[str, Callable[[], Node]]]:
        """How to get each symbol: as an input of the graph, or from the shape of one."""
        found: dict[str, Callable[[], Node]] = {}
        inputs = [n for n in self.graph.nodes if n.op == "placeholder"]
        for node in inputs:
            for name in _symbol_name(node.meta.get("val")):
                found.setdefault(name, partial(_itself, node))
        for node in inputs:
            val = node.meta.get("val")
            for axis, size in enumerate(val.shape if isinstance(val, torch.Tensor) else ()):
                for name in _symbol_name(size):
                    found.setdefault(name, partial(self.call, aten.sym_size.int, node, axis))
                for name, factor in _multiple_of(size):
                    found.setdefault(name, partial(self._part, node, axis, factor))
        yield from found.items()

    def _part(self, node: Node, axis: int, factor: int) -> Node:
        size = self.call(aten.sym_size.int, node, axis)
        return self.call(operator.floordiv, size, factor)


def _multiple_of(size: Any) -> Iterator[tuple[str, int]]:
    """The name and the factor of a size that is a multiple of a symbol."""
    if not isinstance(size, torch.SymInt):
        return
    factor, rest = size.node.expr.as_coeff_Mul()
    if rest.is_Symbol and factor.is_Integer and factor > 1:
        yield str(rest), int(factor)


def known_sizes(graph: torch.fx.Graph, sizes: Sizes) -> set[str]:
    """Names of the symbols that are known when the graph is entered."""
    return {*Writer(graph, Sizes())._symbols, *(str(s) for s in sizes.meaning)}


def device_of(inputs: Sequence[Node]) -> torch.device:
    """Where a region runs: tensors without axes may live on the CPU all the same."""
    values: list[torch.Tensor] = [n.meta["val"] for n in inputs]
    return next((v.device for v in values if v.dim()), values[0].device)


def _symbol_name(size: Any) -> Iterator[str]:
    """The name of a size that is a symbol."""
    if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
        yield str(size.node.expr)


def _itself(node: Node) -> Node:
    return node


_OPERATORS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "min": torch.sym_min,
    "max": torch.sym_max,
}


def _product(sizes: Sequence[Expr]) -> Expr:
    result = sizes[0]
    for size in sizes[1:]:
        result = Binary("mul", result, size)
    return simplify(result)


def _is_equal(a: Expr, b: Expr) -> bool:
    return simplify(a) is simplify(b)


def sort(graph: torch.fx.Graph) -> None:
    """Put every node behind its inputs and change as little of the order as that takes."""
    ready: set[Node] = set()
    order: list[Node] = []

    def visit(node: Node) -> None:
        stack = [(node, iter(node.all_input_nodes))]
        while stack:
            current, inputs = stack[-1]
            missing = next((i for i in inputs if i not in ready), None)
            if missing is not None:
                stack.append((missing, iter(missing.all_input_nodes)))
                continue
            stack.pop()
            if current not in ready:
                ready.add(current)
                order.append(current)

    nodes = list(graph.nodes)
    for node in nodes:
        if node.op != "output":
            visit(node)
    last: Node | None = None
    for node in order:
        if last is not None and last.next is not node:
            last.append(node)
        last = node
