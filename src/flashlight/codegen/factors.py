"""The factors of a product, and the type in which a dot of two sides of them is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flashlight.codegen.blocks import Value
from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import (
    Binary,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Unary,
    dtype_of,
    is_literal,
)
from flashlight.ir.visit import loads


@dataclass(frozen=True)
class Factor:
    """A factor of a product.

    Attributes:
        expr: its value, or a condition.
        divides: it is a divisor.
        under: the conditions in whose branches it stood.
        selects: a condition: the product is 0 where it does not hold.
    """

    expr: Expr
    divides: bool = False
    under: tuple[Expr, ...] = ()
    selects: bool = False

    @property
    def guarded(self) -> bool:
        """Whether it stood in a branch that may not be taken, so that what it loads may be out of range."""
        return bool(self.under)


def factors_of(expr: Expr, under: tuple[Expr, ...] = ()) -> list[Factor]:
    """The factors of a product; a guard with else-branch 0 is a factor of its own."""
    match expr:
        case Binary("mul", a, b) if dtype_of(expr).is_float:
            return factors_of(a, under) + factors_of(b, under)
        case Binary("div", a, b) if dtype_of(expr).is_float:
            return [*factors_of(a, under), Factor(b, divides=True, under=under)]
        case Unary("neg", x) if dtype_of(expr).is_float:
            return [*factors_of(x, under), Factor(Const(-1.0, DType.F32))]
        case Select(condition, a, b) if is_literal(b, 0) and not _is_flat(a):
            chosen = factors_of(a, (*under, condition))
            return [*chosen, Factor(condition, under=under, selects=True)]
        case _:
            return [Factor(expr, under=under)]


def spared(
    left: list[Factor], right: list[Factor], free: list[Factor]
) -> tuple[list[Factor], list[Factor]] | None:
    """Both sides of a dot with the factors of no side, or None where a condition on one side would not spare the other.

    0 times an infinity is NaN: a factor must stand on the side of every condition it stood under. A condition of no side may stand
    on both.
    """
    conditions = [f for f in free if f.selects]
    first, second = left + free, right
    if any(f.selects for f in right) and not any(f.selects for f in left):
        first, second = left, free + right
    if not _spares(first):
        first = first + conditions
    if not _spares(second):
        second = second + conditions
    return (first, second) if _spares(first) and _spares(second) else None


def _spares(side: Sequence[Factor]) -> bool:
    own = {f.expr for f in side if f.selects}
    return all(own.issuperset(f.under) for f in side if not isinstance(f.expr, Const))


def parted(
    factors: Sequence[Factor], varies: Callable[[Expr], bool]
) -> tuple[list[Factor], list[Factor]]:
    """(those that multiply a sum once, those inside it), by what varies along the sum.

    What stands under a condition that varies stays inside: where the condition holds nowhere the sum is 0, and not 0 times what may
    be infinite, or over what may be 0.
    """
    selected = any(f.selects and varies(f.expr) for f in factors)

    def stays(f: Factor) -> bool:
        return varies(f.expr) or (selected and f.guarded and not isinstance(f.expr, Const))

    return [f for f in factors if not stays(f)], [f for f in factors if stays(f)]


def _is_flat(expr: Expr) -> bool:
    """Whether an expression is no product."""
    return len(factors_of(expr)) == 1


def is_load(factor: Factor) -> bool:
    """Whether a factor is a value as it stands in memory."""
    return not factor.divides and not factor.selects and isinstance(factor.expr, Load)


def _is_upcast(expr: Expr) -> bool:
    """A 16-bit load that the program itself converts to f32."""
    return isinstance(expr, Cast) and isinstance(expr.x, Load) and expr.dtype is DType.F32


_SIXTEEN = (DType.F16, DType.BF16)


def dot_dtype(a: Value, c: Value, sides: tuple[Sequence[Factor], Sequence[Factor]]) -> DType:
    """The type of a dot's operands."""
    if DType.F64 in (a.dtype, c.dtype):
        return DType.F64
    if a.dtype is c.dtype and a.dtype in _SIXTEEN:
        return a.dtype
    loaded = {
        load.buffer.dtype
        for side in sides
        for f in side
        for load in loads(f.expr)
        if load.buffer.dtype.is_float
    }
    direct = {v.dtype for v in (a, c) if v.dtype in _SIXTEEN}
    wide_input = any(
        len(side) == 1 and is_load(side[0]) and v.dtype is DType.F32
        for v, side in zip((a, c), sides, strict=True)
    )
    if len(direct) == 1 and not wide_input:
        return next(iter(direct))
    upcast = [len(side) == 1 and _is_upcast(side[0].expr) for side in sides]
    if any(upcast) and not all(upcast):
        return DType.F32
    if len(loaded & set(_SIXTEEN)) == 1 and not loaded - set(_SIXTEEN):
        return next(iter(loaded))
    return DType.F32
