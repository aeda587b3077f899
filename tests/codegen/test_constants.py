"""Constants of block programs: what Python would not compute is computed when code is generated."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flashlight.codegen.builder import Builder
from flashlight.ir.dtypes import DType


@pytest.mark.parametrize("x", [1.0, -2.0, 0.0, math.inf, math.nan])
@pytest.mark.parametrize("y", [0.0, -0.0, 2.0])
def test_quotients(x: float, y: float) -> None:
    b = Builder()
    quotient = b.compute("div", b.constant(x, DType.F32), b.constant(y, DType.F32))
    with np.errstate(all="ignore"):
        expected = np.float64(x) / np.float64(y)
    found = b.literal(quotient)
    assert isinstance(found, float)
    np.testing.assert_equal(found, float(expected))
