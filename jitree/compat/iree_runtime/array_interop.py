"""Arrays on a device."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from jitree.api.array import Array
from jitree.api.calls.transfers import ImplicitTransfer, as_operand
from jitree.compat.iree_runtime.arguments import anything, of, takes
from jitree.compat.iree_runtime.buffers import HalBufferView
from jitree.compat.iree_runtime.dtypes import (
    BufferUsage,
    HalElementType,
    MemoryType,
    map_dtype_to_hal_element_type,
)
from jitree.compat.iree_runtime.hal import HalDevice, a_device
from jitree.errors import InvalidArgumentError, memory_errors, own_error, pass_interruption
from jitree.hal.buffer import BufferView

__all__ = ["DeviceArray", "asdevicearray"]


class DeviceArray(ImplicitTransfer):
    """An array on a device.

    It becomes one of numpy by itself if ``implicit_host_transfer`` says so.
    """

    _implicit = True
    _override_dtype: np.dtype[Any] | None = None
    _host: npt.NDArray[Any] | None = None

    @takes(a_device, of(BufferView), anything, anything)
    def __init__(
        self,
        device: HalDevice,
        buffer_view: HalBufferView,
        implicit_host_transfer: bool = False,
        override_dtype: npt.DTypeLike | None = None,
    ) -> None:
        """``override_dtype``: what :meth:`to_host` converts the elements to."""
        self._device = device
        self._array = Array(buffer_view.raw, device.raw)
        self._implicit = implicit_host_transfer
        self._override_dtype = None if override_dtype is None else np.dtype(override_dtype)

    @classmethod
    def of(cls, device: HalDevice, array: Array) -> DeviceArray:
        """An array of what a call has returned."""
        made = cls.__new__(cls)
        made._device = device
        made._array = array
        return made

    @property
    def _buffer_view(self) -> HalBufferView:
        return HalBufferView.of(self._array.buffer_view)

    @property
    def is_host_accessible(self) -> bool:
        """Whether the elements have been brought to the host."""
        return self._host is not None

    @property
    def dtype(self) -> np.dtype[Any]:
        if self._override_dtype is not None:
            return self._override_dtype
        return HalElementType.map_to_dtype(self._array.element_type.code)

    @property
    def shape(self) -> list[int]:
        return list(self._array.shape)

    def to_host(self) -> npt.NDArray[Any]:
        """The elements, over the device's own memory where the host sees it."""
        if self._host is None:
            self._host = self._converted(self._array.to_host())
        return self._host

    def _converted(self, host: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if self._override_dtype is None or host.dtype == self._override_dtype:
            return host
        return host.astype(self._override_dtype)

    def _copy_to_host(self) -> npt.NDArray[Any]:
        return self._converted(self._array.to_host().copy())

    def _implicitly(self) -> npt.NDArray[Any]:
        if not self._implicit:
            raise ValueError(
                "DeviceArray cannot be implicitly transferred to the host: if necessary, do an explicit "
                "transfer via .to_host()"
            )
        return self.to_host()

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        if function is np.shape:
            return self.shape
        if function is np.reshape:
            return self.reshape(*arguments[1:], **options)
        return function(
            *[_operands(one) for one in arguments], **{key: _operands(one) for key, one in options.items()}
        )

    def astype(self, dtype: npt.DTypeLike, casting: Any = "unsafe", copy: bool = True) -> Any:
        """An array of numpy; the object itself where nothing is to be done and no copy is asked for."""
        if self.dtype == np.dtype(dtype) and not copy:
            return self
        return self.to_host().astype(dtype, casting=casting, copy=copy)

    def reshape(self, *args: Any) -> npt.NDArray[Any]:
        return self.to_host().reshape(*args)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.to_host())

    def __getitem__(self, index: Any) -> Any:
        return self.to_host()[index]

    def __reduce__(self) -> Any:
        """Pickles and deep copies are arrays of numpy."""
        return np.array, (self.to_host(),)

    # What iree.runtime lacks, and every program that comes from numpy asks for.

    @property
    def ndim(self) -> int:
        return len(self._array.shape)

    @property
    def size(self) -> int:
        return self._array.size

    @property
    def nbytes(self) -> int:
        return self._array.nbytes

    @property
    def T(self) -> npt.NDArray[Any]:
        return self.to_host().T

    def __len__(self) -> int:
        return len(self._array)

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    def __repr__(self) -> str:
        return f"<IREE DeviceArray: shape={self.shape}, dtype={self.dtype}>"


def _operands(value: Any) -> Any:
    """Operands of an operation, also those in sequences of arrays."""
    if type(value) in (list, tuple):
        return type(value)([as_operand(item) for item in value])
    return as_operand(value)


def asdevicearray(
    device: HalDevice,
    a: Any,
    dtype: npt.DTypeLike | None = None,
    *,
    implicit_host_transfer: bool = False,
    memory_type: Any = MemoryType.DEVICE_LOCAL,
    allowed_usage: Any = BufferUsage.DEFAULT,
    element_type: Any = None,
) -> DeviceArray:
    """A copy of an array on a device; a :class:`DeviceArray` stays as it is unless it is of another type."""
    if isinstance(a, DeviceArray):
        if dtype is None or a.dtype == np.dtype(dtype):
            return a
        logging.warning("Implicit dtype conversion of a DeviceArray forces a host transfer")
        a = a.to_host()
    array = _host_array(a, dtype)
    code = element_type or map_dtype_to_hal_element_type(array.dtype)
    if code is None:
        raise ValueError(f"Could not map dtype {array.dtype} to IREE element type")
    view = device.allocator.allocate_buffer_copy(memory_type, allowed_usage, device, array, int(code))
    return DeviceArray(device, view, implicit_host_transfer)


def _host_array(value: Any, dtype: npt.DTypeLike | None) -> npt.NDArray[Any]:
    try:
        with memory_errors("copying an array to a device"):
            return np.asarray(value, dtype=dtype, order="C")
    except TypeError as error:
        pass_interruption(error)
        raise TypeError(f"asdevicearray: {error}") from own_error(error)
    except (ValueError, OverflowError) as error:
        pass_interruption(error)
        raise InvalidArgumentError(f"asdevicearray: {error}") from own_error(error)


def map_dtype_to_element_type(dtype: Any) -> HalElementType | None:
    """None for types that programs do not have."""
    return map_dtype_to_hal_element_type(dtype)
