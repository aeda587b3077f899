"""One program for all spellings: inputs as the views that are read, nests in order of need, names by role."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from flashlight.ir.exprs import ZERO, Buffer, Const, Dim, Expr, Index, Load, Reduce, Size
from flashlight.ir.nests import Nest, Program
from flashlight.ir.visit import free_dims, loads, replace_loads, rewrite, substitute, walk
from flashlight.rewrite.polynomial import (
    Polynomial,
    constant,
    expression,
    is_within,
    polynomial,
)
from flashlight.rewrite.simplify import simplify


@dataclass(frozen=True, slots=True)
class AxisView:
    """How one axis of an input is read: from `start`, every `step`-th element, as axes of the extents `sizes` (row-major).

    `sizes` is empty for an axis of which one element is taken (a select).
    """

    start: Expr
    step: int
    sizes: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class InputView:
    """An input of a canonical program as a view of an input of the program before: never a copy.

    Attributes:
        buffer: the new input.
        source: name of the old one.
        axes: for each axis of the old one, how it is read; together they make the new axes, before `order`.
        order: for each axis of the new input, which of those axes it is.
    """

    buffer: Buffer
    source: str
    axes: tuple[AxisView, ...]
    order: tuple[int, ...]


def canonicalize(program: Program) -> tuple[Program, tuple[InputView, ...]]:
    """Order nests, turn inputs into the strided views that are read, and name everything by role.

    Before:
        program spelled
          dim i0: 8, e0: 4, j0: 8
          input packed: f32[8, 3, 4]
          nest out (i0, e0 | j0) f32: sum packed[i0, 0, e0] * packed[j0, 1, e0]
          output out
    After:
        program canonical
          dim q: 8, e: 4, k: 8
          input x0: f32[8, 4]
          input x1: f32[8, 4]
          nest y0 (q, e | k) f32: sum x0[q, e] * x1[k, e]
          output y0
    Legal when: always. An index that is no view of the input (a gather, a clamped position) keeps its axis as it is.
    """
    renamed, views, _ = _canonical(program)
    return renamed, views


def canonical_sizes(program: Program) -> tuple[Size, ...]:
    """The sizes of a program in the order in which its canonical form takes them."""
    return _canonical(program)[2]


def _canonical(program: Program) -> tuple[Program, tuple[InputView, ...], tuple[Size, ...]]:
    program = replace(program, statements=tuple(_in_order_of_need(program)))
    program, views = _view_inputs(program)
    return _rename(program, views)


# -- Order


def _in_order_of_need(program: Program) -> Iterator[Nest]:
    by_name = {n.name: n for n in program.nests}
    seen: set[str] = set()

    def visit(name: str) -> Iterator[Nest]:
        if name in seen or name not in by_name:
            return
        seen.add(name)
        for load in loads(by_name[name].body):
            yield from visit(load.buffer.name)
        yield by_name[name]

    for output in program.outputs:
        yield from visit(output)


# -- Inputs


def _view_inputs(program: Program) -> tuple[Program, list[InputView]]:
    inputs = {b.name for b in program.inputs}
    views: dict[tuple[str, tuple[AxisView | None, ...]], InputView] = {}
    nests = []
    for nest in program.nests:
        rank = {d: i for i, d in enumerate(_dims_in_order(nest))}

        def rule(load: Load, rank: dict[Dim, int] = rank) -> Expr | None:
            if load.buffer.name not in inputs:
                return None
            return _view_of(load, rank, views)

        nests.append(replace(nest, body=replace_loads(nest.body, rule)))
    ordered = list(views.values())
    program = replace(program, inputs=tuple(v.buffer for v in ordered), statements=tuple(nests))
    return program, ordered


def _dims_in_order(nest: Nest) -> list[Dim]:
    """Rows, then what is reduced, then features and inner dims: the order in which arrays are usually laid out."""
    roles = list(_roles(nest))
    rows = [d for d, role in roles if role != "e"]
    inner = [d for node in walk(nest.body) if isinstance(node, Reduce) for d in node.dims]
    return list(dict.fromkeys((*rows, *(d for d, _ in roles), *inner)))


def _view_of(
    load: Load,
    rank: dict[Dim, int],
    views: dict[tuple[str, tuple[AxisView | None, ...]], InputView],
) -> Load:
    axes: list[AxisView] = []
    index: list[Expr] = []
    key: list[AxisView | None] = []
    for extent, position in zip(load.buffer.shape, load.index, strict=True):
        found = _axis_view(position, extent)
        if found is None:
            axes.append(AxisView(ZERO, 1, (extent,)))
            index.append(position)
            key.append(None)
        else:
            axes.append(found[0])
            index.extend(found[1])
            key.append(found[0])
    view = views.get((load.buffer.name, tuple(key)))
    if view is None:
        sizes = [s for a in axes for s in a.sizes]
        order = sorted(range(len(sizes)), key=lambda i: _axis_rank(index[i], rank, i))
        buffer = Buffer(f"x{len(views)}'", tuple(sizes[i] for i in order), load.buffer.dtype)
        view = InputView(buffer, load.buffer.name, tuple(axes), tuple(order))
        views[load.buffer.name, tuple(key)] = view
    return Load(view.buffer, tuple(index[i] for i in view.order))


def _axis_rank(position: Expr, rank: dict[Dim, int], axis: int) -> tuple[int, int]:
    """Axes indexed by a plain dim come in the order of the dims, others after them as they stand."""
    if isinstance(position, Index) and position.dim in rank:
        return rank[position.dim], axis
    return len(rank), axis


def _axis_view(position: Expr, extent: Expr) -> tuple[AxisView, tuple[Expr, ...]] | None:
    """The view under which a position is a tuple of plain dims, or None if there is none."""
    p = polynomial(position)
    if p.constant is not None:
        inside = is_within(p, 0, polynomial(extent) - constant(1))
        return (AxisView(position, 1, ()), ()) if inside else None
    terms: list[tuple[Dim, Polynomial]] = []
    offset = Polynomial.of(())
    for monomial, coefficient in p.terms:
        dims = [a for a in monomial if isinstance(a, Index)]
        rest = tuple(a for a in monomial if not isinstance(a, Index))
        if (
            len(dims) > 1
            or not all(isinstance(a, Size) for a in rest)
            or (dims and coefficient < 0)
        ):
            return None
        if dims:
            terms.append((dims[0].dim, Polynomial.of([(rest, coefficient)])))
        else:
            offset = offset + Polynomial.of([(rest, coefficient)])
    if len({d for d, _ in terms}) != len(terms):
        return None
    ordered = _mixed_radix(terms)
    if ordered is None or not is_within(p, 0, polynomial(extent) - constant(1)):
        return None
    dims_in_order, step = ordered
    sizes = tuple(d.extent for d in dims_in_order)
    return AxisView(expression(offset), step, sizes), tuple(Index(d) for d in dims_in_order)


def _mixed_radix(terms: list[tuple[Dim, Polynomial]]) -> tuple[list[Dim], int] | None:
    """Dims from outermost to innermost if the strides are those of a row-major split of a range with a constant step."""
    left = list(terms)
    constants = [c.constant for _, c in left if c.constant is not None]
    if not constants:
        return None
    step = min(constants)
    stride = constant(step)
    inner_first: list[Dim] = []
    while left:
        match = next((t for t in left if t[1] == stride), None)
        if match is None:
            return None
        left.remove(match)
        inner_first.append(match[0])
        stride = stride * polynomial(match[0].extent)
    return inner_first[::-1], step


# -- Names


def _rename(
    program: Program, views: list[InputView]
) -> tuple[Program, tuple[InputView, ...], tuple[Size, ...]]:
    sizes: dict[Size, Size] = {}
    names = _Names()
    bound: dict[tuple[int, int, Expr], Dim] = {}
    buffers: dict[str, Buffer] = {}
    new_views = []
    for i, view in enumerate(views):
        shape = tuple(_rename_sizes(e, sizes) for e in view.buffer.shape)
        buffers[view.buffer.name] = Buffer(names.take(f"x{i}"), shape, view.buffer.dtype)
        new_views.append(replace(view, buffer=buffers[view.buffer.name]))
    statements = []
    for nest in program.nests:
        dims = {
            d: Dim(names.take(role), _rename_sizes(d.extent, sizes)) for d, role in _roles(nest)
        }
        if nest.name in program.outputs:
            name = names.take(f"y{program.outputs.index(nest.name)}")
        else:
            name = names.take(str(nest.monoid or "map"))
        new = replace(
            nest,
            name=name,
            parallel=tuple(dims[d] for d in nest.parallel),
            reduced=tuple(dims[d] for d in nest.reduced),
            body=simplify(_rename_body(nest.body, dims, buffers, sizes, bound, names)),
        )
        buffers[nest.name] = new.buffer
        statements.append(new)
    renamed = Program(
        name="canonical",
        sizes=tuple(sizes.values()),
        inputs=tuple(v.buffer for v in new_views),
        statements=tuple(statements),
        outputs=tuple(buffers[o].name for o in program.outputs),
    )
    return renamed, tuple(new_views), tuple(sizes)


class _Names:
    """Unique names in order of demand: q, q1, q2, ..."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, stem: str) -> str:
        name, n = stem, 0
        while name in self._taken:
            n += 1
            name = f"{stem}_{n}" if stem[-1].isdigit() else f"{stem}{n}"
        self._taken.add(name)
        return name


