"""The pipeline's passes by name, and the comparison of two programs by the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from flashlight import pipeline
from flashlight.errors import Refusal
from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import Buffer
from flashlight.ir.interpret import Array, integer, interpret
from flashlight.ir.nests import Program
from flashlight.rewrite.canonical import canonicalize

Step = Callable[[Program], "Program | Refusal"]

SIZE = 7  # of a symbolic size, where --check makes inputs; then 8, 9, ...
CLOSE = 1e-9


def _canonical(program: Program) -> Program:
    return canonicalize(program)[0]


_canonical.__doc__ = canonicalize.__doc__


def _named() -> dict[str, Step]:
    """In the pipeline's order; a pass that runs twice has one name."""
    steps: dict[str, Step] = {}
    for step in pipeline.CANONICAL:
        steps.setdefault(step.__name__.removesuffix("_program").replace("_", "-"), step)
    return {**steps, "canonicalize": _canonical, "optimize": pipeline.optimize}


PASSES: Mapping[str, Step] = _named()


def equal_by_interpreter(a: Program, b: Program, seed: int = 0) -> str:
    """Empty if both give the same values and non-finite places on random inputs, else what differs."""
    if {x.name for x in a.inputs} != {x.name for x in b.inputs}:
        return "not compared: the inputs differ, as canonicalize renames them"
    sizes = {s.name: SIZE + n for n, s in enumerate(a.sizes)}
    inputs = random_inputs(a, sizes, seed)
    before, after = interpret(a, inputs, sizes=sizes), interpret(b, inputs, sizes=sizes)
    for name, other in zip(a.outputs, b.outputs, strict=True):
        x, y = before[name].astype(np.float64), after[other].astype(np.float64)
        if x.shape != y.shape:
            return f"'{name}' has shape {x.shape}, then {y.shape}"
        if not np.array_equal(np.isfinite(x), np.isfinite(y)):
            return f"'{name}' has other non-finite places"
        finite = np.isfinite(x)
        scale = float(np.abs(x[finite]).max(initial=1.0))
        error = float(np.abs(x[finite] - y[finite]).max(initial=0.0)) / scale
        if error > CLOSE:
            return f"'{name}' differs by {error:.1e}"
    return ""


def random_inputs(program: Program, sizes: Mapping[str, int], seed: int) -> dict[str, Array]:
    """Normal floats, small integers, mixed bools."""
    gen = np.random.default_rng(seed)
    return {b.name: _random(b, sizes, gen) for b in program.inputs}


def _random(buffer: Buffer, sizes: Mapping[str, int], gen: np.random.Generator) -> Array:
    shape = tuple(integer(e, sizes) for e in buffer.shape)
    if buffer.dtype.is_float:
        return gen.standard_normal(shape)
    if buffer.dtype is DType.BOOL:
        return gen.random(shape) < 0.7
    return gen.integers(0, 3, shape)
