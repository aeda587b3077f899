"""Where two independent axes meet: which cells hold one value for each pair of rows, and which cells close such pairs.

A *pair* (X, Y) of a cell are two sets of its dims that came from different operands: the rows of Q and the rows of K in scores.
It is made by a contraction, or by a broadcasting pointwise op whose result is larger than what it reads; it is kept by whatever
reads it at both; it is *closed* by a cell that reduces over one side or reads it at a point. Sizes never make two axes one;
they only say whether a product with a weight matrix, or an outer product, is worth looking at.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from flashlight.capture.reading import Sides
from flashlight.ir.exprs import (
    COMPARISONS,
    LOGICAL,
    Binary,
    Buffer,
    Cast,
    Const,
    Dim,
    Expr,
    Index,
    Load,
    Select,
    Size,
    Unary,
)
from flashlight.ir.interpret import integer
from flashlight.ir.monoids import MAX, MIN, SUM
from flashlight.ir.visit import children, free_dims, loads, substitute, walk
from flashlight.lift.cells import Cell, Leaf, dims_beside, dims_of_load
from flashlight.lift.extents import count_of, hint, is_one
from flashlight.lift.lift import Lifter
from flashlight.rewrite.fuse import SMALL
from flashlight.rewrite.recompute import MIXED

Places = frozenset[int]

# Head dimensions go up to this; what is summed over more features is a projection.
SLIM = 256

# So many joins of joins are one.
JOINS = 4

# So many steps are looked through for what a value was packed in.
STEPS = 8


@dataclass(frozen=True)
class Pair:
    """Two sides, as positions of parallel dims of a cell.

    Attributes:
        rows: dims that came from the first operand only; empty where it has one row.
        columns: dims that came from the second.
        is_strong: made by a product of two tensors of activations; others must pay for themselves in size.
        is_slim: made by a product with a weight over few features, so that it may be one with learned keys.
        is_normal: whether a statistic of it has come back to it. A product closes a slim pair only then: what a projection
            makes goes into products too.
        normal: dims over which such statistics were taken.
        depth: how many products make one element of it.
        is_mixed: whether it is a sum of several such, one for each head.
        own: dims of the product that made it; others have come by broadcasting.
        is_level: one that must pay, read beside data of as many elements: a bias, or features that a table of positions
            turns. A product closes it only where it is normal.
    """

    rows: Places
    columns: Places
    is_strong: bool
    is_slim: bool = False
    is_normal: bool = False
    depth: int = 1
    is_mixed: bool = False
    own: Places = frozenset()
    is_level: bool = False
    normal: Places = frozenset()

    @property
    def must_pay(self) -> bool:
        return not self.is_strong and not self.is_slim


@dataclass
class Pairing:
    """What is known of one cell.

    Attributes:
        pairs: those it holds.
        closes: whether it closes pairs of `sources`; then it holds none.
        sources: names of the cells from which its pairs came.
        contraction: whether it sums products of two tensors.
        origin: whether its own operands make a pair.
        weighted: whether one operand of the contraction is a weight.
        makers: bits of the products that made its pairs.
        closed: bits of the products whose pairs were closed on the way to it.
    """

    pairs: frozenset[Pair] = frozenset()
    closes: bool = False
    sources: frozenset[str] = frozenset()
    contraction: bool = False
    origin: bool = False
    weighted: bool = False
    makers: int = 0
    closed: int = 0


@dataclass(frozen=True)
class _Incoming:
    """A pair of a producer, in dims of the reader."""

    source: str
    pair: Pair
    rows: frozenset[Dim]
    columns: frozenset[Dim]
    reach: frozenset[Dim]  # all dims along which the producer is read
    own: frozenset[Dim]  # those of the product that made the pair
    normal: frozenset[Dim]  # those over which statistics have come back to it
    is_closed: bool
    is_whole: bool  # whether closing leaves nothing of one side

    @property
    def dims(self) -> frozenset[Dim]:
        return self.rows | self.columns

    @property
    def is_separable(self) -> bool:
        return not self.rows & self.columns


@dataclass
class Pairs:
    """The analysis of a whole graph.

    Attributes:
        lifter: the lifted graph.
        hints: sizes of symbols at the first call.
        weights: whether products with weight matrices may make pairs.
        claimed: cells that are spoken for and are treated as leaves.
        settled: products whose pairs are not worth a kernel, and so are not scores but rows of what may make some (queries that
            are turned by a matrix each).
        walls: FX nodes that no region may take in, once they were asked for.
    """

    lifter: Lifter
    hints: Mapping[str, int]
    weights: bool = False
    claimed: frozenset[str] = frozenset()
    settled: frozenset[str] = frozenset()
    walls: int | None = None
    of: dict[str, Pairing] = field(default_factory=dict)
    _sources: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for cell in self.lifter.cells.values():
            self._sources[cell.name] = self._size_of_source(cell)
            if cell.name in self.claimed or cell.is_index:
                self.of[cell.name] = Pairing()
            else:
                found = self._analyse(cell)
                if cell.name in self.settled and found.origin:
                    found = replace(found, pairs=frozenset(), origin=False)
                self.of[cell.name] = found
                found.makers = self._makers(cell, found)
                found.closed = self._closed(cell)

    # -- Where pairs come from

    def cone(self, sources: Iterable[str]) -> set[str]:
        """Cells from which pairs came, back to where they were made."""
        found: set[str] = set()
        work = list(sources)
        while work:
            name = work.pop()
            if name not in found:
                found.add(name)
                work.extend(self.of[name].sources)
        return found

    def origins(self, names: Iterable[str]) -> frozenset[str]:
        """Those that make pairs."""
        return frozenset(name for name in names if self.of[name].origin)

    def sides(self, name: str) -> Iterator[str]:
        """Which sides of pairs a closer reduces."""
        cell = self.lifter.cells[name]
        reduced = set(cell.nest.reduced)
        for load in cell.loads():
            known = self.of.get(load.buffer.name)
            for pair in known.pairs if known is not None else ():
                for side, places in (("rows", pair.rows), ("columns", pair.columns)):
                    if any(free_dims(load.index[i]) & reduced for i in places):
                        yield side

    def are_few(self, name: str) -> bool:
        """Whether pairs are fewer than the elements of what made them: nothing is lost where they are written."""
        made = [self.lifter.cells[n] for n in self.origins(self.cone((name,)))]
        read = [self.count(load.buffer.name) for cell in made for load in cell.loads()]
        return self.count(name) <= max(read, default=0)

    def is_product_of(self, cell: Cell, sides: Sides) -> bool:
        """Whether a cell sums products of rows and columns over few features, for sides of its dims, of fewer elements than it has."""
        operands = self._operands(cell)
        if operands is None or not self._is_slim(cell):
            return False
        size = self.count(cell.name)
        if any(self.count(load.buffer.name) >= size for load in cell.loads()):
            return False
        dims, reach = cell.nest.parallel, [_reach(e) for e in operands]
        return any(
            not a & {dims[i] for i in columns} and not b & {dims[i] for i in rows}
            for rows, columns in sides
            if rows and columns
            for a, b in (reach, reversed(reach))
        )

    # -- Sizes

    def count(self, name: str) -> int:
        return count(name, self.lifter, self.hints)

    def _extent(self, dims: frozenset[Dim], cell: Cell) -> int:
        sizes = {
            d: hint(e, self.hints) for d, e in zip(cell.nest.parallel, cell.extents(), strict=True)
        }
        return math.prod(sizes.get(d, 1) for d in dims)

    # -- One cell

    def _analyse(self, cell: Cell) -> Pairing:
        operands = self._operands(cell)
        product = operands is not None
        weighted = operands is not None and self._is_weighted(cell, *operands)
        incoming = [i for load in cell.loads() for i in self._incoming(cell, load)]
        closed = [i for i in incoming if i.is_closed and self._pays(cell, i, weighted)]
        kept = _undominated([i for i in incoming if not i.is_closed and self._is_kept(cell, i)])
        # Scores less their own diagonal are scores, and so are those of heads that are joined.
        holds = any(cell.is_pointwise or i.dims & frozenset(cell.nest.reduced) for i in kept)
        if closed and not holds:
            sources = frozenset(i.source for i in closed)
            return Pairing(frozenset(), True, sources, product, weighted=weighted)
        mixed = [i for i in incoming if cell.contraction and self._is_mixed(cell, i)]
        if mixed:
            return self._kept(cell, mixed)
        may_keep = weighted or not cell.contraction  # gates of heads, summed with what they gate
        keeps = may_keep and operands is not None and self._is_projected(cell, *operands)
        if operands is not None and not (keeps and any(self._is_kept(cell, i) for i in incoming)):
            made = self._origin(cell, *operands, weighted)
            if made is not None or cell.contraction:
                sources = self._factors_of(cell)
                pairs = frozenset((made,)) if made is not None else frozenset[Pair]()
                return Pairing(pairs, False, sources, True, made is not None, weighted)
        if kept:
            return self._kept(cell, kept)
        has_two_sides = any(i.pair.rows and i.pair.columns for i in incoming)
        outer = self._outer_product(cell) if not has_two_sides else None
        if outer is not None:
            return Pairing(frozenset((outer,)), False, frozenset(), origin=True)
        return Pairing()

    def _kept(self, cell: Cell, incoming: list[_Incoming]) -> Pairing:
        """A reader of pairs that holds them itself."""
        places = {d: n for n, d in enumerate(cell.nest.parallel)}
        width = self._width(cell) if cell.contraction else 1
        closed = self._closed(cell)
        pairs = frozenset(
            Pair(
                frozenset(places[d] for d in i.rows if d in places),
                frozenset(places[d] for d in i.columns if d in places),
                i.pair.is_strong,
                i.pair.is_slim,
                i.pair.is_normal or bool(self.of[i.source].makers & closed),
                i.pair.depth * width,
                i.pair.is_mixed or width > 1,
                frozenset(places[d] for d in i.own if d in places),
                i.pair.is_level or (i.pair.must_pay and self._is_level(cell)),
                frozenset(places[d] for d in self._normal(cell, i) if d in places),
            )
            for i in incoming
        )
        return Pairing(pairs, False, frozenset(i.source for i in incoming), cell.contraction)

    def _normal(self, cell: Cell, incoming: _Incoming) -> frozenset[Dim]:
        """Dims over which there are statistics of a pair that a cell or those before it read beside it."""
        makers = self.of[incoming.source].makers
        read = [x for x in cell.loads() if self._bits_closed(x.buffer.name) & makers]
        return incoming.normal.union(*(incoming.dims - dims_of_load(x) for x in read))

    def _is_mixed(self, cell: Cell, incoming: _Incoming) -> bool:
        """Whether a product sums scores of a few heads, all of which are cheap enough to compute for each result."""
        pair = incoming.pair
        return (
            pair.is_strong
            and not pair.is_mixed
            and frozenset(cell.nest.reduced) <= incoming.own
            and not incoming.is_closed
            and pair.depth * self._width(cell) <= MIXED
        )

    def _width(self, cell: Cell) -> int:
        """Over how many terms a cell sums."""
        return math.prod(integer_hint(d.extent, self.hints) for d in cell.nest.reduced)

    def _makers(self, cell: Cell, found: Pairing) -> int:
        """The products that made a cell's pairs."""
        if found.origin:
            return 1 << len(self.of)
        return self._made_by(found.sources) if found.pairs else 0

    def _made_by(self, names: Iterable[str]) -> int:
        return functools.reduce(operator.or_, (self.of[n].makers for n in names), 0)

    def _closed(self, cell: Cell) -> int:
        """The products of whose pairs there are statistics, or sums of rows, among what a cell is computed from."""
        names = {load.buffer.name for load in cell.loads()}
        return functools.reduce(operator.or_, map(self._bits_closed, names), 0)

    def _bits_closed(self, name: str) -> int:
        """The products of whose pairs there are statistics in a value."""
        known = self.of.get(name)
        if known is None:
            return 0
        return known.closed | (self._made_by(known.sources) if known.closes else 0)

    def _incoming(self, cell: Cell, load: Load) -> Iterator[_Incoming]:
        known = self.of.get(load.buffer.name)
        if known is None:
            return
        producer = self.lifter.cells[load.buffer.name]
        reduced = frozenset(cell.nest.reduced)
        for pair in known.pairs:
            rows = frozenset(d for i in pair.rows for d in free_dims(load.index[i]))
            columns = frozenset(d for i in pair.columns for d in free_dims(load.index[i]))
            gone = bool(pair.rows and not rows) or bool(pair.columns and not columns)
            hit = bool((rows | columns) & reduced)
            beside = dims_beside(load, pair.rows | pair.columns)
            sides = (rows - beside, columns - beside)
            point = not hit and not gone and self._is_point(cell, producer, pair, *sides)
            point = point or self._is_small_result(cell, producer)
            whole = (
                gone
                or point
                or bool(pair.columns and columns <= reduced)
                or bool(pair.rows and rows <= reduced)
            )
            own, normal = (
                frozenset(d for i in places for d in free_dims(load.index[i]))
                for places in (pair.own, pair.normal)
            )
            hit = hit and (whole or not self._joins_heads(cell, pair, normal))
            yield _Incoming(
                *(producer.name, pair, rows, columns, dims_of_load(load), own, normal),
                is_closed=hit or gone or point,
                is_whole=whole,
            )

    def _joins_heads(self, cell: Cell, pair: Pair, normal: frozenset[Dim]) -> bool:
        """Whether a reduction over a part of a side joins a few heads, as the columns are the same for all of them.

        No statistic was taken over those, and what is left is reduced by others.
        """
        reduced = frozenset(cell.nest.reduced)
        return (
            cell.nest.monoid in (SUM, MAX, MIN)
            and bool(normal)
            and not normal & reduced
            and pair.depth * self._width(cell) <= MIXED
            and self._is_reduced_later(cell)
        )

    def _is_reduced_later(self, cell: Cell) -> bool:
        """Whether a reduction reads a cell, or what takes a few of its elements, at once or through pointwise ones."""
        size = self.count(cell.name)
        seen: set[str] = set()
        todo = [cell.name]
        while todo:
            for reader in self._readers.get(todo.pop(), ()):
                if not reader.is_pointwise or SMALL * self.count(reader.name) <= size:
                    return True
                if reader.name not in seen:
                    seen.add(reader.name)
                    todo.append(reader.name)
        return False

    @functools.cached_property
    def _readers(self) -> dict[str, list[Cell]]:
        found: dict[str, list[Cell]] = {}
        for cell in self.lifter.cells.values():
            for name in {load.buffer.name for load in cell.loads()}:
                found.setdefault(name, []).append(cell)
        return found

    def _is_point(
        self,
        cell: Cell,
        producer: Cell,
        pair: Pair,
        rows: frozenset[Dim],
        columns: frozenset[Dim],
    ) -> bool:
        """Whether a reader sees one element for each row (a diagonal, a gather) rather than the pairs in another order."""
        if not pair.rows or not pair.columns or (rows - columns and columns - rows):
            return False
        extents = [hint(e, self.hints) for e in producer.extents()]
        both = pair.rows & pair.columns  # of a relative shift: a side is then no set of axes
        apart = (pair.rows - both, pair.columns - both) if both else (pair.rows, pair.columns)
        sides = (*apart, *(frozenset((i,)) for i in both))
        longest = max(math.prod(extents[i] for i in side) for side in sides)
        return self._extent(rows | columns, cell) <= longest

    def _is_small_result(self, cell: Cell, producer: Cell) -> bool:
        """Whether a cell is returned as it is and so much smaller than the pairs it is made of that only those matter."""
        is_returned = not self.lifter.returned.isdisjoint(cell.tensors)
        return is_returned and SMALL * self.count(cell.name) <= self.count(producer.name)

    def _pays(self, cell: Cell, incoming: _Incoming, weighted: bool) -> bool:
        """Whether closing is closing: a product with a weight must use up a side, a weak pair must be the larger tensor."""
        if weighted and not incoming.is_whole:
            return False
        is_late = incoming.pair.is_slim or incoming.pair.is_level
        if is_late and cell.contraction and not incoming.pair.is_normal:
            return False
        if not incoming.pair.must_pay:
            return True
        size = self.count(incoming.source)
        return all(self.count(n) < size for n in self._data(cell) if not self._is_paired(n))

    def _is_kept(self, cell: Cell, incoming: _Incoming) -> bool:
        """Whether a pair that is read and not closed is a pair of the reader."""
        if cell.contraction and (incoming.pair.is_strong or incoming.pair.is_slim):
            return False  # scores that are mixed; but features of pairs may be projected (additive attention)
        if incoming.pair.is_strong:
            return True
        size = self.count(cell.name)
        return all(self._source(n) <= size for n in self._data(cell) if not self._is_paired(n))

    def _is_level(self, cell: Cell) -> bool:
        """Whether a cell reads as much data beside pairs as it has elements."""
        size = self.count(cell.name)
        return any(self._source(n) >= size for n in self._data(cell) if not self._is_paired(n))

    def _source(self, name: str) -> int:
        """Elements of the largest float that a value is made of by pointwise steps: a bias of slopes and distances is small."""
        return self._sources[name] if name in self._sources else self.count(name)

    def _size_of_source(self, cell: Cell) -> int:
        own = self.count(cell.name)
        if not cell.is_pointwise:
            return own
        return min(own, max(map(self._source, self._data(cell)), default=0))

    def _is_paired(self, name: str) -> bool:
        known = self.of.get(name)
        return known is not None and bool(known.pairs)

    def _data(self, cell: Cell) -> set[str]:
        """Names of the floats a cell reads, without what is made of positions only."""
        names = {load.buffer.name for load in cell.loads() if load.buffer.dtype.is_float}
        return {n for n in names if n not in self.lifter.cells or not self.lifter.cells[n].is_index}

    # -- Origins

    def _operands(self, cell: Cell) -> tuple[Expr, Expr] | None:
        """The two factors of a sum of products, or the sides of conditions that are counted, also where those are a cell of their own."""
        if cell.nest.monoid is not SUM:
            return None
        body = _without_casts(cell.nest.body)
        if isinstance(body, Load) and body.buffer.name in self.lifter.cells:
            inner = self.lifter.cells[body.buffer.name]
            if not inner.is_pointwise or inner.name in self.claimed:
                return None
            mapping = dict(zip(inner.nest.parallel, body.index, strict=True))
            body = _without_casts(substitute(inner.nest.body, mapping))
        ops = ("mul",) if cell.dtype.is_float else (*COMPARISONS, *LOGICAL)
        if not isinstance(body, Binary) or body.op not in ops:
            return None
        reduced = frozenset(cell.nest.reduced)
        sides = (_reach(body.a), _reach(body.b))
        if not all(s & reduced for s in sides):
            return None
        if sides[0] == sides[1]:
            return None
        is_nested = sides[0] < sides[1] or sides[1] < sides[0]
        if is_nested and not cell.dtype.is_float:
            return None  # a count over columns
        return body.a, body.b

    def _factors_of(self, cell: Cell) -> frozenset[str]:
        """The product cell that a sum-of-products reads, which goes where the sum goes."""
        body = _without_casts(cell.nest.body)
        return frozenset((body.buffer.name,)) if isinstance(body, Load) else frozenset()

    def _origin(self, cell: Cell, a: Expr, b: Expr, weighted: bool) -> Pair | None:
        places = {d: n for n, d in enumerate(cell.nest.parallel)}
        left, right = _reach(a) & places.keys(), _reach(b) & places.keys()
        rows = frozenset(places[d] for d in left - right)
        columns = frozenset(places[d] for d in right - left)
        if not rows and not columns:
            return None
        if not weighted:
            own = frozenset(places.values())
            return Pair(rows, columns, True, depth=self._width(cell), own=own)
        size = self.count(cell.name)
        read = [self.count(load.buffer.name) for e in (a, b) for load in loads(e)]
        if self.weights and rows and columns and all(n < size for n in read):
            return Pair(rows, columns, False)
        if self.weights and rows and columns and cell.contraction and self._is_slim(cell):
            return Pair(rows, columns, False, is_slim=True)
        return None

    def _is_slim(self, cell: Cell) -> bool:
        return self._width(cell) <= SLIM

    def _is_weighted(self, cell: Cell, a: Expr, b: Expr) -> bool:
        """Whether one factor is a parameter or what is made of one, with no batch dims in common with the other."""
        parallel = frozenset(cell.nest.parallel)
        if _reach(a) & _reach(b) & parallel:
            return False
        return self._is_parameter(a) or self._is_parameter(b)

    def _is_projected(self, cell: Cell, a: Expr, b: Expr) -> bool:
        """Whether one factor has no dims of its own: features are summed to one number for each element of the other's rest."""
        parallel = frozenset(cell.nest.parallel)
        left, right = _reach(a) & parallel, _reach(b) & parallel
        return left <= right or right <= left

    def _is_parameter(self, expr: Expr, depth: int = 6) -> bool:
        for load in loads(expr):
            name = load.buffer.name
            leaf = self.lifter.leaves.get(name)
            if leaf is not None:
                if leaf.node.op == "call_function" or not _has_shape_of_weight(leaf):
                    return False
                continue
            cell = self.lifter.cells[name]
            if cell.is_index:
                continue
            if (
                not cell.is_pointwise
                or depth == 0
                or not self._is_parameter(cell.nest.body, depth - 1)
            ):
                return False
        return True

    def _outer_product(self, cell: Cell) -> Pair | None:
        """The pair of a broadcasting pointwise op, if the result is larger than everything it reads: of data, one side may be positions."""
        if not cell.is_pointwise or not cell.dtype.is_float:
            return None
        known = self._data(cell)
        read = [load for load in cell.loads() if load.buffer.dtype.is_float]
        data = [load for load in read if load.buffer.name in known]
        positions = [load for load in read if load.buffer.name not in known]
        size = self.count(cell.name)
        if any(self.count(load.buffer.name) >= size for load in read):
            return None
        places = {d: n for n, d in enumerate(cell.nest.parallel)}
        for n, first in enumerate(data):
            for second in (*data[n + 1 :], *positions):
                a, b = dims_of_load(first), dims_of_load(second)
                if a - b and b - a:
                    rows = frozenset(places[d] for d in a - b)
                    columns = frozenset(places[d] for d in b - a)
                    return Pair(rows, columns, False)
        return None


