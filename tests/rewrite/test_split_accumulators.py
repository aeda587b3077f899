"""Accumulators in loops of their own: the same values, each loop with what it reads."""

from __future__ import annotations

import re
import textwrap

import numpy as np
import pytest

from flashlight.ir.interpret import interpret
from flashlight.ir.nests import Program
from flashlight.ir.text import parse_program
from flashlight.ir.verify import verify
from flashlight.ir.visit import reads
from flashlight.pipeline import optimize, prepare
from flashlight.rewrite.schedule import HOPPER
from flashlight.rewrite.split_accumulators import closures, components, split_accumulators
from flashlight.runtime import gpu
from tests.support.loops import CASES, attention

PAIRS = """
program pairs
  dim h: 12, i: N, j: N, d: 16, e: 64, c: 128
  input Q: f32[N, 12, 16]
  input K: f32[N, 12, 16]
  input V: f32[N, 12, 64]
  input Z: f32[N, N, 128]
  loop (h, i | j)
    let s(h, i, j) = sum(d: Q[i, h, d] * K[j, h, d]) * 0.25
    carry m (h, i) f32: max s
    carry l (h, i) f32: sum exp(s - ~m) moves exp(-m)
    carry A (h, i, e) f32: sum exp(s - ~m) * V[j, h, e] moves exp(-m)
    carry P (h, i, c) f32: sum exp(s - ~m) * Z[i, j, c] moves exp(-m)
    carry t (h, i) f32: max -s
    give a (h, i, e) f32 = A / l
    give both (h, i, e) f32 = A / l + t + P[h, i, 3]
    give p (h, i, c) f32 = P / l
    give lse (h, i) f32 = log(l) + m
  output a, both, p, lse
"""


def pairs(n: int) -> Program:
    return parse_program(re.sub(r"\bN\b", str(n), PAIRS))


def test_docstring_example() -> None:
    example = re.search(
        r"Before:\n(.*?)\n\s*After:\n(.*?)\n\s*Legal when:",
        split_accumulators.__doc__ or "",
        re.DOTALL,
    )
    assert example
    before, after = (parse_program(textwrap.dedent(t)) for t in example.groups())
    (loop,) = before.loops
    assert str(split_accumulators(before, loop, components(loop))) == str(after)


def test_sums_of_one_softmax_keep_their_values() -> None:
    program = pairs(20)
    (loop,) = program.loops
    sets = closures(loop)
    assert [[c.name for c in s] for s in sets] == [["m", "l", "A", "t"], ["m", "l", "P", "t"]]
    cut = split_accumulators(program, loop, sets)
    verify(cut)
    assert [[g.name for g in x.gives] for x in cut.loops] == [
        ["a", "lse", "A_final"],
        ["both", "p"],
    ]
    rng = np.random.default_rng(0)
    inputs = {b.name: rng.normal(size=[x.value for x in b.shape]) for b in program.inputs}
    got, expected = interpret(cut, inputs), interpret(program, inputs)
    for name in program.outputs:
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-12)


def test_the_largest_part_is_handed_on() -> None:
    """A quotient is one tensor, where its two sums were two."""
    program = parse_program(
        CASES["differential"].program.replace(
            "A0 / l0 - A1 / l1 * lam[h]", "A0 / l0 * lam[h] - A1 / l1 + m0"
        )
    )
    (loop,) = program.loops
    first, second = split_accumulators(program, loop, components(loop)).loops
    assert [g.name for g in first.gives] == ["A0_final", "m0_final"]
    assert "A0[b, h, q, e] / l0[b, h, q] * lam[h]" in str(first.gives[0])
    (last,) = second.gives
    assert reads(last.expr) == {"A0_final", "A1", "l1", "m0_final"}


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_what_is_handed_on_is_rounded_as_the_program_rounds_it(dtype: str) -> None:
    """A product that eager stores in 16 bits is stored in 16 bits, and scaled by what reads it."""
    program = prepare(lifted(dtype))[0]
    optimized = optimize(program)
    assert isinstance(optimized, Program)
    (loop,) = optimized.loops
    first, second = split_accumulators(optimized, loop, components(loop)).loops
    (given,) = first.gives
    assert given.dtype.value == dtype
    (last,) = second.gives
    (scale,) = (b.name for b in optimized.inputs if len(b.shape) == 1)
    assert (scale in reads(last.expr)) == (dtype != "f32")


def lifted(dtype: str) -> Program:
    """Two softmaxes; the first product is scaled by a number for each head before the other is subtracted."""
    score = "sum(d: {}[h, q, d] * {}[h, k, d])"
    softmax = "exp(s{0}[h, q, k] - m{0}[h, q]) / l{0}[h, q]"
    nests = [
        line.format(n)
        for n in "01"
        for line in (
            f"nest s{{0}} (h, q, k) f32: {score.format('Q{0}', 'K{0}')}",
            "nest m{0} (h, q | k) f32: max s{0}[h, q, k]",
            "nest l{0} (h, q | k) f32: sum exp(s{0}[h, q, k] - m{0}[h, q])",
            f"nest A{{0}} (h, q, e | k) {dtype}: sum {dtype}({softmax}) * V[h, k, e]",
        )
    ]
    inputs = [f"input {name}: {dtype}[4, 256, 32]" for name in ("Q0", "Q1", "K0", "K1", "V")]
    return parse_program(
        "\n  ".join(
            [
                "program p",
                "dim h: 4, q: 256, k: 256, e: 32, d: 32",
                *inputs,
                f"input scale: {dtype}[4]",
                *nests,
                f"nest y (h, q, e) {dtype}: {dtype}(A0[h, q, e] * scale[h]) - A1[h, q, e]",
                "output y",
            ]
        )
    )


def test_two_parts_of_one_accumulator_have_names_of_their_own() -> None:
    program = pairs(20).with_statements(
        tuple(
            parse_program(
                PAIRS.replace("N", "20").replace(
                    "give both (h, i, e) f32 = A / l + t + P[h, i, 3]",
                    "give both (h, i, e) f32 = where(P[h, i, 3] > 0.0, A / l, A * 2.0)",
                )
            ).loops
        )
    )
    (loop,) = program.loops
    cut = split_accumulators(program, loop, closures(loop))
    verify(cut)
    names = [g.name for x in cut.loops for g in x.gives]
    assert len(set(names)) == len(names)
    rng = np.random.default_rng(0)
    inputs = {b.name: rng.normal(size=[x.value for x in b.shape]) for b in program.inputs}
    got, expected = interpret(cut, inputs), interpret(program, inputs)
    np.testing.assert_allclose(got["both"], expected["both"], rtol=1e-12)


def test_parted_where_tiles_of_other_rows_fetch_less() -> None:
    program = pairs(512)
    first, second = gpu.with_split_accumulators(program, {}, HOPPER).loops
    rows = [[d.name for d in gpu.candidates(x, {}, HOPPER)[0].rows] for x in (first, second)]
    assert rows == [["i"], ["h"]]


@pytest.mark.parametrize("text", [attention(), CASES["evoformer"].program, CASES["decode"].program])
def test_one_softmax_over_one_kind_of_values_stays(text: str) -> None:
    program = parse_program(text)
    hints = {"S": 4096, "T": 4096}
    assert gpu.with_split_accumulators(program, hints, HOPPER) is program
