"""Loops as `online` would leave them, for tests of code generation: attention in many spellings, and its relatives."""

from __future__ import annotations

from tests.support.triton_process import Case

DOT = "sum(d: Q[b, h, q, d] * K[b, h, k, d]) * 0.125"


def attention(
    score: str = DOT,
    inputs: tuple[str, ...] = (),
    *,
    dtype: str = "f16",
    D: int = 64,
    E: int = 64,
    value: str = "V[b, h, k, e]",
    give: str = "A / l",
    extra: tuple[str, ...] = (),
    dims: str = "",
    outputs: str = "O",
    sizes: tuple[str | int, ...] = (2, 2, "S", "T"),
) -> str:
    """A one-pass attention loop with a given score, value factor and result; `extra` lines stand before the give of O."""
    B, H, S, T = sizes
    symbolic = ", ".join(dict.fromkeys(s for s in (S, T) if isinstance(s, str)))
    lines = [
        "program attention",
        f"  size {symbolic}" if symbolic else "",
        f"  dim b: {B}, h: {H}, q: {S}, k: {T}, d: {D}, e: {E}{dims}",
        f"  input Q: {dtype}[{B}, {H}, {S}, {D}]",
        f"  input K: {dtype}[{B}, {H}, {T}, {D}]",
        f"  input V: {dtype}[{B}, {H}, {T}, {E}]",
        *(f"  input {i}" for i in inputs),
        "  loop (b, h, q | k)",
        f"    let s(b, h, q, k) = {score}",
        "    carry m (b, h, q) f32: max s",
        "    carry l (b, h, q) f32: sum exp(s - ~m) moves exp(-m)",
        f"    carry A (b, h, q, e) f32: sum exp(s - ~m) * {value} moves exp(-m)",
        *(f"    {line}" for line in extra if line.startswith("carry ")),
        f"    give O (b, h, q, e) {dtype} = {give}",
        *(f"    {line}" for line in extra if not line.startswith("carry ")),
        f"  output {outputs}",
    ]
    return "\n".join(line for line in lines if line) + "\n"


_PAGES = """
program pages
  size P
  dim b: 3, q: 2, p: P, i: 16, d: 64, e: 64
  input t: i64[3, P]
  input L: i64[3]
  input Q: f16[3, 2, 64]
  input K: f16[4, 16, 64]
  input V: f16[4, 16, 64]
  loop (b, q | p, i)
    let s(b, q, p, i) = where(p * 16 + i < 30 + L[b] * 60, sum(d: Q[b, q, d] * K[t[b, p], i, d]) * 0.125, -inf)
    carry m (b, q) f32: max s
    carry l (b, q) f32: sum exp(s - ~m) moves exp(-m)
    carry A (b, q, e) f32: sum exp(s - ~m) * V[t[b, p], i, e] moves exp(-m)
    give O (b, q, e) f16 = A / l
  output O
"""
_DIFFERENTIAL = """
program differential
  size S
  dim b: 2, h: 2, q: S, k: S, d: 32, e: 64
  input Q: bf16[2, 4, S, 32]
  input K: bf16[2, 4, S, 32]
  input V: bf16[2, 2, S, 64]
  input lam: f32[2]
  loop (b, h, q | k)
    let s0(b, h, q, k) = sum(d: Q[b, h, q, d] * K[b, h, k, d]) * 0.125
    let s1(b, h, q, k) = sum(d: Q[b, h + 2, q, d] * K[b, h + 2, k, d]) * 0.125
    carry m0 (b, h, q) f32: max s0
    carry m1 (b, h, q) f32: max s1
    carry l0 (b, h, q) f32: sum exp(s0 - ~m0) moves exp(-m0)
    carry l1 (b, h, q) f32: sum exp(s1 - ~m1) moves exp(-m1)
    carry A0 (b, h, q, e) f32: sum exp(s0 - ~m0) * V[b, h, k, e] moves exp(-m0)
    carry A1 (b, h, q, e) f32: sum exp(s1 - ~m1) * V[b, h, k, e] moves exp(-m1)
    give O (b, h, q, e) bf16 = A0 / l0 - A1 / l1 * lam[h]
  output O
"""

