"""A few dozen random programs, the same ones every time; `python -m tests.fuzz` runs as many as one likes."""

from __future__ import annotations

import pytest
import torch

from tests.fuzz.choices import SIZES, Choices, random_choices, simpler
from tests.fuzz.judge import compiled, difference, kernels, load, quick
from tests.fuzz.shrink import shrink
from tests.fuzz.source import source

QUICK = range(24)
KERNELS = range(100, 108)
COMPILED = range(200, 202)


@pytest.mark.parametrize("seed", QUICK)
def test_loops_in_python(seed: int) -> None:
    text = source(random_choices(seed))
    print(text)
    assert quick(text).failure == ""


@pytest.mark.parametrize("seed", KERNELS)
def test_kernels_between_eager_ops(seed: int) -> None:
    text = source(random_choices(seed))
    print(text)
    assert kernels(text).failure == ""


@pytest.mark.parametrize("seed", COMPILED)
def test_torch_compile(seed: int) -> None:
    text = source(random_choices(seed))
    print(text)
    assert compiled(text).failure == ""


def test_most_programs_are_programs() -> None:
    """Every text runs in eager, so that a failure is the compiler's."""
    for seed in range(300, 360):
        c = random_choices(seed)
        module = load(source(c))
        generator = torch.Generator().manual_seed(0)
        args = module.make("cpu", getattr(torch, c.dtype), "tiny", generator)
        module.fn(*args)


def test_an_overflow_may_be_eagers_in_one_place_and_none_in_another() -> None:
    """As f32 is right to do where f16 overflows twice and f64 not at all."""
    x = torch.tensor([300.0, 6e4], dtype=torch.float16)
    got = power_ratio(x.float()).half()
    assert got.isnan().tolist() == [False, True]
    assert difference(power_ratio, (x,), got) == ""
    assert "places" in difference(power_ratio, (x,), torch.tensor([300.0, torch.inf]).half())


def power_ratio(x: torch.Tensor) -> torch.Tensor:
    return x**10 / x**9


def test_what_16_bits_cannot_tell_apart_may_be_either() -> None:
    """And is wrong in f32, of the same numbers."""
    x, y = torch.full((100,), 1.0078125), torch.full((100,), 1.0234375)
    got = torch.zeros(100)
    got[0] = 1.0
    assert difference(is_less, (y.bfloat16(), x.bfloat16()), got.bfloat16()) == ""
    assert "error" in difference(is_less, (y, x), got)


def is_less(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (y < x * x).to(x.dtype)


def test_an_error_is_judged_by_several_draws() -> None:
    """Eager's may be none by luck, and a little more in every draw is too much."""
    unlucky = (rounded(seed) for seed in range(1000))
    x = next(x for x in unlucky if "error" in difference(left_first, (x,), right_first(x)))

    def worse(x: torch.Tensor) -> torch.Tensor:
        return right_first(x) * (1 + 1e-4)

    assert difference(left_first, (x,), right_first(x), right_first) == ""
    assert "error" in difference(left_first, (x,), worse(x), worse)


def rounded(seed: int) -> torch.Tensor:
    return torch.randn(2, 2, generator=torch.Generator().manual_seed(seed))


def left_first(x: torch.Tensor) -> torch.Tensor:
    return (x[0] + 300 + x[1] - 300).exp()


def right_first(x: torch.Tensor) -> torch.Tensor:
    return (x[0] + (x[1] + 300) - 300).exp()


def test_shrinking_ends_at_what_matters() -> None:
    start = next(c for c in map(random_choices, range(10**6)) if is_large_window(c))
    small = shrink(start, is_large_window, limit=1000)
    assert is_large_window(small)
    assert min(n for n in SIZES if n > 30) == small.S
    assert not any(is_large_window(c) for c in simpler(small))


def is_large_window(c: Choices) -> bool:
    return c.mask == "window" and c.S > 30