def integer_hint(extent: Expr, hints: Mapping[str, int]) -> int:
    """The size of a dim at the first call."""
    if isinstance(extent, Const):
        return int(extent.value)
    return integer(
        extent, {s.name: hints.get(s.name, 64) for s in walk(extent) if isinstance(s, Size)}
    )


def _has_shape_of_weight(leaf: Leaf) -> bool:
    """Whether a tensor that is given may be a parameter: a batch of one shows as an axis of size 1, more than three axes too."""
    if any(str(u.target) == "aten.convolution.default" for u in leaf.node.users):
        return leaf.node in [u.args[1] for u in leaf.node.users]
    rank = len(leaf.shape)
    return rank <= 2 or (rank == 3 and not any(map(is_one, leaf.shape)))


def count(name: str, lifter: Lifter, hints: Mapping[str, int]) -> int:
    """Elements of a cell or leaf, at the first call."""
    cell = lifter.cells.get(name)
    extents = cell.extents() if cell is not None else lifter.leaves[name].shape
    return count_of(extents, hints)


@lru_cache(maxsize=20_000)
def _reach(expr: Expr) -> frozenset[Dim]:
    """Dims along which the data that an expression reads vary."""
    found: frozenset[Dim] = frozenset()
    for load in loads(expr):
        found |= dims_of_load(load)
    return found


