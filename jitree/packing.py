"""Arguments from Python values to VM values, results back.

Every parameter gets one packer when its function is looked up: an object whose ``pack`` method takes the
caller's value and returns what the VM takes, or raises INVALID_ARGUMENT naming the parameter, what it takes
and what was given. Nothing is parsed when a call is made.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from jitree.array import Array
from jitree.declaration import Parameter, Signature, TensorType
from jitree.elements import is_float
from jitree.errors import InvalidArgumentError, StatusError
from jitree.hal.buffer import Buffer, BufferView
from jitree.hal.device import Device
from jitree.hal.fence import Fence
from jitree.modules.hal.buffer_view import check_shape, check_view, compatible_elements, type_text
from jitree.regs.list import VmList
from jitree.regs.objects import VmBuffer
from jitree.transfers import native_row
from jitree.types import BY_NAME, ENCODING_DENSE, ElementType, format_shaped_type
from jitree.vmfb.cconv import Item

ViewOf = Callable[[Array], BufferView]
ImportArray = Callable[[npt.NDArray[Any], ElementType, Device], BufferView]

_F32_MAX: Final = float(np.finfo(np.float32).max)
_F64_EXACT: Final = 1 << 53
_SCALAR_BITS: Final = {"i": 32, "I": 64}
_NUMBERS: Final = (int, float, complex, np.generic)
_SHOWN: Final = 60


class Packer(Protocol):
    def pack(self, value: Any) -> object: ...


@dataclass(frozen=True, slots=True)
class ArrayTransfer:
    """How arrays of a call reach the device."""

    device: Device
    view_of: ViewOf
    """The view of a device array; waits for its elements unless the call itself waits for their fence."""
    import_array: ImportArray


def ready_view(array: Array) -> BufferView:
    """The view of an array whose elements are there."""
    if array.fence is not None:
        array.wait()
    return array.view


def pending_view(array: Array) -> BufferView:
    """The view of an array whose elements may still be computed."""
    return array.view


def packers(signature: Signature, items: Sequence[Item], transfer: ArrayTransfer) -> tuple[Packer, ...]:
    """A packer for each argument that the caller passes."""
    return tuple(
        _packer(parameter, item, transfer)
        for parameter, item in zip(signature.arguments, items, strict=False)
    )


def _packer(parameter: Parameter, item: Item, transfer: ArrayTransfer) -> Packer:
    if item in ("i", "I"):
        narrow = narrow_float(parameter.type)
        if narrow is not None:
            return FloatBitsPacker(parameter, narrow)
        return IntegerPacker(parameter, _SCALAR_BITS[str(item)])
    if item == "f":
        return SinglePacker(parameter)
    if item == "F":
        return DoublePacker(parameter)
    if parameter.tensor is not None:
        return TensorPacker(parameter.name, parameter.tensor, transfer)
    return ReferencePacker(parameter, transfer)


# -- numbers -----------------------------------------------------------------------------------------


def refused(parameter: str, expected: str, value: object, why: str = "") -> InvalidArgumentError:
    return InvalidArgumentError(f"{parameter}: expected {expected} but got {describe(value)}{why}")


def describe(value: object) -> str:
    """A value for messages: type and shape of arrays, text and class of everything else."""
    if isinstance(value, (np.ndarray, Array)):
        row = native_row(value.dtype)
        if row is None:
            return f"an array of dtype {value.dtype} and shape {value.shape}"
        return f"a {format_shaped_type(value.shape, row)} array"
    text = repr(value)
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return f"{text} of type {type(value).__name__}"


def _number(value: object) -> object:
    """The element of an array of rank 0, anything else as it is."""
    if isinstance(value, (np.ndarray, Array)) and value.ndim == 0:
        return value.item()
    return value


class IntegerPacker:
    """An integer of a declared width, as the VM holds it: sign extended to 32 or 64 bits.

    Takes whatever has that integer value exactly. Types without a sign take the range of both.
    """

    __slots__ = ("_high", "_low", "_name", "_signed_high", "_type", "_wrap")

    def __init__(self, parameter: Parameter, storage_bits: int) -> None:
        declared = parameter.type
        digits = declared.lstrip("siu")
        bits = int(digits) if digits.isdecimal() else storage_bits
        unsigned, signed = declared.startswith("ui"), declared.startswith("si")
        self._name = parameter.name
        self._type = declared
        self._low = 0 if unsigned or bits == 1 else -(1 << (bits - 1))
        self._high = (1 << (bits - 1)) - 1 if signed else (1 << bits) - 1
        narrow_unsigned = bits == 1 or (unsigned and bits < storage_bits)
        self._signed_high = self._high if narrow_unsigned else (1 << (bits - 1)) - 1
        self._wrap = 1 << bits

    def pack(self, value: Any) -> int:
        integer: int = value if type(value) is int else self._integer(value)
        if not self._low <= integer <= self._high:
            raise refused(self._name, self._type, value, f"; it takes {self._low} to {self._high}")
        return integer if integer <= self._signed_high else integer - self._wrap

    def _integer(self, value: object) -> int:
        number = _number(value)
        if isinstance(number, (float, np.floating)) and math.isfinite(number) and number == int(number):
            return int(number)
        if isinstance(number, (bool, np.bool_)):
            return int(number)
        try:
            return operator.index(number)  # type: ignore[arg-type]
        except TypeError:
            raise refused(self._name, self._type, value) from None


class DoublePacker:
    """An f64. Integers must be exact."""

    __slots__ = ("_name", "_type")

    def __init__(self, parameter: Parameter) -> None:
        self._name = parameter.name
        self._type = parameter.type

    def pack(self, value: Any) -> float:
        if type(value) is float:
            return value
        return self._float(value)

    def _float(self, value: object) -> float:
        number = _number(value)
        if isinstance(number, (float, np.floating)):
            return float(number)
        if isinstance(number, (int, np.integer, np.bool_)):
            integer = int(number)
            if abs(integer) <= _F64_EXACT or (
                integer.bit_length() <= 1024 and int(float(integer)) == integer
            ):
                return float(integer)
            raise refused(self._name, self._type, value, "; it has no such value")
        raise refused(self._name, self._type, value)


class SinglePacker(DoublePacker):
    """An f32, or a narrower float. Floats are rounded, but not to infinity; integers must be exact."""

    __slots__ = ("_dtype",)

    def __init__(self, parameter: Parameter, dtype: npt.DTypeLike = np.float32) -> None:
        super().__init__(parameter)
        self._dtype: np.dtype[Any] = np.dtype(dtype)

    def pack(self, value: Any) -> float:
        if type(value) is float and -_F32_MAX <= value <= _F32_MAX:
            return value
        return self._rounded(value)

    def _rounded(self, value: object) -> float:
        number = self._float(value)
        if not math.isfinite(number):
            return number
        with np.errstate(over="ignore"):
            rounded = float(np.array(number).astype(self._dtype))
        if not math.isfinite(rounded):
            raise refused(self._name, self._type, value, "; it is too large")
        if rounded != number and isinstance(_number(value), int | np.integer):
            raise refused(self._name, self._type, value, "; it has no such value")
        return rounded


class FloatBitsPacker(SinglePacker):
    """A float below 32 bits, whose bits programs keep in a 32-bit integer."""

    __slots__ = ()

    def pack(self, value: Any) -> int:
        bits = np.array(self._rounded(value)).astype(self._dtype).tobytes()
        return int.from_bytes(bits, "little")


def narrow_float(declared: str) -> np.dtype[Any] | None:
    """The dtype of a declared float below 32 bits."""
    row = BY_NAME.get(declared)
    return row.dtype if row is not None and is_float(row) and row.bits < 32 else None


# -- tensors -----------------------------------------------------------------------------------------


class TensorPacker:
    """A tensor: device arrays, numpy arrays, DLPack and buffer producers, numbers and nested sequences.

    Arrays must have the declared element type (integers of equal width are interchangeable) and shape;
    Python numbers are converted when they keep their value.
    """

    __slots__ = ("_code", "_dtype", "_name", "_row", "_shape", "_tensor", "_transfer", "_view_of")

    def __init__(self, name: str, tensor: TensorType, transfer: ArrayTransfer) -> None:
        self._name = name
        self._tensor = tensor
        self._row = tensor.element_type
        self._code = -1 if self._row is None else self._row.code
        self._dtype = None if self._row is None else self._row.dtype
        self._shape = tensor.shape
        self._transfer = transfer
        self._view_of = transfer.view_of

    def pack(self, value: Any) -> object:
        if type(value) is Array:
            view = self._view_of(value)
            if view.element_type != self._code or view.shape != self._shape:
                self._check_view(view)
            return view
        row = self._row
        if row is not None and type(value) is np.ndarray and value.dtype == self._dtype:
            if value.shape != self._shape:
                check_shape(value.shape, self._name, self._shape)
            return self._transfer.import_array(value, row, self._transfer.device)
        return self._pack_other(value)

    def _pack_other(self, value: Any) -> object:
        if value is None:
            raise InvalidArgumentError(f"ref is null; {self._name} needs a {self._tensor}")
        if isinstance(value, Array):
            value = self._view_of(value)
        if isinstance(value, BufferView):
            self._check_view(value)
            return value
        array = as_array(value)
        if array is not None:
            return self._import(array, value)
        if isinstance(value, (*_NUMBERS, list, tuple)):
            return self._import(self._convert(value), value)
        raise refused(self._name, str(self._tensor), value)

    def _import(self, array: npt.NDArray[Any], value: object) -> BufferView:
        row = native_row(array.dtype)
        if row is None:
            raise refused(self._name, str(self._tensor), value)
        if self._row is not None and not compatible_elements(row.code, self._code):
            raise InvalidArgumentError(
                f"{self._name} element type mismatch; expected {type_text(self._code)} but have "
                f"{type_text(row.code)}"
            )
        check_shape(array.shape, self._name, self._shape)
        return self._transfer.import_array(array, row, self._transfer.device)

    def _check_view(self, view: BufferView) -> None:
        code = view.element_type if self._row is None else self._code
        check_view(view, self._name, code, ENCODING_DENSE, self._shape)

    def _convert(self, value: object) -> npt.NDArray[Any]:
        """Python numbers as an array of the declared type."""
        try:
            given = np.asarray(value)
        except (ValueError, OverflowError) as error:
            raise refused(self._name, str(self._tensor), value, f"; {error}") from None
        if self._dtype is None:
            return given
        if native_row(given.dtype) is None:
            raise refused(self._name, str(self._tensor), value)
        return convert_exactly(given, self._dtype, self._name, str(self._tensor), value)


def convert_exactly(
    given: npt.NDArray[Any], dtype: np.dtype[Any], name: str, expected: str, value: object
) -> npt.NDArray[Any]:
    """Numbers as another type, which must hold their values; floats may be rounded to narrower floats."""
    if given.dtype == dtype:
        return given
    if given.dtype.kind == "c" and dtype.kind != "c":
        raise refused(name, expected, value)
    with np.errstate(all="ignore"):
        try:
            converted = given.astype(dtype)
            back = converted.astype(given.dtype)
        except (TypeError, ValueError):
            raise refused(name, expected, value) from None
    if given.dtype.kind in "fc":
        kept = (back == given) | np.isnan(given)
        if native_float(dtype):
            kept |= np.isfinite(converted.astype(np.complex128)) | ~np.isfinite(given)
    else:
        kept = back == given
    if not np.all(kept):
        raise refused(name, expected, value, "; its elements cannot be converted without loss")
    return converted


def native_float(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype holds fractions: those of numpy and those that ml_dtypes adds."""
    return dtype.kind in "fc" or (dtype.kind == "V" and "float" in dtype.name)


