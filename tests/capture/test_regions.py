"""What is taken, what is refused and why: a table of functions, near misses included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from flashlight.capture.emit import emit
from flashlight.capture.regions import Finder
from flashlight.capture.splice import shapes_from_inputs
from flashlight.lift import rules as _rules
from flashlight.lift.lift import Lifter, hints_of
from tests.support.tracing import graph_of

del _rules
T = torch.Tensor


def found(fn: Callable[..., Any], *args: T, dynamic: bool = False) -> tuple[int, list[str]]:
    """How many regions, and the codes of refusals."""
    finder = finder_of(fn, *args, dynamic=dynamic)
    regions = finder.regions()
    return len(regions), [r.code for r in finder.refusals]


def finder_of(fn: Callable[..., Any], *args: T, dynamic: bool = False) -> Finder:
    graph = graph_of(fn, args, dynamic=dynamic)
    shapes_from_inputs(graph)
    return Finder(Lifter(graph), hints_of(graph))


def r(*shape: int) -> T:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


Q, K, V = r(2, 3, 40, 16), r(2, 3, 50, 16), r(2, 3, 50, 24)


def attention(q: T, k: T, v: T) -> T:
    return (q @ k.mT * 0.25).softmax(-1) @ v


def with_sum_outside(q: T, k: T, v: T) -> T:
    e = (q @ k.mT).exp()
    return (e @ v) / e.sum(-1, keepdim=True)


def over_queries(q: T, k: T, v: T) -> T:
    return (q @ k.mT).softmax(-2) @ v


def returns_weights(q: T, k: T, v: T) -> tuple[T, T]:
    p = (q @ k.mT).softmax(-1)
    return p @ v, p


def sorts_scores(q: T, k: T, v: T) -> T:
    return (q @ k.mT).sort(-1).values.softmax(-1) @ v


def convolves_scores(q: T, k: T, v: T) -> T:
    s = F.conv2d(q @ k.mT, torch.ones(3, 1, 3, 3), padding=1, groups=3)
    return s.softmax(-1) @ v


def cumulated_weights(q: T, k: T, v: T) -> T:
    return (q @ k.mT).softmax(-1).cumsum(-1) @ v


def two_values(q: T, k: T, v: T) -> tuple[T, T]:
    p = (q @ k.mT).softmax(-1)
    return p @ v, p @ (v * 2).sin()


def twice_the_same_scores(q: T, k: T, v: T) -> tuple[T, T]:
    return (q @ k.mT).softmax(-1) @ v, (q @ k.mT).softmax(-1) @ v.cos()


def statistics(q: T, k: T, v: T) -> tuple[T, T, T]:
    s = q @ k.mT
    return s.softmax(-1) @ v, s.logsumexp(-1), s.softmax(-1).sum(-2)


def chain(q: T, k: T, v: T) -> T:
    """The result of one attention is the next one's query: two regions, as something lies between."""
    o = attention(q, k, v[..., :16])
    return attention(o.cumsum(2), k, v)


def linear_attention(q: T, k: T, v: T) -> T:
    return q.softmax(-1) @ (k.softmax(-2).mT @ v)


def sigmoid_attention(q: T, k: T, v: T) -> T:
    return (q @ k.mT).sigmoid() @ v


def unmasked_rows(q: T, k: T, v: T) -> T:
    s = q @ k.mT
    ok = torch.arange(50) <= torch.arange(40)[:, None]
    return s.masked_fill(~ok, -torch.inf).softmax(-1).masked_fill(~ok.any(-1, True), 0) @ v


def decode(q: T, k: T, v: T) -> T:
    return attention(q[:, :, :1], k, v)


def strange_weights(q: T, k: T, v: T) -> T:
    """Scores that go through an op without a rule, and beside it."""
    s = q @ k.mT
    return (torch.digamma(s.abs() + 1).softmax(-1) * s) @ v


