"""Which parallel dims of a reduction are kept (rows of a grid) and which are whole in a tile (features)."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import Const, Dim, Expr, Reduce, Select, dtype_of, is_literal
from flashlight.ir.nests import Nest
from flashlight.ir.visit import free_dims, loads, walk
from flashlight.rewrite.align import is_constant_extent
from flashlight.rewrite.bits import strip_casts
from flashlight.rewrite.factor import product_of

WHOLE_EXTENT = 512
"""A dim of at most so many positions may be held whole in a tile (a head dim, a 3-vector)."""


def kept_and_whole(
    nest: Nest, statistics: Iterable[Dim]
) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
    """Which parallel dims are kept, and which are whole in a tile.

    Rows of statistics that are read and dims of inner reductions are kept. Of the others a dim of small constant extent is
    whole if some factor of the body does without it: the feature dim of a value. Without rows of either kind it is a plain
    product of matrices, of which only the last such dim is whole; one without which features of pairs are computed comes first.

    Args:
        nest: a reduction.
        statistics: dims at which it reads rows of other results.
    """
    rows = set(statistics)
    for node in walk(nest.body):
        if isinstance(node, Reduce):
            rows |= free_dims(node)
    parts = factors(strip_casts(nest.body))
    loop = frozenset(nest.reduced)
    whole: list[Dim] = []
    dims = list(reversed(nest.parallel))
    if not rows & set(nest.parallel):
        joint = [free_dims(f) for f in parts if is_joint_factor(f, nest)]
        dims.sort(key=lambda d: all(d in f for f in joint))
    for d in dims:
        if d in rows or not fits_whole((*whole, d)):
            continue
        without = [f for f in parts if d not in free_dims(f) and not loop.isdisjoint(free_dims(f))]
        others = frozenset(nest.parallel) - frozenset(whole) - {d}
        beside = frozenset[Dim]().union(*(free_dims(f) for f in parts if d in free_dims(f)))
        if rows & set(nest.parallel):
            if without:
                whole.insert(0, d)
        elif any(not (free_dims(f) & others) <= beside for f in without):
            whole.insert(0, d)
            break  # a plain matmul: its last dim only
    return tuple(d for d in nest.parallel if d not in whole), tuple(whole)


def factors(body: Expr) -> list[Expr]:
    """Factors of a product, the condition of `where(c, x, 0)` among them."""
    found: list[Expr] = []
    p = product_of(body)
    for f in (*p.num, *p.den):
        if isinstance(f, Select) and is_literal(f.b, 0):
            found.extend((f.condition, *factors(f.a)))
        else:
            found.append(f)
    return found


def is_joint_factor(factor: Expr, nest: Nest) -> bool:
    """Whether a factor of a nest's body is made of several of its rows, which no load reads together: features of a pair."""
    dims = free_dims(factor) & frozenset((*nest.parallel, *nest.reduced))
    return (
        len(dims & frozenset(nest.parallel)) > 1
        and (dtype_of(factor) is not DType.BOOL or nest.dtype is DType.BOOL)
        and not any(dims <= free_dims(load) for load in loads(factor))
    )


def elements(dims: Iterable[Dim]) -> int:
    """About how many elements an array over the dims has, for comparing."""
    return prod(int(d.extent.value) if isinstance(d.extent, Const) else 1024 for d in dims)


def fits_whole(dims: Iterable[Dim]) -> bool:
    listed = list(dims)
    if not all(is_constant_extent(d, WHOLE_EXTENT) for d in listed):
        return False
    return prod(int(d.extent.value) for d in listed if isinstance(d.extent, Const)) <= WHOLE_EXTENT
