"""Small models of transformers with random weights, compiled whole on the CPU: what is fused in each, written to docs/models.md.

    python benchmarks/models.py [NAME ...]

Checks every output against eager. Downloads nothing. Without names all models run and the page is written. To be quick, what is
not fused runs op by op: Inductor's own code is not generated.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import linecache
import logging
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.compile_fx import compile_fx
from torch._inductor.custom_graph_pass import CustomGraphPass

from flashlight.backend import Chain, FuseRegions, decompositions
from flashlight.capture.record import collecting
from flashlight.errors import Refusal
from flashlight.lift.cells import user_line

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
TOKENS, LENGTH, WIDTH, HEADS = 300, 64, 64, 4
BATCHED = (torch.ops.aten.bmm.default, torch.ops.aten.baddbmm.default)

# Fields of configurations, as the library names them; a model takes those that it has.
SMALL = {
    "vocab_size": TOKENS, "max_position_embeddings": 128, "n_positions": 128, "pad_token_id": 0, "use_cache": False,
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "word_embed_proj_dim"), WIDTH),
    **dict.fromkeys(("intermediate_size", "d_ff", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "d_inner", "mlp_dim"), 96),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), HEADS),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), HEADS),
    "num_key_value_heads": 2, "head_dim": 16, "d_kv": 16, "d_head": 16, "query_pre_attn_scalar": 16, "sliding_window": 16,
    "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12, "n_group": 1,
    "topk_group": 1, "image_size": 32, "patch_size": 4, "num_conv_pos_embedding_groups": 4, "state_size": 8,
    "decoder_start_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


# ---- Inputs


def words(_: nn.Module) -> dict[str, Any]:
    """Two sentences, the first padded on the left."""
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[0, :9] = 0
    return {"input_ids": torch.randint(3, TOKENS, (2, LENGTH)), "attention_mask": mask}


def both(model: nn.Module) -> dict[str, Any]:
    return {**words(model), "decoder_input_ids": torch.randint(3, TOKENS, (2, 30))}


def page_of_words(_: nn.Module) -> dict[str, Any]:
    return {"input_ids": torch.randint(3, TOKENS, (2, 208))}


def pixels(_: nn.Module) -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 32, 32)}


def picture(_: nn.Module) -> dict[str, Any]:
    return {"pixel_values": torch.randn(1, 3, 64, 64)}


def captioned(model: nn.Module) -> dict[str, Any]:
    return {**words(model), **pixels(model)}


def sound(_: nn.Module) -> dict[str, Any]:
    return {"input_values": torch.randn(2, 4000)}


def spectrum(_: nn.Module) -> dict[str, Any]:
    return {"input_values": torch.randn(2, 64, 16)}


def speech(_: nn.Module) -> dict[str, Any]:
    tokens = torch.randint(3, TOKENS, (2, 30))
    return {"input_features": torch.randn(2, 16, 128), "decoder_input_ids": tokens}


def residues(_: nn.Module) -> dict[str, Any]:
    return {"input_ids": torch.randint(4, 30, (2, LENGTH))}


def features(_: nn.Module) -> dict[str, Any]:
    """Two recordings, the second of them shorter."""
    mask = torch.ones(2, 40, dtype=torch.long)
    mask[1, 31:] = 0
    tokens = torch.randint(3, TOKENS, (2, 12))
    return {
        "input_features": torch.randn(2, 40, 16),
        "attention_mask": mask,
        "decoder_input_ids": tokens,
    }


def bytes_of_words(_: nn.Module) -> dict[str, Any]:
    return {"input_ids": torch.randint(5, 250, (2, 40))}


def masked_bytes(model: nn.Module) -> dict[str, Any]:
    known = words(model)
    return {"inputs": known["input_ids"], "attention_mask": known["attention_mask"]}


def queries(_: nn.Module) -> dict[str, Any]:
    return {
        "query_embeds": torch.randn(2, 9, WIDTH),
        "encoder_hidden_states": torch.randn(2, 20, 48),
    }


def large_picture(_: nn.Module) -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 128, 128)}


def colours(_: nn.Module) -> dict[str, Any]:
    return {"hidden_states": torch.randn(2, 3, 64, 64)}


def small_picture(_: nn.Module) -> dict[str, Any]:
    return {"pixel_values": torch.randn(1, 3, 32, 32)}


def clicked(model: nn.Module) -> dict[str, Any]:
    points = 10 * torch.rand(1, 1, 2, 2)
    return {
        **picture(model),
        "input_points": points,
        "input_labels": torch.ones(1, 1, 2, dtype=torch.int),
    }


def labelled(_: nn.Module) -> dict[str, Any]:
    """Two pictures, and two texts to find in each."""
    return {
        "input_ids": torch.randint(3, TOKENS, (4, 12)),
        "pixel_values": torch.randn(2, 3, 32, 32),
    }


def told(_: nn.Module) -> dict[str, Any]:
    """Text in which sixteen tokens stand for the picture, the rest of it a prompt and what follows."""
    tokens = torch.cat([torch.full((2, 16), 3), torch.randint(5, TOKENS, (2, 32))], 1)
    kinds = (torch.arange(48) >= 20).long().expand(2, -1)
    mask = torch.ones(2, 48, dtype=torch.long)
    known = {"input_ids": tokens, "attention_mask": mask, "token_type_ids": kinds}
    return {**known, "pixel_values": torch.randn(2, 3, 32, 32)}


def film(_: nn.Module) -> dict[str, Any]:
    return {"pixel_values_videos": torch.randn(1, 4, 3, 32, 32)}


def history(_: nn.Module) -> dict[str, Any]:
    past, future = torch.randn(2, 31).abs(), torch.randn(2, 8)
    return {
        "past_values": past, "past_time_features": torch.randn(2, 31, 2), "past_observed_mask": torch.ones(2, 31),
        "future_values": future, "future_time_features": torch.randn(2, 8, 2),
    }  # fmt: skip


def series(_: nn.Module) -> dict[str, Any]:
    return {"past_values": torch.randn(2, 64, 3)}


def step(model: Any) -> dict[str, Any]:
    """One token after a cache of all others."""
    tokens = words(model)["input_ids"]
    cache = transformers.DynamicCache(config=model.config)
    model(input_ids=tokens[:, :-1], past_key_values=cache, use_cache=True)
    return {"input_ids": tokens[:, -1:], "past_key_values": cache, "use_cache": True}


@dataclass(frozen=True)
class Case:
    """A class of transformers, fields of its configuration beside or instead of `SMALL`'s, and its inputs."""

    name: str
    fields: dict[str, Any] = field(default_factory=dict)
    inputs: Callable[[nn.Module], dict[str, Any]] = words

    def build(self) -> nn.Module:
        """The model, with weights large enough that attention is far from uniform."""
        torch.manual_seed(0)
        kind = getattr(transformers, self.name)
        config = self._config(kind.config_class)
        model: nn.Module = kind._from_config(config, attn_implementation="eager")
        for p in model.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=p[0].numel() ** -0.5)
        return model.eval().requires_grad_(False)

    def _config(self, kind: Any) -> Any:
        """Of `SMALL`, fields that are numbers by default; None often says that a model goes without."""
        has = {f.name: f.default for f in dataclasses.fields(kind)}
        numbers = {k: v for k, v in SMALL.items() if k in has and isinstance(has[k], int | float)}
        return kind(**{**numbers, **self.fields})


