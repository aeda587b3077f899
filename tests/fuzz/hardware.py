"""What a GPU may do and Triton's interpreter does not: round a product and a sum once, leave what is not loaded undefined, and
compute elementary functions to their last digits where arguments are small.

A compiler contracts each addition of a product that it can, or none (its `enable_fp_fusion`); where both sides are products, either
is rounded. Two values that are the same number on paper then differ by a rounding, as they have on hardware.
"""

from __future__ import annotations

import linecache
import math
import random
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

STRANGE = 97  # what is not loaded, where it is an integer

EXACT = {
    "tanh": np.tanh,
    "expm1": np.expm1,
    "log1p": np.log1p,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tan": np.tan,
    "round": np.rint,
    "trunc": np.trunc,
}


@contextmanager
def like_hardware(seed: int) -> Iterator[None]:
    """Until the end, kernels are interpreted so; a seed decides which products are rounded."""
    import triton.language as tl
    from triton.runtime import interpreter

    from flashlight.codegen import triton_ops

    texts = {name: f"tl.exact_{name}({{0}})" for name in EXACT}
    functions = {f"exact_{name}": _elementwise(f) for name, f in EXACT.items()}
    builder, patch_core = interpreter.InterpreterBuilder, interpreter._patch_lang_core
    contraction = _Contraction(seed)

    def patch(lang: Any, scope: Any) -> None:
        patch_core(lang, scope)
        scope.set_attr(lang, "range", contraction.range(lang.range))

    with (
        mock.patch.dict(triton_ops._INTERPRETED, texts),
        mock.patch.multiple(tl, create=True, **functions),
        mock.patch.object(interpreter, "_patch_lang_core", patch),
        mock.patch.multiple(
            builder,
            create_fmul=contraction.product(builder.create_fmul),
            create_fadd=contraction.sum(builder.create_fadd, 1),
            create_fsub=contraction.sum(builder.create_fsub, -1),
            create_masked_load=_undefined(builder.create_masked_load),
        ),
    ):
        yield


class _Contraction:
    """Products remember their factors, for sums in the same iteration: what a loop carries is rounded."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.contracts = random.Random(f"{seed} fusion").random() < 0.75
        self.iteration = 0
        self.drawn: dict[tuple[str, int], int] = {}

    def range(self, plain: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
        def counted(*args: Any, **kw: Any) -> Iterator[Any]:
            for i in plain(*args, **kw):
                self.iteration += 1
                yield i
            self.iteration += 1

        return counted

    def product(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def multiply(builder: Any, a: Any, b: Any) -> Any:
            made = plain(builder, a, b)
            if made.data.dtype == np.float32:
                made.factors = a.data, b.data, self.iteration
            return made

        return multiply

    def sum(self, plain: Callable[..., Any], sign: int) -> Callable[..., Any]:
        def add(builder: Any, a: Any, b: Any) -> Any:
            made = plain(builder, a, b)
            sides = [n for n, x in enumerate((a, b)) if self._is_product(x)]
            if not sides:
                return made
            exact = [x.data.astype(np.float64) for x in (a, b)]
            side = sides[0] if len(sides) == 1 else self._draw(_line())
            x, y, _ = (a, b)[side].factors
            exact[side] = x.astype(np.float64) * y
            made.data = (exact[0] + sign * exact[1]).astype(np.float32)
            return made

        return add

    def _draw(self, line: tuple[str, int]) -> int:
        if line not in self.drawn:
            text = re.sub(r"_\d+", "", linecache.getline(*line).strip())
            self.drawn[line] = random.Random(f"{self.seed} {text}").getrandbits(1)
        return self.drawn[line]

    def _is_product(self, x: Any) -> bool:
        factors = getattr(x, "factors", None)
        return self.contracts and factors is not None and factors[2] == self.iteration


def _line() -> tuple[str, int]:
    """Of the kernel that is being interpreted."""
    frame = sys._getframe(2)
    while frame.f_back is not None and not frame.f_code.co_filename.endswith("kernel.py"):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _elementwise(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: Any) -> Any:
        from triton.runtime.interpreter import TensorHandle

        handle = TensorHandle(function(x.handle.data), x.handle.dtype)
        return type(x)(handle, x.type)

    return run


def _undefined(plain: Callable[..., Any]) -> Callable[..., Any]:
    def load(builder: Any, pointers: Any, mask: Any, other: Any, *rest: Any, **kw: Any) -> Any:
        made = plain(builder, pointers, mask, other, *rest, **kw)
        if other is None:
            is_float = pointers.get_element_ty().is_floating()
            strange = _strange_bits(made.data.dtype) if is_float else STRANGE
            made.data = np.where(mask.data, made.data, strange).astype(made.data.dtype)
        return made

    return load


def _strange_bits(dtype: np.dtype[Any]) -> Any:
    """NaN; bf16 is kept as its bits."""
    return 0x7FC0 if dtype == np.uint16 else math.nan
