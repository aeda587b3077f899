"""A handful of random programs by kernels in which warps have roles, on a simulated machine."""

from __future__ import annotations

import pytest

from flashlight.codegen.gluon import is_known

if not is_known():
    pytest.skip("no Triton whose Gluon is known", allow_module_level=True)

from tests.fuzz.choices import role_choices
from tests.fuzz.simulated import roles
from tests.fuzz.source import source

SEEDS = (0, 1, 3, 8, 14, 31, 34)


def test_kernels_with_roles() -> None:
    run = 0
    for seed in SEEDS:
        verdict = roles(source(role_choices(seed)))
        assert not verdict.failure, f"seed {seed}: {verdict.failure}"
        run += len(verdict.schedules)
    assert run >= len(SEEDS) // 2
