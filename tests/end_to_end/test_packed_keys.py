"""Keys and values held as small integers are read as such: what they stand for is computed in the kernel and never stored."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from flashlight import backend
from flashlight.ir.dtypes import DType
from tests.support.oracle import check
from tests.support.oracle import normal as r

pytestmark = pytest.mark.usefixtures("inference")
T = torch.Tensor
B, H, G, S, N, D = 2, 2, 2, 3, 70, 16


def attention(q: T, k: T, v: T) -> T:
    k, v = k.repeat_interleave(G, 1), v.repeat_interleave(G, 1)
    return (q @ k.mT * D**-0.5).softmax(-1) @ v


def bytes_with_scales(q: T, k: T, v: T, a: T, b: T) -> T:
    return attention(q, k.to(q.dtype) * a, b * v.to(q.dtype))


def bytes_with_zeros(q: T, k: T, v: T, a: T, b: T) -> T:
    zeros = (a * 8).round()
    return attention(q, (k.to(q.dtype) - zeros) * a, v.to(q.dtype) * b + a)


def halves_of_bytes(q: T, k: T, v: T, a: T, b: T) -> T:
    def parts(x: T) -> T:
        low, high = x & 15, (x >> 4) & 15
        return torch.stack([low, high], -1).flatten(-2).to(q.dtype) - 8

    return attention(q, parts(k) * a, parts(v) * b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fn", [bytes_with_scales, bytes_with_zeros, halves_of_bytes])
def test_values(fn: Callable[..., T], dtype: torch.dtype) -> None:
    width = D // 2 if fn is halves_of_bytes else D
    k, v = ((r(B, H, N, width, seed=seed) * 40).to(torch.int8) for seed in (1, 2))
    a, b = (r(B, H, N, 1, seed=seed).abs() / 99 for seed in (3, 4))
    q, a, b = (x.to(dtype) for x in (r(B, H * G, S, D), a, b))
    check(fn, torch.compile(fn, backend="flashlight"), (q, k, v, a, b))
    (region,) = backend.last_report().regions
    packed = [x for x in region.program.inputs if x.dtype is DType.I8]
    assert len(packed) == 2, region.program


def test_features_of_full_width_are_scaled_beforehand() -> None:
    """Where each element has its own number, it would be read twice as often."""

    def fn(q: T, k: T, v: T, a: T) -> T:
        return (q @ (k * a).mT).softmax(-1) @ v

    args = (r(2, 50, 8), r(2, 60, 8, seed=1), r(2, 60, 8, seed=2), r(2, 60, 8, seed=3))
    check(fn, torch.compile(fn, backend="flashlight"), args)
    (region,) = backend.last_report().regions
    assert len(region.program.inputs) == 3, region.program
