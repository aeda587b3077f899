"""Element types, and the type in which a value of each is computed."""

from __future__ import annotations

import enum


class DType(enum.Enum):
    """An element type; the value is its spelling in program text."""

    BOOL = "bool"
    U8 = "u8"
    I8 = "i8"
    I16 = "i16"
    I32 = "i32"
    I64 = "i64"
    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"
    F64 = "f64"

    @property
    def is_float(self) -> bool:
        return self in _FLOAT_BITS

    @property
    def is_int(self) -> bool:
        return not self.is_float and self is not DType.BOOL

    @property
    def bits(self) -> int:
        """Size in memory, in bits (a bool takes a byte)."""
        return _BITS[self]

    @property
    def compute(self) -> DType:
        """The type arithmetic runs in: 16-bit floats are computed in f32, everything else as itself."""
        return DType.F32 if self in (DType.F16, DType.BF16) else self


_FLOAT_BITS = {DType.F16: 16, DType.BF16: 16, DType.F32: 32, DType.F64: 64}
_BITS = {
    **_FLOAT_BITS,
    DType.BOOL: 8,
    DType.U8: 8,
    DType.I8: 8,
    DType.I16: 16,
    DType.I32: 32,
    DType.I64: 64,
}
_RANK = [
    DType.BOOL,
    DType.U8,
    DType.I8,
    DType.I16,
    DType.I32,
    DType.I64,
    DType.F16,
    DType.BF16,
    DType.F32,
    DType.F64,
]


def promote(a: DType, b: DType) -> DType:
    """The common type of two operands, computed in their compute types (f16 with bf16 is f32)."""
    a, b = a.compute, b.compute
    return a if _RANK.index(a) >= _RANK.index(b) else b
