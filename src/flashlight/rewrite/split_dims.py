"""Split parallel dims into the factors by which they are indexed."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from flashlight.ir.exprs import Binary, Buffer, Dim, Expr, Index, Load, add, floordiv, mod, mul
from flashlight.ir.nests import Nest, Program
from flashlight.ir.visit import loads, replace_loads, substitute, walk
from flashlight.rewrite.polynomial import Polynomial, expression, is_positive, polynomial
from flashlight.rewrite.simplify import simplify

Axis = tuple[str, int]
"""A nest's name and the position of one of its parallel dims."""


def split_dims(program: Program) -> Program:
    """Replace a parallel dim that is read through `// c` and `% c` by its factors, in every nest that is indexed alike.

    Merged batch and head dims, and query heads that share a key head, become dims of their own, whatever the spelling.

    Before:
        program p
          dim bh: 6, d: 4
          input Q: f32[2, 3, 4]
          nest y (bh | d) f32: sum Q[bh // 3, bh % 3, d]
          output y
    After:
        program p
          dim bh_0: 2, bh_1: 3, d: 4
          input Q: f32[2, 3, 4]
          nest y (bh_0, bh_1 | d) f32: sum Q[bh_0, bh_1, d]
          output y
    Legal when: the divisors divide each other and the extent; an output keeps its elements in the same order, with more axes.
    """
    for _ in range(4):  # a split may bring a division of a factor to light
        new = _split_once(program)
        if new is program:
            return program
        program = new
    return program


def _split_once(program: Program) -> Program:
    nests = {n.name: n for n in program.nests}
    group = _linked_axes(nests)
    divisors: defaultdict[Axis, set[Expr]] = defaultdict(set)
    for nest in nests.values():
        for position, dim in enumerate(nest.parallel):
            divisors[group[nest.name, position]] |= _divisors(nest.body, dim)
    factors: dict[Axis, tuple[Expr, ...]] = {}
    for axis, root in group.items():
        nest = nests[axis[0]]
        split = _factors(nest.parallel[axis[1]].extent, divisors[root])
        if split is not None:
            factors[axis] = split
    if not factors:
        return program
    return program.with_statements(tuple(_split_nest(n, factors, nests) for n in nests.values()))


def _linked_axes(nests: dict[str, Nest]) -> dict[Axis, Axis]:
    """Union of axes where one nest reads another at exactly its own dim: they are split together or not at all."""
    parent: dict[Axis, Axis] = {
        (n.name, i): (n.name, i) for n in nests.values() for i in range(len(n.parallel))
    }

    def find(axis: Axis) -> Axis:
        while parent[axis] != axis:
            axis = parent[axis]
        return axis

    for nest in nests.values():
        positions = {d: i for i, d in enumerate(nest.parallel)}
        for load in loads(nest.body):
            if load.buffer.name not in nests:
                continue
            for i, index in enumerate(load.index):
                if isinstance(index, Index) and index.dim in positions:
                    parent[find((load.buffer.name, i))] = find((nest.name, positions[index.dim]))
    return {axis: find(axis) for axis in parent}


def _divisors(body: Expr, dim: Dim) -> set[Expr]:
    """c for every `dim // c` and `dim % c` in the body."""
    found = set()
    for node in walk(body):
        if isinstance(node, Binary) and node.op in ("floordiv", "mod"):
            if node.a is Index(dim):
                found.add(node.b)
            elif isinstance(node.a, Binary) and node.a.op == "floordiv" and node.a.a is Index(dim):
                found |= {node.a.b, expression(polynomial(node.a.b) * polynomial(node.b))}
    return found


def _factors(extent: Expr, divisors: set[Expr]) -> tuple[Expr, ...] | None:
    """Extents of the factors, outermost first, or None if there is nothing to split or the divisors do not nest."""
    whole = polynomial(extent)
    chain: list[Polynomial] = []
    todo = {d: polynomial(d) for d in divisors}
    todo = {d: p for d, p in todo.items() if is_positive(p) and p.constant != 1 and p != whole}
    inner = Polynomial.of([((), 1)])
    while todo:
        # the divisor that divides all others comes next
        nexts = [
            p for p in todo.values() if all(_quotient(o, p) is not None for o in todo.values())
        ]
        if not nexts:
            return None
        step = _quotient(nexts[0], inner)
        if step is None:
            return None
        chain.append(step)
        inner = nexts[0]
        todo = {d: p for d, p in todo.items() if p != inner}
    if not chain:
        return None
    outer = _quotient(whole, inner)
    if outer is None or outer.constant == 1:
        return None
    return tuple(expression(p) for p in (outer, *reversed(chain)))


def _quotient(p: Polynomial, d: Polynomial) -> Polynomial | None:
    """p / d where d is a single term that divides every term of p."""
    if len(d.terms) != 1:
        return Polynomial.of([((), 1)]) if p == d else None
    atoms, scale = d.terms[0]
    terms = []
    for monomial, coefficient in p.terms:
        left = list(monomial)
        for atom in atoms:
            if atom not in left:
                return None
            left.remove(atom)
        if coefficient % scale:
            return None
        terms.append((tuple(left), coefficient // scale))
    return Polynomial.of(terms)


def _split_nest(nest: Nest, factors: dict[Axis, tuple[Expr, ...]], nests: dict[str, Nest]) -> Nest:
    mapping: dict[Dim, Expr] = {}
    parallel: list[Dim] = []
    for i, dim in enumerate(nest.parallel):
        extents = factors.get((nest.name, i))
        if extents is None:
            parallel.append(dim)
            continue
        parts = [Dim(f"{dim.name}_{n}", e) for n, e in enumerate(extents)]
        position: Expr = Index(parts[0])
        for part in parts[1:]:
            position = add(mul(position, part.extent), Index(part))
        mapping[dim] = position
        parallel.extend(parts)
    body = simplify(substitute(nest.body, mapping))
    new = {n: _split_shape(nests[n], factors) for n, _ in factors}
    body = replace_loads(body, lambda load: _split_load(load, factors, new))
    return replace(nest, parallel=tuple(parallel), body=simplify(body))


def _split_shape(nest: Nest, factors: dict[Axis, tuple[Expr, ...]]) -> tuple[Expr, ...]:
    shape: list[Expr] = []
    for i, dim in enumerate(nest.parallel):
        shape.extend(factors.get((nest.name, i), (dim.extent,)))
    return tuple(shape)


def _split_load(
    load: Load, factors: dict[Axis, tuple[Expr, ...]], shapes: dict[str, tuple[Expr, ...]]
) -> Expr | None:
    name = load.buffer.name
    if name not in shapes:
        return None
    index: list[Expr] = []
    for i, position in enumerate(load.index):
        extents = factors.get((name, i))
        if extents is None:
            index.append(position)
            continue
        parts: list[Expr] = []
        for extent in reversed(extents[1:]):
            parts.append(mod(position, extent))
            position = floordiv(position, extent)
        index.extend(reversed([*parts, position]))
    buffer = Buffer(name, shapes[name], load.buffer.dtype)
    return Load(buffer, tuple(simplify(i) for i in index))
