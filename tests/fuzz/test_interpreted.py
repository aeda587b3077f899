"""A handful of random programs by Triton kernels, in Triton's interpreter, and programs that failed so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.fuzz.hardware import _Contraction
from tests.fuzz.interpreted import _amid, _is_strange, _outside
from tests.support.program_text import program_text

ROOT = Path(__file__).parents[2]
SEEDS = (400, 404, 409, 413, 423)

# Documents, of which a row's is not in the first tiles: the reference of an empty sum rose by a rounding, and the sum was NaN.
DOCUMENTS = program_text(
    seed=1080,
    names="q, k, v, ids",
    make="""    ids = torch.randint(0, 4, (48,), generator=gen).sort().values
    return rand(1, 1, 48, 2), rand(1, 1, 48, 2), rand(1, 1, 48, 2), ids""",
    fn="""    s = q @ k.mT * 2**-0.5
    return s.masked_fill(ids[:, None] != ids, -torch.inf).softmax(-1) @ v""",
)

# A second pass: its weights were off by the rounding of the scaled maximum, 1e-5 for scores of some hundreds.
LARGE_SCORES = program_text(
    seed=10127,
    names="q, k, v",
    make="    return rand(1, 1, 2, 8) * 60, rand(1, 1, 2, 8), rand(1, 1, 2, 8)",
    fn="""    s = q @ k.mT * 8**-0.5
    return torch.nan_to_num(s.softmax(-1), nan=0.0) @ v""",
)

# Not one key is left, so that a whole row is a constant, and its sum a loop without results, which was cut in two.
CONSTANT_SUM = program_text(
    seed=10161,
    names="q, k, v",
    make="    return rand(1, 1, 1, 2), rand(1, 1, 40, 2), rand(1, 1, 40, 2)",
    fn="""    s = (q @ k.mT).masked_fill(torch.arange(1)[:, None] < 2, -torch.inf)
    return torch.nn.functional.normalize(torch.exp(s), dim=-1) @ v""",
)


@pytest.mark.triton_interpreter
def test_triton_kernels(tmp_path: Path) -> None:
    for n, text in enumerate((DOCUMENTS, LARGE_SCORES, CONSTANT_SUM)):
        (tmp_path / f"program{n}.py").write_text(text)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.fuzz", "--triton", "--no-shrink"),
            *("--file", *map(str, sorted(tmp_path.glob("*.py"))), "--seed", *map(str, SEEDS)),
        ],
        env={
            **os.environ,
            "TRITON_INTERPRET": "1",
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    print(done.stdout[-8000:])
    print(done.stderr[-2000:])
    assert done.returncode == 0
    assert done.stdout.count("triton: ok; ") == 3 + len(SEEDS)


def test_what_lies_around_a_tensor_is_strange() -> None:
    t = torch.arange(24.0).reshape(4, 6)[:, 1:4]
    around, inside = _amid(t, 1)
    assert torch.equal(inside, t)
    assert inside.stride() == t.stride()
    outside = _outside(around, inside)
    assert int((~outside).sum()) == t.numel()
    assert _is_strange(around[outside]).all()
    expanded = torch.tensor([1, 2, 3]).expand(5, 3)
    assert torch.equal(_amid(expanded, 0)[1], expanded)


class Handle:
    def __init__(self, data: np.ndarray) -> None:
        self.data = data


def test_a_product_is_rounded_in_a_sum_or_not() -> None:
    """Not where it was made in an iteration before."""
    x = np.full(1, 1 + 2**-20, np.float32)
    exact = np.float32(2**-19 + 2**-40)
    contraction = next(c for c in map(_Contraction, range(10)) if c.contracts)
    multiply = contraction.product(lambda b, p, q: Handle(p.data * q.data))
    subtract = contraction.sum(lambda b, p, q: Handle(p.data - q.data), -1)
    square = multiply(None, Handle(x), Handle(x))
    one = Handle(np.ones(1, np.float32))
    assert subtract(None, square, one).data == exact
    for _ in contraction.range(range)(1):
        pass
    assert subtract(None, square, one).data == np.float32(2**-19)
