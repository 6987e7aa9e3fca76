"""Exchanges arrays with other libraries (PyTorch, CuPy, Numba, JAX) as buffers.

Nothing is copied and the host waits for nothing: what one side has submitted is ordered before what the other
side submits by events between the two streams. Memory that a consumer gives back is used again only after
what the consumer had submitted by then. Only memory that begins where kernels cannot load from it is copied.
"""

from __future__ import annotations

import ctypes
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from jitree.base.dlpack import (
    DLTensor,
    ExchangeFunctions,
    Managed,
    Versioned,
    device_kind,
    has_elements,
    is_valid,
    pointer,
    require_elements,
    require_memory,
    shape_of,
)
from jitree.base.dlpack_names import NAME, VERSIONED_NAME
from jitree.base.finalizers import Finalizer, SharedWeakSet, uninterrupted
from jitree.cuda import transfers
from jitree.errors import InvalidArgumentError, has_attribute, pass_interruption
from jitree.hal.buffer import BufferView
from jitree.hal.command_layout import BINDING_ALIGNMENT
from jitree.hal.enums import BufferUsage, MemoryAccess, MemoryType
from jitree.hal.exchange import HostTransfers
from jitree.hal.timeline_record import DEFAULT_ORDER
from jitree.hal.transfers import Copy
from jitree.types import BY_NAME, ENCODING_DENSE, ElementType, element_type, element_type_of

if TYPE_CHECKING:
    from jitree.cuda.allocator import CudaAllocator
    from jitree.cuda.stream import Stream
    from jitree.hal.buffer import Allocation, Buffer
    from jitree.hal.fence import Fence


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
        """ValueError for an unknown version, BufferError for sizes that no array has."""
        self._address = ctypes.addressof(record)
        self._ending = Finalizer(partial(_Deleter(record.deleter), self._address) if record.deleter else None)
        if isinstance(record, Versioned) and record.major != VERSION[0]:
            raise ValueError(f"a DLPack tensor of version {record.major}.{record.minor}")
        read_only = isinstance(record, Versioned) and bool(record.flags & _READ_ONLY)
        tensor = record.tensor
        shape = tuple(shape_of(tensor))
        strides = tuple(tensor.strides[: len(shape)]) if tensor.strides else None
        self.contents = Contents(
            (tensor.data or 0) + tensor.byte_offset, shape, strides, tensor.code,
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


_CUDA: Final = 2
_CUDA_MANAGED: Final = 13
_UNORDERED: Final = -1
"""The consumer orders its work itself."""
_NUMPY_TYPES: Final = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}
_CODES: Final = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5, "bool": 6}
_SMALL_FLOATS: Final = {
    "float8_e4m3fn": 10,
    "float8_e4m3fnuz": 11,
    "float8_e5m2": 12,
    "float8_e5m2fnuz": 13,
    "float8_e8m0fnu": 14,
}
"""Type codes of dlpack.h 1.1."""
_DEVICE_LOCAL: Final = int(MemoryType.DEVICE_LOCAL)
_DEFAULT_USAGE: Final = int(BufferUsage.DEFAULT)
_WRITE: Final = int(MemoryAccess.WRITE)
_READ: Final = int(MemoryAccess.READ)