def _roles(nest: Nest) -> Iterator[tuple[Dim, str]]:
    """A stem for each dim of a nest: rows q after batch-like b, h, g; k for what it reduces; e for features."""
    inner = [d for node in walk(nest.body) if isinstance(node, Reduce) for d in node.dims]
    paired = {d for node in walk(nest.body) if isinstance(node, Reduce) for d in free_dims(node)}
    paired |= (
        {d for load in loads(nest.body) for i in load.index for d in free_dims(i)}
        if not paired
        else set()
    )
    is_feature = [d not in paired for d in nest.parallel]
    if nest.reduced and not inner and len(nest.parallel) > 1:
        is_feature[-1] = True
    rows = [d for d, feature in zip(nest.parallel, is_feature, strict=True) if not feature]
    batch = iter("bhg")
    for dim in nest.parallel:
        if dim not in rows:
            yield dim, "e"
        elif dim is rows[-1]:
            yield dim, "q"
        else:
            yield dim, next(batch, "i")
    for dim in nest.reduced:
        yield dim, "k"


def _rename_sizes(extent: Expr, sizes: dict[Size, Size]) -> Expr:
    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Size):
            return sizes.setdefault(node, Size(f"n{len(sizes)}"))
        return None

    return extent if isinstance(extent, Const) else rewrite(extent, rule)


