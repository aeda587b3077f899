"""What would multiply beyond reason is refused before any kernel is built."""

from __future__ import annotations

import torch
from torch._inductor.utils import fresh_inductor_cache

from flashlight.capture.capture import _canonical
from flashlight.capture.record import collecting
from tests.support.oracle import assert_close, exactly


def unrolled(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """States by a scan of doubling steps, each of which reads the step before at several places, summed against `c`."""
    state = a[:, :, None] * b[:, None, :]
    for shift in (1, 2, 4, 8, 16, 32):
        before = torch.nn.functional.pad(state, (0, 0, shift, 0))[:, : state.shape[1]]
        state = state * torch.tanh(before + before.flip(1)) + before
    return torch.einsum("nsd,nd->ns", state, c)


def test_scan_is_left_to_inductor() -> None:
    a, b, c = torch.randn(3, 64), torch.randn(3, 48), torch.randn(3, 48)
    with fresh_inductor_cache(), collecting() as found, torch.no_grad():
        got = torch.compile(unrolled, backend="flashlight")(a, b, c)
    assert [r.code for r in found.refusals] == ["too-large"]
    assert_close(got, unrolled(a, b, c), unrolled(*exactly((a, b, c))))


def test_what_one_layer_was_refused_for_is_not_tried_for_the_next() -> None:
    _canonical.cache_clear()
    misses = []
    for layers in (1, 3):
        inputs = [[torch.randn(3, n) for n in (64, 48, 48)] for _ in range(layers)]
        with fresh_inductor_cache(), collecting() as found, torch.no_grad():
            torch.compile(lambda *args: [unrolled(*a) for a in args], backend="flashlight")(*inputs)
        assert [r.code for r in found.refusals] == ["too-large"] * layers
        misses.append(_canonical.cache_info().misses)
    assert misses[0] == misses[1]


def substituted(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """A triangular system of decayed products, solved row by row in place, as chunked delta rules do."""
    system = -(a[:, :, None] * b[:, None] * torch.exp(c[:, :, None] - c[:, None])).sum(-1).tril(-1)
    for i in range(1, system.shape[-1]):
        row, above = system[:, i, :i].clone(), system[:, :i, :i].clone()
        system[:, i, :i] = row + (row[..., None] * above).sum(-2)
    return system


def test_what_each_step_of_a_scan_reads_is_computed_once() -> None:
    gen = torch.Generator().manual_seed(0)
    a, b, c = (torch.randn(3, 12, 32, generator=gen) / 8 for _ in range(3))
    with fresh_inductor_cache(), collecting() as found, torch.no_grad():
        got = torch.compile(substituted, backend="flashlight")(a, b, c)
    assert not found.regions
    assert_close(got, substituted(a, b, c), substituted(*exactly((a, b, c))))
