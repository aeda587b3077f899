"""A kernel that is launched again is handed what Triton's own launcher would hand it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flashlight.codegen.triton import Parameter
from flashlight.runtime import arguments, relaunch

pytest.importorskip("triton")
METAS = [
    {"swizzle": 3, "elem_size": 2, "elem_type": 6, "block_size": [64, 64], "fp4_padded": False},
    {"swizzle": 2, "elem_size": 2, "elem_type": 6, "block_size": [1, 32], "fp4_padded": False},
]
PARAMETERS = (
    Parameter("q_tiles", "descriptor", "q", tile=((0, 64), (1, 64))),
    Parameter("k_tiles", "descriptor", "k", tile=((0, 1), (1, 32))),
    Parameter("q", "pointer", "q"),
    Parameter("k", "pointer", "k"),
    Parameter("q_s0", "stride", "q", axis=0),
    Parameter("queue", "queue", ""),
    Parameter("tiles", "count", ""),
)
SIGNATURE = ("tensordesc<bf16>", "tensordesc<bf16>", "*bf16", "*bf16", "i32", "*i32", "i32")


def tensors(rows: int) -> dict[str, torch.Tensor]:
    return {name: torch.zeros(rows, 64, dtype=torch.bfloat16) for name in ("q", "k")}


class Described:
    """As a tile descriptor of Gluon's, without what checks it."""

    def __init__(self, t: torch.Tensor) -> None:
        self.base, self.shape, self.strides, self.padding = (
            t,
            list(t.shape),
            list(t.stride()),
            "zero",
        )


@pytest.fixture
def zero(monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """A device that is not there; the counter of all launches."""
    import triton

    def encode(*a: Any) -> Any:
        return "encoded", a[0], tuple(a[4])

    active = SimpleNamespace(utils=SimpleNamespace(fill_tma_descriptor=encode))
    monkeypatch.setattr(triton.runtime, "driver", SimpleNamespace(active=active))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 77, raising=False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    counter = torch.zeros(1, dtype=torch.int32)
    monkeypatch.setattr(relaunch, "counter", lambda _: counter)
    return counter


def kernel(seen: list[tuple[Any, ...]], **options: Any) -> Any:
    """What Triton makes of a kernel, down to its C function, which keeps what it is called with."""
    from triton.backends.nvidia.driver import CudaLauncher, wrap_handle_tensordesc

    launcher = object.__new__(CudaLauncher)
    signature = dict(enumerate(SIGNATURE))
    launcher.launch = wrap_handle_tensordesc(lambda *a: seen.append(a), signature, METAS)
    launcher.launch_cooperative_grid, launcher.launch_pdl = False, False
    launcher.global_scratch_size = options.get("scratch", 0)
    launcher.profile_scratch_size = 0
    metadata = SimpleNamespace(tensordesc_meta=options.get("metas", METAS))

    class Compiled:
        run, function, packed_metadata, n_spills = launcher, 55, (4, 1, 1000), 3

        def __init__(self) -> None:
            self.metadata = metadata

        def launch_metadata(self, grid: Any, stream: int) -> str:
            return f"metadata of {stream}"

        def __getitem__(self, grid: tuple[int, int, int]) -> Any:
            return lambda *a: seen.append(("Triton's own way", grid, a))

    return Compiled()


def of(compiled: Any, given: dict[str, torch.Tensor]) -> relaunch.Launch:
    first = [Described(given["q"]), Described(given["k"]), given["q"], given["k"], 64, None, 12]
    return relaunch.Launch.of(compiled, 12, PARAMETERS, first, given, scratch=False)


def test_as_by_triton(zero: torch.Tensor) -> None:
    seen: list[tuple[Any, ...]] = []
    compiled = kernel(seen)
    launch = of(compiled, tensors(128))
    assert launch.spills == 3
    for _ in range(2):  # the second time, descriptors are known
        other = tensors(128)
        launch(list(other.values()))
        q, k = other.values()
        head = (12, 1, 1, 77, 55, False, False, None, None, (4, 1, 1000), None, None, None)
        compiled.run.launch(
            *head, Described(q), Described(k), q.data_ptr(), k.data_ptr(), 64, zero.data_ptr(), 12
        )
        ours, theirs = seen[-2:]
        assert ours == theirs


def test_without_descriptors(zero: torch.Tensor) -> None:
    """Triton's C function takes arguments that it compiled in, as strides of 1 are, like any other."""
    from triton.backends.nvidia import driver

    parameters = (
        Parameter("q", "pointer", "q"),
        Parameter("y", "pointer", "y"),
        Parameter("q_s0", "stride", "q", axis=0),
        Parameter("q_s1", "stride", "q", axis=1),
        Parameter("S", "size", "S"),
    )
    signature = dict(enumerate(("*bf16", "*bf16", "i32", "constexpr", "i32")))
    assert f'"{driver._BASE_ARGS_FORMAT}OOiOi"' in driver.make_launcher({(3,): 1}, signature, None)
    seen: list[tuple[Any, ...]] = []
    compiled = kernel(seen, metas=None)
    compiled.run.launch = driver.wrap_handle_tensordesc(lambda *a: seen.append(a), signature, None)
    given = {name: torch.zeros(128, 64, dtype=torch.bfloat16) for name in ("q", "y")}
    first = [given["q"], given["y"], 64, 1, 128]
    launch = relaunch.Launch.of(compiled, 12, parameters, first, given, scratch=False)
    again = [torch.zeros(128, 64, dtype=torch.bfloat16) for _ in given]
    launch(again)
    head = (12, 1, 1, 77, 55, False, False, None, None, (4, 1, 1000), None, None, None)
    assert seen == [(*head, again[0].data_ptr(), again[1].data_ptr(), 64, 1, 128)]


def test_hooks_are_called(zero: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton import knobs

    seen: list[tuple[Any, ...]] = []
    given = tensors(128)
    chain = SimpleNamespace(calls=[print])
    monkeypatch.setattr(
        knobs, "runtime", SimpleNamespace(launch_enter_hook=chain, launch_exit_hook=None)
    )
    launch = of(kernel(seen), given)
    launch(list(given.values()))
    assert seen[-1][10:13] == ("metadata of 77", chain, None)


@pytest.mark.parametrize(
    "other", [{"scratch": 128}, {"metas": None}, {"metas": METAS[:1]}, {"release": "3.7.0"}]
)
def test_what_is_not_known_is_left_to_triton(
    zero: torch.Tensor, other: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import triton

    seen: list[tuple[Any, ...]] = []
    given = tensors(128)
    monkeypatch.setattr(triton, "__version__", other.get("release", triton.__version__))
    launch = of(kernel(seen, **other), given)
    again = tensors(128)
    launch(list(again.values()))
    what, grid, values = seen[-1]
    assert (what, grid) == ("Triton's own way", (12, 1, 1))
    assert values[0].base is again["q"]
    assert values[2:] == (
        again["q"].data_ptr(), again["k"].data_ptr(), 64, zero.data_ptr(), 12,
    )  # fmt: skip


def test_descriptors_are_forgotten_some_time(
    zero: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relaunch, "MOST", 2)
    encoded = relaunch._Encoded(arguments.based(Described(torch.zeros(1)), None), METAS[0])
    held = [torch.zeros(64, 64) for _ in range(5)]
    assert [encoded(t)[1] for t in held] == [t.data_ptr() for t in held]
    assert len(encoded.known) <= 2
