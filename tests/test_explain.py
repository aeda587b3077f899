"""What the report sees of a compilation, and how it reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.compile_fx import compile_fx

import flashlight
from flashlight.errors import Refusal
from flashlight.programs.variants import VARIANTS
from flashlight.report.explain import Watch
from flashlight.report.materialized import Intermediate
from flashlight.report.picture import Box, Picture
from flashlight.report.report import Kernel, Report


def watched(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Report:
    """The report of plain Inductor: what there is to gain."""
    watch = Watch(compile_fx)
    watch.compile(fn, args, kwargs)
    return watch.report()


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2)
    return torch.softmax(scores, -1) @ v


def heads(length: int = 40) -> list[Tensor]:
    return [torch.randn(1, 2, length, 8) for _ in range(3)]


def test_inductor_alone_leaves_the_scores_in_memory() -> None:
    report = watched(plain, *heads())
    assert report.materialized
    assert {40 * 40 * 2} == {torch.Size(m.shape).numel() for m in report.materialized}
    assert "scores = q @ k.transpose(-1, -2)" in str(report.materialized[0])
    assert not report.kernels


def test_the_backward_is_seen_when_gradients_are_wanted() -> None:
    args = [t.requires_grad_() for t in heads()]
    report = watched(plain, *args)
    assert {m.phase for m in report.materialized} == {"forward", "backward"}
    assert all(t.grad is None for t in args)


def test_small_programs_have_nothing_large() -> None:
    assert watched(lambda x: x.exp().sum(-1), torch.randn(4, 4)).materialized == ()


def test_modules_and_keyword_arguments() -> None:
    module = nn.Linear(4, 4)
    report = watched(module, input=torch.randn(3, 4))
    assert report.graphs == 1
    assert all(p.grad is None for p in module.parameters())


def test_arguments_are_copied_and_randomness_is_restored() -> None:
    def fill(x: Tensor) -> Tensor:
        x.add_(torch.rand(3))
        return x * 2

    x = torch.zeros(3)
    state = torch.random.get_rng_state()
    watched(fill, x)
    assert torch.equal(x, torch.zeros(3))
    assert torch.equal(state, torch.random.get_rng_state())


def test_a_compilation_of_the_user_stays() -> None:
    compiled = torch.compile(plain, backend="eager")
    args = heads()
    compiled(*args)
    watched(plain, *args)
    with torch.compiler.set_stance("fail_on_recompile"):
        compiled(*args)


def test_strides_survive_copying() -> None:
    seen: list[tuple[int, ...]] = []

    def backend(gm: Any, inputs: Any) -> Any:
        seen.append(tuple(inputs[0].stride()))
        return gm

    x = torch.randn(3, 1, 5).expand(3, 4, 5).transpose(0, 1)
    watch = Watch(backend)
    watch.compile(lambda t: t + 1, (x,), {})
    assert seen == [tuple(x.stride())]


@pytest.fixture
def report() -> Report:
    kernel = Kernel(
        name="attention",
        program="loop (q | k)\n  carry m (q) f32: max s",
        source="int main() { return 0; }",
        language="cpp",
        grid=64,
        bytes_moved=123_000,
        flops=45_600_000,
        config="rows 64",
        origins=("model.py:12: scores = q @ k.mT",),
    )
    refusal = Refusal(
        "reader-not-reducing", "Nest 'scores' is also read by 'w'.", "model.py:14", "Return less."
    )
    big = Intermediate((2, 8, 80, 80), "float32", "bmm", "model.py:12: scores")
    picture = Picture(
        (
            Box("q", "input", "q", "f32[4]"),
            Box("a", "fused", "kernel 1"),
            Box("o", "output", "output"),
        ),
        (("q", "a"), ("a", "o")),
    )
    return Report((kernel,), (refusal,), (big,), picture)


def test_report_reads(report: Report) -> None:
    text = str(report)
    for words in (
        "1 kernel, 1 pass, 1 refusal, 1 large intermediates in memory",
        "grid 64, 45.6 MFLOP, 123 kB moved",
        "rows 64",
        "model.py:12: scores = q @ k.mT",
        "carry m (q) f32: max s",
        "[reader-not-reducing] Nest 'scores' is also read by 'w'. Note: at model.py:14. Hint: Return less.",
        "bmm (2, 8, 80, 80) float32 at model.py:12: scores",
    ):
        assert words in text


def test_report_as_a_page(report: Report, tmp_path: Path) -> None:
    page = report.to_html()
    assert "<svg" in page
    assert "int main() { return 0; }" in page
    assert "max s" in page
    assert report.graph.save(tmp_path / "p.svg").read_text().startswith("<svg")
    assert '"q" -> "a";' in report.graph.save(tmp_path / "p.dot").read_text()


def test_an_empty_report_reads() -> None:
    assert str(Report()) == "0 kernels, nothing refused, no large intermediate in memory"


def test_the_picture_of_a_graph_shows_products() -> None:
    args = VARIANTS["causal"].make(VARIANTS["causal"].tiny, torch.float32, "cpu", 0)
    picture = watched(VARIANTS["causal"].fn, *args).graph
    kinds = [b.kind for b in picture.boxes]
    assert kinds.count("product") == 2
    assert kinds.count("input") == 3
    assert picture.svg.count("<rect") == len(picture.boxes)


def test_a_discarded_attempt_is_not_reported() -> None:
    """A call of SDPA beside something that is refused: its decomposition is tried and given up."""

    def two(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        scores = torch.softmax(q @ k.mT, -1)
        return o, scores.cumsum(-1)

    with torch.no_grad():
        report = flashlight.explain(two, *heads())
    graphs = {b.name.split(".")[0] for b in report.graph.boxes}
    assert len(graphs) == 1
    fused = sum(b.kind == "fused" for b in report.graph.boxes)
    assert fused == len(report.kernels)


def test_what_a_kernel_leaves_out() -> None:
    def windowed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        i = torch.arange(40)
        away = i[:, None] - i[None, :]
        scores = (q @ k.mT).masked_fill((away < 0) | (away > 8), -torch.inf)
        return torch.softmax(scores, -1) @ v

    (kernel,) = flashlight.explain(windowed, *heads()).kernels
    assert kernel.name == "fused_max_sum2"
    assert kernel.notes == (
        "reads k in [q.first - 8, q.last + 1); in [max(0, q.last - 8), q.first + 1) k <= q & q <= k + 8 is sure",
    )
