"""Models and blocks of transformers at their own sizes: eager, torch.compile and Flashlight, in one run.

    python benchmarks/blocks.py [NAME ...] [--small] [--out FILE.json]

Random weights, `attn_implementation="eager"`; language models in bf16, ESMFold in float32 with TF32 products (in bf16 the library's
softmax breaks the graph). Outputs are compared with the same modules in float32; time and peak memory are of one forward. Without
names all run.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import flashlight
from flashlight.bench.measure import peak_on_cuda, relative_error, side_by_side
from flashlight.bench.record import machine

LLAMA_1B = {
    "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 64, "rope_theta": 500000.0, "max_position_embeddings": 131072, "use_cache": False,
    "tie_word_embeddings": True,
}  # fmt: skip
GEMMA2_2B = {
    "vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096, "use_cache": False,
}  # fmt: skip
NARROW = {
    "vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32,
}  # fmt: skip

Built = tuple[nn.Module, dict[str, Tensor]]


@dataclass(frozen=True)
class Block:
    """A module and inputs for it.

    Attributes:
        what: its size, for the table.
        build: makes both on the default device; True asks for a narrow one, for a machine without a GPU.
        dtype: in which it runs.
    """

    what: str
    build: Callable[[bool], Built]
    dtype: torch.dtype = torch.bfloat16


def language(name: str, config: dict[str, Any], length: int) -> Callable[[bool], Built]:
    def build(small: bool) -> Built:
        cls = getattr(transformers, name)
        made = cls.config_class(**(config | NARROW if small else config))
        net = cls._from_config(made, attn_implementation="eager")
        ids = torch.randint(5, made.vocab_size, (1, 128 if small else length))
        return net, {"input_ids": ids}

    return build


def folding(part: str, length: int) -> Callable[[bool], Built]:
    """A part of ESMFold at the widths of its trunk: 1024 for residues, 128 for pairs, heads of 32."""

    def build(small: bool) -> Built:
        from transformers.models.esm import configuration_esm, modeling_esmfold

        n = 40 if small else length
        mask = torch.ones(1, n)
        mask[:, -n // 10 :] = 0
        s, z = torch.randn(1, n, 1024), torch.randn(1, n, n, 128)
        if part == "trunk":
            config = configuration_esm.TrunkConfig(num_blocks=1)
            net = modeling_esmfold.EsmFoldTriangularSelfAttentionBlock(config)
            return net, {"sequence_state": s, "pairwise_state": z, "mask": mask}
        net = modeling_esmfold.EsmFoldTriangleAttention(128, 32, 4)
        return net, {"x": z, "mask": mask[:, :, None] * mask[:, None, :]}

    return build


BLOCKS = {
    "llama": Block("Llama-3.2-1B, 1 x 4096 tokens", language("LlamaForCausalLM", LLAMA_1B, 4096)),
    "gemma2": Block("Gemma-2-2B, 1 x 4096 tokens", language("Gemma2ForCausalLM", GEMMA2_2B, 4096)),
    "triangle": Block(
        "ESMFold triangle attention, 512 residues", folding("triangle", 512), torch.float32
    ),
    "trunk": Block("ESMFold trunk block, 384 residues", folding("trunk", 384), torch.float32),
}


def drawn(net: nn.Module) -> nn.Module:
    """Weights of unit gain; what the library starts at zero is not left there."""
    for p in net.parameters():
        if p.dim() >= 2:
            p.data = torch.randn_like(p) / p[0].numel() ** 0.5
        elif float(p.abs().sum()) == 0:
            p.data = 0.1 * torch.randn_like(p)
    return net.eval().requires_grad_(False)


def peak(call: Callable[[], object], device: torch.device) -> float | None:
    """MiB allocated at most during one call, beyond what is there before it."""
    if device.type != "cuda":
        return None
    gc.collect()
    return peak_on_cuda(call, device)[0] / 2**20


def error(out: object, exact: list[Tensor]) -> float:
    """The largest error of any tensor of a result."""
    found = [t for t in pytree.tree_leaves(out) if isinstance(t, Tensor)]
    return max(relative_error(t.float(), e) for t, e in zip(found, exact, strict=True))


def measure(name: str, device: torch.device, *, small: bool) -> dict[str, Any]:
    """Rows of one block, by system."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")
    dtype = BLOCKS[name].dtype
    with torch.device(device):
        net, inputs = BLOCKS[name].build(small)
    net = drawn(net)
    exact = [t.float() for t in pytree.tree_leaves(net(**inputs)) if isinstance(t, Tensor)]
    # Not the buffers: rotary frequencies of 16 bits would be the only error to be seen.
    for p in net.parameters():
        p.data = p.data.to(dtype)
    inputs = {k: t.to(dtype) if t.is_floating_point() else t for k, t in inputs.items()}
    torch.set_float32_matmul_precision("high")
    systems = {
        "eager": net,
        "torch.compile": torch.compile(net),
        "flashlight": torch.compile(net, backend="flashlight"),
    }
    calls = {system: (lambda f=f: f(**inputs)) for system, f in systems.items()}
    rows: dict[str, dict[str, Any]] = {}
    for system, call in calls.items():
        torch._dynamo.reset()
        start = time.perf_counter()
        out = call()
        taken = time.perf_counter() - start
        rows[system] = {"error": error(out, exact), "first_call_s": taken}
        del out
        rows[system]["peak_mib"] = peak(call, device)
    for system, timing in side_by_side(calls, device=device, milliseconds=300).items():
        rows[system]["ms"] = timing.median
    torch._dynamo.reset()
    report = flashlight.explain(net, **inputs)
    # TF32 products keep ten bits; a kernel may cut the others off where the library's rounds.
    eps = 2**-10 if dtype is torch.float32 and device.type == "cuda" else torch.finfo(dtype).eps
    allowed = 2 * rows["eager"]["error"] + 4 * eps
    return {
        "what": BLOCKS[name].what,
        "rows": rows,
        "kernels": len(report.kernels),
        "refusals": [str(r) for r in report.refusals],
        "correct": rows["flashlight"]["error"] <= allowed,
    }


