"""Converts elements of dense tensors from bytes to numpy values and to text.

Elements below 8 bits are packed, low bits first. The text is byte for byte that of IREE's tools.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from jitree.base.records import NamedTuple
from jitree.types import (
    CLASS_INTEGER,
    CLASS_SIGNED,
    CLASS_UNSIGNED,
    ElementType,
    format_shaped_type,
    is_packed,
)

if TYPE_CHECKING:
    import numpy.typing as npt

Bytes: TypeAlias = "npt.NDArray[np.uint8]"

DEFAULT_MAX_ELEMENT_COUNT: Final = 1024
"""Elements of a tensor that are printed unless asked otherwise."""

_TOGETHER: Final = 1 << 20
"""Packed elements that are taken apart at once."""
_FIRST_FLOAT: Final = 0x21
_LAST_FLOAT: Final = 0x28
_COMPLEX: Final = 0x23

Mask: TypeAlias = "npt.NDArray[np.bool_]"


def is_float(row: ElementType) -> bool:
    return _FIRST_FLOAT <= row.numerical_class <= _LAST_FLOAT and row.numerical_class != _COMPLEX


def is_integer(row: ElementType) -> bool:
    """True for i2 to ui64; ``i1`` is a boolean and prints as hex."""
    return row.numerical_class in (CLASS_INTEGER, CLASS_SIGNED, CLASS_UNSIGNED)


def count_elements(shape: tuple[int, ...]) -> int:
    """The number of elements of a shape that is known to be possible (``ElementType.byte_length``)."""
    return math.prod(shape)


def unpack_integers(data: Bytes, row: ElementType, count: int) -> npt.NDArray[np.int16]:
    """The values of ``count`` packed elements of fewer than 8 bits."""
    from jitree.base.copying import ranges

    values = np.empty(count, np.int16)
    for part in ranges(count, _TOGETHER):
        size = part.stop - part.start
        values[part] = _unpacked(data[part.start * row.bits // 8 :][: size * row.bits + 7 >> 3], row, size)
    return values


def _unpacked(data: Bytes, row: ElementType, count: int) -> npt.NDArray[np.int16]:
    bits = np.unpackbits(data, bitorder="little")[: count * row.bits].reshape(count, row.bits)
    values = bits.astype(np.int16) @ (1 << np.arange(row.bits, dtype=np.int16))
    if row.numerical_class == CLASS_UNSIGNED:
        return values.astype(np.int16)
    return np.where(values >> (row.bits - 1), values - (1 << row.bits), values).astype(np.int16)


def pack_integers(values: npt.NDArray[Any], row: ElementType) -> Bytes:
    """The inverse of :func:`unpack_integers`, of a flat array of any integers."""
    from jitree.base.copying import ranges

    data = np.empty(values.size * row.bits + 7 >> 3, np.uint8)
    for part in ranges(values.size, _TOGETHER):
        shifts = np.arange(row.bits, dtype=np.int16)
        bits = (values[part].astype(np.int16)[:, None] >> shifts) & 1
        packed = np.packbits(bits.astype(np.uint8).reshape(-1), bitorder="little")
        data[part.start * row.bits // 8 :][: packed.size] = packed
    return data


def values(row: ElementType, data: Bytes, count: int) -> npt.NDArray[Any]:
    """The elements as a flat array: integers as such, floats of any kind as f32 or f64 (exact).

    NaN of the types below 32 bits has no sign: IREE's tools drop it.
    """
    if is_integer(row) and is_packed(row):
        return unpack_integers(data, row, count)
    flat = np.ascontiguousarray(data).view(row.dtype)[:count]
    if is_float(row) and row.bits < 32:
        wide = flat.astype(np.float32)
        return np.where(np.isnan(wide), np.float32("nan"), wide)
    return flat


def element_bytes(row: ElementType, data: Bytes, count: int) -> Iterator[bytes]:
    """The bytes of each element in turn, for the types that print as hex."""
    size = (row.bits + 7) // 8
    raw = data.tobytes()
    for number in range(count):
        yield raw[number * size : number * size + size]


class _Budget:
    """How many elements may still be printed; a negative count is no limit."""

    def __init__(self, count: int) -> None:
        self.left = count if count >= 0 else sys.maxsize


def element_texts(row: ElementType, data: Bytes, count: int) -> Iterator[str]:
    """One text per element: decimal integers, ``%G`` floats, hex of the bytes for everything else."""
    if is_float(row):
        return (float_text(value) for value in values(row, data, count))
    if is_integer(row):
        return (str(value) for value in values(row, data, count))
    return (raw.hex().upper() for raw in element_bytes(row, data, count))


def float_text(value: float) -> str:
    """C ``%G``: ``0.1``, ``1E+10``, ``-0``, ``NAN``, ``-INF``; unlike Python's it signs a negative NaN."""
    if value != value:
        return "-NAN" if math.copysign(1.0, value) < 0 else "NAN"
    return "%G" % value  # noqa: UP031 - the format is C's


def elements_text(row: ElementType, shape: tuple[int, ...], data: Bytes, max_element_count: int) -> str:
    """The elements with brackets around inner dimensions; elided after ``max_element_count`` of them."""
    texts = element_texts(row, data, count_elements(shape))
    return "".join(_dimension(shape, texts, _Budget(max_element_count)))


def _dimension(shape: tuple[int, ...], texts: Iterator[str], budget: _Budget) -> Iterator[str]:
    if len(shape) <= 1:
        length = shape[0] if shape else 1
        shown = min(length, budget.left)
        budget.left -= shown
        yield " ".join(islice(texts, shown))
        if shown < length:
            yield "..."
        return
    for _ in range(shape[0]):
        yield "["
        yield from _dimension(shape[1:], texts, budget)
        yield "]"


class HostTensor(NamedTuple):
    """Holds a dense row-major tensor. ``data`` has its bytes (elements below 8 bits packed, low bits
    first)."""

    element_type: ElementType
    shape: tuple[int, ...]
    data: Bytes

    @property
    def element_count(self) -> int:
        return count_elements(self.shape)

    @property
    def values(self) -> npt.NDArray[Any]:
        """The elements as a flat array, see :func:`jitree.base.elements.values`."""
        return values(self.element_type, self.data, self.element_count)

    @property
    def shaped_type(self) -> str:
        return format_shaped_type(self.shape, self.element_type)

    def text(self, max_element_count: int = DEFAULT_MAX_ELEMENT_COUNT) -> str:
        """``4xf32=1 2 3 4``; elided after ``max_element_count`` elements."""
        contents = elements_text(self.element_type, self.shape, self.data, max_element_count)
        return f"{self.shaped_type}={contents}"

    def element_text(self, index: int) -> str:
        """Text of the element at a flat index."""
        texts = element_texts(self.element_type, self.data, self.element_count)
        return next(islice(texts, index, None))

    def has_bits_of(self, other: HostTensor) -> Mask:
        """Tells which elements are those of a tensor of that size, bit for bit."""
        if is_packed(self.element_type):
            return np.asarray(self.values == other.values)
        size = self.element_type.bits // 8
        equal = np.asarray(self.data).reshape(-1, size) == np.asarray(other.data).reshape(-1, size)
        return np.asarray(equal.all(axis=1))


def near(left: npt.NDArray[Any], right: npt.NDArray[Any], atol: float, rtol: float) -> Mask:
    """Which numbers differ by at most ``atol + rtol * abs(right)``; NaN equals NaN."""
    left, right = left.astype(np.float64), right.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        close = np.abs(left - right) <= atol + rtol * np.abs(right)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    return np.asarray(same | close & np.isfinite(right))
