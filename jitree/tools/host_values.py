"""Values as the command line reads, prints, stores and compares them: plain host data, no session.

``run`` makes device values of parsed inputs and host values of results; everything between text and
these classes needs no module and no device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from jitree.types import ElementType, format_shaped_type

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Scalar:
    type_name: str
    """``i32``, ``i64``, ``f32`` or ``f64``."""
    value: int | float


@dataclass(frozen=True, slots=True)
class Null:
    """A null reference."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """``(ignored)``: a null input, or an expected value that any result satisfies."""


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A dense row-major tensor; ``data`` holds its bytes (elements below 8 bits packed, low bits first)."""

    element_type: ElementType
    shape: tuple[int, ...]
    data: Bytes

    @property
    def element_count(self) -> int:
        return count_elements(self.shape)

    @property
    def shaped_type(self) -> str:
        return format_shaped_type(self.shape, self.element_type)


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """Bytes without shape: a ``hal.buffer`` or a ``vm.buffer``."""

    type_name: str
    data: Bytes


@dataclass(frozen=True, slots=True)
class List:
    """A ``vm.list``."""

    items: tuple[HostValue, ...]


@dataclass(frozen=True, slots=True)
class Opaque:
    """A reference of a type without contents that could be shown."""

    type_name: str


HostValue = Scalar | Null | Ignored | Tensor | Buffer | List | Opaque

NULL: Final = Null()
IGNORED: Final = Ignored()


def count_elements(shape: tuple[int, ...]) -> int:
    count = 1
    for dimension in shape:
        count *= dimension
    return count


def to_bytes(array: npt.NDArray[Any]) -> Bytes:
    """The bytes of an array in row-major order; shares memory where the array is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def unpack_integers(data: Bytes, row: ElementType, count: int) -> npt.NDArray[np.int16]:
    """The values of ``count`` packed elements of fewer than 8 bits."""
    bits = np.unpackbits(data, bitorder="little")[: count * row.bits].reshape(count, row.bits)
    values = bits.astype(np.int16) @ (1 << np.arange(row.bits, dtype=np.int16))
    if row.name.startswith("u"):
        return values.astype(np.int16)
    return np.where(values >> (row.bits - 1), values - (1 << row.bits), values).astype(np.int16)


def pack_integers(values: npt.NDArray[np.int16], row: ElementType) -> Bytes:
    """The inverse of :func:`unpack_integers`."""
    bits = (values[:, None] >> np.arange(row.bits, dtype=np.int16)) & 1
    return np.packbits(bits.astype(np.uint8).reshape(-1), bitorder="little")


def is_packed(row: ElementType) -> bool:
    return row.bits % 8 != 0


def is_float(row: ElementType) -> bool:
    return 0x21 <= row.numerical_class <= 0x28 and row.numerical_class != 0x23


def is_integer(row: ElementType) -> bool:
    """True for i2 to ui64; ``i1`` is a boolean and prints as hex."""
    return row.numerical_class in (0x10, 0x11, 0x12)


def is_unsigned(row: ElementType) -> bool:
    return row.numerical_class == 0x12


def elements(tensor: Tensor) -> npt.NDArray[Any]:
    """The elements as a flat array: integers as such, floats of any kind as f32 or f64 (exact).

    NaN of the types below 32 bits has no sign: iree-run-module drops it.
    """
    row, count = tensor.element_type, tensor.element_count
    if is_integer(row) and is_packed(row):
        return unpack_integers(tensor.data, row, count)
    flat = np.ascontiguousarray(tensor.data).view(row.dtype)[:count]
    if is_float(row) and row.bits < 32:
        wide = flat.astype(np.float32)
        return np.where(np.isnan(wide), np.float32("nan"), wide)
    return flat


def element_bytes(tensor: Tensor) -> Iterator[bytes]:
    """The bytes of each element in turn, for the types that print as hex."""
    size = (tensor.element_type.bits + 7) // 8
    raw = tensor.data.tobytes()
    for start in range(0, tensor.element_count * size, size):
        yield raw[start : start + size]
