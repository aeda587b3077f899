"""Structural fusion: a load of a nest becomes the nest's body (algebra.md, section 3)."""

from __future__ import annotations

from collections.abc import Container, Set
from dataclasses import replace
from functools import lru_cache

from flashlight.errors import CompileError
from flashlight.ir.exprs import Cast, Const, Dim, Expr, Load, Reduce, dtype_of
from flashlight.ir.monoids import SUM
from flashlight.ir.nests import Nest, Program
from flashlight.ir.visit import free_dims, loads, replace_loads, substitute, walk
from flashlight.rewrite.recompute import Read, is_cheaper_than_read, is_joint, is_mixed
from flashlight.rewrite.roles import elements
from flashlight.rewrite.simplify import simplify

SMALL_CONTRACTION = 64
"""A contraction over at most so many terms may be recomputed for every element of a dim that it does not depend on."""

SMALL = 4
"""A reader of a contraction that reduces nothing takes it where it reads this many times fewer elements than there are; capture
(`capture.pairs`, `capture.regions`) counts on that.
"""

FEW = 8
"""A sum of so many terms inside another one is part of its body: coordinates, not features."""

LARGEST = 1500
"""No program may have more distinct subexpressions. Those of attention have tens, or hundreds."""

MOST_NESTS = 256
"""Nor more nests: those of the largest attention are half as many, and a scan of thousands would take long to be found too large."""


class TooLargeError(CompileError):
    """Substitution multiplies the work: each step of a scan reads the step before at several places, or between two reductions."""


def fuse(program: Program) -> Program:
    """Substitute pointwise nests into all readers, and contractions into readers that reduce over one of their dims (demotion).

    Before:
        program p
          dim q: 8, k: 8, d: 4, i: 8, j: 8, t: 8
          input Q: f32[8, 4]
          input K: f32[8, 4]
          nest scores (q, k | d) f32: sum Q[q, d] * K[k, d]
          nest half (i, j) f32: scores[i, j] * 0.5
          nest peak (t | j) f32: max half[t, j]
          output peak
    After:
        program p
          dim t: 8, j: 8, d: 4
          input Q: f32[8, 4]
          input K: f32[8, 4]
          nest peak (t | j) f32: max sum(d: Q[t, d] * K[j, d]) * 0.5
          output peak
    Legal when: always, for any index map: a reduced dim that the map would capture is renamed apart. Which contractions move is
    a matter of cost, see `is_demoted`. Raises TooLargeError where bodies would grow out of bounds. A 16-bit nest leaves a cast
    behind, so that `online` can see what was rounded.
    """
    if len(program.nests) > MOST_NESTS:
        raise TooLargeError(f"The region has {len(program.nests)} steps.")
    outputs = set(program.outputs)
    done: dict[str, Nest] = {}
    for nest in program.nests:
        body = replace_loads(nest.body, lambda load: _pointwise_value(load, done))
        _check_size(body)
        body = _demote(nest, simplify(body), done, outputs)
        done[nest.name] = _merged_sum(replace(nest, body=simplify(body)))
    fused = _reachable(program.with_statements(tuple(done.values())))
    _check_size(*(nest.body for nest in fused.nests))
    return fused


def _check_size(*bodies: Expr) -> None:
    if sum(1 for _ in walk(*bodies)) > LARGEST:
        raise TooLargeError(
            "What the region computes, each step in terms of its inputs, is too large."
        )


def _pointwise_value(load: Load, done: dict[str, Nest]) -> Expr | None:
    nest = done.get(load.buffer.name)
    if nest is None or nest.monoid is not None:
        return None
    return value_at(nest, load.index)


def value_at(nest: Nest, index: tuple[Expr, ...]) -> Expr:
    """The expression that a load of `nest` at `index` stands for, with the nest's rounding as a cast."""
    mapping = dict(zip(nest.parallel, index, strict=True))
    body: Expr = nest.body
    if nest.monoid is not None:
        body = Reduce(nest.monoid, nest.reduced, body)
    value = substitute(body, mapping)
    return value if dtype_of(value) is nest.dtype else Cast(value, nest.dtype)


def _demote(reader: Nest, body: Expr, done: dict[str, Nest], outputs: set[str]) -> Expr:
    """The body with contractions in the place of what reads them, and with those that they read."""
    while True:
        new = _demote_once(reader, body, done, outputs)
        if new is body:
            return body
        body = new


