"""The programs of the algebra, op by op as `lift` leaves them, with the kernels, passes and carries that they become.

Every row is `(passes, carries)` for each kernel, in order. No row may need a rule about attention.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import Size
from flashlight.ir.interpret import Array, integer
from flashlight.ir.nests import Program
from flashlight.ir.text import parse_program
from flashlight.pipeline import CANONICAL


@dataclass(frozen=True)
class Row:
    """A program and what becomes of it.

    Attributes:
        text: the program, one nest for each op.
        kernels: (passes, carries) of each kernel.
    """

    text: str
    kernels: tuple[tuple[int, int], ...]

    @property
    def fused(self) -> Program:
        """The program as `group_and_online` takes it."""
        program = parse_program(self.text)
        for step in CANONICAL:
            program = step(program)
        return program


ROWS: dict[str, Row] = {}


HEAD = """
  size S, T
  dim b: 2, q: S, k: T, d: 4, e: 6, f: 6, c: 3, h: 2
  input Q: bf16[S, 4]
  input K: bf16[T, 4]
  input V: bf16[T, 6]
"""
SCORES = """
  nest s0 (q, k | d) bf16: sum Q[q, d] * K[k, d]
  nest s (q, k) f32: s0[q, k] * 0.5
"""


def softmax(s="s", p="p", q="q", k="k", dtype="bf16", suffix=""):
    x = suffix
    return f"""
  nest m{x} ({q} | {k}) f32: max {s}[{q}, {k}]
  nest w{x} ({q}, {k}) f32: exp({s}[{q}, {k}] - m{x}[{q}])
  nest l{x} ({q} | {k}) f32: sum w{x}[{q}, {k}]
  nest {p} ({q}, {k}) {dtype}: w{x}[{q}, {k}] / l{x}[{q}]
"""


PV = """
  nest O (q, e | k) bf16: sum p[q, k] * V[k, e]
"""


def text_of(
    name: str,
    *parts: str,
    outputs: str = "O",
    inputs: str = "",
    dims: str = "",
    head: str = HEAD,
) -> str:
    """A program's text from pieces."""
    lines = [f"program {name}", head]
    lines += [f"  dim {dims}"] if dims else []
    lines += [f"  input {i}" for i in inputs.split("; ") if i]
    text = "\n".join([*lines, *parts, f"  output {outputs}"])
    return "\n".join(line for line in text.splitlines() if line.strip())


def row(name: str, *parts: str, kernels: list[tuple[int, int]], **rest: str) -> None:
    """Add a program to ROWS."""
    ROWS[name] = Row(text_of(name, *parts, **rest), tuple(kernels))


