"""Joins that are read where their parts lie."""

from __future__ import annotations

import time

import torch

from flashlight.capture.pairs import join_of
from flashlight.lift import rules as _rules
from flashlight.lift.lift import Lifter
from tests.support.tracing import graph_of

del _rules


def rows_in_turn(x: torch.Tensor) -> torch.Tensor:
    """A scan that writes row after row: each step reads the step before at two places."""
    for i in range(1, 40):
        x = torch.cat([x[:i], x[i - 1 : i], x[i + 1 :]])
    return x


def test_scan_is_no_join() -> None:
    lifter = Lifter(graph_of(rows_in_turn, (torch.randn(41, 8),)))
    start = time.perf_counter()
    found = [join_of(cell, lifter.cells) for cell in lifter.cells.values()]
    assert time.perf_counter() - start < 5
    assert found[0] and found[-1] is None
