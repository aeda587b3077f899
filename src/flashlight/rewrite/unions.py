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
from flashlight.ir.visit import free_dims, loads, rewrite, substitute, walk
from flashlight.rewrite.names import Names
from flashlight.rewrite.polynomial import constant, expression, polynomial
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
    names = Cuts(program)
    statements: list[Nest] = []
    for nest in program.nests:
        body = _with_parts(nest.body, names)
        statements.extend(_parts(nest if body is nest.body else replace(nest, body=body), names))
    return (
        program if statements == list(program.nests) else program.with_statements(tuple(statements))
    )


class Cuts(Names):
    """Names that are free, and the parts of dims that were cut: equal cuts make equal parts."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._cuts: dict[tuple[Dim, Expr], tuple[Dim, Dim]] = {}

    def parts(self, dim: Dim, border: Expr) -> tuple[Dim, Dim]:
        """The dim up to the border, and from there on."""
        if (dim, border) not in self._cuts:
            rest = expression(polynomial(dim.extent) - polynomial(border))
            low, high = (self.fresh(dim.name + suffix) for suffix in ("_0", "_1"))
            self._cuts[dim, border] = Dim(low, border), Dim(high, rest)
        return self._cuts[dim, border]


def has_small_part(body: Expr, dim: Dim) -> bool:
    """Whether a `where` cuts the dim into parts of which one is small."""
    return any(_is_cut_off(dim, border) for border in _borders(body, dim))


def _parts(nest: Nest, names: Cuts) -> Iterator[Nest]:
    """The reduction over the large part (which may have another border), and the nest as its combination with the small part."""
    border = _border(nest)
    if border is None:
        yield nest
        return
    assert nest.monoid is not None
    (dim,) = nest.reduced
    low, high = names.parts(dim, border)
    body = _halves(nest.body, dim, border, low, high)
    large, small = (high, low) if _is_smaller(low, high) else (low, high)
    main = replace(
        nest,
        name=names.fresh(f"{nest.name}_0"),
        reduced=(large,),
        dtype=nest.dtype.compute,
        body=body[large],
    )
    yield from _parts(main, names)
    rest = _with_parts(simplify(Reduce(nest.monoid, (small,), body[small])), names)
    whole = Load(main.buffer, tuple(Index(d) for d in nest.parallel))
    combined = Binary(nest.monoid.combine, whole, rest)
    yield replace(nest, reduced=(), monoid=None, body=combined)


def _halves(body: Expr, dim: Dim, border: Expr, low: Dim, high: Dim) -> dict[Dim, Expr]:
    return {
        low: simplify(substitute(body, {dim: Index(low)})),
        high: simplify(substitute(body, {dim: add(border, Index(high))})),
    }


def _with_parts(expr: Expr, names: Cuts) -> Expr:
    """The expression with inner reductions over a join (of features) as the combination of the parts', whatever their sizes."""

    def rule(node: Expr) -> Expr | None:
        if not isinstance(node, Reduce) or node.monoid.is_position or len(node.dims) != 1:
            return None
        (dim,) = node.dims
        border = next(_borders(node.body, dim), None)
        if border is None:
            return None
        low, high = names.parts(dim, border)
        body = _halves(node.body, dim, border, low, high)
        parts = (_with_parts(Reduce(node.monoid, (d,), body[d]), names) for d in (low, high))
        return Binary(node.monoid.combine, *(simplify(p) for p in parts))

    return rewrite(expr, rule)


def _border(nest: Nest) -> Expr | None:
    """The first extent at which a `where` cuts a small part off the nest's only reduced dim."""
    if len(nest.reduced) != 1 or nest.monoid is None or nest.monoid.is_position:
        return None
    (dim,) = nest.reduced
    return next((b for b in _borders(nest.body, dim) if _is_cut_off(dim, b)), None)


def _borders(body: Expr, dim: Dim) -> Iterator[Expr]:
    """Where along the dim a `where` goes from one array to another."""
    for node in walk(body):
        if isinstance(node, Select):
            border = _compared(node.condition, dim)
            if border is not None and _reads_apart(node, dim):
                yield border


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


def _is_cut_off(dim: Dim, border: Expr) -> bool:
    """Whether one part is small, so that what is computed of it may stand outside of the loop."""
    sizes = polynomial(border), polynomial(dim.extent) - polynomial(border)
    return any(n.constant is not None and 0 < n.constant <= SMALL_PART for n in sizes)


def _is_smaller(low: Dim, high: Dim) -> bool:
    sizes = polynomial(low.extent).constant, polynomial(high.extent).constant
    return sizes[0] is not None and (sizes[1] is None or sizes[0] <= sizes[1])
