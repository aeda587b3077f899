"""Runs generated Triton kernels in Triton's interpreter and compares them with the interpreter of programs.

`python -m tests.support.triton_process` with TRITON_INTERPRET=1 reads a JSON list of cases from standard input and prints a JSON
list of results. A process of its own because Triton reads that variable when a kernel is decorated.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


@dataclass
class Case:
    """A program of loops (or of nests, to be optimized first) and how to run it."""

    program: str
    sizes: dict[str, int] = field(default_factory=dict)
    row_block: int | None = None
    col_block: int | None = None
    scale: float = 1.0
    seed: int = 0
    optimize: bool = False
    descriptors: bool = False
    ranges: bool = False  # find ranges of data-dependent masks first, however short
    parts: int = 1  # cut the loop's columns
    special: str = ""  # "inf" or "nan": put some into the first input


def run_cases(cases: list[Case], timeout: float = 600) -> list[dict[str, Any]]:
    """Results of the cases: {"errors": {output: relative error}, "same_places": bool} or {"failed": message}."""
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.triton_process"],
        input=json.dumps([asdict(c) for c in cases]),
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment,
        check=False,
        cwd=ROOT,
    )
    if done.returncode:
        raise AssertionError(done.stdout[-2000:] + done.stderr[-4000:])
    return json.loads(done.stdout.splitlines()[-1])


def patch_interpreter() -> None:
    """Make bf16 right: the interpreter stores it as uint16, multiplies those in dots and truncates in casts. And reductions fast."""
    from functools import cache

    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    create_dot, cast_impl = builder.create_dot, builder.cast_impl

    def widened(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        data = (np.asarray(handle.data).astype(np.uint32) << 16).view(np.float32)
        return interpreter.TensorHandle(data, tl.float32)

    def cast(self: Any, source: Any, dtype: Any) -> Any:
        if source.dtype.scalar == tl.bfloat16 and dtype.scalar == tl.float32:
            return widened(source)
        if source.dtype.scalar == tl.float32 and dtype.scalar == tl.bfloat16:
            bits = np.ascontiguousarray(source.data).view(np.uint32)
            rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
            rounded = np.where(np.isnan(source.data), (bits >> 16) | 0x40, rounded)
            return interpreter.TensorHandle(rounded.astype(np.uint16), tl.bfloat16)
        return cast_impl(self, source, dtype)

    builder.cast_impl = cast

    builder.create_dot = lambda self, a, b, d, p, m: create_dot(
        self, widened(a), widened(b), d, p, m
    )

    in_numpy = interpreter._get_np_dtype
    known = cache(in_numpy)
    interpreter._get_np_dtype = lambda t: known(t) if type(t) is tl.dtype else in_numpy(t)

    def reduced(self: Any, inputs: tuple[Any, ...]) -> list[Any]:
        """Neighbours combined in pairs, all at once: an axis has a power of two of elements."""
        data = [np.moveaxis(x.handle.data, self.axis, -1) for x in inputs]
        dtypes = [x.dtype for x in inputs]

        def tensors(part: slice) -> list[Any]:
            return [self.to_tensor(d[..., part], t) for d, t in zip(data, dtypes, strict=True)]

        while data[0].shape[-1] > 1:
            both = self.combine_fn.fn(*tensors(slice(0, None, 2)), *tensors(slice(1, None, 2)))
            data = [t.handle.data for t in (both if isinstance(both, tuple) else (both,))]
        return [self.to_tensor(d[..., 0], t) for d, t in zip(data, dtypes, strict=True)]

    slow = interpreter.ReduceOps.generic_reduce
    interpreter.ReduceOps.generic_reduce = lambda self, inputs: (
        slow(self, inputs) if self.axis is None or self.keep_dims else reduced(self, inputs)
    )


def draw(program: Any, case: Any) -> tuple[list[Any], dict[str, Any]]:
    """A program's inputs for a case: as tensors, and as the arrays that the interpreter of programs takes."""
    import numpy as np
    import torch

    from flashlight.rewrite.schedule import evaluate
    from flashlight.runtime.types import TORCH_TYPES

    rng = np.random.default_rng(case.seed)
    arrays, tensors = {}, []
    for buffer in program.inputs:
        shape = [evaluate(e, case.sizes) for e in buffer.shape]
        dtype = TORCH_TYPES[buffer.dtype]
        if buffer.dtype.is_float:
            tensor = torch.from_numpy(np.asarray(rng.standard_normal(shape) * case.scale)).to(dtype)
        elif buffer.dtype.value == "bool":
            tensor = torch.from_numpy(rng.random(shape) < 0.7)
        else:
            tensor = torch.from_numpy(rng.integers(0, 4, shape)).to(dtype)
        if getattr(case, "special", "") and not tensors:
            tensor.view(-1)[:: 7919 % max(1, tensor.numel()) or 1] = float(case.special)
        tensors.append(tensor)
        arrays[buffer.name] = (tensor.double() if buffer.dtype.is_float else tensor).numpy()
    return tensors, arrays


