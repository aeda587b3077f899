"""Choosing among schedules, without a device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashlight.rewrite.schedule import Schedule
from flashlight.runtime.tune import Trial, choose, remember, remembered, variations

FIRST = Schedule((), (), 64, (), (), 128)
SECOND = replace(FIRST, row_block=128)
THIRD = replace(FIRST, col_block=64)


def trials(found: dict[Schedule, Trial | None], timed: list[bool] | None = None):
    def trial(schedule: Schedule, with_time: bool) -> Trial | None:
        if timed is not None:
            timed.append(with_time)
        return found[schedule]

    return trial


def test_off_takes_the_first_without_spills_and_times_nothing() -> None:
    timed: list[bool] = []
    found = {FIRST: Trial(80), SECOND: Trial(2), THIRD: Trial(0)}
    assert choose([FIRST, SECOND, THIRD], "off", trials(found, timed)) is SECOND
    assert timed == [False, False]


def test_off_takes_the_least_spills_where_all_spill() -> None:
    found = {FIRST: Trial(80), SECOND: Trial(20), THIRD: None}
    assert choose([FIRST, SECOND, THIRD], "off", trials(found)) is SECOND


def test_quick_takes_the_fastest_that_agrees() -> None:
    found = {FIRST: Trial(0, 3.0), SECOND: Trial(0, 1.0, agrees=False), THIRD: Trial(0, 2.0)}
    assert choose([FIRST, SECOND, THIRD], "quick", trials(found)) is THIRD


def test_nothing_runs() -> None:
    assert choose([FIRST, SECOND], "quick", trials({FIRST: None, SECOND: None})) is None


def test_what_does_not_run_does_not_count() -> None:
    many = [replace(FIRST, row_block=n) for n in range(1, 10)]
    found = {s: None for s in many[:-1]} | {many[-1]: Trial(0)}
    assert choose(many, "off", trials(found)) is many[-1]


def test_max_varies_stages_and_warps() -> None:
    found = variations([FIRST], "max")
    assert found[0] is FIRST
    assert {s.stages for s in found} == {2, 3, 4}
    assert variations([FIRST], "quick") == [FIRST]


def test_remembers(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHLIGHT_CACHE_DIR", str(tmp_path))
    key = {"kind": "schedule", "program": "p"}
    assert remembered(key, FIRST) is None
    remember(key, replace(SECOND, stages=4))
    assert remembered(key, FIRST) == replace(SECOND, stages=4)
    assert remembered({**key, "program": "other"}, FIRST) is None
