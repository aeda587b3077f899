"""Calls from Inductor's code: what is looked at anew, and what is launched again."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flashlight.ir.text import parse_program
from flashlight.options import Options
from flashlight.runtime import loop_call, op
from tests.support.loops import attention


class Counting(loop_call.LoopCall):
    """Says what it would launch."""

    def __init__(self, text: str, static: bool) -> None:
        super().__init__(op.token_of(parse_program(text), {}, Options()), 0, static)
        self.seen: list[str] = []

    def first(self, tensors: Any, sizes: Any) -> Any:
        self.seen.append(f"first {list(sizes)}")
        return lambda given: self.seen.append(f"again {len(given)}")


def tensors(length: int, shift: int = 0) -> list[torch.Tensor]:
    size = 2 * length * 8
    return [torch.zeros(size + shift)[shift:].view(1, 2, length, 8) for _ in range(4)]


def test_static_calls_differ_in_addresses() -> None:
    call = Counting(attention(sizes=(1, 2, 64, 64), D=8, E=8), True)
    for shift in (0, 0, 1, 0):
        *ins, out = tensors(64, shift)
        call(*ins, out=out)
    assert call.seen == ["first []", "again 4", "first []", "again 4"]


def test_other_sizes_are_looked_at_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_call, "MOST", 2)
    call = Counting(attention(sizes=(1, 2, "S", "S"), D=8, E=8), False)
    for length in (64, 96, 64, 128, 64):
        *ins, out = tensors(length)
        call(*ins, length, out=out)
    assert call.seen == ["first [64]", "first [96]", "again 4", "first [128]", "first [64]"]


def test_a_cpu_has_no_such_loops() -> None:
    text = attention(sizes=(1, 2, 64, 64), D=8, E=8)
    call = loop_call.loop_call(op.token_of(parse_program(text), {}, Options()), 0, True)
    *ins, out = tensors(64)
    with pytest.raises(op.CompileError):
        call(*ins, out=out)
