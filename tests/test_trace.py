"""The ladder is a superset at every rung, dumps are numbered, and nothing is written when nobody asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flashlight import trace
from flashlight.errors import VerifyError
from flashlight.ir.nests import Program
from flashlight.ir.text import parse_program

# The second carry moves as if it were weighted by exp(max), which is not so.
UNLAWFUL = """
program p
  dim q: 4, k: 8
  input X: f32[4, 8]
  loop (q | k)
    carry m (q) f32: max X[q, k]
    carry a (q) f32: sum X[q, k] moves exp(-m)
    give y (q) f32 = a
  output y
"""


def double(text: str) -> str:
    return text + "\nmore"


def test_silent_without_the_variables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FLASHLIGHT_DEBUG", raising=False)
    monkeypatch.delenv("FLASHLIGHT_DUMP", raising=False)
    with trace.region("r") as region:
        assert trace.step("double", double, "program") == "program\nmore"
    assert region.texts == []
    assert list(region.seconds) == ["double"]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("level", "expected"), [("1", 0), ("2", 1), ("3", 2), ("4", 3), ("5", 4)])
def test_each_rung_adds_to_the_one_below(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], level: str, expected: int
) -> None:
    monkeypatch.setenv("FLASHLIGHT_DEBUG", level)
    with trace.region("r"):
        trace.step("double", double, "program")
        trace.left("kernel", "source text", suffix="py")
    trace.applied(double, "a", "b")
    said = capsys.readouterr().err
    parts = ["ms", "+more", "source text", "double: a -> b"]
    assert [p in said for p in parts] == [i < expected for i in range(4)]


def test_a_wrong_level_is_no_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHLIGHT_DEBUG", "loud")
    assert trace.level() == 0


def test_dumps_are_numbered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLASHLIGHT_DUMP", str(tmp_path))
    with trace.region("region0"):
        trace.left("lifted", "program p")
        trace.step("double", double, "program p")
        trace.left("kernel", "int x;", suffix="cpp")
    folder = tmp_path / "region0"
    names = ["00_lifted.ir", "01_double.ir", "02_kernel.cpp"]
    assert sorted(p.name for p in folder.iterdir()) == [*names, "summary.json"]
    assert (folder / "01_double.ir").read_text() == "program p\nmore\n"
    assert json.loads((folder / "summary.json").read_text())["files"] == names


def test_a_compilation_has_settings_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FLASHLIGHT_DEBUG", "1")
    with trace.using(trace.Settings(dump=str(tmp_path))):
        assert trace.level() == 0
        with trace.region("r"):
            assert trace.listens()
            trace.left("lifted", "program p")
    assert trace.level() == 1
    assert (tmp_path / "r" / "00_lifted.ir").exists()


def test_rules_are_named_with_their_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from flashlight.ir.exprs import Dim, Index, add, const
    from flashlight.rewrite.simplify import simplify

    monkeypatch.setenv("FLASHLIGHT_DEBUG", "5")
    simplify(add(Index(Dim("q", const(8))), const(0)))
    said = capsys.readouterr().err
    assert "simplify.py:" in said
    assert "q + 0 -> q" in said


def test_passes_are_verified_where_that_is_asked_for() -> None:
    def wrong(program: Program) -> Program:
        return parse_program(UNLAWFUL)

    before = parse_program(UNLAWFUL)
    assert trace.step("wrong", wrong, before) == before
    with trace.using(trace.Settings(verify=True)), pytest.raises(VerifyError):
        trace.step("wrong", wrong, before)
