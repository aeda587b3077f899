"""The paper's seven variants as plain eager functions over q[B, Hq, Sq, D], k[B, Hkv, Sk, D], v[B, Hkv, Sk, Dv].

Query head h uses key head h // (Hq / Hkv). Masks are made inside, from arange and small id vectors.
"""

from __future__ import annotations

import torch
from torch import Tensor

CAP = 30.0
WINDOW = 256
PREFIX = 256


def repeat_heads(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values with one head for every query head."""
    group = q.shape[1] // k.shape[1]
    if group == 1:
        return k, v
    return k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)


def scores(q: Tensor, k: Tensor) -> Tensor:
    """Scaled scores [B, H, Sq, Sk]."""
    scale: float = q.shape[-1] ** -0.5
    return q @ k.transpose(-1, -2) * scale


def positions(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Query positions as a column and key positions as a row; the last query meets the last key (bottom-right aligned)."""
    sq, sk = q.shape[-2], k.shape[-2]
    i = torch.arange(sq, device=q.device)[:, None] + (sk - sq)
    j = torch.arange(sk, device=q.device)[None, :]
    return i, j


def vanilla(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(s q kT) v."""
    k, v = repeat_heads(q, k, v)
    return torch.softmax(scores(q, k), -1) @ v


def alibi(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
    """A distance penalty of its own for each head: `slopes` is f32[Hq]."""
    k, v = repeat_heads(q, k, v)
    i, j = positions(q, k)
    s = scores(q, k) + slopes[:, None, None] * (j - i)
    return torch.softmax(s, -1).to(v.dtype) @ v


def softcap(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scores squashed into (-30, 30)."""
    k, v = repeat_heads(q, k, v)
    s = CAP * torch.tanh(scores(q, k) / CAP)
    return torch.softmax(s, -1) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Keys up to the query's position."""
    k, v = repeat_heads(q, k, v)
    i, j = positions(q, k)
    s = scores(q, k).masked_fill(j > i, -torch.inf)
    return torch.softmax(s, -1) @ v


def _window(q: Tensor, k: Tensor, v: Tensor, fill: float) -> Tensor:
    k, v = repeat_heads(q, k, v)
    i, j = positions(q, k)
    keep = (j <= i) & (i - j <= WINDOW)
    s = torch.where(keep, scores(q, k), fill)
    return torch.softmax(s, -1) @ v


def window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The last 256 keys before the query's position, and that itself."""
    return _window(q, k, v, -torch.inf)


def window_1e10(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`window` filled with -1e10, which in float16 is -inf."""
    return _window(q, k, v, -1e10)


def window_min(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`window` filled with the type's lowest finite number."""
    return _window(q, k, v, torch.finfo(q.dtype).min)


def prefix(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The first 256 keys for every query, causal behind them."""
    k, v = repeat_heads(q, k, v)
    i, j = positions(q, k)
    s = scores(q, k).masked_fill(j > torch.clamp(i, min=PREFIX - 1), -torch.inf)
    return torch.softmax(s, -1) @ v


def document(q: Tensor, k: Tensor, v: Tensor, ids: Tensor) -> Tensor:
    """Packed documents: only positions with the same id meet. `ids` is i64[B, S]."""
    k, v = repeat_heads(q, k, v)
    same = ids[:, None, :, None] == ids[:, None, None, :]
    s = scores(q, k).masked_fill(~same, -torch.inf)
    return torch.softmax(s, -1) @ v


def document_causal(q: Tensor, k: Tensor, v: Tensor, ids: Tensor) -> Tensor:
    """`document` and causal."""
    k, v = repeat_heads(q, k, v)
    i, j = positions(q, k)
    same = ids[:, None, :, None] == ids[:, None, None, :]
    s = scores(q, k).masked_fill(~(same & (j <= i)), -torch.inf)
    return torch.softmax(s, -1) @ v
