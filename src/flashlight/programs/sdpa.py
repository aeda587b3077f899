"""Where PyTorch's own attention call computes the same function: how it is called. Only the benchmark uses this."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F


def _vanilla(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)


def _evoformer(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, mask_bias: Tensor, pair: Tensor
) -> Tensor:
    """With the sum of both biases in memory, as the call needs it."""
    b, n, s, h, d = q.shape
    q, k, v = (t.transpose(2, 3).reshape(b * n, h, s, d) for t in (q, k, v))
    bias = (mask_bias + pair).reshape(b * n, h, s, s)
    o = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    return o.reshape(b, n, h, s, d).transpose(2, 3) * torch.sigmoid(g)


def _triangle(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    b, n, h, s, d = q.shape
    whole = bias.masked_fill(~mask, torch.finfo(bias.dtype).min).reshape(b * n, h, s, s)
    q, k, v = (t.reshape(b * n, h, s, d) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=whole).reshape(b, n, h, s, d)


def sdpa_for(name: str) -> Callable[..., Tensor] | None:
    """The program `name` through F.scaled_dot_product_attention; None where it needs scores that the call does not have.

    For "evoformer" and "triangle" the mask is materialised, so only "sdpa" (the dispatcher's choice) applies.
    """
    calls: dict[str, Callable[..., Tensor]] = {
        "vanilla": _vanilla,
        "decode": _vanilla,
        "causal": _causal,
        "evoformer": _evoformer,
        "triangle": _triangle,
    }
    return calls.get(name)


HAS_BIAS = ("evoformer", "triangle")
