"""The monoids a dim may be reduced by, as values."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Monoid:
    """A commutative monoid on scalars.

    Attributes:
        name: its spelling in program text.
        identity: the value of an empty reduction (for argmax and argmin, of the compared value).
        combine: the binary operator of `ir.exprs` that combines two values.
        idempotent: whether combining a value with itself changes nothing.
        is_logical: whether it works on bools.
        is_position: whether the result is the position of the winner along the reduced dims (row-major), not its value.
    """

    name: str
    identity: float | bool
    combine: str
    idempotent: bool = False
    is_logical: bool = False
    is_position: bool = False

    def __str__(self) -> str:
        return self.name


SUM = Monoid("sum", 0.0, "add")
PROD = Monoid("prod", 1.0, "mul")
MAX = Monoid("max", -math.inf, "max", idempotent=True)
MIN = Monoid("min", math.inf, "min", idempotent=True)
ANY = Monoid("any", False, "or", idempotent=True, is_logical=True)
ALL = Monoid("all", True, "and", idempotent=True, is_logical=True)
ARGMAX = Monoid("argmax", -math.inf, "max", is_position=True)
ARGMIN = Monoid("argmin", math.inf, "min", is_position=True)

MONOIDS = {m.name: m for m in (SUM, PROD, MAX, MIN, ANY, ALL, ARGMAX, ARGMIN)}