_EVOFORMER = """
program evoformer
  dim b: 1, n: 3, h: 2, q: 40, k: 40, d: 32, e: 32
  input Q: bf16[1, 3, 40, 2, 32]
  input K: bf16[1, 3, 40, 2, 32]
  input V: bf16[1, 3, 40, 2, 32]
  input G: bf16[1, 3, 40, 2, 32]
  input B1: bf16[1, 3, 40]
  input B2: bf16[1, 2, 40, 40]
  loop (b, n, h, q | k)
    let s(b, n, h, q, k) = sum(d: Q[b, n, q, h, d] * K[b, n, k, h, d]) * 0.125 + B1[b, n, k] + B2[b, h, q, k]
    carry m (b, n, h, q) f32: max s
    carry l (b, n, h, q) f32: sum exp(s - ~m) moves exp(-m)
    carry A (b, n, h, q, e) f32: sum exp(s - ~m) * V[b, n, k, h, e] moves exp(-m)
    give O (b, n, q, h, e) bf16 = sigmoid(G[b, n, q, h, e]) * (A / l)
  output O
"""

_GROUPED = """
program grouped
  size S, T
  dim b: 2, hk: 2, g: 4, q: S, k: T, d: 64, e: 64
  input Q: bf16[2, 8, S, 64]
  input K: bf16[2, 2, T, 64]
  input V: bf16[2, 2, T, 64]
  loop (b, hk, g, q | k)
    let s(b, hk, g, q, k) = where(k <= q + (T - S), sum(d: Q[b, hk * 4 + g, q, d] * K[b, hk, k, d]) * 0.125, -inf)
    carry m (b, hk, g, q) f32: max s
    carry l (b, hk, g, q) f32: sum exp(s - ~m) moves exp(-m)
    carry A (b, hk, g, q, e) f32: sum exp(s - ~m) * V[b, hk, k, e] moves exp(-m)
    give O (b, hk, g, q, e) bf16 = A / l
  output O
"""

_BACKWARD_KEYS = """
program backward_keys
  size S
  dim b: 2, hk: 2, g: 2, q: S, k: S, d: 64, e: 64
  input Q: bf16[2, 4, S, 64]
  input K: bf16[2, 2, S, 64]
  input V: bf16[2, 2, S, 64]
  input dO: bf16[2, 4, S, 64]
  input L: f32[2, 4, S]
  input delta: f32[2, 4, S]
  loop (b, hk, k | g, q)
    let s(b, hk, k, g, q) = where(k <= q, sum(d: Q[b, hk * 2 + g, q, d] * K[b, hk, k, d]) * 0.125, -inf)
    let p(b, hk, k, g, q) = exp(s - L[b, hk * 2 + g, q] - 5.0)
    let dp(b, hk, k, g, q) = sum(e: dO[b, hk * 2 + g, q, e] * V[b, hk, k, e])
    carry dV (b, hk, k, e) f32: sum p * dO[b, hk * 2 + g, q, e]
    carry dK (b, hk, k, d) f32: sum p * (dp - delta[b, hk * 2 + g, q]) * Q[b, hk * 2 + g, q, d]
    give gV (b, hk, k, e) bf16 = dV
    give gK (b, hk, k, d) bf16 = dK * 0.125
  output gV, gK
"""

_BACKWARD_QUERIES = """
program backward_queries
  size S, T
  dim q: S, k: T, d: 32, d': 32, e: 32
  input Q: f32[S, 32]
  input K: f32[T, 32]
  input V: f32[T, 32]
  input dO: f32[S, 32]
  input m: f32[S]
  loop (q | k)
    let s(q, k) = sum(d': Q[q, d'] * K[k, d']) * 0.25
    let dP(q, k) = sum(e: dO[q, e] * V[k, e])
    carry D (q) f32: sum exp(s - m[q]) * dP
    carry B (q, d) f32: sum exp(s - m[q]) * K[k, d]
    carry G (q, d) f32: sum exp(s - m[q]) * (dP - ~(D / 7.0)) * K[k, d] moves shift -D / 7.0 over B
    give delta (q) f32 = D / 7.0
    give dQ (q, d) f32 = G
  output delta, dQ
"""

