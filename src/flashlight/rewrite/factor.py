"""Products as multisets of factors, and `a*b - a*c -> a*(b - c)`.

Factoring comes before splitting: `P*dP - P*delta` is one product with a shift inside, not a difference of two sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flashlight.ir.exprs import Binary, Const, Expr, Unary, add, const, div, dtype_of, mul, neg, sub
from flashlight.ir.visit import children, rewrite


@dataclass(frozen=True)
class Product:
    """`±1 * num[0] * num[1] * ... / den[0] / ...`, factors in source order."""

    negative: bool
    num: tuple[Expr, ...]
    den: tuple[Expr, ...]


def product_of(expr: Expr) -> Product:
    """The factors of an expression; one that is no product is its own only factor."""
    match expr:
        case Unary("neg", x):
            p = product_of(x)
            return Product(not p.negative, p.num, p.den)
        case Binary("mul", a, b):
            p, q = product_of(a), product_of(b)
            return Product(p.negative != q.negative, p.num + q.num, p.den + q.den)
        case Binary("div", a, b):
            p, q = product_of(a), product_of(b)
            return Product(p.negative != q.negative, p.num + q.den, p.den + q.num)
        case Unary("reciprocal", x):
            p = product_of(x)
            return Product(p.negative, p.den, p.num)
        case Const(1.0, _):
            return Product(False, (), ())
        case _:
            return Product(False, (expr,), ())


def product(factors: Sequence[Expr], like: Expr) -> Expr:
    """The product of `factors` from left to right; 1 of the type of `like` if there are none."""
    if not factors:
        return const(1, dtype_of(like).compute)
    result = factors[0]
    for f in factors[1:]:
        result = mul(result, f)
    return result


def build(p: Product, like: Expr) -> Expr:
    """The expression of a product: numerators first, then the divisors one by one."""
    result = product(p.num, like)
    for f in p.den:
        result = div(result, f)
    return neg(result) if p.negative else result


def addends_of(
    expr: Expr, negative: bool = False, is_atom: Callable[[Expr], bool] = lambda _: False
) -> list[tuple[bool, Expr]]:
    """The addends of nested sums and differences as (is subtracted, addend), in source order; atoms are not taken apart."""
    if is_atom(expr):
        return [(negative, expr)]
    match expr:
        case Binary("add", a, b):
            return addends_of(a, negative, is_atom) + addends_of(b, negative, is_atom)
        case Binary("sub", a, b):
            return addends_of(a, negative, is_atom) + addends_of(b, not negative, is_atom)
        case Unary("neg", x):
            return addends_of(x, not negative, is_atom)
        case _:
            return [(negative, expr)]


def sum_of(addends: Sequence[tuple[bool, Expr]]) -> Expr:
    """The sum of signed addends from left to right; there must be one."""
    (negative, result), *rest = addends
    if negative and rest and not rest[0][0]:  # b - a rather than -a + b
        return sum_of([rest[0], addends[0], *rest[1:]])
    result = neg(result) if negative else result
    for minus, a in rest:
        result = sub(result, a) if minus else add(result, a)
    return result


def factor(expr: Expr, reads_final: Callable[[Expr], bool], varies: Callable[[Expr], bool]) -> Expr:
    """Pull common factors out of every sum that reads a final, bottom-up: `P * dP - P * delta` becomes `P * (dP - delta)`.

    Always legal in exact arithmetic, and closer to the truth in floating point: the difference is formed before it is scaled.
    Sums that read no final keep their form.
    """

    def rule(node: Expr) -> Expr | None:
        if not isinstance(node, Binary) or node.op not in ("add", "sub") or not reads_final(node):
            return None
        return _factor_sum(node, lambda f: reads_final(f) or varies(f))

    return rewrite(expr, rule)


def factor_weights(expr: Expr) -> Expr:
    """Pull common exponentials out of every sum, whatever it reads: what a backward recomputes is scaled once."""
    has_exp: dict[Expr, bool] = {}

    def is_weight(e: Expr) -> bool:
        if e not in has_exp:
            has_exp[e] = is_exp(e) or any(is_weight(c) for c in children(e))
        return has_exp[e]

    def is_exp(e: Expr) -> bool:
        return isinstance(e, Unary) and e.op in ("exp", "exp2")

    def rule(node: Expr) -> Expr | None:
        if not isinstance(node, Binary) or node.op not in ("add", "sub"):
            return None
        return _factor_sum(node, is_weight)

    return rewrite(expr, rule)


def _factor_sum(node: Expr, is_worth: Callable[[Expr], bool]) -> Expr | None:
    addends = [
        Product(p.negative != minus, p.num, p.den)
        for minus, p in ((minus, product_of(a)) for minus, a in addends_of(node))
    ]
    best = _most_common(addends, is_worth)
    if best is None:
        return None
    chosen = [p for p in addends if best in p.num]
    num: Counter[Expr] = Counter(chosen[0].num)
    den: Counter[Expr] = Counter(chosen[0].den)
    for p in chosen[1:]:
        num &= Counter(p.num)
        den &= Counter(p.den)
    inner = sum_of([_signed(_without(p, num, den), node) for p in chosen])
    pulled = Product(
        False,
        (*_in_order(chosen[0].num, num), _factor_sum(inner, is_worth) or inner),
        _in_order(chosen[0].den, den),
    )
    result: list[tuple[bool, Expr]] = []
    for p in addends:  # the factored group stands where its first addend stood
        if p is chosen[0]:
            result.append((False, build(pulled, node)))
        elif all(p is not c for c in chosen):
            result.append(_signed(p, node))
    summed = sum_of(result)
    if len(result) == 1:
        return summed
    return _factor_sum(summed, is_worth) or summed


def _most_common(addends: list[Product], is_worth: Callable[[Expr], bool]) -> Expr | None:
    """A factor that is worth pulling and stands in two addends or more, in as many as possible; the first such."""
    counts: Counter[Expr] = Counter()
    for p in addends:
        counts.update(list(dict.fromkeys(f for f in p.num if is_worth(f))))
    best = max(counts.values(), default=0)
    if best < 2:
        return None
    return next(f for f, n in counts.items() if n == best)


def _signed(p: Product, like: Expr) -> tuple[bool, Expr]:
    return p.negative, build(Product(False, p.num, p.den), like)


def _without(p: Product, num: Counter[Expr], den: Counter[Expr]) -> Product:
    return Product(p.negative, _minus(p.num, num), _minus(p.den, den))


def _minus(factors: tuple[Expr, ...], taken: Counter[Expr]) -> tuple[Expr, ...]:
    left = Counter(taken)
    kept = []
    for f in factors:
        if left[f] > 0:
            left[f] -= 1
        else:
            kept.append(f)
    return tuple(kept)


def _in_order(factors: tuple[Expr, ...], wanted: Counter[Expr]) -> tuple[Expr, ...]:
    left = Counter(wanted)
    found = []
    for f in factors:
        if left[f] > 0:
            left[f] -= 1
            found.append(f)
    return tuple(found)
