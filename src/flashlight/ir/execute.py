"""Loops as kernels run them: tile by tile, in parts, by the laws of execution (algebra.md, section 6).

`interpret` says what a loop means; this follows its `moves` claims, so that equal results confirm them. Also the model of what
generated code does: the tile step, the combination of parts, and gives on finals.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from flashlight.ir.exprs import Dim, Expr, Index, Load, anchor, anchored_addends
from flashlight.ir.interpret import (
    EXACT,
    SINGLE,
    Arithmetic,
    Array,
    Evaluator,
    convert,
    identity,
    infer_sizes,
    integer,
    prepare_inputs,
    rounded_once,
)
from flashlight.ir.nests import Carry, Loop, Nest, Pass, Program, Shift
from flashlight.ir.printer import statement_dims
from flashlight.ir.visit import replace_loads, substitute


def execute_tiled(
    program: Program,
    inputs: Mapping[str, Array],
    tile: int | Mapping[str, int],
    parts: int = 1,
    *,
    single: bool = False,
    sizes: Mapping[str, int] | None = None,
) -> dict[str, Array]:
    """The program's outputs with every loop run in tiles.

    Args:
        program: nests (which are interpreted) and loops.
        inputs: as `interpret` takes them.
        tile: positions of a loop dim that are taken at once, for all dims or by name.
        parts: into how many parts the tiles of a loop are cut; each starts empty, and then they are combined pairwise.
        single: compute in f32 instead of f64; float casts do nothing in either.
        sizes: values of symbolic sizes that do not follow from the inputs.
    """
    arithmetic = SINGLE if single else EXACT
    known = infer_sizes(program, inputs, sizes)
    arrays = prepare_inputs(program, inputs, arithmetic)
    with np.errstate(all="ignore"):
        for statement in program.statements:
            match statement:
                case Nest():
                    frame = tuple(statement_dims(statement))
                    evaluator = Evaluator(frame, arrays, known, arithmetic)
                    arrays[statement.name] = evaluator.nest(statement)
                case Loop():
                    _LoopRun(statement, arrays, known, arithmetic).run(tile, parts)
    return {name: arrays[name] for name in program.outputs}


State = dict[
    str, Array
]  # accumulators of one pass; the value an argmax has won with is under its name and WINNER
WINNER = "'s value"
_NOWHERE = np.iinfo(np.int64).max  # position before any has been seen


class _LoopRun:
    """One loop on given arrays, which gain its finals and gives."""

    def __init__(
        self,
        loop: Loop,
        arrays: dict[str, Array],
        sizes: Mapping[str, int],
        arithmetic: Arithmetic,
    ) -> None:
        self.loop = loop
        self.arrays = arrays
        self.sizes = sizes
        self.arithmetic = arithmetic
        passes = tuple(
            Pass(tuple(inline_gives(c, p) for c in p.carries), p.gives) for p in loop.passes
        )
        self.passes = passes
        renamed = statement_dims(Loop(loop.kept, loop.loop, passes))
        self.frame = tuple(statement_dims(loop) | renamed)

    def run(self, tile: int | Mapping[str, int], parts: int) -> None:
        tiles = self._tiles(tile)
        for part in self.passes:
            states = []
            for chunk in np.array_split(np.arange(len(tiles)), parts):
                state = self._empty(part.carries)
                for number in chunk:
                    state = self._step(part.carries, state, tiles[number])
                states.append(state)
            self._finish(part, self._tree(part.carries, states))

    def _tiles(self, tile: int | Mapping[str, int]) -> list[dict[Dim, tuple[int, int]]]:
        spans = []
        for dim in self.loop.loop:
            extent = integer(dim.extent, self.sizes)
            step = tile if isinstance(tile, int) else tile[dim.name]
            spans.append([(i, min(i + step, extent)) for i in range(0, extent, step)])
        return [dict(zip(self.loop.loop, box, strict=True)) for box in itertools.product(*spans)]

    def _evaluator(
        self, state: State, ranges: Mapping[Dim, tuple[int, int]] | None = None
    ) -> Evaluator:
        """Expressions on `state`, which may be updated and then forgotten name by name."""
        return Evaluator(
            self.frame, _Layered(state, self.arrays), self.sizes, self.arithmetic, ranges
        )

    def _empty(self, carries: Sequence[Carry]) -> State:
        state: State = {}
        for carry in carries:
            shape = [integer(d.extent, self.sizes) for d in carry.dims]
            kind = self.arithmetic.numpy_type(carry.dtype)
            if carry.monoid.is_position:
                state[carry.name] = np.full(shape, _NOWHERE)
                state[carry.name + WINNER] = np.full(shape, carry.monoid.identity)
            else:
                state[carry.name] = np.full(shape, identity(carry.monoid, carry.dtype), kind)
        return state

    def _step(
        self, carries: Sequence[Carry], before: State, ranges: Mapping[Dim, tuple[int, int]]
    ) -> State:
        """The state after one more tile."""
        after = dict(before)
        old, new = self._evaluator(before), self._evaluator(after, ranges)
        for carry in carries:
            if carry.monoid.is_position:
                self._step_position(carry, new, ranges, after)
                continue
            fresh = new.reduced(carry.monoid, self.loop.loop, carry.body)
            held = self._moved(carry, carries, old, new)
            after[carry.name] = self._stored(carry, _combine(carry, held, fresh), new)
            new.forget(carry.name)
        return after

    def _step_position(
        self, carry: Carry, new: Evaluator, ranges: Mapping[Dim, tuple[int, int]], after: State
    ) -> None:
        """An argmax takes a tile: the tile's winner, at its position in the whole loop."""
        value = new.over(new.value(carry.body), (*carry.dims, *self.loop.loop))
        flat = value.reshape(*value.shape[: len(carry.dims)], -1)
        where = np.zeros((), np.int64)
        for dim in self.loop.loop:
            along = np.arange(*ranges[dim])
            where = where[..., None] * integer(dim.extent, self.sizes) + along
        find = np.argmax if carry.monoid.name == "argmax" else np.argmin
        place = find(flat, axis=-1)
        best = np.take_along_axis(flat, place[..., None], -1)[..., 0]
        held = after[carry.name + WINNER], after[carry.name]
        won = _better(carry, held, (best, where.reshape(-1)[place]))
        after[carry.name + WINNER], after[carry.name] = won
        new.forget(carry.name)

    def _moved(
        self, carry: Carry, carries: Sequence[Carry], old: Evaluator, new: Evaluator
    ) -> Array:
        """The accumulator, built with the references of `old`, as if built with those of `new`; in the frame."""
        held = old.value(_own(carry))
        if not carry.weight and not carry.shifts:
            return held
        if carry.shifts:
            held = self._shifted(carry, carries, old, new)
        if not carry.weight:
            return held
        change: Array = sum(
            (new.value(anchor(w)) - old.value(anchor(w)) for w in carry.weight),
            np.zeros((), self.arithmetic.numpy_type(carry.dtype)),
        )
        factor = rounded_once(np.exp, change)
        # inf only where the reference was unset and the accumulator is 0
        return np.asarray(np.minimum(factor, np.finfo(change.dtype).max) * held)

    def _shifted(
        self, carry: Carry, carries: Sequence[Carry], old: Evaluator, new: Evaluator
    ) -> Array:
        """Sum over subsets of the shifts: the changes of those outside times the carry with only those inside."""
        lower = lower_carries(carry, carries)
        values = [s.value for s in carry.shifts]
        change = [new.value(v) - old.value(v) for v in values]
        total = old.value(_own(carry))
        for count in range(len(values)):
            for inside in itertools.combinations(range(len(values)), count):
                term = old.value(_own(lower[multiset(values[i] for i in inside)]))
                for i in range(len(values)):
                    if i not in inside:
                        term = change[i] * term
                total = total + term
        return total

    def _tree(self, carries: Sequence[Carry], states: list[State]) -> State:
        """The parts combined pairwise."""
        while len(states) > 1:
            pairs = [states[i : i + 2] for i in range(0, len(states), 2)]
            states = [self._combined(carries, *p) if len(p) == 2 else p[0] for p in pairs]
        return states[0]

    def _combined(self, carries: Sequence[Carry], a: State, b: State) -> State:
        """The state of two parts together: both are moved to the references of the combination."""
        both: State = {}
        left, right, new = self._evaluator(a), self._evaluator(b), self._evaluator(both)
        for carry in carries:
            name = carry.name
            if carry.monoid.is_position:
                won = _better(carry, (a[name + WINNER], a[name]), (b[name + WINNER], b[name]))
                both[name + WINNER], both[name] = won
                continue
            moved = [self._moved(carry, carries, side, new) for side in (left, right)]
            both[name] = self._stored(carry, _combine(carry, *moved), new)
        return both

    def _finish(self, part: Pass, state: State) -> None:
        """Finals and gives of a pass become arrays."""
        for carry in part.carries:
            final = state[carry.name]
            if carry.monoid.is_position:
                final = np.where(final == _NOWHERE, 0, final)
            self.arrays[carry.name] = final
        for give in part.gives:
            self.arrays[give.name] = self._evaluator({}).give(give)

    def _stored(self, carry: Carry, value: Array, evaluator: Evaluator) -> Array:
        return convert(evaluator.over(value, carry.dims), carry.dtype, self.arithmetic)


