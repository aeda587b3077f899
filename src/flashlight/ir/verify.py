"""What a valid program is, checked at rising cost.

Level 1, structure: names, scopes, types, order. Level 2, loops: who may read whose running value. Level 3, laws: at random
references the body of a carry moves as it claims.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NoReturn, TypeAlias, assert_never

import numpy as np

from flashlight.errors import VerifyError
from flashlight.ir.dtypes import DType
from flashlight.ir.execute import inline_gives, lower_carries, multiset
from flashlight.ir.exprs import (
    BINARY,
    LOGICAL,
    SHIFTS,
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
    anchor,
    dtype_of,
)
from flashlight.ir.interpret import EXACT, Array, Evaluator, integer
from flashlight.ir.monoids import Monoid
from flashlight.ir.nests import Carry, Give, Loop, Nest, Pass, Program
from flashlight.ir.parser import is_name
from flashlight.ir.printer import print_expr, print_program, statement_dims
from flashlight.ir.visit import children, free_dims, loads, walk

STRUCTURE, LOOPS, LAWS = 1, 2, 3


def verify(program: Program, level: int = LOOPS) -> None:
    """Raise VerifyError, with the program's text as a note, unless `program` is valid up to `level` (1, 2 or 3)."""
    try:
        _structure(program)
        if level >= LOOPS:
            for loop in program.loops:
                _claims(loop)
        if level >= LAWS:
            for loop in program.loops:
                _laws(program, loop)
    except VerifyError as error:
        error.add_note(print_program(program))
        raise


def _fail(where: str, message: str) -> NoReturn:
    raise VerifyError(f"{where}: {message}")


# -- Level 1: structure


def _structure(program: Program) -> None:
    _names(program)
    sizes = set(program.sizes)
    for buffer in program.inputs:
        for extent in buffer.shape:
            _extent(f"Input '{buffer.name}'", extent, sizes)
    known = {b.name: b for b in program.inputs}
    for statement in program.statements:
        for dim in statement_dims(statement):
            _extent(f"Dim '{dim.name}'", dim.extent, sizes)
        match statement:
            case Nest():
                _nest(statement, known, sizes)
                known[statement.name] = statement.buffer
            case Loop():
                _loop(statement, known, sizes)
                known.update((g.name, g.buffer) for g in statement.gives)
            case _:
                assert_never(statement)
    results = program.results()
    for name in program.outputs:
        if name not in results:
            _fail("Outputs", f"'{name}' is no result of a statement.")


def _names(program: Program) -> None:
    """Every name is used once and can be read back."""
    names = [s.name for s in program.sizes] + [b.name for b in program.inputs]
    dims: dict[Dim, None] = {}
    for statement in program.statements:
        dims.update(statement_dims(statement))
        match statement:
            case Nest(name):
                names.append(name)
            case Loop():
                names.extend(c.name for c in statement.carries)
                names.extend(g.name for g in statement.gives)
            case _:
                assert_never(statement)
    names.extend(d.name for d in dims)
    for name, count in Counter(names).items():
        if count > 1:
            _fail("Names", f"'{name}' is used {count} times.")
        if not is_name(name):
            _fail("Names", f"'{name}' cannot be written in program text.")
    if not is_name(program.name):
        _fail("Names", f"'{program.name}' cannot be written in program text.")


def _extent(where: str, extent: Expr, sizes: set[Size]) -> None:
    for node in walk(extent):
        if isinstance(node, Index | Load | Reduce):
            _fail(where, f"extent '{print_expr(extent)}' is not made of sizes.")
        if isinstance(node, Size) and node not in sizes:
            _fail(where, f"extent '{print_expr(extent)}' reads the undeclared size '{node.name}'.")
    if not dtype_of(extent).is_int:
        _fail(where, f"extent '{print_expr(extent)}' is no integer.")


def _nest(nest: Nest, known: Mapping[str, Buffer], sizes: set[Size]) -> None:
    where = f"Nest '{nest.name}'"
    _distinct(where, nest.parallel, nest.reduced)
    if (nest.monoid is None) != (not nest.reduced):
        _fail(where, "a monoid is there exactly when there are reduced dims.")
    _expr(where, nest.body, {*nest.parallel, *nest.reduced}, known, sizes)
    if nest.monoid is None:
        _result(where, dtype_of(nest.body), nest.dtype)
    else:
        _reduction(where, nest.monoid, nest.reduced, nest.body)
        _result(where, dtype_of(Reduce(nest.monoid, nest.reduced, nest.body)), nest.dtype)


