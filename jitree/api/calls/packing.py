"""Arguments from Python values to VM values, results back.

Every parameter gets one packer when its function is looked up: an object whose ``pack`` method takes the
caller's value and returns what the VM takes, or raises INVALID_ARGUMENT naming the parameter, what it takes
and what was given. Nothing is parsed when a call is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import numpy as np

from jitree.api.array import Array
from jitree.api.calls.conversion import convert_exactly, holds
from jitree.api.calls.declaration import Parameter, Signature, TensorType
from jitree.api.calls.number_packing import (
    NUMBER_BITS,
    IntegerPacker,
    narrow_float,
    number_packer,
    refused,
)
from jitree.api.calls.transfers import copy_to_device, native_row
from jitree.api.calls.writing import own_view, require_writable, rewritten, writable_import
from jitree.base.elements import is_masked
from jitree.base.identity import Unique
from jitree.base.records import NamedTuple
from jitree.errors import FailedPreconditionError, InvalidArgumentError, StatusError
from jitree.hal.buffer import Buffer, BufferView
from jitree.hal.device import Device
from jitree.hal.exchange import HostTransfers
from jitree.hal.fence import Fence
from jitree.modules.hal.buffer_view import check_shape, check_view, compatible_elements, type_text
from jitree.modules.hal.references import type_name
from jitree.regs.list import VmList
from jitree.regs.objects import VmBuffer
from jitree.regs.ref_types import RefTypes
from jitree.types import BY_NAME, ENCODING_DENSE, ElementType
from jitree.vmfb.cconv import TYPE_NAMES, Item, Span

if TYPE_CHECKING:
    import numpy.typing as npt

ViewOf = Callable[[Array], BufferView]
ImportArray: TypeAlias = "Callable[[npt.NDArray[Any], ElementType, Device], BufferView]"

_I1: Final = BY_NAME["i1"]
_NUMBERS: Final = (int, float, complex, np.generic)


class Packer(Protocol):
    def pack(self, value: Any) -> object: ...


class ArrayTransfer(NamedTuple):
    """How arrays of a call reach the device."""

    device: Device
    view_of: ViewOf
    """The view of a device array; waits for its elements unless the call itself waits for their fence."""
    import_array: ImportArray

    @property
    def implicit(self) -> ImportArray:
        """``import_array`` for arguments of calls, which refuses them if the device wants to be told."""
        exchange = self.device.array_exchange
        if exchange is not None and exchange.host_transfers is HostTransfers.EXPLICIT:
            return _refuse_host_array
        return self.import_array


def _refuse_host_array(array: npt.NDArray[Any], row: ElementType, device: Device) -> BufferView:
    raise FailedPreconditionError(
        f"a host array was passed to a call on {device.uri}, which was created with host_transfers=explicit; "
        "pass what session.to_device(array) gives"
    )


def ready_view(array: Array) -> BufferView:
    """The view of an array whose elements are there."""
    if array.fence is not None:
        array.wait()
    return array.view


def pending_view(array: Array) -> BufferView:
    """The view of an array whose elements may still be computed."""
    return array.view


def packers(
    signature: Signature, items: Sequence[Item], transfer: ArrayTransfer, ref_types: RefTypes
) -> tuple[Packer, ...]:
    """A packer for each argument that the caller passes."""
    return tuple(
        _packer(parameter, item, transfer, ref_types)
        for parameter, item in zip(signature.arguments, items, strict=False)
    )


def _packer(parameter: Parameter, item: Item, transfer: ArrayTransfer, ref_types: RefTypes) -> Packer:
    if isinstance(item, Span):
        return SpanPacker(parameter, item, transfer, ref_types)
    if item in NUMBER_BITS:
        return number_packer(parameter, item)
    if parameter.tensor is not None:
        return tensor_packer(parameter, parameter.tensor, transfer)
    return ReferencePacker(parameter, transfer, ref_types)


def tensor_packer(parameter: Parameter, tensor: TensorType, transfer: ArrayTransfer) -> TensorPacker:
    """The packer of a tensor, by what the program does with its memory."""
    if parameter.storage_of is not None:
        transfer = transfer._replace(view_of=partial(rewritten, transfer.view_of))
    if parameter.consumed:
        from jitree.api.calls.storage_arguments import ConsumedPacker

        return ConsumedPacker(parameter.name, tensor, transfer._replace(import_array=copy_to_device))
    if parameter.storage_of is not None:
        from jitree.api.calls.storage_arguments import StoragePacker

        return StoragePacker(
            parameter.name, tensor, transfer._replace(import_array=writable_import(transfer.import_array))
        )
    return TensorPacker(parameter.name, tensor, transfer)


class Donation(Unique):
    """An array that its owner gives to the program that it is passed to."""

    __slots__ = ("array",)

    def __init__(self, array: Array) -> None:
        self.array = array


# -- tensors -----------------------------------------------------------------------------------------


class TensorPacker:
    """A tensor: device arrays, numpy arrays, DLPack and buffer producers, numbers and nested sequences.

    Arrays must have the declared shape and element type, which for integers without a sign (``i32``) may have
    any; masked arrays are refused, and buffer views are checked no more than the program itself does.
    Python numbers are converted when they keep their value.
    """

    __slots__ = (
        "_code", "_dtype", "_import_array", "_name", "_row", "_shape", "_tensor", "_transfer", "_view_of",
    )  # fmt: skip

    def __init__(self, name: str, tensor: TensorType, transfer: ArrayTransfer) -> None:
        self._name = name
        self._tensor = tensor
        self._row = tensor.element_type
        self._code = -1 if self._row is None else self._row.code
        self._dtype = None if self._row is None else self._row.dtype
        self._shape = tensor.shape
        self._transfer = transfer
        self._import_array = transfer.implicit
        self._view_of = transfer.view_of

    @property
    def device(self) -> Device:
        return self._transfer.device

    def pack(self, value: Any) -> object:
        if type(value) is Array:
            view = self._view_of(value)
            if view.element_type != self._code or view.shape != self._shape:
                self.check(view)
            return view
        row = self._row
        if row is not None and type(value) is np.ndarray and value.dtype == self._dtype:
            if value.shape != self._shape:
                check_shape(value.shape, self._name, self._shape)
            return self._import_array(value, row, self._transfer.device)
        return self._pack_other(value)

    def _pack_other(self, value: Any) -> object:
        if value is None:
            raise InvalidArgumentError(f"ref is null; {self._name} needs a {self._tensor}")
        if isinstance(value, Array):
            view = self._view_of(value)
            self.check(view)
            return view
        if isinstance(value, Donation):
            view = self._view_of(value.array)
            self.check(view)
            return view
        if isinstance(value, BufferView):  # as the program itself checks it
            code = value.element_type if self._row is None else self._code
            check_view(value, self._name, code, ENCODING_DENSE, self._shape)
            return value
        if isinstance(value, _OBJECTS):
            raise InvalidArgumentError(
                f"ref type mismatch; {self._name} needs a {self._tensor} but got a {type_name(value)}"
            )
        exchange = self._transfer.device.array_exchange
        if exchange is not None and exchange.is_importable(value):
            view = exchange.import_view(value)
            self.check(view)
            return view
        if is_masked(value):
            raise refused(self._name, str(self._tensor), value)
        array = as_array(value)
        if array is not None:
            return self._import(array, value)
        if isinstance(value, (*_NUMBERS, list, tuple)):
            return self._import(self._convert(value), value)
        raise refused(self._name, str(self._tensor), value)

    def host_array(self, value: Any) -> npt.NDArray[Any] | None:
        """What a value is on the host before it is copied to the device, of any type and shape; None for what
        does not go that way."""
        if value is None or isinstance(value, (Array, Donation, *_OBJECTS)) or is_masked(value):
            return None
        array = as_array(value)
        if array is None and isinstance(value, (*_NUMBERS, list, tuple)):
            array = self._convert(value)
        return array

    def _import(self, array: npt.NDArray[Any], value: object) -> BufferView:
        row = native_row(array.dtype)
        if row is None:
            raise refused(self._name, str(self._tensor), value)
        if self._code == _I1.code and row.code != _I1.code:
            array, row = self._as_booleans(array, row), _I1
        self._check_elements(row.code)
        check_shape(array.shape, self._name, self._shape)
        return self._import_array(array, row, self._transfer.device)

    def check(self, view: BufferView) -> None:
        """INVALID_ARGUMENT unless the view of an array can be passed."""
        self._check_elements(view.element_type)
        check_view(view, self._name, view.element_type, ENCODING_DENSE, self._shape)

    def _check_elements(self, code: int) -> None:
        if self._row is not None and not holds(self._code, code):
            raise InvalidArgumentError(
                f"{self._name} element type mismatch; expected {type_text(self._code)} but have "
                f"{type_text(code)}"
            )

    def _as_booleans(self, array: npt.NDArray[Any], row: ElementType) -> npt.NDArray[Any]:
        """Integers of 8 bits that are all 0 or 1."""
        if not compatible_elements(row.code, self._code) or row.bits != _I1.bits:
            self._check_elements(row.code)
        numbers = array.view(np.uint8)
        if numbers.size and numbers.max() > 1:
            raise refused(self._name, str(self._tensor), array, "; it has other elements than 0 and 1")
        return array.view(_I1.dtype)

    def _convert(self, value: object) -> npt.NDArray[Any]:
        """Python numbers as an array of the declared type."""
        try:
            given = np.asarray(value)
        except (ValueError, OverflowError) as error:
            raise refused(self._name, str(self._tensor), value, f"; {error}") from None
        if self._dtype is None:
            return given
        row = native_row(given.dtype)
        if row is None:
            raise refused(self._name, str(self._tensor), value)
        if isinstance(value, np.generic) and holds(self._code, row.code):
            return given
        return convert_exactly(given, self._dtype, self._name, str(self._tensor), value)


def as_array(value: Any) -> npt.NDArray[Any] | None:
    """A numpy array in the machine's byte order over a value that is an array of some kind, else None."""
    if isinstance(value, np.generic):
        return None
    if isinstance(value, list | tuple | str | bytes | bytearray | int | float | complex | type):
        return None
    array = np.asarray(value) if isinstance(value, np.ndarray) else _foreign_array(value)
    if array is None:
        return None
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _foreign_array(value: Any) -> npt.NDArray[Any] | None:
    if hasattr(value, "__dlpack__"):
        from jitree.base.dlpack import import_array, is_importable

        if is_importable(value):
            return import_array(value)
    if hasattr(value, "__cuda_array_interface__") or hasattr(value, "__dlpack__"):
        raise InvalidArgumentError(
            f"an array of type {type(value).__name__} lies in another device's memory; copy it to the host"
        )
    if hasattr(value, "__array__"):
        return np.asarray(value)
    try:
        return np.asarray(memoryview(value))
    except TypeError:
        return None


