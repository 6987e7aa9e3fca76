"""Arrays of a library that does not exist, whose type has DLPack's C exchange interface."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from jitree.base import dlpack, dlpack_names
from jitree.base.dlpack import DLTensor, ExchangeInterface

Describe = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
KEPT: list[object] = []
"""Interfaces last as long as the process."""


def address_of(function: object) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]


def capsule(interface: ExchangeInterface, name: bytes = dlpack.EXCHANGE_NAME) -> Any:
    text = ctypes.c_char_p(name)
    KEPT.extend((interface, text))
    return _new_capsule(ctypes.addressof(interface), text, None)


class Tensor:
    """An array; ``overrides`` are fields of what it says of itself in C, ``described`` counts how often."""

    def __init__(self, array: np.ndarray[Any, Any], **overrides: Any) -> None:
        self.array = array
        self.overrides = overrides
        self.described = 0
        self.exported = 0

    def __dlpack__(self, **options: Any) -> Any:
        self.exported += 1
        return dlpack.export(self.array, **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CPU_DEVICE


def write_tensor(array: np.ndarray[Any, Any], out: DLTensor, overrides: dict[str, Any]) -> object:
    """What has to live as long as the tensor."""
    row = dlpack_names.CODES.get(array.dtype.name, dlpack_names.KINDS.get(array.dtype.kind))
    shape = (ctypes.c_int64 * array.ndim)(*array.shape)
    strides = (ctypes.c_int64 * array.ndim)(*(stride // array.itemsize for stride in array.strides))
    fields = {
        "data": array.ctypes.data if array.size else None, "device_kind": 1, "device_number": 0,
        "rank": array.ndim, "code": row, "bits": 8 * array.itemsize, "lanes": 1, "shape": shape,
        "strides": strides, "byte_offset": 0,
    } | overrides  # fmt: skip
    for name, value in fields.items():
        setattr(out, name, value)
    return shape, strides


def _describe(value: Tensor, out: Any) -> int:
    value.described += 1
    value.kept = write_tensor(value.array, out.contents, value.overrides)  # type: ignore[attr-defined]
    return 0


DESCRIBE = Describe(_describe)


def interface(describe: object = DESCRIBE, major: int = 1, previous: int | None = None) -> ExchangeInterface:
    KEPT.append(describe)
    return ExchangeInterface(major, 3, previous, None, None, None, address_of(describe), None)


def new_type(**attributes: Any) -> type[Tensor]:
    """A type of its own, with a working interface unless ``attributes`` say otherwise."""
    exchange = {dlpack.EXCHANGE_ATTRIBUTE: capsule(interface())}
    return type("Foreign", (Tensor,), exchange | attributes)
