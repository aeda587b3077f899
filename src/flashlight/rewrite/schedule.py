"""Schedules as values: how a loop is tiled, what it may skip, and what the choice must know of a device and of sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from flashlight.ir.exprs import ZERO, Binary, Const, Dim, Expr, Size

Unit = Literal["gpu", "cpu"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where a pass need not run, for a tile of rows: four positions lo <= full_lo <= full_hi <= hi along the tiled loop dim.

    Only positions in [lo, hi), and those before `head`, can contribute; in [full_lo, full_hi) every condition of `holds` is true
    for all rows of the tile. The expressions read sizes, grid dims (`Index(dim)`), loads at those, and the extremes of a row tile, spelled
    `Index(first(dim))` and `Index(last(dim))` for a dim of the rows. They are clipped to the dim's extent and rounded to tiles
    outwards (lo, hi) and inwards (full_lo, full_hi) when lowered.
    """

    lo: Expr
    full_lo: Expr
    full_hi: Expr
    hi: Expr
    holds: tuple[Expr, ...] = ()
    head: Expr = ZERO

    def __str__(self) -> str:
        head = "" if self.head is ZERO else f"[0, {self.head}) and "
        sure = " & ".join(dict.fromkeys(map(str, self.holds)))
        full = f"; in [{self.full_lo}, {self.full_hi}) {sure} is sure" if sure else ""
        return f"{head}[{self.lo}, {self.hi}){full}"


def first(dim: Dim) -> Dim:
    """Stands for the smallest position of `dim` in a row tile, inside `Bounds`."""
    return Dim(f"{dim.name}.first", dim.extent)


def last(dim: Dim) -> Dim:
    """Stands for the largest position of `dim` in a row tile, inside `Bounds`."""
    return Dim(f"{dim.name}.last", dim.extent)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A loop's tiling.

    Attributes:
        grid: kept dims that are enumerated by program instances, outermost first.
        rows: kept dims linearised into the rows axis; empty where no operand would be reused.
        row_block: rows in a tile.
        outer: loop dims run one position at a time, around the sweep.
        cols: loop dims linearised into the cols axis.
        col_block: positions of cols in a tile.
        warps, stages: of a program instance (GPU).
        descending: run row tiles from the last to the first.
        group: grid points whose row tiles are interleaved (heaviest first within a group); 1 keeps a grid point's tiles together.
        tma: fetch tiles by descriptors where strides and alignment allow.
        bounds: for each pass, where it may skip; None runs all.
        skips: for each pass, a condition on rows and cols without which an element has nothing to do: tiles in which it holds
            nowhere are left out (decided by looking, where bounds cannot tell beforehand).
        exact: the emitter ends each tile where its dims or bounds end, so nothing is padded or masked for being past an end.
        merged: run the tiles between the bounds as one loop that checks them all, instead of sparing the full ones in a loop of
            their own: each loop fills its pipeline anew.
        consumers: groups of four warps that compute, each 64 rows of the tile, while one more warp copies tiles (codegen/gluon.py);
            0: all warps do everything.
    """

    grid: tuple[Dim, ...]
    rows: tuple[Dim, ...]
    row_block: int
    outer: tuple[Dim, ...]
    cols: tuple[Dim, ...]
    col_block: int
    warps: int = 4
    stages: int = 2
    descending: bool = False
    group: int = 1
    tma: bool = False
    bounds: tuple[Bounds | None, ...] = ()
    skips: tuple[Expr | None, ...] = ()
    exact: bool = False
    merged: bool = False
    consumers: int = 0

    def __str__(self) -> str:
        def names(dims: tuple[Dim, ...]) -> str:
            return ", ".join(d.name for d in dims)

        flags = "".join(
            [
                f" outer ({names(self.outer)})" if self.outer else "",
                " descending" if self.descending else "",
                f" group {self.group}" if self.group > 1 else "",
                " tma" if self.tma else "",
                " merged" if self.merged else "",
                f" consumers {self.consumers}" if self.consumers else "",
            ]
        )
        return (
            f"grid ({names(self.grid)}) rows ({names(self.rows)}) x {self.row_block}"
            f" cols ({names(self.cols)}) x {self.col_block} warps {self.warps} stages {self.stages}{flags}"
        )

    def notes(self) -> tuple[str, ...]:
        """What each pass leaves out, for a reader."""
        cols = ", ".join(d.name for d in self.cols)
        ranges = [f"reads {cols} in {b}" for b in self.bounds if b is not None]
        skips = [f"skips tiles of {cols} without {s}" for s in self.skips if s is not None]
        return tuple(dict.fromkeys(ranges + skips))


@dataclass(frozen=True, slots=True)
class Device:
    """What the tiling must know of a device.

    Attributes:
        registers: 32-bit registers of a thread that a tile may use before spills are likely.
        shared: bytes of shared memory of a program instance.
        units: program instances that run at once (multiprocessors, cores).
        tma: whether tile descriptors exist.
        roles: whether warps can have roles of their own (`Schedule.consumers`).
        cached: bytes that instances at work side by side may stream through the cache they share.
    """

    unit: Unit = "gpu"
    registers: int = 250
    shared: int = 227 * 1024
    units: int = 132
    tma: bool = True
    roles: bool = False
    cached: int = 16 << 20


HOPPER = Device()
AMPERE = Device(registers=170, shared=163 * 1024, units=108, tma=False)


# -- Sizes.

LONG = 4096
"""Positions to plan for where a size is not known, or changes from call to call."""


def extent_of(dim: Dim, hints: Mapping[str, int]) -> int:
    """The extent of a dim, sizes taken from `hints` (unknown sizes count as large)."""
    return max(1, evaluate(dim.extent, hints, unknown=LONG))


def planned_extent(dim: Dim, hints: Mapping[str, int]) -> int:
    """The extent a schedule is made for. One kernel serves all sizes, so a symbolic one counts as long even where the first call
    is short: large tiles cost a short call little, small ones a long call much. Fewer than 16 are taken for few always (tokens
    at a time, heads).
    """
    extent = extent_of(dim, hints)
    return extent if isinstance(dim.extent, Const) or extent < 16 else max(extent, LONG)


def planned_sizes(hints: Mapping[str, int]) -> dict[str, int]:
    """The sizes that a schedule is made for; see `planned_extent`."""
    return {name: n if n < 16 else max(n, LONG) for name, n in hints.items()}


def extents_product(dims: tuple[Dim, ...], hints: Mapping[str, int]) -> int:
    """Positions of several dims together."""
    return math.prod(extent_of(d, hints) for d in dims)


def evaluate(expr: Expr, sizes: Mapping[str, int], unknown: int | None = None) -> int:
    """The value of an integer expression over sizes."""
    match expr:
        case Const(value, _):
            return int(value)
        case Size(name):
            if unknown is not None:
                return sizes.get(name, unknown)
            return sizes[name]
        case Binary(op, a, b):
            return integer(op, evaluate(a, sizes, unknown), evaluate(b, sizes, unknown))
        case _:
            msg = f"An extent is built of constants, sizes and arithmetic, got '{expr}'."
            raise TypeError(msg)


def integer(op: str, a: int, b: int) -> int:
    """An operator of extents on numbers."""
    match op:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return a * b
        case "floordiv":
            return a // max(b, 1)
        case "mod":
            return a % max(b, 1)
        case "min":
            return min(a, b)
        case "max":
            return max(a, b)
        case _:
            msg = f"'{op}' is no arithmetic on extents."
            raise TypeError(msg)


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()
