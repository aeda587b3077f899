"""Features that a projection widens, made again for every row of a product with other such features, are no scores."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

import flashlight
from tests.support import oracle

ROWS, NARROW, WIDE = 48, 16, 128


def scores(x: Tensor, y: Tensor, to_queries: Tensor, to_keys: Tensor) -> Tensor:
    queries = (x @ to_queries).view(-1, 8, WIDE)
    keys = F.layer_norm(y @ to_keys, (WIDE,))
    return torch.relu(queries @ keys.T)


def test_both_are_made_once() -> None:
    gen = torch.Generator().manual_seed(0)
    x, y = (torch.randn(ROWS, NARROW, generator=gen) for _ in range(2))
    to_queries = torch.randn(NARROW, 8 * WIDE, generator=gen)
    to_keys = torch.randn(NARROW, WIDE, generator=gen)
    args = [x, y, to_queries, to_keys]
    with torch.no_grad():
        report = flashlight.explain(scores, *args)
        torch._dynamo.reset()
        oracle.check(scores, torch.compile(scores, backend="flashlight"), args)
    assert not report.kernels
