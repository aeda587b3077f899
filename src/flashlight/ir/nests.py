"""Programs: inputs, statements (nests and derived loops) and outputs.

A nest `name (p, q | r) dtype: monoid body` gives every (p, q) the reduction over r of the scalar `body`; without reduced dims
it is pointwise. A loop is what `rewrite.online` makes of several reductions that share their loop dims: ordinary reductions in
order of dependence, with claims (`weight`, `shifts`) about how each accumulator moves when what it refers to changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeAlias

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import Buffer, Dim, Expr, Size
from flashlight.ir.monoids import Monoid


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a nest came from in the user's program; never part of equality or of the text."""

    node: str
    line: str = ""


@dataclass(frozen=True, slots=True)
class Nest:
    """One array defined element by element.

    Attributes:
        name: name of the result.
        parallel: dims of the result, in the order of its axes.
        reduced: dims reduced by `monoid`; empty for a pointwise nest.
        dtype: element type of the result (rounded once).
        monoid: None for a pointwise nest.
        body: scalar expression over `parallel` and `reduced`.
    """

    name: str
    parallel: tuple[Dim, ...]
    reduced: tuple[Dim, ...]
    dtype: DType
    monoid: Monoid | None
    body: Expr
    origin: Origin | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        return _text("print_statement", self)

    @property
    def buffer(self) -> Buffer:
        return Buffer(self.name, tuple(d.extent for d in self.parallel), self.dtype)


@dataclass(frozen=True, slots=True)
class Shift:
    """One factor (u + ~value) of a carry's body, which changes affinely with `value`: `moves shift value over lower`.

    Attributes:
        value: the row expression v whose running value is the reference; it reads carries of the same loop. Its addends are anchored
            one by one, in the body and in the move (`exprs.anchored_addends`).
    """

    value: Expr


@dataclass(frozen=True, slots=True)
class Carry:
    """One accumulator of a loop: `name(dims) = monoid(loop dims) body`.

    `body` reads finals of the same pass anchored (`~m`); read with every such load as the final value, the carry is an ordinary
    reduction. `weight` holds the exponent atoms w: the body contains the factor exp(sum of ~w), so when a reference moves from w
    to w', the accumulator is multiplied by exp(~w' - ~w), atom by atom. `shifts` are affine (algebra.md, section 6).

    Attributes:
        name: the accumulator's name; a Load of it in the same pass is the running value, in a later pass or a give the final.
        dims: kept dims and then whole (small) dims of the accumulator.
        dtype: the type it accumulates in (f32, f64, i64 or bool).
        lower: for n shifts, names of the carries without some of them, by falling number of remaining shifts: one entry for each
            distinct proper sub-multiset of `shifts` (n = 1: the carry with none; n equal shifts: n-1, n-2, ..., 0 left).
    """

    name: str
    dims: tuple[Dim, ...]
    dtype: DType
    monoid: Monoid
    body: Expr
    weight: tuple[Expr, ...] = ()
    shifts: tuple[Shift, ...] = ()
    lower: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return _text("print_carry", self)

    @property
    def buffer(self) -> Buffer:
        return Buffer(self.name, tuple(d.extent for d in self.dims), self.dtype)


@dataclass(frozen=True, slots=True)
class Give:
    """Arithmetic on finals, over kept and whole dims only: `name(dims) dtype = expr`. A result of the loop."""

    name: str
    dims: tuple[Dim, ...]
    dtype: DType
    expr: Expr
    origin: Origin | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        return _text("print_give", self)

    @property
    def buffer(self) -> Buffer:
        return Buffer(self.name, tuple(d.extent for d in self.dims), self.dtype)


@dataclass(frozen=True, slots=True)
class Pass:
    """One run over the loop dims. A carry of a later pass may read finals of earlier ones without an anchor."""

    carries: tuple[Carry, ...]
    gives: tuple[Give, ...] = ()


@dataclass(frozen=True, slots=True)
class Loop:
    """Reductions that share their loop dims, in one or more passes over them: one kernel.

    Attributes:
        kept: big dims left of the bar (grid and rows).
        loop: big dims right of it.
        rounded: values made of finals that the program rounds to 16 bits, and to which type: none needs more where it is stored.
            Never part of equality or of the text.
    """

    kept: tuple[Dim, ...]
    loop: tuple[Dim, ...]
    passes: tuple[Pass, ...]
    rounded: tuple[tuple[Expr, DType], ...] = field(default=(), compare=False)

    def __repr__(self) -> str:
        return _text("print_statement", self)

    @property
    def carries(self) -> tuple[Carry, ...]:
        return tuple(c for p in self.passes for c in p.carries)

    @property
    def gives(self) -> tuple[Give, ...]:
        return tuple(g for p in self.passes for g in p.gives)


Statement: TypeAlias = Nest | Loop


@dataclass(frozen=True, slots=True)
class Program:
    """A list of statements in order of dependence.

    Attributes:
        name: for people.
        sizes: symbolic sizes, in the order in which the runtime passes them.
        inputs: arrays that are given.
        statements: nests and loops; each reads inputs and results of earlier ones.
        outputs: names of the results that are returned, in order.
    """

    name: str
    sizes: tuple[Size, ...]
    inputs: tuple[Buffer, ...]
    statements: tuple[Statement, ...]
    outputs: tuple[str, ...]

    def __repr__(self) -> str:
        return _text("print_program", self)

    @property
    def nests(self) -> tuple[Nest, ...]:
        return tuple(s for s in self.statements if isinstance(s, Nest))

    @property
    def loops(self) -> tuple[Loop, ...]:
        return tuple(s for s in self.statements if isinstance(s, Loop))

    def results(self) -> dict[str, Buffer]:
        """Every array a statement defines and another statement may read, by name."""
        found: dict[str, Buffer] = {}
        for statement in self.statements:
            match statement:
                case Nest():
                    found[statement.name] = statement.buffer
                case Loop():
                    found.update((g.name, g.buffer) for g in statement.gives)
        return found

    def with_statements(self, statements: tuple[Statement, ...]) -> Program:
        return replace(self, statements=statements)


def _text(printer: str, node: object) -> str:
    from flashlight.ir import text  # the printer needs the nodes

    return str(getattr(text, printer)(node))