def show(found: dict[str, dict[str, Any]], console: Console) -> None:
    table = Table(title="one forward")
    for column in ("", "", "ms", "times as fast", "peak MiB", "error against float32", "kernels"):
        table.add_column(column, justify="right")
    for block in found.values():
        ours = block["rows"]["flashlight"]["ms"]
        for system, row in block["rows"].items():
            mine = system == "flashlight"
            mib = "-" if row["peak_mib"] is None else f"{row['peak_mib']:.0f}"
            verdict = f"{block['kernels']} {'ok' if block['correct'] else 'WRONG'}" if mine else ""
            faster = "" if mine else f"{row['ms'] / ours:.2f}"
            what = block["what"] if system == "eager" else ""
            cells = (what, system, f"{row['ms']:.2f}", faster, mib, f"{row['error']:.2e}", verdict)
            table.add_row(*cells)
    console.print(table)
    for block in found.values():
        for refusal in block["refusals"]:
            console.print(f"{block['what']}: {refusal}", markup=False)


@torch.inference_mode()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", choices=[*BLOCKS, []], help="which; all by default")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true", help="narrow, for a machine without a GPU")
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    device, console = torch.device(a.device), Console()
    found: dict[str, dict[str, Any]] = {}
    for name in a.names or BLOCKS:
        console.print(f"{name}: {BLOCKS[name].what}")
        found[name] = measure(name, device, small=a.small)
        if a.out:
            facts = {"machine": machine(device), "blocks": found}
            a.out.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    show(found, console)
    return int(not all(block["correct"] for block in found.values()))


if __name__ == "__main__":
    raise SystemExit(main())
