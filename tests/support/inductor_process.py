"""Compiles a program with a driver that claims to be a GPU, and prints what Inductor generates. Nothing can run.

`python -m tests.support.inductor_process NAME [dynamic] [twice] ...`. A process of its own because the driver is global.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def generated_code(name: str, *options: str) -> str:
    """The wrapper that Inductor writes for a variant of the zoo.

    Args:
        name: of the variant.
        options: "dynamic": its sizes may change. "twice": its result is the query of another call. "written": and
            its last argument is written to in between. "turned": another call has a permuted view of the keys. "roles": kernels in
            which warps have roles come first. "recorded": the code is no Python that runs here, as far as the lowering knows.
    """
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.inductor_process", name, *options],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
        timeout=300,
        check=False,
    )
    assert "<<<" in done.stdout, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout.split("<<<")[-1].split(">>>")[0]


def main(name: str, options: Sequence[str]) -> None:
    import torch
    import triton
    from torch._inductor import config
    from torch._inductor.codecache import PyCodeCache
    from triton.backends.compiler import GPUTarget

    from flashlight.capture import capture, direct, lowering
    from flashlight.pipeline import optimize
    from flashlight.programs.variants import VARIANTS, Shape
    from flashlight.rewrite.schedule import HOPPER
    from flashlight.runtime import gpu, op

    class Driver:
        def get_current_target(self) -> Any:
            return GPUTarget("cuda", 90, 32)

        def get_active_torch_device(self) -> torch.device:
            return torch.device("cpu")

        def get_current_device(self) -> int:
            return 0

    def executable(token: str, device: torch.device) -> Any:
        payload = op.payload_of(token)
        return gpu.build(optimize(payload.program), device, payload.options, payload.hints)

    if "roles" in options:
        usual = gpu.schedules_for
        gpu.device_model = lambda device: replace(HOPPER, roles=True)
        gpu.schedules_for = lambda *a: sorted(usual(*a), key=lambda s: -s.consumers)
    if "recorded" in options:
        direct.is_possible = lambda: False
        # Inputs on a CPU count as not aligned.
        lowering._Expansion.describable = lambda self, name, shapes: (
            len(self.layout(name, shapes)[0]) - 1
        )
    triton.runtime.driver.set_active(Driver())
    op.executable = capture.executable = executable
    lowering.DEVICES = ("cpu",)
    config.cpu_backend = "triton"
    config.fx_graph_cache = False
    written: list[str] = []
    write = PyCodeCache.write

    def keep(text: str, *args: Any, **kwargs: Any) -> Any:
        written.append(text)
        return write(text, *args, **kwargs)

    PyCodeCache.write = keep
    variant = VARIANTS[name]
    shape = Shape(1, 2, 2, 1024, 64) if "roles" in options else variant.tiny
    args = variant.make(shape, torch.bfloat16, "cpu", 0)

    def program(q: torch.Tensor, *others: torch.Tensor) -> Any:
        once = variant.fn(q, *others)
        if "written" in options:
            others[-1].index_put_((torch.arange(2), torch.arange(2)), others[-1].new_ones(2))
        if "turned" in options:
            return once, variant.fn(q, others[0].transpose(0, 1), *others[1:])
        return variant.fn(once, *others) if "twice" in options else once

    dynamic = True if "dynamic" in options else None
    try:
        torch.compile(program, backend="flashlight", dynamic=dynamic)(*args)
    except Exception as error:  # there is nothing to launch on
        sys.stderr.write(f"{type(error).__name__}: {error}\n"[:1500])
    wrapper = next(t for t in reversed(written) if "async_compile" in t)
    sys.stdout.write(f"<<<{wrapper}>>>")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