MASKED = (
    SCORES
    + """
  nest sc (q, k) f32: where(k <= q, s[q, k], -inf)
"""
)
row("softmax", SCORES, softmax(), PV, kernels=[(1, 3)])
row(
    "softcap",
    SCORES,
    """
  nest sc (q, k) f32: tanh(s[q, k] / 3.0) * 3.0
""",
    softmax("sc"),
    PV,
    kernels=[(1, 3)],
)
row("causal", MASKED, softmax("sc"), PV, kernels=[(1, 3)])
row(
    "finite_fill",
    SCORES,
    """
  nest sc (q, k) f32: where(k <= q, s[q, k], -10000000000.0)
""",
    softmax("sc"),
    PV,
    kernels=[(1, 3)],
)
row(
    "late_division",
    SCORES,
    """
  nest m (q | k) f32: max s[q, k]
  nest w (q, k) bf16: exp(s[q, k] - m[q])
  nest l (q | k) f32: sum w[q, k]
  nest A (q, e | k) f32: sum w[q, k] * V[k, e]
  nest O (q, e) bf16: A[q, e] / l[q]
""",
    kernels=[(1, 3)],
)
row(
    "dropout",
    SCORES,
    softmax(),
    """
  nest dr (q, k) bf16: where(U[q, k] > 0.3, p[q, k] / 0.7, 0.0)
  nest O (q, e | k) bf16: sum dr[q, k] * V[k, e]
""",
    inputs="U: f32[S, T]",
    kernels=[(1, 4)],
)
row(
    "softmax_plus_one",
    SCORES,
    """
  nest m (q | k) f32: max s[q, k]
  nest w (q, k) f32: exp(s[q, k] - m[q])
  nest l (q | k) f32: sum w[q, k]
  nest p (q, k) bf16: w[q, k] / (l[q] + exp(-m[q]))
""",
    PV,
    kernels=[(1, 3)],
)
row(
    "lse",
    MASKED,
    softmax("sc"),
    PV,
    """
  nest am (q | k) f32: max sc[q, k]
  nest z (q) f32: where(abs(am[q]) == inf, 0.0, am[q])
  nest al (q | k) f32: sum exp(sc[q, k] - z[q])
  nest lse (q) f32: log(al[q]) + z[q]
""",
    outputs="O, lse",
    kernels=[(1, 3)],
)
row(
    "masked_fill",
    SCORES,
    """
  nest sc (q, k) f32: where(M[q, k], s[q, k], -inf)
""",
    softmax("sc"),
    """
  nest pm (q, k) bf16: where(M[q, k], p[q, k], 0.0)
  nest O (q, e | k) bf16: sum pm[q, k] * V[k, e]
""",
    inputs="M: bool[S, T]",
    kernels=[(1, 4)],
)
row(
    "mask_after",
    SCORES,
    softmax(dtype="f32"),
    """
  nest pm (q, k) f32: where(M[q, k], p[q, k], 0.0)
  nest t (q | k) f32: sum pm[q, k]
  nest pr (q, k) bf16: pm[q, k] / t[q]
  nest O (q, e | k) bf16: sum pr[q, k] * V[k, e]
""",
    inputs="M: bool[S, T]",
    kernels=[(1, 5)],
)
row(
    "lifted_dead_rows",
    SCORES,
    """
  nest alive (q | k) bool: any M[q, k]
  nest sc (q, k) f32: where(M[q, k] | !alive[q], s[q, k], -inf)
""",
    softmax("sc"),
    PV,
    inputs="M: bool[S, T]",
    kernels=[(2, 4)],
)
row(
    "where_alive",
    SCORES,
    """
  nest sc (q, k) f32: where(M[q, k], s[q, k], -inf)
""",
    softmax("sc"),
    """
  nest alive (q | k) bool: any M[q, k]
  nest pm (q, k) bf16: where(alive[q], p[q, k], 0.0)
  nest O (q, e | k) bf16: sum pm[q, k] * V[k, e]
""",
    inputs="M: bool[S, T]",
    kernels=[(1, 4)],
)
D2 = (
    SCORES
    + """
  nest t0 (q, k | d) bf16: sum Q2[q, d] * K2[k, d]
  nest t (q, k) f32: t0[q, k] * 0.5
"""
)
I2 = "Q2: bf16[S, 4]; K2: bf16[T, 4]; lam: f32[]"
row(
    "diff_two_pv",
    D2,
    softmax(),
    softmax("t", "p2", suffix="2"),
    PV,
    """
  nest O2 (q, e | k) bf16: sum p2[q, k] * V[k, e]
  nest Y (q, e) bf16: O[q, e] - lam[] * O2[q, e]
""",
    inputs=I2,
    outputs="Y",
    kernels=[(1, 6)],
)
row(
    "diff_p",
    D2,
    softmax(),
    softmax("t", "p2", suffix="2"),
    """
  nest r (q, k) bf16: lam[] * p2[q, k]
  nest pd (q, k) bf16: p[q, k] - r[q, k]
  nest O (q, e | k) bf16: sum pd[q, k] * V[k, e]
""",
    inputs=I2,
    kernels=[(1, 6)],
)
row(
    "diff_f32",
    D2,
    softmax(dtype="f32"),
    softmax("t", "p2", suffix="2", dtype="f32"),
    """
  nest pd (q, k) bf16: p[q, k] - lam[] * p2[q, k]
  nest O (q, e | k) bf16: sum pd[q, k] * V[k, e]
""",
    inputs=I2,
    kernels=[(2, 5)],
)
row(
    "sigmoid",
    SCORES,
    """
  nest p (q, k) bf16: sigmoid(s[q, k])
""",
    PV,
    kernels=[(1, 1)],
)
row(
    "relu2",
    SCORES,
    """
  nest p (q, k) bf16: max(s[q, k], 0.0) * max(s[q, k], 0.0)
""",
    PV,
    kernels=[(1, 1)],
)
row(
    "linear",
    SCORES,
    """
  nest p (q, k) bf16: where(k <= q, s[q, k], 0.0)
""",
    PV,
    kernels=[(1, 1)],
)
row(
    "retention",
    SCORES,
    """
  nest p (q, k) bf16: where(k <= q, s[q, k] * exp(f32(q - k) * -0.1), 0.0)
""",
    PV,
    kernels=[(1, 1)],
)
row(
    "gaussian",
    """
  nest g0 (q, k | d) f32: sum (Q[q, d] - K[k, d]) * (Q[q, d] - K[k, d])
  nest g (q, k) f32: exp(-g0[q, k])
  nest n (q | k) f32: sum g[q, k]
  nest p (q, k) bf16: g[q, k] / n[q]
""",
    PV,
    kernels=[(1, 2)],
)
row(
    "softpick",
    SCORES,
    """
  nest m (q | k) f32: max s[q, k]
  nest g (q, k) f32: exp(s[q, k] - m[q]) - exp(-m[q])
  nest l (q | k) f32: sum abs(g[q, k])
  nest p (q, k) bf16: max(g[q, k], 0.0) / (l[q] + 0.000001)
""",
    PV,
    kernels=[(1, 3)],
)
for nm, ref in (
    (
        "mean",
        """
  nest S0 (q | k) f32: sum s[q, k]
  nest m (q) f32: S0[q] / f32(T)
""",
    ),
    (
        "maxabs",
        """
  nest m (q | k) f32: max abs(s[q, k])
""",
    ),
):
    row(
        "softmax_" + nm,
        SCORES,
        ref,
        """
  nest w (q, k) f32: exp(s[q, k] - m[q])
  nest l (q | k) f32: sum w[q, k]
  nest p (q, k) bf16: w[q, k] / l[q]
""",
        PV,
        kernels=[(1, 4)],
    )