class _Layered(Mapping[str, Array]):
    """Running values over everything else, without a copy."""

    def __init__(self, top: State, below: Mapping[str, Array]) -> None:
        self._top = top
        self._below = below

    def __getitem__(self, name: str) -> Array:
        return self._top[name] if name in self._top else self._below[name]

    def __iter__(self) -> itertools.chain[str]:
        return itertools.chain(self._top, self._below)

    def __len__(self) -> int:
        return len(self._top) + len(self._below)


def lower_carries(
    carry: Carry, carries: Sequence[Carry]
) -> dict[frozenset[tuple[Expr, int]], Carry]:
    """For each proper sub-multiset of the shifts, the carry that holds the sum with only these."""
    named = [c for c in carries if c.name in carry.lower]
    return {multiset(s.value for s in c.shifts): c for c in named}


def multiset(values: Iterable[Expr]) -> frozenset[tuple[Expr, int]]:
    return frozenset(Counter(values).items())


def _own(carry: Carry) -> Expr:
    """The accumulator itself, at its own dims."""
    return Load(carry.buffer, tuple(Index(d) for d in carry.dims))


def _combine(carry: Carry, a: Array, b: Array) -> Array:
    return _COMBINE[carry.monoid.combine](a, b)


_COMBINE = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "or": np.logical_or,
    "and": np.logical_and,
}


