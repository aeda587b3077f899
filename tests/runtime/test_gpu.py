"""What the GPU runtime decides from tensors alone, without a device."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flashlight.errors import CompileError, Refusal
from flashlight.ir.text import parse_program
from flashlight.options import Options
from flashlight.rewrite.schedule import AMPERE, HOPPER, Schedule
from flashlight.rewrite.shapes import WRITTEN_OUT
from flashlight.rewrite.tile import candidates, instances
from flashlight.runtime import gpu, launch, op
from flashlight.runtime.tune import HOW_MANY, variations
from tests.support.loops import CASES, DOT, attention

HINTS = {"S": 4096, "T": 4096}


def test_descriptors_need_aligned_strides() -> None:
    t = torch.empty(2, 3, 40, 64, dtype=torch.float16)
    assert gpu.describable_axis(t) == 3
    assert gpu.describable_axis(t.transpose(1, 2)) == 3
    assert gpu.describable_axis(t.transpose(2, 3)) == 2
    assert gpu.describable_axis(t[..., :63]) == 3
    assert gpu.describable_axis(t[..., 1:]) == -1, "the base is not aligned"
    assert gpu.describable_axis(torch.empty(4, 63, dtype=torch.float16)) == -1
    assert gpu.describable_axis(torch.empty(4, 64)[:, ::2]) == -1
    assert gpu.describable_axis(torch.empty(1, 64).expand(4, 64)) == -1


def test_axes_of_one_element() -> None:
    assert gpu.unit_axis((1, 8), (8, 1), 2) == 1
    assert gpu.unit_axis((1, 8), (0, 1), 2) == 1
    assert gpu.unit_axis((1, 8), (7, 1), 2) == -1, "a descriptor holds the stride all the same"
    assert gpu.unit_axis((8, 1), (1, 8), 2) == 0
    assert gpu.unit_axis((1, 1), (3, 5), 2) == -1


def _meta(shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    return torch.empty(1, device="meta").as_strided(shape, strides)


def test_offsets_within_tiles_beyond_31_bits() -> None:
    assert not gpu.is_wide(torch.empty(4, 64), (0, 1))
    assert gpu.is_wide(_meta((1 << 9, 1 << 10), (1 << 23, 1)), (0, 1))
    assert gpu.is_wide(_meta((1 << 11, 1 << 21), (1 << 21, 1)), (0, 1)), "1024 rows of a tile"
    assert not gpu.is_wide(_meta((1 << 9, 1 << 10), (1 << 23, 1)), (1,)), "one row of it at a time"


def test_tiles_lie_along_rows_columns_and_features() -> None:
    step = _step(attention())
    assert step.tiled["K"] == {2, 3}, "batches and heads are single positions"
    assert step.tiled["O"] == {2, 3}


def test_precision_follows_torch() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        assert gpu.f32_precision() == "tf32x3"
        assert gpu.f32_precision("ieee") == "ieee"
        torch.set_float32_matmul_precision("high")
        assert gpu.f32_precision() == "tf32"
    finally:
        torch.set_float32_matmul_precision(before)


def test_few_rows_are_cut_along_the_keys() -> None:
    program = parse_program(CASES["decode"].program)
    cut = gpu.with_split_keys(program, {"S": 1, "T": 16384}, HOPPER)
    assert len(cut.loops) == 2
    first = candidates(cut.loops[0], {"S": 1, "T": 16384}, HOPPER)[0]
    assert instances(first, {"S": 1, "T": 16384}) >= HOPPER.units
    assert gpu.with_split_keys(program, HINTS, HOPPER) is program


def test_parts_give_no_more_than_the_largest_tensor() -> None:
    few = attention(sizes=(1, 8, 1024, 1024))
    program = parse_program(few)
    assert instances(candidates(program.loops[0], {}, HOPPER)[0], {}) < HOPPER.units
    assert gpu.with_split_keys(program, {}, HOPPER) is program
    longer = parse_program(attention(sizes=(1, 8, 1024, 8192)))
    assert len(gpu.with_split_keys(longer, {}, HOPPER).loops) == 2


def test_document_masks_are_looked_at_first() -> None:
    text = attention(f"where(I[b, q] == J[b, k], {DOT}, -inf)", ("I: i64[2, S]", "J: i64[2, T]"))
    program, known = gpu.with_ranges(parse_program(text), HINTS, HOPPER)
    assert len(program.loops) == 2
    (bounds,) = known.values()
    schedules = gpu.schedules_for(program, program.loops[1], HINTS, HOPPER, known)
    assert all(s.bounds == bounds for s in schedules)
    short, nothing = gpu.with_ranges(parse_program(_fixed(text, 64)), {}, HOPPER)
    assert len(short.loops) == 1
    assert not nothing


def _fixed(text: str, size: int) -> str:
    """A program whose lengths S and T are a number."""
    return re.sub(r"\b[ST]\b", str(size), re.sub(r"(?m)^ *size .*\n", "", text))


def test_sizes_that_change_are_planned_for_as_long() -> None:
    text = attention(DOT)
    (fixed,), (changing,) = (parse_program(t).loops for t in (_fixed(text, 40), text))
    few, now = {"S": 3, "T": 40}, {"S": 40, "T": 40}
    assert candidates(fixed, {}, HOPPER)[0].row_block < 64
    assert candidates(changing, now, HOPPER) == candidates(changing, HINTS, HOPPER)
    assert candidates(changing, few, HOPPER)[0].row_block == 16
    grouped = parse_program(CASES["decode"].program)
    assert len(gpu.with_split_keys(grouped, {"S": 1, "T": 40}, HOPPER).loops) == 2


@pytest.mark.parametrize("dims", [16, 64, 256])
def test_rows_of_f32_products_are_not_shared_by_two_groups_of_warps(dims: int) -> None:
    """Triton 3.6 compiles such kernels to wrong ones for Hopper."""

    def shared(dtype: str) -> list[Schedule]:
        text = attention(D=dims, E=dims).replace("f16", dtype)
        found = variations(candidates(parse_program(text).loops[0], HINTS, HOPPER), "max")
        return [s for s in found if s.row_block == 64 and s.warps == 8]

    assert not shared("f32")
    assert shared("f16")


def test_other_devices_multiply_16_rows_at_once() -> None:
    text = attention().replace("f16", "f32")
    found = candidates(parse_program(text).loops[0], HINTS, AMPERE)
    assert any(s.row_block == 64 and s.warps == 8 for s in found)


def test_sums_over_pairs_that_are_written_out_come_without_descriptors() -> None:
    gap = "sum(p: (P[b, h, q, p] - R[b, h, k, p]) * (P[b, h, q, p] - R[b, h, k, p]))"
    points = ("P: f16[2, 2, S, 3]", "R: f16[2, 2, T, 3]")
    program = parse_program(attention(f"{DOT} - {gap}", points, dims=", p: 3"))
    found = candidates(program.loops[0], HINTS, HOPPER)
    assert not any(s.tma for s in found)
    tried = [(s.row_block, s.col_block, s.warps, s.stages) for s in found[: HOW_MANY["quick"]]]
    assert set(WRITTEN_OUT) <= set(tried)


@pytest.mark.parametrize(
    ("score", "descending"),
    [(f"where(k <= q, {DOT}, -inf)", True), (f"where(k >= q, {DOT}, -inf)", False)],
    ids=["causal", "anticausal"],
)
def test_heaviest_tiles_first(score: str, descending: bool) -> None:
    program = parse_program(attention(score))
    schedule = gpu.schedules_for(program, program.loops[0], HINTS, HOPPER)[0]
    assert schedule.bounds
    assert schedule.descending is descending


# -- Launches, with a launcher that only writes down what it is given.

SMALL = {"S": 70, "T": 50}


def _step(text: str, sizes: dict[str, int] = SMALL) -> gpu.Step:
    program = parse_program(text)
    schedules = gpu.schedules_for(program, program.loops[0], sizes, HOPPER)
    return gpu.Step.of(program, 0, schedules, "off")


def _tensors(step: gpu.Step, sizes: dict[str, int] = SMALL) -> dict[str, torch.Tensor]:
    buffers = (*step.kernel.reads, *step.kernel.writes)
    return {b.name: gpu.empty(b, sizes, torch.device("cpu")) for b in buffers}


class Launcher:
    """Stands for every compiled kernel: `fails` says which schedules do not run."""

    def __init__(self, fails: Callable[[Schedule], Exception | None] = lambda _: None) -> None:
        self.fails = fails
        self.launched: list[tuple[Schedule, tuple[int, ...], tuple[Any, ...]]] = []

    def start(self, plan: launch.Plan, tensors: Any, sizes: Any) -> Any:
        error = self.fails(plan.schedule)
        if error is not None:
            raise error
        launched = self.launched

        class Function:
            def __getitem__(self, grid: tuple[int, ...]) -> Any:
                def run(*a: Any, **_: Any) -> Any:
                    launched.append((plan.schedule, grid, a))
                    return self

                return run

        replaced = launch.Plan(plan.schedule, plan.kernel, plan.source, Function())
        return self.really(replaced, tensors, sizes)

    really = staticmethod(launch.start)

    @property
    def schedules(self) -> list[Schedule]:
        return [schedule for schedule, _, _ in self.launched]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Launcher], Launcher]:
    """Makes a launcher take the place of the device."""
    pytest.importorskip("triton")
    monkeypatch.setenv("FLASHLIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(gpu, "load_function", lambda source: None)
    monkeypatch.setattr(launch, "set_allocator", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "none")

    def put(launcher: Launcher) -> Launcher:
        monkeypatch.setattr(gpu, "start", launcher.start)
        return launcher

    return put


def _out_of_resources() -> Exception:
    from triton.runtime.errors import OutOfResources

    return OutOfResources(1 << 20, 227 << 10, "shared memory")


def test_arguments_are_pointers_strides_and_sizes(install: Any) -> None:
    launcher = install(Launcher())
    step = _step(attention())
    tensors = _tensors(step)
    tensors["K"] = tensors["K"].transpose(1, 2).contiguous().transpose(1, 2)
    step.launch(tensors, SMALL)
    step.launch(tensors, SMALL)
    (first, grid, arguments), (second, _, _) = launcher.launched[-2:]
    assert first is second
    assert grid == (instances(first, SMALL),)
    (plan,) = step.plans.values()
    expected: list[Any] = []
    for p in plan.source.parameters:
        match p.kind:
            case "pointer":
                expected.append(tensors[p.of])
            case "stride":
                expected.append(tensors[p.of].stride(p.axis))
            case "size":
                expected.append(SMALL[p.of])
    assert all(a is e or a == e for a, e in zip(arguments, expected, strict=True))


def test_no_rows_launch_nothing(install: Any) -> None:
    launcher = install(Launcher())
    sizes = {"S": 0, "T": 50}
    step = _step(attention(), sizes)
    step.launch(_tensors(step, sizes), sizes)
    assert not launcher.launched
    sizes = {"S": 70, "T": 0}
    step.launch(_tensors(step, sizes), sizes)
    assert launcher.launched, "no columns still give rows"


def test_a_schedule_that_does_not_fit_is_passed_over(install: Any) -> None:
    step = _step(attention(), HINTS)
    bad = step.schedules[: len(step.schedules) - 1]
    assert len(bad) > 5, "more than are tried where all run"
    launcher = install(Launcher(lambda s: _out_of_resources() if s in bad else None))
    step.launch(_tensors(step), SMALL)
    assert set(launcher.schedules) == {step.schedules[-1]}


@pytest.mark.parametrize(
    "error", [RuntimeError("PassManager::run failed"), None], ids=["passes", "resources"]
)
def test_where_no_schedule_runs_the_program_does(install: Any, error: Exception | None) -> None:
    install(Launcher(lambda _: error or _out_of_resources()))
    program = parse_program(CASES["vanilla"].program)
    built = gpu.build(program, torch.device("cuda"), Options(), SMALL)
    assert not isinstance(built, Refusal)
    inputs = [gpu.empty(b, SMALL, torch.device("cpu")).normal_() for b in program.inputs]
    sizes = [SMALL[s.name] for s in program.sizes]
    with pytest.raises(CompileError):
        built(inputs, sizes)
    token = op.token_of(program, SMALL, Options())
    op._built[token, "cpu"] = built
    with pytest.warns(UserWarning, match="without kernels"):
        results = op.run(inputs, sizes, token)
    assert [tuple(t.shape) for t in results] == [(2, 2, 70, 64)]
    assert isinstance(op._built.pop((token, "cpu")), Refusal)


def test_memory_that_runs_out_is_not_ours(install: Any) -> None:
    install(Launcher(lambda _: torch.OutOfMemoryError("none left")))
    step = _step(attention())
    with pytest.raises(torch.OutOfMemoryError):
        step.launch(_tensors(step), SMALL)


def test_a_remembered_schedule_is_tried_again(install: Any) -> None:
    first = _step(attention())
    launcher = install(Launcher())
    first.launch(_tensors(first), SMALL)
    chosen = launcher.schedules[0]
    again = install(Launcher(lambda s: _out_of_resources() if s == chosen else None))
    second = _step(attention())
    second.launch(_tensors(second), SMALL)
    assert again.schedules
    assert chosen not in again.schedules


def test_schedules_are_remembered_by_sizes_types_and_dims(install: Any) -> None:
    facts = gpu.Facts()
    texts = [
        attention(sizes=(1, 2, 64, 64)),
        attention(sizes=(1, 2, 64, 256)),
        attention(sizes=(1, 2, 64, 64), D=128, E=128),
        attention(sizes=(1, 2, 64, 64)).replace("K: f16", "K: bf16"),
    ]
    keys = []
    for text in texts:
        step = _step(text, {})
        keys.append(step.key(facts, _tensors(step, {}), {}))
    assert all(a != b for n, a in enumerate(keys) for b in keys[:n])


def test_kernels_are_compiled_side_by_side_before_they_are_tried(install: Any) -> None:
    """What cannot be compiled stops no other: its own trial says so."""
    step = _step(attention())
    tensors = _tensors(step)
    seen: list[tuple[Schedule, dict[str, Any]]] = []

    class Function:
        def __init__(self, schedule: Schedule) -> None:
            self.schedule = schedule

        def warmup(self, *arguments: Any, grid: Any, **options: Any) -> None:
            seen.append((self.schedule, options))
            if len(seen) == 1:
                raise RuntimeError("PassManager::run failed")

    made = [step.plan(s, step.facts(tensors)) for s in step.schedules[:3]]
    plans = [launch.Plan(p.schedule, p.kernel, p.source, Function(p.schedule)) for p in made]
    launch.compile_all(plans, tensors, SMALL)
    wanted = [(s, {"num_warps": s.warps, "num_stages": s.stages}) for s in step.schedules[:3]]
    assert seen == wanted
