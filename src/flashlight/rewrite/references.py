"""References: which row value each exponential weight is kept relative to while the loop runs.

A sum of exp(u + w) * r equals exp(w - rho) times the sum of exp(u + rho) * r for any rho that is constant in the loop, so rho is
ours to choose: minus the maximum of u, which bounds every factor on the way. What eager's w differs by comes back as a row scalar.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flashlight.ir.exprs import (
    Binary,
    Expr,
    Select,
    Unary,
    add,
    anchor,
    const,
    dtype_of,
    exp,
    is_literal,
    largest,
    neg,
    sub,
)
from flashlight.ir.visit import rewrite
from flashlight.rewrite.factor import sum_of
from flashlight.rewrite.monotone import under_guard
from flashlight.rewrite.terms import Exponent, Factor, Term, Weight


@dataclass(frozen=True)
class Correction:
    """exp(w - ~rho): what the carry lacks.

    Attributes:
        factor: the row scalar.
        is_exact: whether w is rho, so that the factor is 1 wherever rho is finite.
        exponents: the varying exponents the reference bounds.
        guard: the condition under which it is applied.
        level: how many of the term's row conditions are inside it.
    """

    factor: Expr
    is_exact: bool
    exponents: frozenset[Exponent]
    guard: Expr | None
    level: int

    def is_like(self, other: Correction) -> bool:
        """Whether the two cancel in a quotient: 1 unless the same exponents are not finite."""
        mine, theirs = (self.factor, self.exponents), (other.factor, other.exponents)
        return self.is_exact and other.is_exact and mine == theirs


@dataclass(frozen=True)
class References:
    """A term with its references chosen.

    Attributes:
        rest: the varying part, references in place.
        moving: rho of every weight, atom by atom.
        corrections: one for each weight.
        coefs: exp(w) of weights without a varying exponent.
    """

    rest: Expr | None
    moving: tuple[Expr, ...]
    corrections: tuple[Correction, ...]
    coefs: tuple[Factor, ...]


def choose_references(
    term: Term,
    maximum: Callable[[Exponent, frozenset[Expr]], Expr],
    is_running: Callable[[Expr], bool],
) -> References:
    """Choose minus the maximum of the exponents for every weight.

    Args:
        term: the term.
        maximum: the row maximum of an exponent under its guard, as an expression on carries, given what w's addends subtract.
        is_running: whether an expression on carries changes during the pass.
    """
    exponents: dict[Expr, dict[Exponent, None]] = {}
    subtracted: dict[Expr, frozenset[Expr]] = {}
    for w in term.weights:
        exponents.setdefault(w.slot, {}).update(dict.fromkeys(map(_covered, w.exponents)))
        subtracted[w.slot] = frozenset(
            p.x for p in w.parts if isinstance(p, Unary) and p.op == "neg"
        )
    peaks: dict[Expr, Expr] = {}
    for slot, found in exponents.items():
        if all(is_literal(x.u, 0) for x in found):
            continue
        peak: Expr | None = None
        for x in found:
            top = x.u if is_literal(x.u, 0) else maximum(x, subtracted[slot])
            if peak is None:
                peak = top
            elif top is not peak:
                peak = Binary("max", peak, top)
        assert peak is not None
        peaks[slot] = peak
    lone = [w for w in term.weights if w.slot not in peaks]
    moved = [w for w in term.weights if w.slot in peaks]
    return References(
        rest=None if term.rest is None else _filled(term.rest, peaks, {w.slot for w in lone}),
        moving=tuple(neg(peaks[w.slot]) for w in moved if is_running(peaks[w.slot])),
        corrections=tuple(
            _correction(w, peaks[w.slot], frozenset(exponents[w.slot])) for w in moved
        ),
        coefs=tuple(
            Factor(exp(sum_of([_signed(p) for p in w.parts])), w.guard, w.level) for w in lone
        ),
    )


def _covered(x: Exponent) -> Exponent:
    """Without a guard outside of which the exponent is -inf anyway."""
    return Exponent(x.u) if x.guard is not None and under_guard(x.u, x.guard) is x.u else x


def _filled(rest: Expr, peaks: dict[Expr, Expr], lone: set[Expr]) -> Expr | None:
    """`rest` with exp(u + slot) as exp(u - ~peak), and exp(slot) of a lone weight dropped."""
    one = const(1, dtype_of(rest).compute)

    def rule(node: Expr) -> Expr | None:
        match node:
            case Unary("exp", slot) if slot in lone:
                return one
            case Binary("mul", a, b) if a is one or b is one:
                return b if a is one else a
            case Binary("add", a, Unary("neg", Unary("anchor", _) as b)):
                return sub(a, b)
            case Select(g, Unary("exp", Binary("sub", u, Unary("anchor", _))) as weight, zero) if (
                is_literal(zero, 0) and under_guard(u, g) is u
            ):
                return weight  # exp(-inf - ~m) is 0 already
            case _ if node in peaks:
                return neg(anchor(peaks[node]))
            case _:
                return None

    filled = rewrite(rest, rule)
    return None if filled is one else filled


def _correction(w: Weight, peak: Expr, exponents: frozenset[Exponent]) -> Correction:
    """exp(-rho_anchored + w), w's addends one by one: rho's own first, so that large numbers cancel before small ones come.

    A row without any exponent but -inf sums to 0, and keeps that whatever w is: there rho itself makes the factor 0, as eager's are.
    Beside exp(w) itself in one function (relu(exp(u - m) - exp(-m))), w may be huge where every u is small: eager's relu(-inf) is 0.
    """
    parts = list(w.parts)
    has_peak = neg(peak) in parts
    stands_alone = any(is_literal(x.u, 0) for x in exponents)
    total: Expr = anchor(peak) if has_peak or stands_alone else peak
    if has_peak:
        parts.remove(neg(peak))
        total = sub(total, peak)
    for p in parts:
        minus, x = _signed(p)
        total = sub(total, x) if minus else add(total, x)
    factor = exp(total)
    if len(exponents) > 1 and stands_alone:
        finite = Binary("min", factor, largest(dtype_of(factor)))
        factor = Select(Unary("isinf", total), factor, finite)
    guard = w.guard if w.parts else None  # under which rho was made
    return Correction(factor, has_peak and not parts, exponents, guard, w.level)


def _signed(x: Expr) -> tuple[bool, Expr]:
    return (True, x.x) if isinstance(x, Unary) and x.op == "neg" else (False, x)
