"""DLPack exchange, including the element types that numpy itself does not exchange.

Numpy makes and takes the capsules, so that it owns whatever has to be freed; arrays of the other types
travel as unsigned integers of the same width, and only the type in the capsule's tensor record is replaced.
https://dmlc.github.io/dlpack/latest/c_api.html has the layout of the records.
"""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.base.dlpack_names import (
    CODES,
    KINDS,
    LAZY_ATTRIBUTE,
    LAZY_COMPLEX,
    LAZY_METHOD,
    NAME,
    UNSIGNED,
    VERSIONED_NAME,
)
from jitree.base.finalizers import SharedWeakKeys
from jitree.base.memory import c_fields
from jitree.errors import InvalidArgumentError, attribute_of, has_attribute, pass_interruption

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

CPU_DEVICE: Final = (1, 0)
"""(kDLCPU, 0)"""

_MOST_DIMENSIONS: Final = 64
"""Numpy's NPY_MAXDIMS"""
_MOST_BYTES: Final = (1 << 63) - 1
_DELETED: Final = "it has been deleted or donated"
_NAMES: Final = {code: name for name, code in CODES.items()}
_LETTERS: Final = {code: kind for kind, code in KINDS.items()}


class DLTensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = c_fields(
        "data:void_p device_kind:int32 device_number:int32 rank:int32 code:uint8 bits:uint8 lanes:uint16 "
        "shape:numbers strides:numbers byte_offset:uint64",
        numbers=ctypes.POINTER(ctypes.c_int64),
    )


class Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = c_fields(
        "major:uint32 minor:uint32 context:void_p deleter:void_p flags:uint64 tensor:DLTensor", DLTensor
    )


_api: Final = ctypes.pythonapi
is_valid: Final = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _api)
)
"""Whether the object at an address is a capsule of that name."""
pointer: Final = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)
"""The address of a capsule's record; the arguments as of :data:`is_valid`."""


EXCHANGE_ATTRIBUTE: Final = "__dlpack_c_exchange_api__"
EXCHANGE_NAME: Final = b"dlpack_exchange_api"
_MAJOR: Final = 1
_LONGEST_CHAIN: Final = 16
"""The most interfaces for older versions that one chain has."""


class ExchangeInterface(ctypes.Structure):
    """DLPackExchangeAPI."""

    _fields_ = c_fields(
        "major:uint32 minor:uint32 previous:void_p allocate:void_p managed_of_object:void_p "
        "object_of_managed:void_p tensor_of_object:void_p current_work_stream:void_p"
    )


def exchange_interface(capsule: object) -> ExchangeInterface | None:
    """Finds the functions in C of a type, if their version is known."""
    if not is_valid(id(capsule), EXCHANGE_NAME):
        return None
    address = pointer(id(capsule), EXCHANGE_NAME)
    for _ in range(_LONGEST_CHAIN):
        interface = ExchangeInterface.from_address(address)
        if interface.major == _MAJOR:
            return interface
        address = interface.previous
        if not address:
            break
    return None


def exchange_capsule(cls: type) -> object:
    """Finds a type's attribute; None where a class overrides the methods of its owner."""
    for base in cls.__mro__:
        if EXCHANGE_ATTRIBUTE in vars(base):
            return attribute_of(cls, EXCHANGE_ATTRIBUTE)
        if "__dlpack__" in vars(base) or "__dlpack_device__" in vars(base):
            return None
    return None


class ExchangeFunctions:
    """Functions in C of a type, for arrays that are kept."""

    def __init__(self, interface: ExchangeInterface) -> None:
        self._take = _Take(interface.managed_of_object)
        self._stream_of = _StreamOf(interface.current_work_stream)

    @classmethod
    def of(cls, kind: type) -> ExchangeFunctions | None:
        """Those of a type, None if it has none that are known."""
        try:
            return _functions[kind]
        except KeyError:
            interface = exchange_interface(exchange_capsule(kind))
            is_complete = interface and interface.managed_of_object and interface.current_work_stream
            found = _functions[kind] = cls(interface) if interface and is_complete else None
            return found

    def take(self, value: object) -> int:
        """The address of a DLManagedTensorVersioned, which is the caller's. BufferError without one."""
        made = ctypes.c_void_p()
        if self._take(value, ctypes.byref(made)) or not made.value:
            raise BufferError("its library gives no tensor and does not say why")
        return made.value

    def stream(self, device: tuple[int, int]) -> int:
        """The stream that the library submits to now, 0 for the device's default one."""
        stream = ctypes.c_void_p()
        if self._stream_of(*device, ctypes.byref(stream)):
            raise BufferError("its library does not tell its stream")
        return stream.value or 0


_Take = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
_StreamOf = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p)
_functions: Final[SharedWeakKeys[type, ExchangeFunctions | None]] = SharedWeakKeys()


def has_elements(value: Any) -> bool:
    """Tells whether the array's memory holds its elements, and nothing else must be known."""
    return not (
        attribute_of(value, LAZY_ATTRIBUTE, False)
        or (has_attribute(value, LAZY_METHOD) and value.is_neg())
        or (has_attribute(value, LAZY_COMPLEX) and value.is_conj())
    )


def dtype_of(tensor: DLTensor) -> np.dtype[Any]:
    """The numpy dtype of a tensor's elements. BufferError for types that numpy arrays do not have."""
    try:
        if tensor.code in _NAMES:
            import ml_dtypes

            dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _NAMES[tensor.code]))
        else:
            dtype = np.dtype(f"{_LETTERS[tensor.code]}{tensor.bits // 8}")
    except (KeyError, TypeError):
        dtype = np.dtype("V")
    if tensor.lanes != 1 or tensor.bits != 8 * dtype.itemsize:
        raise BufferError(f"no numpy array has elements of type {tensor.code}, {tensor.bits} bits")
    return dtype


