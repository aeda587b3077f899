"""Softmaxes of one loop that share nothing but what they read, one after the other within each tile.

Two scores, two sets of weights and two running sums at once take registers from tiles. In phases a group of warps holds the
weights of one softmax at a time: while those of one are computed, the product that sums the other's runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeAlias

from flashlight.codegen.blocks import Op, Value, operands, results
from flashlight.codegen.roles import Step, depending

Group: TypeAlias = set[Value]


def phases(step: Step) -> tuple[Step, ...]:
    """A step in parts, each with scores, weights and sums of its own; itself where it has no such parts, or they differ in form."""
    slots = step.loop.slots
    starts = [d.result for d in step.scores] + [f.result for f in step.early]
    own = depending(step.heavy, [*starts, *(s.inside for s in slots)])
    common = tuple(op for op in step.heavy if op not in own)
    groups = _groups(step, (*step.scores, *step.sums, *step.moves, *own))
    found = [_part(step, g, own) for g in groups]
    parts = [p for p in found if p.sums]
    if len(parts) < 2 or not all(p.scores and _form(p) == _form(parts[0]) for p in parts):
        return (step,)
    parts.sort(key=lambda p: step.scores.index(p.scores[0]))
    first, *others = parts
    last = (others or [first])[-1]
    rest = [n for n in range(len(slots)) if not any(n in p.slots for p in parts)]
    left = [op for p in found if not p.sums for op in p.heavy]
    others[-1] = replace(last, slots=(*last.slots, *rest), heavy=(*last.heavy, *left))
    return (replace(first, heavy=(*common, *first.heavy)), *others)


def _groups(step: Step, ops: Iterable[Op]) -> list[Group]:
    """Sets of values that are made of each other, from tile to tile."""
    links: list[Group] = []
    made = {v for op in ops for v in results(op)} | {s.inside for s in step.loop.slots}
    links += [{v for v in (*operands(op), *results(op)) if v in made} for op in ops]
    for slot, value in zip(step.loop.slots, step.loop.body.yields, strict=True):
        links.append({slot.inside, value})
    for n, part in step.parts.items():
        factor = {part.factor} & made if part.factor is not None else set()
        links.append({step.loop.slots[n].inside, part.fold.result, *factor})
    groups: list[Group] = []
    for link in links:
        joined = set(link)
        for other in [g for g in groups if g & joined]:
            joined |= other
            groups.remove(other)
        groups.append(joined)
    return groups


def _part(step: Step, group: Group, own: Iterable[Op]) -> Step:
    def within(op: Op) -> bool:
        return any(v in group for v in results(op))

    slots = tuple(n for n in step.slots if step.loop.slots[n].inside in group)
    return replace(
        step,
        scores=tuple(filter(within, step.scores)),
        sums=tuple(filter(within, step.sums)),
        heavy=tuple(filter(within, own)),
        moves=tuple(filter(within, step.moves)),
        parts={n: p for n, p in step.parts.items() if n in slots},
        slots=slots,
    )


def _form(part: Step) -> object:
    """What registers its weights take."""
    return [(v.axes, v.dtype) for v in part.weights]
