"""Generated Gluon kernels on a simulated machine, in several orders of events, against the meaning of their programs."""

from __future__ import annotations

import re
from collections.abc import Callable
from unittest.mock import patch

import pytest

from flashlight.codegen.gluon import is_known

if not is_known():
    pytest.skip("no Triton whose Gluon is known", allow_module_level=True)

from flashlight.codegen import gluon_shared
from tests.support.gluon_machine import MachineError
from tests.support.gluon_runs import Case, Prepared
from tests.support.loops import CASES as LOOPS
from tests.support.loops import DOT, attention

pytestmark = pytest.mark.slow
ORDERS = 3  # of events, drawn anew for each case
HEADS = (1, 2, "S", "T")
SQUARE = (1, 2, "S", "S")
CAUSAL = f"where(k <= q, {DOT}, -inf)"
LSE = ("give L (b, h, q) f32 = log(l) + m",)
IDS = ("I: i64[1, S]", "J: i64[1, T]")
SAME = "I[b, q] == J[b, k]"


def of(score: str, *inputs: str, sizes: tuple[str | int, ...] = HEADS, **options: object) -> str:
    return attention(score, inputs, sizes=sizes, **options)  # type: ignore[arg-type]


def both(score: str, give: str = "A0 / l0 - A1 / l1 * lam[h]") -> str:
    """Two softmaxes over the same values, their scores changed alike."""
    text = LOOPS["differential"].program.replace("A0 / l0 - A1 / l1 * lam[h]", give)
    return re.sub(r"(let s\d\(.*\) = )(.*)", lambda m: m[1] + score.format(f"({m[2]})"), text)


