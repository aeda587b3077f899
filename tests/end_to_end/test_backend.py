"""The backend itself: names, options, other people's passes, caches, calls of the library's attention, and what is left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.exc import BackendCompilerFailed
from torch._dynamo.testing import CompileCounterWithBackend
from torch._inductor import config as inductor
from torch._inductor.custom_graph_pass import CustomGraphPass

import flashlight
from flashlight import backend
from tests.support import oracle

pytestmark = pytest.mark.usefixtures("inference")
T = torch.Tensor


def attention(q: T, k: T, v: T) -> T:
    return (q @ k.mT * 0.25).softmax(-1) @ v


def qkv(*lengths: int) -> tuple[T, ...]:
    gen = torch.Generator().manual_seed(0)
    return tuple(torch.randn(1, 2, n, 16, generator=gen) for n in lengths or (40, 50, 50))


def check(compiled: Any, fn: Any = attention, args: tuple[T, ...] | None = None) -> None:
    args = args or qkv()
    torch.testing.assert_close(compiled(*args), fn(*args), rtol=1e-4, atol=1e-5)


class Counting(CustomGraphPass):
    """A user's pass."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, graph: torch.fx.Graph) -> None:
        self.calls += 1

    def uuid(self) -> str:
        return "counting"


def test_by_name() -> None:
    check(torch.compile(attention, backend="flashlight"))
    assert len(backend.last_report().regions) == 1


def test_compile() -> None:
    check(flashlight.compile(attention, dynamic=True))
    assert len(backend.last_report().regions) == 1

    @flashlight.compile(fullgraph=True)
    def decorated(q: T, k: T, v: T) -> T:
        return attention(q, k, v)

    check(decorated)


def test_enabled() -> None:
    with flashlight.enabled():
        check(torch.compile(attention))
        assert len(backend.last_report().regions) == 1
    assert inductor.joint_custom_pre_pass is None


def test_enable_twice_and_disable_once() -> None:
    flashlight.enable()
    flashlight.enable()
    try:
        assert isinstance(inductor.joint_custom_pre_pass, backend.FuseRegions)
    finally:
        flashlight.disable()
    assert inductor.joint_custom_pre_pass is None
    flashlight.disable()


def test_a_user_s_pass_runs_first_and_once() -> None:
    counting = Counting()
    compiled = torch.compile(
        attention,
        backend="flashlight",
        options={"joint_custom_pre_pass": counting, "fx_graph_cache": False},
    )
    check(compiled, args=qkv(41, 53, 53))
    assert counting.calls == 1
    assert len(backend.last_report().regions) == 1


def test_chained_uuid() -> None:
    chain = backend._chained([Counting()], backend.FuseRegions())
    assert chain.uuid()
    assert backend._chained([lambda graph: None], backend.FuseRegions()).uuid() is None
    twice = backend._chained(chain, backend.FuseRegions())
    assert isinstance(twice, backend.Chain)
    assert len(twice.passes) == 2


def test_uuid_knows_what_affects_code() -> None:
    plain = backend.FuseRegions(flashlight.Options())
    assert plain.uuid() == backend.FuseRegions(flashlight.Options(debug=1)).uuid()
    assert plain.uuid() != backend.FuseRegions(flashlight.Options(tune="off")).uuid()


def test_unknown_option() -> None:
    compiled = torch.compile(attention, backend="flashlight", options={"max_autotun": True})
    with pytest.raises(BackendCompilerFailed, match="Did you mean 'max_autotune'"):
        compiled(*qkv())


def test_mode_and_inductor_s_options() -> None:
    check(torch.compile(attention, backend="flashlight", mode="max-autotune-no-cudagraphs"))
    torch._dynamo.reset()
    check(torch.compile(attention, backend="flashlight", options={"epilogue_fusion": False}))


def test_strict() -> None:
    def returned(q: T, k: T, v: T) -> tuple[T, T]:
        p = (q @ k.mT).softmax(-1)
        return p @ v, p

    compiled = torch.compile(returned, backend="flashlight", options={"strict": True})
    with pytest.raises(BackendCompilerFailed, match="score-returned"):
        compiled(*qkv())
    torch._dynamo.reset()
    got, want = flashlight.compile(returned)(*qkv()), returned(*qkv())
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_an_error_of_ours_leaves_the_graph_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise KeyError("broken")

    monkeypatch.setattr(backend, "capture", broken)
    with pytest.warns(UserWarning, match="broken"):
        check(
            flashlight.compile(attention, options={"fx_graph_cache": False}), args=qkv(42, 52, 52)
        )


def test_other_programs_are_left_alone() -> None:
    def mlp(x: T, a: T, b: T) -> T:
        return F.gelu(x @ a) @ b

    args = torch.randn(8, 16), torch.randn(16, 32), torch.randn(32, 16)
    check(flashlight.compile(mlp), mlp, args)
    assert not backend.last_report().regions
    assert not backend.last_report().refusals


