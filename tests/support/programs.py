"""Random small programs and inputs for them.

    @given(cases())
    def test_pass(case):
        assert_same(interpret(rewritten(case.program), case.inputs), interpret(case.program, case.inputs))

Programs are what `lift` leaves: scores, masks and casts, a chain of row reductions over expressions in earlier rows, then one
sum with V. Choices are ordered from plain to strange, so that failures shrink to readable text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import (
    BINARY,
    UNARY,
    Binary,
    Buffer,
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
    add,
    const,
    div,
    exp,
    mul,
    neg,
    sub,
)
from flashlight.ir.interpret import Array, integer
from flashlight.ir.monoids import ANY, ARGMAX, MAX, MIN, MONOIDS, SUM, Monoid
from flashlight.ir.nests import Carry, Give, Loop, Nest, Pass, Program, Shift, Statement
from flashlight.ir.visit import walk

F32, BF16, F16, BOOL, I64 = DType.F32, DType.BF16, DType.F16, DType.BOOL, DType.I64


# -- Inputs


def random_inputs(
    program: Program,
    sizes: Mapping[str, int] | None = None,
    *,
    seed: int = 0,
    scale: float = 1.0,
    holes: float = 0.0,
) -> dict[str, Array]:
    """Inputs for any program.

    Args:
        program: whose inputs.
        sizes: values of its symbolic sizes; 5, 6, 7, ... without.
        seed: of the generator; the same seed gives the same inputs.
        scale: standard deviation of float inputs of rank two and more that are not called V (extreme logits: 100).
        holes: share of elements of inputs called `bias...` that are -inf, and of `alive...` that are False.
    """
    rng = np.random.default_rng(seed)
    known = dict(sizes or {s.name: 5 + i for i, s in enumerate(program.sizes)})
    found: dict[str, Array] = {}
    for buffer in program.inputs:
        shape = [integer(extent, known) for extent in buffer.shape]
        if buffer.dtype is BOOL:
            found[buffer.name] = rng.random(shape) >= (holes or 0.25)
        elif not buffer.dtype.is_float:
            found[buffer.name] = rng.integers(0, 4, shape)
        else:
            spread = scale if len(shape) > 1 and not buffer.name.startswith("V") else 1.0
            values = rng.normal(size=shape) * spread
            if buffer.name.startswith("bias"):
                values[rng.random(shape) < holes] = -np.inf
            found[buffer.name] = values.astype(np.float32)
    return found


@dataclass(frozen=True)
class Case:
    """A program with what determines its inputs."""

    program: Program
    sizes: Mapping[str, int]
    seed: int = 0
    scale: float = 1.0
    holes: float = 0.0
    inputs: Mapping[str, Array] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        made = random_inputs(
            self.program, self.sizes, seed=self.seed, scale=self.scale, holes=self.holes
        )
        object.__setattr__(self, "inputs", made)

    def __repr__(self) -> str:
        what = f"sizes={dict(self.sizes)}, seed={self.seed}, scale={self.scale}, holes={self.holes}"
        return f'parse_program("""\n{self.program}\n"""), {what}'

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # how hypothesis shows it


def assert_same(
    got: Mapping[str, Array],
    expected: Mapping[str, Array],
    tolerance: float = 1e-9,
    what: str = "",
) -> None:
    """Equal up to `tolerance` relative to each array's size, with NaN and infinities at the same places."""
    assert got.keys() == expected.keys()
    for name, right in expected.items():
        left = got[name]
        assert left.shape == right.shape, f"{what} {name}: shape {left.shape}, not {right.shape}"
        if right.dtype.kind != "f":
            assert np.array_equal(left, right), f"{what} {name}: {left} is not {right}"
            continue
        finite = np.isfinite(right)
        assert np.array_equal(np.isnan(left), np.isnan(right)), f"{what} {name}: NaN places differ"
        infinite = np.isinf(right)
        assert np.array_equal(left[infinite], right[infinite]), f"{what} {name}: inf differs"
        assert np.isfinite(left[finite]).all(), f"{what} {name}: not finite"
        size = np.abs(right[finite]).max(initial=0.0)
        error = np.abs(left[finite] - right[finite]).max(initial=0.0)
        assert error <= tolerance * max(size, 1.0), f"{what} {name}: off by {error}, size {size}"


# -- Programs of nests


