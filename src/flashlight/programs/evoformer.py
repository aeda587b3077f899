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


def invariant_points(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_points: Tensor,
    k_points: Tensor,
    v_points: Tensor,
    bias: Tensor,
    z: Tensor,
    gamma: Tensor,
    rotation: Tensor,
    origin: Tensor,
) -> Tensor:
    """Invariant point attention (AlphaFold 2, algorithm 22) up to its last projection: [N, H * (C + 4 Pv + Cz)].

    q, k, v[N, H, C]; q_points, k_points[N, H, P, 3] and v_points[N, H, Pv, 3] in the frame of each residue, rotation[N, 3, 3] and
    origin[N, 3]; bias[N, N, H]; z[N, N, Cz]; gamma[H].
    """

    def outside(points: Tensor) -> Tensor:
        return torch.einsum("nxy,nhpy->nhpx", rotation, points) + origin[:, None, None]

    n, _, c = q.shape
    far = (outside(q_points)[:, None] - outside(k_points)[None]).square().sum((-1, -2))
    weight = torch.nn.functional.softplus(gamma) * (2 / (9 * q_points.shape[2])) ** 0.5 / 2
    s = torch.einsum("ihc,jhc->ijh", q, k) * c**-0.5 + bias - weight * far
    p = torch.softmax(3**-0.5 * s, 1)
    features = torch.einsum("ijh,jhc->ihc", p, v)
    points = torch.einsum("ijh,jhpx->ihpx", p, outside(v_points)) - origin[:, None, None]
    points = torch.einsum("nyx,nhpy->nhpx", rotation, points)
    lengths = (points.square().sum(-1) + 1e-8).sqrt()
    pairs = torch.einsum("ijh,ijc->ihc", p, z)
    return torch.cat([t.reshape(n, -1) for t in (features, points, lengths, pairs)], -1)