row(
    "no_shift",
    SCORES,
    """
  nest w (q, k) f32: exp(s[q, k])
  nest l (q | k) f32: sum w[q, k]
  nest p (q, k) bf16: w[q, k] / l[q]
""",
    PV,
    kernels=[(1, 3)],
)
LP = """
  nest m (q | k) f32: max s[q, k]
  nest x (q, k) f32: s[q, k] - m[q]
  nest l (q | k) f32: sum exp(x[q, k])
  nest lp (q, k) f32: x[q, k] - log(l[q])
  nest p (q, k) f32: exp(lp[q, k])
"""
row(
    "entropy_lsm",
    SCORES,
    LP,
    """
  nest H (q | k) f32: sum p[q, k] * lp[q, k]
  nest Hn (q) f32: -H[q]
""",
    PV,
    outputs="Hn, O",
    kernels=[(1, 4)],
)
row(
    "entropy_guarded",
    MASKED + LP.replace("s[q, k]", "sc[q, k]"),
    """
  nest H (q | k) f32: sum where(k <= q, p[q, k] * lp[q, k], 0.0)
  nest Hn (q) f32: -H[q]
  nest pm (q, k) bf16: p[q, k]
  nest O (q, e | k) bf16: sum pm[q, k] * V[k, e]
""",
    outputs="Hn, O",
    kernels=[(1, 4)],
)
row(
    "entropy_logp",
    SCORES,
    softmax(dtype="f32"),
    """
  nest H (q | k) f32: sum p[q, k] * log(p[q, k])
""",
    outputs="H",
    kernels=[(2, 3)],
)
row(
    "clip",
    SCORES,
    softmax(dtype="f32"),
    """
  nest pc (q, k) bf16: min(max(p[q, k], 0.01), 0.2)
  nest O (q, e | k) bf16: sum pc[q, k] * V[k, e]
""",
    kernels=[(2, 3)],
)
row(
    "threshold",
    SCORES,
    softmax(dtype="f32"),
    """
  nest pt (q, k) f32: where(p[q, k] > 0.1, p[q, k], 0.0)
  nest t (q | k) f32: sum pt[q, k]
  nest pr (q, k) bf16: pt[q, k] / t[q]
  nest O (q, e | k) bf16: sum pr[q, k] * V[k, e]
""",
    kernels=[(2, 4)],
)
row(
    "poly6",
    SCORES,
    softmax(dtype="f32"),
    """
  nest x1 (q, k) f32: 1.0 - p[q, k] / 2.0
  nest x2 (q, k) bf16: x1[q, k] ** 6
  nest O (q, e | k) bf16: sum x2[q, k] * V[k, e]
""",
    kernels=[(2, 3)],
)
row(
    "p3",
    SCORES,
    softmax(dtype="f32"),
    """
  nest p3 (q, k) f32: p[q, k] * p[q, k] * p[q, k]
  nest t (q | k) f32: sum p3[q, k]
  nest pr (q, k) bf16: p3[q, k] / t[q]
  nest O (q, e | k) bf16: sum pr[q, k] * V[k, e]
""",
    kernels=[(1, 4)],
)
row(
    "distance",
    SCORES,
    softmax(dtype="f32"),
    """
  nest E (q | k) f32: sum p[q, k] * abs(f32(q - k))
  nest pb (q, k) bf16: p[q, k]
  nest O (q, e | k) bf16: sum pb[q, k] * V[k, e]
""",
    outputs="E, O",
    kernels=[(1, 4)],
)
row(
    "max_p",
    SCORES,
    softmax(),
    PV,
    """
  nest mp (q | k) f32: max w[q, k] / l[q]
  nest am (q | k) i64: argmax w[q, k] / l[q]
""",
    outputs="O, mp, am",
    kernels=[(1, 4)],
)
row(
    "mean_var",
    SCORES,
    softmax(dtype="f32"),
    """
  nest mu (q | k) f32: sum p[q, k] * X[k]
  nest var (q | k) f32: sum p[q, k] * (X[k] - mu[q]) * (X[k] - mu[q])
""",
    inputs="X: f32[T]",
    outputs="mu, var",
    kernels=[(1, 5)],
)
row(
    "cov",
    SCORES,
    softmax(dtype="f32"),
    """
  nest mu (q | k) f32: sum p[q, k] * X[k]
  nest nu (q | k) f32: sum p[q, k] * Y[k]
  nest cov (q | k) f32: sum p[q, k] * (X[k] - mu[q]) * (Y[k] - nu[q])
""",
    inputs="X: f32[T]; Y: f32[T]",
    outputs="mu, cov",
    kernels=[(1, 7)],
)
row(
    "zscore_relu",
    SCORES,
    """
  nest S0 (q | k) f32: sum s[q, k]
  nest mu (q) f32: S0[q] / f32(T)
  nest S2 (q | k) f32: sum (s[q, k] - mu[q]) * (s[q, k] - mu[q])
  nest sd (q) f32: rsqrt(S2[q] / f32(T) + 0.00001)
  nest p (q, k) bf16: max((s[q, k] - mu[q]) * sd[q], 0.0)
""",
    PV,
    kernels=[(2, 3)],
)
row(
    "sigma_softmax",
    SCORES,
    """
  nest S0 (q | k) f32: sum s[q, k]
  nest mu (q) f32: S0[q] / f32(T)
  nest S2 (q | k) f32: sum (s[q, k] - mu[q]) * (s[q, k] - mu[q])
  nest sd (q) f32: sqrt(S2[q] / f32(T) + 0.00001)
  nest sc (q, k) f32: s[q, k] / sd[q]
""",
    softmax("sc"),
    PV,
    kernels=[(2, 7)],
)
row(
    "talking_heads",
    """
  nest s0 (h, q, k | d) f32: sum Qh[h, q, d] * Kh[h, k, d]
  nest m (h, q | k) f32: max s0[h, q, k]
  nest w (h, q, k) f32: exp(s0[h, q, k] - m[h, q])
  nest l (h, q | k) f32: sum w[h, q, k]
  nest p (h, q, k) f32: w[h, q, k] / l[h, q]
  nest mix (g, q, k | h) bf16: sum W[g, h] * p[h, q, k]
  nest O (g, q, e | k) bf16: sum mix[g, q, k] * V[k, e]
""",
    dims="g: 2",
    inputs="Qh: f32[2, S, 4]; Kh: f32[2, T, 4]; W: f32[2, 2]",
    kernels=[(1, 2), (1, 1)],
)
XH = """
  size N, C
  dim n: N, c: C, o: 6
  input X: bf16[N, C]
  input W: bf16[C, 6]
"""
LN = """
  nest S0 (n | c) f32: sum X[n, c]
  nest mu (n) f32: S0[n] / f32(C)
  nest S2 (n | c) f32: sum (X[n, c] - mu[n]) * (X[n, c] - mu[n])
  nest rs (n) f32: rsqrt(S2[n] / f32(C) + 0.00001)
"""
row("layernorm_stats", LN, head=XH, outputs="mu, rs", kernels=[(1, 4)])
row(
    "layernorm",
    LN,
    """
  nest Y (n, c) bf16: (X[n, c] - mu[n]) * rs[n]
""",
    head=XH,
    outputs="Y",
    kernels=[(1, 4), (1, 0)],
)
row(
    "skew",
    LN,
    """
  nest S3 (n | c) f32: sum ((X[n, c] - mu[n]) * rs[n]) * ((X[n, c] - mu[n]) * rs[n]) * ((X[n, c] - mu[n]) * rs[n])
""",
    head=XH,
    outputs="S3",
    kernels=[(1, 5)],
)
row(
    "layernorm_w",
    LN,
    """
  nest Y (n, c) bf16: (X[n, c] - mu[n]) * rs[n]
  nest Z (n, o | c) bf16: sum Y[n, c] * W[c, o]
""",
    head=XH,
    outputs="Z",
    kernels=[(1, 6)],
)
row(
    "l2norm_v",
    """
  nest n2 (n | c) f32: sum X[n, c] * X[n, c]
  nest Y (n, c) bf16: X[n, c] / sqrt(n2[n])
  nest Z (n, o | c) bf16: sum Y[n, c] * W[c, o]
""",
    head=XH,
    outputs="Z",
    kernels=[(1, 2)],
)
row(
    "column_sums",
    SCORES,
    softmax(),
    """
  nest col (k | q) f32: sum w[q, k] / l[q]
""",
    outputs="col",
    kernels=[(1, 2), (1, 1)],
)
row(
    "softmax_over_queries",
    SCORES,
    """
  nest m (k | q) f32: max s[q, k]
  nest w (q, k) f32: exp(s[q, k] - m[k])
  nest l (k | q) f32: sum w[q, k]
  nest p (q, k) bf16: w[q, k] / l[k]
""",
    PV,
    kernels=[(1, 2), (1, 1)],
)
SQ = HEAD.replace("size S, T", "size S").replace("k: T", "k: S").replace("[T", "[S")
row(
    "symmetric_norm",
    SCORES,
    """
  nest a (q, k) f32: sigmoid(s[q, k])
  nest deg (q | k) f32: sum a[q, k]
  nest p (q, k) bf16: a[q, k] / sqrt(deg[q]) / sqrt(deg[k])
""",
    PV,
    head=SQ,
    kernels=[(1, 1), (1, 1)],
)
row(
    "p_plus_pt",
    SCORES,
    softmax(dtype="f32"),
    """
  nest p2 (q, k) bf16: p[q, k] + p[k, q]
  nest O (q, e | k) bf16: sum p2[q, k] * V[k, e]
""",
    head=SQ,
    kernels=[(1, 2), (1, 1)],
)
row(
    "sink",
    SCORES,
    """
  nest sc (q, kk) f32: where(kk < T, s[q, kk], sink[0])
  nest m (q | kk) f32: max sc[q, kk]
  nest w (q, kk) f32: exp(sc[q, kk] - m[q])
  nest l (q | kk) f32: sum w[q, kk]
  nest p (q, k) bf16: w[q, k] / l[q]
""",
    PV,
    dims="kk: T + 1",
    inputs="sink: f32[1]",
    kernels=[(1, 3)],
)
BW = "dO: bf16[S, 6]; mI: f32[S]; lI: f32[S]"
BWS = (
    SCORES
    + """
  nest p (q, k) f32: exp(s[q, k] - mI[q]) / lI[q]
  nest dp (q, k | e) bf16: sum dO[q, e] * V[k, e]
"""
)
row(
    "backward_dq",
    BWS,
    """
  nest D (q | k) f32: sum p[q, k] * dp[q, k]
  nest ds (q, k) bf16: p[q, k] * dp[q, k] - p[q, k] * D[q]
  nest dQ (q, d | k) bf16: sum ds[q, k] * K[k, d]
""",
    inputs=BW,
    outputs="dQ",
    kernels=[(1, 3)],
)
row(
    "backward",
    BWS,
    """
  nest D (q | k) f32: sum p[q, k] * dp[q, k]
  nest ds (q, k) bf16: p[q, k] * dp[q, k] - p[q, k] * D[q]
  nest dQ (q, d | k) bf16: sum ds[q, k] * K[k, d]
  nest dK (k, d | q) bf16: sum ds[q, k] * Q[q, d]
  nest pb (q, k) bf16: p[q, k]
  nest dV (k, e | q) bf16: sum pb[q, k] * dO[q, e]
""",
    inputs=BW,
    outputs="dQ, dK, dV",
    kernels=[(1, 3), (1, 2)],
)
row(
    "xent",
    """
  nest z (n, v | d) f32: sum X[n, d] * W[v, d]
  nest m (n | v) f32: max z[n, v]
  nest l (n | v) f32: sum exp(z[n, v] - m[n])
  nest loss (n) f32: m[n] + log(l[n]) - z[n, y[n]]
""",
    head="""
  size N, C
  dim n: N, v: C, d: 4
  input X: bf16[N, 4]
  input W: bf16[C, 4]
  input y: i64[N]
""",
    outputs="loss",
    kernels=[(1, 2)],
)
row(
    "nearest",
    """
  nest g0 (q, k | d) f32: sum (Q[q, d] - K[k, d]) * (Q[q, d] - K[k, d])
  nest mn (q | k) f32: min g0[q, k]
  nest am (q | k) i64: argmin g0[q, k]
""",
    outputs="mn, am",
    kernels=[(1, 2)],
)
row(
    "gate_norm",
    SCORES,
    softmax(),
    PV,
    """
  nest n2 (q | f) f32: sum O[q, f] * O[q, f]
  nest Y (q, e) bf16: O[q, e] * rsqrt(n2[q] * 0.1666 + 0.00001) * sigmoid(G[q, e])
""",
    inputs="G: bf16[S, 6]",
    outputs="Y",
    kernels=[(1, 3)],
)


