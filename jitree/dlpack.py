"""DLPack capsules, including the element types that numpy itself does not exchange.

https://dmlc.github.io/dlpack/latest/c_api.html: a capsule named ``dltensor`` holds a DLManagedTensor, one
named ``dltensor_versioned`` the same with version and flags; whoever takes it over renames it to ``used_…``
and calls the deleter when done.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from jitree.errors import InvalidArgumentError

CPU_DEVICE: Final = (1, 0)
"""(kDLCPU, 0)"""

_VERSION: Final = (1, 1)
_READ_ONLY: Final = 1
_CODES: Final = {
    # numpy or ml_dtypes name: (type code, bits)
    "bfloat16": (4, 16),
    "float8_e4m3fn": (10, 8), "float8_e4m3fnuz": (11, 8), "float8_e5m2": (12, 8), "float8_e5m2fnuz": (13, 8),
    "float8_e8m0fnu": (14, 8),
}  # fmt: skip
"""Of dlpack.h 1.1; what numpy exchanges itself is left to it."""
_NAMES: Final = {code: name for name, code in _CODES.items()}
_BASIC_KINDS: Final = {0: "int", 1: "uint", 2: "float", 5: "complex"}
_BOOL: Final = (6, 8)


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("number", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("rank", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


class _ManagedVersioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_LEGACY: Final = b"dltensor"
_VERSIONED: Final = b"dltensor_versioned"
_USED_LEGACY: Final = b"used_dltensor"
_USED_VERSIONED: Final = b"used_dltensor_versioned"

_api = ctypes.pythonapi
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_api.PyCapsule_IsValid.argtypes = (ctypes.py_object, ctypes.c_char_p)
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_api.PyCapsule_SetName.argtypes = (ctypes.py_object, ctypes.c_char_p)

_exported: dict[int, tuple[object, ...]] = {}
"""What exported tensors need, by the address of their record, until the consumer's deleter call."""


def _forget(address: int) -> None:
    _exported.pop(address, None)


_release = _Deleter(_forget)

_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)


def _forget_untaken(capsule: int) -> None:
    """A capsule that nobody took over still owns its tensor."""
    for name in (_LEGACY, _VERSIONED):
        if _is_valid(capsule, name):
            _forget(_pointer(capsule, name))


_destroy_capsule = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_forget_untaken)


def export(
    array: npt.NDArray[Any],
    *,
    max_version: tuple[int, int] | None,
    dl_device: tuple[int, int] | None,
    copy: bool | None,
) -> Any:
    """A capsule over an array's memory, as ``__dlpack__`` returns it. BufferError for what cannot be had."""
    if dl_device is not None and dl_device != CPU_DEVICE:
        raise BufferError(f"the array is in host memory; DLPack device {dl_device} cannot see it")
    if copy:
        array = array.copy()
    code = _CODES.get(array.dtype.name)
    if code is None:
        return array.__dlpack__()
    versioned = max_version is not None and max_version[0] >= _VERSION[0]
    if not versioned and not array.flags.writeable:
        raise BufferError("a read-only array needs a consumer that knows DLPack 1.0")
    record: Any = _ManagedVersioned() if versioned else _Managed()
    if versioned:
        record.major, record.minor = _VERSION
        record.flags = 0 if array.flags.writeable else _READ_ONLY
    return _capsule(array, code, record, _VERSIONED if versioned else _LEGACY)


def _capsule(array: npt.NDArray[Any], code: tuple[int, int], record: Any, name: bytes) -> Any:
    extents = (ctypes.c_int64 * max(1, array.ndim))(*array.shape)
    steps = (ctypes.c_int64 * max(1, array.ndim))(*(step // array.itemsize for step in array.strides))
    tensor = record.tensor
    tensor.data = array.ctypes.data
    tensor.device = _Device(*CPU_DEVICE)
    tensor.rank = array.ndim
    tensor.dtype = _DataType(*code, 1)
    tensor.shape = ctypes.cast(extents, ctypes.POINTER(ctypes.c_int64))
    tensor.strides = ctypes.cast(steps, ctypes.POINTER(ctypes.c_int64))
    record.deleter = _release
    address = ctypes.addressof(record)
    _exported[address] = (record, extents, steps, array)
    destructor = ctypes.cast(_destroy_capsule, ctypes.c_void_p)
    return _api.PyCapsule_New(address, name, destructor)


def is_importable(value: object) -> bool:
    """Whether a value has the DLPack protocol and lies in host memory."""
    device = getattr(value, "__dlpack_device__", None)
    return device is not None and device()[0] == CPU_DEVICE[0]


def import_array(value: Any) -> npt.NDArray[Any]:
    """A numpy array over the memory of a DLPack producer. INVALID_ARGUMENT for element types nobody has."""
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError):  # bfloat16 and float8, which numpy does not take
        return _import_capsule(value.__dlpack__())


class _Owner:
    """Calls the producer's deleter when the last array over its memory is gone."""

    def __init__(self, record: Any) -> None:
        self._record = record

    def __del__(self) -> None:
        if self._record.deleter:
            self._record.deleter(ctypes.addressof(self._record))


def _import_capsule(capsule: Any) -> npt.NDArray[Any]:
    versioned = bool(_api.PyCapsule_IsValid(capsule, _VERSIONED))
    kind: Any = _ManagedVersioned if versioned else _Managed
    address = _api.PyCapsule_GetPointer(capsule, _VERSIONED if versioned else _LEGACY)
    record = kind.from_address(address)
    dtype = _dtype(record.tensor.dtype)
    _api.PyCapsule_SetName(capsule, _USED_VERSIONED if versioned else _USED_LEGACY)
    owner = _Owner(record)
    tensor = record.tensor
    shape = tuple(tensor.shape[axis] for axis in range(tensor.rank))
    if math.prod(shape) == 0:
        return np.empty(shape, dtype)
    if not tensor.strides:
        strides = np.empty(shape, np.int8).strides
    else:
        strides = tuple(tensor.strides[axis] for axis in range(tensor.rank))
    extent = 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    memory = (ctypes.c_uint8 * (extent * dtype.itemsize)).from_address(tensor.data + tensor.byte_offset)
    memory._jitree_owner = owner
    flat = np.frombuffer(memory, np.uint8).view(dtype)
    steps = tuple(step * dtype.itemsize for step in strides)
    return np.lib.stride_tricks.as_strided(flat, shape, steps)


def _dtype(described: Any) -> np.dtype[Any]:
    code, bits = described.code, described.bits
    if described.lanes == 1:
        name = _NAMES.get((code, bits))
        if name is not None:
            import ml_dtypes

            dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
            return dtype
        if (code, bits) == _BOOL:
            return np.dtype(np.bool_)
        if code in _BASIC_KINDS:
            return np.dtype(f"{_BASIC_KINDS[code]}{bits}")
    raise InvalidArgumentError(
        f"no array can hold a DLPack tensor of type code {code}, {bits} bits and {described.lanes} lanes"
    )
