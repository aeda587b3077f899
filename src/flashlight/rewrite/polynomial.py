"""Integer expressions as polynomials with integer coefficients, and proofs of bounds on them.

An atom is anything that is not a sum, difference, negation or product: an Index, a Size, a `//`, a `%`, a load; and arithmetic that
programs count on to wrap around: of narrow types, and products with the large numbers of hashes. Bounds of a polynomial are
polynomials in sizes alone, so that `b * H + h` with h < H is known to stay below `(B - 1) * H + H` for symbolic B, H.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import (
    Binary,
    Cast,
    Const,
    Expr,
    Index,
    Load,
    Select,
    Size,
    Unary,
    add,
    const,
    dtype_of,
    mul,
    sub,
)
from flashlight.ir.visit import children

Monomial = tuple[Expr, ...]
"""Atoms with repetition, sorted by `sort_key`; the empty tuple is the constant term."""


@lru_cache(maxsize=200_000)
def sort_key(expr: Expr) -> str:
    """A name for an expression that does not depend on the process, for a deterministic order of terms."""
    match expr:
        case Const(value, dtype):
            return f"0{value!r}{dtype.value}"
        case Size(name):
            return f"1{name}"
        case Index(dim):
            return f"2{dim.name}"
        case Load(buffer, index):
            return f"4{buffer.name}[{','.join(map(sort_key, index))}]"
        case Unary(op, _) | Binary(op, _, _):
            return f"3{op}({','.join(map(sort_key, children(expr)))})"
        case Select():
            return f"3where({','.join(map(sort_key, children(expr)))})"
        case Cast(x, dtype):
            return f"3{dtype.value}({sort_key(x)})"
        case _:
            return f"5{expr.monoid}({','.join(d.name for d in expr.dims)}:{sort_key(expr.body)})"


@dataclass(frozen=True)
class Polynomial:
    """Terms (monomial, coefficient) with nonzero coefficients, in a deterministic order."""

    terms: tuple[tuple[Monomial, int], ...]

    @staticmethod
    def of(terms: Iterable[tuple[Monomial, int]]) -> Polynomial:
        total: Counter[Monomial] = Counter()
        for monomial, coefficient in terms:
            total[monomial] += coefficient
        kept = [(m, c) for m, c in total.items() if c]
        return Polynomial(
            tuple(sorted(kept, key=lambda t: (len(t[0]), [sort_key(a) for a in t[0]])))
        )

    @property
    def constant(self) -> int | None:
        """The value if there is no atom, else None."""
        if not self.terms:
            return 0
        return self.terms[0][1] if len(self.terms) == 1 and not self.terms[0][0] else None

    def __add__(self, other: Polynomial) -> Polynomial:
        return Polynomial.of((*self.terms, *other.terms))

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + other.scaled(-1)

    def __mul__(self, other: Polynomial) -> Polynomial:
        return Polynomial.of(
            (tuple(sorted((*m, *n), key=sort_key)), c * d)
            for m, c in self.terms
            for n, d in other.terms
        )

    def scaled(self, factor: int) -> Polynomial:
        return Polynomial.of((m, c * factor) for m, c in self.terms)

    def is_nonnegative(self) -> bool:
        """Proved >= 0, every atom being a size (sizes are >= 0)."""
        return all(c >= 0 and all(isinstance(a, Size) for a in m) for m, c in self.terms)


def constant(value: int) -> Polynomial:
    return Polynomial.of([((), value)])


_WRAPPING = (DType.U8, DType.I8, DType.I16)


@lru_cache(maxsize=100_000)
def polynomial(expr: Expr) -> Polynomial:
    """The normal form of an integer expression; what is not a ring operation is an atom."""
    match expr:
        case Const(value, _):
            return constant(int(value))
        case Binary() | Unary() if dtype_of(expr) in _WRAPPING:
            return Polynomial.of([((expr,), 1)])
        case Binary("mul", Const(value, _), _) | Binary("mul", _, Const(value, _)) if (
            abs(value) >= 1 << 32
        ):
            return Polynomial.of([((expr,), 1)])
        case Binary("add", a, b):
            return polynomial(a) + polynomial(b)
        case Binary("sub", a, b):
            return polynomial(a) - polynomial(b)
        case Binary("mul", a, b):
            return polynomial(a) * polynomial(b)
        case Unary("neg", x):
            return polynomial(x).scaled(-1)
        case _:
            return Polynomial.of([((expr,), 1)])


def expression(p: Polynomial) -> Expr:
    """The canonical expression of a polynomial: positive terms first, in order."""
    positive = [(m, c) for m, c in p.terms if c > 0 and m]
    negative = [(m, c) for m, c in p.terms if c < 0 and m]
    offset = next((c for m, c in p.terms if not m), 0)
    total: Expr | None = None
    for m, c in positive:
        total = _product(m, c) if total is None else add(total, _product(m, c))
    if total is None:
        total = const(offset)
        offset = 0
    for m, c in negative:
        total = sub(total, _product(m, -c))
    if offset > 0:
        return add(total, const(offset))
    return sub(total, const(-offset)) if offset < 0 else total


def _product(monomial: Monomial, coefficient: int) -> Expr:
    total = monomial[0]
    for atom in monomial[1:]:
        total = mul(total, atom)
    return total if coefficient == 1 else mul(total, const(coefficient))


@lru_cache(maxsize=100_000)
def bounds(p: Polynomial) -> tuple[Polynomial | None, Polynomial | None]:
    """Least and greatest value as polynomials in sizes; None where nothing is known."""
    low: Polynomial | None = constant(0)
    high: Polynomial | None = constant(0)
    for monomial, coefficient in p.terms:
        least, most = _monomial_bounds(monomial)
        if coefficient < 0:
            least, most = most, least
        low = None if low is None or least is None else low + least.scaled(coefficient)
        high = None if high is None or most is None else high + most.scaled(coefficient)
    return low, high


def _monomial_bounds(monomial: Monomial) -> tuple[Polynomial | None, Polynomial | None]:
    if len(monomial) == 1:
        return _atom_bounds(monomial[0])
    least: Polynomial | None = constant(1)
    most: Polynomial | None = constant(1)
    for atom in monomial:
        low, high = _atom_bounds(atom)
        if low is None or not low.is_nonnegative():
            return None, None  # products of signed atoms are not needed
        least = None if least is None else least * low
        most = None if most is None or high is None else most * high
    return least, most


@lru_cache(maxsize=100_000)
def _atom_bounds(atom: Expr) -> tuple[Polynomial | None, Polynomial | None]:
    match atom:
        case Size():
            exact = polynomial(atom)
            return exact, exact
        case Index(dim):
            return constant(0), polynomial(dim.extent) - constant(1)
        case Binary("mod", _, m):
            if is_positive(polynomial(m)):
                return constant(0), bounds(polynomial(m) - constant(1))[1]
        case Binary("floordiv", x, Const(value, _)) if value > 0:
            low, high = bounds(polynomial(x))
            return _floordiv(low, int(value)), _floordiv(high, int(value))
        case Binary("min" | "max" as op, a, b):
            (la, ha), (lb, hb) = bounds(polynomial(a)), bounds(polynomial(b))
            if op == "min":
                return _both(la, lb, least=True), _either(ha, hb, least=True)
            return _either(la, lb, least=False), _both(ha, hb, least=False)
        case Select(_, a, b) if dtype_of(atom).is_int:
            (la, ha), (lb, hb) = bounds(polynomial(a)), bounds(polynomial(b))
            return _both(la, lb, least=True), _both(ha, hb, least=False)
        case Cast(x, DType.I32 | DType.I64) if dtype_of(x) in (DType.I32, DType.I64):
            return bounds(polynomial(x))
        case _:
            pass
    return None, None


def _floordiv(p: Polynomial | None, divisor: int) -> Polynomial | None:
    if p is None or p.constant is None:
        return None
    return constant(p.constant // divisor)


def _both(a: Polynomial | None, b: Polynomial | None, *, least: bool) -> Polynomial | None:
    """The smaller (or larger) of two bounds, where it is known which that is."""
    if a is None or b is None:
        return None
    if (a - b).is_nonnegative():
        return b if least else a
    return (a if least else b) if (b - a).is_nonnegative() else None


def _either(a: Polynomial | None, b: Polynomial | None, *, least: bool) -> Polynomial | None:
    """A valid bound out of two of which both hold."""
    if a is None or b is None:
        return a if b is None else b
    return _both(a, b, least=least) or a


def is_positive(p: Polynomial) -> bool:
    """Proved >= 1 (a symbolic size counts: an empty range has no elements of which anything could be claimed)."""
    if p.constant is not None:
        return p.constant >= 1
    return all(c > 0 and all(isinstance(a, Size) for a in m) for m, c in p.terms)


def is_within(p: Polynomial, least: int, most: Polynomial) -> bool:
    """Proved least <= p <= most."""
    low, high = bounds(p)
    if low is None or high is None:
        return False
    return (low - constant(least)).is_nonnegative() and (most - high).is_nonnegative()
