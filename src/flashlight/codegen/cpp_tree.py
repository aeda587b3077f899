"""Elementwise operations of a block program, fused into as few loop nests as their dependences allow.

A run of operations between two products (or loops) becomes a list of items: statements, and nests over one axis that hold further
items. Operations over equal axes share a nest unless one needs what another has reduced over that axis.

    s = scores * scale        for rows:
    m = max(s, cols)            for cols: s; fold m
    p = exp(s - m)     -->      phi = exp(m_old - m)
    l = sum(p, cols)            for cols: p; fold l
    a = acc * phi               for e: a
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from flashlight.codegen.blocks import (
    Axis,
    Compute,
    Constant,
    Fetch,
    Fold,
    Op,
    Positions,
    Store,
    Value,
    operands,
    results,
)

Elementwise: TypeAlias = Constant | Positions | Compute | Fetch | Fold | Store


@dataclass(eq=False)
class Statement:
    """One operation at one place."""

    op: Elementwise


@dataclass(eq=False)
class Nest:
    """A loop over an axis. `folds` are reduced over it, by statements somewhere inside."""

    axis: Axis
    items: list[Item] = field(default_factory=list)
    folds: list[Fold] = field(default_factory=list)
    made: dict[Value, int] = field(default_factory=dict)


Item: TypeAlias = Statement | Nest


@dataclass
class Tree:
    """The items of a run, and where each operation went.

    Attributes:
        items: in order of execution.
        paths: the nests around each operation, outermost first.
    """

    items: list[Item]
    paths: dict[Op, tuple[Nest, ...]]


def fuse(ops: Sequence[Elementwise], axes_of: Callable[[Elementwise], tuple[Axis, ...]]) -> Tree:
    """Nests for `ops`, which are in order of dependence."""
    root = Nest(Axis("", "whole", 1, ()))
    paths: dict[Op, tuple[Nest, ...]] = {}
    for op in ops:
        paths[op] = _insert(root, op, axes_of(op))
    return Tree(root.items, paths)


def _insert(level: Nest, op: Elementwise, axes: tuple[Axis, ...]) -> tuple[Nest, ...]:
    """Put `op` into the last nest that may hold it, or into a new one."""
    if not axes:
        level.items.append(Statement(op))
        _note(level, op, len(level.items) - 1)
        return ()
    axis, rest = axes[0], axes[1:]
    ready, inside = (
        0,
        -1,
    )  # the first place after what must be complete; the nest that holds what may be read inside
    for value in operands(op):
        at = level.made.get(value)
        if at is None:
            continue
        if axis in value.axes:
            inside = max(inside, at)
        else:
            ready = max(ready, at + 1)
    first = max(ready, inside)
    for at in range(len(level.items) - 1, first - 1, -1):
        nest = level.items[at]
        if isinstance(nest, Nest) and nest.axis == axis:
            break
    else:
        nest = Nest(axis)
        level.items.append(nest)
        at = len(level.items) - 1
    path = (nest, *_insert(nest, op, rest))
    if isinstance(op, Fold) and op.axis == axis:
        nest.folds.append(op)
    _note(level, op, at)
    return path


def _note(level: Nest, op: Elementwise, at: int) -> None:
    for value in results(op):
        level.made[value] = at