_INVARIANT_POINTS = """
program invariant_points
  size N
  dim h: 3, i: N, j: N, c: 16, p: 4, x: 3, p2: 8, x2: 3, c2: 16, z: 32
  input Q: f32[N, 3, 16]
  input K: f32[N, 3, 16]
  input V: f32[N, 3, 16]
  input QP: f32[N, 3, 4, 3]
  input KP: f32[N, 3, 4, 3]
  input VP: f32[N, 3, 8, 3]
  input B: f32[N, N, 3]
  input Z: f32[N, N, 32]
  loop (h, i | j)
    let far(h, i, j) = sum(p, x: (QP[i, h, p, x] - KP[j, h, p, x]) * (QP[i, h, p, x] - KP[j, h, p, x]))
    let s(h, i, j) = sum(c: Q[i, h, c] * K[j, h, c]) * 0.25 + B[i, j, h] - far * 0.1
    carry m (h, i) f32: max s
    carry l (h, i) f32: sum exp(s - ~m) moves exp(-m)
    carry A (h, i, c2) f32: sum exp(s - ~m) * V[j, h, c2] moves exp(-m)
    carry P (h, i, p2, x2) f32: sum exp(s - ~m) * VP[j, h, p2, x2] moves exp(-m)
    carry ZZ (h, i, z) f32: sum exp(s - ~m) * Z[i, j, z] moves exp(-m)
    give O (h, i, c2) f32 = A / l
    give OP (h, i, p2, x2) f32 = P / l
    give OZ (h, i, z) f32 = ZZ / l
  output O, OP, OZ
"""

_CROSS_ENTROPY = """
program cross_entropy
  size N
  dim n: N, v: 300, c: 512
  input X: bf16[N, 512]
  input W: bf16[300, 512]
  input y: i64[N]
  loop (n | v)
    let s(n, v) = sum(c: X[n, c] * W[v, c]) * 0.2
    carry m (n) f32: max s
    carry l (n) f32: sum exp(s - ~m) moves exp(-m)
    give loss (n) f32 = log(l) + m - sum(c: X[n, c] * W[y[n], c]) * 0.2
  output loss
"""

_NO_ROWS = """
program no_rows
  size T
  dim b: 2, h: 40, k: T, d: 32, e: 32
  input Q: bf16[2, 40, 32]
  input K: bf16[2, 40, T, 32]
  input V: bf16[2, 40, T, 32]
  loop (b, h | k)
    let s(b, h, k) = sum(d: Q[b, h, d] * K[b, h, k, d])
    carry m (b, h) f32: max s
    carry l (b, h) f32: sum exp(s - ~m) moves exp(-m)
    carry A (b, h, e) f32: sum exp(s - ~m) * V[b, h, k, e] moves exp(-m)
    give O (b, h, e) bf16 = A / l
  output O
"""

_POINTWISE = """
program pointwise
  size S
  dim b: 3, q: S
  input X: f16[3, S]
  loop (b, q |)
    give Y (b, q) f16 = exp(X[b, q]) * f32(q)
  output Y
"""

_IDS = ("I: i64[2, S]", "J: i64[2, T]")
_SAME = "I[b, q] == J[b, k]"
_RMS = "rsqrt(sum(e': A[b, h, q, e'] / l * (A[b, h, q, e'] / l)) / 64.0 + 0.001)"
_PAGED = "sum(d: Q[b, h, q, d] * P[t[b, k // 16] * 16 + k % 16, h, d]) * 0.125"
_FAR = "sum(d: (Q[b, h, q, d] - K[b, h, k, d]) * (Q[b, h, q, d] - K[b, h, k, d]))"
_SMALL, _SQUARE = {"S": 40, "T": 70}, {"S": 70, "T": 70}
_LONG = {"S": 170, "T": 170}

