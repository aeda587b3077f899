"""Layers of torch.nn in evaluation, which call one op for all they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from flashlight import backend
from flashlight.capture import layers
from tests.support.oracle import assert_close
from tests.support.oracle import normal as r

pytestmark = pytest.mark.usefixtures("inference")
B, S, E, H = 2, 50, 16, 2
CAUSAL = torch.ones(S, S).triu(1).bool()
PADDING = torch.arange(S) >= torch.tensor([[S], [S - 9]])


def judged(layer: nn.Module, *args: torch.Tensor, **kwargs: Any) -> int:
    """How many regions there are, once the layer is compared with itself in float64."""
    layer.eval()
    compiled: Any = torch.compile(layer, backend="flashlight")
    got, eager = compiled(*args, **kwargs), layer(*args, **kwargs)
    regions = len(backend.last_report().regions)
    exact = layer.double()(*(a.double() for a in args), **kwargs)
    assert_close(got, eager, exact)
    return regions


@pytest.mark.parametrize(
    "masks",
    [{}, {"src_mask": CAUSAL}, {"src_key_padding_mask": PADDING}],
    ids=["no", "causal", "padding"],
)
@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layer(norm_first: bool, masks: dict[str, torch.Tensor]) -> None:
    act = "gelu" if norm_first else "relu"
    layer = nn.TransformerEncoderLayer(
        E, H, 2 * E, batch_first=True, norm_first=norm_first, activation=act
    )
    assert judged(layer, r(B, S, E), **masks) == 1


@pytest.mark.parametrize("mask", [None, CAUSAL])
def test_attention_layer(mask: torch.Tensor | None) -> None:
    layer = nn.MultiheadAttention(E, H, batch_first=True)
    x = r(B, S, E)
    assert judged(layer, x, x, x, attn_mask=mask, need_weights=False) == 1


@pytest.mark.parametrize("mask_type", [None, 0, 1, 2])
@pytest.mark.parametrize("average", [False, True])
def test_the_op_taken_apart(mask_type: int | None, average: bool) -> None:
    """A row that sees nothing is NaN in both."""
    dead = PADDING | (torch.arange(B) == 1)[:, None]
    masks = {0: CAUSAL, 1: dead, 2: CAUSAL | dead[:, None, None].expand(-1, H, S, -1)}
    x = r(B, S, E)
    weights = (r(3 * E, E), r(3 * E), r(E, E), r(E))

    def run(op: Callable[..., Any], dtype: torch.dtype) -> Any:
        y = x.to(dtype)
        given = (y, y, y, E, H, *(w.to(dtype) for w in weights))
        mask = None if mask_type is None else masks[mask_type]
        return op(*given, mask, True, average, mask_type)

    op = torch.ops.aten._native_multi_head_attention
    got = run(layers.multi_head_attention, torch.float32)
    assert_close(got, run(op, torch.float32), run(op, torch.float64))
