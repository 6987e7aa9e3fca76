"""Makes and takes DLPack capsules over device memory without another library's help."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any, Final, NamedTuple

from jitree.base.dlpack import DLTensor, Managed, Versioned, is_valid, pointer
from jitree.base.dlpack_names import NAME, VERSIONED_NAME
from jitree.base.finalizers import Finalizer

_USED: Final = b"used_dltensor"
_USED_VERSIONED: Final = b"used_dltensor_versioned"
VERSION: Final = (1, 0)
"""The version of the record that is written."""
_READ_ONLY: Final = 1


class Contents(NamedTuple):
    """Describes a dense tensor as capsules do."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    """Distances in elements; None: row-major without gaps."""
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
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_SetName", _api))

_exported: Final[dict[int, tuple[object, ...]]] = {}
"""What lives until a record's deleter is called, by the record's address."""


def make(contents: Contents, keeper: object, max_version: tuple[int, int] | None) -> Any:
    """A capsule over memory that ``keeper`` keeps until the consumer has done with it."""
    rank = len(contents.shape)
    shape = (ctypes.c_int64 * rank)(*contents.shape)
    strides = (ctypes.c_int64 * rank)(*_row_major(contents.shape))
    tensor = DLTensor(
        contents.address, *contents.device, rank, contents.code, contents.bits, contents.lanes,
        ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64)),
        ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64)), 0,
    )  # fmt: skip
    record: Managed | Versioned
    if max_version is not None and max_version[0] >= VERSION[0]:
        flags = _READ_ONLY if contents.read_only else 0
        record = Versioned(*VERSION, None, ctypes.cast(_release, ctypes.c_void_p), flags, tensor)
        name = VERSIONED_NAME
    else:
        record = Managed(tensor, None, ctypes.cast(_release, ctypes.c_void_p))
        name = NAME
    _exported[ctypes.addressof(record)] = (record, shape, strides, keeper)
    return _new(ctypes.addressof(record), name, ctypes.cast(_drop_capsule, ctypes.c_void_p))


class Taken:
    """Owns another library's tensor, and gives it back when this object dies."""

    def __init__(self, record: Managed | Versioned) -> None:
        """ValueError for a version that is not known."""
        self._address = ctypes.addressof(record)
        self._ending = Finalizer(partial(_Deleter(record.deleter), self._address) if record.deleter else None)
        if isinstance(record, Versioned) and record.major != VERSION[0]:
            raise ValueError(f"a DLPack tensor of version {record.major}.{record.minor}")
        read_only = isinstance(record, Versioned) and bool(record.flags & _READ_ONLY)
        tensor = record.tensor
        strides = tuple(tensor.strides[: tensor.rank]) if tensor.strides else None
        self.contents = Contents(
            (tensor.data or 0) + tensor.byte_offset, tuple(tensor.shape[: tensor.rank]), strides, tensor.code,
            tensor.bits, tensor.lanes, (tensor.device_kind, tensor.device_number), read_only,
        )  # fmt: skip

    @classmethod
    def of_capsule(cls, capsule: Any) -> Taken:
        """ValueError for what is no unused capsule of DLPack."""
        address = id(capsule)
        if is_valid(address, VERSIONED_NAME):
            record: Managed | Versioned = Versioned.from_address(pointer(address, VERSIONED_NAME))
            _set_name(address, _USED_VERSIONED)
        elif is_valid(address, NAME):
            record = Managed.from_address(pointer(address, NAME))
            _set_name(address, _USED)
        else:
            raise ValueError("no DLPack capsule, or one that has been used already")
        return cls(record)


def _drop_unused(capsule: int) -> None:
    """The end of a capsule that has not been used."""
    for name in (VERSIONED_NAME, NAME):
        if is_valid(capsule, name):
            _exported.pop(pointer(capsule, name), None)


_release: Final = _Deleter(_exported.pop)
"""No Python code, at whose beginning an interrupt could come."""
_drop_capsule: Final = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_drop_unused)


def _row_major(shape: tuple[int, ...]) -> list[int]:
    strides = [1] * len(shape)
    for index in range(len(shape) - 1, 0, -1):
        strides[index - 1] = strides[index] * max(1, shape[index])
    return strides


def is_row_major(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> bool:
    """Whether elements lie one after the other without gaps; ``strides`` in elements."""
    if strides is None or 0 in shape:
        return True
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