# -- references --------------------------------------------------------------------------------------


class ReferencePacker:
    """A reference other than a tensor, or one whose type nobody declared: the program may write to it.

    Arrays become buffer views, bytes-like objects ``vm.buffer``s, lists and tuples ``vm.list``s, None null;
    objects of the HAL and the VM are passed as they are. The program checks what it gets.
    """

    __slots__ = ("_buffers", "_element", "_name", "_ref_types", "_transfer", "_type")

    def __init__(self, parameter: Parameter, transfer: ArrayTransfer, ref_types: RefTypes) -> None:
        self._name = parameter.name
        self._type = parameter.type
        self._transfer = transfer._replace(
            view_of=partial(own_view, transfer.view_of, transfer.device),
            import_array=writable_import(transfer.import_array),
        )
        self._ref_types = ref_types
        self._buffers = parameter.type == "!hal.buffer"
        self._element = parameter.type.partition("list<")[2].removesuffix(">")

    def pack(self, value: Any) -> object:
        packed = self._pack(value)
        if self._buffers and isinstance(packed, BufferView):
            return packed.buffer
        return packed

    def _pack(self, value: Any) -> object:
        if value is None:
            return None
        if isinstance(value, Array):
            return self._transfer.view_of(value)
        if isinstance(value, (list, tuple)):
            return self._pack_list(value)
        if isinstance(value, (bytes, bytearray, memoryview)) and not self._type.startswith("!hal."):
            return VmBuffer.alias(memoryview(value).cast("B") if len(value) else b"")
        if isinstance(value, (str, *_NUMBERS)) and not isinstance(value, np.generic):
            raise refused(self._name, self._type, value)
        if isinstance(value, (BufferView, Buffer)):
            return require_writable(value, self._name)
        if isinstance(value, _OBJECTS):
            return value
        exchange = self._transfer.device.array_exchange
        if exchange is not None and exchange.is_importable(value):
            return require_writable(exchange.import_view(value), self._name)
        if is_masked(value):
            raise refused(self._name, self._type, value)
        array = np.asarray(value) if isinstance(value, np.generic) else as_array(value)
        if array is None:
            return self._registered(value)
        row = native_row(array.dtype)
        if row is None:
            raise refused(self._name, self._type, value)
        return self._transfer.implicit(array, row, self._transfer.device)

    def _registered(self, value: object) -> object:
        """An object of a type that some module has registered."""
        try:
            self._ref_types.id_of(value)
        except InvalidArgumentError:
            raise refused(self._name, self._type, value) from None
        return value

    def _pack_list(self, values: Sequence[Any]) -> VmList:
        """Integers become i64, floats f64, unless the list's type says otherwise."""
        kind = _LIST_TYPES.get(self._element)
        if kind is None:
            packed, pack = VmList(capacity=len(values)), self._pack_element
        else:
            packed = VmList(self._element, len(values))
            pack = number_packer(Parameter(self._name, self._element), kind).pack
        for index, value in enumerate(values):
            try:
                packed.append(pack(value))
            except StatusError as error:
                raise error.with_context(f"element {index} of the list for {self._name}") from None
        return packed

    def _pack_element(self, value: Any) -> object:
        """An element of a list of anything."""
        if isinstance(value, int):
            return IntegerPacker(Parameter(self._name, "i64"), 64).pack(value)
        return value if isinstance(value, float) else self._pack(value)