def _loop(loop: Loop, before: Mapping[str, Buffer], sizes: set[Size]) -> None:
    _distinct("Loop", loop.kept, loop.loop)
    known = dict(before)
    for part in loop.passes:
        gives = {g.name: g.buffer for g in part.gives}
        for carry in part.carries:
            _carry(loop, carry, {**known, **gives}, sizes)
            known[carry.name] = carry.buffer
        for give in part.gives:
            where = f"Give '{give.name}'"
            _kept_dims(where, loop, give.dims)
            _expr(where, give.expr, set(give.dims), known, sizes, _big(loop))
            _result(where, dtype_of(give.expr), give.dtype)
            known[give.name] = give.buffer


def _carry(loop: Loop, carry: Carry, known: Mapping[str, Buffer], sizes: set[Size]) -> None:
    where = f"Carry '{carry.name}'"
    if not loop.loop:
        _fail(where, "there are no loop dims to reduce.")
    _kept_dims(where, loop, carry.dims)
    dims = set(carry.dims)
    _expr(where, carry.body, dims | set(loop.loop), known, sizes, _big(loop))
    _reduction(where, carry.monoid, loop.loop, carry.body)
    _result(where, dtype_of(Reduce(carry.monoid, loop.loop, carry.body)), carry.dtype)
    if carry.dtype in (DType.F16, DType.BF16):
        _fail(where, f"accumulates in {carry.dtype.value}.")
    for row in (*carry.weight, *(s.value for s in carry.shifts)):
        _expr(where, row, dims, known, sizes, _big(loop))
        if not dtype_of(row).is_float:
            _fail(where, f"moves by '{print_expr(row)}', which is no float.")


def _big(loop: Loop) -> frozenset[Dim]:
    return frozenset((*loop.kept, *loop.loop))


def _kept_dims(where: str, loop: Loop, dims: Sequence[Dim]) -> None:
    _distinct(where, dims, loop.loop)
    missing = [d.name for d in loop.kept if d not in dims]
    if missing:
        _fail(where, f"lacks the kept dim '{missing[0]}'.")


def _distinct(where: str, left: Sequence[Dim], right: Sequence[Dim]) -> None:
    for dim, count in Counter((*left, *right)).items():
        if count > 1:
            _fail(where, f"dim '{dim.name}' occurs twice.")


def _reduction(where: str, monoid: Monoid, dims: Sequence[Dim], body: Expr) -> None:
    if not dims:
        _fail(where, f"'{monoid.name}' reduces no dim.")
    is_bool = dtype_of(body) is DType.BOOL
    if is_bool != monoid.is_logical:
        _fail(where, f"'{monoid.name}' of a {dtype_of(body).value} value.")


def _result(where: str, value: DType, declared: DType) -> None:
    """A result may be rounded, not turned from one kind of value into another without a cast."""
    if (value.is_float, value.is_int) != (declared.is_float, declared.is_int):
        _fail(where, f"has a {value.value} value but is {declared.value}.")


def _expr(
    where: str,
    root: Expr,
    scope: set[Dim],
    known: Mapping[str, Buffer],
    sizes: set[Size],
    big: frozenset[Dim] = frozenset(),
) -> None:
    """Types, loads and scopes of one expression.

    An inner reduction may bind a dim that is free elsewhere (`sum(d: Q[q, d] * K[k, d]) * K[k, d]`), but none of the `big` dims of a
    loop: those are cut into tiles.
    """
    outside = free_dims(root) - scope
    if outside:
        names = ", ".join(sorted(d.name for d in outside))
        _fail(where, f"'{names}' is not in scope in '{print_expr(root)}'.")
    for node in walk(root):
        _types(where, node)
        match node:
            case Load(buffer, index):
                _load(where, buffer, index, known)
            case Size() if node not in sizes:
                _fail(where, f"size '{node.name}' is not declared.")
            case Reduce(_, dims, _):
                _distinct(where, dims, ())
                if tiled := big & set(dims):
                    _fail(
                        where,
                        f"'{print_expr(node)}' binds the dim '{min(d.name for d in tiled)}' of the loop.",
                    )
            case _:
                pass


def _load(where: str, buffer: Buffer, index: tuple[Expr, ...], known: Mapping[str, Buffer]) -> None:
    if buffer.name not in known:
        _fail(where, f"reads '{buffer.name}', which is not known there.")
    if known[buffer.name] is not buffer:
        _fail(where, f"reads '{buffer!r}', which is '{known[buffer.name]!r}'.")
    if len(index) != len(buffer.shape):
        _fail(where, f"reads '{buffer!r}' with {len(index)} indices.")
    for i in index:
        if not dtype_of(i).is_int:
            _fail(where, f"reads '{buffer.name}' at '{print_expr(i)}', which is no integer.")


