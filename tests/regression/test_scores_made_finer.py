"""Scores of float32 that are converted to float64: what follows is computed in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import flashlight

Program = Callable[[Tensor, Tensor, Tensor], Tensor]
PROGRAMS: dict[str, Program] = {
    "log_sum": lambda q, k, v: (q @ k.mT / 4).double().logsumexp(-1),
    "softmax": lambda q, k, v: (q @ k.mT / 4).double().softmax(-1) @ v.double(),
    "softmax_to": lambda q, k, v: (q @ k.mT / 4).softmax(-1, dtype=torch.float64) @ v.double(),
    "columns": lambda q, k, v: (q @ k.mT / 4).softmax(-1, dtype=torch.float64).sum(0),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_in_float64(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    # Products of small integers are exact in float32.
    q, k, v = (torch.randint(-3, 4, (n, 16), generator=generator).float() for n in (33, 500, 500))
    program = PROGRAMS[name]
    torch._dynamo.reset()
    with torch.no_grad():
        expected = program(q, k, v)
        found = torch.compile(program, backend="flashlight")(q, k, v)
        assert flashlight.explain(program, q, k, v).kernels
    assert found.dtype == torch.float64
    assert float((found - expected).norm() / expected.norm()) < 1e-14
