"""Biases that are contracted from features of pairs: right, and nothing as large as the features reaches memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import flashlight
from tests.support.oracle import check
from tests.support.oracle import normal as r

T = torch.Tensor
H, D, N = 2, 8, 16  # heads, width, features


def attention(q: T, k: T, v: T, bias: T) -> T:
    return (q @ k.mT * D**-0.5 + bias.movedim(-1, -3)).softmax(-1) @ v


def relative(q: T, k: T, v: T, a: T, c: T, w: T) -> T:
    """FIRE."""
    i = torch.arange(q.shape[-2])
    near = torch.log1p((i[:, None] - i).abs().to(q.dtype))
    x = near / torch.log1p(i.to(q.dtype).clamp(min=1))[:, None]
    return attention(q, k, v, torch.relu(x[..., None] * a + c) @ w)


def gaussians(q: T, k: T, v: T, x: T, a: T, w: T) -> T:
    y = ((x[:, :, None] - x[:, None]) ** 2).sum(-1).sqrt()
    return attention(q, k, v, torch.exp(-0.5 * ((y[..., None] - a) / (a.abs() + 0.5)) ** 2) @ w)


def waves(q: T, k: T, v: T, x: T, a: T, w: T) -> T:
    turned = (x[:, None] - x[None])[..., None] * a
    return attention(q, k, v, torch.cat([turned.sin(), turned.cos()], -1) @ w)


def network(q: T, k: T, v: T, x: T, a: T, c: T, w: T) -> T:
    hidden = F.silu(F.linear(x[:, None] - x[None], a, c))
    return attention(q, k, v, F.linear(hidden, w))


def normed(q: T, k: T, v: T, x: T, w: T) -> T:
    return attention(q, k, v, F.layer_norm(x[:, None] + x[None], (N,)) @ w)


CASES: dict[str, tuple[Callable[..., Any], Callable[[int, int], tuple[T, ...]]]] = {
    "relative": (relative, lambda B, S: (r(N), r(N, seed=1), r(N, H))),
    "gaussians": (gaussians, lambda B, S: (r(B, S, 3), r(N), r(N, H))),
    "waves": (waves, lambda B, S: (r(S), r(N), r(2 * N, H))),
    "network": (network, lambda B, S: (r(S, 2), r(N, 2), r(N), r(H, N))),
    "normed": (normed, lambda B, S: (r(S, N), r(N, H))),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("B", [1, 6])
def test_values(name: str, B: int) -> None:
    fn, rest = CASES[name]
    S = 70
    args = (r(B, H, S, D), r(B, H, S, D, seed=1), r(B, H, S, D, seed=2), *rest(B, S))
    torch._dynamo.reset()
    with torch.no_grad():
        check(fn, torch.compile(fn, backend="flashlight"), args)
    stored = flashlight.explain(fn, *args).materialized
    assert all(t.shape[-1] != N for t in stored), stored
    torch._dynamo.reset()


@pytest.mark.parametrize("masked", [False, True])
def test_a_bias_of_two_layers_is_made_once(masked: bool) -> None:
    """Its features never reach memory, also where each layer takes a mask of it."""

    def layers(q: T, k: T, v: T, a: T, c: T, w: T, proj: T) -> T:
        i = torch.arange(q.shape[-2])
        near = (i[:, None] - i).to(q.dtype)[..., None]
        bias = torch.relu(near * a + c) @ w
        if masked:
            bias = bias.masked_fill((i[:, None] < i)[..., None], -torch.inf)
        return attention(attention(q, k, v, bias) @ proj, k, v, bias)

    S = 70
    args = (*(r(2, H, S, D, seed=i) for i in range(3)), r(N), r(N, seed=1), r(N, H), r(D, D))
    torch._dynamo.reset()
    with torch.no_grad():
        check(layers, torch.compile(layers, backend="flashlight"), args)
    report = flashlight.explain(layers, *args)
    assert len(report.kernels) == 3
    assert all(t.shape[-1] != N for t in report.materialized), report.materialized
    torch._dynamo.reset()