def complex_scores(q: T, k: T, v: T) -> T:
    a, b = (torch.view_as_complex(x.unflatten(-1, (-1, 2))) for x in (q, k))
    return (a @ b.conj().mT).real.softmax(-1) @ v


def integer_scores(q: T, k: T, v: T) -> T:
    return (q.round().int() @ k.round().int().mT).float().softmax(-1) @ v


TAKEN: dict[str, tuple[Callable[..., Any], int, list[str]]] = {
    "attention": (attention, 1, []),
    "sum outside": (with_sum_outside, 1, []),
    "over queries": (over_queries, 1, []),
    "two values": (two_values, 1, []),
    "the same scores twice": (twice_the_same_scores, 1, []),
    "statistics": (statistics, 1, []),
    "chain": (chain, 2, []),
    "sigmoid": (sigmoid_attention, 1, []),
    "dead rows": (unmasked_rows, 1, []),
    "decode": (decode, 1, []),
    "weights returned": (returns_weights, 0, ["score-returned"]),
    "sort": (sorts_scores, 0, ["no-rule:aten.sort"]),
    "convolution": (convolves_scores, 0, ["no-rule:aten.convolution"]),
    "cumsum": (cumulated_weights, 0, ["no-rule:aten.cumsum"]),
    "linear attention": (linear_attention, 0, []),
    "a strange op": (strange_weights, 0, ["no-rule:aten.digamma"]),
    "complex scores": (complex_scores, 0, ["no-rule:aten.bmm"]),
    "integer scores": (integer_scores, 0, ["no-rule:aten.bmm"]),
}


@pytest.mark.parametrize(("fn", "regions", "codes"), TAKEN.values(), ids=TAKEN)
def test_table(fn: Callable[..., Any], regions: int, codes: list[str]) -> None:
    assert found(fn, Q, K, V) == (regions, codes)


@pytest.mark.parametrize("name", ["attention", "statistics", "decode", "weights returned"])
def test_dynamic_sizes_change_nothing(name: str) -> None:
    fn, regions, codes = TAKEN[name]
    assert found(fn, Q, K, V, dynamic=True) == (regions, codes)


def mlp(x: T, a: T, b: T) -> T:
    return F.gelu(x @ a) @ b


def normed_projection(x: T, a: T, b: T) -> T:
    """A projection, a norm over its columns, another projection: no attention, whatever is reduced."""
    h = x @ a
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)) @ b


def loss(x: T, w: T, _: T) -> T:
    return F.cross_entropy(x @ w, torch.arange(x.shape[0]))


def kernel_regression(x: T, y: T, b: T) -> T:
    return torch.exp(-(x[:, None] - y.mT[None]).pow(2).sum(-1)) @ b.mT


def best_match(x: T, y: T, _: T) -> T:
    return (x @ y).amax(-1)


def learned_keys(x: T, k: T, v: T) -> T:
    return (x @ k).softmax(-1) @ v


def learned_queries(x: T, q: T, w: T) -> T:
    k = x @ w
    return (q @ k.mT).softmax(-1) @ k


def projected_softmax(x: T, w: T, v: T) -> T:
    """Few features made of many, as in linear attention: a projection, not scores."""
    return (x @ w).softmax(-1) @ v


WEIGHTS: dict[str, tuple[Callable[..., Any], tuple[T, T, T], int]] = {
    "mlp": (mlp, (r(64, 32), r(32, 128), r(128, 32)), 0),
    "mlp on many tokens": (mlp, (r(4096, 32), r(32, 128), r(128, 32)), 0),
    "norm between projections": (normed_projection, (r(64, 32), r(32, 32), r(32, 96)), 0),
    "cross entropy": (loss, (r(64, 16), r(16, 500), r(1)), 1),
    "cross entropy of few": (loss, (r(8, 64), r(64, 10), r(1)), 0),
    "learned keys": (learned_keys, (r(64, 16), r(16, 12), r(12, 24)), 1),
    "learned queries": (learned_queries, (r(2, 60, 32), r(7, 16), r(32, 16)), 1),
    "softmax over projected features": (projected_softmax, (r(64, 512), r(512, 32), r(32, 24)), 0),
    "kernel": (kernel_regression, (r(70, 3), r(3, 90), r(4, 90)), 1),
    "best match": (best_match, (r(70, 16), r(16, 90), r(1)), 1),
}


