"""How it is said which op keeps scores from being fused, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.fx

from flashlight.errors import Refusal
from flashlight.lift.cells import Cell, user_line
from flashlight.lift.extents import UntranslatableSize, count_of
from flashlight.lift.lift import Lifter, has_rule

aten = torch.ops.aten

_PRODUCTS = (
    aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default, aten._int_mm.default, aten._scaled_mm.default,
)  # fmt: skip


def refusal_of(node: torch.fx.Node, cell: Cell | None, made: Sequence[Cell]) -> Refusal:
    """What keeps scores from being fused.

    Args:
        node: the op that stands in the way, or the output.
        cell: the scores that it reads.
        made: what it computes, as far as that is known.
    """
    where = user_line(node) or node.name
    if node.op == "output":
        assert cell is not None
        where = user_line(cell.tensors[0]) or cell.name
        return Refusal(
            "score-returned",
            f"The tensor '{cell.name}' has an element for each pair of rows and is returned.",
            where,
            "Return only what is computed from it.",
        )
    name = str(node.target)
    if not has_rule(node.target) or not made:
        return Refusal(
            f"no-rule:{name.removesuffix('.default')}",
            f"The op '{name}' stands on scores and cannot be fused.",
            where,
        )
    if any(c.contraction for c in made):
        return Refusal(
            "scores-mixed",
            f"The op '{name}' makes new scores of too many, such as those of all heads.",
            where,
            "Mixing the results instead of the scores would be fused.",
        )
    return Refusal(
        "scores-read-elsewhere",
        f"The op '{name}' reads scores but nothing of it reduces them.",
        where,
    )


def unknown_products(lifter: Lifter) -> Iterator[Refusal]:
    """Products of matrices of types that are not computed here, such as complex numbers, where they make more than they are made of."""
    for node in lifter.graph.nodes:
        if node.target not in _PRODUCTS or node in lifter.made:
            continue
        made, *read = (_count(n, lifter) for n in (node, *node.all_input_nodes))
        if made > max(read):
            name, dtype = str(node.target), node.all_input_nodes[-1].meta["val"].dtype
            yield Refusal(
                f"no-rule:{name.removesuffix('.default')}",
                f"The op '{name}' of matrices of type {dtype} cannot be fused.",
                user_line(node) or node.name,
                "Multiply floats, or real and imaginary parts, instead.",
            )


def _count(node: torch.fx.Node, lifter: Lifter) -> int:
    """Elements of a tensor, at the first call; 0 if that is not known."""
    val = node.meta.get("val")
    try:
        return (
            count_of(lifter.sizes.shape(val), lifter.hints) if isinstance(val, torch.Tensor) else 0
        )
    except UntranslatableSize:
        return 0