class SpanPacker:
    """A variadic argument: any number of values, or of tuples of values."""

    __slots__ = ("_name", "_packers", "_type")

    def __init__(
        self, parameter: Parameter, span: Span, transfer: ArrayTransfer, ref_types: RefTypes
    ) -> None:
        self._name = parameter.name
        self._type = parameter.type
        self._packers = tuple(
            _packer(Parameter(parameter.name, TYPE_NAMES[character]), character, transfer, ref_types)
            for character in span.characters
        )

    def pack(self, value: Any) -> list[object]:
        if not isinstance(value, (list, tuple)):
            raise refused(self._name, self._type, value)
        return [self._pack_row(row) for row in value]

    def _pack_row(self, row: Any) -> object:
        if len(self._packers) == 1:
            return self._packers[0].pack(row)
        if not isinstance(row, (list, tuple)) or len(row) != len(self._packers):
            raise refused(self._name, self._type, row)
        return tuple(packer.pack(value) for packer, value in zip(self._packers, row, strict=True))


_OBJECTS: Final = (BufferView, Buffer, Fence, VmBuffer, VmList)
_LIST_TYPES: Final = {"i8": "i", "i16": "i", "i32": "i", "i64": "I", "f32": "f", "f64": "F"}
"""Element types of lists of numbers, and how the VM passes such a number."""