def _types(where: str, node: Expr) -> None:
    """Operators exist and take the types of their operands."""

    def fail(message: str) -> NoReturn:
        _fail(where, f"{message} in '{print_expr(node)}'.")

    match node:
        case Const(value, dtype):
            kind = float if dtype.is_float else bool if dtype is DType.BOOL else int
            if type(value) is not kind:
                fail(f"a literal {value!r} of type {dtype.value}")
        case Unary(op, x):
            if op not in UNARY:
                fail(f"unknown operator '{op}'")
            dtype = dtype_of(x)
            if op == "not" and dtype.is_float:
                fail("'not' of a float")
            if op == "neg" and dtype is DType.BOOL:
                fail("'neg' of a bool")
        case Binary(op, a, b):
            if op not in BINARY:
                fail(f"unknown operator '{op}'")
            if op in LOGICAL and (dtype_of(a).is_float or dtype_of(b).is_float):
                fail(f"'{op}' of a float")
            if op in SHIFTS and not (dtype_of(a).is_int and dtype_of(b).is_int):
                fail(f"'{op}' of what is no integer")
        case Select(condition, _, _):
            if dtype_of(condition) is not DType.BOOL:
                fail("a condition that is no bool")
        case Reduce(monoid, dims, body):
            _reduction(where, monoid, dims, body)
        case Cast() | Load() | Index() | Size():
            pass
        case _:
            assert_never(node)


# -- Level 2: claims of loops

Result: TypeAlias = Carry | Give


def _claims(loop: Loop) -> None:
    """Same-pass finals are read anchored, at the row they belong to, and by carries that say how they move."""
    own: dict[str, Result] = {c.name: c for c in loop.carries}
    own.update((g.name, g) for g in loop.gives)
    for part in loop.passes:
        running = {c.name for c in part.carries} | {g.name for g in part.gives}
        for carry in part.carries:
            _carry_claims(loop, part, carry, own, running)
        for give in part.gives:
            _own_rows(f"Give '{give.name}'", loop, give.expr, own)


def _carry_claims(
    loop: Loop, part: Pass, carry: Carry, own: Mapping[str, Result], running: set[str]
) -> None:
    where = f"Carry '{carry.name}'"
    rows = (*carry.weight, *(s.value for s in carry.shifts))
    for expr in (carry.body, *rows):
        _own_rows(where, loop, expr, own)
    for name in sorted(_unanchored(carry.body) & running):
        _fail(where, f"reads the running value of '{name}' without an anchor.")
    inlined = inline_gives(carry, part)
    read = {n.buffer.name for n in loads(inlined.body)} & running
    if carry.monoid.name != "sum":
        if rows or carry.lower or read:
            _fail(where, f"a '{carry.monoid.name}' has no law of motion.")
        return
    moved = {n.buffer.name for row in (*inlined.weight, *_values(inlined)) for n in loads(row)}
    for name in sorted(read - moved):
        _fail(where, f"reads the running value of '{name}' and does not move with it.")
    _lower(where, part, carry)


def _lower(where: str, part: Pass, carry: Carry) -> None:
    """The carries that an affine move adds to: one for each proper sub-multiset of the shifts."""
    names = [c.name for c in part.carries]
    for name in carry.lower:
        if name not in names:
            _fail(where, f"'{name}' is no carry of its pass.")
    lower = lower_carries(carry, part.carries)
    values = _values(carry)
    wanted = {
        multiset(inside)
        for count in range(len(values))
        for inside in itertools.combinations(values, count)
    }
    for missing in wanted - lower.keys():
        held = ", ".join(print_expr(v) for v, n in missing for _ in range(n)) or "none"
        _fail(where, f"no lower carry with the shifts '{held}'.")
    if lower.keys() - wanted or len(lower) != len(carry.lower):
        _fail(where, "a lower carry has no part in its move.")
    for other in lower.values():
        if Counter(other.weight) != Counter(carry.weight):
            _fail(where, f"the lower carry '{other.name}' has another weight.")
        if other.monoid.name != "sum" or not set(other.dims) <= set(carry.dims):
            _fail(where, f"the lower carry '{other.name}' is no sum over its dims.")


def _values(carry: Carry) -> tuple[Expr, ...]:
    return tuple(s.value for s in carry.shifts)


def _own_rows(where: str, loop: Loop, expr: Expr, own: Mapping[str, Result]) -> None:
    """A kernel knows the finals of its own rows only."""
    for load in loads(expr):
        result = own.get(load.buffer.name)
        if result is None:
            continue
        for dim, index in zip(result.dims, load.index, strict=True):
            if dim in loop.kept and index is not Index(dim):
                _fail(where, f"reads '{print_expr(load)}', which is not its own row.")
            if free_dims(index) & set(loop.loop):
                _fail(where, f"reads '{print_expr(load)}', which varies along the loop.")


