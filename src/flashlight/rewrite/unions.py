"""Union dims: a reduction over `cat(a, b)` is the monoid's combine of the reductions over a and over b (algebra.md, section 3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from flashlight.ir.exprs import (
    Binary,
    Const,
    Dim,
    Expr,
    Index,
    Load,
    Reduce,
    Select,
    Unary,
    add,
    dtype_of,
)
from flashlight.ir.nests import Nest, Program
from flashlight.ir.visit import free_dims, fresh_name, loads, substitute, walk
from flashlight.rewrite.polynomial import Polynomial, constant, expression, polynomial
from flashlight.rewrite.simplify import simplify

SMALL_PART = 64
"""The small part of a union is reduced outside the loop if it has at most so many positions."""


def split_unions(program: Program) -> Program:
    """Take the small part of a concatenation out of reductions over it, so that the large part shares its loop with others.

    Before:
        program p
          size T
          dim q: 8, kk: T + 1
          input S: f32[8, T]
          input sink: f32[1]
          nest m (q | kk) f32: max where(kk < T, S[q, kk], sink[kk - T])
          output m
    After:
        program p
          size T
          dim q: 8, kk_0: T
          input S: f32[8, T]
          input sink: f32[1]
          nest m_0 (q | kk_0) f32: max S[q, kk_0]
          nest m (q) f32: max(m_0[q], sink[0])
          output m
    Legal when: the reduced dim is the only one, a `where` compares it with one of the parts' extents, and the monoid has no position.
    """
    taken = {d.name for n in program.nests for d in (*n.parallel, *n.reduced)}
    taken |= {n.name for n in program.nests} | {b.name for b in program.inputs}
    taken |= {
        d.name for n in program.nests for x in walk(n.body) if isinstance(x, Reduce) for d in x.dims
    }
    parts: dict[tuple[Dim, Expr], tuple[Dim, Dim]] = {}
    statements: list[Nest] = []
    for nest in program.nests:
        border = _border(nest)
        if border is None:
            statements.append(nest)
            continue
        (dim,) = nest.reduced
        if (dim, border) not in parts:
            rest = expression(polynomial(dim.extent) - polynomial(border))
            names = []
            for suffix in ("_0", "_1"):
                names.append(fresh_name(dim.name + suffix, taken))
                taken.add(names[-1])
            parts[dim, border] = Dim(names[0], border), Dim(names[1], rest)
        name = fresh_name(f"{nest.name}_0", taken)
        taken.add(name)
        statements.extend(_halves(nest, border, *parts[dim, border], name))
    return (
        program
        if len(statements) == len(program.nests)
        else program.with_statements(tuple(statements))
    )


def _halves(nest: Nest, border: Expr, low: Dim, high: Dim, name: str) -> Iterator[Nest]:
    """The reduction over the large part, and the nest as its combination with the small part."""
    assert nest.monoid is not None
    (dim,) = nest.reduced
    body = {
        low: simplify(substitute(nest.body, {dim: Index(low)})),
        high: simplify(substitute(nest.body, {dim: add(border, Index(high))})),
    }
    large, small = (low, high) if _is_small(polynomial(high.extent)) else (high, low)
    main = replace(nest, name=name, reduced=(large,), dtype=nest.dtype.compute, body=body[large])
    yield main
    rest = simplify(Reduce(nest.monoid, (small,), body[small]))
    whole = Load(main.buffer, tuple(Index(d) for d in nest.parallel))
    combined = Binary(nest.monoid.combine, whole, rest)
    yield replace(nest, reduced=(), monoid=None, body=combined)


def _border(nest: Nest) -> Expr | None:
    """The first extent at which a `where` cuts the nest's only reduced dim into a large and a small part."""
    if len(nest.reduced) != 1 or nest.monoid is None or nest.monoid.is_position:
        return None
    (dim,) = nest.reduced
    for node in walk(nest.body):
        if not isinstance(node, Select):
            continue
        border = _compared(node.condition, dim)
        if border is None or not _reads_apart(node, dim):
            continue
        rest = polynomial(dim.extent) - polynomial(border)
        if _is_small(rest) != _is_small(polynomial(border)):
            return border
    return None


def _compared(condition: Expr, dim: Dim) -> Expr | None:
    """X if the condition says on which side of X the position along `dim` is."""
    match condition:
        case Unary("not", x):
            return _compared(x, dim)
        case Binary("le" | "gt", a, b) if dtype_of(a).is_int and dtype_of(b).is_int:
            slack = polynomial(b) - polynomial(a)  # a <= b where this is >= 0
        case Binary("lt" | "ge", a, b) if dtype_of(a).is_int and dtype_of(b).is_int:
            slack = polynomial(b) - polynomial(a) - constant(1)
        case _:
            return None
    here = polynomial(Index(dim))
    for border in (slack + here + constant(1), here - slack):  # dim < border, or border <= dim
        if not free_dims(expression(border)):
            return expression(border)
    return None


def _reads_apart(node: Select, dim: Dim) -> bool:
    """Whether the two branches hold different arrays, as in a cat: they read different ones along the dim."""
    if isinstance(node.a, Const) or isinstance(node.b, Const):
        return False  # a mask
    reads = [{load.buffer for load in loads(x) if dim in free_dims(load)} for x in (node.a, node.b)]
    return reads[0] != reads[1]


def _is_small(extent: Polynomial) -> bool:
    return extent.constant is not None and 0 < extent.constant <= SMALL_PART
