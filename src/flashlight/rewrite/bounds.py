"""Block sparsity from the program itself: which positions of a loop dim a tile of rows can need at all.

A tile may be skipped where every carry of its pass would only meet its monoid's identity there. `liveness` reads the condition
for that off a body, `intervals` turns it into positions along the loop dim.
"""

from __future__ import annotations

from functools import reduce

from flashlight.ir.exprs import (
    ZERO,
    Const,
    Dim,
    Expr,
    Load,
    Reduce,
)
from flashlight.ir.nests import Loop, Pass
from flashlight.ir.visit import free_dims, walk
from flashlight.rewrite.intervals import interval
from flashlight.rewrite.liveness import either, has_live_position, liveness
from flashlight.rewrite.schedule import Bounds


def loop_bounds(
    loop: Loop, inputs: frozenset[str], rows: tuple[Dim, ...], col: Dim
) -> tuple[Bounds | None, ...]:
    """For each pass, where along `col` a tile of `rows` has anything to do; None where nothing is known.

    Args:
        loop: the loop, its bodies anchored.
        inputs: names of the program's inputs. Any other array read without an anchor is a row statistic of another loop or pass,
            which may be -inf on a dead row; exp(-inf - -inf) is NaN there, so such a body never counts as its identity.
        rows: dims of the row tile.
        col: the loop dim that is tiled.
    """
    return tuple(_pass_bounds(loop, p, inputs, rows, col) for p in loop.passes)


def _pass_bounds(
    loop: Loop, step: Pass, inputs: frozenset[str], rows: tuple[Dim, ...], col: Dim
) -> Bounds | None:
    condition = _live_condition(loop, step, inputs, rows, col)
    if condition is None:
        return None
    found = interval(condition, frozenset(rows), col)
    if found.lo is None and found.hi is None and found.full is None:
        return None
    extent = col.extent
    lo = ZERO if found.lo is None else found.lo
    hi = extent if found.hi is None else found.hi
    full_lo, full_hi = found.full or (extent, extent)
    head = ZERO if found.head is None else found.head
    return Bounds(lo, full_lo, full_hi, hi, found.holds if found.full else (), head)


def loop_skips(
    loop: Loop, inputs: frozenset[str], rows: tuple[Dim, ...], col: Dim, *, proved: bool = True
) -> tuple[Expr | None, ...]:
    """For each pass, the condition of `Schedule.skips`, where it depends on data and is cheap to look at; else None.

    Args:
        loop: the loop.
        inputs: as of `loop_bounds`.
        rows: dims of the row tile.
        col: the loop dim that is tiled.
        proved: leave out conditions that also need every row to have a live key (finite fills), where that is not known here.
    """
    return tuple(_pass_skip(loop, p, inputs, rows, col, proved) for p in loop.passes)


def _pass_skip(
    loop: Loop,
    step: Pass,
    inputs: frozenset[str],
    rows: tuple[Dim, ...],
    col: Dim,
    proved: bool,
) -> Expr | None:
    condition = _live_condition(loop, step, inputs, rows, col, proved)
    if condition is None:
        return None
    nodes = list(walk(condition))
    loaded = [n for n in nodes if isinstance(n, Load)]
    if not any(free_dims(n) & {*rows, col} for n in loaded) or len(nodes) > _CHEAP_NODES:
        return None
    if any(isinstance(n, Reduce) for n in nodes) or any(
        n.buffer.name not in inputs for n in loaded
    ):
        return None
    return condition


_CHEAP_NODES = 60


def _live_condition(
    loop: Loop,
    step: Pass,
    inputs: frozenset[str],
    rows: tuple[Dim, ...],
    col: Dim,
    proved: bool = True,
) -> Expr | None:
    """Outside of which positions no carry of a pass changes; None if that is all of them, or rests on an unproved live key, or
    differs along dims that a tile holds whole, which has no one place to begin.
    """
    if not step.carries:
        return None
    live = reduce(either, [liveness(c, inputs) for c in step.carries])
    whole = {d for c in step.carries for d in c.dims}.difference(loop.kept)
    if isinstance(live.condition, Const) or free_dims(live.condition) & whole:
        return None
    if live.finite and live.doubtful:
        return None
    if live.finite and proved and not has_live_position(live.condition, rows, col):
        return None
    return live.condition