def _demote_once(reader: Nest, body: Expr, done: dict[str, Nest], outputs: set[str]) -> Expr:
    candidates = [c for c in loads(body) if is_flat_contraction(done.get(c.buffer.name))]
    if not candidates:
        return body
    paired = {d for c in candidates for i in c.index for d in free_dims(i)}
    paired |= {d for node in walk(body) if isinstance(node, Reduce) for d in free_dims(node)}

    def rule(load: Load) -> Expr | None:
        nest = done.get(load.buffer.name)
        if nest is None or not is_flat_contraction(nest):
            return None
        is_output = nest.name in outputs
        if not is_demoted(nest, load, reader, paired, stored=done, is_output=is_output):
            return None
        return value_at(nest, load.index)

    return replace_loads(body, rule)


def _merged_sum(nest: Nest) -> Nest:
    """A sum whose body is nothing but a sum is one sum over the dims of both."""
    whole = simplify(Reduce(SUM, nest.reduced, nest.body)) if nest.monoid is SUM else None
    if isinstance(whole, Reduce) and set(nest.reduced) < set(whole.dims):
        return replace(nest, reduced=whole.dims, body=whole.body)
    return nest


@lru_cache(maxsize=10_000)
def is_flat_contraction(nest: Nest | None) -> bool:
    """A sum, or another reduction of features of pairs, whose body holds no further reduction.

    What is made of pairs may hold sums over a few terms (of two points), and dots (the scores of several heads).
    """
    if nest is None or not nest.reduced or (nest.monoid is not SUM and not is_joint(nest)):
        return False
    inner = [node for node in walk(nest.body) if isinstance(node, Reduce)]
    return not inner or (
        is_joint(nest) and (all(elements(r.dims) <= FEW for r in inner) or is_mixed(nest))
    )


def is_demoted(
    nest: Nest,
    load: Load,
    reader: Nest,
    paired: Set[Dim],
    *,
    stored: Container[str] = (),
    is_output: bool = False,
) -> bool:
    """Whether the contraction `nest` is recomputed inside `reader` instead of being stored; `paired`: dims on which contractions of
    the reader depend.

    It is when the reader reduces over a dim on which the element read depends, and nothing is computed twice: every parallel dim
    of the reader that the element does not depend on is one that no contraction of the reader depends on either (a value's
    feature dim). A tiny contraction may be computed again, and one that is no dot where that is cheap enough (`recompute`). A
    pointwise reader takes it only where it reads fewer elements than the nest has (a gather, a diagonal).
    """
    index_dims = (
        frozenset[Dim]().union(*(free_dims(i) for i in load.index)) if load.index else frozenset()
    )
    if not reader.reduced:
        are_fewer = SMALL * elements(index_dims) <= elements(nest.parallel)
        return not is_output and (len(index_dims) < len(nest.parallel) or are_fewer)
    reduced = frozenset(reader.reduced)
    if not index_dims & reduced:
        return is_joint(nest) and not _may_share(nest, reader) and is_cheaper_than_read(nest)
    missing = set(reader.parallel) - index_dims
    columns = {d for d, i in zip(nest.parallel, load.index, strict=True) if free_dims(i) & reduced}
    read = Read(nest, frozenset(columns), elements(missing & paired))
    if read.reads_again(stored):
        return False
    if is_joint(nest):
        return read.is_computed()
    if not missing & paired:
        return True
    return all(
        isinstance(d.extent, Const) and d.extent.value <= SMALL_CONTRACTION for d in nest.reduced
    )


def _may_share(nest: Nest, reader: Nest) -> bool:
    """Whether one loop may compute both: they reduce over dims of equal extents."""
    return {d.extent for d in nest.reduced} == {d.extent for d in reader.reduced}


def _reachable(program: Program) -> Program:
    """Drop nests that no output needs."""
    by_name = {n.name: n for n in program.nests}
    needed: set[str] = set()
    todo = [name for name in program.outputs if name in by_name]
    while todo:
        name = todo.pop()
        if name in needed:
            continue
        needed.add(name)
        todo.extend(
            load.buffer.name for load in loads(by_name[name].body) if load.buffer.name in by_name
        )
    return program.with_statements(tuple(n for n in program.nests if n.name in needed))
