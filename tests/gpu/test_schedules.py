"""Every schedule that tuning may choose gives the right result, through Inductor's own code, on a device."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from flashlight.bench.measure import relative_error
from flashlight.programs.variants import VARIANTS, Shape
from flashlight.rewrite.schedule import Schedule
from flashlight.runtime import gpu, op

pytestmark = pytest.mark.gpu

SHAPES = {
    "decode": Shape(2, 8, 2, 1, 128, keys=1000),
    "latent_decode": Shape(2, 16, 1, 1, 512, keys=1000),
    "latent_prefill": Shape(1, 4, 4, 500, 192),
    "evoformer": Shape(1, 4, 4, 200, 64, rows=40),
    "triangle": Shape(1, 4, 4, 200, 32, rows=40),
    "chosen_blocks": Shape(2, 8, 2, 1, 128, keys=2048),
    "linear_cross_entropy": Shape(1, 1, 1, 300, 1100, keys=3000),
    "diff": Shape(2, 16, 16, 600, 64),
}
HEADS = Shape(2, 40, 40, 700, 64)
WIDE = Shape(2, 40, 40, 1024, 128)
NAMES = (
    *("vanilla", "alibi", "softcap", "causal", "window", "prefix", "document", "document_causal"),
    *SHAPES,
)
TRIED = 6


@pytest.mark.parametrize("name", NAMES)
def test_every_schedule_is_right(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHLIGHT_TUNE", "off")
    variant, usual = VARIANTS[name], gpu.schedules_for
    for shape in [SHAPES[name]] if name in SHAPES else [HEADS, WIDE]:
        args = variant.make(shape, torch.bfloat16, torch.device("cuda"), 1)
        exact = variant.fn(*(t.double() if t.is_floating_point() else t for t in args))
        allowed = 2 * relative_error(variant.fn(*args), exact) + 4 * 2**-7
        for turn in range(TRIED):

            def turned(*given: object, turn: int = turn, **more: object) -> Sequence[Schedule]:
                found = usual(*given, **more)  # type: ignore[arg-type]
                return found[turn % len(found) :] + found[: turn % len(found)]

            monkeypatch.setattr(gpu, "schedules_for", turned)
            torch._dynamo.reset()
            op._built.clear()
            with torch.no_grad():
                out = torch.compile(variant.fn, backend="flashlight", dynamic=False)(*args)
            error = relative_error(out, exact)
            assert error <= allowed, f"{shape}, schedule {turn}: {error:.2e}, allowed {allowed:.2e}"
