"""Who reads a cell, and how."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.fx

from flashlight.ir.exprs import Dim, Index, Load
from flashlight.ir.visit import free_dims
from flashlight.lift.cells import Cell, dims_of_load
from flashlight.lift.lift import Lifter

Node = torch.fx.Node


def readers(cell: Cell, lifter: Lifter) -> set[Node]:
    """FX nodes that read a cell's tensor, through views."""
    found: set[Node] = set()
    seen: set[Node] = set()
    work = [u for t in cell.tensors for u in _reading(t)]
    while work:
        node = work.pop()
        if node in seen or node in cell.tensors:
            continue
        seen.add(node)
        if node in lifter.views:
            work.extend(_reading(node))
        elif not isinstance(node.meta.get("val"), torch.SymInt | int):  # who asks for a size only
            found.add(node)
    return found


def _reading(node: Node) -> Iterator[Node]:
    """Who reads elements of a node's tensor, and not its shape only, as an assignment does where it writes."""
    for user in node.users:
        if user.target is not torch.ops.aten.copy.default or user.args[1] is node:
            yield user


def is_plain(load: Load, cell: Cell) -> bool:
    """Whether a load is at distinct dims of the reader, in any order: no element is read for two rows' worth of work."""
    seen: set[Dim] = set()
    for index in load.index:
        if not isinstance(index, Index) or index.dim in seen:
            return False
        seen.add(index.dim)
    return True


def is_lookup(cell: Cell) -> bool:
    """Whether a cell only gathers rows of one tensor: a view whose index is data."""
    return isinstance(cell.nest.body, Load)


Sides = list[tuple[frozenset[int], frozenset[int]]]


def sides_through(load: Load, reader: Cell, sides: Sides) -> Sides:
    """The sides of a reader's pairs in places of what it reads, if that varies along both (or the only one)."""
    dims = reader.nest.parallel
    found: Sides = []
    for rows, columns in sides:
        row_dims, column_dims = {dims[i] for i in rows}, {dims[i] for i in columns}
        reach = dims_of_load(load)
        if (row_dims and not reach & row_dims) or (column_dims and not reach & column_dims):
            continue
        places = [free_dims(i) for i in load.index]
        found.append(
            (
                frozenset(n for n, d in enumerate(places) if d & row_dims),
                frozenset(n for n, d in enumerate(places) if d & column_dims),
            )
        )
    return found


def is_even_over(load: Load, reader: Cell, sides: Sides) -> bool:
    """Whether what a reader of pairs reads is the same for all of them, but for heads and samples."""
    dims = reader.nest.parallel
    along = {dims[i] for rows, columns in sides for i in rows | columns}
    return bool(along) and along.isdisjoint(dims_of_load(load))
