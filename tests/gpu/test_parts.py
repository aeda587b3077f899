"""Results that are parts of a concatenation, on a device: as calls, and as replays of CUDA graphs."""

from __future__ import annotations

import pytest
import torch

from tests.support.called_process import PROGRAMS, arguments

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("mode", [None, "reduce-overhead"], ids=["calls", "graphs"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_right(name: str, mode: str | None) -> None:
    torch._dynamo.reset()
    program = PROGRAMS[name]
    args = arguments("cuda", torch.bfloat16)
    compiled = torch.compile(program, backend="flashlight", mode=mode)
    with torch.no_grad():
        for scale in (
            1,
            1,
            1.5,
        ):  # a graph is recorded at the second call and replayed at the third
            given = [x * scale for x in args]
            got, want = compiled(*given), program(*(x.double() for x in given))
            several = (got, want) if isinstance(want, tuple) else ((got,), (want,))
            for a, b in zip(*several, strict=True):
                torch.testing.assert_close(a.double(), b, rtol=2e-2, atol=2e-2)
