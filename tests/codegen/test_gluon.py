"""Gluon kernels, in which warps have roles: as text, and compiled for a Hopper that is not there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from flashlight.codegen.gluon import emit
from flashlight.codegen.lower import lower
from flashlight.codegen.roles import divide
from flashlight.codegen.triton import Choices
from flashlight.errors import CompileError
from flashlight.ir.text import parse_program
from flashlight.rewrite.schedule import HOPPER, Schedule
from flashlight.runtime import gpu
from tests.support.cubin import compile_kernel, complaints
from tests.support.loops import DOT, attention

FULL = (4, 16, 4096, 4096)
HINTS = {"S": 4096, "T": 4096, "N": 1024}
DEVICE = replace(HOPPER, roles=True)
CAUSAL = f"where(k <= q, {DOT}, -inf)"
SHORT = (512, 4, 256, 256)
BIASED, GATED = f"{DOT} + B[h, q, k] + M[b, k]", "A / l * sigmoid(G[b, h, q, e])"
PAIRS = ("B: f16[4, 256, 256]", "M: f16[512, 256]")
PROGRAMS = {
    "vanilla_64": attention(sizes=FULL),
    "vanilla_128": attention(sizes=FULL, D=128, E=128),
    "causal_64": attention(CAUSAL, sizes=FULL),
    "causal_128": attention(CAUSAL, sizes=FULL, D=128, E=128),
    "softcap_128": attention(f"tanh({DOT} / 30.0) * 30.0", sizes=FULL, D=128, E=128),
    "alibi_64": attention(f"{DOT} + slopes[h] * f32(k - q)", ("slopes: f32[16]",), sizes=FULL),
    "bias_and_gate_64": attention(
        BIASED, (*PAIRS, "G: f16[512, 4, 256, 64]"), sizes=SHORT, give=GATED
    ),
    "bias_and_gate_128": attention(
        BIASED, (*PAIRS, "G: f16[512, 4, 256, 128]"), sizes=SHORT, give=GATED, D=128, E=128
    ),
    "wider_values": attention(sizes=FULL, D=64, E=128),
    "any_length": attention(),
    "any_length_causal": attention(CAUSAL),
}


def schedules(text: str) -> list[Schedule]:
    """Those of a program's loop in which warps have roles."""
    program = parse_program(text)
    (loop,) = program.loops
    found = gpu.schedules_for(program, loop, HINTS, DEVICE)
    return [s for s in found if s.consumers]


def source(text: str, schedule: Schedule) -> str:
    program = parse_program(text)
    (loop,) = program.loops
    step = gpu.Step.of(program, 0, [schedule], "off")
    units = tuple((b.name, len(b.shape) - 1) for b in step.kernel.reads)
    return step.source(schedule, lower(loop, schedule, step.name), gpu.Facts(units)).text


@pytest.mark.parametrize("name", ["vanilla_64", "any_length_causal"])
def test_golden(name: str, golden: Callable[[str, str], None]) -> None:
    pytest.importorskip("triton")
    golden(f"codegen/{name}.gluon.py", source(PROGRAMS[name], schedules(PROGRAMS[name])[0]))


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_resources(name: str) -> None:
    """One of the schedules spills nothing and none of them much, and no product waits for another that it need not wait for."""
    pytest.importorskip("triton")
    program = parse_program(PROGRAMS[name])
    (loop,) = program.loops
    stacks = []
    for schedule in schedules(PROGRAMS[name]):
        step = gpu.Step.of(program, 0, [schedule], "off")
        facts = gpu.Facts(tuple((b.name, len(b.shape) - 1) for b in step.kernel.reads))
        kernel = lower(loop, schedule, step.name)
        made = compile_kernel(step.source(schedule, kernel, facts), kernel, schedule, 90)
        assert made.mma.get("wgmma.mma_async")
        assert made.shared <= DEVICE.shared
        assert not complaints(made)
        stacks.append(made.stack)
    assert stacks
    assert min(stacks) == 0, stacks
    assert max(stacks) <= 32, stacks


@pytest.mark.slow
def test_numbers_that_are_chosen_are_wide() -> None:
    """Triton gives a choice between two numbers 32 bits, whatever the program says: assembly for pairs of bf16 must not get it."""
    pytest.importorskip("triton")
    text = attention(
        f"{DOT} + f32(where(q + 1 <= k, -inf:bf16, 0.0:bf16)) + f32(B[k])",
        ("B: bf16[4096]",),
        sizes=FULL,
        dtype="bf16",
    )
    program = parse_program(text)
    schedule = schedules(text)[-1]
    step = gpu.Step.of(program, 0, [schedule], "off")
    facts = gpu.Facts(tuple((b.name, len(b.shape) - 1) for b in step.kernel.reads))
    made = compile_kernel(step.source(schedule, step.kernel, facts), step.kernel, schedule, 90)
    assert "_widen(" in step.source(schedule, step.kernel, facts).text
    assert made.mma.get("wgmma.mma_async")


def test_refusals_say_why() -> None:
    def reason(text: str) -> str:
        program = parse_program(text)
        (loop,) = program.loops
        first = gpu.schedules_for(program, loop, HINTS, HOPPER)[0]
        kernel = lower(loop, replace(first, row_block=128, consumers=2), "k")
        with pytest.raises(CompileError) as found:
            divide(kernel, {b.name for b in kernel.reads})
        return str(found.value)

    assert "32 bits" in reason(attention(sizes=FULL).replace("f16", "f32"))
    assert "computed" in reason(
        attention("sum(d: Q[b, h, q, d] * tanh(K[b, h, k, d]))", sizes=FULL)
    )


def test_only_described_buffers_are_copied() -> None:
    program = parse_program(PROGRAMS["vanilla_64"])
    (loop,) = program.loops
    schedule = schedules(PROGRAMS["vanilla_64"])[0]
    kernel = lower(loop, schedule, "k")
    with pytest.raises(CompileError):
        emit(kernel, Choices({"Q": 3, "K": 3}), schedule.consumers, schedule.stages)