ENCODER = {
    "hidden_size": WIDTH, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": HEADS,
}  # fmt: skip
WINDOWS = {"patch_size": 2, "embed_dim": 32, "depths": [2], "num_heads": [2], "window_size": 4}
DELTA = {
    "layer_types": ["linear_attention", "full_attention"], "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "shared_expert_intermediate_size": 32,
}  # fmt: skip
POOLED = {
    "patch_size": [7, 7], "image_size": [64, 64], "embed_dim": 32, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 4, 8],
}  # fmt: skip
BY_AXIS = {
    "image_size": 64, "patch_size": 8, "output_channels": 32, "window_size": 6, "global_attn_indexes": [1],
}  # fmt: skip
SPARSE = {
    "attention_type": "block_sparse", "block_size": 16, "num_random_blocks": 1, "max_position_embeddings": 256,
}  # fmt: skip
BYTES = {"vocab_size": 260, "max_position_embeddings": 128, **ENCODER}
LOCAL_BYTES = {**BYTES, "hidden_size_global": WIDTH, "cross_attn_k": 1}
PATCHES_OF_BYTES = {
    "vocab_size": 260, "patch_in_forward": False, "encoder_hash_byte_group_size": [3], "encoder_hash_byte_group_vocab": 100,
    "encoder_hash_byte_group_nb_functions": 1, "patcher_config": BYTES, "global_config": BYTES,
    "cross_attn_k": 1, "encoder_config": LOCAL_BYTES, "decoder_config": LOCAL_BYTES,
}  # fmt: skip
LATENTS = {
    "num_latents": 12, "d_latents": WIDTH, "d_model": 48, "num_blocks": 2, "num_self_attends_per_block": 1,
    "num_self_attention_heads": HEADS, "num_cross_attention_heads": HEADS,
}  # fmt: skip
RESNET = {
    "model_type": "resnet", "embedding_size": 16, "hidden_sizes": [16, 16, 32, 32], "depths": [1] * 4, "layer_type": "basic",
    "out_features": ["stage4"],
}  # fmt: skip
CHANNELS = {
    "embed_dim": [16, 32], "depths": [1, 1], "num_heads": [2, 4], "num_groups": [2, 4], "patch_size": [7, 3], "patch_stride": [4, 2],
    "patch_padding": [3, 1], "patch_prenorm": [False, True], "window_size": 4,
}  # fmt: skip
SEGMENTS = {
    "vision_config": {
        "backbone_config": {
            "hidden_size": 16, "num_attention_heads": 1, "image_size": [64, 64], "blocks_per_stage": [1, 2, 1, 1],
            "embed_dim_per_stage": [16, 32, 64, 128], "num_attention_heads_per_stage": [1, 2, 4, 8],
            "window_size_per_stage": [4, 2, 4, 2], "window_positional_embedding_background_size": [4, 4],
            "global_attention_blocks": [2],
        },
        "backbone_channel_list": [128, 64, 32, 16], "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]], "fpn_hidden_size": 32,
    },
    "prompt_encoder_config": {"hidden_size": 32, "image_size": 64, "patch_size": 16},
    "mask_decoder_config": {"hidden_size": 32, "mlp_dim": 48, "num_attention_heads": HEADS, "iou_head_hidden_dim": 32},
}  # fmt: skip
SMALL_PICTURE = {**ENCODER, "image_size": 16, "patch_size": 8, "model_type": "dinov2"}
SCALES = {
    "patch_size": 16, "fusion_hidden_size": 16, "intermediate_hook_ids": [1, 0], "intermediate_feature_dims": [16, 16],
    "scaled_images_ratios": [0.5, 1.0], "scaled_images_overlap_ratios": [0.0, 0.25], "scaled_images_feature_dims": [32, 16],
    "use_fov_model": False,
    "image_model_config": SMALL_PICTURE, "patch_model_config": SMALL_PICTURE, "fov_model_config": SMALL_PICTURE,
}  # fmt: skip
CHUNKS = {
    "feature_projection_input_dim": 16, "t2u_vocab_size": TOKENS, "conv_depthwise_kernel_size": 5, "speech_encoder_layers": 2,
    "speech_encoder_attention_heads": HEADS, "speech_encoder_intermediate_size": 96, "speech_encoder_chunk_size": 8,
    "speech_encoder_left_chunk_num": 1, "left_max_position_embeddings": 8, "right_max_position_embeddings": 4,
}  # fmt: skip
PREFIX = {
    "image_token_index": 3, "projection_dim": WIDTH, "hidden_size": WIDTH,
    "vision_config": {**ENCODER, "model_type": "siglip_vision_model", "image_size": 32, "patch_size": 8, "vision_use_head": False},
    "text_config": {**ENCODER, "model_type": "gemma", "vocab_size": TOKENS, "num_key_value_heads": 2, "head_dim": 16},
}  # fmt: skip
FRAMES = {
    "num_frames": 4, "tubelet_size": [1, 8, 8], "num_spatial_layers": 2, "num_temporal_layers": 2, "num_auxiliary_layers": 1,
}  # fmt: skip
FORECAST = {
    "prediction_length": 8, "context_length": 24, "d_model": 32, "num_time_features": 2, "lags_sequence": [1, 2, 3, 4, 5, 6, 7],
}  # fmt: skip
TEXT_AND_IMAGE = {
    "text_config": {**ENCODER, "vocab_size": TOKENS, "max_position_embeddings": 128, "eos_token_id": 2},
    "vision_config": {**ENCODER, "image_size": 32, "patch_size": 8},
}  # fmt: skip