def compared(
    outputs: tuple[str, ...], results: list[Any], expected: dict[str, Any]
) -> dict[str, Any]:
    """How far results are off, and whether NaN and infinities are in the same places."""
    import numpy as np

    errors, same = {}, True
    for name, tensor in zip(outputs, results, strict=True):
        got = tensor.double().numpy() if tensor.is_floating_point() else tensor.numpy()
        want = expected[name]
        if not tensor.is_floating_point():
            errors[name] = float((got != want).mean())
            continue
        finite = np.isfinite(want)
        same &= bool((np.isfinite(got) == finite).all() and (np.isnan(got) == np.isnan(want)).all())
        both = finite & np.isfinite(got)
        size = float(np.sqrt((want[finite] ** 2).mean())) if finite.any() else 1.0
        allowed = np.maximum(np.abs(want[both]), max(size, 1e-30))
        errors[name] = float((np.abs(got - want)[both] / allowed).max(initial=0.0))
    return {"errors": errors, "same_places": same}


def run(case: Case, device: str = "cpu") -> dict[str, Any]:
    """Run one case here: in the interpreter on the CPU, or on a GPU."""
    from flashlight import pipeline
    from flashlight.errors import Refusal
    from flashlight.ir.interpret import interpret
    from flashlight.ir.text import parse_program
    from flashlight.rewrite.schedule import HOPPER
    from flashlight.rewrite.split_keys import split_keys
    from flashlight.runtime import gpu

    program = parse_program(case.program)
    if case.optimize:
        optimized = pipeline.optimize(program)
        if isinstance(optimized, Refusal):
            return {"failed": str(optimized)}
        program = optimized
    tensors, arrays = draw(program, case)
    expected = interpret(program, arrays, sizes=case.sizes)
    steps = []
    model = replace(HOPPER, tma=case.descriptors)
    if case.parts > 1:
        program = split_keys(program, program.loops[0], case.parts)
    gpu.SHORTEST = 32 if case.ranges else 1 << 30
    gpu.MANY = 192
    program, known = gpu.with_ranges(program, case.sizes, model)
    for n, loop in enumerate(program.loops):
        schedule = gpu.schedules_for(program, loop, case.sizes, model, known)[0]
        blocks = {
            "row_block": case.row_block if schedule.rows else None,
            "col_block": case.col_block,
        }
        schedule = replace(schedule, **{k: v for k, v in blocks.items() if v})
        steps.append(gpu.Step.of(program, n, [schedule], "off"))
    executable = gpu.GpuExecutable(program, steps, case.sizes)
    on_device = [t.to(device) for t in tensors]
    results = executable(on_device, [case.sizes[s.name] for s in program.sizes])
    results = [t.cpu() for t in results]
    return compared(program.outputs, results, expected)


def main() -> None:
    patch_interpreter()
    results = []
    for item in json.loads(sys.stdin.read()):
        try:
            results.append(run(Case(**item)))
        except Exception as error:
            import traceback

            results.append({"failed": "".join(traceback.format_exception(error))[-3000:]})
    sys.stdout.write("\n" + json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