def _tensor(capsule: Any) -> Any:
    """A capsule's tensor, to be read or changed; None if it is no capsule of DLPack."""
    if is_valid(id(capsule), NAME):
        return Managed.from_address(pointer(id(capsule), NAME)).tensor
    if is_valid(id(capsule), VERSIONED_NAME):
        return Versioned.from_address(pointer(id(capsule), VERSIONED_NAME)).tensor
    return None


def export(array: npt.NDArray[Any], **options: Any) -> Any:
    """A capsule over an array's memory; ``options`` as of ``__dlpack__``. BufferError when numpy cannot."""
    code = CODES.get(array.dtype.name)
    if code is None:
        return array.__dlpack__(**options)
    capsule = array.view(f"u{array.dtype.itemsize}").__dlpack__(**options)
    _tensor(capsule).code = code
    return capsule


def device_kind(value: object) -> int | None:
    """Tells which kind of device a value lies on, None without the DLPack protocol. INVALID_ARGUMENT for
    those that DLPack has no kind for, such as tensors that only have a shape."""
    device = attribute_of(value, "__dlpack_device__")
    if device is None:
        return None
    try:
        place = device()
        if not isinstance(place, tuple) or len(place) != len(CPU_DEVICE):
            raise BufferError("its device is no pair of numbers")
    except RecursionError:  # which is a RuntimeError, and says nothing of the value
        raise
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        pass_interruption(error)
        why = _DELETED if _is_deleted(value) else error
        raise InvalidArgumentError(
            f"an array of type {type(value).__name__} cannot be taken: {why}; pass one whose elements "
            "lie in host memory or on the session's device"
        ) from error
    kind: int = place[0]
    return kind


def _is_deleted(value: object) -> bool:
    """Whether it is an array of jax that says so. Its methods then fail somewhere inside."""
    is_deleted = attribute_of(value, "is_deleted")
    return is_deleted is not None and bool(is_deleted())


def is_importable(value: object) -> bool:
    """Whether a value has the DLPack protocol and lies in host memory."""
    return device_kind(value) == CPU_DEVICE[0]


def require_elements(value: Any) -> None:
    """Refuses (BufferError) a tensor whose memory is negative: capsules do not say that."""
    is_negative = attribute_of(value, "is_neg")
    if is_negative is not None and is_negative():
        raise BufferError("its memory holds the negative of its elements; pass tensor.resolve_neg()")


def require_memory(address: int | None, shape: Sequence[int]) -> None:
    """Refuses (BufferError) an array that has elements and no memory, such as a stand-in."""
    if not address and 0 not in shape:
        raise BufferError("it has no memory")


def shape_of(tensor: Any) -> list[int]:
    """Reads a tensor's shape. BufferError for one that no array has, and elements beyond all memory.

    Numpy refuses such sizes by a ValueError, which may be the producer's own, too."""
    is_stated = 0 <= tensor.rank <= _MOST_DIMENSIONS and (tensor.rank == 0 or tensor.shape)
    shape: list[int] = tensor.shape[: tensor.rank] if is_stated else [-1]
    length = math.prod(size or 1 for size in shape) * max(tensor.bits // 8, 1)
    if any(size < 0 for size in shape) or length > _MOST_BYTES:
        raise BufferError(f"no array has {tensor.rank} dimensions of the sizes that it states")
    if (tensor.data or 0) + tensor.byte_offset + length > _MOST_BYTES:
        raise BufferError(f"no memory is {tensor.byte_offset} bytes after the place that it states")
    return shape


class _Exchange:
    """A producer whose capsules numpy understands."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer
        self.dtype: np.dtype[Any] | None = None
        """The type that was replaced."""

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self._producer.__dlpack__(**options)
        tensor = _tensor(capsule)
        if tensor is None:
            raise BufferError("it gives no capsule of DLPack")
        require_memory(tensor.data, shape_of(tensor))
        if tensor.code in _NAMES and tensor.lanes == 1:
            self.dtype = dtype_of(tensor)
            tensor.code = UNSIGNED
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self._producer.__dlpack_device__()
        return device


def import_array(value: Any) -> npt.NDArray[Any]:
    """A numpy array over the memory of a DLPack producer. INVALID_ARGUMENT for types that no array has."""
    exchange = _Exchange(value)
    try:
        require_elements(value)
        array = np.from_dlpack(exchange)
    except RecursionError:
        raise
    except (BufferError, RuntimeError, TypeError) as error:
        pass_interruption(error)
        is_deleted = _is_deleted(value)  # since its device was asked for
        if isinstance(error, TypeError) and not is_deleted:
            raise
        raise InvalidArgumentError(
            f"an array of type {type(value).__name__} cannot be taken: {_DELETED if is_deleted else error}"
        ) from error
    return array if exchange.dtype is None else array.view(exchange.dtype)


def shared_array(value: Any) -> npt.NDArray[Any] | None:
    """A numpy array over the memory of another library's array; None if that is not the host's."""
    return import_array(value) if has_attribute(value, "__dlpack__") and is_importable(value) else None


def foreign_array(value: Any) -> npt.NDArray[Any] | None:
    """Makes a numpy array of another library's, None of what is none.

    Over the same memory where that is the host's. Fails as the library does where that gives no elements.
    """
    array = shared_array(value)
    if array is None and has_attribute(value, "__array__"):
        array = value.__array__()
    return np.asarray(array) if isinstance(array, np.ndarray) else None
