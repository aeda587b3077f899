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

    def __init__(self, *, empty: bool = False) -> None:
        super().__init__("token", 0)
        self.seen: list[str] = []
        self.empty = empty

    def first(self, sizes: Any, tensors: Any) -> Any:
        self.seen.append(f"first {list(sizes)}")
        return None if self.empty else lambda given: self.seen.append(f"again {len(given)}")


def tensors(shift: int = 0) -> list[torch.Tensor]:
    return [torch.zeros(64 + shift)[shift:] for _ in range(5)]


def test_calls_of_one_size_differ_in_addresses() -> None:
    call = Counting()
    for shift in (0, 0, 1, 0):
        call([], *tensors(shift))
    assert call.seen == ["first []", "again 5", "first []", "again 5"]


def test_other_sizes_are_looked_at_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_call, "MOST", 2)
    call = Counting()
    for length in (64, 96, 64, 128, 64):
        call([length, 8], *tensors())
    assert call.seen == [
        "first [64, 8]",
        "first [96, 8]",
        "again 5",
        "first [128, 8]",
        "first [64, 8]",
    ]


def test_what_cannot_be_launched_again_is_looked_at_anew() -> None:
    """Nothing is launched on empty tensors, and Triton's interpreter makes nothing that could be."""
    call = Counting(empty=True)
    call([0], *tensors())
    call([0], *tensors())
    assert call.seen == ["first [0]", "first [0]"]


def test_what_strides_depend_on_is_no_size_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[Any] = []

    class Built:
        program = parse_program(attention(sizes=(1, 2, "S", "S"), D=8, E=8))

        def first_into(self, number: int, given: Any, sizes: Any) -> None:
            known.append((number, len(given), list(sizes)))

    monkeypatch.setattr(op, "gpu_executable", lambda token, device: Built())
    loop_call.LoopCall("token", 1)([64, 4096], *tensors())
    assert known == [(1, 5, [64])]


def test_a_cpu_has_no_such_loops() -> None:
    text = attention(sizes=(1, 2, 64, 64), D=8, E=8)
    call = loop_call.LoopCall(op.token_of(parse_program(text), {}, Options()), 0)
    with pytest.raises(op.CompileError):
        call([], *[torch.zeros(1, 2, 64, 8) for _ in range(4)])
