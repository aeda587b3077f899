"""Tensors to tune on, while a graph is compiled and its own tensors are not there.

Floats are random and integers are 0, which is in range of whatever they index. But how much a kernel does may depend on integers:
a mask of data (ids of documents, lengths, a mask that is handed in) leaves a part of the columns, which earlier loops of the
program find. Zeros may leave none, and then every schedule is as fast as any other. So such data takes several values in turn
until some columns are left, but not all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from flashlight.codegen.tile_step import expressions_of
from flashlight.ir.exprs import Index
from flashlight.ir.interpret import value_of
from flashlight.ir.visit import free_dims, loads, reads, substitute
from flashlight.rewrite.schedule import Bounds, evaluate, first, last
from flashlight.runtime.gpu import Step

FEW, MOST = 0.1, 0.9
"""Shares of the columns between which a kernel has tiles to skip as well as tiles to run."""

RUNS = 6
"""Runs of equal values along an axis, as ids of documents have."""


class Examples:
    """The tensors of one program, made on demand and kept: a kernel is tuned on what those before it gave."""

    def __init__(
        self,
        steps: Sequence[Step],
        make: Callable[[str], Tensor],
        run: Callable[[Step, Mapping[str, Tensor]], object],
        sizes: Mapping[str, int],
    ) -> None:
        """Examples of a program.

        Args:
            steps: its kernels, in order.
            make: an uninitialised tensor of the sizes, strides and type of the buffer of that name.
            run: launches a kernel that has been tuned.
            sizes: the likely value of each symbolic size.
        """
        self.steps = steps
        self.make = make
        self.run = run
        self.sizes = sizes
        self.tensors: dict[str, Tensor] = {}
        self.given = {g.name for step in steps for g in step.loop.gives}
        every = loads(*(e for step in steps for e in expressions_of(step.loop)))
        self.indices = reads(*(i for load in every for i in load.index))

    def of(self, step: Step) -> dict[str, Tensor]:
        """The tensors of a kernel; those before it have run."""
        for name in step.tensors:
            if name not in self.tensors:
                self.tensors[name] = self.make(name)
                fill(self.tensors[name])
        self._leave_some_columns(step)
        return {name: self.tensors[name] for name in step.tensors}

    def _leave_some_columns(self, step: Step) -> None:
        """Give the data on which the step's ranges depend such values that it runs some tiles and skips others."""
        read = reads(*(e for bounds in _bounds(step) for e in (bounds.lo, bounds.hi)))
        before = self.steps[: self.steps.index(step)] if self.given & read else ()
        read |= {b.name for s in before for b in s.kernel.reads}
        known = {name: self.tensors[name] for name in read - self.given - self.indices}
        data = [t for t in known.values() if not t.is_floating_point()]
        if not data:
            return

        def try_out(values: Callable[[Tensor, int], object]) -> float:
            for tensor in data:
                values(distinct(tensor), self._columns(step))
            for s in before:
                self.run(s, self.tensors)
            return self.share(step)

        shares: dict[Callable[[Tensor, int], object], float] = {}
        for values in (_runs, _ramp, _half, _nothing):
            shares[values] = try_out(values)
            if FEW <= shares[values] <= MOST:
                return
        try_out(max(shares, key=lambda values: shares[values]))

    def share(self, step: Step) -> float:
        """The share of the columns between the bounds of a step's passes, on the average."""
        shares = [self._span(bounds, step) for bounds in _bounds(step)]
        return sum(shares) / len(shares) / max(1, self._columns(step)) if shares else 1.0

    def _span(self, bounds: Bounds, step: Step) -> float:
        """Columns between bounds, on the average over tiles of one row."""
        rows = step.schedules[0].rows
        row = {end(d): Index(d) for d in rows for end in (first, last)}
        lo, hi = (substitute(e, row) for e in (bounds.lo, bounds.hi))
        arrays = {name: self.tensors[name].cpu().numpy() for name in reads(lo, hi)}
        dims = tuple(free_dims(lo) | free_dims(hi))
        ends = [value_of(e, dims, arrays, self.sizes) for e in (lo, hi)]
        start, stop = (np.clip(e, 0, self._columns(step)) for e in ends)
        return float(np.mean(np.maximum(stop - start, 0)))

    def _columns(self, step: Step) -> int:
        return evaluate(step.schedules[0].cols[0].extent, self.sizes)


def _bounds(step: Step) -> list[Bounds]:
    return [b for b in step.schedules[0].bounds if b is not None]


def fill(tensor: Tensor) -> None:
    """Random floats, or zeros; elements may share memory, as those of an expanded tensor do."""
    memory = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.itemsize,), (1,))
    memory.normal_() if tensor.dtype.is_floating_point else memory.zero_()


def distinct(tensor: Tensor) -> Tensor:
    """The elements of an expanded tensor that do not share memory."""
    return tensor[tuple(slice(0, 1) if s == 0 else slice(None) for s in tensor.stride())]


def _runs(tensor: Tensor, columns: int) -> None:
    """Runs of 0, 1, 2, ... along the last axis."""
    _grow(tensor, RUNS)


def _half(tensor: Tensor, columns: int) -> None:
    """A position in the middle, as of a length; true for a condition."""
    tensor.fill_(
        min(columns // 2, torch.iinfo(tensor.dtype).max) if tensor.dtype != torch.bool else 1
    )


def _ramp(tensor: Tensor, columns: int) -> None:
    """Positions in the columns, growing along the last axis, as of the starts of documents."""
    _grow(tensor, columns)


def _grow(tensor: Tensor, end: int) -> None:
    """Whole numbers from 0 up to `end` along the last axis."""
    length = tensor.shape[-1] if tensor.dim() else 1
    along = torch.arange(length, device=tensor.device) * end // max(1, length)
    tensor.copy_(along.expand(tensor.shape))


def _nothing(tensor: Tensor, columns: int) -> None:
    tensor.zero_()
