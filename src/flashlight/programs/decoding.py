"""Few queries against many keys: latent attention, and attention to chosen blocks of keys."""

from __future__ import annotations

import torch
from torch import Tensor

from flashlight.programs.heads import positions

BLOCK = 64
KEPT = 1 / 8
"""Share of the blocks that are attended to."""


def latent_prefill(q: Tensor, k: Tensor, rotated: Tensor, v: Tensor) -> Tensor:
    """Multi-head latent attention with its keys and values written out, causal (DeepSeek-V2, 2.1).

    q[B, H, S, Dn + Dr]; k[B, H, S, Dn]; rotated[B, 1, S, Dr], the part of the key that all heads share; v[B, H, S, Dv].
    """
    k = torch.cat((k, rotated.expand(*k.shape[:-1], -1)), -1)
    i, j = positions(q, k)
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    return torch.softmax(s.masked_fill(j > i, -torch.inf), -1) @ v


def latent_decode(q: Tensor, q_rotated: Tensor, latent: Tensor, rotated: Tensor) -> Tensor:
    """The same for single queries, the projections of keys and values moved to the query and the result.

    q[B, H, 1, C]; q_rotated[B, H, 1, Dr]; latent[B, T, C], both key and value of every head; rotated[B, T, Dr].
    """
    latent, rotated = latent[:, None], rotated[:, None]
    s = q @ latent.transpose(-1, -2) + q_rotated @ rotated.transpose(-1, -2)
    return torch.softmax(s * (128 + rotated.shape[-1]) ** -0.5, -1) @ latent


def chosen_blocks(q: Tensor, k: Tensor, v: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """One query against the blocks of keys that promise most, and the last one (rectified sparse attention, a sparse step).

    q[B, H, 1, D]; k, v[B, Hkv, T, D]; low, high[B, Hkv, T / 64, D], the least and greatest of each block's keys. The heads of a
    group choose together.
    """
    b, h, _, d = q.shape
    kv, blocks = low.shape[1:3]
    q = q.view(b, kv, h // kv, d)
    mean = q.mean(2, keepdim=True)
    promise = torch.maximum(mean * low, mean * high).sum(-1)
    promise[..., -1] = torch.inf
    chosen = promise.topk(max(1, int(blocks * KEPT)), -1).indices[..., None, None]
    k, v = (t.view(b, kv, blocks, BLOCK, d) for t in (k, v))
    k, v = (t.gather(2, chosen.expand(-1, -1, -1, BLOCK, d)).flatten(2, 3) for t in (k, v))
    s = q @ k.transpose(-1, -2) * d**-0.5
    return (torch.softmax(s, -1) @ v).view(b, h, 1, d)