CASES = {
    "vanilla": Case(of(DOT), {"S": 300, "T": 150}),
    "vanilla_3": Case(of(DOT), {"S": 400, "T": 150}, 3),
    "wide_values_3": Case(of(DOT, D=16, E=64), {"S": 400, "T": 150}, 3, stages=3),
    "vanilla_1": Case(of(DOT), {"S": 100, "T": 150}, 1),
    "one_instance": Case(of(DOT), {"S": 300, "T": 150}, instances=1),
    "three_stages": Case(of(DOT), {"S": 260, "T": 150}, stages=3),
    "one_stage": Case(of(DOT), {"S": 260, "T": 90}, stages=1),
    "bf16": Case(of(DOT, dtype="bf16"), {"S": 200, "T": 100}),
    "heads_inside": Case(of(DOT), {"S": 200, "T": 100}, across=True),
    "fixed_sizes": Case(of(DOT, sizes=(1, 2, 256, 128)), {}),
    "fixed_sizes_3": Case(of(CAUSAL, sizes=(1, 2, 384, 384)), {}, 3, 64),
    "short": Case(of(DOT), {"S": 20, "T": 20}),
    "one_position": Case(of(DOT), {"S": 1, "T": 1}, 3),
    "one_key": Case(of(DOT), {"S": 130, "T": 1}),
    "one_query": Case(of(DOT), {"S": 1, "T": 100}),
    "row_max": Case(
        of(DOT, extra=("give N (b, h, q) f32 = m",), outputs="O, N"), {"S": 150, "T": 90}
    ),
    "causal": Case(of(CAUSAL, sizes=SQUARE), {"S": 300}),
    "causal_3": Case(of(CAUSAL, sizes=SQUARE), {"S": 400}, 3, 64),
    "causal_at_the_end": Case(of(f"where(k <= q + (T - S), {DOT}, -inf)"), {"S": 150, "T": 260}),
    "rows_without_keys": Case(of(f"where(k <= q + (T - S), {DOT}, -inf)"), {"S": 400, "T": 100}, 3),
    "window": Case(
        of(f"where((k <= q) & (q - k <= 70), {DOT}, -inf)", sizes=SQUARE), {"S": 300}, 3
    ),
    "prefix": Case(
        of(f"where((k <= q) | (k < P[b]), {DOT}, -inf)", "P: i64[1]", sizes=SQUARE), {"S": 300}
    ),
    "global_keys": Case(
        of(f"where((k <= q) & ((q - k <= 40) | (k < 3)), {DOT}, -inf)", sizes=SQUARE), {"S": 300}
    ),
    "softcap": Case(of(f"tanh({DOT} / 30.0) * 30.0"), {"S": 150, "T": 100}),
    "alibi": Case(
        of(f"where(k <= q, {DOT} + slopes[h] * f32(k - q), -inf)", "slopes: f32[2]", sizes=SQUARE),
        {"S": 300},
        3,
    ),
    "combined_with_a_tile": Case(
        of(DOT, "F: f32[1, 2, S, 64]", give="F[b, h, q, e] - A / l * 0.2"), {"S": 150, "T": 100}
    ),
    "combined_with_tiles": Case(
        of(
            DOT,
            *("F: f32[1, 2, S, 64]", "G: f32[1, 2, S, 64]", "w: f32[64]", "r: f32[1, 2, S]"),
            give="tanh(F[b, h, q, e]) * w[e] - A / l * r[b, h, q] + G[b, h, q, e] / l",
        ),
        {"S": 150, "T": 100},
        3,
    ),
    "combined_in_two_widths": Case(
        of(
            DOT,
            *("W: f16[1, 2, T, 32]", "F: f32[1, 2, S, 64]", "G: f32[1, 2, S, 32]"),
            dims=", f: 32",
            give="F[b, h, q, e] - A / l",
            extra=(
                "carry A2 (b, h, q, f) f32: sum exp(s - ~m) * W[b, h, k, f] moves exp(-m)",
                "give O2 (b, h, q, f) f16 = G[b, h, q, f] - A2 / l",
            ),
            outputs="O, O2",
        ),
        {"S": 150, "T": 100},
    ),
    "mask_added": Case(
        of(f"{DOT} + f32(where(q + 1 <= k, -inf:bf16, 0.0:bf16))", sizes=SQUARE, dtype="bf16"),
        {"S": 300},
    ),
    "bias": Case(of(f"{DOT} + B[h, q, k]", "B: f16[2, S, T]"), {"S": 300, "T": 152}),
    "bias_3": Case(of(f"{DOT} + B[h, q, k]", "B: f16[2, S, T]"), {"S": 300, "T": 152}, 3),
    "bias_unaligned": Case(of(f"{DOT} + B[h, q, k]", "B: f16[2, S, T]"), {"S": 150, "T": 101}),
    "bias_of_keys": Case(of(f"{DOT} + B[h, k]", "B: f32[2, T]"), {"S": 150, "T": 100}),
    "padding": Case(of(f"where(M[b, k], {DOT}, -inf)", "M: bool[1, T]"), {"S": 150, "T": 100}),
    "mask": Case(of(f"where(M[q, k], {DOT}, -inf)", "M: bool[S, T]"), {"S": 150, "T": 100}),
    "documents": Case(of(f"where({SAME}, {DOT}, -inf)", *IDS), {"S": 200, "T": 150}, ranges=True),
    "documents_3": Case(
        of(f"where(({SAME}) & (k <= q), {DOT}, -inf)", *IDS),
        {"S": 200, "T": 200},
        3,
        ranges=True,
    ),
    "dead_rows": Case(
        of(
            f"where({SAME}, {DOT}, -inf)",
            *IDS,
            give="where(alive, A / l, 0.0)",
            extra=(f"carry alive (b, h, q) bool: any {SAME}",),
        ),
        {"S": 150, "T": 100},
    ),
    "lse": Case(of(DOT, extra=LSE, outputs="O, L"), {"S": 300, "T": 100}, 3),
    "lse_causal": Case(of(CAUSAL, sizes=SQUARE, extra=LSE, outputs="O, L"), {"S": 200}),
    "sink": Case(of(DOT, "Z: f32[2]", give="A / (l + exp(Z[h] - m))"), {"S": 150, "T": 100}),
    "gated": Case(
        of(DOT, "G: f16[1, 2, S, 64]", give="sigmoid(G[b, h, q, e]) * (A / l)"),
        {"S": 200, "T": 100},
    ),
    "gated_3": Case(
        of(DOT, "G: f16[1, 2, S, 64]", give="sigmoid(G[b, h, q, e]) * (A / l)"),
        {"S": 400, "T": 60},
        3,
        instances=1,
    ),
    "gated_4": Case(
        of(
            CAUSAL,
            *("G: f16[1, 2, S, 64]", "R: f16[S, 64]"),
            sizes=SQUARE,
            give="G[b, h, q, e] * (A / l) + R[q, e]",
        ),
        {"S": 600},
        4,
    ),
    "head_dim_40": Case(of(DOT, D=40, E=24), {"S": 150, "T": 100}, 3),
    "head_dim_128": Case(of(DOT, D=128, E=128), {"S": 150, "T": 100}),
    "wider_values": Case(of(CAUSAL, sizes=SQUARE, D=32, E=128), {"S": 200}, 3),
    "grouped": Case(
        LOOPS["grouped"].program.replace("b: 2", "b: 1").replace("[2, ", "[1, "),
        {"S": 200, "T": 130},
        3,
    ),
    "differential": Case(LOOPS["differential"].program, {"S": 150}),
    "differential_causal": Case(both("where(k <= q, {}, -inf)"), {"S": 300}),
    "differential_causal_3": Case(both("where(k <= q, {}, -inf)"), {"S": 300}, 3),
    "differential_one_stage": Case(both("tanh({})"), {"S": 150}, 1, stages=1),
    "differential_biased": Case(
        both("{} + W[h, q, k]").replace("  loop", "  input W: bf16[2, S, S]\n  loop"), {"S": 152}
    ),
    "three_softmaxes": Case(
        both("{}", "A0 / l0 - A1 / l1 * lam[h] + A2 / l2").replace(
            "    give",
            "    let s2(b, h, q, k) = sum(d: Q[b, h, q, d] * K[b, h + 2, k, d])\n"
            "    carry m2 (b, h, q) f32: max s2\n"
            "    carry l2 (b, h, q) f32: sum exp(s2 - ~m2) moves exp(-m2)\n"
            "    carry A2 (b, h, q, e) f32: sum exp(s2 - ~m2) * V[b, h, k, e] moves exp(-m2)\n    give",
        ),
        {"S": 150},
    ),
    "evoformer": Case(
        LOOPS["evoformer"].program.replace("40", "136").replace("n: 3", "n: 2").replace("3,", "2,"),
        {},
    ),
    "two_values": Case(
        of(
            DOT,
            "W: f16[1, 2, T, 32]",
            dims=", f: 32",
            extra=(
                "carry A2 (b, h, q, f) f32: sum exp(s - ~m) * W[b, h, k, f] moves exp(-m)",
                "give O2 (b, h, q, f) f16 = A2 / l",
            ),
            outputs="O, O2",
        ),
        {"S": 150, "T": 100},
    ),
    "computed_rows": Case(
        of(
            f"{DOT} + sum(c: tanh(X[q, c]) * Y[k, c])",
            *("X: f16[S, 32]", "Y: f16[T, 32]"),
            dims=", c: 32",
        ),
        {"S": 150, "T": 100},
    ),
    "names_of_its_own": Case(
        re.sub(r"\bQ\b", "first", re.sub(r"\bK\b", "tiles'", of(DOT)))
        .replace("V", "gl")
        .replace("S", "stage")
        .replace("T", "for'"),
        {"stage": 150, "for'": 100},
    ),
    "large_scores": Case(of(DOT), {"S": 150, "T": 150}, scale=30.0),
    # Some tiles' scores pass their reference by less than what it may lag, others' by more.
    "spread_scores": Case(of(f"{DOT} + f32(R[k]) * 8.0", "R: f16[T]"), {"S": 150, "T": 200}),
}


