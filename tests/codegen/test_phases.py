"""Which softmaxes of a loop are computed one after the other within a tile."""

from __future__ import annotations

import pytest

from flashlight.codegen.blocks import Fold
from flashlight.codegen.phases import phases
from flashlight.codegen.roles import Roles, divide
from tests.codegen.test_gluon_numbers import CASES
from tests.support.gluon_runs import Prepared

pytest.importorskip("triton")


def roles(name: str) -> Roles:
    kernel = Prepared(CASES[name]).kernel.lowered
    return divide(kernel, {b.name for b in kernel.reads})


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("differential", 2),
        ("differential_causal", 2),
        ("three_softmaxes", 3),
        ("vanilla", 1),
        ("two_values", 1),
    ],
)
def test_how_many(name: str, count: int) -> None:
    for step in roles(name).steps:
        assert len(phases(step)) == count


def test_each_operation_once_and_what_both_read_first() -> None:
    """The mask of both softmaxes is made in the first phase."""
    (*_, step) = (s for s in roles("differential_causal").steps if not s.loop.full)
    parts = phases(step)
    assert [op for p in parts for op in p.heavy if isinstance(op, Fold)]
    assert sorted(id(op) for p in parts for op in p.heavy) == sorted(map(id, step.heavy))
    assert sorted(n for p in parts for n in p.slots) == list(range(len(step.loop.slots)))
    assert [len(p.scores) for p in parts] == [len(p.sums) for p in parts] == [1, 1]
    first, second = ({v for op in p.heavy for v in [op.result]} for p in parts)  # type: ignore[union-attr]
    reads = {v for op in parts[1].heavy for v in getattr(op, "args", ())}
    assert reads & first
    assert not {v for op in parts[0].heavy for v in getattr(op, "args", ())} & second
