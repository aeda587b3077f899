"""Causal grouped attention in many spellings is one program, to the letter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import flashlight
from flashlight.capture.record import collecting
from tests.support.oracle import check

B, H, G, S, D = 2, 2, 3, 40, 16  # batch, key heads, query heads for each, length, width
Fn = Callable[[Tensor, Tensor, Tensor], Tensor]


def keep(s: Tensor) -> Tensor:
    i = torch.arange(s.shape[-2], device=s.device)
    return i[None, :] <= i[:, None]


def repeat_interleave(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = k.repeat_interleave(G, 1), v.repeat_interleave(G, 1)
    s = q @ k.transpose(-1, -2) * D**-0.5
    return torch.softmax(s.masked_fill(~keep(s), -torch.inf), -1) @ v


def expand_reshape(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (t[:, :, None].expand(B, H, G, S, D).reshape(B, H * G, S, D) for t in (k, v))
    s = torch.matmul(q, k.mT) * D**-0.5
    return torch.matmul(torch.softmax(torch.where(keep(s), s, -torch.inf), -1), v)


def five_dims(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q = q.view(B, H, G, S, D)
    s = q @ k[:, :, None].transpose(-1, -2) * D**-0.5
    o = torch.softmax(s.masked_fill(~keep(s), -torch.inf), -1) @ v[:, :, None]
    return o.reshape(B, H * G, S, D)


def einsum_five_dims(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q = q.view(B, H, G, S, D)
    s = torch.einsum("bhgqd,bhkd->bhgqk", q, k) * D**-0.5
    p = torch.softmax(s.masked_fill(~keep(s), -torch.inf), -1)
    return torch.einsum("bhgqk,bhkd->bhgqd", p, v).reshape(B, H * G, S, D)


def einsum_length_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    k, v = k.repeat_interleave(G, 2), v.repeat_interleave(G, 2)
    s = torch.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5
    p = torch.softmax(s.masked_fill(~keep(s), -torch.inf), -1)
    return torch.einsum("bhqk,bkhd->bqhd", p, v).transpose(1, 2)


def merged_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (t.repeat_interleave(G, 1).reshape(B * H * G, S, D) for t in (k, v))
    s = torch.bmm(q.reshape(B * H * G, S, D), k.transpose(1, 2)) * D**-0.5
    p = torch.softmax(s.masked_fill(~keep(s), -torch.inf), -1)
    return torch.bmm(p, v).view(B, H * G, S, D)


def handmade_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = k.repeat_interleave(G, 1), v.repeat_interleave(G, 1)
    s = q @ k.transpose(-1, -2) * D**-0.5
    s = s.masked_fill(~keep(s), -torch.inf)
    w = torch.exp(s - s.amax(-1, keepdim=True))
    return (w / w.sum(-1, keepdim=True)) @ v


def divided_late(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = k.repeat_interleave(G, 1), v.repeat_interleave(G, 1)
    s = q @ k.transpose(-1, -2) * D**-0.5
    s = s.masked_fill(~keep(s), -torch.inf)
    w = torch.exp(s - s.amax(-1, keepdim=True))
    return (w @ v) / w.sum(-1, keepdim=True)


def triangular_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = k.repeat_interleave(G, 1), v.repeat_interleave(G, 1)
    s = q @ k.transpose(-1, -2) * D**-0.5
    low = torch.ones(S, S, dtype=torch.bool, device=q.device).tril()
    return torch.softmax(s.masked_fill(~low, -torch.inf), -1) @ v


def contiguous_copies(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (t.repeat_interleave(G, 1).contiguous() for t in (k, v))
    kt = k.permute(0, 1, 3, 2).contiguous()
    s = (q.contiguous() @ kt) * D**-0.5
    return torch.softmax(s.masked_fill(~keep(s), float("-inf")), dim=-1) @ v


SPELLINGS: tuple[Fn, ...] = (
    repeat_interleave,
    expand_reshape,
    five_dims,
    einsum_five_dims,
    einsum_length_first,
    merged_heads,
    handmade_softmax,
    triangular_mask,
    contiguous_copies,
)


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    gen = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(B, n, S, D, generator=gen) for n in (H * G, H, H))
    return q, k, v


def texts(fn: Fn) -> tuple[str, ...]:
    """The canonical programs of the regions of a function; its values are checked on the way."""
    torch._dynamo.reset()
    with collecting() as record:
        check(fn, flashlight.compile(fn), inputs())
    return tuple(str(taken.program) for taken in record.regions)


def test_one_text() -> None:
    found = {fn.__name__: texts(fn) for fn in SPELLINGS}
    (text,) = found["repeat_interleave"]
    print(text)
    print("spelled as", ", ".join(found))
    assert {name: t for name, t in found.items() if t != (text,)} == {}


def test_dividing_late_is_the_same_loop() -> None:
    """Another order of the arithmetic, so another text; what is accumulated is the same."""
    torch._dynamo.reset()
    report = flashlight.explain(divided_late, *inputs())
    check(divided_late, flashlight.compile(divided_late), inputs())
    (kernel,) = report.kernels
    assert kernel.passes == 1
    assert kernel.program.count("carry ") == 3


@pytest.mark.parametrize("length", [1, 41])
def test_lengths_do_not_matter(length: int) -> None:
    q, k, v = (t[:, :, :1].expand(-1, -1, length, -1).contiguous() for t in inputs())
    torch._dynamo.reset()
    check(repeat_interleave, flashlight.compile(repeat_interleave), (q, k, v))