def _rename_body(
    body: Expr,
    dims: dict[Dim, Dim],
    buffers: dict[str, Buffer],
    sizes: dict[Size, Size],
    bound: dict[tuple[int, int, Expr], Dim],
    names: _Names,
) -> Expr:
    """The body under new names. Bound dims are named by depth, position and extent, so that equal inner sums are one node."""
    height: dict[Expr, int] = {}

    def rule(node: Expr) -> Expr | None:
        match node:
            case Index(dim) if dim in dims:
                return Index(dims[dim])
            case Load(buffer, index):
                return Load(buffers[buffer.name], index)
            case Reduce(monoid, old, inner):
                level = 1 + max((height[n] for n in walk(inner) if n in height), default=0)
                fresh = []
                for position, dim in enumerate(old):
                    extent = _rename_sizes(dim.extent, sizes)
                    key = (level, position, extent)
                    if key not in bound:
                        bound[key] = Dim(names.take("d"), extent)
                    fresh.append(bound[key])
                mapping = {o: Index(f) for o, f in zip(old, fresh, strict=True)}
                new = Reduce(monoid, tuple(fresh), substitute(inner, mapping))
                height[new] = level
                return new
            case Size():
                return sizes.setdefault(node, Size(f"n{len(sizes)}"))
            case _:
                return None

    return rewrite(body, rule)
