"""Gives DLPack's C exchange interface of arrays to other libraries.

Its functions are machine code (:mod:`jitree.api.calls.native.exports`), which has Python do the rest.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.api.array import Array
from jitree.api.calls.native.cpython_layout import new_capsule
from jitree.api.calls.transfers import copy_to_device, native_row, wrap_in_place
from jitree.base import dlpack
from jitree.base.dlpack_names import VERSIONED_NAME
from jitree.base.finalizers import raised_later
from jitree.base.memory import bound, once
from jitree.errors import is_interruption, pass_interruption
from jitree.hal.device import Device
from jitree.hal.driver import all_drivers
from jitree.hal.exchange import exporters

if TYPE_CHECKING:
    from jitree.api.calls.native.cpython_layout import Interface

_VERSION: Final = (1, 2)
"""The version of DLPack whose interface this is."""
_CAPSULE_VERSION: Final = (1, 0)
_DEFAULT_ORDER: Final = 1
"""What ``__dlpack__`` calls the order that ``current_work_stream`` gives."""
_ALIGNMENT: Final = 256
_FUNCTIONS: Final = (
    ("allocate_managed", 4), ("export_managed", 2), ("import_managed", 2), ("export_tensor", 2),
    ("current_work_stream", 3),
)  # fmt: skip
"""The functions of DLPackExchangeAPI, in its order: names in the image, numbers of arguments."""
_EXCHANGE_NAME: Final = ctypes.c_char_p(dlpack.EXCHANGE_NAME)
_MANAGED_NAME: Final = ctypes.c_char_p(VERSIONED_NAME)
_Deleter: Final = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_SetError: Final = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)


class ArrayExports:
    """The interface, which lasts as long as the process; ``record`` is the Python record."""

    def __init__(self, addresses: Mapping[str, int], record: int) -> None:
        self._slowly = export_array, import_tensor, allocate_tensor
        self._record = array("q", (record, *map(id, self._slowly)))
        """The Exports record."""
        place = self._record.buffer_info()[0]
        self._code = [bound(addresses[name], count, place) for name, count in _FUNCTIONS]
        addresses_of_code = (code.address for code in self._code)
        self._interface = dlpack.ExchangeInterface(*_VERSION, None, *addresses_of_code)
        self.capsule = new_capsule(ctypes.addressof(self._interface), name=_EXCHANGE_NAME)
        """The value of ``__dlpack_c_exchange_api__``."""


@cache
def exchange_functions(interface: Interface) -> object:
    """The ``__dlpack_c_exchange_api__`` of arrays."""
    interface.keep(exports := ArrayExports(interface.code.addresses, interface.record))
    return exports.capsule


class GivenCapsule:
    """What gives a capsule to whatever takes arrays by DLPack."""

    def __init__(self, capsule: object, device: tuple[int, int]) -> None:
        self._capsule = capsule
        self._device = device

    def __dlpack__(self, **options: Any) -> object:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


@once
def _host() -> Device:
    """The device of arrays over host memory that other libraries give."""
    return all_drivers().create_device("local-sync")


def export_array(value: Any) -> object:
    """A capsule of DLPack. What is on a device is there for work that follows in its default order."""
    if not isinstance(value, Array):
        raise TypeError(f"expected a jitree.Array but got {type(value).__name__}")
    device = value.__dlpack_device__()
    if device != dlpack.CPU_DEVICE:
        exporters[device] = value.device
        return value.__dlpack__(stream=_DEFAULT_ORDER, max_version=_CAPSULE_VERSION)
    try:
        return value.__dlpack__(max_version=_CAPSULE_VERSION)
    except TypeError as error:  # numpy before 2.1
        pass_interruption(error)
        return value.__dlpack__()


def import_tensor(address: int) -> Array:
    """Takes over a DLManagedTensorVersioned and views its memory. a copy where programs cannot use the memory
    as it lies."""
    capsule = new_capsule(address, name=_MANAGED_NAME)
    managed = dlpack.Versioned.from_address(address)
    try:
        return _array_over(capsule, (managed.tensor.device_kind, managed.tensor.device_number))
    finally:
        if dlpack.is_valid(id(capsule), VERSIONED_NAME) and managed.deleter:
            _Deleter(managed.deleter)(address)


def _array_over(capsule: object, place: tuple[int, int]) -> Array:
    given = GivenCapsule(capsule, place)
    if place == dlpack.CPU_DEVICE:
        elements = dlpack.import_array(given)
        row = native_row(elements.dtype)
        if row is None:
            raise BufferError(f"device arrays have no {elements.dtype} elements")
        return Array(wrap_in_place(elements, _host()) or copy_to_device(elements, row, _host()), _host())
    device = exporters.get(place)
    if device is None or device.array_exchange is None:
        raise BufferError(f"no device of jitree is known in place {place} of DLPack")
    return Array(device.array_exchange.import_view(given), device)


def allocate_tensor(prototype: int, context: int, set_error: int) -> object:
    """Makes a capsule of host memory for a DLTensor, else None. ``set_error`` was told then why there is
    none. What a signal's handler raises is raised where the caller goes on in Python."""
    tensor = dlpack.DLTensor.from_address(prototype)
    try:
        if (tensor.device_kind, tensor.device_number) != dlpack.CPU_DEVICE:
            raise BufferError("memory on a device is a session's; jitree allocates host memory for others")
        dtype = dlpack.dtype_of(tensor)
        shape = tuple(dlpack.shape_of(tensor))
        block = np.empty(int(np.prod(shape, dtype=object)) * dtype.itemsize + _ALIGNMENT, np.uint8)
        start = -block.ctypes.data % _ALIGNMENT
        elements = np.ndarray(shape, dtype, block.data, start)
        return dlpack.export(elements, max_version=_CAPSULE_VERSION)
    except BaseException as error:  # whatever is wrong with the prototype; the caller is in C
        _SetError(set_error)(context, type(error).__name__.encode(), str(error).encode())
        _ = [*raised_later(error)] if is_interruption(error) else ()
        return None