def tolerance(text: str) -> float:
    return 2e-2 if "bf16" in text else 4e-3


@pytest.mark.parametrize("name", CASES)
def test_same_as_program(name: str) -> None:
    prepared = Prepared(CASES[name])
    for order in range(ORDERS):
        result = prepared.run(order)
        assert result["same_places"]
        assert max(result["errors"].values()) < tolerance(CASES[name].program), result["errors"]


# What goes wrong when one line of a kernel is another: no order of events may hide it. (pattern, replacement), for each line.
MISTAKES = {
    "scores_never_free": (r"mbarrier\.arrive\(scores_free.*", "pass"),
    "sums_never_free": (r"mbarrier\.arrive\(sums_free.*", "pass"),
    "rows_never_free": (r"mbarrier\.arrive\(rows_free.*", "pass"),
    "scores_not_awaited": (r"mbarrier\.wait\(scores_full.*", "pass"),
    "sums_not_awaited": (r"mbarrier\.wait\(sums_full.*", "pass"),
    "rows_not_awaited": (r"mbarrier\.wait\(rows_full.*", "pass"),
    "scores_overwritten": (r"mbarrier\.wait\(scores_free.*", "pass"),
    "sums_overwritten": (r"mbarrier\.wait\(sums_free.*", "pass"),
    "rows_overwritten": (r"mbarrier\.wait\(rows_free.*", "pass"),
    "producer_phase": (r"(?<=    phase = )1", "0"),
    "producer_slot_phase": (r"(?<=slot_phase = )1", "0"),
    "consumer_phase": (r"(?<=    phase = )0", "1"),
    "sums_phase": (r"(?<=sums_phase = )0", "1"),
    "slot_phase": (r"(?<=slot_phase = )0", "1"),
    "phase_stays": (r"(?<= )phase \^= 1", "pass"),
    "ring_too_long": (r"if stage == 2", "if stage == 3"),
    "other_stage": (r"K_tiles_ring\.index\(stage\)\.", "K_tiles_ring.index(1 - stage)."),
    "other_group": (r"(_tiles_rows\.index\(slot) \* 3 \+ GROUP_ID", r"\1 * 3"),
    "fewer_bytes": (r"(expect\(sums_full\S+ )\d+", r"\g<1>64"),
    "fewer_arrivals": (r"(init\(sums_free\S+ count=)\d", r"\g<1>1"),
    "result_taken_early": (r"(A = warpgroup_mma_wait\()0", r"\g<1>1"),
    "registers_reused": (r"_keep\(half\)", "pass"),
    "no_fence": (r"fence_async_shared\(\)", "pass"),
    "row_tile_unknown": (r"drawn.index\(slot\).store\(.*pid.*", "pass"),
    "row_tile_twice": (r"(?<=gl\.num_programs\(0\))$", " - 1"),
    "queue_left": (r"gl\.store\(queue.*", "pass"),
    "turn_kept": (r"_pass_turn\(GROUP_ID\)$", "pass"),
    "turn_left": (r"_wait_turn\(GROUP_ID\)  # what the last.*", "pass"),
    "stored_outside": (r", mask=gl\.convert_layout\(row_start.*", ")"),
    "not_the_layout": (r"gl\.SliceLayout\(1, TILE_64\)", "gl.SliceLayout(0, TILE_64)"),
}
# A line that is moved up to before another.
EARLY = {
    "scores_freed_early": (r"mbarrier\.arrive\(scores_free", r"dot\w* = warpgroup_mma_wait"),
    "sums_freed_early": (r"mbarrier\.arrive\(sums_free", r"A = warpgroup_mma_wait"),
    "rows_freed_early": (r"mbarrier\.arrive\(rows_free", r"m = gl\.full"),
}


