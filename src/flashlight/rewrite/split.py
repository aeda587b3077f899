"""Split a body into terms ⟨coef, weights, rest, shifts, guard⟩ by what moves with the finals it reads (algebra.md, section 5)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import (
    COMPARISONS,
    LOGICAL,
    Binary,
    Buffer,
    Cast,
    Const,
    Dim,
    Expr,
    Load,
    Reduce,
    Select,
    Unary,
    add,
    anchor,
    const,
    div,
    dtype_of,
    exp,
    is_literal,
    mul,
    neg,
)
from flashlight.ir.monoids import SUM
from flashlight.ir.visit import children, free_dims, rebuild
from flashlight.rewrite.bits import Rounding
from flashlight.rewrite.factor import addends_of, product_of, sum_of
from flashlight.rewrite.signs import is_nonneg
from flashlight.rewrite.terms import (
    SLOT,
    Exponent,
    Factor,
    ShiftFactor,
    Term,
    Weight,
    divided,
    fill,
    guarded,
    merged,
    on_rows,
    times,
    with_shared_references,
)

MOST_TERMS = 16
"""More terms than this are no action; cost refuses far fewer."""

Terms = tuple[Term, ...]


@dataclass
class Split:
    """Splits bodies with respect to `finals`, the finals that are not known yet in the pass in question.

    Attributes:
        finals: names of the carries whose finals move.
        loop: the loop dims.
        nonneg: whether a load is proved >= 0.
        rounding: what eager rounds (rule 1 of section 7).
        refer_all: whether exponentials that read no final get a reference too (rule 3).
    """

    finals: frozenset[str]
    loop: frozenset[Dim]
    nonneg: Callable[[Load], bool]
    rounding: Rounding
    refer_all: bool = False
    _terms: dict[Expr, Terms | None] = field(default_factory=dict, init=False)
    _reads: dict[Expr, bool] = field(default_factory=dict, init=False)
    _slots: dict[tuple[tuple[Expr, ...], Expr], Load] = field(default_factory=dict, init=False)

    def __call__(self, expr: Expr) -> Terms | None:
        """The terms of `expr`, or None: no action. An expression that is 0 has none."""
        if expr not in self._terms:
            self._terms[expr] = self._split(expr)
        return self._terms[expr]

    def reads_final(self, expr: Expr) -> bool:
        """Whether a final that moves is read."""
        if expr not in self._reads:
            own = isinstance(expr, Load) and expr.buffer.name in self.finals
            self._reads[expr] = own or any(self.reads_final(c) for c in children(expr))
        return self._reads[expr]

    def varies(self, expr: Expr) -> bool:
        return not self.loop.isdisjoint(free_dims(expr))

    # -- The table of section 5, a row each

    def _split(self, e: Expr) -> Terms | None:
        if not self.reads_final(e):
            if self.refer_all and (found := self._referred(e)) is not None:
                return (found,)
            return () if is_literal(e, 0) else (Term(rest=None if is_literal(e, 1) else e),)
        if not self.varies(e):
            return self._row_scalar(e)
        match e:
            case Unary("exp" | "exp2", x):
                return self._exponential(x if e.op == "exp" else mul(x, _ln2(x)))
            case Binary("mul", a, b):
                return self._product(a, b, e)
            case Binary("div", a, b):
                return self._quotient(a, b, e)
            case Unary("neg", x):
                return self._negated(x)
            case Cast(x, dtype) if _is_no_finer(x, dtype):
                return self(x)
            case Unary("reciprocal", x):
                return self._quotient(const(1, dtype_of(e)), x, e)
            case Binary("pow", a, Const(n, _)) if n in range(2, 7):
                return self._power(a, int(n), e)
            case Binary("add" | "sub", _, _):
                return self._sum(e)
            case Select(c, a, b):
                return self._select(c, a, b, e)
            case Reduce(monoid, dims, body) if monoid is SUM:
                return self._inner_sum(body, dims)
            case _ if _is_homogeneous(e):
                return self._homogeneous(e, children(e))
            case _:
                return None

    def _referred(self, e: Expr) -> Term | None:
        """A product with a varying exponential in it, whose weight is exp(0), or one under a mask."""
        match e:
            case Select(c, a, zero) if is_literal(zero, 0):
                inside = self._referred(a)
                return None if inside is None else guarded(inside, c, e)
        p = product_of(e)
        powers = [f for f in p.num if isinstance(f, Unary) and f.op == "exp" and self.varies(f)]
        if not powers:
            return None
        term = Term()
        for f in p.num:
            if isinstance(f, Unary) and f in powers:
                slot = self._slot((), f.x)
                weight = Weight((), (Exponent(f.x),), slot)
                term = times(term, Term(weights=(weight,), rest=exp(add(f.x, slot))))
            else:
                term = times(term, Term(rest=f))
        for d in p.den:
            term = replace(term, rest=div(_rest(term, e), d))
        return replace(term, rest=neg(_rest(term, e))) if p.negative else term

    def _row_scalar(self, e: Expr) -> Terms | None:
        """exp(w) is a weight, other row factors are coefs."""
        p = product_of(e)
        term = Term()
        for f in p.num:
            if isinstance(f, Unary) and f.op in ("exp", "exp2") and self.reads_final(f):
                found = self._exponential(f.x if f.op == "exp" else mul(f.x, _ln2(f.x)))
                assert found is not None
                term = times(term, found[0])
            else:
                term = times(term, Term(num=(Factor(f),)))
        term = replace(term, den=tuple(Factor(d) for d in p.den))
        return (replace(term, rest=neg(_rest(term, e))) if p.negative else term,)

    def _product(self, a: Expr, b: Expr, e: Expr) -> Terms | None:
        left, right = self(a), self(b)
        if left is None or right is None or len(left) * len(right) > MOST_TERMS:
            return None
        if any((x.rows and y.shifts) or (y.rows and x.shifts) for x in left for y in right):
            return None  # 0 * (u + v) is no 0 where v is not finite
        return self._merged([times(x, y) for x in left for y in right], e)

    def _power(self, a: Expr, n: int, e: Expr) -> Terms | None:
        result = self(a)
        for _ in range(n - 1):
            part = self(a)
            if result is None or part is None or len(result) * len(part) > MOST_TERMS:
                return None
            result = self._merged([times(x, y) for x in result for y in part], e)
        return result

    def _quotient(self, a: Expr, b: Expr, e: Expr) -> Terms | None:
        left = self(a)
        if left is None:
            return None
        if not self.reads_final(b):
            return tuple(replace(t, rest=div(_rest(t, e), b)) for t in left)
        if not self.varies(b):
            return tuple(divided(t, b) for t in left)
        divisor = self(b)
        if divisor is None or len(divisor) != 1 or divisor[0].shifts or divisor[0].rows:
            return None
        d = divisor[0]
        weights = tuple(self._inverse(w) for w in d.weights)
        slots: dict[Expr, Expr] = {
            w.slot: neg(i.slot) for w, i in zip(d.weights, weights, strict=True)
        }
        below = None if d.rest is None else fill(d.rest, slots)
        inverse = Term(d.den, d.num, weights)
        return tuple(
            replace(times(t, inverse), rest=t.rest if below is None else div(_rest(t, e), below))
            for t in left
        )

    def _inverse(self, w: Weight) -> Weight:
        parts = tuple(neg(p) for p in w.parts)
        exponents = tuple(Exponent(neg(x.u), x.guard) for x in w.exponents)
        key = sum_of([(False, x.u) for x in exponents])
        return Weight(parts, exponents, self._slot(parts, key))

    def _negated(self, x: Expr) -> Terms | None:
        terms = self(x)
        if terms is None:
            return None
        return tuple(replace(t, rest=neg(_rest(t, x))) for t in terms)

    def _exponential(self, x: Expr) -> Terms | None:
        addends = self._exponent_parts(x, False)
        free = [(minus, a) for minus, a in addends if not self.reads_final(a)]
        # what depends on nothing that varies is part of the weight as well, where it stands: large addends cancel in that order
        varying = free if any(self.varies(a) for _, a in free) else []
        invariant = [(minus, a) for minus, a in addends if (minus, a) not in varying]
        if any(self.varies(a) for _, a in invariant):
            return None
        parts = [neg(a) if minus else a for minus, a in invariant]
        u = sum_of(varying) if varying else const(0, dtype_of(x).compute)
        slot = self._slot(tuple(parts), u)
        rest = exp(add(u, slot)) if varying else exp(slot)
        return (Term(weights=(Weight(tuple(parts), (Exponent(u),), slot),), rest=rest),)

    def _slot(self, parts: tuple[Expr, ...], u: Expr) -> Load:
        key = (parts, u)
        if key not in self._slots:
            dtype = dtype_of(sum_of([(False, p) for p in (*parts, u)]))
            self._slots[key] = Load(Buffer(f"{SLOT}{len(self._slots)}", (), dtype), ())
        return self._slots[key]

    def _exponent_parts(self, x: Expr, negative: bool) -> list[tuple[bool, Expr]]:
        """Signed addends; a product is distributed over a sum only where the sum reads a final."""
        parts: list[tuple[bool, Expr]] = []
        for minus, a in addends_of(x, negative, self._is_atom):
            spread = self._distributed(a)
            if spread is None:
                parts.append((minus, a))
            else:
                for inner_minus, inner in spread:
                    parts.extend(self._exponent_parts(inner, minus != inner_minus))
        return parts

    def _distributed(self, x: Expr) -> list[tuple[bool, Expr]] | None:
        match x:
            case Cast(y, dtype) if _is_no_finer(y, dtype):
                return [(False, y)]
            case Binary("mul", a, b):
                if self._is_sum(a):
                    return [(m, mul(part, b)) for m, part in addends_of(a, is_atom=self._is_atom)]
                if self._is_sum(b):
                    return [(m, mul(a, part)) for m, part in addends_of(b, is_atom=self._is_atom)]
            case Binary("div", a, b) if self._is_sum(a):
                return [(m, div(part, b)) for m, part in addends_of(a, is_atom=self._is_atom)]
        return None

    def _is_atom(self, x: Expr) -> bool:
        return not self.reads_final(x)

    def _is_sum(self, x: Expr) -> bool:
        """Whether distributing over x separates what varies from the finals."""
        if not (self.reads_final(x) and self.varies(x)):
            return False
        return len(addends_of(x)) > 1 or (isinstance(x, Unary | Cast) and addends_of(x)[0][0])

    def _sum(self, e: Expr) -> Terms | None:
        addends = addends_of(e, is_atom=self._is_atom)
        free = [(m, a) for m, a in addends if not self.reads_final(a)]
        invariant = [(m, a) for m, a in addends if self.reads_final(a) and not self.varies(a)]
        mixed = [(m, a) for m, a in addends if self.reads_final(a) and self.varies(a)]
        terms: list[Term] = []
        if free and not any(self.varies(a) for _, a in free) and invariant:
            invariant = [(m, a) for m, a in addends if not self.varies(a)]
            free = []
        if free and invariant:
            terms.append(Term(shifts=(self._shift(e, free, invariant),)))
        elif free:
            terms.append(Term(rest=sum_of(free)))
        if invariant and not free:
            mixed = [*mixed, (False, sum_of(invariant))]
        for minus, a in mixed:
            found = self(a)
            if found is None:
                return None
            terms.extend(replace(t, rest=neg(_rest(t, a))) if minus else t for t in found)
        merged = self._merged(terms, e)
        if merged is not None and len(merged) > 1 and not self._may_split(addends):
            return None
        return merged

    def _may_split(self, addends: Iterable[tuple[bool, Expr]]) -> bool:
        """Rule 1 of section 7: a 16-bit dot's operand becomes several only if each was rounded by itself."""
        return self.rounding.dot is None or all(self.rounding.is_rounded(a) for _, a in addends)

    def _shift(
        self, e: Expr, free: list[tuple[bool, Expr]], invariant: list[tuple[bool, Expr]]
    ) -> ShiftFactor:
        moving = {a for _, a in invariant}
        kept = {a for _, a in free} | moving

        def anchored(x: Expr) -> Expr | None:
            if x in moving:
                return anchor(x)
            if x in kept:
                return x
            match x:
                case Binary("add" | "sub", a, b):
                    left, right = anchored(a), anchored(b)
                    if left is None:
                        return neg(right) if right is not None and x.op == "sub" else right
                    return left if right is None else Binary(x.op, left, right)
                case Unary("neg", y):
                    inner = anchored(y)
                    return None if inner is None else neg(inner)
                case _:
                    return None  # an addend that is a term of its own

        body = anchored(e)
        assert body is not None
        return ShiftFactor(sum_of(free), sum_of(invariant), body)

    def _select(self, c: Expr, a: Expr, b: Expr, e: Expr) -> Terms | None:
        if not self.varies(c):
            return self._select_rows(c, a, b, e)
        if self.reads_final(c):
            condition = self._plain(c)
            if condition is None:
                return None
            c = _rest(condition, c)
        left, right = self(a), self(b)
        if left is None or right is None:
            return None
        terms = [guarded(t, c, e) for t in left]
        terms += [guarded(t, Unary("not", c), e) for t in right]
        return self._merged(terms, e)

    def _select_rows(self, c: Expr, a: Expr, b: Expr, e: Expr) -> Terms | None:
        left, right = self(a), self(b)
        if left is None or right is None:
            return None
        terms = [on_rows(t, c) for t in left] + [on_rows(t, Unary("not", c)) for t in right]
        return self._merged(terms, e)

    def _plain(self, condition: Expr) -> Term | None:
        """A condition as a term that does not move, if it is one."""
        terms = self(condition)
        return terms[0] if terms is not None and len(terms) == 1 and terms[0].is_plain else None

    def _inner_sum(self, body: Expr, dims: tuple[Dim, ...]) -> Terms | None:
        terms = self(body)
        if terms is None:
            return None
        bound = frozenset(dims)
        result = []
        for t in terms:
            outside: list[Expr | None] = []
            for f in (*t.num, *t.den):
                outside += [f.value, f.guard]
            for w in t.weights:  # one reference for all positions
                outside += [*w.parts, w.guard]
                outside += [y for x in w.exponents for y in (x.u, x.guard)]
            for s in t.shifts:
                outside += [s.body, s.guard]
            outside += t.rows
            if any(x is not None and not bound.isdisjoint(free_dims(x)) for x in outside):
                return None
            result.append(replace(t, rest=Reduce(SUM, dims, _rest(t, body))))
        return tuple(result)

    def _homogeneous(self, e: Expr, parts: tuple[Expr, ...]) -> Terms | None:
        """f(x * a, x * b) = x * f(a, b), x >= 0; for comparisons and signs x drops out."""
        if (isinstance(e, Binary) and e.op in LOGICAL) or (isinstance(e, Unary) and e.op == "not"):
            plain = [self._plain(p) for p in parts]
            if any(p is None for p in plain):
                return None
            known = [p for p in plain if p is not None]
            rests = tuple(_rest(p, x) for p, x in zip(known, parts, strict=True))
            return (Term(rest=rebuild(e, rests)),)
        split = [self(p) for p in parts]
        found: list[tuple[int, Term]] = []
        for i, terms in enumerate(split):
            if terms is None or len(terms) > 1:
                return None
            found.extend((i, t) for t in terms)
        if not found or len({t.signature for _, t in found}) != 1:
            return None
        first = found[0][1]
        if first.shifts or not all(is_nonneg(f.value, self.nonneg) for f in first.num + first.den):
            return None
        shared = with_shared_references([t for _, t in found])
        rests_by_part = {i: _rest(t, parts[i]) for (i, _), t in zip(found, shared, strict=True)}
        zero = const(0, dtype_of(parts[0]).compute)
        rest = rebuild(e, tuple(rests_by_part.get(i, zero) for i in range(len(parts))))
        if (isinstance(e, Unary) and e.op == "sign") or (
            isinstance(e, Binary) and e.op in COMPARISONS
        ):
            # a weight drops out as well, but then the carry would read a reference and not move with it
            return None if first.weights or first.rows else (Term(rest=rest),)
        return (merged(shared, rest),)

    def _merged(self, terms: list[Term], like: Expr) -> Terms | None:
        """Terms of one signature are one: their rests add up."""
        groups: dict[object, list[Term]] = {}
        for t in terms:
            groups.setdefault(t.signature, []).append(t)
        if len(groups) > MOST_TERMS:
            return None
        return tuple(self._one(group, like) for group in groups.values())

    def _one(self, terms: list[Term], like: Expr) -> Term:
        if len(terms) == 1:
            return terms[0]
        terms = with_shared_references(terms)
        rest = _selected(terms) or sum_of([_signed(_rest(t, like)) for t in terms])
        return merged(terms, rest)


