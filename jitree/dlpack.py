"""DLPack exchange, including the element types that numpy itself does not exchange.

Numpy makes and takes the capsules, so that it owns whatever has to be freed; arrays of the other types
travel as unsigned integers of the same width, and only the type in the capsule's tensor record is replaced.
https://dmlc.github.io/dlpack/latest/c_api.html has the layout of the records.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from jitree.errors import InvalidArgumentError

CPU_DEVICE: Final = (1, 0)
"""(kDLCPU, 0)"""

_UNSIGNED: Final = 1
_CODES: Final = {
    "bfloat16": 4,
    "float8_e4m3fn": 10,
    "float8_e4m3fnuz": 11,
    "float8_e5m2": 12,
    "float8_e5m2fnuz": 13,
    "float8_e8m0fnu": 14,
}
"""Type codes of dlpack.h 1.1 by name in ml_dtypes."""
_NAMES: Final = {code: name for name, code in _CODES.items()}


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    """DLTensor up to the data type, and the start of DLManagedTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_kind", ctypes.c_int32),
        ("device_number", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("dtype", _DataType),
    )


class _VersionedTensor(ctypes.Structure):
    """DLManagedTensorVersioned up to the data type."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes = (ctypes.py_object, ctypes.c_char_p)
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


def _data_type(capsule: Any) -> Any:
    """The type in a capsule's tensor, to be read or replaced; None if it is no capsule of DLPack."""
    if _is_valid(capsule, b"dltensor"):
        return _Tensor.from_address(_pointer(capsule, b"dltensor")).dtype
    if _is_valid(capsule, b"dltensor_versioned"):
        return _VersionedTensor.from_address(_pointer(capsule, b"dltensor_versioned")).tensor.dtype
    return None


def export(array: npt.NDArray[Any], **options: Any) -> Any:
    """A capsule over an array's memory; ``options`` as of ``__dlpack__``. BufferError when numpy cannot."""
    code = _CODES.get(array.dtype.name)
    if code is None:
        return array.__dlpack__(**options)
    capsule = array.view(f"u{array.dtype.itemsize}").__dlpack__(**options)
    _data_type(capsule).code = code
    return capsule


def is_importable(value: object) -> bool:
    """Whether a value has the DLPack protocol and lies in host memory."""
    device = getattr(value, "__dlpack_device__", None)
    return device is not None and device()[0] == CPU_DEVICE[0]


class _Exchange:
    """A producer whose capsules numpy understands."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer
        self.name: str | None = None
        """Of the type that was replaced."""

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self._producer.__dlpack__(**options)
        dtype = _data_type(capsule)
        if dtype is not None and dtype.code in _NAMES and dtype.lanes == 1:
            self.name = _NAMES[dtype.code]
            dtype.code = _UNSIGNED
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self._producer.__dlpack_device__()
        return device


def import_array(value: Any) -> npt.NDArray[Any]:
    """A numpy array over the memory of a DLPack producer. INVALID_ARGUMENT for types that no array has."""
    exchange = _Exchange(value)
    try:
        array = np.from_dlpack(exchange)
    except (BufferError, RuntimeError) as error:
        raise InvalidArgumentError(
            f"an array of type {type(value).__name__} cannot be taken: {error}"
        ) from error
    if exchange.name is None:
        return array
    import ml_dtypes

    return array.view(getattr(ml_dtypes, exchange.name))