@st.composite
def programs(
    draw: st.DrawFn, max_rows: int = 3, casts: bool = True, symbolic: bool = True
) -> Program:
    """A valid program of nests with output `O` and some of its rows."""
    return _Builder(draw, casts, symbolic).program(max_rows)


@st.composite
def cases(
    draw: st.DrawFn,
    max_rows: int = 3,
    casts: bool = True,
    symbolic: bool = True,
    scales: Sequence[float] = (1.0, 0.1, 10.0, 100.0),
) -> Case:
    """A program, sizes and inputs: extreme logits, holes in masks and dead rows among them."""
    program = draw(programs(max_rows, casts, symbolic))
    sizes = {s.name: draw(st.integers(1, 9), label=s.name) for s in program.sizes}
    return Case(
        program,
        sizes,
        draw(st.integers(0, 99), label="seed"),
        draw(st.sampled_from(scales), label="scale"),
        draw(st.sampled_from([0.0, 0.3, 0.9]), label="holes"),
    )


class _Builder:
    """Makes one program; `draw` decides."""

    def __init__(self, draw: st.DrawFn, casts: bool, symbolic: bool) -> None:
        self.draw = draw
        self.casts = casts
        rows, columns = (Size("S"), Size("T")) if symbolic else (const(5), const(7))
        self.sizes = (rows, columns) if symbolic else ()
        self.q, self.k = Dim("q", rows), Dim("k", columns)
        self.d, self.e = Dim("d", const(3)), Dim("e", const(2))
        self.inputs: dict[str, Buffer] = {}
        self.nests: list[Nest] = []
        self.rows: list[Load] = []
        self.maxima: list[Load] = []
        self.normalisers: list[Load] = []
        self.scores: list[Expr] = []

    def pick(self, *options: Any) -> Any:  # the first is the plainest
        return self.draw(st.sampled_from(options))

    def program(self, max_rows: int) -> Program:
        self._make_scores()
        for number in range(self.draw(st.integers(1, max_rows))):
            self._make_row(f"r{number + 1}")
        outputs = [self._make_output()]
        for row in self.rows:
            if row.buffer.name != "m" and self.draw(st.booleans()):
                outputs.append(row.buffer.name)
        statements: tuple[Statement, ...] = tuple(self.nests)
        return Program(
            "random", self.sizes, tuple(self.inputs.values()), statements, tuple(outputs)
        )

    def _input(self, name: str, dtype: DType, *dims: Dim) -> Expr:
        buffer = Buffer(name, tuple(d.extent for d in dims), dtype)
        self.inputs[name] = buffer
        return Load(buffer, tuple(Index(d) for d in dims))

    def _nest(
        self,
        name: str,
        parallel: tuple[Dim, ...],
        reduced: tuple[Dim, ...],
        dtype: DType,
        monoid: Monoid | None,
        body: Expr,
    ) -> Load:
        nest = Nest(name, parallel, reduced, dtype, monoid, body)
        self.nests.append(nest)
        return Load(nest.buffer, tuple(Index(d) for d in parallel))

    def _dtype(self) -> DType:
        return self.pick(F32, BF16, F16) if self.casts else F32

    def _make_scores(self) -> None:
        dtype = self._dtype()
        product = mul(
            self._input("Q", dtype, self.q, self.d), self._input("K", dtype, self.k, self.d)
        )
        s: Expr = self._nest("s", (self.q, self.k), (self.d,), dtype, SUM, product)
        match self.pick("none", "scale", "bias", "cap", "distance", "gather"):
            case "scale":
                s = mul(s, const(0.5))
            case "bias":
                s = add(s, self._input("bias", F32, self.q, self.k))
            case "cap":
                s = mul(Unary("tanh", div(s, const(4.0))), const(4.0))
            case "distance":
                gap = Cast(sub(Index(self.q), Index(self.k)), F32)
                s = sub(s, mul(Unary("abs", gap), const(0.25)))
            case "gather":
                at = self._input("id", I64, self.k)
                table = Buffer("bias_table", (const(4),), F32)
                self.inputs[table.name] = table
                s = add(s, Load(table, (at,)))
            case _:
                pass
        mask = self._mask()
        if mask is not None:
            fill = self.pick(const(-np.inf), const(-1e10))
            s = self._nest("t", (self.q, self.k), (), F32, None, Select(mask, s, fill))
        self.scores.append(s)
        if self.casts and self.pick(False, True):
            self.scores[0] = Cast(Cast(s, BF16), F32)
        m = self._nest("m", (self.q,), (self.k,), F32, MAX, self.scores[0])
        self.rows.append(m)
        self.maxima.append(m)

    def _mask(self) -> Expr | None:
        q, k = Index(self.q), Index(self.k)
        match self.pick("none", "causal", "window", "alive", "same", "dense"):
            case "causal":
                return Binary("le", k, q)
            case "window":
                return Binary("and", Binary("le", k, q), Binary("lt", sub(q, k), const(3)))
            case "alive":
                return self._input("alive", BOOL, self.q)
            case "same":
                one, other = self._input("id_q", I64, self.q), self._input("id_k", I64, self.k)
                return Binary("eq", one, other)
            case "dense":
                return self._input("alive_pairs", BOOL, self.q, self.k)
            case _:
                return None

    def _make_row(self, name: str) -> None:
        monoid = self.pick(SUM, MAX, MIN, ANY, ARGMAX)
        body = self._matrix(2)
        if monoid is ANY:
            body = Binary("gt", body, self._scalar())
        if monoid is ARGMAX:
            self._nest(name, (self.q,), (self.k,), I64, monoid, self.scores[0])
            return
        dtype = BOOL if monoid is ANY else F32
        row = self._nest(name, (self.q,), (self.k,), dtype, monoid, body)
        if monoid is ANY:
            other = self.pick(*self.rows)
            chosen = Select(row, other, const(0.0))
            row = self._nest(f"{name}_or", (self.q,), (), F32, None, chosen)
        self.rows.append(row)
        if monoid in (MAX, MIN):
            self.maxima.append(row)
        if monoid is SUM and body is exp(sub(self.scores[0], self.maxima[0])):
            self.normalisers.append(row)

    def _scalar(self) -> Expr:
        return const(self.pick(0.0, 0.5, 1.0, -1.0))

    def _row(self) -> Expr:
        row = self._finite(self.pick(*reversed(self.rows)))
        match self.pick("row", "relu", "abs", "plus one", "log"):
            case "relu":
                return Binary("max", row, const(0.0))
            case "abs":
                return Unary("abs", row)
            case "plus one":
                return add(Unary("abs", row), const(1.0))
            case "log":
                return Unary("log", add(Unary("abs", row), const(1.0)))
            case _:
                return row

    def _finite(self, row: Load) -> Expr:
        """A maximum as logsumexp reads it: infinite factors of both signs are what rewriting may not keep."""
        if row not in self.maxima:
            return row
        return Select(Unary("isinf", row), const(0.0), row)

    def _divisor(self) -> Expr:
        """Never 0, which a sum of quotients and a quotient of sums answer differently."""
        row = self._finite(self.pick(*reversed(self.rows)))
        return self.pick(*self.normalisers, add(Unary("abs", row), const(1.0)))

    def _leaf(self) -> Expr:
        """Something over (q, k)."""
        s = self.scores[0]
        match self.pick("weight", "score", "shifted", "sigmoid", "key", "one"):
            case "weight":
                return exp(sub(s, self.pick(*self.maxima)))
            case "score":
                return Unary("tanh", s)
            case "shifted":
                return sub(Unary("tanh", s), self._row())
            case "sigmoid":
                return Unary("sigmoid", s)
            case "key":
                return self._input("W", F32, self.k)
            case _:
                return const(1.0)

    def _matrix(self, depth: int) -> Expr:
        """An expression over (q, k) in earlier rows."""
        if depth == 0:
            return self._leaf()
        x = self._matrix(depth - 1)
        match self.pick(
            "leaf",
            "late",
            "product",
            "shift",
            "square",
            "relu",
            "where",
            "max",
            "min",
            "sum",
            "cast",
        ):
            case "late":
                return div(x, self._divisor())
            case "product":
                return mul(x, self._leaf())
            case "shift":
                return sub(x, self._row())
            case "square":
                return mul(x, x)
            case "relu":
                return Binary("max", x, const(0.0))
            case "where":
                mask = self._mask()
                return x if mask is None else Select(mask, x, self._scalar())
            case "max":
                return Binary("max", x, self._leaf())
            case "min":
                return Binary("min", x, self._leaf())
            case "sum":
                return self.pick(add, sub)(x, self._leaf())
            case "cast" if self.casts:
                return Cast(Cast(x, self.pick(BF16, F16)), F32)
            case _:
                return x

    def _make_output(self) -> str:
        v = self._input("V", self._dtype(), self.k, self.e)
        weight = self._matrix(2)
        match self.pick("plain", "nest", "late", "columns"):
            case "nest":
                dtype = self._dtype()
                p = self._nest("p", (self.q, self.k), (), dtype, None, weight)
                self._nest("O", (self.q, self.e), (self.k,), dtype, SUM, mul(p, v))
            case "late":
                a = self._nest("A", (self.q, self.e), (self.k,), F32, SUM, mul(weight, v))
                self._nest("O", (self.q, self.e), (), F32, None, div(a, self._divisor()))
            case "columns":
                self._nest("O", (self.k,), (self.q,), F32, SUM, weight)
            case _:
                self._nest("O", (self.q, self.e), (self.k,), F32, SUM, mul(weight, v))
        return "O"


