"""Which operations of a block program need no variable of their own when it is printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flashlight.codegen.blocks import (
    Block,
    Compute,
    Constant,
    Dot,
    Fold,
    For,
    If,
    Op,
    SizeOf,
    Slot,
    Store,
    Value,
    operands,
    results,
    walk,
)

_LONGEST_INLINED = 3  # levels of nesting of expressions without names


def inlinable(body: Block) -> dict[Value, Compute]:
    """Computations used once, in the block that defines them: printed where they are used."""
    uses: dict[Value, list[tuple[Block, Op | None]]] = {}
    home: dict[Value, tuple[Block, Compute]] = {}

    def visit(block: Block) -> None:
        for op in block.ops:
            for v in operands(op):
                uses.setdefault(v, []).append((block, op))
            if isinstance(op, Compute):
                home[op.result] = (block, op)
            if isinstance(op, For | If):
                visit(op.body)
        for v in block.yields:
            uses.setdefault(v, []).append((block, None))

    visit(body)
    depth: dict[Value, int] = {}
    found: dict[Value, Compute] = {}
    for value, (block, op) in home.items():
        level = 1 + max((depth.get(a, 0) for a in op.args), default=0)
        users = uses.get(value, [])
        inline = (
            len(users) == 1
            and users[0][0] is block
            and isinstance(users[0][1], Compute | Dot | Fold | Store)
            and level <= _LONGEST_INLINED
        )
        if inline:
            found[value] = op
            depth[value] = level
    return found


def direct_yields(
    block: Block, slots: Sequence[Slot], inlined: Mapping[Value, Compute]
) -> dict[Value, Slot]:
    """Operations that may assign a slot's variable themselves: their value is only yielded, and nothing later reads the old one."""
    found: dict[Value, Slot] = {}
    last_read: dict[Value, int] = {}

    def read(value: Value, at: int) -> None:
        last_read[value] = at
        if value in inlined:
            for a in inlined[value].args:
                read(a, at)

    defined: dict[Value, int] = {}
    for at, op in enumerate(block.ops):
        for r in results(op):
            defined[r] = at
        if isinstance(op, Compute) and op.result in inlined:
            continue
        for v in operands(op):
            read(v, at)
        if isinstance(op, For | If):
            for inner in walk(op.body):
                for v in operands(inner):
                    read(v, at)
            for v in op.body.yields:
                read(v, at)
    for slot, value in zip(slots, block.yields, strict=True):
        if value not in defined or value in inlined or block.yields.count(value) > 1:
            continue
        at = defined[value]
        if isinstance(block.ops[at], For | If | Constant | SizeOf):
            continue
        free = last_read.get(slot.inside, -1) <= at and value not in last_read
        if free and slot.inside not in block.yields:
            found[value] = slot
    return found
