"""Packs arrays as tensors: which ones fit, how they reach the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.api.array import Array
from jitree.api.calls.refusal import refused
from jitree.api.calls.transfers import copy_to_device, copy_view, native_row
from jitree.base.arguments import is_masked, is_released
from jitree.base.finalizers import Unique
from jitree.base.records import NamedTuple
from jitree.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    has_attribute,
    own_error,
    pass_interruption,
)
from jitree.hal.buffer import BufferView
from jitree.modules.hal.references import type_name
from jitree.regs.ref_types import BUFFER_NAME, LIST_NAME, stated_type
from jitree.types import BY_NAME, ENCODING_DENSE, ElementType

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from jitree.api.calls.declaration import DeclaredTensor
    from jitree.hal.device import Device

    ViewOf = Callable[[Array], BufferView]

    ImportArray = Callable[[npt.NDArray[Any], ElementType, Device], BufferView]

_I1: Final = BY_NAME["i1"]
NUMBERS: Final = (int, float, complex, np.generic)
LISTS: Final = (list, tuple, range)
_NO_ARRAYS: Final = (*NUMBERS, *LISTS, str, bytes, bytearray, type)
_OBJECTS: Final = frozenset(("hal.buffer_view", "hal.buffer", "hal.fence", BUFFER_NAME, LIST_NAME))
"""What programs take as it is."""


class ArrayTransfer(NamedTuple):
    """How arrays of a call reach the device."""

    device: Device
    view_of: ViewOf
    """The view of a device array; waits for its elements unless the call itself waits for their fence."""

    @property
    def import_array(self) -> ImportArray:
        """Copies an array of the host: programs also write to arguments where no declaration says so. Refuses
        it if the device wants to be told."""
        exchange = self.device.array_exchange
        if exchange is not None and exchange.explicit_transfers:
            return _refuse_host_array
        return copy_to_device


def _refuse_host_array(array: npt.NDArray[Any], row: ElementType, device: Device) -> BufferView:
    raise FailedPreconditionError(
        f"a host array was passed to a call on {device.uri}, which was created with host_transfers=explicit; "
        "pass what session.to_device(array) gives"
    )


def ready_view(array: Array) -> BufferView:
    """The view of an array whose elements are there."""
    if array.fence is not None:
        array.wait()
    return array.buffer_view


def ordered_view(device: Device, array: Array) -> BufferView:
    """Views an array whose elements ``device`` will find. Programs may look at memory that the host sees
    without waiting for anything."""
    fence = array.fence
    if fence is not None and (array.buffer_view.buffer.host_address is not None or not device.follows(fence)):
        array.wait()
    return array.buffer_view


def pending_view(array: Array) -> BufferView:
    """The view of an array whose elements may still be computed."""
    return array.buffer_view


class Donation(Unique):
    """An array that its owner gives to the program that it is passed to."""

    __slots__ = ("array",)

    def __init__(self, array: Array) -> None:
        self.array = array


class TensorPacker:
    """A tensor: device arrays, numpy arrays, DLPack and buffer producers, numbers and nested sequences.

    Arrays must have the declared shape, and a type whose values the declared one has: others are refused
    whatever their elements are. For integers without a sign (``i32``) those of their size may have any sign.
    Masked arrays are refused, and buffer views are checked no more than the program itself does.
    Python numbers are converted when they keep their value.
    """

    __slots__ = (
        "_code", "_dtype", "_import_array", "_name", "_row", "_shape", "_tensor", "_transfer", "_view_of",
    )  # fmt: skip
    WIDENS = True
    """Whether it takes elements of narrower types: not where the caller looks at the memory later."""

    def __init__(self, name: str, tensor: DeclaredTensor, transfer: ArrayTransfer) -> None:
        self._name = name
        self._tensor = tensor
        self._row = tensor.element_type
        self._code = -1 if self._row is None else self._row.code
        self._dtype = None if self._row is None else self._row.dtype
        self._shape = tensor.shape
        self._transfer = transfer
        self._import_array = transfer.import_array
        self._view_of = transfer.view_of

    @property
    def device(self) -> Device:
        return self._transfer.device

    def pack(self, value: Any) -> object:
        if type(value) is Array:
            view = self._taken_view(value)
            if view.element_type != self._code or view.shape != self._shape:
                view = self._fitting(value, view)
            return self.declared(view if view.buffer.is_writable else self._own(value, view))
        row = self._row
        if row is not None and type(value) is np.ndarray and value.dtype == self._dtype:
            if value.shape != self._shape:
                self.check_shape(value.shape)
            return self._import_array(value, row, self._transfer.device)
        view = self._pack_other(value)
        view = view if view.buffer.is_writable else self._own(value, view)
        return view if view is value else self.declared(view)

    def declared(self, view: BufferView) -> BufferView:
        """The same elements as ones of the declared type: results that are arguments have it like all
        others, of whatever sign the caller's integers are."""
        if self._row is None or view.element_type == self._code:
            return view
        return BufferView(view.buffer, view.shape, self._code, view.encoding)

    def _taken_view(self, array: Array) -> BufferView:
        """The view of a device array, which the program may update: what the host has read of it is old."""
        view = self._view_of(array)
        if view.buffer.host_address is None:
            array._be_written()
        return view

    def _fitting(self, array: Array, view: BufferView) -> BufferView:
        """Views a device array, or its copy as the declared type.

        INVALID_ARGUMENT if neither can be passed."""
        row, code = self._row, view.element_type
        if row is not None and self._widens_from(code):
            return self.pack_array(array._implicitly(), array)
        self.check(view)
        return view

    def _widens_from(self, code: int) -> bool:
        """Whether arrays of an element type are converted to the declared one."""
        if self._row is None or code == self._code or not self.WIDENS:
            return False
        from jitree.api.calls.conversion import has_every_value, holds

        return not holds(self._code, code) and has_every_value(code, self._code)

    def _own(self, value: Any, view: BufferView) -> BufferView:
        """A copy of what lies in memory that must stay as it is. A device array has it from then on."""
        copy = copy_view(view, self.device)
        return value._be_copied(copy) if isinstance(value, Array) else copy

    def _pack_other(self, value: Any) -> BufferView:
        if value is None:
            raise InvalidArgumentError(f"ref is null; {self._name} needs a {self._tensor}, and None is none")
        if isinstance(value, Array):
            return self._fitting(value, self._taken_view(value))
        if isinstance(value, Donation):
            view = self._taken_view(value.array)
            self.check(view)
            return view
        if isinstance(value, BufferView):  # as the program itself checks it
            self._check_view(value, value.element_type if self._row is None else self._code)
            return value
        if is_object(value):
            raise InvalidArgumentError(
                f"ref type mismatch; {self._name} needs a {self._tensor} but got a {type_name(value)}"
            )
        exchange = self.device.array_exchange
        if exchange is not None and exchange.is_importable(value):
            view = exchange.import_view(value)
            return self._fitting(Array(view, self.device), view)
        if is_masked(value):
            raise refused(self._name, str(self._tensor), value)
        array = as_array(value)
        if array is not None:
            return self.pack_array(array, value)
        if isinstance(value, (*NUMBERS, *LISTS)):
            return self.pack_array(self._convert(value), value)
        raise refused(self._name, str(self._tensor), value)

    def is_importable(self, value: object) -> bool:
        """Whether a value is another library's array in the device's memory."""
        exchange = self.device.array_exchange
        return exchange is not None and exchange.is_importable(value)

    def host_array(self, value: Any) -> npt.NDArray[Any] | None:
        """Returns a value on the host before it is copied; None for what does not go that way."""
        if value is None or isinstance(value, (Array, Donation)) or is_object(value) or is_masked(value):
            return None
        array = as_array(value)
        if array is None and isinstance(value, (*NUMBERS, *LISTS)):
            array = self._convert(value)
        return array if array is None else self._of_declared_type(array)

    def _of_declared_type(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The same elements with the declared dtype itself, if theirs is equal: of one kind there are several
        objects (after unpickling, with an order of bytes that is said). Bytes of 0 and 1 are booleans."""
        dtype = self._dtype
        if dtype is None or array.dtype is dtype:
            return array
        if self._code == _I1.code and array.dtype != dtype:
            row = native_row(array.dtype)
            return array if row is None else self._as_booleans(array, row)
        return array.view(dtype) if array.dtype == dtype else self._widened(array, native_row(array.dtype))

    def _widened(self, array: npt.NDArray[Any], row: ElementType | None) -> npt.NDArray[Any]:
        """Widens elements to the declared type, where that has every value of their own."""
        if row is None or self._row is None or not self._widens_from(row.code):
            return array
        from jitree.api.calls.conversion import widened

        return widened(array, self._row)

    def pack_array(self, array: npt.NDArray[Any], value: object) -> BufferView:
        """A view of a numpy array that was made of a value."""
        row = native_row(array.dtype)
        if row is None:
            raise refused(self._name, str(self._tensor), value)
        if self._code == _I1.code and row.code != _I1.code:
            array, row = self._as_booleans(array, row), _I1
        if self._row is not None and self._widens_from(row.code):
            array, row = self._widened(array, row), self._row
        self._check_elements(row.code)
        self.check_shape(array.shape)
        return self._import_array(array, self._row or row, self._transfer.device)

    def check(self, view: BufferView) -> None:
        """INVALID_ARGUMENT unless the view of an array can be passed."""
        self._check_elements(view.element_type)
        if view.shape != self._shape or view.encoding != ENCODING_DENSE:
            self._check_view(view, view.element_type)

    def _check_view(self, view: BufferView, code: int) -> None:
        from jitree.modules.hal.buffer_view import check_view

        check_view(view, self._name, code, ENCODING_DENSE, self._shape)

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """INVALID_ARGUMENT unless arrays of a shape can be passed."""
        from jitree.modules.hal.buffer_view import check_shape

        check_shape(shape, self._name, self._shape)

    def _check_elements(self, code: int) -> None:
        if self._row is None or code == self._code:
            return
        from jitree.api.calls.conversion import holds

        if not holds(self._code, code):
            raise self._mismatch(code, self._row)

    def _mismatch(self, code: int, declared: ElementType) -> InvalidArgumentError:
        """Refuses elements of another type, with what to do."""
        from jitree.api.calls.conversion import mismatch

        return mismatch(self._name, code, declared)

    def _as_booleans(self, array: npt.NDArray[Any], row: ElementType) -> npt.NDArray[Any]:
        """Integers of 8 bits that are all 0 or 1."""
        from jitree.modules.hal.buffer_view import compatible_elements

        if not compatible_elements(row.code, self._code) or row.bits != _I1.bits:
            self._check_elements(row.code)
        numbers = array.view(np.uint8)
        if numbers.size and numbers.max() > 1:
            raise refused(self._name, str(self._tensor), array, "; it has other elements than 0 and 1")
        return array.view(_I1.dtype)

    def _convert(self, value: object) -> npt.NDArray[Any]:
        """Python numbers as an array of the declared type."""
        from jitree.api.calls.conversion import convert_exactly, holds, numbers_of

        if isinstance(value, range):  # it may be longer than any list, and than `len` says
            self.check_shape((max(-((value.start - value.stop) // value.step), 0),))
        try:
            given = numbers_of(value)
        except (ValueError, OverflowError) as error:
            pass_interruption(error)
            raise refused(self._name, str(self._tensor), value, f"; {error}") from own_error(error)
        if self._dtype is None:
            return given
        row = native_row(given.dtype)
        if row is None:
            raise refused(self._name, str(self._tensor), value)
        if isinstance(value, np.generic) and holds(self._code, row.code):
            return given
        return convert_exactly(given, self._dtype, self._name, str(self._tensor), value)


def is_object(value: object) -> bool:
    """Whether it is an object of HAL or VM, taken as it is."""
    return stated_type(value) in _OBJECTS


def as_array(value: Any) -> npt.NDArray[Any] | None:
    """Makes a native numpy array of any array, else None."""
    if isinstance(value, _NO_ARRAYS):
        return None
    array = np.asarray(value) if isinstance(value, np.ndarray) else _array_of_others(value)
    if array is None or array.dtype.isnative:
        return array
    from jitree.base.copying import copy_of

    return copy_of(array, array.dtype.newbyteorder("="))


def _array_of_others(value: Any) -> npt.NDArray[Any] | None:
    from jitree.base.dlpack import foreign_array, is_importable  # few programs use other libraries

    is_foreign = has_attribute(value, "__dlpack__") or has_attribute(value, "__cuda_array_interface__")
    if is_foreign and not is_importable(value):
        raise InvalidArgumentError(
            f"an array of type {type(value).__name__} lies in another device's memory; copy it to the host"
        )
    array = foreign_array(value)
    if array is not None:
        return array
    try:
        return None if is_released(value) else np.asarray(memoryview(value))
    except TypeError as error:
        pass_interruption(error)
        return None
