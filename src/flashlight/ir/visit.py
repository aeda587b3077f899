"""Walks over expressions. All are memoised by identity, so shared subtrees cost once."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from functools import lru_cache
from typing import assert_never

from flashlight.ir.exprs import (
    Binary,
    Cast,
    Const,
    Dim,
    Expr,
    Index,
    Load,
    Reduce,
    Select,
    Size,
    Unary,
)


def children(expr: Expr) -> tuple[Expr, ...]:
    """Direct subexpressions, indices of a load included; extents of dims are not."""
    match expr:
        case Const() | Size() | Index():
            return ()
        case Load(_, index):
            return index
        case Unary(_, x) | Cast(x, _) | Reduce(_, _, x):
            return (x,)
        case Binary(_, a, b):
            return (a, b)
        case Select(c, a, b):
            return (c, a, b)
        case _:
            assert_never(expr)


def rebuild(expr: Expr, parts: tuple[Expr, ...]) -> Expr:
    """`expr` with its direct subexpressions replaced by `parts`."""
    match expr:
        case Const() | Size() | Index():
            return expr
        case Load(buffer, _):
            return Load(buffer, parts)
        case Unary(op, _):
            return Unary(op, parts[0])
        case Cast(_, dtype):
            return Cast(parts[0], dtype)
        case Reduce(monoid, dims, _):
            return Reduce(monoid, dims, parts[0])
        case Binary(op, _, _):
            return Binary(op, parts[0], parts[1])
        case Select():
            return Select(parts[0], parts[1], parts[2])
        case _:
            assert_never(expr)


def walk(*roots: Expr, skip: Container[Expr] = ()) -> Iterator[Expr]:
    """Every distinct subexpression of `roots`, children before parents; what is in `skip` is not entered."""
    seen: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(r, False) for r in reversed(roots)]
    while stack:
        expr, expanded = stack.pop()
        if expr in seen or expr in skip:
            continue
        if expanded:
            seen.add(expr)
            yield expr
            continue
        stack.append((expr, True))
        stack.extend((child, False) for child in reversed(children(expr)))


def rewrite(expr: Expr, rule: Callable[[Expr], Expr | None], skip: Container[Expr] = ()) -> Expr:
    """Apply `rule` bottom-up once to every subexpression; None means unchanged. What is in `skip` stays as it is."""
    done: dict[Expr, Expr] = {}
    for node in walk(expr, skip=skip):
        parts = children(node)
        new_parts = tuple(done.get(p, p) for p in parts)
        new = node if new_parts == parts else rebuild(node, new_parts)
        result = rule(new)
        done[node] = new if result is None else result
    return done.get(expr, expr)


@lru_cache(maxsize=200_000)
def free_dims(expr: Expr) -> frozenset[Dim]:
    """Dims an expression depends on, bound dims of inner reductions left out."""
    match expr:
        case Index(dim):
            return frozenset((dim,))
        case Reduce(_, dims, body):
            return free_dims(body) - frozenset(dims)
        case _:
            found: frozenset[Dim] = frozenset()
            for child in children(expr):
                found |= free_dims(child)
            return found


def conjuncts(condition: Expr) -> tuple[Expr, ...]:
    """The conditions that must all hold, in order."""
    match condition:
        case Binary("and", a, b):
            return (*conjuncts(a), *conjuncts(b))
        case _:
            return (condition,)


def bound_dims(expr: Expr) -> frozenset[Dim]:
    """Dims that some inner reduction of the expression binds."""
    return frozenset(d for node in walk(expr) if isinstance(node, Reduce) for d in node.dims)


def loads(*roots: Expr) -> tuple[Load, ...]:
    """Distinct loads, in the order of a walk."""
    return tuple(node for node in walk(*roots) if isinstance(node, Load))


def reads(*roots: Expr) -> frozenset[str]:
    """Names of the buffers that are read."""
    return frozenset(node.buffer.name for node in loads(*roots))


def substitute(expr: Expr, mapping: Mapping[Dim, Expr]) -> Expr:
    """Replace dims by integer expressions. A bound dim that a replacement would capture is renamed apart (d, d', d'', ...)."""
    return _Substitution(dict(mapping), {}).of(expr) if mapping else expr


class _Substitution:
    """One mapping and what became of expressions under it; a reduction whose dims are renamed has another one inside."""

    def __init__(self, mapping: dict[Dim, Expr], others: dict[_Key, _Substitution]) -> None:
        self.mapping = mapping
        self.done: dict[Expr, Expr] = {}
        self.others = others

    def of(self, node: Expr) -> Expr:
        if free_dims(node).isdisjoint(self.mapping):
            return node
        found = self.done.get(node)
        if found is None:
            match node:
                case Index(dim):
                    found = self.mapping[dim]
                case Reduce():
                    found = self._reduction(node)
                case _:
                    found = rebuild(node, tuple([self.of(c) for c in children(node)]))
            self.done[node] = found
        return found

    def _reduction(self, node: Reduce) -> Reduce:
        free = free_dims(node)
        inner = {d: e for d, e in self.mapping.items() if d in free}
        incoming = frozenset[Dim]().union(*(free_dims(e) for e in inner.values()))
        taken = {d.name for d in incoming | free}
        renamed: list[Dim] = []
        for dim in node.dims:
            fresh = dim
            if dim in incoming:
                fresh = Dim(fresh_name(dim.name, taken), dim.extent)
                inner[dim] = Index(fresh)
            taken.add(fresh.name)
            renamed.append(fresh)
        key = frozenset(inner.items())
        if key not in self.others:
            self.others[key] = _Substitution(inner, self.others)
        return Reduce(node.monoid, tuple(renamed), self.others[key].of(node.body))


_Key = frozenset[tuple[Dim, Expr]]


def fresh_name(name: str, taken: set[str] | frozenset[str]) -> str:
    """`name` with as many primes as it takes to be none of `taken`."""
    while name in taken:
        name += "'"
    return name


def replace_loads(expr: Expr, rule: Callable[[Load], Expr | None]) -> Expr:
    """Rewrite loads only, bottom-up; None keeps a load."""
    return rewrite(expr, lambda node: rule(node) if isinstance(node, Load) else None)
