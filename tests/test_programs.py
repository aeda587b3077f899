"""The zoo itself: every program runs in every dtype, its part is the part of its whole, FlexAttention's statement agrees."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from flashlight.programs.flex import flex_for
from flashlight.programs.variants import VARIANTS, Variant
from tests.support.oracle import assert_close, exactly

each = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)


@each
def test_part_is_the_part_of_the_whole(variant: Variant) -> None:
    args = variant.make(variant.tiny, torch.float32, "cpu", 0)
    part = variant.part(args)
    whole = variant.fn(*args)
    assert whole.isfinite().all()
    assert_close(variant.part_of(whole), variant.fn(*part), variant.fn(*exactly(part)))


@each
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sixteen_bits(variant: Variant, dtype: torch.dtype) -> None:
    args = variant.make(variant.tiny, dtype, "cpu", 1)
    out = variant.fn(*args)
    is_loss = variant.name == "linear_cross_entropy"
    assert out.dtype is (torch.float32 if is_loss else dtype)
    assert out.isfinite().all()


@each
def test_inputs_follow_the_seed(variant: Variant) -> None:
    first, again, other = (variant.make(variant.tiny, torch.float32, "cpu", s) for s in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", [n for n in VARIANTS if flex_for(n, (torch.ones(2),) * 4)])
def test_flex_states_the_same_function(name: str) -> None:
    variant = VARIANTS[name]
    shape = variant.tiny
    args = variant.make(shape, torch.float32, "cpu", 0)
    flex = flex_for(name, args)
    assert flex is not None
    mask = None
    if flex.mask_mod:
        samples = shape.batch if flex.mask_per_sample else None
        mask = create_block_mask(
            flex.mask_mod, samples, None, shape.length, shape.length, device="cpu"
        )
    q, k, v = args[:3]
    got = flex_attention(q, k, v, score_mod=flex.score_mod, block_mask=mask, enable_gqa=True)
    assert_close(got, variant.fn(*args), variant.fn(*exactly(args)))


def test_pairs_are_counted() -> None:
    for name in ("causal", "window", "prefix", "document", "document_causal"):
        variant = VARIANTS[name]
        args = variant.make(variant.tiny, torch.float32, "cpu", 0)
        flex = flex_for(name, args)
        assert flex is not None
        assert flex.mask_mod is not None
        s = variant.tiny.length
        i, j = torch.arange(s)[:, None], torch.arange(s)[None, :]
        kept = sum(
            int(flex.mask_mod(torch.tensor(b), torch.tensor(0), i, j).sum())
            for b in range(variant.tiny.batch)
        )
        assert variant.pairs(variant.tiny, args) * variant.tiny.batch == kept
