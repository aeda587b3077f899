"""What `make demo` shows: one attention variant in plain PyTorch becomes one kernel; values, time and memory beside eager."""

import math
import statistics
import sys
import time
from pathlib import Path

import torch

import flashlight
from flashlight.backend import flashlight as backend


def attention(q, k, v, slopes):
    """Causal attention with ALiBi: any maths, written plainly."""
    s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    i = torch.arange(s.shape[-1], device=s.device)
    s = s + slopes[:, None, None] * (i[None, :] - i[:, None])
    s = s.masked_fill(i[None, :] > i[:, None], -torch.inf)
    return torch.softmax(s, -1).to(v.dtype) @ v


def inputs(device):
    batch, heads, length, dim = (4, 16, 4096, 64) if device == "cuda" else (1, 8, 1024, 64)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    gen = torch.Generator(device).manual_seed(0)
    q, k, v = (
        torch.randn(batch, heads, length, dim, device=device, dtype=dtype, generator=gen)
        for _ in range(3)
    )
    slopes = torch.exp2(-8 * torch.arange(1, heads + 1, device=device) / heads)
    return q, k, v, slopes


def milliseconds(call, device, seconds=1.5):
    """Median time of a call."""
    call()
    times = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def workspace(call, device):
    """Peak MiB of one call beyond what was there before it; None where the system does not say."""
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    try:
        Path("/proc/self/clear_refs").write_text("5")  # Linux: start a new peak
        before = _status("VmRSS")
        call()
        return (_status("VmHWM") - before) / 1024
    except OSError:
        return None


def _status(field):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise OSError(field)


def error(x, exact):
    return ((x.double() - exact).norm() / exact.norm()).item()


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    args = inputs(device)
    name = (
        torch.cuda.get_device_name()
        if device == "cuda"
        else f"CPU, {torch.get_num_threads()} threads"
    )
    print(f"{attention.__doc__}\n{name}, q {tuple(args[0].shape)} {args[0].dtype}\n")

    with torch.no_grad():
        report = flashlight.explain(attention, *args)
        print(report, "\n")

        ours = torch.compile(attention, backend=backend, dynamic=False)
        stock = torch.compile(attention, dynamic=False)
        got, eager = ours(*args), attention(*args)
        one = [a[-1:, -1:] for a in args[:3]] + [args[3][-1:]]
        exact = attention(*(a.double() for a in one))
        mine, theirs = error(got[-1:, -1:], exact), error(eager[-1:, -1:], exact)
        good = mine <= 2 * theirs + 4 * torch.finfo(eager.dtype).eps
        print(
            f"error against float64: {mine:.1e}, eager's {theirs:.1e}: {'ok' if good else 'WRONG'}\n"
        )

        print(f"{'':14s}{'ms':>10s}{'speed-up':>10s}{'workspace':>14s}")
        base = None
        for label, fn in (("eager", attention), ("torch.compile", stock), ("flashlight", ours)):
            ms = milliseconds(lambda fn=fn: fn(*args), device)
            base = base or ms
            peak = workspace(lambda fn=fn: fn(*args), device)
            memory = "" if peak is None else f"{peak:.1f} MiB"
            print(f"{label:14s}{ms:10.2f}{base / ms:9.1f}x{memory:>14s}")
    count = len(report.kernels)
    print(f"\n{count} kernel{'' if count == 1 else 's'}")
    return 0 if good and count == 1 and not report.materialized else 1


if __name__ == "__main__":
    sys.exit(main())