# -- results -----------------------------------------------------------------------------------------

Unpacker = Callable[[Any, Device, Fence | None], Any]
"""(value of the VM, device of the call, fence to be reached before arrays may be read) → value for Python."""


def unpackers(signature: Signature, results: str) -> tuple[Unpacker, ...]:
    """An unpacker for each result; ``results`` are the characters of the calling convention."""
    return tuple(
        unpack_reference if character == "r" else number_unpacker(parameter.type) or _unpack_number
        for parameter, character in zip(signature.results, results, strict=True)
    )


def number_unpacker(declared: str) -> Unpacker | None:
    """What makes a register's number one of the declared type; None if it is one."""
    if declared == "i1":
        return lambda value, device, fence: bool(value)
    narrow = narrow_float(declared)
    if narrow is not None:
        size = narrow.itemsize
        mask = (1 << 8 * size) - 1
        return lambda value, device, fence: float(
            np.frombuffer((value & mask).to_bytes(size, "little"), narrow)[0]
        )
    if declared.startswith("ui") and declared[2:].isdecimal():
        mask = (1 << int(declared[2:])) - 1
        return lambda value, device, fence: value & mask
    return None


def _unpack_number(value: Any, device: Device, fence: Fence | None) -> Any:
    return value


def unpack_reference(value: Any, device: Device, fence: Fence | None) -> Any:
    """Arrays, lists, memoryviews of the bytes of a ``vm.buffer``, None, other objects as they are."""
    if type(value) is BufferView:
        return Array(value, device, fence)
    if type(value) is VmList:
        return [unpack_reference(item, device, fence) for item in value]
    if type(value) is VmBuffer:
        return value.view
    return value
