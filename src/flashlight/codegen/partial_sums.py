"""Sums along the columns of a loop of which each thread may keep its own part: threads then add theirs up once, after the loops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeGuard

from flashlight.codegen.blocks import (
    Axis,
    Compute,
    Constant,
    Fold,
    For,
    Kernel,
    Op,
    Value,
    operands,
    results,
    walk,
)
from flashlight.ir.dtypes import DType
from flashlight.ir.monoids import SUM


@dataclass(frozen=True, slots=True)
class PartialSum:
    """A slot of a loop that begins at 0, is multiplied by a factor of its row, added to, and read by nothing else.

    Attributes:
        fold: what a tile adds.
        factor: what moves it before, if anything.
        ops: the operations on the whole sum that this takes the place of.
    """

    fold: Fold
    factor: Value | None
    ops: tuple[Op, ...]


def partial_sums(kernel: Kernel, rows: Axis, cols: Axis) -> list[dict[int, PartialSum]]:
    """For each loop of a chain, those of its slots that are such sums in all of them, by their number."""
    loops = [op for op in kernel.body.ops if isinstance(op, For)]
    zeros = zeros_of(kernel)
    found = [_of(loop, rows, cols) for loop in loops]
    begin = [n for n, slot in enumerate(loops[0].slots) if slot.init in zeros]
    return [{n: f[n] for n in begin if all(n in other for other in found)} for f in found]


def zeros_of(kernel: Kernel) -> set[Value]:
    """The constants of a kernel that are 0."""
    return {op.result for op in walk(kernel.body) if isinstance(op, Constant) and op.value == 0}


def _of(loop: For, rows: Axis, cols: Axis) -> dict[int, PartialSum]:
    made = {v: op for op in loop.body.ops for v in results(op)}
    uses = Counter(v for op in loop.body.ops for v in operands(op))
    uses.update(loop.body.yields)
    found = {}
    for n, (slot, value) in enumerate(zip(loop.slots, loop.body.yields, strict=True)):
        add = made.get(value)
        if slot.inside.axes != (rows,) or slot.inside.dtype is not DType.F32:
            continue
        if not _is_own(add, "add", uses):
            continue
        folds = [op for v in add.args if isinstance(op := made.get(v), Fold)]
        if len(folds) != 1 or uses[folds[0].result] != 1 or uses[slot.inside] != 1:
            continue
        (fold,) = folds
        (other,) = (v for v in add.args if v is not fold.result)
        move = made.get(other)
        if fold.monoid != SUM or fold.axis != cols or fold.x.axes != (rows, cols):
            continue
        if fold.x.dtype is not DType.F32:
            continue
        if other is slot.inside:
            found[n] = PartialSum(fold, None, (add,))
        elif _is_own(move, "mul", uses) and slot.inside in move.args:
            (factor,) = (v for v in move.args if v is not slot.inside)
            found[n] = PartialSum(fold, factor, (add, move))
    return found


def _is_own(op: Op | None, name: str, uses: Mapping[Value, int]) -> TypeGuard[Compute]:
    """Whether an operation is of a kind, and its result read once."""
    return isinstance(op, Compute) and op.op == name and uses[op.result] == 1
