"""Each lifting rule against eager, on values where dtypes, NaN and infinity show."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.support.tracing import check_lift

aten = torch.ops.aten


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def ints(*shape: int, high: int = 5, low: int = 0, seed: int = 0) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


X, Y = randn(3, 4, 5), randn(3, 4, 5, seed=1)
P = X.abs() + 0.1
M = X > 0
SPECIAL = torch.tensor([0.0, -0.0, 1.5, -2.5, math.inf, -math.inf, math.nan, 1e-30])

UNARY = [
    "abs", "neg", "sign", "exp", "exp2", "expm1", "sin", "cos", "tan", "tanh", "sinh", "cosh", "atan", "asinh",
    "erf", "erfc", "sigmoid", "floor", "ceil", "round", "trunc", "square", "relu", "isnan", "isinf", "isfinite",
]  # fmt: skip
POSITIVE = ["log", "log2", "log1p", "sqrt", "rsqrt", "reciprocal", "acosh"]

POINTWISE: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "add alpha": (lambda x, y: torch.add(x, y, alpha=0.5), (X, Y)),
    "sub alpha": (lambda x, y: torch.sub(x, y, alpha=3), (X, Y)),
    "rsub": (lambda x: 1.0 - x, (X,)),
    "broadcast": (lambda x, y: x * y, (X, Y[0, :1])),
    "int plus float": (lambda x, i: x + i, (X, ints(4, 1))),
    "int times scalar": (lambda i: i * 0.5, (ints(4, 3),)),
    "bool times float": (lambda m, x: m * x, (M, X)),
    "bool plus bool": (lambda m: m + m, (M,)),
    "true division of ints": (lambda i: i / 3, (ints(9, high=20, low=-20),)),
    "floor division of ints": (lambda i: i // 3, (ints(9, high=20, low=-20),)),
    "remainder of ints": (lambda i: i % 3, (ints(9, high=20, low=-20),)),
    "floor division": (lambda x: torch.div(x, 0.3, rounding_mode="floor"), (X,)),
    "truncating division": (lambda x: torch.div(x, 0.3, rounding_mode="trunc"), (X,)),
    "fmod": (lambda x: torch.fmod(x, 0.7), (X,)),
    "fmod of ints": (lambda i: torch.fmod(i, 3), (ints(9, high=20, low=-20),)),
    "remainder": (lambda x: x % 0.7, (X,)),
    "minimum": (lambda x, y: torch.minimum(x, y), (SPECIAL, SPECIAL.flip(0))),
    "maximum": (lambda x, y: torch.maximum(x, y), (SPECIAL, SPECIAL.flip(0))),
    "clamp": (lambda x: x.clamp(-0.5, 0.7), (X,)),
    "clamp int": (lambda i: i.clamp(min=2), (ints(9),)),
    "pow 2": (lambda x: x**2, (X,)),
    "pow 3": (lambda x: x**3, (X,)),
    "pow half": (lambda x: x**0.5, (P,)),
    "pow -0.5": (lambda x: x**-0.5, (P,)),
    "pow 1.7": (lambda x: x**1.7, (P,)),
    "scalar to a power": (lambda x: 2.0**x, (X,)),
    "tensor to a tensor": (lambda x, y: x**y, (P, Y)),
    "where": (lambda m, x, y: torch.where(m, x, y), (M, X, Y)),
    "where scalar": (lambda m, x: torch.where(m, x, -math.inf), (M, X)),
    "masked_fill": (lambda x, m: x.masked_fill(m, -1e9), (X, M)),
    "logical": (lambda m, x: torch.logical_or(~m, x.bool()) & (x < 1), (M, X)),
    "xor": (lambda m, x: m ^ (x > 0.5), (M, X)),
    "bytes wrap": (lambda i: ((i - i[0]) > 128) & (i + 100 > 90), (ints(9, high=256).byte(),)),
    "bytes and wide constants": (lambda i: (i > 300) | (i == -1), (ints(9, high=256).byte(),)),
    "short ints wrap": (lambda i: i * 2 - i > 0, (ints(9, high=128).to(torch.int8),)),
    "bitwise ints": (lambda i: (i & 3) | (i ^ 5), (ints(9, high=20),)),
    "shifts": (
        lambda i, n: (i >> 2) + (i << n) + (i >> n) + (1 << n) + torch.bitwise_right_shift(-i, 3),
        (ints(9, high=20, low=-20), torch.tensor([0, 1, 5, 31, 62, 63, 64, 200, -1])),
    ),
    "shifts of narrow ints": (
        lambda i, n: ((i << n) > 40) ^ ((i >> n) > 3) ^ ((i << 7) < 0) ^ ((i >> 9) == 0),
        (
            ints(9, high=128, low=-128).to(torch.int8),
            torch.tensor([0, 1, 2, 5, 6, 7, 8, 100, -1]).to(torch.int8),
        ),
    ),
    "shifts of bytes": (
        lambda i, n: ((i << n) > 40) ^ ((i >> n) > 3) ^ ((i >> 7) == 1) ^ (i >> 8 == 0),
        (ints(9, high=256).byte(), torch.tensor([0, 1, 2, 5, 6, 7, 8, 100, 255]).byte()),
    ),
    "low and high bits": (
        lambda i: (i & 7) + (i & -8) * 32 + (i | 7) * 1024 + (12 & i) + (i ^ -1),
        (ints(9, high=20, low=-20),),
    ),
    "truncating division of ints": (
        lambda i: torch.div(i, -7, rounding_mode="trunc"),
        (ints(9, high=20, low=-20),),
    ),
    "logical_not of floats": (lambda x: torch.logical_not(x), (SPECIAL,)),
    "compare floats": (lambda x: (x >= 0) & (x != 1.5), (SPECIAL,)),
    "compare int with float": (lambda i: i > 2.5, (ints(9),)),
    "casts": (lambda x: x.to(torch.int64).to(torch.float64), (X * 3,)),
    "float to bool": (lambda x: x.bool(), (SPECIAL,)),
    "bool to float": (lambda m: m.float(), (M,)),
    "gelu": (lambda x: F.gelu(x), (X,)),
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), (X,)),
    "silu": (lambda x: F.silu(x), (X,)),
    "leaky_relu": (lambda x: F.leaky_relu(x), (X,)),
    "softplus": (lambda x: F.softplus(x), (X * 20,)),
    "logsigmoid": (lambda x: F.logsigmoid(x), (X * 20,)),
    "tril": (lambda x: x.tril(1), (X,)),
    "triu": (lambda x: x.triu(-1), (X,)),
    "addcmul": (lambda x, y: torch.addcmul(x, x, y, value=0.3), (X, Y)),
    "addcdiv": (lambda x, y: torch.addcdiv(x, x, y, value=0.3), (X, P)),
    "a diagonal in place": (
        lambda x, y: aten.as_strided_scatter(x, y[0, :4], [4], [6]),
        (X[0], Y[0]),
    ),
    "a part of a diagonal in place": (
        lambda x, y: aten.as_strided_scatter(x, y[0, :3], [3], [6]),
        (X[0], Y[0]),
    ),
    "a diagonal above": (lambda x, y: torch.diagonal_scatter(x, y[..., 0], 1, 1, 2), (X, Y)),
    "a diagonal below": (
        lambda x, y: torch.diagonal_scatter(x, y[:, :3, 1], -1, -2, -1),
        (X, Y),
    ),
    "copy": (lambda x, y: aten.copy(x, y.double()), (X, Y[:1])),
    "log10": (lambda x: torch.log10(x), (P,)),
    "ldexp": (lambda x, i: torch.ldexp(x, i), (X, ints(4, 1, low=-3))),
    "a long way": (lambda x, y: torch.hypot(x * 1e30, y * 1e30), (X, Y)),
}


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    check_lift(lambda x: getattr(torch, name)(x), SPECIAL)


@pytest.mark.parametrize("name", POSITIVE)
def test_unary_of_positive(name: str) -> None:
    check_lift(lambda x: getattr(torch, name)(x), P + (1 if name == "acosh" else 0))


@pytest.mark.parametrize(("fn", "args"), POINTWISE.values(), ids=POINTWISE)
def test_pointwise(fn: Callable[..., Any], args: tuple[torch.Tensor, ...]) -> None:
    check_lift(fn, *args)


PAIRS_OF_SPECIAL = (SPECIAL[:, None].repeat(1, 8), SPECIAL.repeat(8, 1))


@pytest.mark.parametrize("name", ["hypot", "atan2", "copysign"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_of_two_sides(name: str, dtype: torch.dtype) -> None:
    """Zeros of both signs, infinities and what is no number, with each other."""
    x, y = (t.to(dtype) for t in PAIRS_OF_SPECIAL)
    check_lift(lambda x, y: getattr(torch, name)(x, y), x, y)


def test_signbit() -> None:
    check_lift(lambda x, i: (torch.signbit(x), torch.signbit(i)), SPECIAL, ints(9, low=-4))


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "amax": lambda x: x.amax(-1),
    "amax keepdim": lambda x: x.amax((0, 2), keepdim=True),
    "amin": lambda x: x.amin(1),
    "max of all": lambda x: x.max(),
    "max dim": lambda x: tuple(x.max(1)),
    "min dim": lambda x: tuple(x.min(-1, keepdim=True)),
    "argmax": lambda x: x.argmax(1),
    "argmax of all": lambda x: x.argmax(),
    "sum": lambda x: x.sum((0, 1)),
    "sum of all": lambda x: x.sum(),
    "sum of bools": lambda x: (x > 0).sum(-1),
    "mean": lambda x: x.mean(1, keepdim=True),
    "prod": lambda x: x.prod(2),
    "any": lambda x: (x > 1).any(-1),
    "all": lambda x: (x > -2).all(1, keepdim=True),
    "var": lambda x: x.var(-1),
    "var_mean": lambda x: torch.var_mean(x, 1, correction=0, keepdim=True),
    "std": lambda x: x.std(0),
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "size-1 axis": lambda x: x[:, :1].sum(1) + x[:, :1].amax(1),
    "layer_norm": lambda x: F.layer_norm(x, (5,)),
    "over merged axes": lambda x: x.reshape(3, 20).amax(1),
}


@pytest.mark.parametrize("fn", REDUCTIONS.values(), ids=REDUCTIONS)
def test_reduction(fn: Callable[..., Any]) -> None:
    check_lift(fn, X)


A, B, C = randn(3, 4, 5), randn(3, 5, 6, seed=1), randn(4, 6, seed=2)
PRODUCTS: dict[str, Callable[..., Any]] = {
    "bmm": lambda a, b, c: torch.bmm(a, b),
    "mm": lambda a, b, c: a[0] @ b[1],
    "mv": lambda a, b, c: a[0] @ b[1, :, 0],
    "addmm": lambda a, b, c: torch.addmm(c, a[0], b[0], beta=0.5, alpha=2),
    "baddbmm": lambda a, b, c: torch.baddbmm(c[:1], a, b, alpha=0.3),
    "baddbmm without beta": lambda a, b, c: torch.baddbmm(c * math.nan, a, b, beta=0),
    "einsum": lambda a, b, c: torch.einsum("bij,bjk->kib", a, b),
    "one term": lambda a, b, c: torch.bmm(a[:, :, :1], b[:, :1]),
    "linear": lambda a, b, c: F.linear(a, b[0].mT, c[0]),
    "convolution": lambda a, b, c: F.conv1d(b, a[0, :, :, None]),
    "convolution with a bias": lambda a, b, c: F.conv2d(
        b[None, :, :4], a[:, 0, :3, None, None], c[0, :3]
    ),
    "convolution of groups": lambda a, b, c: F.conv1d(
        c.T[None], a.flatten(0, 1)[:6, :3, None], groups=2
    ),
    "convolution of each channel": lambda a, b, c: F.conv1d(b, a[0, 0, :, None, None], groups=5),
}


@pytest.mark.parametrize("fn", PRODUCTS.values(), ids=PRODUCTS)
def test_product(fn: Callable[..., Any]) -> None:
    check_lift(fn, A, B, C)


I2, I3 = ints(2, 6, high=4, low=-4), ints(3, 4, 2, high=5)
INDEXING: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "rows": (lambda x, i: x[i], (X, ints(6, high=3, low=-3))),
    "middle": (lambda x, i: x[:, i], (X, I2)),
    "last": (lambda x, i: x[..., i], (X, ints(2, 6, high=5, low=-5))),
    "two together": (lambda x, i: x[:, i, i], (X, I2)),
    "two apart": (lambda x, i: x[i % 3, :, i], (X, I2)),
    "broadcast": (lambda x, i: x[i[:, None], i[None]], (X, ints(3, high=3, low=-3))),
    "gather": (lambda x, i: x.gather(2, i), (X, I3)),
    "gather rows": (lambda x, i: x.gather(0, i % 3), (X, I3)),
    "index_select": (lambda x, i: x.index_select(1, i), (X, ints(7, high=4))),
    "embedding": (lambda x, i: F.embedding(i % 4, x[0]), (X, I3)),
    "where a mask": (lambda x, m: _put(x, (m,), -math.inf), (X, M)),
    "where a mask of rows": (lambda x, m: _put(x, (m,), torch.arange(5.0)), (X, M[..., 0])),
    "where a mask of columns": (lambda x, m: _put(x, (..., m), x[:, :1, :1]), (X, M[0, 0])),
    "where a mask in between": (lambda x, m: _put(x, (slice(None), m), x[0, :1]), (X, M[0, :, 0])),
    "scatter one": (lambda x, i: x.scatter(2, i[..., :1], 7.0), (X, I3)),
    "scatter one of each": (
        lambda x, i: x.scatter(1, i[:, :1] % 4, x[:, :1]),
        (X, ints(3, 4, 5, high=4, seed=3)),
    ),
}


def _put(x: torch.Tensor, where: tuple[Any, ...], new: Any) -> torch.Tensor:
    x = x.clone()
    x[where] = new
    return x


@pytest.mark.parametrize(("fn", "args"), INDEXING.values(), ids=INDEXING)
def test_indexing(fn: Callable[..., Any], args: tuple[torch.Tensor, ...]) -> None:
    check_lift(fn, *args)


JOINS: dict[str, Callable[..., Any]] = {
    "cat": lambda x, y: torch.cat([x, y[:, :2], x[:, 1:]], 1),
    "cat last": lambda x, y: torch.cat([x, y[..., :1]], -1),
    "cat of two types": lambda x, y: torch.cat([x, y.double()], 0),
    "stack": lambda x, y: torch.stack([x, y, x * 2], 1),
    "pad": lambda x, y: F.pad(x, (1, 2, 0, 3), value=7.0),
    "pad with -inf": lambda x, y: F.pad(x, (2, 0), value=-math.inf),
    "negative pad": lambda x, y: F.pad(x, (-1, 1, 1, -2)),
    "slice_scatter": lambda x, y: aten.slice_scatter(x, y[:, :2], 1, 1, 3),
    "slice_scatter with a step": lambda x, y: aten.slice_scatter(x, y[..., :3], 2, 0, 5, 2),
    "select_scatter": lambda x, y: aten.select_scatter(x, y[:, 0], 1, -2),
    "in place": lambda x, y: _written(x, y),
}


def _written(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[:, 1:3] *= y[:, :2]
    x[..., 0] = 3.0
    return x


@pytest.mark.parametrize("fn", JOINS.values(), ids=JOINS)
def test_join(fn: Callable[..., Any]) -> None:
    check_lift(fn, X, Y)


GENERATORS: dict[str, Callable[..., Any]] = {
    "arange": lambda x: x + torch.arange(5),
    "arange with a step": lambda x: x * torch.arange(1, 11, 2, dtype=torch.float32),
    "full": lambda x: x + torch.full((4, 5), 0.1),
    "ones and zeros": lambda x: torch.ones_like(x) * x + torch.zeros(5),
    "eye": lambda x: x[:, :, :4] * torch.eye(4),
    "causal": lambda x: torch.where(torch.ones(4, 5, dtype=torch.bool).tril(), x, -math.inf),
}


@pytest.mark.parametrize("p", [0.0, 1.0, 1.5, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("batch", [(), (2,), (2, 1)])
def test_distances(p: float, batch: tuple[int, ...]) -> None:
    mode = "donot_use_mm_for_euclid_dist"
    x, y = randn(*batch, 4, 3), randn(*batch, 5, 3, seed=1)
    y[..., 0, :] = x[..., 0, :]
    check_lift(lambda x, y: torch.cdist(x, y, p, compute_mode=mode), x, y)


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("out_int32", [False, True])
def test_buckets(right: bool, out_int32: bool) -> None:
    edges = torch.tensor([-2.5, 0.0, 1.5, math.inf])
    x = torch.stack([SPECIAL, SPECIAL.flip(0)])
    check_lift(lambda x, e: torch.bucketize(x, e, right=right, out_int32=out_int32), x, edges)
    check_lift(lambda x, e: torch.bucketize(x, e, right=right), ints(3, 4), torch.tensor([1, 3]))


@pytest.mark.parametrize("fn", GENERATORS.values(), ids=GENERATORS)
def test_generator(fn: Callable[..., Any]) -> None:
    check_lift(fn, X)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits(dtype: torch.dtype) -> None:
    """Every result is rounded as eager rounds it."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        s = torch.bmm(x, y.mT) * 0.3 + 0.1
        return (s.float().softmax(-1).to(dtype) + s.tanh()) / 3

    check_lift(fn, randn(2, 4, 8, dtype=dtype), randn(2, 6, 8, dtype=dtype, seed=1), exact=False)


def test_a_fill_is_first_a_number_of_its_type() -> None:
    """−1e10 in f16 is −inf."""
    x = randn(4, dtype=torch.float16)
    emitted = check_lift(
        lambda x: torch.where(x > 0, x, torch.full_like(x.float(), -1e10).half()), x
    )
    assert "-inf" in str(emitted.program)


def test_scalars_are_not_rounded_to_sixteen_bits() -> None:
    check_lift(lambda x: x * 0.1, torch.full((3,), 256.0, dtype=torch.bfloat16))


def test_equal_nests_are_one() -> None:
    def twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x @ y).exp() + (x @ y.mT.contiguous().mT[:, :]).exp()

    emitted = check_lift(twice, randn(4, 5), randn(5, 6))
    assert sum(n.monoid is not None for n in emitted.program.nests) == 1