def _better(carry: Carry, a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
    """The winner of two values with their positions: NaN first, then the value, then the lower position."""
    (x, i), (y, j) = a, b
    beats = y > x if carry.monoid.name == "argmax" else y < x
    x_nan, y_nan = x != x, y != y
    tie = (x == y) | (x_nan & y_nan)
    second = np.where(tie, j < i, (beats & ~x_nan) | (y_nan & ~x_nan))
    return np.where(second, y, x), np.where(second, j, i)


def inline_gives(carry: Carry, part: Pass) -> Carry:
    """A carry that reads running values of gives, as one that reads carries only; its shifts are anchored."""
    gives = {g.name: g for g in part.gives}

    def expand(load: Load) -> Expr | None:
        if load.buffer.name not in gives:
            return None
        give = gives[load.buffer.name]
        return inlined(substitute(give.expr, dict(zip(give.dims, load.index, strict=True))))

    def inlined(expr: Expr) -> Expr:
        return replace_loads(expr, expand) if gives else expr

    shifts = tuple(Shift(inlined(anchored_addends(s.value))) for s in carry.shifts)
    return Carry(
        carry.name,
        carry.dims,
        carry.dtype,
        carry.monoid,
        inlined(carry.body),
        tuple(inlined(w) for w in carry.weight),
        shifts,
        carry.lower,
    )
