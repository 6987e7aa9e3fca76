"""Element types by numpy's name, by the name in ``iree.abi``, and by number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes  # noqa: F401  # numpy knows the names of its types from then on, as programs expect
import numpy as np

from jitree.compat.iree_runtime.enumerations import HalElementType
from jitree.errors import pass_interruption
from jitree.types import element_type_of

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