EV = """
  size B, N
  dim b: B, n: N, h: 4, q: N, k: N, d: 4, e: 4
  input Q: bf16[B, N, 4, N, 4]
  input K: bf16[B, N, 4, N, 4]
  input V: bf16[B, N, 4, N, 4]
  input b1: f32[B, N, N]
  input b2: f32[B, 4, N, N]
  input G: bf16[B, N, 4, N, 4]
"""
row(
    "evoformer",
    """
  nest s0 (b, n, h, q, k | d) bf16: sum Q[b, n, h, q, d] * K[b, n, h, k, d]
  nest s (b, n, h, q, k) f32: s0[b, n, h, q, k] * 0.5 + b1[b, n, k] + b2[b, h, q, k]
  nest m (b, n, h, q | k) f32: max s[b, n, h, q, k]
  nest w (b, n, h, q, k) f32: exp(s[b, n, h, q, k] - m[b, n, h, q])
  nest l (b, n, h, q | k) f32: sum w[b, n, h, q, k]
  nest p (b, n, h, q, k) bf16: w[b, n, h, q, k] / l[b, n, h, q]
  nest O (b, n, h, q, e | k) bf16: sum p[b, n, h, q, k] * V[b, n, h, k, e]
  nest Y (b, n, q, h, e) bf16: O[b, n, h, q, e] * sigmoid(G[b, n, h, q, e])
""",
    head=EV,
    outputs="Y",
    kernels=[(1, 3)],
)
IPA = """
  size S
  dim h: 3, q: S, k: S, d: 4, e: 4, p: 2, x: 3, p2: 4, x2: 3, c: 5
  input Q: f32[3, S, 4]
  input K: f32[3, S, 4]
  input V: f32[3, S, 4]
  input b: f32[3, S, S]
  input g: f32[3]
  input qp: f32[3, S, 2, 3]
  input kp: f32[3, S, 2, 3]
  input vp: f32[3, S, 4, 3]
  input z: f32[S, S, 5]
"""
row(
    "ipa",
    """
  nest s0 (h, q, k | d) f32: sum Q[h, q, d] * K[h, k, d]
  nest dist (h, q, k | p, x) f32: sum (qp[h, q, p, x] - kp[h, k, p, x]) * (qp[h, q, p, x] - kp[h, k, p, x])
  nest s (h, q, k) f32: s0[h, q, k] * 0.5 + b[h, q, k] - g[h] * dist[h, q, k]
  nest m (h, q | k) f32: max s[h, q, k]
  nest w (h, q, k) f32: exp(s[h, q, k] - m[h, q])
  nest l (h, q | k) f32: sum w[h, q, k]
  nest a (h, q, k) f32: w[h, q, k] / l[h, q]
  nest o1 (h, q, e | k) f32: sum a[h, q, k] * V[h, k, e]
  nest o2 (h, q, p2, x2 | k) f32: sum a[h, q, k] * vp[h, k, p2, x2]
  nest o3 (h, q, c | k) f32: sum a[h, q, k] * z[q, k, c]
""",
    head=IPA,
    outputs="o1, o2, o3",
    kernels=[(1, 5)],
)
row(
    "maxsim",
    """
  nest s (q, k | d) f32: sum Q[q, d] * K[k, d]
  nest mx (q | k) f32: max s[q, k]
  nest total ( | q) f32: sum mx[q]
""",
    outputs="total",
    kernels=[(1, 1), (1, 1)],
)
row(
    "head_max",
    """
  nest s (h, q, k | d) f32: sum Qh[h, q, d] * Kh[h, k, d]
  nest m (h, q | k) f32: max s[h, q, k]
  nest w (h, q, k) f32: exp(s[h, q, k] - m[h, q])
  nest l (h, q | k) f32: sum w[h, q, k]
  nest p (h, q, k) bf16: w[h, q, k] / l[h, q]
  nest O (h, q, e | k) bf16: sum p[h, q, k] * V[k, e]
  nest hm (h | q, k) f32: max s[h, q, k]
""",
    inputs="Qh: bf16[2, S, 4]; Kh: bf16[2, T, 4]",
    outputs="O, hm",
    kernels=[(1, 3), (1, 1)],
)
row(
    "sinkhorn",
    """
  nest s (q, k | d) f32: sum Q[q, d] * K[k, d]
  nest m (q | k) f32: max s[q, k] - g[k]
  nest l (q | k) f32: sum exp(s[q, k] - g[k] - m[q])
  nest f1 (q) f32: m[q] + log(l[q])
  nest m2 (k | q) f32: max s[q, k] - f1[q]
  nest l2 (k | q) f32: sum exp(s[q, k] - f1[q] - m2[k])
  nest g1 (k) f32: m2[k] + log(l2[k])
""",
    inputs="g: f32[T]",
    outputs="f1, g1",
    kernels=[(1, 2), (1, 2)],
)
row(
    "infonce",
    """
  nest s (q, k | d) f32: sum Q[q, d] * K[k, d]
  nest m (q | k) f32: max s[q, k]
  nest l (q | k) f32: sum exp(s[q, k] - m[q])
  nest m2 (k | q) f32: max s[q, k]
  nest l2 (k | q) f32: sum exp(s[q, k] - m2[k])
  nest a ( | q) f32: sum m[q] + log(l[q]) - s[q, q]
  nest b2 ( | k) f32: sum m2[k] + log(l2[k]) - s[k, k]
  nest loss () f32: a[] + b2[]
""",
    head=SQ,
    outputs="loss",
    kernels=[(1, 2), (1, 2), (1, 2)],
)
row(
    "bias_grad",
    """
  nest s0 (b, q, k | d) bf16: sum Q[b, q, d] * K[b, k, d]
  nest s (b, q, k) f32: s0[b, q, k] * 0.5
  nest p (b, q, k) f32: exp(s[b, q, k] - mI[b, q]) / lI[b, q]
  nest dp (b, q, k | e) bf16: sum dO[b, q, e] * V[b, k, e]
""",
    """
  nest D (b, q | k) f32: sum p[b, q, k] * dp[b, q, k]
  nest ds (b, q, k) bf16: p[b, q, k] * dp[b, q, k] - p[b, q, k] * D[b, q]
  nest dQ (b, q, d | k) bf16: sum ds[b, q, k] * K[b, k, d]
  nest dK (b, k, d | q) bf16: sum ds[b, q, k] * Q[b, q, d]
  nest dbias (q, k | b) f32: sum ds[b, q, k]
  nest dslope ( | b, q, k) f32: sum ds[b, q, k] * f32(q - k)
  nest dtab (t | b, q, k) f32: sum where(bucket[q, k] == t, ds[b, q, k], 0.0)
""",
    head="""
  size S, T
  dim b: 2, q: S, k: T, d: 4, e: 6, t: 5
  input Q: bf16[2, S, 4]
  input K: bf16[2, T, 4]
  input V: bf16[2, T, 6]
""",
    inputs="dO: bf16[2, S, 6]; mI: f32[2, S]; lI: f32[2, S]; bucket: i64[S, T]",
    outputs="dQ, dK, dbias, dslope, dtab",
    kernels=[(1, 3), (1, 3), (1, 1), (1, 1), (1, 1)],
)
row(
    "mean_pool",
    """
  nest y (b, e | q) bf16: sum X[b, q, e]
  nest yn (b, e) bf16: y[b, e] / f32(S)
""",
    inputs="X: bf16[2, S, 6]",
    outputs="yn",
    kernels=[(1, 1)],
)
row(
    "relu_bn",
    SCORES,
    """
  nest p (q, k) bf16: max(s[q, k], 0.0)
  nest n (q | k) f32: sum p[q, k]
  nest p2 (q, k) bf16: p[q, k] / (n[q] + 0.000001)
  nest O (q, e | k) bf16: sum p2[q, k] * V[k, e]
""",
    kernels=[(1, 2)],
)
row(
    "label_smoothing",
    """
  nest z (n, v | d) f32: sum X[n, d] * W[v, d]
  nest m (n | v) f32: max z[n, v]
  nest l (n | v) f32: sum exp(z[n, v] - m[n])
  nest lp (n, v) f32: z[n, v] - m[n] - log(l[n])
  nest sm (n | v) f32: sum lp[n, v]
  nest loss (n) f32: lp[n, y[n]] * -0.9 - sm[n] * 0.1 / f32(C)
""",
    head="""
  size N, C
  dim n: N, v: C, d: 4
  input X: bf16[N, 4]
  input W: bf16[C, 4]
  input y: i64[N]
""",
    outputs="loss",
    kernels=[(1, 4)],
)