def _undominated(incoming: list[_Incoming]) -> list[_Incoming]:
    """Pairs that cover as much as the others.

    A bias along one axis of a 2-D map, or a product that is read at a mixture of both sides (shifted, gathered), is no pair of
    the whole map: it is smaller, or has no tile form, and is better made beforehand.
    """
    whole = [i for i in incoming if i.is_separable and i.pair.is_strong]
    return [
        i
        for i in incoming
        if not any(j is not i and (not j.dims <= i.reach or not i.is_separable) for j in whole)
    ]


def _without_casts(expr: Expr) -> Expr:
    while isinstance(expr, Cast):
        expr = expr.x
    return expr


def is_cheap(cell: Cell, cells: Mapping[str, Cell]) -> bool:
    """Whether a pointwise cell is one tensor scaled, shifted or cast: nothing that is worth a trip to memory."""
    return len(_read_by(cell, cells)) <= 1 and _is_arithmetic(cell)


def unpacks(cell: Cell, lifter: Lifter, hints: Mapping[str, int]) -> bool:
    """Whether a pointwise cell scales and shifts what takes fewer bytes than it does: keys that are held as small integers."""
    if not _is_arithmetic(cell):
        return False
    read = sum(count(b.name, lifter, hints) * b.dtype.bits for b in _packed(cell, lifter.cells))
    return 0 < read < count(cell.name, lifter, hints) * cell.dtype.bits