@pytest.mark.parametrize(("fn", "args", "regions"), WEIGHTS.values(), ids=WEIGHTS)
def test_weights(fn: Callable[..., Any], args: tuple[T, T, T], regions: int) -> None:
    assert found(fn, *args) == (regions, [])


def graph_attention(h: T, sides: T, edges: T) -> T:
    """Scores are sums of a number for each node, and one that is given for each pair."""
    a, b = (h @ sides).unbind(-1)
    return F.leaky_relu(a[:, None] + b + edges).softmax(-1) @ h


def test_a_bias_for_each_outer_pair() -> None:
    assert found(graph_attention, r(70, 8), r(8, 2), r(70, 70)) == (1, [])


def few_keys(q: T, k: T, w: T) -> T:
    """Fewer keys than features: the results are more than the scores, which are scores all the same."""
    o = (q @ k.mT).softmax(-1) @ k
    return F.layer_norm(o, (32,)).transpose(1, 2).flatten(2) @ w


def few_keys_and_weights(q: T, k: T, w: T) -> tuple[T, T]:
    p = (q @ k.mT).softmax(-1)
    return p, F.layer_norm(p @ k, (32,)).transpose(1, 2).flatten(2) @ w


def test_few_keys() -> None:
    args = r(2, 3, 40, 32), r(2, 3, 8, 32), r(96, 64)
    assert found(few_keys, *args) == (1, [])
    assert found(few_keys_and_weights, *args) == (1, [])


def window_sums(x: T, w: T, taps: T) -> T:
    """Sums over windows, by weights that are made of features for each position, and again of the sums."""
    for _ in range(2):
        weights = ((x @ w * (x @ w.mT)) @ taps).softmax(-1)
        x = (F.pad(x, (0, 0, 4, 4)).unfold(0, 9, 1) @ weights[..., None])[..., 0]
    return x


def test_statistics_of_a_layer_are_none_of_the_next() -> None:
    assert found(window_sums, r(64, 32), r(32, 32), r(32, 9)) == (2, [])


def two_convolutions(x: T, w: T, u: T) -> T:
    """An MLP over channels: no attention, although its weights have four axes."""
    return F.conv2d(torch.relu(F.conv2d(x, w)), u)


def test_convolutions_are_products_with_weights() -> None:
    args = r(2, 16, 9, 9), r(64, 16, 1, 1), r(16, 64, 1, 1)
    assert found(two_convolutions, *args) == (0, [])


def relative_shift(q: T, k: T, table: T) -> T:
    """Scores of distances, moved so that column j of row i is distance i - j, on top of scores: no diagonal, although both sides
    of the pair meet in one axis."""
    n = q.shape[-2]
    far = F.pad(q @ table.mT, (1, 0)).unflatten(-2, (1, n)).flatten(-2)
    far = far.unflatten(-1, (2 * n, n)).squeeze(-3)[..., 1:, :].flatten(-2).unflatten(-1, (n, -1))
    return (q @ k.mT + far[..., :n] * 0.25).softmax(-1) @ k


def test_relative_shift_is_no_diagonal() -> None:
    assert found(relative_shift, r(2, 3, 6, 16), r(2, 3, 6, 16), r(2, 3, 11, 16)) == (1, [])


# -- Frontiers


def program_of(fn: Callable[..., Any], *args: T) -> Any:
    finder = finder_of(fn, *args)
    (region,) = finder.regions()
    return emit(region, finder.lifter, finder.hints)


def test_views_are_absorbed_down_to_their_base() -> None:
    def packed(qkv: T) -> T:
        q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
        return attention(q, k, v)

    emitted = program_of(packed, r(2, 40, 3, 2, 16))
    assert [n.op for n in emitted.inputs] == ["placeholder"]


