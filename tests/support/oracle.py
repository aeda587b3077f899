"""The one judgement of numbers in the suite: against the same program in float64, relative to eager's own error.

    check(fn, compiled, args)          # runs all three
    assert_close(got, eager, exact)    # when they have been run

A result passes with the shape, dtype and non-finite places of eager's, and a relative error of at most twice eager's own plus a
few units of rounding of its dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# Unit roundoff, and how many of them are granted beyond twice eager's error.
ROUNDING = {
    torch.float64: 2e-15,
    torch.float32: 1.2e-7,
    torch.float16: 9.8e-4,
    torch.bfloat16: 7.8e-3,
}
GRANTED = 4
FACTOR = 2


def exactly(args: Sequence[Any]) -> list[Any]:
    """The arguments in float64, so that the program itself is the reference; integers and bools stay."""
    return [
        a.detach().double() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args
    ]


def tensors(value: Any) -> list[Tensor]:
    """The tensors of a result, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for key in sorted(value) for t in tensors(value[key])]
    if isinstance(value, (tuple, list)):
        return [t for item in value for t in tensors(item)]
    return []


def relative_error(x: Tensor, exact: Tensor) -> float:
    """Frobenius norm of the difference over the places where the reference is finite, relative to the reference's."""
    x, exact = x.detach().double(), exact.detach().double()
    finite = torch.isfinite(exact) & torch.isfinite(x)
    x, exact = torch.where(finite, x, 0.0), torch.where(finite, exact, 0.0)
    norm = exact.norm().item()
    root = max(exact.numel(), 1) ** 0.5
    return (x - exact).norm().item() / (norm if norm > 1e-12 * root else root)


def same_places(x: Tensor, eager: Tensor) -> bool:
    """Whether NaN and infinities stand where eager has them."""
    x, eager = x.detach(), eager.detach()
    infinite = torch.isinf(eager)
    return bool(
        torch.equal(torch.isnan(x), torch.isnan(eager))
        and torch.equal(torch.isinf(x), infinite)
        and torch.equal(x[infinite], eager[infinite])
    )


def allowed(eager: Tensor, exact: Tensor) -> float:
    """The largest relative error a result may have."""
    return FACTOR * relative_error(eager, exact) + GRANTED * ROUNDING[eager.dtype]


def assert_close(got: Any, eager: Any, exact: Any, what: str = "output") -> None:
    """Fails with what differs and by how much."""
    results, eagers, exacts = tensors(got), tensors(eager), tensors(exact)
    assert len(results) == len(eagers)
    for i, (g, e, x) in enumerate(zip(results, eagers, exacts, strict=True)):
        name = f"{what} {i}"
        assert g.shape == e.shape, f"{name}: shape {tuple(g.shape)}, eager {tuple(e.shape)}"
        assert g.dtype == e.dtype, f"{name}: {g.dtype}, eager {e.dtype}"
        if not e.is_floating_point():
            assert torch.equal(g, e), f"{name}: integers differ"
            continue
        assert same_places(g, e), f"{name}: NaN or infinite places differ from eager's"
        error, limit = relative_error(g, x), allowed(e, x)
        assert error <= limit, f"{name}: error {error:.2e}, at most {limit:.2e}"


def check(fn: Callable[..., Any], compiled: Callable[..., Any], args: Sequence[Any]) -> None:
    """Run the program eagerly, in float64 and compiled, and compare."""
    with torch.no_grad():
        assert_close(compiled(*args), fn(*args), fn(*exactly(args)))


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    """A random tensor, the same for a shape and a seed each time."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))