# -- The library's attention


def causal(q: T, k: T, v: T) -> T:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_sdpa_is_seen() -> None:
    check(flashlight.compile(causal), causal, qkv(45, 45, 45))
    assert len(backend.last_report().regions) == 1


def test_sdpa_may_be_hidden() -> None:
    check(flashlight.compile(causal, options={"sdpa": False}), causal, qkv(46, 46, 46))
    assert not backend.last_report().regions


def test_the_librarys_layer() -> None:
    layer = torch.nn.MultiheadAttention(32, 2, batch_first=True).eval()
    x = torch.randn(2, 21, 32, generator=torch.Generator().manual_seed(0))

    def run(x: T) -> T:
        return layer(x, x, x, need_weights=False)[0]

    check(flashlight.compile(run), run, args=(x,))
    assert len(backend.last_report().regions) == 1


def test_sdpa_with_mask_and_groups() -> None:
    def masked(q: T, k: T, v: T, mask: T) -> T:
        return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)

    q, k, v = torch.randn(2, 4, 30, 16), torch.randn(2, 2, 40, 16), torch.randn(2, 2, 40, 16)
    args = (q, k, v, torch.rand(2, 1, 30, 40) > 0.3)
    check(flashlight.compile(masked), masked, args)
    assert len(backend.last_report().regions) == 1


def test_sdpa_stays_opaque_where_its_scores_cannot_be_fused() -> None:
    def strange(q: T, k: T, v: T) -> T:
        return F.scaled_dot_product_attention(q, k, v, torch.randn(40, 50).cumsum(-1))

    def returned(q: T, k: T, v: T) -> tuple[T, T]:
        p = (q @ k.mT).softmax(-1)
        return causal(q, k[:, :, :40], v[:, :, :40]) + p @ v, p

    got, want = flashlight.compile(returned)(*qkv()), returned(*qkv())
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert strange(*qkv()).shape == (1, 2, 40, 16)


# -- Caches


WARM = """
import torch, flashlight
from torch._dynamo.utils import counters
from flashlight import backend

def attention(q, k, v):
    return (q @ k.mT * 0.25).softmax(-1) @ v

gen = torch.Generator().manual_seed(0)
args = [torch.randn(1, 2, n, 16, generator=gen) for n in (40, 50, 50)]
with torch.no_grad():
    got = torch.compile(attention, backend="flashlight")(*args)
torch.testing.assert_close(got, attention(*args), rtol=1e-4, atol=1e-5)
print("regions", len(backend.last_report().regions), "hits", counters["aot_autograd"]["autograd_cache_hit"])
"""


