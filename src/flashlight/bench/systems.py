"""The systems that are compared. Each makes a call without arguments for a cell, or says why it does not apply."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from flashlight.bench.cells import Cell
from flashlight.programs.flex import Flex, flex_for
from flashlight.programs.sdpa import HAS_BIAS, sdpa_for
from flashlight.programs.variants import VARIANTS, Args

Call = Callable[[], Tensor]


class NotApplicableError(Exception):
    """The system cannot state the cell's function."""


@dataclass(frozen=True)
class System:
    """One column of the table.

    Attributes:
        name: its heading.
        make: from a cell and its arguments, the call to time. Compiling happens at the first call.
        whole: whether it computes the same from the same arguments; "flex" has its mask built beforehand.
    """

    name: str
    make: Callable[[Cell, Args], Call]
    whole: bool = True


def _eager(cell: Cell, args: Args) -> Call:
    return partial(VARIANTS[cell.variant].fn, *args)


def _ours(cell: Cell, args: Args) -> Call:
    return partial(compiled_by_us(cell), *args)


def compiled_by_us(cell: Cell) -> Callable[..., Tensor]:
    """The program under our backend, one code for one shape."""
    from flashlight.backend import flashlight

    return torch.compile(VARIANTS[cell.variant].fn, backend=flashlight, dynamic=False)


def _compile(cell: Cell, args: Args) -> Call:
    return partial(torch.compile(VARIANTS[cell.variant].fn, dynamic=False), *args)


def _flex_parts(cell: Cell, args: Args) -> Flex:
    flex = flex_for(cell.variant, args)
    if flex is None:
        raise NotApplicableError("its API has no such scores")
    return flex


def _block_mask(cell: Cell, flex: Flex, args: Args) -> Callable[[], BlockMask | None]:
    if flex.mask_mod is None:
        return lambda: None
    build = torch.compile(create_block_mask, dynamic=False)
    samples = cell.shape.batch if flex.mask_per_sample else None
    length, device = cell.shape.length, args[0].device
    mask_mod = flex.mask_mod
    return lambda: build(mask_mod, samples, None, length, length, device=device)


def _flex_kernel(cell: Cell, flex: Flex, args: Args) -> Callable[[BlockMask | None], Tensor]:
    kernel = torch.compile(flex_attention, dynamic=False)
    q, k, v = args[:3]
    grouped = q.shape[1] != k.shape[1]
    return lambda mask: kernel(
        q, k, v, score_mod=flex.score_mod, block_mask=mask, enable_gqa=grouped
    )


def _flex(cell: Cell, args: Args) -> Call:
    flex = _flex_parts(cell, args)
    mask = _block_mask(cell, flex, args)()
    return partial(_flex_kernel(cell, flex, args), mask)


def _flex_and_mask(cell: Cell, args: Args) -> Call:
    flex = _flex_parts(cell, args)
    if flex.mask_mod is None:
        raise NotApplicableError("there is no mask to build")
    build, kernel = _block_mask(cell, flex, args), _flex_kernel(cell, flex, args)
    return lambda: kernel(build())


def _sdpa(backend: SDPBackend | None, cell: Cell, args: Args) -> Call:
    fn = sdpa_for(cell.variant)
    if fn is None or (backend and cell.variant in HAS_BIAS):
        raise NotApplicableError("the call has no such scores")
    if backend is None:
        return partial(fn, *args)

    def call() -> Tensor:
        with sdpa_kernel([backend]):
            return fn(*args)

    return call


SYSTEMS = (
    System("ours", _ours),
    System("eager", _eager),
    System("compile", _compile),
    System("flex", _flex, whole=False),
    System("flex+mask", _flex_and_mask),
    System("cudnn", partial(_sdpa, SDPBackend.CUDNN_ATTENTION)),
    System("fa2", partial(_sdpa, SDPBackend.FLASH_ATTENTION)),
    System("sdpa", partial(_sdpa, None)),
)
BY_NAME = {s.name: s for s in SYSTEMS}
ON_CUDA = ("ours", "eager", "compile", "flex", "flex+mask", "cudnn", "fa2", "sdpa")
ON_CPU = ("ours", "eager", "compile", "flex", "sdpa")


@contextmanager
def fresh_compilers() -> Iterator[None]:
    """Dynamo forgets what it has compiled: otherwise a second shape of one function becomes dynamic, or hits the limit."""
    torch._dynamo.reset()
    try:
        with torch.no_grad():
            yield
    finally:
        torch._dynamo.reset()