def test_scale_and_masks_go_in_and_rope_stays_out() -> None:
    def rope(x: T) -> T:
        a, b = x.chunk(2, -1)
        return torch.cat([a * 0.5 - b, a + b * 0.5], -1)

    def fn(q: T, k: T, v: T, ids: T) -> T:
        s = (rope(q) * 0.25) @ rope(k).mT
        seen = (ids[:, :, None] == ids[:, None]) & torch.ones(40, 40, dtype=torch.bool).tril()
        return s.masked_fill(~seen[:, None], -torch.inf).softmax(-1) @ v

    ids = torch.zeros(2, 40, dtype=torch.long)
    emitted = program_of(fn, Q, r(2, 3, 40, 16), r(2, 3, 40, 16), ids)
    inputs = sorted("cat" if "cat" in str(n.target) else n.op for n in emitted.inputs)
    assert inputs == ["cat", "cat", "placeholder", "placeholder"]


def test_positions_may_be_rows_or_columns() -> None:
    """Frames of speech by the middles of phonemes, and windows around centres that queries choose."""

    def upsampled(middles: T, widths: T, h: T) -> T:
        at = torch.arange(400, dtype=h.dtype) + 0.5
        far = (at[None, :, None] - middles[:, None]) / widths[:, None]
        return torch.softmax(-(far**2), -1) @ h

    def windowed(centres: T, widths: T, h: T) -> T:
        at = torch.arange(90, dtype=h.dtype)
        return torch.softmax(-(at - centres[..., None]).abs() / widths[..., None], -1) @ h

    for fn, count in ((upsampled, 90), (windowed, 400)):
        middles, widths = r(2, count), r(2, count).abs() + 1
        assert found(fn, middles, widths, r(2, 90, 16)) == (1, [])


def test_products_beside_sums_of_two_numbers_are_scores() -> None:
    """Weights of graph attention, or of distances, times a gate that is a product of the same rows: all matrices, as weights are."""

    def graph_attention(a: T, b: T, x: T, z: T) -> T:
        p = F.leaky_relu(a[:, None] + b[None], 0.2).softmax(-1)
        return (p * torch.sigmoid(x @ z.mT)) @ z

    def expected_score(a: T, b: T, x: T, z: T) -> T:
        p = (-((a[:, None] - b[None]) ** 2)).softmax(-1)
        return (p * (x @ z.mT)).sum(-1)

    args = r(512), r(384), r(512, 16), r(384, 16)
    for fn in (graph_attention, expected_score):
        emitted = program_of(fn, *args)
        assert all(n.op == "placeholder" for n in emitted.inputs)


def test_what_is_one_number_for_all_pairs_of_a_head_is_no_kernel_of_its_own() -> None:
    def fn(q: T, k: T, v: T, t: T, x: T) -> T:
        cosines = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT
        temperature = t.clamp(max=4.6).exp() * x.sigmoid()[:, None]
        return (cosines * temperature[..., None, None]).softmax(-1) @ v

    def with_temperature(q: T, k: T, v: T, t: T, x: T) -> tuple[T, T]:
        temperature = F.softplus(t)
        return ((q @ k.mT) * temperature[:, None, None]).softmax(-1) @ v, temperature

    for program, whole in ((fn, True), (with_temperature, False)):
        emitted = program_of(program, Q, K, V, r(3), r(2))
        small = [n for n in emitted.inputs if n.meta["val"].numel() <= 6]
        assert all(n.op == "placeholder" for n in small) == whole


