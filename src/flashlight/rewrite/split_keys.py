"""Cut a loop into parts that run side by side and merge their accumulators: the monoid's `combine` as a second loop."""

from __future__ import annotations

import math
from dataclasses import replace

from flashlight.ir.exprs import (
    Binary,
    Buffer,
    Const,
    Dim,
    Expr,
    Index,
    Load,
    Select,
    add,
    anchor,
    const,
    exp,
    floordiv,
    largest,
    mul,
    sub,
)
from flashlight.ir.monoids import ANY, MAX, MIN, SUM
from flashlight.ir.nests import Carry, Give, Loop, Pass, Program, Statement
from flashlight.ir.visit import fresh_name, replace_loads, substitute
from flashlight.rewrite.simplify import simplify

NEARLY = 0.02
"""Share of the device that may idle for the sake of more and shorter parts."""

UNEVEN = 0.1
"""The same for parts of equal length, whose tiles need no checks and no loop of their own for the last ones."""

PART_MULTIPLE = 128
"""Parts are whole numbers of tiles of up to so many positions, so that no tile is cut."""


def why_not_split(loop: Loop) -> str | None:
    """The reason why a loop cannot be cut into parts, or None.

    Parts are merged by moving each accumulator to the common reference; that is one pass, by weights alone.
    """
    if len(loop.passes) != 1 or not loop.loop:
        return "The loop has more than one pass, or no dim."
    if not loop.carries:
        return "The loop reduces nothing."
    for carry in loop.carries:
        if carry.shifts:
            return f"Carry '{carry.name}' moves by shifts."
        if carry.monoid not in (SUM, MAX, MIN, ANY):
            return f"Carry '{carry.name}' is reduced by '{carry.monoid}'."
    return None


def split_keys(program: Program, loop: Loop, parts: int, col: Dim | None = None) -> Program:
    """Cut `loop` of `program` into `parts` ranges of a loop dim (the first), and merge them in a second loop over the parts.

    One query against many keys is a loop with few rows: parts fill the device (split-key decoding). Where the keys lie in pages,
    parts are whole pages.

    Before:
        program p
          dim q: 2, k: 512, e: 16
          input S: f32[2, 512]
          input V: f32[512, 16]
          loop (q | k)
            carry m (q) f32: max S[q, k]
            carry A (q, e) f32: sum exp(S[q, k] - ~m) * V[k, e] moves exp(-m)
            give y (q, e) f32 = A
          output y
    After:
        program p
          dim q: 2, k_part: 2, k_in: 256, e: 16
          input S: f32[2, 512]
          input V: f32[512, 16]
          loop (q, k_part | k_in)
            carry m_in (q, k_part) f32: max S[q, k_in + k_part * 256]
            carry A_in (q, k_part, e) f32: sum exp(S[q, k_in + k_part * 256] - ~m_in) * V[k_in + k_part * 256, e] moves exp(-m_in)
            give m_part (q, k_part) f32 = m_in
            give A_part (q, k_part, e) f32 = A_in
          loop (q | k_part)
            carry m (q) f32: max m_part[q, k_part]
            carry A (q, e) f32: sum A_part[q, k_part, e] * min(exp(~(-m) - ~(-m_part[q, k_part])), 3.4028234663852886e+38) moves exp(-m)
            give y (q, e) f32 = A
          output y
    Legal when: one pass, every carry a sum with weights only, max, min or any (`why_not_split`).
    """
    assert why_not_split(loop) is None
    col = loop.loop[0] if col is None else col
    taken = _names(program)
    part = Dim(fresh_name(f"{col.name}_part", taken), const(parts))
    length = _part_length(col.extent, parts, _least_positions(loop, col))
    inner = Dim(fresh_name(f"{col.name}_in", taken), length)
    position = add(mul(Index(part), length), Index(inner))
    carries = loop.carries
    in_part = {c.name: _retarget(c, fresh_name(f"{c.name}_in", taken), part) for c in carries}
    results = {c.name: _retarget(c, fresh_name(f"{c.name}_part", taken), part) for c in carries}

    partial = tuple(
        _partial(
            c, in_part, {col: position}, simplify(Binary("lt", position, col.extent)), part, loop
        )
        for c in carries
    )
    gives = tuple(
        Give(
            results[c.name].name,
            _with_part(c, part, loop),
            c.dtype,
            _own(in_part[c.name], c, part, loop),
        )
        for c in carries
    )
    dims = tuple(inner if d is col else d for d in loop.loop)
    first = Loop((*loop.kept, part), dims, (Pass(partial, gives),))
    merged = tuple(_merged(c, results, part, loop) for c in carries)
    second = Loop(loop.kept, (part,), (Pass(merged, loop.gives),))
    statements: list[Statement] = []
    for statement in program.statements:
        statements.extend((first, second) if statement is loop else (statement,))
    return program.with_statements(tuple(statements))