@pytest.mark.slow
def test_a_warm_process_runs_the_kernel_without_the_pass(tmp_path: Any) -> None:
    script = tmp_path / "warm.py"
    script.write_text(WARM, encoding="utf-8")

    def run() -> str:
        env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
        for cache in ("TORCHINDUCTOR_FX_GRAPH_CACHE", "TORCHINDUCTOR_AUTOGRAD_CACHE"):
            env.pop(cache, None)
        done = subprocess.run(
            [sys.executable, str(script)], env=env, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    assert run() == "regions 1 hits 0"
    assert run() == "regions 0 hits 1"


@pytest.mark.slow
@pytest.mark.parametrize(
    "fn", [attention, lambda q, k, v: (attention(q, k, v), (q @ k.mT).amax(-1))]
)
def test_under_the_wrapper_in_cpp(fn: Any) -> None:
    """One result or several: Inductor's C++ wrapper takes a list of one tensor for the tensor."""
    check(flashlight.compile(fn, options={"cpp_wrapper": True}), fn, args=qkv(44, 52, 52))


def test_dynamic_shapes_compile_once() -> None:
    counter = CompileCounterWithBackend("flashlight")
    compiled = torch.compile(attention, backend=counter, dynamic=True)
    for lengths in ((40, 50, 50), (7, 120, 120), (64, 64, 64)):
        check(compiled, args=qkv(*lengths))
    assert counter.frame_count == 1


def of_features(x: T) -> T:
    """Attention of features to features: its scores are sums over the length."""
    return (x.mT @ x / x.shape[-2]).softmax(-1) @ x.mT


def test_what_is_marked_dynamic_stays_free() -> None:
    """A guard on such a size is an error of Dynamo's."""
    counter = CompileCounterWithBackend("flashlight")
    compiled = torch.compile(of_features, backend=counter)
    for length in (64, 40):
        x = qkv(length)[0]
        torch._dynamo.mark_dynamic(x, 2)
        check(compiled, of_features, (x,))
    assert counter.frame_count == 1


def of_features_in_chunks(x: T) -> T:
    """As in models of states: a length is padded and cut, and each chunk is summed over."""
    chunks = F.pad(x, (0, 0, 0, -x.shape[2] % 32)).reshape(*x.shape[:2], -1, 32, x.shape[3])
    return of_features(chunks)


def test_a_length_in_chunks_stays_free() -> None:
    counter = CompileCounterWithBackend("flashlight")
    compiled = torch.compile(of_features_in_chunks, backend=counter, dynamic=True)
    for length in (70, 111, 200):
        check(compiled, of_features_in_chunks, qkv(length)[:1])
    assert counter.frame_count == 1


class Scores(Counting):
    """Counts the products that give 256 x 256 matrices."""

    def __call__(self, graph: torch.fx.Graph) -> None:
        products = graph.find_nodes(op="call_function", target=torch.ops.aten.bmm.default)
        shapes = [n.meta["val"].shape for n in products]
        self.calls += sum(shape[-2:] == (256, 256) for shape in shapes)


def test_a_sum_of_what_two_regions_give() -> None:
    """One of them takes it: had both, each would wait for the other. As in linear attention: a state's part, and a block's."""

    def block(x: T, w: T, decay: T, before: T, after: T) -> tuple[T, T]:
        y = F.silu(x @ w).reshape(2, 256, 4, 96)
        q, k, v = (t.transpose(1, 2) for t in y.split(32, 3))
        state = x.new_zeros(2, 4, 32, 32)
        return (q * before) @ state + (q @ k.mT * decay) @ v, (k * after).mT @ v

    gen = torch.Generator().manual_seed(0)
    x, w = torch.randn(2, 256, 64, generator=gen), torch.randn(64, 384, generator=gen) / 8
    decay = torch.rand(4, 256, 256, generator=gen).tril()
    left = Scores()
    with inductor.patch(joint_custom_post_pass=left):
        oracle.check(
            block, flashlight.compile(block), (x, w, decay, decay[..., :1] + 1, decay[..., -1:] + 1)
        )
    assert not left.calls


def test_results_are_laid_out_as_by_inductor() -> None:
    def transposed(q: T, k: T, v: T) -> T:
        return attention(q, k, v).transpose(1, 2) * 2

    args = qkv(43, 50, 50)
    got = flashlight.compile(transposed)(*args)
    torch._dynamo.reset()
    assert got.stride() == torch.compile(transposed)(*args).stride()


def test_a_query_of_no_rows() -> None:
    check(flashlight.compile(attention), args=qkv(0, 50, 50))


class Attention(torch.nn.Module):
    def forward(self, q: T, k: T, v: T) -> T:
        return attention(q, k, v)


@pytest.mark.slow
def test_an_exported_package(tmp_path: Any) -> None:
    args = qkv(44, 50, 50)
    with flashlight.enabled():
        exported = torch.export.export(Attention(), args)
        package = torch._inductor.aoti_compile_and_package(
            exported, package_path=str(tmp_path / "model.pt2")
        )
    assert len(backend.last_report().regions) == 1
    check(torch._inductor.aoti_load_package(package), args=args)


class OfFeatures(torch.nn.Module):
    def forward(self, x: T) -> T:
        return of_features(x)


@pytest.mark.slow
def test_an_exported_package_for_every_length(tmp_path: Any) -> None:
    """Nothing checks guards of a package, so none may be made."""
    sizes = ({2: torch.export.Dim("n", min=2, max=512)},)
    with flashlight.enabled():
        exported = torch.export.export(OfFeatures(), qkv(64)[:1], dynamic_shapes=sizes)
        package = torch._inductor.aoti_compile_and_package(
            exported, package_path=str(tmp_path / "model.pt2")
        )
    assert len(backend.last_report().regions) == 1
    for length in (64, 40, 100):
        check(torch._inductor.aoti_load_package(package), of_features, qkv(length)[:1])


def test_autocast() -> None:
    def fn(q: T, k: T, v: T) -> T:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return attention(q, k, v)

    args = qkv(47, 50, 50)
    got, want = flashlight.compile(fn)(*args), fn(*args)
    assert got.dtype is want.dtype is torch.bfloat16
    assert len(backend.last_report().regions) == 1
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


def test_gradients_are_left_to_inductor() -> None:
    args = tuple(x.requires_grad_() for x in qkv(48, 50, 50))
    with torch.enable_grad():
        flashlight.compile(attention)(*args).sum().backward()
        got = [x.grad for x in args]
        want = torch.autograd.grad(attention(*args).sum(), args)
    assert [r.code for r in backend.last_report().refusals] == ["training"]
    torch.testing.assert_close(got, list(want), rtol=1e-4, atol=1e-5)
