"""FX graphs of functions as capture sees them, and what lifting makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from flashlight.backend import decompositions
from flashlight.capture.emit import Emitted, emit_nodes
from flashlight.ir.nests import Program
from flashlight.ir.text import parse_program
from flashlight.lift.lift import Lifter, hints_of
from flashlight.runtime.reference import evaluate


def graph_of(
    fn: Callable[..., Any], args: Sequence[Any], *, dynamic: bool = False
) -> torch.fx.Graph:
    """The functional ATen graph of a function."""
    mode = "symbolic" if dynamic else "fake"
    module = make_fx(functionalize(fn), decomposition_table=decompositions(), tracing_mode=mode)(
        *args
    )
    module.graph.eliminate_dead_code()
    return module.graph


def lifted(graph: torch.fx.Graph) -> tuple[Lifter, Emitted]:
    """A graph's outputs as one program."""
    lifter = Lifter(graph)
    output = next(n for n in graph.nodes if n.op == "output")
    wanted = [n for n in pytree.tree_leaves(output.args) if isinstance(n, torch.fx.Node)]
    return lifter, emit_nodes(wanted, lifter, hints_of(graph))


def run(emitted: Emitted, graph: torch.fx.Graph, args: Sequence[Any]) -> list[torch.Tensor]:
    """A lifted program's outputs in FX shapes, for the graph's arguments. Fails if an input is no argument."""
    given = dict(zip((n for n in graph.nodes if n.op == "placeholder"), args, strict=True))
    return run_on(emitted, [given[n] for n in emitted.inputs])


def run_on(emitted: Emitted, ins: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """A lifted program's outputs in FX shapes. The program goes through its text."""
    program: Program = parse_program(str(emitted.program))
    syms = _sizes(program, ins)
    return [
        found.reshape([n if isinstance(n, int) else -1 for n in output.shape])
        for found, output in zip(evaluate(program, ins, syms), emitted.outputs, strict=True)
    ]


def _sizes(program: Program, ins: Sequence[torch.Tensor]) -> list[int]:
    from flashlight.ir.interpret import infer_sizes

    shapes = {b.name: np.empty(t.shape) for b, t in zip(program.inputs, ins, strict=True)}
    known = infer_sizes(program, shapes)
    return [known[s.name] for s in program.sizes]


def check_lift(fn: Callable[..., Any], *args: torch.Tensor, exact: bool = True) -> Emitted:
    """Compare a lifted function with eager: same values, shapes and dtypes, and nothing left out of the program."""
    graph = graph_of(fn, args)
    lifter, emitted = lifted(graph)
    strange = [leaf.why for leaf in lifter.leaves.values() if leaf.why]
    assert not strange, f"no rule for {strange}"
    wanted = pytree.tree_leaves(fn(*args))
    for got, want in zip(run(emitted, graph, args), wanted, strict=True):
        assert got.dtype is want.dtype
        assert got.shape == want.shape
        tolerance = {"rtol": 1e-5, "atol": 1e-6} if exact else {"rtol": 1e-2, "atol": 1e-2}
        torch.testing.assert_close(got, want, equal_nan=True, **tolerance)
    return emitted
