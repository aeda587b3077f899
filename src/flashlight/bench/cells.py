"""Which cells there are: a program, a shape and a dtype each."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flashlight.programs.variants import Shape

TOKENS = 16384  # batch times length, always
PAPER = (
    "vanilla",
    "alibi",
    "softcap",
    "causal",
    "window",
    "prefix",
    "document",
    "document_causal",
)
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
FEW = (512, 4096, 16384)
HALF, BRAIN = torch.float16, torch.bfloat16


@dataclass(frozen=True)
class Cell:
    """One row of the table."""

    variant: str
    shape: Shape
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.variant} {self.shape} {short(self.dtype)}"


def short(dtype: torch.dtype) -> str:
    """fp16, bf16, fp32, fp64."""
    return {HALF: "fp16", BRAIN: "bf16", torch.float32: "fp32", torch.float64: "fp64"}[dtype]


def _heads(
    names: tuple[str, ...],
    lengths: tuple[int, ...],
    kv: int,
    head_dim: int,
    dtype: torch.dtype,
) -> list[Cell]:
    return [
        Cell(name, Shape(TOKENS // s, 16, kv, s, head_dim), dtype)
        for name in names
        for s in lengths
    ]


def _diff(lengths: tuple[int, ...], heads: int, head_dim: int) -> list[Cell]:
    return [Cell("diff", Shape(TOKENS // s, heads, heads, s, head_dim), BRAIN) for s in lengths]


def _evoformer(batches: tuple[int, ...], head_dims: tuple[int, ...]) -> list[Cell]:
    return [
        Cell("evoformer", Shape(b, 4, 4, 256, d, rows=256), BRAIN)
        for d in head_dims
        for b in batches
    ]


def _triangle() -> list[Cell]:
    sizes = ((1, 256, 32), (8, 256, 64), (1, 512, 32), (1, 1024, 32))
    return [Cell("triangle", Shape(b, 4, 4, n, d, rows=n), BRAIN) for b, n, d in sizes]


def _beyond() -> list[Cell]:
    """Programs that no template of attention states, at the sizes of their users."""
    one = [(1, 16384), (16, 16384), (64, 4096)]
    tokens = Shape(1, 1, 1, 8192, 4096, keys=128256)
    return [
        *(Cell("invariant_points", Shape(1, 12, 12, n, 16), BRAIN) for n in (256, 768)),
        *_triangle(),
        Cell("triangle_starting", Shape(1, 4, 4, 512, 32), BRAIN),
        *(Cell("decode", Shape(b, 32, 8, 1, 128, keys=t), BRAIN) for b, t in one),
        Cell("chosen_blocks", Shape(8, 32, 8, 1, 128, keys=32768), BRAIN),
        Cell("latent_prefill", Shape(1, 16, 16, 4096, 192), BRAIN),
        *(Cell("latent_decode", Shape(b, 128, 1, 1, 512, keys=t), BRAIN) for b, t in one[1:]),
        Cell("linear_cross_entropy", tokens, BRAIN),
        Cell("window", Shape(1, 16, 16, 131072, 64), BRAIN),
    ]


def _smoke() -> list[Cell]:
    """Small enough for a test on two cores."""
    head = Shape(1, 2, 2, 128, 32)
    return [
        Cell("causal", head, torch.float32),
        Cell("diff", Shape(1, 4, 4, 96, 16), torch.float32),
        Cell("evoformer", Shape(1, 2, 2, 32, 16, rows=4), torch.float32),
    ]


def _cpu() -> list[Cell]:
    """Heads of 64, B=1 H=8: lengths for what the library has by hand, the others at 128 and 2048, one long sequence."""
    f32 = torch.float32

    def at(length: int, heads: int = 8) -> Shape:
        return Shape(1, heads, heads, length, 64)

    return [
        *(Cell(name, at(s), f32) for name in ("vanilla", "causal") for s in (128, 512, 2048, 8192)),
        *(
            Cell(name, at(s), f32)
            for name in ("alibi", "softcap", "window", "prefix", "document", "diff")
            for s in (128, 2048)
        ),
        *(Cell(name, at(s), BRAIN) for name in ("vanilla", "causal") for s in (512, 2048)),
        Cell("evoformer", Shape(1, 4, 4, 256, 32, rows=16), f32),
        *(Cell(name, at(16384, heads=2), f32) for name in ("causal", "alibi")),
    ]


def grid(name: str) -> list[Cell]:
    """The cells of a named grid, in the order in which they run."""
    match name:
        case "smoke":
            return _smoke()
        case "cpu":
            return _cpu()
        case "quick":
            return [
                *_heads(PAPER, FEW, 16, 64, HALF),
                *_diff(FEW, 32, 64),
                *_diff(FEW, 16, 128),
                *_evoformer((1, 8), (64, 128)),
            ]
        case "full":
            return [
                *(
                    cell
                    for dtype in (HALF, BRAIN)
                    for kv in (16, 2)
                    for d in (64, 128)
                    for cell in _heads(PAPER, FEW, kv, d, dtype)
                ),
                *_diff(FEW, 32, 64),
                *_diff(FEW, 16, 128),
                *_evoformer((1, 8), (32, 64, 128)),
                *_triangle(),
            ]
        case "beyond":
            return _beyond()
        case "paper":
            return [
                *(
                    cell
                    for dtype in (BRAIN, HALF)
                    for kv in (16, 2)
                    for cell in _heads(PAPER, LENGTHS, kv, 64, dtype)
                ),
                *_diff(LENGTHS, 32, 64),
                *_diff(LENGTHS, 16, 128),
                *_evoformer((1, 2, 4, 8, 16, 32), (32, 64, 128)),
            ]
        case _:
            raise ValueError(f"Unknown grid '{name}'; expected one of {', '.join(GRIDS)}.")


GRIDS = ("smoke", "cpu", "quick", "full", "beyond", "paper")


def select(
    cells: list[Cell],
    *,
    variants: tuple[str, ...] = (),
    dtypes: tuple[str, ...] = (),
    lengths: tuple[int, ...] = (),
    head_dims: tuple[int, ...] = (),
    kv_heads: tuple[int, ...] = (),
) -> list[Cell]:
    """The cells that every given filter lets through; an empty filter lets everything through."""
    return [
        c
        for c in cells
        if (not variants or c.variant in variants)
        and (not dtypes or short(c.dtype) in dtypes)
        and (not lengths or c.shape.length in lengths)
        and (not head_dims or c.shape.head_dim in head_dims)
        and (not kv_heads or c.shape.kv_heads in kv_heads)
    ]
