"""Enumerations, and element types by numpy's name, ``iree.abi``'s and number.

``|`` and ``&`` of enumerations take members or integers and give an integer; a member does not equal its
number.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from enum import Enum, IntFlag
from typing import Any, Final

import ml_dtypes  # noqa: F401  # numpy knows the names of its types from then on, as programs expect
import numpy as np

from jitree.errors import pass_interruption
from jitree.hal import enums
from jitree.types import element_type, element_type_of


def _number(value: Any) -> int:
    """TypeError for what is neither a member nor an integer."""
    return int(value.value) if isinstance(value, Enum) else operator.index(value)


class _NumberedEnum(Enum):
    def __int__(self) -> int:
        return int(self.value)

    def __or__(self, other: Any) -> int:
        return int(self) | _number(other)

    def __and__(self, other: Any) -> int:
        return int(self) & _number(other)

    __ror__, __rand__, __repr__ = __or__, __and__, Enum.__str__


def _named(name: str, members: dict[str, int]) -> Any:
    """The numbers are those of jitree's own enumeration."""
    made: Any = _NumberedEnum(name, members, module=__name__)  # type: ignore[call-arg]
    return made


def _members(flags: Any, *, without: frozenset[str] = frozenset()) -> dict[str, int]:
    return {name: int(value) for name, value in flags.__members__.items() if name not in without}


BufferUsage: Final = _named("BufferUsage", _members(enums.BufferUsage))
MemoryType: Final = _named("MemoryType", _members(enums.MemoryType))
BufferCompatibility: Final = _named("BufferCompatibility", _members(enums.BufferCompatibility))
_OTHER_ACCESS: Final = frozenset(("MAY_ALIAS", "UNALIGNED", "ANY", "PRIVATE"))
MemoryAccess: Final = _named("MemoryAccess", _members(enums.MemoryAccess, without=_OTHER_ACCESS))


def _code(value: Any) -> int:
    """The number of an element type, which has no sign."""
    code = _number(value)
    if not 0 <= code < 2**32:
        raise TypeError(f"{code} is the number of no element type")
    return code


class HalElementType(_NumberedEnum):
    """Element types of buffer views."""

    NONE = 0x0
    OPAQUE_8 = 0x8
    OPAQUE_16 = 0x10
    OPAQUE_32 = 0x20
    OPAQUE_64 = 0x40
    INT_4 = 0x10000004
    INT_8 = 0x10000008
    INT_16 = 0x10000010
    INT_32 = 0x10000020
    INT_64 = 0x10000040
    SINT_4 = 0x11000004
    SINT_8 = 0x11000008
    SINT_16 = 0x11000010
    SINT_32 = 0x11000020
    SINT_64 = 0x11000040
    UINT_4 = 0x12000004
    UINT_8 = 0x12000008
    UINT_16 = 0x12000010
    UINT_32 = 0x12000020
    UINT_64 = 0x12000040
    BOOL_8 = 0x13000008
    FLOAT_16 = 0x21000010
    FLOAT_32 = 0x21000020
    FLOAT_64 = 0x21000040
    BFLOAT_16 = 0x22000010
    COMPLEX_64 = 0x23000040
    COMPLEX_128 = 0x23000080
    FLOAT_8_E5M2 = 0x24000008
    FLOAT_8_E4M3_FN = 0x25000008
    FLOAT_8_E5M2_FNUZ = 0x26000008
    FLOAT_8_E4M3_FNUZ = 0x27000008
    FLOAT_8_E8M0_FNU = 0x28000008

    @staticmethod
    def map_to_dtype(value: HalElementType | int) -> np.dtype[Any]:
        """The numpy type of one element. ValueError where there is none."""
        row = element_type(_code(value))
        if row.bits % 8 or row.numerical_class == 0:
            raise ValueError("Unsupported VM Buffer -> numpy dtype mapping")
        return row.dtype

    @staticmethod
    def is_byte_aligned(value: HalElementType | int) -> bool:
        return element_type(_code(value)).bits % 8 == 0

    @staticmethod
    def dense_byte_count(value: HalElementType | int) -> int:
        """Bytes of one element, a part of a byte counting as one."""
        return (element_type(_code(value)).bits + 7) // 8