def _packed(cell: Cell, cells: Mapping[str, Cell], depth: int = STEPS) -> set[Buffer]:
    """The tensors that a cell is made of by arithmetic, and by any steps on integers."""
    found: set[Buffer] = set()
    for buffer in _read_by(cell, cells):
        inner = cells.get(buffer.name)
        is_step = inner is not None and inner.is_pointwise and depth > 0
        if inner is not None and is_step and (not inner.dtype.is_float or _is_arithmetic(inner)):
            found |= _packed(inner, cells, depth - 1)
        else:
            found.add(buffer)
    return found


def _read_by(cell: Cell, cells: Mapping[str, Cell]) -> set[Buffer]:
    """The tensors a cell reads, without what is made of positions only."""
    read = {load.buffer for load in cell.loads()}
    return {b for b in read if b.name not in cells or not cells[b.name].is_index}


def _is_arithmetic(cell: Cell) -> bool:
    return cell.is_pointwise and all(_is_cheap_node(e) for e in _arithmetic(cell.nest.body))


def join_of(cell: Cell, cells: Mapping[str, Cell], depth: int = JOINS) -> frozenset[Dim] | None:
    """The dims along which a pointwise cell puts tensors side by side (cat, pad), or None if that is not all it does.

    What is computed only to be joined (the halves of a rotation) is not: it is written in its place anyway. Nor is a long chain of
    joins: that is a scan writing one row after the other.
    """
    if depth == 0 or not cell.is_pointwise or not isinstance(cell.nest.body, Select):
        return None
    parts = [cells[n] for n in {load.buffer.name for load in cell.loads()} if n in cells]
    for p in parts:
        if not p.is_pointwise or p.is_index or is_cheap(p, cells):
            continue
        if join_of(p, cells, depth - 1) is None:
            return None
    return _pieces(cell.nest.body, cells)


def _pieces(expr: Expr, cells: Mapping[str, Cell]) -> frozenset[Dim] | None:
    match expr:
        case Select(condition, a, b):
            sides = _pieces(a, cells), _pieces(b, cells)
            if loads(condition) or sides[0] is None or sides[1] is None:
                return None
            return free_dims(condition) | sides[0] | sides[1]
        case Cast(x, _) | Unary("neg", x):
            return _pieces(x, cells)
        case Load() | Const():
            return frozenset()
        case _:
            return None


def _arithmetic(expr: Expr) -> Iterator[Expr]:
    """Nodes of an expression, those of indices left out."""
    stack = [expr]
    while stack:
        node = stack.pop()
        yield node
        match node:
            case Cast(x, _):
                stack.append(x)
            case Binary(_, a, b):
                stack.extend((a, b))
            case Load() | Const() | Index():
                pass
            case _:
                stack.extend(children(node))


def _is_cheap_node(node: Expr) -> bool:
    match node:
        case Load() | Const() | Index() | Cast() | Size():
            return True
        case Binary(op, _, _):
            return op in ("add", "sub", "mul", "div")
        case Unary(op, _):
            return op == "neg"
        case _:
            return False
