"""Every program of the zoo, compiled for this machine: one kernel, nothing score-sized in memory, values within the contract."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import flashlight
from flashlight.programs.variants import VARIANTS, Variant
from tests.support.oracle import check

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIXTEEN_BITS = [
    ("alibi", torch.bfloat16),
    ("window_1e10", torch.float16),
    ("window_min", torch.bfloat16),
    ("document_causal", torch.bfloat16),
    ("diff_module", torch.bfloat16),
    ("evoformer", torch.bfloat16),
]


@pytest.fixture(autouse=True)
def fresh() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_one_kernel(variant: Variant) -> None:
    args = variant.make(variant.tiny, torch.float32, DEVICE, 0)
    with torch.no_grad():
        report = flashlight.explain(variant.fn, *args)
    assert not report.materialized, str(report)
    assert len(report.kernels) == 1, str(report)
    kernel = report.kernels[0]
    assert kernel.passes == 1
    assert kernel.source
    assert kernel.grid > 0
    assert kernel.flops > variant.flops(variant.tiny, args)
    assert any("softmax" in line or "cross_entropy" in line for line in kernel.origins)


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_values(variant: Variant) -> None:
    args = variant.make(variant.tiny, torch.float32, DEVICE, 1)
    check(variant.fn, flashlight.compile(variant.fn), args)


@pytest.mark.parametrize(("name", "dtype"), SIXTEEN_BITS, ids=[n for n, _ in SIXTEEN_BITS])
def test_values_in_sixteen_bits(name: str, dtype: torch.dtype) -> None:
    variant = VARIANTS[name]
    args = variant.make(variant.tiny, dtype, DEVICE, 2)
    check(variant.fn, flashlight.compile(variant.fn), args)


def test_queries_shorter_than_keys() -> None:
    variant = VARIANTS["causal"]
    q, k, v = variant.make(variant.tiny, torch.float32, DEVICE, 3)
    check(variant.fn, flashlight.compile(variant.fn), (q[:, :, -17:], k, v))


def test_sum_of_attentions_over_different_keys() -> None:
    def two(q: Tensor, k: Tensor, v: Tensor, k2: Tensor, v2: Tensor) -> Tensor:
        first = torch.softmax(q @ k.mT, -1) @ v
        second = torch.softmax(q @ k2.mT, -1) @ v2
        return first + second

    gen = torch.Generator().manual_seed(0)
    q, k, v, k2, v2 = (torch.randn(1, 2, n, 16, generator=gen) for n in (70, 70, 70, 90, 90))
    with torch.no_grad():
        assert not flashlight.explain(two, q, k, v, k2, v2).materialized
    check(two, flashlight.compile(two), (q, k, v, k2, v2))


def test_attention_of_an_attention() -> None:
    def chain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        first = torch.softmax(q @ k.mT, -1) @ v
        second = torch.softmax(first @ k.mT, -1) @ v
        return first + second

    gen = torch.Generator().manual_seed(0)
    args = [torch.randn(1, 2, 70, 16, generator=gen) for _ in range(3)]
    with torch.no_grad():
        assert not flashlight.explain(chain, *args).materialized
    check(chain, flashlight.compile(chain), args)
