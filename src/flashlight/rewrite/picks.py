"""Entries of scores that are compared with scores: both must come from the same tiles.

`s > s.diagonal()[:, None]` compares a score with itself where row and column are the same. An entry that is contracted by itself
rounds differently from the same entry of a tile, so that either side may be the larger. What picks one column for each row of the
tiles is their value, bit for bit, as a maximum over the row is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from flashlight.ir.exprs import (
    COMPARISONS,
    Binary,
    Const,
    Dim,
    Expr,
    Index,
    Load,
    Reduce,
    Select,
    Size,
    Unary,
    dtype_of,
)
from flashlight.ir.monoids import MAX, MIN, SUM
from flashlight.ir.nests import Nest, Program
from flashlight.ir.visit import children, free_dims, rebuild, substitute, walk
from flashlight.rewrite.names import Names

Binding = dict[Dim, Expr]


@dataclass(frozen=True)
class Score:
    """A contraction, or what is made of one, as it is read somewhere, and which of its dims are reduced there."""

    value: Expr
    reduced: frozenset[Dim]


@dataclass(frozen=True)
class Pick:
    """Of scores, the one at `column` for each row.

    Attributes:
        of: the scores, by rows and columns.
        dim: the columns.
        column: which one, by the dims of `rows`.
        rows: for each other dim of `of`, the one that it is where the entry is read.
    """

    of: Expr
    dim: Dim
    column: Expr
    rows: tuple[tuple[Dim, Dim], ...]


def pick_from_tiles(program: Program) -> Program:
    """Take entries of a contraction that are compared with all of its row from the row.

    Before:
        program p
          dim q: 8, k: 8, d: 4
          input X: f32[8, 4]
          input Y: f32[8, 4]
          nest n (q | k) i64: sum where(sum(d: X[q, d] * Y[k, d]) > sum(d: X[q, d] * Y[q, d]), 1, 0)
          output n
    After:
        program p
          dim q_row: 8, k_col: 8, d: 4, q: 8, k: 8
          input X: f32[8, 4]
          input Y: f32[8, 4]
          nest n_pick (q_row | k_col) f32: max where(k_col == q_row, sum(d: X[q_row, d] * Y[k_col, d]), -inf)
          nest n (q | k) i64: sum where(sum(d: X[q, d] * Y[k, d]) > n_pick[q], 1, 0)
          output n
    Legal when: the column is known for each row, and lies within the row.
    """
    wanted = list(dict.fromkeys(_wanted(program)))
    if not wanted:
        return program
    return _Rewriter(program, wanted).program()


def is_incomparable(program: Program) -> Nest | None:
    """A nest that compares scores with entries of theirs which are contracted by themselves."""
    nests = _by_name(program)
    for nest in program.nests:
        if any(_entry(a.value, b.value) is not None for a, b in _compared(nest, nests)):
            return nest
    return None


def _wanted(program: Program) -> Iterator[tuple[Expr, Dim]]:
    """Scores of which entries are compared with others of their rows, and the dim of the entries; whole sides of comparisons first,
    as a product and a sum of one may be rounded once or twice.
    """
    nests = _by_name(program)
    found = [
        (score.value, dim)
        for nest in program.nests
        for score, other in _compared(nest, nests)
        for dim in sorted(score.reduced & free_dims(score.value), key=lambda d: d.name)
        if _picked(score.value, dim, other.value) is not None
    ]
    yield from sorted(found, key=lambda item: isinstance(item[0], Reduce))


def _by_name(program: Program) -> dict[str, Nest]:
    return {n.name: n for n in program.nests}


def _compared(nest: Nest, nests: Mapping[str, Nest]) -> Iterator[tuple[Score, Score]]:
    """Scores that a comparison or a sign depends on without a sum between, by pairs."""
    for node in walk(nest.body):
        is_comparison = isinstance(node, Binary) and node.op in COMPARISONS
        if not is_comparison and not (isinstance(node, Unary) and node.op == "sign"):
            continue
        found = _Scores(nests)
        for side in children(node):
            found.add(side, frozenset(nest.reduced), whole=True)
        yield from ((a, b) for a in found.scores for b in found.scores if a.value is not b.value)


class _Scores:
    """Contractions whose values reach an expression as they are or by functions of one element: sums of them do not."""

    def __init__(self, nests: Mapping[str, Nest]) -> None:
        self.nests = nests
        self.scores: list[Score] = []
        self.seen: set[tuple[Expr, bool]] = set()

    def add(self, expr: Expr, reduced: frozenset[Dim], *, whole: bool = False) -> None:
        """Those of an expression. `whole`: also what is made of them, up to the next maximum."""
        if (expr, whole) in self.seen:
            return
        self.seen.add((expr, whole))
        if whole and not isinstance(expr, Reduce | Load) and self.is_score(expr):
            self.scores.append(Score(expr, reduced))
        match expr:
            case Reduce(monoid, dims, body):
                if monoid is SUM:
                    if self.is_score(expr):
                        self.scores.append(Score(expr, reduced))
                elif monoid in (MAX, MIN):
                    self.add(body, reduced | frozenset(dims), whole=True)
            case Load(buffer, index) if buffer.name in self.nests:
                nest = self.nests[buffer.name]
                body = substitute(nest.body, dict(zip(nest.parallel, index, strict=True)))
                if nest.monoid is not None:
                    body = Reduce(nest.monoid, nest.reduced, body)
                self.add(body, reduced, whole=whole)
            case _:
                for child in children(expr):
                    self.add(child, reduced)

    def is_score(self, expr: Expr) -> bool:
        """Whether an expression is made of a contraction of inputs that rounds; positions may be results."""
        parts = list(walk(expr))
        sums = any(
            isinstance(x, Reduce) and x.monoid is SUM and dtype_of(x).is_float for x in parts
        )
        indices = {y for x in parts if isinstance(x, Load) for y in walk(*x.index)}
        values = (x for x in parts if isinstance(x, Load) and x not in indices)
        return (
            sums and bool(free_dims(expr)) and all(x.buffer.name not in self.nests for x in values)
        )


# -- Entries.


def _entry(score: Expr, other: Expr) -> Binding | None:
    """What the dims of scores are in an expression of some of their rows and columns; None where that is no such expression, or the
    same with other names, or shifted.
    """
    binding = _match(score, other)
    if binding is None:
        return None
    bound = [binding[d] for d in free_dims(score)]
    plain = {x for x in bound if isinstance(x, Index)}
    known = {x.dim for x in plain}
    is_fixed = any(free_dims(x) <= known for x in set(bound) - plain)
    return binding if is_fixed or len(set(bound)) < len(bound) else None


def _picked(score: Expr, dim: Dim, other: Expr) -> Pick | None:
    """The entry of each row that an expression is, if it is one along `dim`."""
    binding = _entry(score, other)
    if binding is None:
        return None
    rows = [(d, binding[d]) for d in sorted(free_dims(score) - {dim}, key=lambda d: d.name)]
    plain = [(d, x.dim) for d, x in rows if isinstance(x, Index)]
    known = {x for _, x in plain}
    if len(known) < len(rows) or not free_dims(binding[dim]) <= known:
        return None
    return Pick(score, dim, binding[dim], tuple(plain))


def _match(pattern: Expr, expr: Expr) -> Binding | None:
    """What the free dims of one expression are in another of the same form, or None."""
    binding: Binding = {}
    inner: dict[Dim, Dim] = {}
    if not _unify(pattern, expr, binding, inner):
        return None
    own = set(inner.values())
    return None if any(free_dims(x) & own for x in binding.values()) else binding


def _unify(a: Expr, b: Expr, binding: Binding, inner: dict[Dim, Dim]) -> bool:
    match a, b:
        case Index(d), _ if d in inner:
            return isinstance(b, Index) and b.dim is inner[d]
        case Index(d), _:
            return binding.setdefault(d, b) is b
        case (Const(), _) | (Size(), _):
            return a is b
        case Reduce(monoid, dims, _), Reduce(other, others, _):
            if monoid is not other or len(dims) != len(others):
                return False
            if any(x.extent is not y.extent for x, y in zip(dims, others, strict=True)):
                return False
            inner.update(zip(dims, others, strict=True))
        case _:
            if type(a) is not type(b) or _head(a) != _head(b):
                return False
    parts = children(a), children(b)
    return len(parts[0]) == len(parts[1]) and all(
        _unify(x, y, binding, inner) for x, y in zip(*parts, strict=True)
    )


def _head(expr: Expr) -> object:
    """What makes an expression beside its parts."""
    match expr:
        case Load(buffer, _):
            return buffer
        case Unary(op, _) | Binary(op, _, _):
            return op
        case _:
            return dtype_of(expr)


# -- Rewriting.


class _Rewriter:
    """Replaces entries wherever they are contracted by themselves."""

    def __init__(self, program: Program, wanted: Iterable[tuple[Expr, Dim]]) -> None:
        self.old = program
        self.wanted = list(wanted)
        self.names = Names(program)
        self.nests: list[Nest] = []
        self.made: dict[Pick, Nest] = {}
        self.done: dict[Expr, Expr] = {}

    def program(self) -> Program:
        for nest in self.old.nests:
            self.nests.append(self.rewritten(nest))
        return self.old.with_statements(tuple(self.nests))

    def rewritten(self, nest: Nest) -> Nest:
        if nest.monoid is SUM and (found := self.pick(Reduce(SUM, nest.reduced, nest.body))):
            return replace(nest, reduced=(), monoid=None, body=self.load(found, nest.name))
        return replace(nest, body=self.without(nest.body, nest.name))

    def without(self, expr: Expr, reader: str) -> Expr:
        """An expression with entries read; the largest parts first."""
        if expr not in self.done:
            found = self.pick(expr)
            if found is not None:
                self.done[expr] = self.load(found, reader)
            else:
                parts = tuple(self.without(x, reader) for x in children(expr))
                self.done[expr] = rebuild(expr, parts)
        return self.done[expr]

    def pick(self, expr: Expr) -> Pick | None:
        found = (_picked(score, dim, expr) for score, dim in self.wanted)
        return next((x for x in found if x is not None), None)

    def load(self, pick: Pick, reader: str) -> Expr:
        """The entry, read from a nest of all rows'."""
        if pick not in self.made:
            self.made[pick] = self.nest(pick, reader)
            self.nests.append(self.made[pick])
        return Load(self.made[pick].buffer, tuple(Index(x) for _, x in pick.rows))

    def nest(self, pick: Pick, reader: str) -> Nest:
        rows = {d: self.dim(d, "row") for d, _ in pick.rows}
        column = self.dim(pick.dim, "col")
        own: dict[Dim, Expr] = {d: Index(x) for d, x in rows.items()}
        score = substitute(pick.of, {**own, pick.dim: Index(column)})
        read = {x: own[d] for d, x in pick.rows}
        is_it = Binary("eq", Index(column), substitute(pick.column, read))
        dtype = dtype_of(score)
        body = Select(is_it, score, Const(-math.inf, dtype))
        name = self.names.fresh(f"{reader}_pick")
        return Nest(name, tuple(rows.values()), (column,), dtype, MAX, body)

    def dim(self, like: Dim, role: str) -> Dim:
        return Dim(self.names.fresh(f"{like.name}_{role}"), like.extent)
