"""Generated Triton kernels, compiled for devices that are not there: tensor cores are used, nothing spills, shared memory fits."""

from __future__ import annotations

from collections.abc import Container

import pytest

from flashlight.codegen.lower import lower
from flashlight.codegen.triton import Precision
from flashlight.ir.text import parse_program
from flashlight.rewrite.schedule import AMPERE, HOPPER, Device
from flashlight.runtime import gpu
from tests.support.cubin import Resources, compile_kernel
from tests.support.loops import CASES, DOT, attention

pytest.importorskip("triton")
pytestmark = pytest.mark.slow
FULL = (4, 16, 4096, 4096)


def _differential(H: int, D: int) -> str:
    return (
        CASES["differential"]
        .program.replace("b: 2, h: 2", f"b: 4, h: {H}")
        .replace("bf16[2, 4,", f"bf16[4, {2 * H},")
        .replace("bf16[2, 2,", f"bf16[4, {H},")
        .replace("h + 2", f"h + {H}")
        .replace("d: 32, e: 64", f"d: {D}, e: {2 * D}")
        .replace("S, 32]", f"S, {D}]")
        .replace("S, 64]", f"S, {2 * D}]")
        .replace("f32[2]", f"f32[{H}]")
    )


PROGRAMS = {
    "vanilla_64": attention(sizes=FULL),
    "vanilla_128": attention(sizes=FULL, D=128, E=128),
    "causal_64": attention(f"where(k <= q, {DOT}, -inf)", sizes=FULL),
    "causal_128": attention(f"where(k <= q, {DOT}, -inf)", sizes=FULL, D=128, E=128),
    "softcap_64": attention(f"tanh({DOT} / 30.0) * 30.0", sizes=FULL),
    "alibi_64": attention(f"{DOT} + slopes[h] * f32(k - q)", ("slopes: f32[16]",), sizes=FULL),
    "differential_64": _differential(16, 64),
    "differential_128": _differential(8, 128),
    "any_length": CASES["vanilla"].program,
    "any_length_causal": CASES["causal"].program,
    "window": CASES["window"].program,
    "evoformer": CASES["evoformer"].program,
    "grouped": CASES["grouped"].program,
    "head_dim_40": CASES["head_dim_40"].program,
    "head_dim_576": CASES["head_dim_576"].program,
    "backward_keys": CASES["backward_keys"].program,
    "f32": CASES["f32"].program,
}
HINTS = {"S": 4096, "T": 4096, "N": 1024}
TARGETS: dict[int, tuple[Device, tuple[str, ...]]] = {
    80: (AMPERE, ("mma.sync",)),
    90: (HOPPER, ("wgmma.mma_async", "mma.sync")),
    100: (HOPPER, ("tcgen05.mma", "mma.sync")),
}


def compiled(
    text: str,
    capability: int,
    ones: Container[str] = (),
    choice: int = 0,
    precision: Precision = "tf32",
) -> Resources:
    program = parse_program(text)
    device, _ = TARGETS[capability]
    (loop,) = program.loops
    schedules = gpu.schedules_for(program, loop, HINTS, device)
    step = gpu.Step.of(program, 0, schedules, "off")
    ranks = {b.name: len(b.shape) for b in step.kernel.reads}
    facts = gpu.Facts(tuple((n, ranks[n] - 1) for n in step.readable), False, precision)
    schedule = step.schedules[choice]
    plan = lower(loop, schedule, step.name)
    return compile_kernel(step.source(schedule, plan, facts), plan, schedule, capability, ones=ones)


@pytest.mark.parametrize("capability", TARGETS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_resources(name: str, capability: int) -> None:
    device, instructions = TARGETS[capability]
    found = compiled(PROGRAMS[name], capability)
    assert found.stack == 0, f"spills {found.stack} bytes at {found.registers} registers"
    assert any(found.mma.get(i) for i in instructions), found.mma
    assert found.shared <= device.shared


F32 = {
    name: attention(sizes=FULL, D=D, E=D).replace("f16", "f32")
    for name, D in {"32": 32, "64": 64, "128": 128}.items()
}


@pytest.mark.parametrize("capability", TARGETS)
@pytest.mark.parametrize("name", F32)
def test_split_products_of_f32(name: str, capability: int) -> None:
    """One of the first schedules fits; the tuner passes over those that do not."""
    device, instructions = TARGETS[capability]
    tried = [compiled(F32[name], capability, choice=n, precision="tf32x3") for n in range(5)]
    fit = [t for t in tried if t.stack == 0 and t.shared <= device.shared]
    assert fit, tried
    assert all(any(t.mma.get(i) for i in instructions) for t in fit)


OF_SIZES = {
    "shifted": attention(f"where(k <= q + (T - S), {DOT}, -inf)"),
    "flipped": CASES["flipped"].program,
    "as_numbers": attention(f"where(!(S == 1), {DOT} * f32(T), {DOT} / f32(S))"),
    "wrapped": attention(
        "sum(d: Q[b, h, q, d] * K[b, h, where(I[k] < 0, I[k] + T, I[k]), d])", ("I: i64[T]",)
    ),
    "given": attention(extra=("give N (b, h, q) i64 = T",), outputs="O, N"),
}


@pytest.mark.parametrize("ones", ["S", "T", "ST"])
@pytest.mark.parametrize("name", OF_SIZES)
def test_sizes_of_one_are_constants(name: str, ones: str) -> None:
    """Triton 3.6's ptxas crashes on some of these schedules; then the tuner takes the next one."""
    from triton.runtime.errors import PTXASError

    for choice in range(3):
        try:
            found = compiled(OF_SIZES[name], 90, ones, choice)
        except PTXASError:
            continue
        assert found.stack == 0
        return
    pytest.fail("no schedule compiles")