# Mistakes about the tiles that the end reads.
CLOSING = {
    "closing_never_free": (r"mbarrier\.arrive\(closing_free.*", "pass"),
    "closing_not_awaited": (r"mbarrier\.wait\(closing_full.*", "pass"),
    "closing_overwritten": (r"mbarrier\.wait\(closing_free.*", "pass"),
    "closing_producer_phase": (r"(?<=closing_phase = )1", "0"),
    "closing_consumer_phase": (r"(?<=closing_phase = )0", "1"),
    "closing_phase_stays": (r"closing_phase \^= 1", "pass"),
    "closing_no_fence": (r"fence_async_shared\(\)", "pass"),
    "closing_of_another_group": (r"(_closing\.index\()GROUP_ID", r"\g<1>0"),
}

# Mistakes about what shared memory keeps along the columns.
KEPT = {
    "not_kept": (r"\w+_kept\.index\(GROUP_ID\)\.store\(.*", "pass"),
    "kept_of_another_group": (r"(_kept\.index\()GROUP_ID(\)\.load)", r"\g<1>0\2"),
}

# Mistakes about references that lag.
LAGGING = {
    "sums_not_moved": (r"A = _rescale_\d+\(A.*", "pass"),
    "parts_not_moved": (r"l = l \* gl\.convert_layout\(phi.*\] \+", "l = l +"),
    "reference_stays": (r"(m_\d+ = gl\.where\(m_\d+ > \(m \+ )\d+", r"\g<1>1000"),
}


