"""Attention of structural biology: MSA rows and columns with a gate, and triangle attention with a bias made from the pairs."""

from __future__ import annotations

import torch
from torch import Tensor


def evoformer(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, mask_bias: Tensor, pair: Tensor
) -> Tensor:
    """MSA row-wise gated self-attention.

    q, k, v, g[B, N, S, H, D]; mask_bias[B, N, 1, 1, S]; pair[B, 1, H, S, S], shared by the N rows.
    """
    q, k, v = (t.transpose(2, 3) for t in (q, k, v))
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + mask_bias + pair
    o = torch.softmax(s, -1) @ v
    return o.transpose(2, 3) * torch.sigmoid(g)


def evoformer_column(q: Tensor, k: Tensor, v: Tensor, g: Tensor, mask_bias: Tensor) -> Tensor:
    """MSA column-wise gated self-attention: over the N sequences at each residue. mask_bias[B, S, 1, 1, N]."""
    q, k, v = (t.permute(0, 2, 3, 1, 4) for t in (q, k, v))
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + mask_bias
    o = torch.softmax(s, -1) @ v
    return o.permute(0, 3, 1, 2, 4) * torch.sigmoid(g)


def triangle(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    """The core of triangle attention: q, k, v[B, N, H, L, D]; bias[B, 1, H, L, L]; mask bool[B, N, 1, 1, L], true where kept."""
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + bias
    s = s.masked_fill(~mask, torch.finfo(s.dtype).min)
    return torch.softmax(s, -1) @ v


def triangle_starting(
    z: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, wg: Tensor, wb: Tensor, wo: Tensor
) -> Tensor:
    """Triangle attention around the starting node: z[B, N, N, C], bias and gate from z itself.

    wq, wk, wv, wg are [C, H, D], wb [C, H], wo [H, D, C]. Pair (i, j) attends to (i, k) with bias b(j, k).
    """
    q, k, v, g = (torch.einsum("bijc,chd->bihjd", z, w) for w in (wq, wk, wv, wg))
    bias = torch.einsum("bjkc,ch->bhjk", z, wb)[:, None]
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + bias
    o = torch.softmax(s, -1) @ v * torch.sigmoid(g)
    return torch.einsum("bihjd,hdc->bijc", o, wo)


def triangle_ending(
    z: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, wg: Tensor, wb: Tensor, wo: Tensor
) -> Tensor:
    """Triangle attention around the ending node: the same over columns."""
    return triangle_starting(z.transpose(1, 2), wq, wk, wv, wg, wb, wo).transpose(1, 2)