row(
    "safe_softmax",
    SCORES,
    """
  nest sc (q, k) f32: where(M[q, k], s[q, k], -inf)
""",
    softmax("sc"),
    """
  nest dead (q | k) bool: all sc[q, k] == -inf
  nest pm (q, k) bf16: where(dead[q], 0.0, p[q, k])
  nest O (q, e | k) bf16: sum pm[q, k] * V[k, e]
""",
    inputs="M: bool[S, T]",
    kernels=[(1, 3)],
)
row(
    "where_alive_scaled",
    SCORES,
    """
  nest sc (q, k) f32: where(M[q, k], s[q, k], -inf)
""",
    softmax("sc"),
    """
  nest alive (q | k) bool: any M[q, k]
  nest t (q | k) f32: sum abs(s[q, k])
  nest pm (q, k) bf16: where(alive[q], p[q, k], 0.0) / t[q]
  nest O (q, e | k) bf16: sum where(k <= q, pm[q, k], 0.0) * V[k, e]
""",
    inputs="M: bool[S, T]",
    kernels=[(1, 5)],
)

SIZES = {"S": 9, "T": 14, "N": 9, "C": 14, "B": 2}


def inputs_for(program: Program, seed: int = 0, scale: float = 1.0) -> dict[str, Array]:
    """Inputs by name and type: masks with a dead first row, ids in range, `scale` for what is multiplied."""
    rng = np.random.default_rng(seed)
    sizes = {s.name: SIZES[s.name] for s in program.sizes}
    found: dict[str, Array] = {}
    for buffer in program.inputs:
        shape = [sizes[e.name] if isinstance(e, Size) else integer(e, sizes) for e in buffer.shape]
        if buffer.dtype is DType.BOOL:
            values = rng.random(shape) > 0.4
            values[:1] = False
        elif buffer.dtype.is_int:
            values = rng.integers(0, 5, shape)
        else:
            values = rng.normal(size=shape) * scale
        if buffer.name == "lI":
            values = np.abs(values) + 1.0
        if buffer.name == "U":
            values = rng.random(shape)
        found[buffer.name] = values
    return found