def replaced(name: str) -> Callable[[str], str]:
    pattern, by = (MISTAKES | CLOSING | KEPT | LAGGING)[name]
    return lambda text: re.sub(pattern, by, text, flags=re.M)


def moved(name: str) -> Callable[[str], str]:
    second, first = EARLY[name]
    pattern = rf"^( *{first}.*\n)((?:.*\n)*?)( *{second}.*\n)"
    return lambda text: re.sub(pattern, r"\3\1\2", text, flags=re.M)


@pytest.fixture(scope="module")
def biased() -> Prepared:
    """A kernel that has all parts: turns, tiles that are added, loops with and without checks, rows of one tile at a time."""
    score = f"where(k <= q, {DOT} + B[h, q, k], -inf)"
    sizes = {"S": 208}
    with patch.object(gluon_shared, "SHARED", 90_000):
        prepared = Prepared(Case(of(score, "B: f16[2, S, S]", sizes=SQUARE), sizes, 3))
        assert "drawn = gl.allocate_shared_memory(gl.int32, [1, 1]" in prepared.source.text
    assert not failure(prepared, 0, str)
    return prepared


def sound(name: str, text: str) -> Prepared:
    """The kernel of a case, which has some text and no mistake."""
    prepared = Prepared(CASES[name])
    assert text in prepared.source.text
    assert not failure(prepared, 0, str)
    return prepared


@pytest.fixture(scope="module")
def gated() -> Prepared:
    """A kernel whose end reads a tile of rows."""
    return sound("gated_3", "G_tiles_closing")


@pytest.fixture(scope="module")
def sloped() -> Prepared:
    """A kernel whose weights read a row of the columns that no tile changes."""
    return sound("alibi", "_kept.index(GROUP_ID).load(COLS)")


@pytest.fixture(scope="module")
def spread() -> Prepared:
    """A kernel whose references lag, and scores that pass them."""
    return sound("spread_scores", "_rescale_")


def failure(prepared: Prepared, order: int, change: Callable[[str], str]) -> str:
    """What goes wrong, if anything."""
    try:
        result = prepared.run(order, change)
    except (MachineError, AssertionError, TypeError) as error:
        return str(error)
    good = result["same_places"] and max(result["errors"].values()) < tolerance("f16")
    return "" if good else str(result)


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        *(("biased", n) for n in (*MISTAKES, *EARLY)),
        *(("gated", n) for n in CLOSING),
        *(("sloped", n) for n in KEPT),
        *(("spread", n) for n in LAGGING),
    ],
)
def test_mistakes_are_seen(kernel: str, name: str, request: pytest.FixtureRequest) -> None:
    prepared: Prepared = request.getfixturevalue(kernel)
    change = moved(name) if name in EARLY else replaced(name)
    assert change(prepared.source.text) != prepared.source.text
    for order in range(2):
        assert failure(prepared, order, change)
