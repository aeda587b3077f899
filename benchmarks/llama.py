"""A whole language model from transformers: eager, torch.compile and Flashlight, in one run.

    python benchmarks/llama.py [--layers 16] [--length 4096] [--out FILE.json]

The LLaMA-3.2-1B configuration with random weights and `attn_implementation="eager"`, bf16. Logits are compared with the same
model in float32; time and peak memory are of one forward.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.table import Table

import flashlight
from flashlight.bench.measure import relative_error, side_by_side
from flashlight.bench.record import machine

LLAMA_1B = {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "rope_theta": 500000.0,
    "max_position_embeddings": 131072,
    "use_cache": False,
    "tie_word_embeddings": True,
}
SMALL = {**LLAMA_1B, "vocab_size": 512, "hidden_size": 256, "intermediate_size": 512}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 1}


def model(layers: int, device: torch.device, *, small: bool) -> torch.nn.Module:
    config = transformers.LlamaConfig(**(SMALL if small else LLAMA_1B), num_hidden_layers=layers)
    torch.manual_seed(0)
    with torch.device(device):
        built = transformers.LlamaForCausalLM._from_config(config, attn_implementation="eager")
    return built.eval().requires_grad_(False)


def peak(call: Any, device: torch.device) -> float | None:
    """MiB allocated at most during one call, beyond what is there before it."""
    if device.type != "cuda":
        return None
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - before) / 2**20


@torch.inference_mode()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument(
        "--small", action="store_true", help="narrow layers, for a machine without a GPU"
    )
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    device, dtype = torch.device(a.device), getattr(torch, a.dtype)

    wide = model(a.layers, device, small=a.small)
    ids = torch.randint(5, wide.config.vocab_size, (a.batch, a.length), device=device)
    exact = wide(ids).logits.float()
    for p in (
        wide.parameters()
    ):  # not the buffers: rotary frequencies of 16 bits would be the only error to be seen
        p.data = p.data.to(dtype)
    net = wide
    call = lambda f: lambda: f(ids).logits  # noqa: E731
    systems = {
        "eager": call(net),
        "torch.compile": call(torch.compile(net)),
        "flashlight": call(torch.compile(net, backend="flashlight")),
    }
    rows: dict[str, dict[str, Any]] = {}
    for name, f in systems.items():
        torch._dynamo.reset()
        start = time.perf_counter()
        error = relative_error(f().float(), exact)
        rows[name] = {
            "error": error,
            "first_call_s": time.perf_counter() - start,
            "peak_mib": peak(f, device),
        }
    times = side_by_side(systems, device=device, rounds=3, milliseconds=300)
    for name, timing in times.items():
        rows[name]["ms"] = timing.median
    torch._dynamo.reset()
    report = flashlight.explain(net, ids)
    kernels = len(report.kernels)
    allowed = 2 * rows["eager"]["error"] + 4 * torch.finfo(dtype).eps
    correct = rows["flashlight"]["error"] <= allowed

    table = Table(title=f"Llama, {a.layers} layers, {a.batch} x {a.length} tokens, {a.dtype}")
    for column in ("", "ms", "peak MiB", "error against float32", "first call, s"):
        table.add_column(column, justify="right")
    for name, row in rows.items():
        mib = "-" if row["peak_mib"] is None else f"{row['peak_mib']:.0f}"
        table.add_row(
            name, f"{row['ms']:.2f}", mib, f"{row['error']:.2e}", f"{row['first_call_s']:.1f}"
        )
    console = Console()
    console.print(table)
    console.print(
        f"{kernels} fused kernels for {a.layers} layers; " + ("correct" if correct else "WRONG")
    )
    for refusal in report.refusals:
        console.print(str(refusal), markup=False)
    if a.out:
        facts = {"machine": machine(device), "rows": rows, "kernels": kernels, "correct": correct}
        a.out.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return not correct


if __name__ == "__main__":
    raise SystemExit(main())
