"""Programs by the Triton kernels of a GPU, in Triton's interpreter, under schedules drawn at random.

A schedule is drawn for each kernel from those that tuning would try, with small tiles, so that short sweeps have several. What
programs of this size would not take is drawn too: loops that find ranges first, split keys, split accumulators, offsets of 64
bits. Every tensor that a kernel is given lies amid NaN, and is NaN until written, so that what is read or written past its end
shows. Products and sums are rounded once in places, as on hardware (`tests.fuzz.hardware`).

Triton reads TRITON_INTERPRET when a kernel is decorated: set it before anything imports triton (`python -m tests.fuzz --triton`
does). What the interpreter cannot show: rounding of a GPU's fast functions, tf32, races, layouts, registers.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from flashlight.errors import Refusal
from flashlight.ir.exprs import Buffer
from flashlight.ir.nests import Loop, Program
from flashlight.rewrite import ranges, split_keys
from flashlight.rewrite.schedule import HOPPER, Device, Schedule
from flashlight.rewrite.tile import instances
from flashlight.runtime import gpu
from tests.fuzz.hardware import STRANGE, like_hardware
from tests.fuzz.judge import Verdict, built_by, captured, load
from tests.support.triton_process import patch_interpreter

MARGIN = 1 << 12  # elements on both sides of a tensor
INSTANCES = 64  # of a kernel, for each of which its program runs once


def triton(text: str) -> Verdict:
    """Trace, capture, optimize and lower for a GPU; interpret the kernels and execute everything else eagerly."""
    _patched()
    draw = _Draw(load(text).SEED)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        with draw.taken(), built_by(draw.build), like_hardware(draw.seed):
            verdict = captured(text)
    verdict.schedules = draw.schedules
    return verdict


@cache
def _patched() -> None:
    if not gpu._INTERPRETING:
        msg = "Set TRITON_INTERPRET=1 before triton is imported."
        raise RuntimeError(msg)
    patch_interpreter()


class _Draw:
    """The choices of a target that a program is given.

    Attributes:
        schedules: those drawn so far, as text.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.schedules: list[str] = []
        rng = random.Random(f"{seed} target")
        units = rng.choice((1, 8, HOPPER.units))
        self.device = replace(HOPPER, tma=rng.random() < 0.6, units=units)
        self.grain = rng.choice((16, 64))
        self.parts = rng.choice((1, 1, 1, 2, 3, 5))
        self.part_multiple = rng.choice((16, 32, 128))
        self.is_wide = rng.random() < 0.15
        self.unaligned = random.Random(f"{seed} addresses")
        self.shortest = rng.choice((32, 1 << 30))
        self.shared = rng.choice((1, gpu.SHARED))
        self.accumulated = rng.choice((0, gpu.ACCUMULATED))
        self.less_fetched = rng.choice((math.inf, gpu.LESS_FETCHED))
        self.many = rng.choice((32, gpu.MANY))

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Until the end, what is built for a GPU follows these choices."""
        plain = gpu.schedules_for

        def drawn(
            program: Program, loop: Loop, hints: Mapping[str, int], *rest: Any
        ) -> list[Schedule]:
            return [self.schedule(plain(program, loop, hints, *rest), hints)]

        with (
            mock.patch.multiple(
                gpu,
                device_model=self._device,
                schedules_for=drawn,
                parts_for=lambda rows, length, units: self.parts,
                is_wide=lambda tensor, tiled: self.is_wide,
                SHORTEST=self.shortest,
                MANY=self.many,
                SHARED=self.shared,
                ACCUMULATED=self.accumulated,
                LESS_FETCHED=self.less_fetched,
            ),
            mock.patch.object(ranges, "GRAIN", self.grain),
            mock.patch.object(split_keys, "PART_MULTIPLE", self.part_multiple),
        ):
            yield

    def _device(self, device: torch.device) -> Device:
        return self.device

    def schedule(self, found: Sequence[Schedule], hints: Mapping[str, int]) -> Schedule:
        """One of several, with tiles of another size, and not too many of them."""
        rng = random.Random(f"{self.seed} kernel {len(self.schedules)}")
        s = rng.choice(found)
        rows, cols = s.row_block, s.col_block
        if s.rows:
            most = min(2 * self.grain, 64)
            sizes = (16, 16, 32, most) if rows >= 16 else (rows, 4, 16)
            rows = rng.choice(sizes)
            if instances(replace(s, row_block=rows), hints) > INSTANCES:
                rows = max(sizes)
        if cols >= 16:
            cols = rng.choice((16, 16, 32, min(cols, 64)))
        s = replace(s, row_block=rows, col_block=cols, merged=rng.random() < 0.3)
        s = replace(s, descending=rng.random() < 0.5, tma=self.device.tma and rng.random() < 0.8)
        self.schedules.append(str(s))
        return s

    def build(
        self, program: Program, device: torch.device, options: Any, hints: Mapping[str, int]
    ) -> _Interpreted | Refusal:
        built = gpu.build(program, device, options, hints)
        return built if isinstance(built, Refusal) else _Interpreted(built, self.unaligned)


class _Interpreted:
    """An executable whose tensors lie amid NaN, one in five of them off the addresses that descriptors want."""

    def __init__(self, built: gpu.GpuExecutable, rng: random.Random) -> None:
        self.built = built
        self.program = built.program
        self.kernels = built.kernels
        self.rng = rng

    def __call__(self, inputs: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        made: list[Tensor] = []

        def empty(buffer: Buffer, known: Mapping[str, int], device: torch.device) -> Tensor:
            around, inside = _amid(plain(buffer, known, device), 0)
            around.fill_(_strange(around.dtype))
            made.append(around)
            outside.append(_outside(around, inside))
            return inside

        plain, outside = gpu.empty, []
        moved = [_amid(t, int(self.rng.random() < 0.2))[1] for t in inputs]
        with mock.patch.object(gpu, "empty", empty):
            results = self.built(moved, sizes)
        for around, places in zip(made, outside, strict=True):
            if not _is_strange(around[places]).all():
                raise AssertionError("A kernel wrote past the end of a tensor.")
        return results


def _amid(t: Tensor, shift: int) -> tuple[Tensor, Tensor]:
    """(memory, a copy of a tensor in it), with what is strange in all other places."""
    start = MARGIN + shift
    span = 1 + sum(max(0, n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    around = torch.full((start + span + MARGIN,), _strange(t.dtype), dtype=t.dtype)
    inside = around.as_strided(t.shape, t.stride(), start)
    once = tuple(slice(0, 1) if s == 0 else slice(None) for s in t.stride())
    inside[once] = t[once]
    return around, inside


def _outside(around: Tensor, inside: Tensor) -> Tensor:
    """Which places of a tensor's memory are none of its elements."""
    places = torch.ones(around.shape, dtype=torch.bool)
    places.as_strided(inside.shape, inside.stride(), inside.storage_offset()).fill_(False)
    return places


def _strange(dtype: torch.dtype) -> Any:
    if dtype.is_floating_point:
        return math.nan
    return True if dtype is torch.bool else STRANGE


def _is_strange(t: Tensor) -> Tensor:
    return t.isnan() if t.is_floating_point() else t == _strange(t.dtype)
