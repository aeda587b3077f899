"""Compiles programs for a GPU that is not there, and runs the loops that Inductor's code calls in Triton's interpreter.

`python -m tests.support.called_process`: one JSON object, what each program of `PROGRAMS` gave. A process of its own because the
interpreter is chosen as Triton is imported.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

BATCH, HEADS, LENGTH, WIDTH, OTHER = 2, 3, 24, 16, 40

Program = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Any]


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT * 0.3, -1) @ v


def merged(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k, v).transpose(1, 2).reshape(q.shape[0], q.shape[2], -1)


def twice(q: Tensor, k: Tensor, v: Tensor, x: Tensor, y: Tensor) -> Tensor:
    once = merged(q, k, v)
    return torch.cat([once, once], -1)


def returned(q: Tensor, k: Tensor, v: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    once = merged(q, k, v)
    return torch.cat([once, x], -1), once


def alike(q: Tensor, k: Tensor, v: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Two regions of which the second has the first one's results."""
    return torch.cat([merged(q, k, v), x], -1), torch.cat([x, merged(q, k, v)], -1)


PROGRAMS: dict[str, Program] = {
    "features": lambda q, k, v, x, y: torch.cat([x * 2, merged(q, k, v)], -1),
    "positions": lambda q, k, v, x, y: torch.cat([y.sin(), merged(q, k, v), y], 1),
    "samples": lambda q, k, v, x, y: torch.cat([attention(q, k, v), attention(k, q, v)]),
    "heads": lambda q, k, v, x, y: torch.cat([attention(q, k, v), v.exp()], 1),
    "before a function": lambda q, k, v, x, y: torch.cat([merged(q, k, v), x], -1).relu(),
    "of another type": lambda q, k, v, x, y: torch.cat([merged(q, k, v), x.double()], -1),
    "beside nothing": lambda q, k, v, x, y: torch.cat([merged(q, k, v), q.new_empty(0)], -1),
    "transposed": lambda q, k, v, x, y: torch.cat([merged(q, k, v).mT, x.mT], 1),
    "twice": twice,
    "returned": returned,
    "alike": alike,
}


def arguments(device: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(BATCH, HEADS, LENGTH, WIDTH)] * 3 + [(BATCH, LENGTH, OTHER)]
    shapes.append((BATCH, 7, HEADS * WIDTH))
    return [torch.randn(s, generator=generator).to(device, dtype) for s in shapes]


def main() -> None:
    from flashlight.capture import capture, lowering
    from flashlight.pipeline import optimize
    from flashlight.runtime import gpu, op
    from flashlight.runtime.loop_call import LoopCall

    def executable(token: str, device: torch.device) -> Any:
        payload = op.payload_of(token)
        return gpu.build(optimize(payload.program), device, payload.options, payload.hints)

    written: list[tuple[list[int], list[int]]] = []
    first = LoopCall.first

    def noted(self: LoopCall, sizes: Sequence[int], tensors: Sequence[Tensor]) -> Any:
        written.append((list(tensors[-1].shape), list(tensors[-1].stride())))
        return first(self, sizes, tensors)

    LoopCall.first = noted  # type: ignore[method-assign]
    op.executable = capture.executable = executable
    lowering.DEVICES = ("cpu",)
    args = arguments("cpu")
    found = {}
    for name, program in PROGRAMS.items():
        for dynamic in (False, True):
            torch._dynamo.reset()
            written.clear()
            with torch.no_grad():
                got = torch.compile(program, backend="flashlight", dynamic=dynamic)(*args)
                want = program(*args)
            several = (got, want) if isinstance(want, tuple) else ((got,), (want,))
            error = max(float((a - b).abs().max()) for a, b in zip(*several, strict=True))
            case = f"{name}, dynamic" if dynamic else name
            found[case] = {"error": error, "written": list(written)}
    sys.stdout.write(f"<<<{json.dumps(found)}>>>")


def run_programs() -> dict[str, Any]:
    """For each program: the error of its result, and shape and strides of what each loop wrote last."""
    import subprocess
    from pathlib import Path

    root = Path(__file__).parents[2]
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
        "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.called_process"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=root,
        timeout=600,
        check=False,
    )
    assert "<<<" in done.stdout, done.stdout[-2000:] + done.stderr[-4000:]
    result: dict[str, Any] = json.loads(done.stdout.split("<<<")[-1].split(">>>")[0])
    return result


if __name__ == "__main__":
    main()
