"""Packed documents whose borders change at every step: Flashlight beside FlexAttention, in one run.

    python benchmarks/packed.py [--tokens 131072] [--documents 4096] [--out FILE.json]

The program is `flashlight.programs.heads.document_causal` in bf16. Both systems are compiled once; then every step has ids of its
own. FlexAttention must build a block mask for each, which is counted and not counted. Results are compared with attention over
each document alone, in float64, for some documents of the last step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import flashlight  # noqa: F401
from flashlight.bench.measure import relative_error, workspace
from flashlight.bench.record import machine
from flashlight.programs.heads import causal, document_causal
from flashlight.programs.variants import Shape, document_ids


def milliseconds(step: Callable[[], object], device: torch.device) -> float:
    """Wall time of one step, the device's work included."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    start = time.perf_counter()
    step()
    wait()
    return (time.perf_counter() - start) * 1e3


def error_on_documents(out: Tensor, q: Tensor, k: Tensor, v: Tensor, ids: Tensor) -> float:
    """The largest error of any of 64 documents, against each alone."""
    errors = []
    _, lengths = torch.unique_consecutive(ids[0], return_counts=True)
    ends = lengths.cumsum(0).tolist()
    begins = [0, *ends[:-1]]
    for a, b in list(zip(begins, ends, strict=True))[:: max(1, len(ends) // 64)]:
        alone = causal(*(t[:, :, a:b].double() for t in (q, k, v)))
        errors.append(relative_error(out[:, :, a:b], alone))
    return max(errors)


@torch.inference_mode()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=131072)
    parser.add_argument("--documents", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    device = torch.device(a.device)
    q, k, v = (
        torch.randn(1, a.heads, a.tokens, a.head_dim, device=device, dtype=torch.bfloat16)
        for _ in range(3)
    )
    shape = Shape(1, a.heads, a.heads, a.tokens, a.head_dim)
    steps = [document_ids(shape, device, n, a.documents) for n in range(a.steps)]

    counted = CompileCounterWithBackend("flashlight")
    ours = torch.compile(document_causal, backend=counted)
    build = torch.compile(create_block_mask)
    kernel = torch.compile(flex_attention)

    def mask(ids: Tensor) -> object:
        def same(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return (ids[b, i] == ids[b, j]) & (j <= i)

        return build(same, 1, None, a.tokens, a.tokens, device=device)

    masks = [mask(ids) for ids in steps]
    systems: dict[str, Callable[[int], Tensor]] = {
        "flashlight": lambda n: ours(q, k, v, steps[n]),
        "flex, mask built before": lambda n: kernel(q, k, v, block_mask=masks[n]),
        "flex, mask built each step": lambda n: kernel(q, k, v, block_mask=mask(steps[n])),
    }
    rows: dict[str, dict[str, float | None]] = {}
    for name, step in systems.items():
        out = step(a.steps - 1)
        rows[name] = {
            "ms": statistics.median(
                milliseconds(lambda n=n, step=step: step(n), device) for n in range(a.steps)
            ),
            "workspace_mib": workspace(lambda step=step: step(0), device),
            "error": error_on_documents(out, q, k, v, steps[-1]),
        }
    compilations = len(counted.graphs)

    title = f"{a.documents} documents, {a.tokens} tokens, {a.heads} heads of {a.head_dim}, bf16"
    table = Table(title=title)
    for column in ("", "ms a step", "workspace MiB", "error against float64"):
        table.add_column(column, justify="right")
    for name, row in rows.items():
        mib = "-" if row["workspace_mib"] is None else f"{row['workspace_mib']:.0f}"
        table.add_row(name, f"{row['ms']:.3f}", mib, f"{row['error']:.2e}")
    console = Console()
    console.print(table)
    console.print(f"{compilations} compilation for {a.steps} steps of different ids")
    if a.out:
        facts = {"machine": machine(device), "rows": rows, "compilations": compilations}
        a.out.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return 0 if compilations == 1 and rows["flashlight"]["error"] < 4 * 7.8e-3 else 1


if __name__ == "__main__":
    raise SystemExit(main())
