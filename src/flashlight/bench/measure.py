"""Measuring: times side by side, memory, errors against float64, and the machine's two ceilings."""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from flashlight.bench.cells import Cell
from flashlight.programs.variants import VARIANTS, Args

# Unit roundoff; a result may have twice eager's error and four of these.
ROUNDING = {
    torch.float16: 9.8e-4,
    torch.bfloat16: 7.8e-3,
    torch.float32: 1.2e-7,
    torch.float64: 2e-15,
}


@dataclass(frozen=True)
class Timing:
    """Milliseconds: the median of the rounds' medians, the fastest and the slowest round."""

    median: float
    low: float
    high: float


def side_by_side(
    calls: Mapping[str, Callable[[], object]],
    *,
    device: torch.device,
    rounds: int = 3,
    milliseconds: float = 40.0,
) -> dict[str, Timing]:
    """Time every call in each round, in turn, so that a drift of the clock touches all alike."""
    once = _on_cuda if device.type == "cuda" else _on_cpu
    seen: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            seen[name].append(once(call, milliseconds))
    return {
        name: Timing(statistics.median(times), min(times), max(times))
        for name, times in seen.items()
    }


def _on_cuda(call: Callable[[], object], milliseconds: float) -> float:
    from triton.testing import do_bench

    return float(
        do_bench(call, warmup=int(milliseconds / 4), rep=int(milliseconds), return_mode="median")
    )


def _on_cpu(call: Callable[[], object], milliseconds: float) -> float:
    """At least three calls, or as many as a second holds."""
    times: list[float] = []
    call()
    begin = time.perf_counter()
    while True:
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
        spent = (time.perf_counter() - begin) * 1e3
        if spent > (milliseconds if len(times) >= 3 else 1000):
            return statistics.median(times)


def replayed(call: Callable[[], object]) -> Callable[[], object]:
    """The call as a CUDA graph: what remains is the device's own time, as where a decoder replays its steps.

    Raises what capturing raises (RuntimeError, mostly).
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def workspace(call: Callable[[], object], device: torch.device) -> float | None:
    """Peak memory in MiB that one call takes beyond its inputs and its result; None where the system does not say.

    On a CPU it is the peak of the whole process (Linux only).
    """
    gc.collect()
    try:
        peak, out = peak_on_cuda(call, device) if device.type == "cuda" else _peak_on_cpu(call)
    except OSError:
        return None
    size = out.numel() * out.element_size() if isinstance(out, Tensor) else 0
    return max(0.0, float(peak - size) / 2**20)


def peak_on_cuda(call: Callable[[], object], device: torch.device) -> tuple[int, object]:
    """Bytes allocated at most during a call beyond what is there before it, and its result."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    out = call()
    return torch.cuda.max_memory_allocated(device) - before, out


def _peak_on_cpu(call: Callable[[], object]) -> tuple[int, object]:
    """Bytes; glibc gives back what it holds first, or a call could be served from memory that an earlier one left."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # begins a new peak
    before = _status("VmRSS")
    out = call()
    return _status("VmHWM") - before, out


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(field)


def relative_error(x: Tensor, exact: Tensor) -> float:
    """Frobenius norm of the difference relative to the reference's; NaN anywhere makes it NaN."""
    norm = float(exact.double().norm())
    return float((x.double() - exact.double()).norm()) / (norm or 1.0)


@dataclass(frozen=True)
class Reference:
    """A part of a cell's result in float64, and eager's error on it in the cell's dtype."""

    exact: Tensor
    eager_error: float
    cell: Cell

    @property
    def allowed(self) -> float:
        return 2 * self.eager_error + 4 * ROUNDING[self.cell.dtype]

    def error(self, out: Tensor) -> float:
        return relative_error(VARIANTS[self.cell.variant].part_of(out), self.exact)


def reference(cell: Cell, args: Args) -> Reference:
    """Computes the part of the result in float64 and as eager does."""
    variant = VARIANTS[cell.variant]
    part = variant.part(args)
    exact = variant.fn(*(t.double() if t.is_floating_point() else t for t in part))
    return Reference(exact, relative_error(variant.fn(*part), exact), cell)


@dataclass(frozen=True)
class Limits:
    """What the machine reaches on a large product and on a large copy, measured at the start of a run.

    Attributes:
        tflops: by dtype name.
        gbytes: bytes read plus bytes written, per second, in 1e9.
    """

    tflops: Mapping[torch.dtype, float]
    gbytes: float

    def floor(self, dtype: torch.dtype, flops: float, size: float) -> float:
        """Milliseconds below which no kernel can be."""
        return max(flops / (self.tflops[dtype] * 1e9), size / (self.gbytes * 1e6))


def limits(device: torch.device, dtypes: set[torch.dtype]) -> Limits:
    """Measure both ceilings on random data."""
    n = 8192 if device.type == "cuda" else 1024
    rates = {}
    widens = device.type == "cpu"  # 16-bit operands, where the machine has no product for them
    for dtype in {*dtypes, torch.float32} if widens else dtypes:
        a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
        timing = side_by_side({"mm": lambda a=a, b=b: a @ b}, device=device, rounds=2)  # type: ignore[misc]
        rates[dtype] = 2 * n**3 / timing["mm"].low / 1e9
    if widens:
        rates = {d: max(rate, rates[torch.float32]) for d, rate in rates.items()}
    x = torch.randn((1 << 30 if device.type == "cuda" else 1 << 25) // 4, device=device)
    y = torch.empty_like(x)
    copy = side_by_side({"copy": lambda: y.copy_(x)}, device=device, rounds=2)["copy"]
    return Limits(rates, 2 * x.numel() * 4 / copy.low / 1e6)


def bytes_once(args: Args, out: Tensor) -> float:
    """Every input read once and the result written once."""
    return float(sum(t.numel() * t.element_size() for t in (*args, out)))
