"""Differential attention: the difference of two softmax maps over values twice as wide.

q, k[B, H, S, D], v[B, H/2, S, 2D]; the first half of the heads makes the first map, the second half the other.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

LAMBDA = 0.2
START = 0.8


def _maps(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    q0, q1 = q.chunk(2, dim=1)
    k0, k1 = k.chunk(2, dim=1)
    scale = q.shape[-1] ** -0.5
    first = torch.softmax(q0 @ k0.transpose(-1, -2) * scale, -1) @ v
    second = torch.softmax(q1 @ k1.transpose(-1, -2) * scale, -1) @ v
    return first, second


def diff(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """With a constant factor."""
    first, second = _maps(q, k, v)
    return first - LAMBDA * second


def diff_scalar(q: Tensor, k: Tensor, v: Tensor, factor: Tensor) -> Tensor:
    """With one learned factor; `factor` has no dims."""
    first, second = _maps(q, k, v)
    return first - factor * second


def diff_heads(q: Tensor, k: Tensor, v: Tensor, factor: Tensor) -> Tensor:
    """With a learned factor for each pair of heads; `factor` is [H/2]."""
    first, second = _maps(q, k, v)
    return first - factor[:, None, None] * second


class DifferentialAttention(nn.Module):
    """The whole layer behind its projections: the factor from four vectors, an RMS norm over 2D, a fixed output scale."""

    def __init__(self, head_dim: int, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        gen = torch.Generator().manual_seed(seed)
        self.lambdas = nn.Parameter((0.1 * torch.randn(4, head_dim, generator=gen)).to(dtype))
        self.weight = nn.Parameter(torch.ones(2 * head_dim, dtype=dtype))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[B, H/2, S, 2D]."""
        return diff_module(q, k, v, self.lambdas, self.weight)


def diff_module(q: Tensor, k: Tensor, v: Tensor, lambdas: Tensor, weight: Tensor) -> Tensor:
    """`DifferentialAttention` as a function: `lambdas` is [4, D], `weight` [2D]."""
    wide = torch.promote_types(q.dtype, torch.float32)
    q1, k1, q2, k2 = lambdas.to(wide)
    factor = torch.exp((q1 * k1).sum()) - torch.exp((q2 * k2).sum()) + START
    first, second = _maps(q, k, v)
    o = (first - factor * second).to(wide)
    o = o * torch.rsqrt(o.pow(2).mean(-1, keepdim=True) + 1e-5)
    return (o * weight * (1 - START)).to(q.dtype)
