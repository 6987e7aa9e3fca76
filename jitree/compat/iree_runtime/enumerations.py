"""Enumerations with the members and the arithmetic that iree.runtime gives them.

``|`` and ``&`` take members or integers and give an integer; a member does not equal its number.
"""

from __future__ import annotations

import operator
from enum import Enum, IntFlag
from typing import TYPE_CHECKING, Any, Final

from jitree.hal import enums
from jitree.types import element_type

if TYPE_CHECKING:
    import numpy as np


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
