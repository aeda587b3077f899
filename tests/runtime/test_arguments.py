"""Arguments of kernels that are made without a device."""

from __future__ import annotations

import threading

import pytest
import torch

from flashlight.runtime import arguments


def test_counters_outlive_the_memory_of_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch sends what a thread allocates while a CUDA graph is warmed up to the graph's pool: counters come from another thread."""
    threads: list[int] = []
    zeros = torch.zeros

    def noted(*sizes: int, **kwargs: object) -> torch.Tensor:
        threads.append(threading.get_ident())
        return zeros(*sizes, dtype=torch.int32)

    monkeypatch.setattr(torch, "zeros", noted)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    monkeypatch.setattr(arguments, "_counters", {})
    device = torch.device("cuda", 0)
    found = [arguments.counter(device) for _ in range(arguments.COUNTERS + 1)]
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()
    assert found[0].data_ptr() != found[1].data_ptr()
    assert found[0].data_ptr() == found[-1].data_ptr()
    assert all(c.data_ptr() % 16 == 0 for c in found)