def as_array(value: Any) -> npt.NDArray[Any] | None:
    """A numpy array in the machine's byte order over a value that is an array of some kind, else None."""
    if isinstance(value, np.generic):
        return None
    if isinstance(value, list | tuple | str | bytes | bytearray | int | float | complex):
        return None
    array = np.asarray(value) if isinstance(value, np.ndarray) else _foreign_array(value)
    if array is None:
        return None
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _foreign_array(value: Any) -> npt.NDArray[Any] | None:
    if hasattr(value, "__dlpack__"):
        from jitree.dlpack import import_array, is_importable

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
    """A reference other than a tensor, or one whose type nobody declared.

    Arrays become buffer views, bytes-like objects ``vm.buffer``s, lists and tuples ``vm.list``s, None null;
    objects of the HAL and the VM are passed as they are. The program checks what it gets.
    """

    __slots__ = ("_buffers", "_name", "_transfer", "_type")

    def __init__(self, parameter: Parameter, transfer: ArrayTransfer) -> None:
        self._name = parameter.name
        self._type = parameter.type
        self._transfer = transfer
        self._buffers = parameter.type == "!hal.buffer"

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
        if isinstance(value, _OBJECTS):
            return value
        array = np.asarray(value) if isinstance(value, np.generic) else as_array(value)
        if array is None:
            return value
        row = native_row(array.dtype)
        if row is None:
            raise refused(self._name, self._type, value)
        return self._transfer.import_array(array, row, self._transfer.device)

    def _pack_list(self, values: Sequence[Any]) -> VmList:
        """Integers become i64, floats f64, unless the list's type says otherwise."""
        element = self._type.partition("list<")[2].removesuffix(">")
        packed = VmList(element, len(values)) if element in _LIST_TYPES else VmList(capacity=len(values))
        for index, value in enumerate(values):
            try:
                packed.append(value if isinstance(value, (int, float)) else self._pack(value))
            except StatusError as error:
                raise error.with_context(f"element {index} of the list for {self._name}") from None
        return packed


_OBJECTS: Final = (BufferView, Buffer, Fence, VmBuffer, VmList)
_LIST_TYPES: Final = ("i8", "i16", "i32", "i64", "f32", "f64")


# -- results -----------------------------------------------------------------------------------------

Unpacker = Callable[[Any, Device, Fence | None], Any]
"""(value of the VM, device of the call, fence to be reached before arrays may be read) → value for Python."""


def unpackers(signature: Signature, results: str) -> tuple[Unpacker, ...]:
    """An unpacker for each result; ``results`` are the characters of the calling convention."""
    return tuple(
        unpack_reference if character == "r" else _number_unpacker(parameter.type)
        for parameter, character in zip(signature.results, results, strict=True)
    )


def _number_unpacker(declared: str) -> Unpacker:
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
    return _unpack_number


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
