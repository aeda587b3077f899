"""Results that are parts of a concatenation: where they are written, and that they are right."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.called_process import (
    BATCH,
    HEADS,
    LENGTH,
    OTHER,
    PROGRAMS,
    WIDTH,
    run_programs,
)
from tests.support.inductor_process import generated_code

pytest.importorskip("triton")
pytestmark = pytest.mark.slow

MERGED = HEADS * WIDTH
WHOLE = [[BATCH, LENGTH, HEADS, WIDTH], [LENGTH * MERGED, MERGED, WIDTH, 1]]
BY_HEADS = [[BATCH, HEADS, LENGTH, WIDTH], [LENGTH * MERGED, LENGTH * WIDTH, WIDTH, 1]]
MOVED = {
    "features": [[BATCH, LENGTH, MERGED], [LENGTH * (MERGED + OTHER), MERGED + OTHER, 1]],
    "positions": [[BATCH, LENGTH, MERGED], [(LENGTH + 14) * MERGED, MERGED, 1]],
    "samples": BY_HEADS,
    "heads": [BY_HEADS[0], [2 * LENGTH * MERGED, *BY_HEADS[1][1:]]],
    "before a function": [[BATCH, LENGTH, MERGED], [LENGTH * (MERGED + OTHER), MERGED + OTHER, 1]],
}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return run_programs()


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_right(found: dict[str, Any], name: str, dynamic: bool) -> None:
    case = found[f"{name}, dynamic" if dynamic else name]
    assert case["written"]
    assert case["error"] < 1e-5


@pytest.mark.parametrize("name", MOVED)
def test_a_result_is_written_where_it_belongs(found: dict[str, Any], name: str) -> None:
    assert all(written == MOVED[name] for written in found[name]["written"])


@pytest.mark.parametrize(
    "name", ["twice", "returned", "alike", "of another type", "positions, dynamic"]
)
def test_what_is_also_wanted_elsewhere_stays(found: dict[str, Any], name: str) -> None:
    assert all(written in (WHOLE, BY_HEADS) for written in found[name]["written"])


def test_invariant_points_are_not_copied() -> None:
    """Features and pairs are parts as they are; points and their lengths are computed from a result, by two kernels."""
    code = generated_code("invariant_points")
    places = re.findall(r"(buf\d+) = reinterpret_tensor\((buf\d+), .*# alias", code)
    assert len({whole for _, whole in places}) == 1
    calls = re.findall(r"^ +flashlight_\w+\((.*)\)$", code, re.M)
    filled = {name for name, _ in places if any(re.search(rf"\b{name}\b", c) for c in calls)}
    assert len(places) == 4
    assert len(filled) == 2
