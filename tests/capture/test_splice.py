"""Regions in graphs: what replaces them computes the same, in the same layout, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv

from flashlight.capture import capture as module
from flashlight.capture.splice import sort
from flashlight.errors import Refusal
from flashlight.options import Options
from flashlight.runtime import op
from tests.support.tracing import graph_of

T = torch.Tensor
Q, K, V = (
    torch.randn(2, 4, n, 16, generator=torch.Generator().manual_seed(n)) for n in (40, 50, 51)
)


def attention(q: T, k: T, v: T) -> T:
    return (q @ k.mT * 0.25).softmax(-1) @ v[:, :, : k.shape[2]]


def captured(
    fn: Callable[..., Any], *args: T, dynamic: bool = False
) -> tuple[torch.fx.Graph, module.Record]:
    graph = graph_of(fn, args, dynamic=dynamic)
    return graph, module.capture(graph, Options(strict=True))


def run(graph: torch.fx.Graph, *args: T) -> Any:
    owner = torch.fx.GraphModule(graph.owning_module or {}, graph)
    return owner(*args)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "plain": attention,
    "transposed": lambda q, k, v: attention(q, k, v).transpose(1, 2).contiguous(),
    "merged heads": lambda q, k, v: attention(q, k, v).transpose(1, 2).flatten(2) + 1,
    "two uses": lambda q, k, v: (attention(q, k, v), attention(q, k, v).sum(-1)),
    "statistics": lambda q, k, v: (attention(q, k, v), (q @ k.mT * 0.25).logsumexp(-1, keepdim=True)),
    "permuted operands": lambda q, k, v: attention(
        q.permute(1, 0, 2, 3), k.permute(1, 0, 2, 3), v.permute(1, 0, 2, 3)
    ),
    "strided operands": lambda q, k, v: attention(q[:, :, ::2, :15], k[:, :, 5:, 1:].flip(1), v[:, 1:2, 5:]),
    "one query": lambda q, k, v: attention(q[:, :, :1], k, v),
    "one of all": lambda q, k, v: attention(q[:1, :1, :1], k[:1, :1], v[:1, :1]),
    "grouped": lambda q, k, v: attention(
        q.reshape(2, 4, 2, 20, 16).flatten(1, 2), k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    ),
    "gated": lambda q, k, v: attention(q, k, v) * q.sigmoid(),
    "two regions": lambda q, k, v: attention(attention(q, k, v).cumsum(2), k, v),
}  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("fn", FUNCTIONS.values(), ids=FUNCTIONS)
def test_same_values(fn: Callable[..., Any], dynamic: bool) -> None:
    graph, record = captured(fn, Q, K, V, dynamic=dynamic)
    assert record.regions
    assert not any("bmm" in n.name for n in graph.nodes)
    wanted, got = fn(Q, K, V), run(graph, Q, K, V)
    for a, b in zip(
        got if isinstance(got, tuple) else [got],
        wanted if isinstance(wanted, tuple) else [wanted],
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def loss_of_classes(q: T, k: T, v: T, w: T, y: T) -> T:
    merged = attention(q, k, v).transpose(1, 2).reshape(80, 64)
    return torch.nn.functional.cross_entropy(merged @ w.mT, y)


def beside_a_gate(q: T, k: T, v: T, w: T, y: T) -> T:
    """Rows of a layer norm that are attention, projected, and values gated by a softmax along another axis."""
    a = attention(q, k, v).transpose(1, 2).reshape(2, 40, 64)
    x = q.transpose(1, 2).reshape(2, 40, 64)
    gated = x.mT * torch.softmax(torch.nn.functional.linear(x.mT, w[:40, :40]), -1)
    mixed = gated.mT + torch.nn.functional.linear(a, w[:64])
    return torch.nn.functional.layer_norm(mixed, (64,))


@pytest.mark.parametrize(("fn", "projections"), [(loss_of_classes, 0), (beside_a_gate, 1)])
def test_attention_that_is_projected_in_another_region_is_computed_once(
    fn: Callable[..., Any], projections: int
) -> None:
    """The other region begins with attention's result, although eager's next step is to copy it into another layout."""
    g = torch.Generator().manual_seed(0)
    w, y = torch.randn(900, 64, generator=g) / 8, torch.randint(0, 900, (80,), generator=g)
    args = Q, K, V, w, y
    graph, record = captured(fn, *args)
    assert record.regions
    left = [n for n in graph.nodes if n.target is torch.ops.aten.bmm.default]
    assert len(left) == projections
    torch.testing.assert_close(run(graph, *args), fn(*args), rtol=1e-5, atol=1e-5)


def test_one_program_for_other_sizes() -> None:
    graph, _ = captured(attention, Q, K, V, dynamic=True)
    q, k, v = torch.randn(3, 5, 7, 16), torch.randn(3, 5, 90, 16), torch.randn(3, 5, 91, 16)
    torch.testing.assert_close(run(graph, q, k, v), attention(q, k, v), rtol=1e-4, atol=1e-5)


def test_fake_values_have_eager_layouts() -> None:
    def fn(q: T, k: T, v: T) -> T:
        return attention(q, k, v).transpose(1, 2) * 2

    graph, _ = captured(fn, Q, K, V)
    output = next(n for n in graph.nodes if n.op == "output")
    (node,) = output.all_input_nodes
    wanted = fn(Q, K, V)
    assert node.meta["val"].shape == wanted.shape
    assert node.meta["val"].stride() == wanted.stride()
    assert run(graph, Q, K, V).stride() == wanted.stride()


def test_layers_share_a_token() -> None:
    def fn(q: T, k: T, v: T) -> T:
        for _ in range(3):
            q = attention(q, k, v).cumsum(-1)
        return q

    _, record = captured(fn, Q, K, V)
    assert len(record.regions) == 3
    assert len({taken.token for taken in record.regions}) == 1


def test_spellings_share_a_token() -> None:
    def einsum(q: T, k: T, v: T) -> T:
        p = (torch.einsum("bhid,bhjd->bhij", q, k) * 0.25).softmax(-1)
        return torch.einsum("bhij,bhjd->bhid", p, v[:, :, : k.shape[2]])

    tokens = {captured(fn, Q, K, V)[1].regions[0].token for fn in (attention, einsum)}
    assert len(tokens) == 1


def test_a_graph_is_untouched_when_splicing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(attention, [Q, K, V])
    before = str(graph)
    monkeypatch.setattr("flashlight.capture.splice.Writer._results", _fails)
    with pytest.raises(RuntimeError, match="no results"):
        module.capture(graph, Options())
    assert str(graph) == before


def _fails(*_: Any) -> Any:
    raise RuntimeError("no results")


def test_a_failing_region_costs_itself_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(q: T, k: T, v: T) -> T:
        return attention(attention(q, k, v).cumsum(2), k, v)

    results = iter([RuntimeError("a bug"), None])
    build = module.executable

    def sometimes(*args: Any) -> Any:
        error = next(results)
        if error is not None:
            raise error
        return build(*args)

    monkeypatch.setattr(module, "executable", sometimes)
    graph = graph_of(fn, [Q, K, V])
    with pytest.warns(UserWarning, match="a bug"):
        record = module.capture(graph, Options())
    assert (len(record.regions), [r.code for r in record.refusals]) == (1, ["internal-error"])
    torch.testing.assert_close(run(graph, Q, K, V), fn(Q, K, V), rtol=1e-4, atol=1e-5)


def test_training_graphs_are_left_alone() -> None:
    graph = torch.fx.Graph()
    x, t = graph.placeholder("primals_1"), graph.placeholder("tangents_1")
    graph.output((x, t))
    record = module.capture(graph, Options())
    assert [r.code for r in record.refusals] == ["training"]


def test_without_kernels_a_region_still_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = captured(attention, Q, K, V)
    monkeypatch.setattr(op, "_built", {})
    monkeypatch.setattr(op, "build", lambda *_: Refusal("tile-form", "No."))
    with pytest.warns(UserWarning, match="without kernels"):
        got = run(graph, Q, K, V)
    torch.testing.assert_close(got, attention(Q, K, V), rtol=1e-4, atol=1e-5)


def test_tokens_survive_a_round_trip() -> None:
    _, record = captured(attention, Q, K, V)
    (taken,) = record.regions
    payload = op.payload_of(taken.token)
    assert payload.program == taken.program
    assert payload.options == Options()
    assert not {'"', "'", "\\"} & set(taken.token)


def test_sort_keeps_an_order_that_is_right() -> None:
    graph = graph_of(attention, [Q, K, V])
    before = [n.name for n in graph.nodes]
    sort(graph)
    assert [n.name for n in graph.nodes] == before


def test_sizes_that_come_up_while_running_are_refused() -> None:
    def fn(q: T, k: T, v: T, rows: T) -> T:
        picked = rows.nonzero()[:, 0]
        torch._check(picked.shape[0] > 2)
        return attention(q, k[:, :, picked], v[:, :, picked])

    args = (Q, K, V[:, :, :50], torch.arange(50) % 3 == 0)
    mode = torch._subclasses.FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True)
    with mode:
        fakes = [mode.from_tensor(a) for a in args]
        try:
            traced = make_fx(fn, tracing_mode="real")(*fakes)
        except GuardOnDataDependentSymNode:
            pytest.skip("torch 2.11 cannot trace this")
    record = module.capture(traced.graph, Options())
    assert [r.code for r in record.refusals] == ["unknown-sizes"]