class Linkage(Enum):
    """What a function of a module is to others."""

    INTERNAL = 0
    IMPORT = 1
    EXPORT = 2
    IMPORT_OPTIONAL = 3
    EXPORT_OPTIONAL = 4

    __repr__ = Enum.__str__


class SemaphoreCompatibility(IntFlag):
    """What can wait for and signal a semaphore together with a device."""

    NONE = 0x0
    HOST_WAIT = 0x1
    DEVICE_WAIT = 0x2
    HOST_SIGNAL = 0x4
    HOST_ONLY = 0x5
    DEVICE_SIGNAL = 0x8
    DEVICE_ONLY = 0xA
    ALL = 0xF


class ExternalTimepointType(IntFlag):
    """Kinds of events of other libraries."""

    NONE = 0
    ASYNC_PRIMITIVE = 1
    CUDA_EVENT = 2
    HIP_EVENT = 3


class ExternalTimepointFlags(IntFlag):
    NONE = 0


_SIGNED: Final = 0x01000000
"""Added to a signless integer type, it makes the signed one."""


@dataclass(frozen=True)
class DTypeInfo:
    """A numpy type and its names."""

    dtype: np.dtype[Any]
    name: str
    abi_type: str
    hal_type: HalElementType

    @property
    def is_integer(self) -> bool:
        return self.dtype.kind in "iu"

    @property
    def is_signed(self) -> bool:
        return self.dtype.kind == "i"

    @property
    def is_floating_point(self) -> bool:
        return self.dtype.kind == "f"

    @property
    def is_complex(self) -> bool:
        return self.dtype.kind == "c"


def _info(name: str, abi_type: str) -> DTypeInfo:
    dtype = np.dtype(name)
    hal_type = map_dtype_to_hal_element_type(dtype)
    assert hal_type is not None
    return DTypeInfo(dtype, name, abi_type, hal_type)


def map_dtype_to_hal_element_type(dtype: Any) -> HalElementType | None:
    """Signed numpy integers become signed elements. None for types that programs do not have."""
    try:
        kind = np.dtype(dtype)
    except TypeError as error:
        pass_interruption(error)
        return None
    row = None if kind.kind == "V" and kind.name.startswith("void") else element_type_of(kind)
    if row is None or row.bits % 8 or not kind.isnative:
        return None
    return HalElementType(row.code + (_SIGNED if kind.kind == "i" else 0))


_INFOS: Final = [
    _info(name, abi_type)
    for name, abi_type in (
        ("float16", "f16"), ("float32", "f32"), ("float64", "f64"), ("int8", "i8"), ("uint8", "i8"),
        ("int16", "i16"), ("uint16", "i16"), ("int32", "i32"), ("uint32", "i32"), ("int64", "i64"),
        ("uint64", "i64"), ("bool", "i1"), ("complex64", "complex<f32>"), ("complex128", "complex<f64>"),
    )
]  # fmt: skip
_BY_DTYPE: Final = {info.dtype: info for info in _INFOS}
_BY_NAME: Final = {info.name: info for info in _INFOS}
_BY_ABI_TYPE: Final = {info.abi_type: info for info in reversed(_INFOS)}
"""The signed one of two integers of a width, which stands first."""

DTYPE_TO_ABI_TYPE: Final = {info.dtype: info.abi_type for info in _INFOS}


def map_dtype_to_dtype_info(dtype: Any) -> DTypeInfo:
    """KeyError for types without a name in ``iree.abi``."""
    return _found(_BY_DTYPE, np.dtype(dtype), f"Numpy dtype {np.dtype(dtype)}")


def map_name_to_dtype_info(name: str) -> DTypeInfo:
    return _found(_BY_NAME, name, f"Numpy dtype name {name!r}")


def map_abi_type_to_dtype_info(abi_type: str) -> DTypeInfo:
    return _found(_BY_ABI_TYPE, abi_type, f"ABI type {abi_type!r}")


def _found(table: dict[Any, DTypeInfo], key: Any, what: str) -> DTypeInfo:
    try:
        return table[key]
    except KeyError:
        raise KeyError(f"{what} not found.") from None