def test_joined_keys_go_in_where_the_loop_can_be_cut() -> None:
    def with_memory(q: T, k: T, v: T, mk: T, mv: T) -> T:
        return attention(q, torch.cat([mk, k], 2), torch.cat([mv, v], 2))

    def with_shared_rotary_part(q: T, k: T, v: T, rope: T) -> T:
        return attention(q, torch.cat([k, rope.expand(-1, 3, -1, -1)], -1), v)

    few, many, long = r(2, 3, 8, 16), r(2, 3, 80, 16), r(2, 3, 90, 16)
    for fn, args in (
        (with_memory, (Q, K, V[..., :16], few, few)),
        (with_shared_rotary_part, (r(2, 3, 40, 24), K, V, r(2, 1, 50, 8))),
    ):
        assert all(n.op == "placeholder" for n in program_of(fn, *args).inputs)
    emitted = program_of(with_memory, Q, long, long, many, many)
    assert any("cat" in str(n.target) for n in emitted.inputs)


def test_a_join_that_several_regions_read_goes_into_each() -> None:
    def fn(x: T, y: T) -> tuple[T, T]:
        return torch.cdist(x, y).amin(1), torch.cdist(x, x).mean(1)

    finder = finder_of(fn, r(60, 3), r(70, 3))
    for region in finder.regions():
        emitted = emit(region, finder.lifter, finder.hints)
        assert not [n for n in emitted.inputs if "cat" in str(n.target)]


def test_regions_in_a_row_read_results_of_each_other() -> None:
    def retrieval(x: T, y: T) -> T:
        for _ in range(3):
            x = (2.0 * x @ y.mT).softmax(-1) @ y
        return x

    finder = finder_of(retrieval, r(2, 40, 16), r(2, 50, 16))
    regions = [emit(region, finder.lifter, finder.hints) for region in finder.regions()]
    given = {n for emitted in regions for o in emitted.outputs for n in o.nodes}
    read = {n for emitted in regions for n in emitted.inputs}
    assert len(regions) == 3
    assert all(n.op == "placeholder" for n in read - given)


def test_scores_may_be_sums_of_two_projections() -> None:
    def graph_attention(h: T, left: T, right: T, adjacent: T) -> T:
        e = F.leaky_relu((h * left).sum(-1)[:, None] + (h * right).sum(-1)[None], 0.2)
        e = e.masked_fill(~adjacent[..., None], -torch.inf)
        return torch.einsum("ijh,jhd->ihd", e.softmax(1), h)

    adjacent = torch.ones(60, 60).tril().bool()
    emitted = program_of(graph_attention, r(60, 2, 8), r(2, 8), r(2, 8), adjacent)
    assert max(n.meta["val"].numel() for n in emitted.inputs) <= 60 * 60


@pytest.mark.parametrize("product", ["matmul", "einsum"])
def test_scores_may_be_projections_of_features_of_pairs(product: str) -> None:
    def additive(q: T, k: T, v: T, w: T) -> T:
        h = torch.tanh(q[:, :, :, None] + k[:, :, None])
        s = h @ w if product == "matmul" else torch.einsum("bhijd,d->bhij", h, w)
        return s.softmax(-1) @ v

    emitted = program_of(additive, Q, K, V, r(16))
    assert all(n.op == "placeholder" for n in emitted.inputs)


def test_mixed_heads_are_refused_and_said() -> None:
    def talking(q: T, k: T, v: T, mix: T) -> T:
        s = torch.einsum("gh,bhij->bgij", mix, q @ k.mT)
        return torch.einsum("gh,bhij->bgij", mix, s.softmax(-1)) @ v

    finder = finder_of(talking, Q, K, V, r(3, 3))
    assert finder.regions() == []
    assert [f.code for f in finder.refusals] == ["scores-mixed"]


def test_neighbouring_blocks_are_one_index() -> None:
    def fn(q: T, k: T, v: T) -> T:
        def look(x: T) -> T:
            x = torch.nn.functional.pad(x, (0, 0, 8, 0)).unflatten(2, (6, 8))
            return torch.cat([x[:, :, :-1], x[:, :, 1:]], 3)

        return attention(q.unflatten(2, (5, 8)), look(k), look(v))

    assert all(
        n.op == "placeholder" for n in program_of(fn, Q, r(2, 3, 40, 16), r(2, 3, 40, 16)).inputs
    )


