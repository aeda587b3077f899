"""What `make demo` shows: one attention variant in plain PyTorch becomes one kernel; values, time and memory beside eager."""

import math
import sys

import torch

import flashlight
from flashlight.backend import flashlight as backend
from flashlight.bench.measure import relative_error, side_by_side, workspace


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
        mine, theirs = (relative_error(x[-1:, -1:], exact) for x in (got, eager))
        good = mine <= 2 * theirs + 4 * torch.finfo(eager.dtype).eps
        print(
            f"error against float64: {mine:.1e}, eager's {theirs:.1e}: {'ok' if good else 'WRONG'}\n"
        )

        calls = {
            label: lambda fn=fn: fn(*args)
            for label, fn in (("eager", attention), ("torch.compile", stock), ("flashlight", ours))
        }
        times = side_by_side(calls, device=torch.device(device), milliseconds=500)
        print(f"{'':14s}{'ms':>10s}{'speed-up':>10s}{'workspace':>14s}")
        for label, call in calls.items():
            ms = times[label].median
            used = workspace(call, torch.device(device))
            memory = "" if used is None else f"{used:.1f} MiB"
            print(f"{label:14s}{ms:10.2f}{times['eager'].median / ms:9.1f}x{memory:>14s}")
    count = len(report.kernels)
    print(f"\n{count} kernel{'' if count == 1 else 's'}")
    return 0 if good and count == 1 and not report.materialized else 1


if __name__ == "__main__":
    sys.exit(main())
