"""The registry: each program with makers of its inputs, its arithmetic and a part that is cheap to check in float64.

variant = VARIANTS["causal"]
args = variant.make(Shape(batch=4, heads=16, kv_heads=2, length=4096, head_dim=64), torch.float16, "cuda", seed=0)
out = variant.fn(*args)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from flashlight.programs import decoding, differential, evoformer, heads, losses

DOCUMENTS = 12
Args = tuple[Tensor, ...]


@dataclass(frozen=True)
class Shape:
    """Sizes of a program's inputs.

    `rows` counts MSA rows (or the rows of a pair matrix) and is 1 elsewhere; `keys` is 0 where they are as many as the queries.
    """

    batch: int
    heads: int
    kv_heads: int
    length: int
    head_dim: int
    rows: int = 1
    keys: int = 0

    def __str__(self) -> str:
        rows = f"N{self.rows} " if self.rows > 1 else ""
        keys = f" T{self.keys}" if self.keys else ""
        heads = f"H{self.heads}/{self.kv_heads}"
        return f"B{self.batch} {rows}{heads} S{self.length}{keys} D{self.head_dim}"


Device = torch.device | str
Maker = Callable[[Shape, torch.dtype, Device, int], Args]


@dataclass(frozen=True)
class Variant:
    """One plain eager function and what tests, docs and benchmarks need to run it.

    Attributes:
        name: its key in `VARIANTS`.
        fn: the program.
        make: inputs for a shape, a dtype, a device and a seed.
        pairs: how many (query, key) pairs of one head and batch element the mask keeps; the arithmetic that must be done.
        part: from the arguments, arguments of a part small enough for float64.
        part_of: the same part of the output.
        tiny: a shape for tests on a CPU.
        flops_per_pair: operations for one kept pair, as a multiple of D.
    """

    name: str
    fn: Callable[..., Tensor]
    make: Maker
    pairs: Callable[[Shape, Args], float]
    part: Callable[[Args], Args]
    part_of: Callable[[Tensor], Tensor]
    tiny: Shape
    flops_per_pair: float = 4

    def flops(self, shape: Shape, args: Args) -> float:
        """Multiplications and additions of the contractions over the pairs that the mask keeps."""
        maps = shape.batch * shape.rows * shape.heads
        return self.flops_per_pair * shape.head_dim * maps * self.pairs(shape, args)


def _generator(device: Device, seed: int) -> torch.Generator:
    return torch.Generator(device=device).manual_seed(seed)


def qkv(shape: Shape, dtype: torch.dtype, device: Device, seed: int) -> Args:
    """q[B, H, S, D], k and v[B, Hkv, T, D], normal."""
    normal = _normal(dtype, _generator(device, seed))
    b, d, kv = shape.batch, shape.head_dim, shape.kv_heads
    keys = shape.keys or shape.length
    return normal(b, shape.heads, shape.length, d), normal(b, kv, keys, d), normal(b, kv, keys, d)


def _normal(dtype: torch.dtype, gen: torch.Generator) -> Callable[..., Tensor]:
    """Makes tensors of normal numbers, one after the other."""
    return partial(torch.randn, device=gen.device, dtype=dtype, generator=gen)


def _with_slopes(shape: Shape, dtype: torch.dtype, device: Device, seed: int) -> Args:
    h = torch.arange(1, shape.heads + 1, device=device, dtype=torch.float32)
    return *qkv(shape, dtype, device, seed), torch.exp2(-8.0 * h / shape.heads)


def document_ids(shape: Shape, device: Device, seed: int, documents: int = DOCUMENTS) -> Tensor:
    """Ids i64[B, S] of documents of random lengths in a row, each sample its own."""
    gen = torch.Generator().manual_seed(seed)
    count = min(documents, shape.length)
    rows = []
    for _ in range(shape.batch):
        starts = 1 + torch.randperm(shape.length - 1, generator=gen)[: count - 1]
        marks = torch.zeros(shape.length, dtype=torch.int64)
        marks[starts] = 1
        rows.append(marks.cumsum(0))
    return torch.stack(rows).to(device)


def _with_ids(shape: Shape, dtype: torch.dtype, device: Device, seed: int) -> Args:
    return *qkv(shape, dtype, device, seed), document_ids(shape, device, seed)


def _diff(shape: Shape, dtype: torch.dtype, device: Device, seed: int) -> Args:
    q, k, _ = qkv(replace(shape, kv_heads=shape.heads), dtype, device, seed)
    normal = _normal(dtype, _generator(device, seed + 1))
    return q, k, normal(shape.batch, shape.heads // 2, shape.length, 2 * shape.head_dim)


def _diff_with(size: Callable[[Shape], tuple[int, ...]], wide: bool = False) -> Maker:
    def make(shape: Shape, dtype: torch.dtype, device: Device, seed: int) -> Args:
        gen = _generator(device, seed + 2)
        learned = torch.rand(size(shape), device=device, dtype=dtype, generator=gen) / 2
        extra = (torch.ones(2 * shape.head_dim, device=device, dtype=dtype) + 0.1,) if wide else ()
        return *_diff(shape, dtype, device, seed), learned, *extra

    return make


def _evoformer(shape: Shape, dtype: torch.dtype, device: Device, seed: int) -> Args:
    gen = _generator(device, seed)
    normal = _normal(dtype, gen)
    b, n, s, h, d = shape.batch, shape.rows, shape.length, shape.heads, shape.head_dim

    big = [normal(b, n, s, h, d) for _ in range(4)]
    keep = torch.rand(b, n, 1, 1, s, device=device, generator=gen) > 0.1
    keep[..., 0] = True
    mask_bias = (1e4 * (keep.to(torch.float32) - 1)).to(dtype)
    return *big, mask_bias, normal(b, 1, h, s, s)


def _column(shape: Shape, dtype: torch.dtype, device: Device, seed: int) -> Args:
    gen = _generator(device, seed)
    b, n, s, h, d = shape.batch, shape.length, shape.rows, shape.heads, shape.head_dim
    normal = _normal(dtype, gen)
    big = [normal(b, n, s, h, d) for _ in range(4)]
    keep = torch.rand(b, s, 1, 1, n, device=device, generator=gen) > 0.1
    keep[..., 0] = True
    return *big, (1e4 * (keep.to(torch.float32) - 1)).to(dtype)


def _triangle(shape: Shape, dtype: torch.dtype, device: Device, seed: int) -> Args:
    gen = _generator(device, seed)
    normal = _normal(dtype, gen)
    b, n, h, s, d = shape.batch, shape.rows, shape.heads, shape.length, shape.head_dim

    mask = torch.rand(b, n, 1, 1, s, device=device, generator=gen) > 0.1
    mask[..., 0] = True
    return *(normal(b, n, h, s, d) for _ in range(3)), normal(b, 1, h, s, s), mask


def _triangle_node(shape: Shape, dtype: torch.dtype, device: Device, seed: int) -> Args:
    normal = _normal(dtype, _generator(device, seed))
    n, h, d = shape.length, shape.heads, shape.head_dim
    c = h * d
    weights = [normal(c, h, d) * c**-0.5 for _ in range(4)]
    return (
        normal(shape.batch, n, n, c),
        *weights,
        normal(c, h) * c**-0.5,
        normal(h, d, c) * c**-0.5,
    )


ROTATED = 64
"""Width of the part of a key that carries its position, in latent attention."""


def _latent_prefill(shape: Shape, dtype: torch.dtype, device: Device, seed: int) -> Args:
    normal = _normal(dtype, _generator(device, seed))
    b, h, s, d = shape.batch, shape.heads, shape.length, shape.head_dim
    q, k = normal(b, h, s, d), normal(b, h, s, d - ROTATED)
    return q, k, normal(b, 1, s, ROTATED), normal(b, h, s, d - ROTATED)


def _latent_decode(shape: Shape, dtype: torch.dtype, device: Device, seed: int) -> Args:
    normal = _normal(dtype, _generator(device, seed))
    b, h, t, c = shape.batch, shape.heads, shape.keys, shape.head_dim
    one = shape.length
    return normal(b, h, one, c), normal(b, h, one, ROTATED), normal(b, t, c), normal(b, t, ROTATED)


def _blocks(shape: Shape, dtype: torch.dtype, device: Device, seed: int) -> Args:
    q, k, v = qkv(shape, dtype, device, seed)
    blocks = k.unflatten(2, (-1, decoding.BLOCK))
    return q, k, v, blocks.amin(3), blocks.amax(3)


def _classes(shape: Shape, dtype: torch.dtype, device: Device, seed: int) -> Args:
    normal = _normal(dtype, _generator(device, seed))
    c = shape.head_dim
    gen = _generator(device, seed + 1)
    target = torch.randint(0, shape.keys, (shape.length,), device=device, generator=gen)
    return normal(shape.length, c), normal(shape.keys, c) * c**-0.5, target


POINTS, VALUE_POINTS, PAIR_WIDTH = 4, 8, 128


def _points(shape: Shape, dtype: torch.dtype, device: Device, seed: int) -> Args:
    normal = _normal(dtype, _generator(device, seed))
    n, h, c = shape.length, shape.heads, shape.head_dim
    points = [normal(n, h, p, 3) for p in (POINTS, POINTS, VALUE_POINTS)]
    rotation = torch.linalg.qr(normal(n, 3, 3).float()).Q.to(dtype)
    features = [normal(n, h, c) for _ in range(3)]
    pair = (normal(n, n, h), normal(n, n, PAIR_WIDTH))
    return *features, *points, *pair, normal(h), rotation, normal(n, 3)


# -- Pairs that a mask keeps, for one head of one batch element.


def _all(shape: Shape, args: Args) -> float:
    return float(shape.length) * (shape.keys or shape.length)


def _chosen(shape: Shape, args: Args) -> float:
    return _all(shape, args) * decoding.KEPT


def _causal(shape: Shape, args: Args) -> float:
    return shape.length * (shape.length + 1) / 2


def _window(shape: Shape, args: Args) -> float:
    s, w = shape.length, min(heads.WINDOW + 1, shape.length)
    return s * w - w * (w - 1) / 2


def _prefix(shape: Shape, args: Args) -> float:
    p = min(heads.PREFIX, shape.length)
    return _causal(shape, args) + p * (p - 1) / 2


def _documents(shape: Shape, args: Args) -> float:
    counts = [torch.bincount(row) for row in args[3].cpu()]
    return float(sum((c.double() ** 2).sum() for c in counts)) / shape.batch


def _documents_causal(shape: Shape, args: Args) -> float:
    return (_documents(shape, args) + shape.length) / 2


# -- Parts: the last sample and the last head (or pair of heads, or row).


LAST = 4096
"""Queries of a head that are checked, at most: their scores in float64 must fit, however many the keys."""


def _last_queries(args: Args) -> Args:
    q, k, v = _last_head(args)
    return q[:, :, -LAST:], k, v


def _last_queries_and_slope(args: Args) -> Args:
    return *_last_queries(args), args[3][-1:]


def _last_head(args: Args) -> Args:
    return tuple(a[-1:, -1:] for a in args[:3])


def _last_head_and_ids(args: Args) -> Args:
    return *_last_head(args), args[3][-1:]


def _last_pair(args: Args) -> Args:
    q, k, v, *learned = args
    half = q.shape[1] // 2
    both = slice(half - 1, None, half)
    return q[-1:, both], k[-1:, both], v[-1:, -1:], *learned


def _last_pair_and_factor(args: Args) -> Args:
    return *_last_pair(args[:3]), args[3][-1:]


def _last_row(args: Args) -> Args:
    *big, pair = args
    return *(a[-1:, -1:] for a in big), pair[-1:]


def _last_column(args: Args) -> Args:
    return *(a[-1:, :, -1:] for a in args[:4]), args[4][-1:, -1:]


def _last_triangle_row(args: Args) -> Args:
    q, k, v, bias, mask = args
    return q[-1:, -1:], k[-1:, -1:], v[-1:, -1:], bias[-1:], mask[-1:, -1:]


def _last_sample(args: Args) -> Args:
    return tuple(a[-1:] for a in args)


def _last_latent_head(args: Args) -> Args:
    q, k, rotated, v = args
    return q[-1:, -1:], k[-1:, -1:], rotated[-1:], v[-1:, -1:]


def _last_tokens(args: Args) -> Args:
    x, weight, target = args
    return x[-64:], weight, target[-64:]


def _last_64(out: Tensor) -> Tensor:
    return out[-64:]


def _sample(out: Tensor) -> Tensor:
    return out[-1:]


def _everything(args: Args) -> Args:
    return args


def _whole(out: Tensor) -> Tensor:
    return out


def _corner(out: Tensor) -> Tensor:
    return out[-1:, -1:]


def _last_rows(out: Tensor) -> Tensor:
    return out[-1:, -1:, -LAST:]


def _column_of(out: Tensor) -> Tensor:
    return out[-1:, :, -1:]


_SMALL = Shape(batch=2, heads=4, kv_heads=2, length=80, head_dim=16)
_LONG = Shape(batch=1, heads=2, kv_heads=1, length=300, head_dim=16)
_DIFF = Shape(batch=2, heads=4, kv_heads=4, length=72, head_dim=16)
_MSA = Shape(batch=2, heads=2, kv_heads=2, length=44, head_dim=8, rows=3)
_ONE = Shape(batch=2, heads=4, kv_heads=2, length=1, head_dim=16, keys=1024)
_PAIR = Shape(batch=1, heads=2, kv_heads=2, length=20, head_dim=8, rows=20)

# Differential attention: two maps, values of width 2D: 6 operations for each D and each of the H maps.
_ALL_VARIANTS = (
    Variant("vanilla", heads.vanilla, qkv, _all, _last_queries, _last_rows, _SMALL),
    Variant("alibi", heads.alibi, _with_slopes, _all, _last_queries_and_slope, _last_rows, _SMALL),
    Variant("softcap", heads.softcap, qkv, _all, _last_queries, _last_rows, _SMALL),
    Variant("causal", heads.causal, qkv, _causal, _last_queries, _last_rows, _SMALL),
    Variant("window", heads.window, qkv, _window, _last_queries, _last_rows, _LONG),
    Variant("window_1e10", heads.window_1e10, qkv, _window, _last_queries, _last_rows, _LONG),
    Variant("window_min", heads.window_min, qkv, _window, _last_queries, _last_rows, _LONG),
    Variant("prefix", heads.prefix, qkv, _prefix, _last_queries, _last_rows, _LONG),
    Variant("document", heads.document, _with_ids, _documents, _last_head_and_ids, _corner, _SMALL),
    Variant(
        "document_causal",
        heads.document_causal,
        _with_ids,
        _documents_causal,
        _last_head_and_ids,
        _corner,
        _SMALL,
    ),
    Variant("diff", differential.diff, _diff, _all, _last_pair, _corner, _DIFF, 6),
    Variant(
        "diff_scalar",
        differential.diff_scalar,
        _diff_with(lambda s: ()),
        _all,
        _last_pair,
        _corner,
        _DIFF,
        6,
    ),
    Variant(
        "diff_heads",
        differential.diff_heads,
        _diff_with(lambda s: (s.heads // 2,)),
        _all,
        _last_pair_and_factor,
        _corner,
        _DIFF,
        6,
    ),
    Variant(
        "diff_module",
        differential.diff_module,
        _diff_with(lambda s: (4, s.head_dim), wide=True),
        _all,
        _last_pair,
        _corner,
        _DIFF,
        6,
    ),
    Variant("evoformer", evoformer.evoformer, _evoformer, _all, _last_row, _corner, _MSA),
    Variant(
        "evoformer_column",
        evoformer.evoformer_column,
        _column,
        _all,
        _last_column,
        _column_of,
        _MSA,
    ),
    Variant("triangle", evoformer.triangle, _triangle, _all, _last_triangle_row, _corner, _MSA),
    Variant(
        "triangle_starting",
        evoformer.triangle_starting,
        _triangle_node,
        _all,
        _everything,
        _whole,
        _PAIR,
    ),
    Variant(
        "triangle_ending",
        evoformer.triangle_ending,
        _triangle_node,
        _all,
        _everything,
        _whole,
        _PAIR,
    ),
    Variant(
        "invariant_points",
        evoformer.invariant_points,
        _points,
        _all,
        _everything,
        _whole,
        Shape(batch=1, heads=3, kv_heads=3, length=40, head_dim=16),
        # scores, squared distances of 4 points, and the sums over values, 8 points and 128 pair features, in units of C = 16
        25,
    ),
    Variant("decode", heads.vanilla, qkv, _all, _last_queries, _last_rows, _ONE),
    Variant("chosen_blocks", decoding.chosen_blocks, _blocks, _chosen, _last_sample, _sample, _ONE),
    Variant(
        "latent_prefill",
        decoding.latent_prefill,
        _latent_prefill,
        _causal,
        _last_latent_head,
        _corner,
        replace(_SMALL, kv_heads=4, head_dim=80),
        10 / 3,  # D = 192 for scores, 128 for values
    ),
    Variant(
        "latent_decode",
        decoding.latent_decode,
        _latent_decode,
        _all,
        _last_sample,
        _sample,
        replace(_ONE, kv_heads=1, keys=300),
        4,
    ),
    Variant(
        "linear_cross_entropy",
        losses.linear_cross_entropy,
        _classes,
        _all,
        _last_tokens,
        _last_64,
        Shape(batch=1, heads=1, kv_heads=1, length=90, head_dim=32, keys=700),
        2,
    ),
)

VARIANTS = {v.name: v for v in _ALL_VARIANTS}