def test_weight_products_stay_out() -> None:
    def fn(x: T, w: T) -> T:
        q, k, v = (x @ w).view(2, 40, 3, 2, 16).permute(2, 0, 3, 1, 4)
        return attention(q, k, v)

    emitted = program_of(fn, r(2, 40, 32), r(32, 96))
    assert [str(n.target) for n in emitted.inputs] == ["aten.mm.default"]


def test_a_gate_is_an_epilogue() -> None:
    def fn(q: T, k: T, v: T, gate: T) -> T:
        return attention(q, k, v) * gate.sigmoid()

    emitted = program_of(fn, Q, K, V, r(2, 3, 40, 24))
    (output,) = emitted.outputs
    assert "mul" in output.nodes[0].name
    assert all(n.op == "placeholder" for n in emitted.inputs)


def test_a_transposed_copy_is_written_directly() -> None:
    def fn(q: T, k: T, v: T) -> T:
        return attention(q, k, v).transpose(1, 2).reshape(2, 40, 72).cumsum(1)

    emitted = program_of(fn, Q, K, V)
    (output,) = emitted.outputs
    assert output.shape == (2, 40, 3, 24)
    (name,) = emitted.program.outputs
    assert [str(e) for e in _extents(emitted.program.results()[name].shape)] == [
        "2",
        "40",
        "3",
        "24",
    ]


def _extents(shape: Any) -> list[int]:
    return [e.value for e in shape]


def test_a_norm_over_values_stays_out() -> None:
    def fn(q: T, k: T, v: T) -> T:
        o = attention(q, k, v)
        return o * torch.rsqrt(o.pow(2).mean(-1, keepdim=True))

    emitted = program_of(fn, Q, K, V)
    assert "bmm" in emitted.outputs[0].nodes[0].name


def test_shared_masks_do_not_join_layers() -> None:
    def fn(q: T, k: T, v: T, c: T) -> T:
        bias = c[:, None] - c[None]
        o = q
        for _ in range(3):
            o = (o @ k.mT + bias).softmax(-1) @ v
            o = o.cumsum(-1)
        return o

    k = r(2, 3, 40, 16)
    assert found(fn, Q, k, k, r(40)) == (3, [])


def test_a_pair_bias_from_a_projection_stays_out() -> None:
    def fn(q: T, k: T, v: T, z: T, w: T, c: T) -> T:
        bias = F.linear(z, w, c).permute(2, 0, 1)
        return (q @ k.mT + bias).softmax(-1) @ v

    emitted = program_of(fn, Q, K, V, r(40, 50, 8), r(3, 8), r(3))
    assert [str(n.target) for n in emitted.inputs].count("aten.addmm.default") == 1


def test_scores_of_baddbmm() -> None:
    def fn(q: T, k: T, v: T, bias: T) -> T:
        s = torch.baddbmm(bias, q.flatten(0, 1), k.flatten(0, 1).mT, beta=0.5, alpha=0.25)
        return s.softmax(-1) @ v.flatten(0, 1)

    assert found(fn, Q, K, V, r(6, 1, 50)) == (1, [])


def multiplied_out(q: T, k: T, v: T) -> T:
    """What Inductor makes of products with one row, where it may: sums of broadcast products."""
    s = (q[:, :, :, None] * k[:, :, None]).sum(-1)
    return (s.softmax(-1)[..., None] * v[:, :, None]).sum(3)


def multiplied_out_decode(q: T, k: T, v: T) -> T:
    return multiplied_out(q[:, :, :1], k, v)


@pytest.mark.parametrize("fn", [multiplied_out, multiplied_out_decode])
def test_products_written_as_sums(fn: Callable[..., Any]) -> None:
    emitted = program_of(fn, Q, K, V)
    assert all(n.op == "placeholder" for n in emitted.inputs)
    assert len(emitted.outputs) == 1


