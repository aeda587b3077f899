"""How it is said which op keeps scores from being fused, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

import torch.fx

from flashlight.errors import Refusal
from flashlight.lift.cells import Cell, user_line
from flashlight.lift.lift import has_rule


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