# -- Expressions and loops for the text, typed or not


S, T = Size("S"), Size("T")
DIMS = (Dim("q", S), Dim("k", add(T, const(1))), Dim("d", const(3)), Dim("d'", const(3)))
BUFFERS = (
    Buffer("X", (S, const(3)), F32),
    Buffer("Y", (), BF16),
    Buffer("exp", (T,), DType.I32),
)


def literals() -> st.SearchStrategy[Expr]:
    """Constants of every type, -0.0, infinities and NaN included."""
    floats = st.builds(
        Const,
        st.floats(allow_nan=False) | st.just(float("nan")),
        st.sampled_from([d for d in DType if d.is_float]),
    )
    ints = st.builds(
        Const, st.integers(-(2**63), 2**63 - 1), st.sampled_from([d for d in DType if d.is_int])
    )
    return ints | floats | st.builds(Const, st.booleans(), st.just(BOOL))


def expressions(buffers: Sequence[Buffer] = BUFFERS) -> st.SearchStrategy[Expr]:
    """Any expression that can be written, of no particular type, over S, T, DIMS and `buffers`."""
    leaves = (
        st.sampled_from([*(Index(d) for d in DIMS), S, T])
        | literals()
        | st.sampled_from([b for b in buffers if not b.shape]).map(lambda b: Load(b, ()))
    )

    def extend(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        arrays = [b for b in buffers if b.shape]
        return st.one_of(
            st.builds(Unary, st.sampled_from(UNARY), inner),
            st.builds(Binary, st.sampled_from(BINARY), inner, inner),
            inner.map(lambda x: mul(x, neg(x))),
            st.builds(Select, inner, inner, inner),
            st.builds(Cast, inner, st.sampled_from(list(DType))),
            st.builds(
                Reduce,
                st.sampled_from(list(MONOIDS.values())),
                st.lists(st.sampled_from(DIMS), unique=True, min_size=1, max_size=2).map(tuple),
                inner,
            ),
            st.sampled_from(arrays).flatmap(
                lambda b: st.tuples(*[inner] * len(b.shape)).map(lambda i: Load(b, i))
            ),
        )

    return st.recursive(leaves, extend, max_leaves=12)


@st.composite
def loop_programs(draw: st.DrawFn) -> Program:
    """A program of one loop that can be written; its claims need not be true."""
    q, k, d = DIMS[0], DIMS[1], DIMS[2]
    own = (Buffer("m", (S,), F32), Buffer("A", (S, const(3)), F32))
    exprs = expressions((*BUFFERS, *own))

    def carry(name: str, dims: tuple[Dim, ...]) -> Carry:
        weight = draw(st.lists(exprs, max_size=2).map(tuple))
        shifts = draw(st.lists(st.builds(Shift, exprs), max_size=2).map(tuple))
        lower = draw(st.sampled_from([(), ("m",), ("m", "A")]))
        monoid = draw(st.sampled_from(list(MONOIDS.values())))
        return Carry(name, dims, F32, monoid, draw(exprs), weight, shifts, lower)

    first = Pass((carry("m", (q,)), carry("A", (q, d))), (Give("O", (q,), BF16, draw(exprs)),))
    second = Pass((carry("B", ()),), (Give("P", (q, d), I64, draw(exprs)),))
    passes = (first, second) if draw(st.booleans()) else (first,)
    return Program("loops", (S, T), BUFFERS, (Loop((q,), (k,), passes),), ("O",))


def dims_of_expr(expr: Expr) -> set[Dim]:
    """Dims that occur in an expression, bound ones included."""
    nodes = list(walk(expr))
    bound = {d for n in nodes if isinstance(n, Reduce) for d in n.dims}
    return bound | {n.dim for n in nodes if isinstance(n, Index)}