def test_smaller_regions_leave_the_rest_outside() -> None:
    def fn(q: T, k: T, v: T, gate: T) -> T:
        return attention(q * 0.5, k, v) * gate.sigmoid()

    finder = finder_of(fn, Q, K, V, r(2, 3, 40, 24))
    (region,) = finder.regions()
    without_gate, bare = finder.smaller(region)
    assert region.members - without_gate.members == {"mul_2", "sigmoid"}
    assert without_gate.members - bare.members == {"mul"}


def test_distances_may_have_a_bias_of_their_own_size() -> None:
    def near(q: T, k: T, v: T, slope: T) -> T:
        i, j = torch.arange(40)[:, None], torch.arange(50)[None, :]
        far = (q[..., :, None, :] - k[..., None, :, :]).square().sum(-1)
        return (slope[:, None, None] * -(i - j).abs() - far).softmax(-1) @ v

    one = [t[:1, :1] for t in (Q, K, V)]
    assert found(near, *one, r(1)) == (1, [])


def test_sums_of_small_outer_products_stay_with_inductor() -> None:
    def rotation(x: T, table: T) -> T:
        return ((x[:, :, None] * x[:, None])[..., None] * table).sum((1, 2))

    assert found(rotation, r(20, 4), r(4, 4, 9)) == (0, [])


def test_a_mean_is_taken_once_before() -> None:
    def pooled_and_near(q: T, k: T, v: T) -> T:
        k, v = (torch.cat([x.unflatten(2, (8, 5)).mean(3), x], 2) for x in (k, v))
        near = torch.ones(40, 40, dtype=torch.bool).tril()
        seen = torch.cat([torch.ones(40, 8, dtype=torch.bool), near], 1)
        return (q @ k.mT).masked_fill(~seen, -torch.inf).softmax(-1) @ v

    x = r(2, 3, 40, 16)
    inputs = program_of(pooled_and_near, x, r(2, 3, 40, 16), r(2, 3, 40, 16)).inputs
    assert sorted(n.op for n in inputs) == ["call_function"] * 2 + ["placeholder"] * 3


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: torch.logsumexp(x @ y.mT - (x @ y.mT)[..., :1], -1),
        lambda x, y: ((s := x[0, 0] @ y[0, 0].mT) - s.diagonal()[:, None]).exp().sum(-1),
        lambda x, y: (s := x @ y.mT).exp().sum(-1) / s.diagonal(dim1=-2, dim2=-1).exp(),
    ],
    ids=["first", "diagonal", "both apart"],
)
def test_scores_may_read_scores_at_a_point(fn: Callable[..., Any]) -> None:
    finder = finder_of(fn, r(2, 3, 60, 16), r(2, 3, 60, 16))
    (region,) = finder.regions()
    emitted = emit(region, finder.lifter, finder.hints)
    assert all(n.op == "placeholder" for n in emitted.inputs)


def features(x: T, a: T) -> T:
    return torch.relu((x[:, None] - x[None])[..., None] * a)


def with_bias(q: T, k: T, v: T, bias: T) -> T:
    return (q @ k.mT + bias.permute(2, 0, 1)).softmax(-1) @ v


def test_a_bias_of_features_of_pairs_goes_in() -> None:
    """Nothing that is larger than the rows is read: neither the bias nor the features."""

    def products(q: T, k: T, v: T, x: T, a: T, w: T) -> T:
        return with_bias(q, k, v, features(x, a) @ w)

    def linear(q: T, k: T, v: T, x: T, a: T, w: T) -> T:
        return with_bias(q, k, v, F.linear(features(x, a), w.mT, a[:3]))

    def einsum(q: T, k: T, v: T, x: T, a: T, w: T) -> T:
        return (q @ k.mT + torch.einsum("ijf,fh->hij", features(x, a), w)).softmax(-1) @ v

    q = r(2, 3, 40, 16)
    for fn in (products, linear, einsum):
        emitted = program_of(fn, q, q, q, r(40), r(24), r(24, 3))
        assert all(n.op == "placeholder" for n in emitted.inputs)


