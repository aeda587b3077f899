"""What the fused layers of `torch.nn` compute, in terms of ATen.

In evaluation without gradients, `nn.MultiheadAttention` and `nn.TransformerEncoderLayer` call one op for all they do. Taken apart,
their attention is like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F

T: TypeAlias = torch.Tensor


def multi_head_attention(
    query: T,
    key: T,
    value: T,
    embed_dim: int,
    num_head: int,
    qkv_weight: T,
    qkv_bias: T,
    proj_weight: T,
    proj_bias: T,
    mask: T | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[T, T] | Any:
    """`aten._native_multi_head_attention`: heads of one projection, scaled before the product, and masked where the mask is not 0."""
    if query is not key or key is not value:
        return NotImplemented
    q, k, v = (
        x.unflatten(-1, (num_head, -1)).transpose(1, 2)
        for x in F.linear(query, qkv_weight, qkv_bias).chunk(3, -1)
    )
    scores = (q * (embed_dim // num_head) ** -0.5) @ k.mT
    if mask is not None:
        shape = (len(mask), 1, 1, -1) if mask_type == 1 else mask.shape  # of keys, or of pairs
        scores = scores.masked_fill(mask.bool().reshape(shape), -torch.inf)
    weights = scores.softmax(-1)
    out = F.linear((weights @ v).transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return out, query.new_empty(0)
    return out, weights.mean(1) if average_attn_weights else weights


def encoder_layer(
    src: T,
    embed_dim: int,
    num_heads: int,
    qkv_weight: T,
    qkv_bias: T,
    proj_weight: T,
    proj_bias: T,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: T,
    norm_bias_1: T,
    norm_weight_2: T,
    norm_bias_2: T,
    ffn_weight_1: T,
    ffn_bias_1: T,
    ffn_weight_2: T,
    ffn_bias_2: T,
    mask: T | None = None,
    mask_type: int | None = None,
) -> T:
    """`aten._transformer_encoder_layer_fwd`: attention and a network of two layers, each added to its input, with a norm."""

    def attend(x: T) -> T:
        projections = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        sizes = (embed_dim, num_heads)
        return multi_head_attention(
            x, x, x, *sizes, *projections, mask, need_weights=False, mask_type=mask_type
        )[0]

    def feed_forward(x: T) -> T:
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        hidden = F.gelu(hidden) if use_gelu else F.relu(hidden)
        return F.linear(hidden, ffn_weight_2, ffn_bias_2)

    def first(x: T) -> T:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second(x: T) -> T:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = src + attend(first(src))
        return x + feed_forward(second(x))
    x = first(src + attend(src))
    return second(x + feed_forward(x))


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten._native_multi_head_attention.default: multi_head_attention,
    torch.ops.aten._transformer_encoder_layer_fwd.default: encoder_layer,
}