def _names(program: Program) -> set[str]:
    names = {b.name for b in program.inputs} | {s.name for s in program.sizes}
    for loop in program.loops:
        names |= {d.name for d in (*loop.kept, *loop.loop)}
        names |= {c.name for c in loop.carries} | {g.name for g in loop.gives}
    return names


def _least_positions(loop: Loop, col: Dim) -> int:
    """Positions of `col` that make, with the dims that are not cut, about a tile."""
    others = [d.extent.value for d in loop.loop if d is not col and isinstance(d.extent, Const)]
    return max(1, PART_MULTIPLE // max(1, math.prod(map(int, others))))


def _part_length(extent: Expr, parts: int, multiple: int) -> Expr:
    """ceil(extent / parts), rounded up to whole tiles."""
    step = parts * multiple
    return simplify(mul(floordiv(add(extent, const(step - 1)), const(step)), const(multiple)))


def _retarget(carry: Carry, name: str, part: Dim) -> Buffer:
    """The buffer of a carry that has the part as a further kept dim, in front of the whole dims."""
    return Buffer(name, carry.buffer.shape, carry.dtype)


def _with_part(carry: Carry, part: Dim, loop: Loop) -> tuple[Dim, ...]:
    kept = tuple(d for d in carry.dims if d in loop.kept)
    return (*kept, part, *(d for d in carry.dims if d not in loop.kept))


def _own(buffer: Buffer, carry: Carry, part: Dim, loop: Loop) -> Load:
    dims = _with_part(carry, part, loop)
    return Load(
        Buffer(buffer.name, tuple(d.extent for d in dims), carry.dtype), tuple(map(Index, dims))
    )


def _at_part(expr: Expr, buffers: dict[str, Buffer], part: Dim, loop: Loop) -> Expr:
    """`expr` with every carry read at the part."""
    by_name = {c.name: c for c in loop.carries}

    def rule(load: Load) -> Expr | None:
        carry = by_name.get(load.buffer.name)
        if carry is None:
            return None
        kept = len([d for d in carry.dims if d in loop.kept])
        index = (*load.index[:kept], Index(part), *load.index[kept:])
        dims = _with_part(carry, part, loop)
        return Load(
            Buffer(buffers[carry.name].name, tuple(d.extent for d in dims), carry.dtype), index
        )

    return replace_loads(expr, rule)


def _partial(
    carry: Carry,
    buffers: dict[str, Buffer],
    mapping: dict[Dim, Expr],
    inside: Expr,
    part: Dim,
    loop: Loop,
) -> Carry:
    body = simplify(_at_part(substitute(carry.body, mapping), buffers, part, loop))
    if not isinstance(inside, Const):
        identity = const(carry.monoid.identity, carry.dtype)
        body = Select(inside, body, identity)
    return replace(
        carry,
        name=buffers[carry.name].name,
        dims=_with_part(carry, part, loop),
        body=body,
        weight=tuple(_at_part(w, buffers, part, loop) for w in carry.weight),
    )


def _merged(carry: Carry, results: dict[str, Buffer], part: Dim, loop: Loop) -> Carry:
    body: Expr = _own(results[carry.name], carry, part, loop)
    if carry.weight:
        moves: Expr | None = None
        for w in carry.weight:
            move = sub(anchor(w), anchor(_at_part(w, results, part, loop)))
            moves = move if moves is None else add(moves, move)
        assert moves is not None
        body = mul(body, Binary("min", exp(moves), largest(carry.dtype)))
    return replace(carry, body=body)


def parts_for(rows: int, length: int, units: int) -> int:
    """How many parts fill a device of `units` multiprocessors, each part being long enough to be worth its merge.

    Args:
        rows: program instances without a cut.
        length: positions along the loop dims.
        units: how many run at once.
    """
    if rows >= units or length < 4 * PART_MULTIPLE:
        return 1
    wanted = math.ceil(2 * units / max(rows, 1))
    most = max(1, min(wanted, length // (2 * PART_MULTIPLE), 64))

    def used(parts: int) -> float:
        """Share of the device that is at work while the parts run, as many at once as there are units."""
        return rows * parts / (math.ceil(rows * parts / units) * units)

    best = max(map(used, range(1, most + 1)))
    even = [p for p in range(1, most + 1) if length % (p * PART_MULTIPLE) == 0]
    good = [p for p in even if used(p) >= best - UNEVEN]
    return max(good or (p for p in range(1, most + 1) if used(p) >= best - NEARLY))
