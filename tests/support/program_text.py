"""The text of a small program in the form that the fuzzer judges."""

from __future__ import annotations

_FILE = """
import torch

SEED = {seed}
DTYPES = ["float32"]
DYNAMIC = False


def make(device, dtype, scale, gen):
    def rand(*shape):
        return torch.randn(shape, generator=gen, dtype=torch.float64).to(dtype)

{make}


def fn({names}):
{fn}
"""


def program_text(names: str, make: str, fn: str, seed: int = 0) -> str:
    """A float32 program.

    Args:
        names: parameters of `fn`.
        make: body (indented) that returns its arguments; `rand(*shape)` and `gen` are there.
        fn: body (indented) that returns its results.
        seed: from which what else is random about the judgement is drawn.
    """
    return _FILE.format(names=names, make=make, fn=fn, seed=seed)
