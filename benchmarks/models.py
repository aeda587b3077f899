"""Small models of transformers with random weights, compiled whole on the CPU: what is fused in each, written to docs/models.md.

    python benchmarks/models.py [NAME ...]

Checks every output against eager. Downloads nothing. Without names all models run and the page is written.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import logging
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass

from flashlight.capture.record import collecting

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
TOKENS, LENGTH, WIDTH = 300, 40, 64
BATCHED = (torch.ops.aten.bmm.default, torch.ops.aten.baddbmm.default)

DECODER = {
    "vocab_size": TOKENS, "hidden_size": WIDTH, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "use_cache": False, "pad_token_id": 0,
}  # fmt: skip
ENCODER = {
    "vocab_size": TOKENS, "hidden_size": WIDTH, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
SEQ2SEQ = {
    "vocab_size": TOKENS, "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "use_cache": False,
}  # fmt: skip
LATENT = {
    "kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 1, "topk_group": 1,
}  # fmt: skip
PICTURE = {"image_size": 32, "patch_size": 4}


def words() -> dict[str, Tensor]:
    """Two sentences, the first padded on the left."""
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[0, :7] = 0
    return {"input_ids": torch.randint(3, TOKENS, (2, LENGTH)), "attention_mask": mask}


def both() -> dict[str, Tensor]:
    return {**words(), "decoder_input_ids": torch.randint(3, TOKENS, (2, 30))}


def pixels() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, 3, 32, 32)}


def sound() -> dict[str, Tensor]:
    return {"input_values": torch.randn(2, 4000)}


@dataclass(frozen=True)
class Case:
    """A class of transformers, the fields of its configuration, and its inputs."""

    name: str
    fields: dict[str, Any]
    inputs: Callable[[], dict[str, Tensor]] = words

    def build(self) -> tuple[nn.Module, dict[str, Tensor]]:
        """The model, with weights large enough that attention is far from uniform, and inputs."""
        torch.manual_seed(0)
        kind = getattr(transformers, self.name)
        model = kind._from_config(kind.config_class(**self.fields), attn_implementation="eager")
        for p in model.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=p[0].numel() ** -0.5)
        return model.eval().requires_grad_(False), self.inputs()


CASES = (
    Case("LlamaForCausalLM", DECODER),
    Case("Qwen3ForCausalLM", {**DECODER, "head_dim": 16}),
    Case("Gemma3ForCausalLM", {**DECODER, "head_dim": 16, "sliding_window": 16}),
    Case("Cohere2ForCausalLM", {**DECODER, "sliding_window": 16}),
    Case("DeepseekV3ForCausalLM", {**DECODER, **LATENT, "num_key_value_heads": 4}),
    Case("BloomForCausalLM", {"vocab_size": TOKENS, "hidden_size": WIDTH, "n_layer": 2, "n_head": 4, "use_cache": False}),
    Case("BertModel", ENCODER),
    Case("DebertaV2Model", {**ENCODER, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 16}),
    Case("XLNetModel", {"vocab_size": TOKENS, "d_model": WIDTH, "n_layer": 2, "n_head": 4, "d_inner": 96}),
    Case("BartModel", SEQ2SEQ, both),
    Case("ViTModel", {**ENCODER, **PICTURE}, pixels),
    Case("SwinModel", {"image_size": 32, "patch_size": 2, "embed_dim": 32, "depths": [2], "num_heads": [2], "window_size": 4}, pixels),
    Case("Wav2Vec2ConformerModel", {**ENCODER, "num_conv_pos_embedding_groups": 4}, sound),
)  # fmt: skip


class CountProducts(CustomGraphPass):
    """Counts batched matrix products of a graph."""

    def __init__(self) -> None:
        self.found = 0

    def __call__(self, graph: torch.fx.Graph) -> None:
        self.found += sum(n.target in BATCHED for n in graph.nodes)

    def uuid(self) -> None:
        return None


def tensors(x: Any) -> list[Tensor]:
    if isinstance(x, Tensor):
        return [x]
    parts = x.values() if isinstance(x, dict) else x if isinstance(x, list | tuple) else ()
    return [t for part in parts for t in tensors(part)]


def row(case: Case) -> str:
    """A line of the table."""
    model, inputs = case.build()
    before, after = CountProducts(), CountProducts()
    torch._dynamo.reset()
    counters.clear()
    patches = {
        "joint_custom_pre_pass": before,
        "joint_custom_post_pass": after,
        "force_disable_caches": True,
    }
    with torch.no_grad(), collecting() as record, config.patch(patches):
        expected = tensors(model(**inputs))
        got = tensors(torch.compile(model, backend="flashlight")(**inputs))
    worst = max(
        ((a - b).norm() / b.norm()).item() for a, b in zip(got, expected, strict=True) if b.norm()
    )
    if not worst < 1e-4:
        raise SystemExit(f"{case.name}: error {worst:.1e}")
    codes = ", ".join(f"`{code}`" for code in sorted({r.code for r in record.refusals})) or "–"
    graphs = counters["stats"]["unique_graphs"]
    cells = (
        case.name,
        graphs,
        before.found,
        after.found,
        len(record.regions),
        f"{worst:.0e}",
        codes,
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def page(rows: list[str]) -> str:
    """docs/models.md."""
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in ("torch", "transformers"))
    commit = subprocess.check_output(("git", "rev-parse", "--short=12", "HEAD"), text=True).strip()
    day = datetime.datetime.now(datetime.UTC).date()
    return f"""# Models

Models of transformers as they are, two layers with random weights, `attn_implementation="eager"`, float32, under
`torch.compile(model, backend="flashlight")` on a CPU. {day}, {versions}, commit {commit}; `python benchmarks/models.py` makes this page.

*Products* are the batched matrix products of the graphs before Flashlight and those left after it: two for each attention, more
where positions have products of their own. Those of a table of positions (DeBERTa, XLNet), of rotary angles and projections
that a model spells as batched products stay. *Error* is that of the worst output against eager, relative.

| model | graphs | products | left | regions fused | error | refusals |
|---|---|---|---|---|---|---|
{chr(10).join(rows)}
"""


def main() -> None:
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    warnings.filterwarnings("ignore", message="dynamo_pgo")
    logging.getLogger("torch").setLevel(logging.ERROR)
    rows = []
    for case in CASES:
        if not sys.argv[1:] or case.name in sys.argv[1:]:
            rows.append(row(case))
            print(rows[-1], flush=True)
    if not sys.argv[1:]:
        PAGE.write_text(page(rows))


if __name__ == "__main__":
    main()
