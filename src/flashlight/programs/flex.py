"""The paper's variants as FlexAttention states them: a score modification and a mask, from the same arguments.

Only the benchmark uses them, to compare the two systems on one function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from flashlight.programs import heads

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Flex:
    """What FlexAttention needs beside q, k and v."""

    score_mod: ScoreMod | None = None
    mask_mod: MaskMod | None = None
    mask_per_sample: bool = False


def _alibi(slopes: Tensor) -> ScoreMod:
    return lambda score, b, h, i, j: score + slopes[h] * (j - i)


def _softcap(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return heads.CAP * torch.tanh(score / heads.CAP)


def _causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return j <= i


def _window(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return (j <= i) & (i - j <= heads.WINDOW)


def _prefix(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return (j < heads.PREFIX) | (j <= i)


def _document(ids: Tensor) -> MaskMod:
    return lambda b, h, i, j: ids[b, i] == ids[b, j]


def _document_causal(ids: Tensor) -> MaskMod:
    return lambda b, h, i, j: (ids[b, i] == ids[b, j]) & (j <= i)


def flex_for(name: str, args: tuple[Tensor, ...]) -> Flex | None:
    """The variant `name` for FlexAttention, or None where its API cannot state it. Queries and keys are equally many."""
    match name:
        case "vanilla" | "decode":
            return Flex()
        case "alibi":
            return Flex(score_mod=_alibi(args[3]))
        case "softcap":
            return Flex(score_mod=_softcap)
        case "causal":
            return Flex(mask_mod=_causal)
        case "window" | "window_1e10" | "window_min":
            return Flex(mask_mod=_window)
        case "prefix":
            return Flex(mask_mod=_prefix)
        case "document":
            return Flex(mask_mod=_document(args[3]), mask_per_sample=True)
        case "document_causal":
            return Flex(mask_mod=_document_causal(args[3]), mask_per_sample=True)
        case _:
            return None