CASES: dict[str, Case] = {
    "vanilla": Case(attention(), {"S": 100, "T": 130}, 64, 64),
    "descriptors": Case(attention(), {"S": 100, "T": 130}, 64, 64, descriptors=True),
    "one_key": Case(attention(), {"S": 1, "T": 1}, 16, 16),
    "bf16": Case(attention(dtype="bf16"), _SMALL, 32, 32),
    "f32": Case(attention(dtype="f32"), _SMALL, 32, 32),
    "f64": Case(
        attention(dtype="f64").replace(" f32:", " f64:").replace("0.125", "0.125:f64"),
        _SMALL,
        32,
        32,
    ),
    "packed_mask": Case(
        attention(
            f"where(((W[q, k // 4] >> k % 4) % 2 == 0) & ((q - k >> 2) < 9) & ((q - k) % 8 != 3), {DOT}, -inf)",
            ("W: i32[S, 40]",),
        ),
        _SQUARE,
        32,
        16,
    ),
    "causal": Case(attention(f"where(k <= q, {DOT}, -inf)"), _SQUARE, 32, 16),
    "window": Case(attention(f"where((k <= q) & (q - k <= 20), {DOT}, -inf)"), _SQUARE, 32, 16),
    "filled": Case(
        attention(f"where((k <= q) & (q - k <= 60), {DOT}, -10000000000.0)"), _SQUARE, 16, 16
    ),
    "filled_with_infinities": Case(
        attention(f"where((k <= q) & (q - k <= 60), {DOT}, -3.3895313892515355e+38)"),
        _SQUARE,
        16,
        16,
        special="inf",
    ),
    "filled_by_sums": Case(
        attention(f"{DOT} + where(k <= q, 0.0, -3.3895313892515355e+38)"), _SQUARE, 16, 16
    ),
    "window_with_anchors": Case(
        attention(f"where((k <= q) & ((q - k <= 20) | (k < 3)), {DOT}, -inf)"), _LONG, 32, 16
    ),
    "window_with_global_rows": Case(
        attention(f"where((abs(q - k) <= 20) | (k < 18) | (q < 3), {DOT}, -inf)"), _LONG, 32, 16
    ),
    "softcap": Case(attention(f"tanh({DOT} / 30.0) * 30.0"), _SMALL, 32, 32),
    "alibi": Case(
        attention(f"{DOT} + slopes[h] * f32(k - q)", ("slopes: f32[2]",)), _SMALL, 32, 32
    ),
    "alibi_causal": Case(
        attention(f"where(k <= q, {DOT} - slopes[h] * f32(q - k), -inf)", ("slopes: f32[2]",)),
        _SQUARE,
        32,
        16,
    ),
    "alibi_both_ways": Case(
        attention(f"{DOT} - slopes[h] * f32(abs(q - k))", ("slopes: f32[2]",)), _SMALL, 32, 32
    ),
    "bias": Case(attention(f"{DOT} + B[h, q, k]", ("B: f16[2, S, T]",)), _SMALL, 32, 32),
    "bool_mask": Case(
        attention(f"where(M[b, k], {DOT}, -inf)", ("M: bool[2, T]",)), _SMALL, 32, 32
    ),
    "documents": Case(attention(f"where({_SAME}, {DOT}, -inf)", _IDS), _SMALL, 32, 32),
    "document_ranges": Case(
        attention(f"where({_SAME}, {DOT}, -inf)", _IDS), {"S": 130, "T": 200}, 32, 32, ranges=True
    ),
    "padding_ranges": Case(
        attention(f"where(M[b, k] & (k <= q), {DOT}, -inf)", ("M: bool[2, T]",)),
        {"S": 130, "T": 130},
        64,
        32,
        ranges=True,
    ),
    "dense_ranges": Case(
        attention(f"where(M[q, k] & (k <= q), {DOT}, -inf)", ("M: bool[S, T]",)),
        {"S": 130, "T": 200},
        64,
        32,
        ranges=True,
    ),
    "filled_ranges": Case(
        attention(f"where(M[b, k] & (k <= q), {DOT}, -3.4028234663852886e+38)", ("M: bool[2, T]",)),
        {"S": 130, "T": 130},
        64,
        32,
        ranges=True,
    ),
    "parts": Case(attention(), {"S": 20, "T": 300}, 16, 32, parts=2),
    "decode_parts": Case(_GROUPED, {"S": 1, "T": 300}, None, 32, parts=3),
    "least_fill": Case(  # rows 0 to 2 are dead: a mean over all keys
        attention(f"where(M[b, k] & (q >= 3), {DOT}, -3.4028234663852886e+38)", ("M: bool[2, T]",)),
        _SMALL,
        32,
        32,
    ),
    "dead_rows": Case(
        attention(
            f"where({_SAME}, {DOT}, -inf)",
            _IDS,
            give="where(alive, A / l, 0.0)",
            extra=(f"carry alive (b, h, q) bool: any {_SAME}",),
        ),
        _SMALL,
        32,
        32,
    ),
    "lse": Case(
        attention(extra=("give L (b, h, q) f32 = log(l) + m",), outputs="O, L"), _SMALL, 32, 32
    ),
    "argmax": Case(
        attention(
            extra=("carry am (b, h, q) i64: argmax s", "give AM (b, h, q) i64 = am"),
            outputs="O, AM",
        ),
        _SMALL,
        16,
        32,
    ),
    "two_passes": Case(
        attention(
            extra=(
                "give M (b, h, q) f32 = m",
                "pass 2",
                "  carry ent (b, h, q) f32: sum exp(s - m) / l * s",
                "give E (b, h, q) f32 = ent",
            ),
            outputs="O, M, E",
        ),
        _SMALL,
        16,
        32,
    ),
    "normalised": Case(attention(give=f"A / l * {_RMS}", dims=", e': 64"), _SMALL, 16, 16),
    "head_dim_40": Case(attention(D=40, E=24), _SMALL, 32, 32),
    "head_dim_40_descriptors": Case(attention(D=40, E=24), _SMALL, 32, 32, descriptors=True),
    "head_dim_3": Case(attention(D=3, E=1), _SMALL, 16, 32),
    "head_dim_576": Case(attention(D=576, E=512), {"S": 20, "T": 40}, 16, 32),
    # The product of the unset reference and this scale is rounded: it must not move the empty sums by inf.
    "unset_for_long": Case(
        attention(f"where(k >= q + 90, {DOT} * 0.0883883461356163, -inf)"),
        {"S": 40, "T": 140},
        16,
        16,
    ),
    "deep": Case(
        attention(
            D=1100, E=16, give="A / l * sum(e': Q[b, h, q, e'] * K[b, h, 3, e'])", dims=", e': 1100"
        ),
        {"S": 20, "T": 40},
        16,
        16,
    ),
    "deep_descriptors": Case(attention(D=1152, E=16), {"S": 20, "T": 40}, 16, 16, descriptors=True),
    "distance_24": Case(attention(f"{_FAR} * -0.1", D=24), {"S": 20, "T": 40}, 16, 16),
    "distance_4": Case(attention(f"{_FAR} * -0.1", D=4), {"S": 20, "T": 40}, 16, 16),
    "flipped": Case(
        attention("sum(d: Q[b, h, q, d] * K[b, h, T - 1 - k, d])", value="V[b, h, T - 1 - k, e]"),
        {"S": 20, "T": 40},
        16,
        16,
    ),
    "guarded": Case(
        attention("where(k >= 5, sum(d: Q[b, h, q, d] * K[b, h, k - 5, d]), -inf)"),
        {"S": 20, "T": 40},
        16,
        16,
    ),
    "offset": Case(
        attention("sum(d: Q[b, h, q, d] * L[b, h, k + 7, d])", ("L: f16[2, 2, T + 9, 64]",)),
        {"S": 20, "T": 40},
        16,
        16,
    ),
    "paged": Case(
        attention(_PAGED, ("t: i64[2, (T + 15) // 16]", "P: f16[64, 2, 64]")),
        {"S": 20, "T": 40},
        16,
        16,
    ),
    "paged_parts": Case(_PAGES, {"P": 20}, None, 32, parts=2),
    "differential": Case(_DIFFERENTIAL, {"S": 40}, 32, 32),
    "evoformer": Case(_EVOFORMER, {}, 32, 32),
    "decode": Case(_GROUPED, {"S": 1, "T": 70}, None, 32),
    "decode_3": Case(_GROUPED, {"S": 3, "T": 70}, None, 32),
    "grouped": Case(_GROUPED, {"S": 40, "T": 40}, 32, 32),
    "backward_keys": Case(_BACKWARD_KEYS, {"S": 50}, 32, 32),
    "backward_queries": Case(_BACKWARD_QUERIES, _SMALL, 16, 16),
    "invariant_points": Case(_INVARIANT_POINTS, {"N": 40}, 16, 16),
    "cross_entropy": Case(_CROSS_ENTROPY, {"N": 40}, 32, 64),
    "no_rows": Case(_NO_ROWS, {"T": 70}, None, 32),
    "pointwise": Case(_POINTWISE, {"S": 70}),
}
