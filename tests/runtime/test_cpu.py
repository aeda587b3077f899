"""The CPU runtime: threads, forks, concurrent calls, machines without a compiler, memory."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from flashlight.errors import CompileError, Refusal
from flashlight.ir.nests import Program
from flashlight.ir.text import parse_program
from flashlight.runtime import cpu
from flashlight.runtime.executable import build
from tests.support.loops import attention
from tests.support.on_cpu import check, inputs_of

TEXT = attention(dtype="f32", D=16, E=16)
SIZES = {"S": 70, "T": 90}


@pytest.fixture(scope="module")
def program() -> Program:
    return parse_program(TEXT)


@pytest.fixture(scope="module")
def executable(program: Program) -> cpu.CpuExecutable:
    built = build(program, torch.device("cpu"), None, SIZES)
    assert isinstance(built, cpu.CpuExecutable)
    return built


def run(executable: cpu.CpuExecutable, inputs: list[torch.Tensor]) -> torch.Tensor:
    (result,) = executable(inputs, list(SIZES.values()))
    return result


def test_thread_count_changes_nothing(program: Program, executable: cpu.CpuExecutable) -> None:
    inputs = inputs_of(program, SIZES)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        (one,) = check(program, SIZES, inputs, executable)
        torch.set_num_threads(3)
        (three,) = check(program, SIZES, inputs, executable)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(one, three)


def test_concurrent_calls(program: Program, executable: cpu.CpuExecutable) -> None:
    inputs = [inputs_of(program, SIZES, seed) for seed in range(8)]
    expected = [run(executable, i) for i in inputs]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda i: run(executable, i), inputs * 5))
    for got, want in zip(results, expected * 5, strict=True):
        assert torch.equal(got, want)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child(program: Program, executable: cpu.CpuExecutable) -> None:
    """A child of a process whose threads have run does not wait for threads it does not have."""
    inputs = inputs_of(program, SIZES)
    expected = run(executable, inputs)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # of forking with threads, which is the point
        child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(run(executable, inputs), expected) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_no_compiler_is_refused_with_one_warning() -> None:
    code = f"""
import warnings, torch
from flashlight.ir.text import parse_program
from flashlight.runtime.executable import build
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        result = build(parse_program({TEXT!r}), torch.device("cpu"), None, {SIZES!r})
        assert result.code == "no-compiler", result
ours = [w for w in caught if "Flashlight" in str(w.message)]
assert len(ours) == 1 and "g++" in str(ours[0].message), ours
"""
    environment = {**os.environ, "CXX": "/nowhere/g++", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment["TORCHINDUCTOR_CACHE_DIR"] = environment.get("TMPDIR", "/tmp") + "/flashlight-none"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_source_that_does_not_compile_is_an_error() -> None:
    with pytest.raises(CompileError, match="error:"):
        cpu.load_library("this is no C++")


def test_loop_without_tile_form_is_refused() -> None:
    text = """
program refused
  size S
  dim q: S, k: S, j: S
  input X: f32[S, S]
  loop (q | k)
    carry a (q) i64: sum argmax(j: X[q, j] * X[j, k])
    give A (q) i64 = a
  output A
"""
    result = build(parse_program(text), torch.device("cpu"), None, {"S": 8})
    assert isinstance(result, Refusal)
    assert result.code == "tile-form"


def test_kernels_tell_what_they_are(executable: cpu.CpuExecutable) -> None:
    (kernel,) = executable.kernels
    assert kernel.language == "cpp"
    assert kernel.name in kernel.source
    assert kernel.passes == 1
    assert kernel.grid > 0
    assert "loop (b, h, q | k)" in kernel.program


def test_memory_is_of_tiles_only(program: Program) -> None:
    """The workspace does not grow with the sequence."""
    sizes = {"S": 16384, "T": 16384}
    built = build(program, torch.device("cpu"), None, sizes)
    assert isinstance(built, cpu.CpuExecutable)
    assert built.steps[0].source.workspace < 1 << 20
