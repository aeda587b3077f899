"""Losses over many classes, whose logits never need to be in memory."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def linear_cross_entropy(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """The loss of each token f32[N] from its state x[N, C] and the last layer's weight[V, C]; target is i64[N]."""
    return F.cross_entropy((x @ weight.T).float(), target, reduction="none")