class CudaExchange:
    """Implements :class:`~jitree.hal.exchange.ArrayExchange` for one device."""

    def __init__(self, stream: Stream, allocator: CudaAllocator, host_transfers: HostTransfers) -> None:
        self._stream = stream
        self._allocator = allocator
        self.explicit_transfers = host_transfers is HostTransfers.EXPLICIT
        self._exported: SharedWeakSet[Allocation] = SharedWeakSet()
        self._given: SharedWeakSet[BufferView] = SharedWeakSet()
        """Views whose memory comes back after what consumers have submitted by then."""
        self._shares = False
        """Whether any view has been shared so far; most programs share none."""
        self.dlpack_device = (_CUDA, stream.context.ordinal)

    # Taking.

    def is_importable(self, value: object) -> bool:
        """Whether a value is an array in the memory of a GPU."""
        kind = device_kind(value)
        if kind is not None:
            return kind in (_CUDA, _CUDA_MANAGED)
        return has_attribute(value, "__cuda_array_interface__")

    @property
    def shares(self) -> bool:
        share = self._stream.share
        return self._shares or share.lends or share.exports

    def is_shared(self, view: BufferView) -> bool:
        """Whether the view's memory was imported or exported. Machine code does not tell whose memory it has
        given away: then it may have been."""
        allocation = view.buffer.allocation
        is_known = allocation in self._exported or not self._stream.orders(allocation)
        return self.shares and (is_known or self._stream.share.exports)

    def import_memory(self, address: int, length: int, owner: object) -> Buffer:
        functions = ExchangeFunctions.of(type(owner))
        if functions is not None:
            owner = Taken(Versioned.from_address(functions.take(owner)))
        return self._allocator.import_device(address, length, owner)

    def import_view(self, value: Any) -> BufferView:
        """As :meth:`ArrayExchange.import_view`; by DLPack where there is a choice."""
        try:
            if has_attribute(value, "__dlpack_device__"):
                return self._import_dlpack(value)
            return self._import_interface(value)
        except RecursionError:  # which is a RuntimeError, and says nothing of the value
            raise
        except (BufferError, ValueError, RuntimeError, TypeError, KeyError) as error:
            pass_interruption(error)
            if isinstance(error, InvalidArgumentError):
                raise
            raise InvalidArgumentError(
                f"an array of type {type(value).__name__} cannot be taken: {error}"
            ) from error

    def _import_dlpack(self, value: Any) -> BufferView:
        taken = self._take_by_functions(value) or self._take_by_method(value)
        contents = taken.contents
        require_memory(contents.address, contents.shape)
        if not is_row_major(contents.shape, contents.strides):
            raise InvalidArgumentError("an array with gaps cannot be taken; make it contiguous first")
        if contents.lanes != 1:
            raise InvalidArgumentError(f"an array of vectors of {contents.lanes} elements cannot be taken")
        row = _row(contents.code, contents.bits)
        return self._view(contents.address, contents.shape, row, contents.read_only, taken)

    def _take_by_functions(self, value: Any) -> Taken | None:
        """Takes an array by DLPack's functions in C, after what the library has submitted; None for types
        without them, and for arrays that these do not describe."""
        functions = ExchangeFunctions.of(type(value))
        if functions is None or not has_elements(value):
            return None
        taken = Taken(Versioned.from_address(functions.take(value)))
        device = taken.contents.device
        if device[0] not in (_CUDA, _CUDA_MANAGED):
            return None
        self._require_here(device[1])
        self._order_after(functions.stream(device) or DEFAULT_ORDER)
        return taken

    def _take_by_method(self, value: Any) -> Taken:
        require_elements(value)
        self._require_here(int(value.__dlpack_device__()[1]))
        return Taken.of_capsule(self._stream.users.ask(partial(self._capsule, value)))

    def _capsule(self, value: Any, may_ask: bool) -> Any:
        """What a library gives when it has been told of the stream."""
        if not may_ask:
            self._stream.check_open()
        stream = int(self._stream.handle)
        try:
            return value.__dlpack__(stream=stream, max_version=VERSION)
        except TypeError as error:  # made before DLPack 1.0
            pass_interruption(error)
            return value.__dlpack__(stream=stream)

    def _import_interface(self, value: Any) -> BufferView:
        interface = value.__cuda_array_interface__
        if interface.get("mask") is not None:
            raise InvalidArgumentError("an array with a mask cannot be taken")
        dtype = np.dtype(interface["typestr"])
        row = element_type_of(dtype)
        if row is None:
            raise InvalidArgumentError(f"no program has elements of type {interface['typestr']}")
        shape = tuple(int(size) for size in interface["shape"])
        strides = interface.get("strides")
        if strides is not None:
            strides = tuple(stride // dtype.itemsize for stride in strides)
        if not is_row_major(shape, strides):
            raise InvalidArgumentError("an array with gaps cannot be taken; make it contiguous first")
        address, read_only = interface["data"]
        self._order_after(interface.get("stream", DEFAULT_ORDER))
        return self._view(int(address or 0), shape, row, bool(read_only), value)

    def _view(
        self, address: int, shape: tuple[int, ...], row: ElementType, read_only: bool, owner: object
    ) -> BufferView:
        length = row.byte_length(shape)
        buffer: Buffer = self._allocator.import_device(address, length, owner)
        if address % BINDING_ALIGNMENT and length:
            return BufferView(self._copied(buffer), shape, row.code, ENCODING_DENSE)
        if read_only:
            buffer.allowed_access = buffer.allocation.allowed_access = _READ
        self._shares = True
        return BufferView(buffer, shape, row.code, ENCODING_DENSE)

    def _copied(self, source: Buffer) -> Buffer:
        """Copies foreign memory, which may change when this returns."""
        stream = self._stream
        target = self._allocator.allocate(_DEVICE_LOCAL, _DEFAULT_USAGE, source.byte_length)
        with stream.lock:
            tick = stream.begin()
            try:
                transfers.submit(stream, Copy(source, 0, target, 0, source.byte_length))
            finally:
                stream.end()
        stream.finish()
        stream.promised(tick).query()  # which raises what the wait has failed with
        return target

    def _share(self, view: BufferView) -> None:
        self._shares = True
        self._exported.add(view.buffer.allocation)
        with self._stream.lock:
            self._stream.share.forget_uploads()
            self._stream.end()

    def _require_here(self, ordinal: int) -> None:
        if ordinal != self.dlpack_device[1]:
            raise InvalidArgumentError(
                f"an array in memory of cuda://{ordinal} cannot be used on {self._stream.api.name}; copy it "
                "there first"
            )

    def _order_after(self, producer: int | None) -> None:
        """Makes later submissions wait for the producer's stream."""
        if producer is None:
            return
        stream = self._stream
        with stream.lock:
            stream.context.enter()
            stream.flush()
            stream.order_after(producer)

    # Giving.

    def export_dlpack(
        self, view: BufferView, wait: Fence | None, stream: int | None, max_version: tuple[int, int] | None
    ) -> Any:
        """As :meth:`ArrayExchange.export_dlpack`."""
        if stream == 0:
            raise BufferError("stream 0 is ambiguous; 1 is the legacy default stream, 2 the one of a thread")
        code, bits = _code(element_type(view.element_type))
        buffer = view.buffer
        read_only = not buffer.allowed_access & _WRITE
        if read_only and (max_version is None or max_version < VERSION):
            raise BufferError("only DLPack 1.0 can tell that an array must not be written to")
        consumer = DEFAULT_ORDER if stream is None else stream
        self._settle(wait)
        self._share(view)
        if consumer != _UNORDERED:
            self._order_before(consumer)
        contents = Contents(buffer.address, view.shape, None, code, bits, 1, self.dlpack_device, read_only)
        # Its end may come on any thread, also inside another library's calls.
        keeper = Finalizer(uninterrupted(partial(self._stream.give_back, buffer.allocation, consumer)))
        return make(contents, keeper, max_version)

    def array_interface(self, view: BufferView, wait: Fence | None) -> dict[str, Any]:
        """As :meth:`ArrayExchange.array_interface`; work submitted to ``stream`` makes the elements."""
        row = element_type(view.element_type)
        if row.numpy_name.rstrip("0123456789") not in _NUMPY_TYPES.values():
            raise AttributeError(f"__cuda_array_interface__ has no elements of type {row.name}; DLPack has")
        self._settle(wait)
        self._share(view)
        stream, buffer = self._stream, view.buffer
        with stream.lock:
            stream.check_open()
            stream.context.enter()
            stream.flush()
            if view not in self._given:  # by the first reader
                self._given.add(view)
                # Comes in the middle of garbage collections, before what holds the view ends: it appends to a
                # queue, without a lock, and what it needs is the registry's of finalizers.
                weakref.finalize(view, stream.give_back, buffer.allocation, DEFAULT_ORDER).atexit = False
        return {
            "shape": view.shape,
            "typestr": row.dtype.str,
            "data": (buffer.address, not buffer.allowed_access & _WRITE),
            "version": 3,
            "strides": None,
            "stream": int(stream.handle),
        }

    def _settle(self, wait: Fence | None) -> None:
        """Waits on the host for what the order of streams does not ensure."""
        if wait is not None and not self._stream.follows(wait):
            wait.wait()

    def _order_before(self, consumer: int) -> None:
        stream = self._stream
        event = stream.mark()
        stream.api.wait_for_event(consumer, event.handle)
        event.release()


def _code(row: ElementType) -> tuple[int, int]:
    """(type code, bits) of DLPack. BufferError for types that it does not have."""
    name = row.numpy_name
    code = _SMALL_FLOATS.get(name)
    if code is None:
        code = _CODES.get(name.rstrip("0123456789"))
    if code is None or row.bits % 8:
        raise BufferError(f"DLPack has no elements of type {row.name}")
    return code, row.bits


def _row(code: int, bits: int) -> ElementType:
    """The element type of a DLPack type. INVALID_ARGUMENT for one that programs do not have."""
    row = _ROWS.get((code, bits))
    if row is None:
        raise InvalidArgumentError(f"no program has elements of DLPack type code {code} with {bits} bits")
    return row


def _rows() -> dict[tuple[int, int], ElementType]:
    rows = {}
    for row in reversed(list(BY_NAME.values())):
        try:
            rows[_code(row)] = row
        except BufferError:
            continue
    return rows


_ROWS: Final = _rows()
