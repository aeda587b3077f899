"""Fixtures of tests that compile whole functions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def inference() -> Iterator[None]:
    """Nothing compiled before or after, and no gradients."""
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()
