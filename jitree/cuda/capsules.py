"""DLPack capsules over device memory, made and taken without another library's help.

https://dmlc.github.io/dlpack/latest/c_api.html has the layout of the records.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from typing import Any, Final, NamedTuple

_NAME: Final = b"dltensor"
_VERSIONED_NAME: Final = b"dltensor_versioned"
_USED: Final = b"used_dltensor"
_USED_VERSIONED: Final = b"used_dltensor_versioned"
VERSION: Final = (1, 0)
"""Of the versioned record that is written."""
_READ_ONLY: Final = 1


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_kind", ctypes.c_int32),
        ("device_number", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


class Contents(NamedTuple):
    """A dense tensor as capsules describe it."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    """In elements; None = row-major without gaps."""
    code: int
    bits: int
    lanes: int
    device: tuple[int, int]
    read_only: bool


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_api = ctypes.pythonapi
_new = _api.PyCapsule_New
_new.restype = ctypes.py_object
_new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_SetName", _api))

_exported: Final[dict[int, tuple[object, ...]]] = {}
"""What lives until a record's deleter is called, by the number in its context."""
_numbers: Final = itertools.count(1)


def make(contents: Contents, keeper: object, max_version: tuple[int, int] | None) -> Any:
    """A capsule over memory that ``keeper`` keeps until the consumer has done with it."""
    number = next(_numbers)
    rank = len(contents.shape)
    shape = (ctypes.c_int64 * rank)(*contents.shape)
    strides = (ctypes.c_int64 * rank)(*_row_major(contents.shape))
    tensor = _Tensor(
        contents.address, *contents.device, rank, contents.code, contents.bits, contents.lanes,
        ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64)),
        ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64)), 0,
    )  # fmt: skip
    record: _Managed | _Versioned
    if max_version is not None and max_version[0] >= VERSION[0]:
        flags = _READ_ONLY if contents.read_only else 0
        record = _Versioned(*VERSION, number, ctypes.cast(_release_versioned, ctypes.c_void_p), flags, tensor)
        name = _VERSIONED_NAME
    else:
        record = _Managed(tensor, number, ctypes.cast(_release, ctypes.c_void_p))
        name = _NAME
    _exported[number] = (record, shape, strides, keeper)
    return _new(ctypes.addressof(record), name, ctypes.cast(_drop_capsule, ctypes.c_void_p))


class Taken:
    """A capsule's tensor, which is given back when this object dies."""

    def __init__(self, capsule: Any) -> None:
        """ValueError for what is no unused capsule of DLPack, or one of a version that is not known."""
        self._deleter: Callable[[int], None] | None = None
        address = id(capsule)
        if _is_valid(address, _VERSIONED_NAME):
            versioned = _Versioned.from_address(_pointer(address, _VERSIONED_NAME))
            if versioned.major != VERSION[0]:
                raise ValueError(f"a DLPack capsule of version {versioned.major}.{versioned.minor}")
            record: _Managed | _Versioned = versioned
            read_only = bool(versioned.flags & _READ_ONLY)
            _set_name(address, _USED_VERSIONED)
        elif _is_valid(address, _NAME):
            record = _Managed.from_address(_pointer(address, _NAME))
            read_only = False
            _set_name(address, _USED)
        else:
            raise ValueError("no DLPack capsule, or one that has been used already")
        self._address = ctypes.addressof(record)
        if record.deleter:
            self._deleter = _Deleter(record.deleter)
        tensor = record.tensor
        strides = tuple(tensor.strides[: tensor.rank]) if tensor.strides else None
        self.contents = Contents(
            (tensor.data or 0) + tensor.byte_offset, tuple(tensor.shape[: tensor.rank]), strides, tensor.code,
            tensor.bits, tensor.lanes, (tensor.device_kind, tensor.device_number), read_only,
        )  # fmt: skip

    def __del__(self) -> None:
        deleter, self._deleter = self._deleter, None
        if deleter is not None:
            deleter(self._address)


def _drop_record(address: int) -> None:
    _exported.pop(_Managed.from_address(address).context, None)


def _drop_versioned_record(address: int) -> None:
    _exported.pop(_Versioned.from_address(address).context, None)


def _drop_unused(capsule: int) -> None:
    """The end of a capsule that nobody has used."""
    if _is_valid(capsule, _VERSIONED_NAME):
        _drop_versioned_record(_pointer(capsule, _VERSIONED_NAME))
    elif _is_valid(capsule, _NAME):
        _drop_record(_pointer(capsule, _NAME))


_release: Final = _Deleter(_drop_record)
_release_versioned: Final = _Deleter(_drop_versioned_record)
_drop_capsule: Final = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_drop_unused)


def _row_major(shape: tuple[int, ...]) -> list[int]:
    strides = [1] * len(shape)
    for index in range(len(shape) - 1, 0, -1):
        strides[index - 1] = strides[index] * max(1, shape[index])
    return strides


def is_row_major(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> bool:
    """Whether elements lie behind each other without gaps; ``strides`` in elements."""
    if strides is None or 0 in shape:
        return True
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