def test_a_bias_of_distances_goes_in() -> None:
    """A distance of each pair is given, which is less than the bias; elsewhere the features would make a region."""

    def fn(q: T, k: T, v: T, y: T, a: T, w: T) -> T:
        return with_bias(q, k, v, torch.exp(y[..., None] - a) @ w)

    q = r(2, 3, 40, 16)
    emitted = program_of(fn, q, q, q, r(40, 40), r(24), r(24, 3))
    assert all(n.op == "placeholder" for n in emitted.inputs)


def test_other_products_for_pairs_stay_outside() -> None:
    def projected(q: T, k: T, v: T, z: T, w: T) -> T:
        return with_bias(q, k, v, torch.relu(z) @ w)

    def rows_times_columns(q: T, k: T, v: T, x: T, y: T) -> T:
        return (q @ k.mT + x @ y.mT).softmax(-1) @ v

    def read_elsewhere(q: T, k: T, v: T, x: T, a: T, w: T) -> tuple[T, T]:
        bias = features(x, a) @ w
        return with_bias(q, k, v, bias), bias.cumsum(0)

    q = r(2, 3, 40, 16)
    cases = (
        (projected, (r(40, 40, 24), r(24, 3))),
        (rows_times_columns, (r(40, 8), r(40, 8))),
        (read_elsewhere, (r(40), r(24), r(24, 3))),
    )
    for fn, args in cases:
        finder = finder_of(fn, q, q, q, *args)
        region = finder.regions()[-1]
        read = emit(region, finder.lifter, finder.hints).inputs
        assert any("mm" in str(n.target) for n in read), fn.__name__


def table_of_positions(q: T, k: T, w: T) -> T:
    return (q @ k.mT + q @ w.T).softmax(-1) @ k


def hidden_bias(q: T, k: T, w: T) -> T:
    return (q @ k.mT + F.linear(F.relu(q.sin()), w, w[:, 0])).softmax(-1) @ k


@pytest.mark.parametrize("fn", [table_of_positions, hidden_bias])
def test_products_with_weights_that_add_to_scores(fn: Callable[..., T]) -> None:
    """One number for each pair, which no other pair shares: no tensor of scores is read."""
    args = r(2, 3, 70, 16), r(2, 3, 70, 16), r(70, 16)
    finder = finder_of(fn, *args)
    (region,) = finder.regions()
    read = emit(region, finder.lifter, finder.hints).inputs
    assert max(n.meta["val"].numel() for n in read) <= args[0].numel()


def shared_table(q: T, k: T, w: T) -> T:
    """The product is the same for every head, and is made once."""
    return (q @ k.mT + q[:, :1] @ w.T).softmax(-1) @ k


def returned_bias(q: T, k: T, w: T) -> tuple[T, T]:
    bias = q @ w.T
    return (q @ k.mT + bias).softmax(-1) @ k, bias


@pytest.mark.parametrize("fn", [shared_table, returned_bias])
def test_products_with_weights_that_are_stored(fn: Callable[..., T]) -> None:
    args = r(2, 3, 70, 16), r(2, 3, 70, 16), r(70, 16)
    finder = finder_of(fn, *args)
    (region,) = finder.regions()
    read = emit(region, finder.lifter, finder.hints).inputs
    assert any(n.meta["val"].shape[-1] == 70 for n in read)


def decay_of_each_feature(q: T, k: T, gates: T) -> T:
    """A product, as einsum makes one, of features of pairs with features of the same pairs."""
    c = gates.cumsum(1)
    decay = torch.exp((c[:, :, None] - c[:, None]).clamp(max=0))
    return torch.einsum("bid,bjd,bijd->bij", q, k, decay).tril() @ k


def test_products_of_features_of_pairs() -> None:
    x = r(2, 60, 8)
    assert found(decay_of_each_feature, x, x.sin(), x.cos()) == (1, [])
