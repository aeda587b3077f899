"""The commands, as a user calls them but in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashlight.__main__ import main
from flashlight.bench import cells, record
from flashlight.runtime import cache

PROGRAM = """program p
  size S
  dim q: S, k: S, d: 4, e: 4
  input Q: f32[S, 4]
  input K: f32[S, 4]
  input V: f32[S, 4]
  nest scores (q, k | d) f32: sum Q[q, d] * K[k, d]
  nest peak (q | k) f32: max scores[q, k]
  nest weight (q, k) f32: exp(scores[q, k] - peak[q])
  nest total (q | k) f32: sum weight[q, k]
  nest share (q, k) f32: weight[q, k] / total[q]
  nest O (q, e | k) f32: sum share[q, k] * V[k, e]
  output O
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "attention.ir"
    path.write_text(PROGRAM)
    return path


def test_no_command_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([])
    assert stop.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_opt_lists_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", "--list"]) == 0
    out = capsys.readouterr().out
    assert "simplify" in out
    assert "fuse" in out


def test_opt_runs_named_passes(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", str(program), "-p", "simplify,fuse", "--check"]) == 0
    out = capsys.readouterr().out
    assert "nest weight" not in out
    assert "# same by the interpreter" in out


def test_opt_prints_each_step(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", str(program), "-p", "simplify,fuse", "--each"]) == 0
    out = capsys.readouterr().out
    assert out.index("# simplify") < out.index("# fuse")


def test_opt_refuses_unknown_passes(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["opt", str(program), "-p", "fuze"])
    assert "Unknown passes ['fuze']" in capsys.readouterr().err


def test_opt_says_where_text_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.ir"
    path.write_text("program p\n  nonsense\n")
    with pytest.raises(SystemExit):
        main(["opt", str(path)])
    assert "bad.ir" in capsys.readouterr().err


def test_doctor_looks_at_everything(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHLIGHT_CACHE_DIR", str(tmp_path / "kernels"))
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for what in (
        "Python",
        "torch",
        "Inductor's joint hook",
        "backend entry point",
        "C++ compiler",
        "cache",
    ):
        assert what in out


def test_doctor_survives_a_folder_it_cannot_write(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FLASHLIGHT_CACHE_DIR", str(tmp_path / "file"))
    assert main(["doctor"]) == 0
    assert "Set FLASHLIGHT_CACHE_DIR" in capsys.readouterr().out


def test_cache_lists_shows_and_clears(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHLIGHT_CACHE_DIR", str(tmp_path))
    parts = {"kind": "triton", "device": "cpu"}
    entry = cache.store(parts, {"kernel.py": "x = 1"})
    assert main(["cache", "list"]) == 0
    assert "1 entries" in capsys.readouterr().out
    assert main(["cache", "show", cache.key_of(parts)[:6]]) == 0
    assert "device: cpu" in capsys.readouterr().out
    assert main(["cache", "clear"]) == 0
    assert not entry.exists()


def test_explain_wants_a_program(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for target, words in (
        ("nothing", "There is no program 'nothing'"),
        (f"{tmp_path}/none.py:f", "There is no file"),
    ):
        with pytest.raises(SystemExit):
            main(["explain", target])
        assert words in capsys.readouterr().err


def test_explain_wants_inputs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text("def f(x):\n    return x\n")
    for arguments, words in (
        ([f"{path}:g"], "There is no 'g'"),
        ([f"{path}:f"], "has none of inputs, example_inputs, make"),
        ([f"{path}:f", "--input", "2,x"], "Expected sizes and a dtype"),
    ):
        with pytest.raises(SystemExit):
            main(["explain", *arguments])
        assert words in capsys.readouterr().err


def test_explain_a_program_of_the_zoo(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page, picture = tmp_path / "page.html", tmp_path / "graph.svg"
    outs = ["--html", str(page), "--graph", str(picture), "--source"]
    assert main(["explain", "causal", *outs]) == 0
    out = capsys.readouterr().out
    assert out.startswith("1 kernel, 1 pass, nothing refused, no large intermediate in memory")
    assert "heads.py" in out
    assert "<svg" in page.read_text()
    assert "fused kernel 1" in picture.read_text()


def test_explain_a_function_of_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "my_model.py"
    path.write_text(
        "import torch\n"
        "def inputs(dtype):\n"
        "    return {n: torch.randn(1, 2, 40, 8, dtype=dtype) for n in 'qkv'}\n"
        "def attention(q, k, v):\n"
        "    return torch.softmax(q @ k.mT, -1) @ v\n"
        "def small(x):\n"
        "    return x + 1\n"
    )
    assert main(["explain", f"{path}:attention"]) == 0
    assert "my_model.py:5: return torch.softmax(q @ k.mT, -1) @ v" in capsys.readouterr().out
    three = ["--input", "1,2,40,8:bf16"] * 3
    assert main(["explain", f"{path}:attention", *three]) == 0
    assert "bf16" in capsys.readouterr().out
    assert main(["explain", f"{path}:small", "--input", "3,4"]) == 1
    assert "0 kernels" in capsys.readouterr().out


def test_bench_measures(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    few = ["--variants", "causal", "--systems", "ours,eager,flex", "--rounds", "1"]
    assert main(["bench", "--device", "cpu", "--grid", "smoke", *few, "--out", str(out)]) == 0
    facts, (row,) = record.load(out)
    assert {"date", "device", "torch", "commit", "source", "limits"} <= facts.keys()
    assert row.correct
    assert row.kernels == 1
    assert row.error["ours"] <= row.allowed_error
    # FlexAttention runs on CPUs with AVX2 and better
    timed = set(row.ms) if "flex" in row.ms else {*row.ms, *row.notes}
    assert timed == {"ours", "eager", "flex"}
    assert row.tflops
    assert row.share_of_limit
    assert "causal" in capsys.readouterr().out


def test_bench_lists_cells(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "bench",
        "--grid",
        "full",
        "--variants",
        "causal",
        "--dtypes",
        "bf16",
        "--lengths",
        "4096",
    ]
    assert main([*arguments, "--list"]) == 0
    assert capsys.readouterr().out.split("\n")[:-1] == [
        "causal B4 H16/16 S4096 D64 bf16",
        "causal B4 H16/16 S4096 D128 bf16",
        "causal B4 H16/2 S4096 D64 bf16",
        "causal B4 H16/2 S4096 D128 bf16",
    ]


def test_every_grid_has_cells() -> None:
    for name in cells.GRIDS:
        assert cells.grid(name)
    with pytest.raises(ValueError, match="Unknown grid"):
        cells.grid("everything")


def test_results_survive_writing_and_joining(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = cells.grid("smoke")[0]
    rows = [record.Row.of(cell), record.Row.of(cell)]
    rows[0].ms = {"ours": 2.0, "flex": 3.0}
    rows[1].ms = {"ours": 1.0, "flex": 3.0}
    for n, row in enumerate(rows):
        record.save(
            tmp_path / f"{n}.json", {"device": "d", "torch": "t", "date": "x", "commit": "c"}, [row]
        )
    facts, loaded = record.load(tmp_path / "1.json")
    assert facts["device"] == "d"
    assert loaded[0].speedup("flex") == 3.0
    files = [str(tmp_path / f"{n}.json") for n in range(2)]
    assert main(["bench", "--show", *files, "--out", str(tmp_path / "joined.json")]) == 0
    out = capsys.readouterr().out
    assert "3.00" in out
    assert "1.50" not in out
