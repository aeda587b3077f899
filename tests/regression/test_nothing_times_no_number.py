"""0 times what is no number is NaN, and what a condition leaves out is not multiplied at all. Found by fuzzing."""

from __future__ import annotations

import pytest
import torch

from tests.fuzz.judge import kernels
from tests.support.program_text import program_text

DEAD_ROWS_TIMES_ZERO = program_text(
    names="q, k, v",
    make="    return rand(1, 2, 9, 8), rand(1, 2, 13, 8), rand(1, 2, 13, 8)",
    fn="""    i, j = torch.arange(9)[:, None], torch.arange(13)
    s = (q @ k.mT).masked_fill(j > i - 2, -torch.inf)
    return (s.softmax(-1) @ v) * 0.0""",
)

# The condition stood on the weights alone, beside values that are NaN where it does not hold.
CONDITION_OVER_A_PRODUCT = program_text(
    names="q, k, v",
    make="""    v = rand(1, 1, 40, 8)
    v[:, :, 30:] = 0
    return rand(1, 1, 17, 8), rand(1, 1, 40, 8), v""",
    fn="""    i, j = torch.arange(17)[:, None], torch.arange(40)
    keep = (j < 30) & (j <= i + 20)
    v = v / v.norm(dim=-1, keepdim=True)
    p = (q @ k.mT).softmax(-1)
    return torch.where(keep[..., None], p[..., None] * v[..., None, :, :], 0.0).sum(-2)""",
)

# Weights are set to 0 where a row has no key at all. Beside keys of a second tensor, that sum was divided by the row's NaN after its
# condition, and so NaN itself.
MASKED_KEYS_BESIDE_A_DEAD_ROW = program_text(
    names="q, k, v, mk, mv, keep",
    make="""    keep = torch.rand((5, 13), generator=gen) < 0.7
    keep[1] = False
    return rand(1, 2, 5, 8), rand(1, 2, 10, 8), rand(1, 2, 10, 8), rand(1, 2, 3, 8), rand(1, 2, 3, 8), keep""",
    fn="""    k, v = torch.cat([mk, k], 2), torch.cat([mv, v], 2)
    s = (q @ k.transpose(-1, -2)).masked_fill(~keep, -torch.inf)
    return s.softmax(-1).masked_fill(~keep, 0.0) @ v""",
)


@pytest.mark.parametrize(
    "text",
    [DEAD_ROWS_TIMES_ZERO, CONDITION_OVER_A_PRODUCT, MASKED_KEYS_BESIDE_A_DEAD_ROW],
    ids=["dead_rows_times_zero", "condition_over_a_product", "masked_keys_beside_a_dead_row"],
)
def test_numbers_and_what_is_none_are_where_eager_has_them(text: str) -> None:
    with torch.no_grad():
        verdict = kernels(text)
    assert verdict.regions == 1
    assert verdict.failure == ""
