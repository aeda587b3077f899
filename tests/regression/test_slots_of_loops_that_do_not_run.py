"""A statistic that a loop replaces unread (on tiles without a mask, `any` is just true) keeps its start if that loop does not run."""

from __future__ import annotations

import ctypes

import pytest

from flashlight.codegen.cpp_memory import Workspace
from flashlight.ir.text import parse_program
from flashlight.runtime import cpu
from tests.support.on_cpu import build, check, inputs_of

TEXT = """
program strictly_causal
  size S
  dim q: S, k: S, d: 8, e: 8
  input Q: f32[S, 8]
  input K: f32[S, 8]
  input V: f32[S, 8]
  loop (q | k)
    let s(q, k) = where(k < q, sum(d: Q[q, d] * K[k, d]), -inf)
    carry seen (q) bool: any k < q
    carry m (q) f32: max s
    carry l (q) f32: sum exp(s - ~m) moves exp(-m)
    carry A (q, e) f32: sum exp(s - ~m) * V[k, e] moves exp(-m)
    give O (q, e) f32 = where(seen, A / l, 0.0)
  output O
"""


@pytest.mark.parametrize("size", [1, 5, 33, 70])
def test_values(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = cpu.workspace

    def poisoned(n: int) -> int:
        address = workspace(n)
        ctypes.memset(address, 0xFF, n)
        return address

    monkeypatch.setattr(cpu, "workspace", poisoned)
    program, sizes = parse_program(TEXT), {"S": size}
    check(
        program, sizes, inputs_of(program, sizes), build(program, sizes, row_block=16, col_block=8)
    )


def test_the_start_lives_until_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    lives = Workspace._lives

    def spans(self: Workspace) -> None:
        lives(self)
        for tile, head in self.slots.items():
            starts, ends = zip(*tile.spans, strict=True)
            found.append(tile.name)
            assert min(starts) <= head <= ends[0], tile.name

    monkeypatch.setattr(Workspace, "_lives", spans)
    program = parse_program(TEXT)
    cpu.step_of(program, program.loops[0], {"S": 70})
    assert found