def _rest(term: Term, like: Expr) -> Expr:
    if term.rest is not None:
        return term.rest
    dtype = dtype_of(like).compute
    return const(1, dtype if dtype.is_float else DType.F32)


def _is_no_finer(x: Expr, dtype: DType) -> bool:
    """Whether a conversion of a float to another loses nothing when it is left out: what follows would not be computed more finely."""
    source = dtype_of(x)
    return source.is_float and dtype.is_float and (dtype is not DType.F64 or source is DType.F64)


def _signed(x: Expr) -> tuple[bool, Expr]:
    return (True, x.x) if isinstance(x, Unary) and x.op == "neg" else (False, x)


def _selected(terms: list[Term]) -> Expr | None:
    """where(c, a, 0) + where(!c, 0, b) in one select."""
    if len(terms) != 2:
        return None
    match terms[0].rest, terms[1].rest:
        case Select(c, a, zero), Select(Unary("not", d), b, other) if (
            c is d and is_literal(zero, 0) and is_literal(other, 0)
        ):
            return Select(c, a, b)
        case _:
            return None


def _is_homogeneous(e: Expr) -> bool:
    match e:
        case Unary(op, _):
            return op in ("abs", "sign", "not")
        case Binary(op, _, _):
            return op in ("max", "min", *COMPARISONS, *LOGICAL)
        case Cast(x, _):
            return dtype_of(x) is DType.BOOL
        case _:
            return False


def _ln2(x: Expr) -> Expr:
    return const(math.log(2.0), dtype_of(x).compute)