def _unanchored(root: Expr) -> set[str]:
    """Names of buffers with a load that no anchor is above of."""
    found: set[str] = set()
    seen: set[Expr] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if node in seen or (isinstance(node, Unary) and node.op == "anchor"):
            continue
        seen.add(node)
        if isinstance(node, Load):
            found.add(node.buffer.name)
        stack.extend(children(node))
    return found


# -- Level 3: laws of motion

_WIDTH = 3  # positions of a dim that are looked at
_SAMPLES = 4


def _laws(program: Program, loop: Loop) -> None:
    rng = np.random.default_rng(0)
    sizes = {s.name: 4 + i for i, s in enumerate(program.sizes)}
    for part in loop.passes:
        carries = [inline_gives(c, part) for c in part.carries]
        for carry in carries:
            if carry.weight or carry.shifts:
                with np.errstate(all="ignore"):
                    _law(loop, carry, carries, sizes, rng)


def _law(
    loop: Loop,
    carry: Carry,
    carries: Sequence[Carry],
    sizes: Mapping[str, int],
    rng: np.random.Generator,
) -> None:
    """Body at references r' == the move from r to r' of the bodies at r, element by element."""
    running = {c.name for c in carries}
    seed = int(rng.integers(1 << 30))
    for sample in range(_SAMPLES):
        # the same inputs, two choices of the running values; one of them is unset in the last samples
        unset = running if sample >= _SAMPLES // 2 else set[str]()
        old = _RandomEvaluator(loop, carries, sizes, seed, running, 2 * sample, unset)
        new = _RandomEvaluator(loop, carries, sizes, seed, running, 2 * sample + 1, set())
        expected = _moved_body(carry, carries, old, new)
        got = new.value(carry.body)
        scale = np.abs(expected) + np.abs(got) + 1e-3
        same = (np.abs(got - expected) <= 1e-6 * scale) | (got == expected)
        if not np.all(same | (np.isnan(got) & np.isnan(expected))):
            _fail(f"Carry '{carry.name}'", "its body does not move as it claims.")


def _moved_body(carry: Carry, carries: Sequence[Carry], old: Evaluator, new: Evaluator) -> Array:
    lower = lower_carries(carry, carries)
    values = _values(carry)
    change = [new.value(v) - old.value(v) for v in values]
    total = old.value(carry.body)
    for count in range(len(values)):
        for inside in itertools.combinations(range(len(values)), count):
            term = old.value(lower[multiset(values[i] for i in inside)].body)
            for i in set(range(len(values))) - set(inside):
                term = term * change[i]
            total = total + term
    for weight in carry.weight:
        total = total * np.exp(new.value(anchor(weight)) - old.value(anchor(weight)))
    return total


class _RandomEvaluator(Evaluator):
    """Expressions over the first few positions of each dim, on arrays of random values that are made where they are read."""

    def __init__(
        self,
        loop: Loop,
        carries: Sequence[Carry],
        sizes: Mapping[str, int],
        seed: int,
        running: set[str],
        choice: int,
        unset: set[str],
    ) -> None:
        frame = tuple(
            statement_dims(loop)
            | statement_dims(Loop(loop.kept, loop.loop, (Pass(tuple(carries)),)))
        )
        ranges = {d: (0, min(_WIDTH, integer(d.extent, sizes))) for d in frame}
        super().__init__(frame, {}, sizes, EXACT, ranges)
        self._seed = seed
        self._running = running
        self._choice = choice
        self._unset = {c.name: c.monoid.identity for c in carries if c.name in unset}

    def _plain(self, node: Load) -> None:
        """No load is a slice of an array: there are none."""

    def _load(self, node: Load) -> Array:
        buffer = node.buffer
        kind = EXACT.numpy_type(buffer.dtype)
        if buffer.name in self._unset:
            return np.full((1,) * self._rank, self._unset[buffer.name]).astype(kind)
        salt = self._choice if buffer.name in self._running else 0
        where: Array = np.full((1,) * self._rank, hash_of(f"{self._seed} {salt} {buffer.name}"))
        for index in node.index:
            where = mixed(where, self.value(index))
        if buffer.dtype is DType.BOOL:
            return np.asarray(where % 4 != 0)
        if not buffer.dtype.is_float:
            return (where % 4).astype(kind)
        # running values are of both signs and, as maxima and sums are, not small
        return (where % 20_011) / 20_011 * 4 - (1 if buffer.name in self._running else 2)


def hash_of(text: str) -> int:
    """A number that is the same in every process."""
    value = 0
    for byte in text.encode():
        value = (value * 257 + byte + 1) % _PRIME
    return value


def mixed(a: Array, b: Array) -> Array:
    """Both numbers made into one."""
    return np.asarray(((a * 1_000_003) ^ (b.astype(np.int64) * 7919 + 12_345)) % _PRIME)


_PRIME = 2_147_483_647
