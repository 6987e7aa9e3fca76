"""Element types of tensors: number, name, size and numpy dtype, one row each.

A number is ``class << 24 | bits`` (the numerical class says how the bits are read). Tensors are dense and
row-major; elements below 8 bits are packed, low bits first.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from operator import index
from typing import Any, Final

import numpy as np

from jitree.base.records import NamedTuple
from jitree.errors import OutOfRangeError

CLASS_OPAQUE: Final = 0x00
CLASS_INTEGER: Final = 0x10
CLASS_SIGNED: Final = 0x11
CLASS_UNSIGNED: Final = 0x12
CLASS_BOOLEAN: Final = 0x13
INTEGER_CLASSES: Final = frozenset((CLASS_INTEGER, CLASS_SIGNED, CLASS_UNSIGNED, CLASS_BOOLEAN))

ENCODING_OPAQUE: Final = 0
ENCODING_DENSE: Final = 1

LARGEST_LENGTH: Final = 2**63 - 1
"""Bytes of a tensor: what programs and numpy count with."""


class ElementType(NamedTuple):
    code: int
    name: str
    """The name in ``4xf32`` and in printed values."""
    numpy_name: str
    """Name of the numpy or ml_dtypes type of one element; for packed sub-byte types that of the storage."""

    @property
    def bits(self) -> int:
        return self.code & 0xFF

    @property
    def numerical_class(self) -> int:
        return self.code >> 24

    @property
    def dtype(self) -> np.dtype[Any]:
        return _dtype(self.numpy_name)

    def byte_length(self, shape: Sequence[int]) -> int:
        """Bytes of a tensor of densely packed elements, exactly: the one place that computes them.

        OUT_OF_RANGE for negative dimensions and for shapes whose bytes cannot be counted, which
        programs get from sizes that have wrapped.
        """
        count = prod(map(index, shape))
        length = (count * (self.code & 0xFF) + 7) >> 3
        if max(count, length) > LARGEST_LENGTH or (shape and min(shape) <= 0):
            self._check_shape(shape)
        return length

    def _check_shape(self, shape: Sequence[int]) -> None:
        """Empty tensors have to fit as well: numpy does not make arrays of other shapes."""
        text = format_shaped_type(tuple(shape), self)
        for axis, size in enumerate(shape):
            if size < 0:
                raise OutOfRangeError(f"shape `{text}`: dimension {axis} is negative ({size})")
        if prod(index(size) or 1 for size in shape) * max(self.bits, 8) // 8 > LARGEST_LENGTH:
            raise OutOfRangeError(f"shape `{text}`: its byte length overflows 64 bits")


@cache
def _dtype(name: str) -> np.dtype[Any]:
    if name in ("bfloat16", "int2", "int4", "uint4") or name.startswith("float8"):
        import ml_dtypes  # 10 ms: only programs that use these types pay for it

        packed: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return packed
    return np.dtype(name)


ELEMENT_TYPES: Final = tuple(
    ElementType._make((numerical_class << 24 | bits, name, numpy_name))
    for numerical_class, bits, name, numpy_name in (
        (0x13, 8, "i1", "bool"), (0x10, 2, "i2", "int2"), (0x10, 4, "i4", "int4"), (0x10, 8, "i8", "int8"),
        (0x10, 16, "i16", "int16"), (0x10, 32, "i32", "int32"), (0x10, 64, "i64", "int64"),
        (0x11, 4, "si4", "int4"), (0x11, 8, "si8", "int8"), (0x11, 16, "si16", "int16"),
        (0x11, 32, "si32", "int32"), (0x11, 64, "si64", "int64"), (0x12, 4, "ui4", "uint4"),
        (0x12, 8, "ui8", "uint8"), (0x12, 16, "ui16", "uint16"), (0x12, 32, "ui32", "uint32"),
        (0x12, 64, "ui64", "uint64"), (0x21, 16, "f16", "float16"), (0x21, 32, "f32", "float32"),
        (0x21, 64, "f64", "float64"), (0x22, 16, "bf16", "bfloat16"), (0x23, 64, "cf64", "complex64"),
        (0x23, 128, "cf128", "complex128"), (0x24, 8, "f8E5M2", "float8_e5m2"),
        (0x25, 8, "f8E4M3FN", "float8_e4m3fn"), (0x26, 8, "f8E5M2FNUZ", "float8_e5m2fnuz"),
        (0x27, 8, "f8E4M3FNUZ", "float8_e4m3fnuz"), (0x28, 8, "f8E8M0FNU", "float8_e8m0fnu"),
        (0x00, 8, "*8", "V1"), (0x00, 16, "*16", "V2"), (0x00, 32, "*32", "V4"), (0x00, 64, "*64", "V8"),
    )
)  # fmt: skip
"""Numbers and names: the element types that compiled modules pass to ``hal.buffer_view.create``."""

BY_CODE: Final = {row.code: row for row in ELEMENT_TYPES}
BY_NAME: Final = {row.name: row for row in ELEMENT_TYPES} | {
    "complex<f32>": BY_CODE[0x23000040],
    "complex<f64>": BY_CODE[0x23000080],
}
_NUMPY_PREFERENCE: Final = {
    row.numpy_name: row for row in reversed(ELEMENT_TYPES) if row.code >> 24 != CLASS_SIGNED
}


def element_type(code: int) -> ElementType:
    """The row of an element type number; unknown numbers become opaque rows of that size."""
    row = BY_CODE.get(code)
    if row is None:
        row = ElementType(code, f"*{code & 0xFF}", f"V{max(1, (code & 0xFF) // 8)}")
    return row


def element_type_of(dtype: np.dtype[Any]) -> ElementType | None:
    """The element type of a numpy dtype: signless for signed integers, i1 for bool; None if there is none."""
    return _NUMPY_PREFERENCE.get(dtype.name)


def opaque_type_of(dtype: np.dtype[Any]) -> ElementType | None:
    """Finds the element type of bytes without a type, as numpy writes unknown numbers; None for other dtypes,
    and for more bytes than an element type has."""
    is_plain = dtype.kind == "V" and dtype.names is None and dtype.subdtype is None
    if not is_plain or not dtype.name.startswith("void") or not 0 < dtype.itemsize < 32:
        return None
    return element_type(dtype.itemsize * 8)


def format_shaped_type(shape: tuple[int, ...], row: ElementType) -> str:
    """((4, 2), f32) → ``"4x2xf32"``."""
    return "".join(f"{d}x" for d in shape) + row.name


def is_packed(row: ElementType) -> bool:
    """Whether elements share bytes."""
    return row.code & 7 != 0
