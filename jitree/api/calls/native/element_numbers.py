"""Python's side of :mod:`jitree.api.calls.native.sequences`: which numbers machine code makes elements of."""

from __future__ import annotations

from typing import Final

from jitree.api.calls.native.layout import PASS_BF16, PASS_F16, PASS_F32, PASS_F64, PASS_I64
from jitree.types import CLASS_BOOLEAN, CLASS_UNSIGNED, INTEGER_CLASSES, ElementType

_FLOATS: Final = {
    "f16": (PASS_F16, 1 << 11), "bf16": (PASS_BF16, 1 << 8),
    "f32": (PASS_F32, 1 << 24), "f64": (PASS_F64, 1 << 53),
}  # fmt: skip
"""How they are passed, and up to which integer they have all."""


def numbers_of(row: ElementType) -> dict[str, int]:
    """Fields of an ARGUMENT and a DTYPE of elements of a type. Types of numpy live as long as the process."""
    dtype = row.dtype
    scalar = id(dtype.type) if dtype.isbuiltin == 1 else 0
    if row.name in _FLOATS:
        kind, exact = _FLOATS[row.name]
        return {"numbers": kind, "low": -exact, "high": exact, "scalar_type": scalar}
    numerical_class = row.numerical_class
    if numerical_class == CLASS_BOOLEAN:
        return {"numbers": PASS_I64, "low": 0, "high": 1, "scalar_type": scalar}
    if numerical_class not in INTEGER_CLASSES:
        return {}
    is_unsigned = numerical_class == CLASS_UNSIGNED
    high = (1 << min(63, row.bits - (not is_unsigned))) - 1
    low = 0 if is_unsigned else -1 - high
    return {"numbers": PASS_I64, "low": low, "high": high, "scalar_type": scalar}
