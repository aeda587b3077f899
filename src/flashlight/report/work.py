"""How much a loop computes and moves, counted on its program: what `explain` prints beside a kernel."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from flashlight.ir.exprs import Binary, Dim, Load, Reduce, Unary, dtype_of
from flashlight.ir.interpret import integer
from flashlight.ir.nests import Loop, Program
from flashlight.ir.visit import free_dims, walk


def _points(dims: Iterable[Dim], sizes: Mapping[str, int]) -> int:
    return math.prod(integer(d.extent, sizes) for d in dims)


def flops(loop: Loop, sizes: Mapping[str, int]) -> int:
    """Floating-point operations if no tile is skipped: a shared subexpression of a pass once, over the dims it varies with."""
    total = 0
    for step in loop.passes:
        bodies = [c.body for c in step.carries] + [g.expr for g in step.gives]
        for node in walk(*bodies):
            match node:
                case Unary() | Binary() if dtype_of(node).is_float:
                    total += _points(free_dims(node), sizes)
                case Reduce(_, _, body) if dtype_of(body).is_float:
                    total += _points(free_dims(body), sizes)
        for carry in step.carries:
            total += _points(free_dims(carry.body) | frozenset(carry.dims), sizes)
    return total


def bytes_moved(loop: Loop, program: Program, sizes: Mapping[str, int]) -> int:
    """Bytes of every array the loop reads, once each, and of every array it writes."""
    results = {g.name for g in loop.gives}
    own = results | {c.name for c in loop.carries}
    read = {
        node.buffer
        for node in walk(*(c.body for c in loop.carries), *(g.expr for g in loop.gives))
        if isinstance(node, Load) and node.buffer.name not in own
    }
    written = {g.buffer for g in loop.gives}
    return sum(
        math.prod(integer(x, sizes) for x in b.shape) * b.dtype.bits // 8 for b in read | written
    )
