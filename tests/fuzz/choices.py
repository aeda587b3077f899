"""What a random program may be: one choice for each feature. The first is the plainest, to which failures are shrunk."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

SIZES = (4, 1, 2, 3, 5, 7, 8, 16, 17, 24, 33, 47, 64, 70)
WIDTHS = (4, 1, 2, 3, 8, 16, 20, 33)
REACHES = (2, 1, 5, 19, 40, 70)  # of windows, prefixes, late starts

FEATURES: Mapping[str, tuple[Any, ...]] = {
    "two": ("one", "difference", "difference_of_weights", "two_values", "two_masks", "added"),
    "extra": (
        *("none", "lse", "peak", "entropy", "entropy_of_logs", "column_sums", "argmax"),
        *("largest_weight", "expected_key", "score_mean", "weight_squares", "argmax_of_weights"),
        *("least", "variance", "received_most"),
    ),
    "epilogue": (
        *("none", "merge", "gate", "rms_norm", "layer_norm", "projected", "residual", "mean_rows"),
        *("silu", "merge_gate", "head_sum"),
    ),
    "weights": (
        *("softmax", "handmade", "no_shift", "log_softmax", "minus_lse", "late", "sink", "plus_one"),
        *("in_float", "sigmoid", "relu_squared", "bare", "relu_normalised", "over_queries"),
        *("both_ways", "sharpened", "no_nan", "zeroed", "clamped_shift", "mean_shift", "kept_rows"),
        *("softpick", "softplus", "stable_max", "two_norm", "log_plus_one", "gelu_one_norm", "gated"),
        "mixed",
    ),
    "mask": (
        *("none", "causal", "bottom_right", "window", "band", "prefix", "ids", "ids_causal"),
        *("lengths", "dense", "dense_full", "additive", "blocks", "dilated", "head_window", "ranges"),
        *("starts", "ones_triu", "several", "dense_heads", "sorted_ids"),
        *("after", "late_window", "late_rows", "left_padding", "late_dense"),
    ),
    "reach": REACHES,
    "fill": ("-inf", "min", "-1e9", "-1e4"),
    "masking": (
        *("masked_fill", "where", "add", "multiply_late", "float_times_fill", "log_of_mask", "chain"),
        "in_place",
    ),
    "bias": (
        *("none", "pair", "full", "per_head", "per_key", "table", "alibi", "alibi_signed"),
        *("buckets", "distance", "ramps", "gaussians"),
    ),
    "cap": ("none", "tanh", "temperature", "square", "clamp", "row_temperature", "mixed_heads"),
    "order": ("plain", "mask_first", "cap_first", "bias_last", "masked_twice"),
    "scale": (
        *("on_scores", "none", "on_queries", "divided", "both_roots", "on_keys", "learned"),
        *("odd", "odd_on_queries", "negative"),
    ),
    "prepare": (
        *("none", "rotated", "normalised", "unit", "feature_map", "memory_keys", "flipped"),
        *("prefix_keys", "null_key", "shared_features", "quantised", "padded"),
    ),
    "layout": (
        *("bhsd", "bshd", "bshd_einsum", "packed", "split_heads", "keys_transposed", "sliced"),
        *("strided", "projected"),
    ),
    "scores": (
        *("matmul", "einsum", "bmm", "baddbmm", "multiply_sum", "linear"),
        *("distance", "additive", "cosine"),
    ),
    "product": ("matmul", "einsum", "bmm", "multiply_sum"),
    "sharing": ("repeat_interleave", "expand_reshape", "five_dims"),
    "values": ("plain", "large", "huge", "offset", "tiny", "nan"),
    "dynamic": (False, True),
    "dtype": ("float32", "float64", "bfloat16", "float16"),
    "B": (1, 2, 3),
    "H": (1, 2, 3),
    "G": (1, 2, 3),
    "S": SIZES,
    "T": (0, *SIZES),  # 0: as many keys as queries
    "D": WIDTHS,
    "E": (0, *WIDTHS),  # 0: as wide as keys
}  # fmt: skip

# How often the plainest choice is taken; others share the rest.
PLAIN = {
    "two": 0.8, "extra": 0.65, "epilogue": 0.55, "weights": 0.3, "mask": 0.25, "reach": 0.5, "fill": 0.6, "masking": 0.5, "bias": 0.5,
    "cap": 0.7, "order": 0.75, "scale": 0.4, "prepare": 0.7, "layout": 0.4, "scores": 0.5, "product": 0.55, "sharing": 0.4,
    "values": 0.65, "dynamic": 0.85, "dtype": 0.5, "B": 0.4, "H": 0.3, "G": 0.55, "T": 0.6, "E": 0.7,
}  # fmt: skip


@dataclass(frozen=True)
class Choices:
    """One random program, before it is text."""

    seed: int
    two: str
    extra: str
    epilogue: str
    weights: str
    mask: str
    reach: int
    fill: str
    masking: str
    bias: str
    cap: str
    order: str
    scale: str
    prepare: str
    layout: str
    scores: str
    product: str
    sharing: str
    values: str
    dynamic: bool
    dtype: str
    B: int
    H: int
    G: int
    S: int
    T: int
    D: int
    E: int

    @property
    def keys(self) -> int:
        return self.T or self.S

    @property
    def more_keys(self) -> int:
        """How many are put beside those of the arguments."""
        return {"memory_keys": 1, "prefix_keys": 3, "null_key": 1, "padded": 2}.get(self.prepare, 0)

    @property
    def width(self) -> int:
        """Of the values."""
        return self.E or self.D

    @property
    def is_five(self) -> bool:
        """Whether scores have an axis for the query heads that share a key head."""
        return self.sharing == "five_dims" and self.G > 1

    @property
    def is_16_bit(self) -> bool:
        return self.dtype in ("bfloat16", "float16")


def random_choices(seed: int) -> Choices:
    """The program of a seed. Each feature has numbers of its own, so that a new one leaves the others as they were."""
    found: dict[str, Any] = {}
    for name, options in FEATURES.items():
        rng = random.Random(f"{seed} {name}")
        plain = rng.random() < PLAIN.get(name, 0.1)
        found[name] = options[0] if plain else rng.choice(options)
    return legal(Choices(seed=seed, **found))


LENGTHS = (97, 1, 3, 17, 33, 48, 64, 70, 100, 128, 130, 150)
LATE = (
    *("after", "late_window", "late_rows", "left_padding", "late_dense"),
    *("sorted_ids", "ranges", "lengths", "causal", "window"),
)


def tile_choices(seed: int) -> Choices:
    """The program of a seed with lengths of several tiles and few heads, and more often a mask of whole tiles and rows of whole words."""
    c = random_choices(seed)
    rng = random.Random(f"{seed} tiles")
    c = replace(c, S=rng.choice(LENGTHS), T=c.T and rng.choice(LENGTHS), B=min(c.B, 2))
    c = replace(c, H=min(c.H, 2), G=1 if c.H > 1 else min(c.G, 2))
    if rng.random() < 0.5:
        c = replace(c, mask=rng.choice(LATE), reach=rng.choice((5, 19, 40, 70)))
    if rng.random() < 0.5:  # rows that descriptors can read
        c = replace(c, D=rng.choice((8, 16, 32)), E=0)
    deep = c.scores in ("matmul", "einsum", "bmm", "linear") and c.layout != "packed"
    if deep and rng.random() < 0.05:  # contracted in chunks
        c = replace(c, D=rng.choice((264, 1040)), E=8, product="matmul")
    if c.weights in ("over_queries", "both_ways") or c.extra in ("column_sums", "received_most"):
        # Scores of tens, computed by two kernels, differ by a rounding that eager's do not have.
        c = replace(
            c, scale="on_scores", values="plain" if c.values in ("large", "huge") else c.values
        )
    c = legal(c)
    return replace(c, S=97, T=c.T and 131) if c.dynamic else c  # primes still


def role_choices(seed: int) -> Choices:
    """The program of a seed with more rows, of 16 bits and as descriptors can read them."""
    c = tile_choices(seed)
    rng = random.Random(f"{seed} roles")
    c = replace(c, dtype=rng.choice(("bfloat16", "float16")), D=rng.choice((8, 16, 32)))
    return legal(c if c.dynamic else replace(c, S=rng.choice((*LENGTHS, 200))))


def legal(c: Choices) -> Choices:
    """The nearest choices that make a program and a fair test of one."""
    if c.layout == "packed":
        c = replace(c, T=0, E=0)
    if c.layout == "bshd_einsum":
        c = replace(c, scores="einsum", product="einsum")
        if c.sharing == "five_dims":
            c = replace(c, sharing="repeat_interleave")
    if c.is_five and c.scores in ("bmm", "baddbmm", "linear", "cosine"):
        c = replace(c, scores="matmul")
    if c.is_five and c.product == "bmm":
        c = replace(c, product="matmul")
    if c.prepare in ("rotated",) and c.D % 2:
        c = replace(c, D=c.D + 1)
    if c.mask == "starts":
        c = replace(c, T=0, prepare="none" if c.more_keys else c.prepare)
    if c.masking == "multiply_late" and c.weights not in ("sigmoid", "relu_squared", "bare"):
        c = replace(c, masking="where")
    if c.masking == "multiply_late" and c.values == "nan":
        c = replace(c, values="plain")  # nobody computes what is multiplied by 0 all over a tile
    if c.weights in ("sigmoid", "relu_squared", "bare", "relu_normalised"):
        c = replace(c, extra="column_sums" if c.extra != "none" else "none")
        if c.weights == "bare":  # a filled score would drown all others
            c = replace(c, masking="multiply_late")
            c = replace(c, order="mask_first" if c.order == "masked_twice" else c.order)
        if c.weights == "bare" and c.mask == "additive":
            c = replace(c, mask="dense")
    if c.is_16_bit and c.extra in ("argmax", "argmax_of_weights"):
        c = replace(c, extra="peak")  # 16-bit scores have ties that a kernel has not
    if c.weights == "in_float" and not c.is_16_bit:
        c = replace(c, weights="softmax")
    if c.weights == "late" and c.two == "difference_of_weights":
        c = replace(c, two="difference")
    if c.weights == "late" and c.extra not in ("none", "lse", "peak", "argmax", "score_mean"):
        c = replace(c, extra="lse")
    if c.dtype == "float16" and (c.values in ("huge",) or c.weights in ("no_shift", "two_norm")):
        c = replace(c, values="plain")
    if c.dtype == "float16" and c.weights in ("no_shift", "two_norm"):
        c = replace(c, dtype="bfloat16")  # biases overflow too
    if c.extra == "variance" and c.fill == "min":
        c = replace(c, fill="-1e9")  # its square overflows
    late = c.order in ("mask_first", "bias_last", "masked_twice")
    if c.cap == "mixed_heads" and late and c.fill == "min":
        c = replace(c, fill="-1e9")  # sums of several times it are of any size: the order decides
    added = late or c.masking == "float_times_fill" or c.weights == "minus_lse"
    if c.dtype == "float16" and c.fill == "min" and added:
        c = replace(c, fill="-1e9")  # f64 has another: beside f16's, scores are no rounding in f32
    if c.weights in ("zeroed", "kept_rows") and c.mask in ("none", "additive"):
        c = replace(c, mask="causal")
    if c.values == "nan" and c.extra in ("argmax", "argmax_of_weights"):
        c = replace(c, extra="none")
    if c.mask in ("ids", "ids_causal", "causal", "window") and c.keys < c.S and c.mask[0] == "i":
        c = replace(c, T=0)
    if c.dynamic and (c.more_keys or c.prepare == "shared_features"):
        c = replace(c, dynamic=False)
    if (
        c.dynamic
    ):  # primes, from which nothing else is made (nor S + 4), or tracing takes two sizes for one
        c = replace(c, S=37, T=c.T and 53)
    if c.extra == "argmax_of_weights" and c.weights in ("mean_shift", "two_norm", "no_shift"):
        c = replace(c, extra="argmax")  # all weights are NaN beside one score of -inf
    if c.extra == "argmax_of_weights" and c.bias == "gaussians":
        c = replace(c, extra="argmax")  # what is far adds less than a rounding: weights have ties
    if c.extra == "argmax_of_weights" and c.weights == "sink" and c.values in ("large", "huge"):
        c = replace(c, extra="argmax")  # all of them are 0 beside a sink far above
    return c


def simpler(c: Choices) -> Iterator[Choices]:
    """Choices with one feature plainer, boldest first."""
    for f in fields(c):
        if f.name == "seed":
            continue
        options, now = FEATURES[f.name], getattr(c, f.name)
        if f.name in ("S", "T", "D", "E", "B", "H", "G"):
            tries = sorted(o for o in options if o < now)
            tries = [*(o for o in options[:1] if o < now), *tries]
        else:
            tries = [o for o in options[:1] if o != now]
        for option in dict.fromkeys(tries):
            found = legal(replace(c, **{f.name: option}))
            if found != c:
                yield found