FAMILIES: dict[str, Sequence[Case]] = {
    "Decoders": (
        Case("LlamaForCausalLM"),
        Case("MistralForCausalLM"),
        Case("Qwen3ForCausalLM"),
        Case("Phi3ForCausalLM"),
        Case("Gemma2ForCausalLM"),
        Case("Gemma3ForCausalLM"),
        Case("Cohere2ForCausalLM"),
        Case("GPT2LMHeadModel"),
        Case("GPTNeoForCausalLM", {"attention_types": [[["global", "local"], 1]], "window_size": 16}),
        Case("GPTJForCausalLM", {"rotary_dim": 8}),
        Case("FalconForCausalLM"),
        Case("BloomForCausalLM"),
        Case("MptForCausalLM"),
        Case("OPTForCausalLM"),
        Case("DiffLlamaForCausalLM"),
        Case("DogeForCausalLM"),
        Case("BltForCausalLM", PATCHES_OF_BYTES, bytes_of_words),
    ),
    "Mixtures of experts and latent attention": (
        Case("MixtralForCausalLM"),
        Case("GptOssForCausalLM", {"intermediate_size": 32}),
        Case("DeepseekV3ForCausalLM", {"num_key_value_heads": 4}),
        Case("DeepseekV32ForCausalLM", {"num_key_value_heads": 4, "index_topk": 16, "index_head_dim": 16, "index_n_heads": 2}),
        Case("Llama4ForCausalLM"),
        Case("MiniMaxForCausalLM"),
    ),
    "Hybrids with recurrences": (
        Case("Qwen3NextForCausalLM", DELTA),
        Case("Mamba2ForCausalLM", {"num_heads": 8, "head_dim": 16}),
        Case("BambaForCausalLM", {"attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 8}),
        Case("JambaForCausalLM", {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8, "mamba_dt_rank": 8}),
        Case("RecurrentGemmaForCausalLM", {"num_hidden_layers": 3, "num_key_value_heads": 1, "attention_window_size": 16, "lru_width": 64}),
        Case("Lfm2ForCausalLM", {"layer_types": ["conv", "full_attention"]}),
    ),
    "One step of decoding": (
        Case("LlamaForCausalLM", inputs=step),
        Case("Gemma3ForCausalLM", inputs=step),
        Case("GptOssForCausalLM", {"intermediate_size": 32}, step),
        Case("DeepseekV3ForCausalLM", {"num_key_value_heads": 4}, step),
    ),
    "Encoders": (
        Case("BertModel"),
        Case("ModernBertModel"),
        Case("RoFormerModel"),
        Case("MPNetModel"),
        Case("DebertaV2Model", {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 16}),
        Case("XLNetModel"),
        Case("LukeModel", {"entity_vocab_size": 50, "entity_emb_size": 16}),
        Case("LongformerModel", {"attention_window": [16, 16]}),
        Case("BigBirdModel", SPARSE, page_of_words),
        Case("NystromformerModel"),
        Case("ConvBertModel"),
        Case("CanineModel"),
        Case("FunnelModel", {"block_sizes": [1, 1], "num_decoder_layers": 1}),
        Case("PerceiverForMaskedLM", LATENTS, masked_bytes),
        Case("EsmModel", {"position_embedding_type": "rotary", "vocab_size": 40, "pad_token_id": 1, "mask_token_id": 32}, residues),
    ),
    "Encoders with decoders": (
        Case("T5Model", inputs=both),
        Case("BartModel", inputs=both),
        Case("M2M100Model", inputs=both),
        Case("PegasusXModel", inputs=both),
        Case("LEDModel", {"attention_window": 16}, both),
        Case("LongT5Model", inputs=both),
        Case("ProphetNetModel", {"num_encoder_attention_heads": HEADS, "num_decoder_attention_heads": HEADS}, both),
    ),
    "Pictures": (
        Case("ViTModel", inputs=pixels),
        Case("Dinov2Model", inputs=pixels),
        Case("BeitModel", {"use_relative_position_bias": True}, pixels),
        Case("SwinModel", WINDOWS, pixels),
        Case("Swinv2Model", WINDOWS, pixels),
        Case("HieraModel", POOLED, picture),
        Case("SegformerModel", {"image_size": 64, "patch_size": 4}, picture),
        Case("SamVisionModel", BY_AXIS, picture),
        Case("Sam2Model", SEGMENTS, clicked),
        Case("Florence2VisionBackbone", CHANNELS, colours),
        Case("DepthProModel", SCALES, small_picture),
        Case("DetrModel", {"backbone_config": RESNET, "num_queries": 10}, large_picture),
    ),
    "Sound, series and several senses": (
        Case("WhisperModel", {"num_mel_bins": 16, "max_source_positions": 64}, speech),
        Case("Wav2Vec2Model", inputs=sound),
        Case("Wav2Vec2ConformerModel", inputs=sound),
        Case("WavLMModel", inputs=sound),
        Case("ASTModel", {"max_length": 64, "num_mel_bins": 16, "patch_size": 8, "frequency_stride": 8, "time_stride": 8}, spectrum),
        Case("PatchTSTModel", {"num_input_channels": 3, "context_length": 64, "patch_length": 4, "patch_stride": 4}, series),
        Case("CLIPModel", TEXT_AND_IMAGE, captioned),
        Case("SiglipModel", TEXT_AND_IMAGE, captioned),
        Case("BlipModel", TEXT_AND_IMAGE, captioned),
        Case("Owlv2ForObjectDetection", {**TEXT_AND_IMAGE, "projection_dim": WIDTH}, labelled),
        Case("Blip2QFormerModel", {"encoder_hidden_size": 48, "cross_attention_frequency": 1}, queries),
        Case("PaliGemmaForConditionalGeneration", PREFIX, told),
        Case("SeamlessM4Tv2ForSpeechToText", CHUNKS, features),
        Case("VideoPrismVisionModel", FRAMES, film),
        Case("TimeSeriesTransformerModel", FORECAST, history),
    ),
}  # fmt: skip


class FindProducts(CustomGraphPass):
    """Notes the batched matrix products of graphs that sum over something, by the lines that made them."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def __call__(self, graph: torch.fx.Graph) -> None:
        products = [n for n in graph.nodes if n.target in BATCHED]
        self.found += [user_line(n) for n in products if n.args[-1].meta["val"].shape[-2] != 1]

    def uuid(self) -> None:
        return None


@dataclass(frozen=True)
class Outcome:
    """What was found of one model."""

    case: Case
    graphs: int
    products: int
    left: tuple[str, ...]
    fused: int
    error: float
    refusals: tuple[Refusal, ...]

    def row(self) -> str:
        """A line of the table."""
        codes = ", ".join(f"`{code}`" for code in sorted({r.code for r in self.refusals})) or "–"
        numbers = self.graphs, self.products, len(self.left), self.fused, f"{self.error:.0e}"
        return "| " + " | ".join(map(str, (self.case.name, *numbers, codes))) + " |"

    def remains(self) -> list[str]:
        """A line for each place where a product stayed, and for each refusal."""
        lines = [source(where) for where in dict.fromkeys(self.left)]
        reasons = {f"`{r.code}` at {source(r.where)}" for r in self.refusals}
        return [f"  * {text}" for text in (*lines, *sorted(reasons))]


def source(where: str) -> str:
    """A line of the library: its file, number and text."""
    path, _, number = where.rpartition(":")
    text = linecache.getline(path, int(number)).strip() if path and number.isdigit() else ""
    return f"{Path(path).name}:{number} `{text}`" if text else f"`{where}`"


def tensors(x: Any) -> list[Tensor]:
    if isinstance(x, Tensor):
        return [x]
    parts = x.values() if isinstance(x, dict) else x if isinstance(x, list | tuple) else ()
    return [t for part in parts for t in tensors(part)]


def outcome(case: Case) -> Outcome:
    """Compile and run one model; stops the program where a result is wrong."""
    model = case.build()
    before, after = FindProducts(), FindProducts()
    patches = {
        "joint_custom_pre_pass": Chain([before, FuseRegions()]),
        "joint_custom_post_pass": after,
        "force_disable_caches": True,
    }

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return compile_fx(
            gm,
            list(inputs),
            inner_compile=lambda graph, *_, **__: graph.forward,
            decompositions=decompositions(),
        )

    def run(call: Callable[..., Any]) -> list[Tensor]:
        torch.manual_seed(1)
        return tensors(call(**case.inputs(model)))

    torch._dynamo.reset()
    counters.clear()
    with torch.no_grad(), collecting() as record, config.patch(patches):
        expected, got = run(model), run(torch.compile(model, backend=backend))
    worst = max(
        ((a - b).norm() / b.norm()).item() for a, b in zip(got, expected, strict=True) if b.norm()
    )
    if not worst < 1e-4:
        raise SystemExit(f"{case.name}: error {worst:.1e}")
    return Outcome(
        case,
        counters["stats"]["unique_graphs"],
        len(before.found),
        tuple(after.found),
        len(record.regions),
        worst,
        tuple(record.refusals),
    )


def page(families: dict[str, list[Outcome]]) -> str:
    """docs/models.md."""
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in ("torch", "transformers"))
    commit = subprocess.check_output(("git", "rev-parse", "--short=12", "HEAD"), text=True).strip()
    day = datetime.datetime.now(datetime.UTC).date()
    rows, remains = [], []
    for family, outcomes in families.items():
        rows.append(f"| **{family}** |" + " |" * 6)
        for found in outcomes:
            rows.append(found.row())
            if lines := found.remains():
                remains += [f"* {found.case.name}", *lines]
    return f"""# Models

Models of transformers as they are, two or three layers with random weights, `attn_implementation="eager"`, float32, compiled
whole on a CPU; what Flashlight leaves runs op by op. {day}, {versions}, commit {commit}; `python benchmarks/models.py` makes this page.

*Products* are the batched matrix products of the graphs before Flashlight and those left after it (outer products aside): two for
each attention, more where positions have products of their own. *Fused* counts regions that became kernels, *error* is that of
the worst output against eager, relative. A refusal is a region that was left to Inductor.

| model | graphs | products | left | fused | error | refusals |
|---|---|---|---|---|---|---|
{chr(10).join(rows)}

## What stays, and why

Lines of the library whose products stay. Tables of positions, projections and states of recurrences make no scores; scores
without a softmax are fused only where they outnumber each tensor that they are made of. Lines with a code are refusals.

{chr(10).join(remains)}
"""


def main() -> None:
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    warnings.filterwarnings("ignore", message="dynamo_pgo")
    logging.getLogger("torch").setLevel(logging.ERROR)
    families: dict[str, list[Outcome]] = {}
    for family, cases in FAMILIES.items():
        for case in cases:
            if not sys.argv[1:] or case.name in sys.argv[1:]:
                found = outcome(case)
                families.setdefault(family, []).append(found)
                print(found.row(), *found.remains(), sep="\n", flush=True)
    if not sys.argv[1:]:
        PAGE.write_text(page(families))


if __name__ == "__main__":
    main()
