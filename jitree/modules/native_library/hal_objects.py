"""Gives objects of the HAL to C modules, and takes theirs.

An object of ours is a C structure and, in a table, the Python object, for as long as C code counts references
to the structure. A buffer that code in a library made becomes a Python buffer.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any, Final

from jitree import errors
from jitree.base.callbacks import Callback, allocate, allocator_address, free, keep
from jitree.base.finalizers import guard, uninterrupted
from jitree.base.platform.files import read_memory
from jitree.hal.allocator import Allocator as BufferAllocator
from jitree.hal.buffer import Allocation, Buffer, BufferView
from jitree.hal.device import Device
from jitree.hal.enums import MAXIMUM_RANK
from jitree.modules.native_library import layout
from jitree.modules.native_library.interface import (
    code_of,
    destructor,
    machine_code,
    take_status,
)
from jitree.modules.native_library.layout import DESTROY, CAllocator, String
from jitree.types import element_type

ALIGNMENT: Final = 64
"""The alignment of memory that kernels get."""
READ_WRITE: Final = 3


class LibraryBuffer:
    """A count of a buffer that code in a library made."""

    def __init__(self, pointer: int, library: object) -> None:
        machine_code().add(pointer, 1)
        self.pointer = pointer
        self.library = library

    def release(self) -> None:
        release(self.pointer)


def buffer_of(pointer: int, buffer: layout.HalBuffer, library: object) -> Buffer:
    """Over the memory of a buffer that code in a library made."""
    whole: layout.HalBuffer = read(layout.HalBuffer, buffer.allocated or 0)
    functions = buffer.functions or 0
    inside = buffer.byte_offset + buffer.byte_length <= whole.byte_length
    if not inside or read_memory(functions, 8 * layout.BUFFER_FUNCTIONS) is None:
        raise other_layout(f"a buffer of {buffer.byte_length} bytes")
    places = (layout.Properties.from_address(pointer + offset) for offset in layout.PROPERTIES)
    properties = next((place for place in places if place.plausible), None)
    if properties is None:
        raise other_layout("a buffer in memory that the host cannot see, or one")
    map_range = (ctypes.c_void_p * layout.BUFFER_FUNCTIONS).from_address(functions)[layout.MAP] or 0
    if read_memory(map_range, 1) is None:
        raise other_layout("a buffer without a function that maps it, or one")
    mapped = layout.Mapped()
    failure = take_status(
        layout.MAP_RANGE(map_range)(
            pointer, layout.MAP_PERSISTENTLY, properties.allowed_access & READ_WRITE, buffer.byte_offset,
            buffer.byte_length, mapped,
        )
    )  # fmt: skip
    if failure is not None:
        raise failure.with_context("mapping a buffer that the C module made")
    address = mapped.contents.data or 0
    if buffer.byte_length and (not address or address % ALIGNMENT):
        raise errors.InvalidArgumentError(
            f"the C module gave a buffer at address {address:#x}; programs need memory that is aligned "
            f"to {ALIGNMENT} bytes"
        )
    counted = LibraryBuffer(pointer, library)
    return Buffer(Allocation(
        address, buffer.byte_length, properties.memory_type, properties.allowed_usage,
        properties.allowed_access, host_address=address, source=counted,
        release=uninterrupted(counted.release),
    ))  # fmt: skip


def destroy(pointer: int) -> None:
    """No ref of an object is left: its own code frees it.

    What has no code for that stays.
    """
    functions = layout.Resource.from_address(pointer).functions or 0
    code = read_memory(functions, ctypes.sizeof(ctypes.c_void_p))
    if code is not None and read_memory(int.from_bytes(code, sys.byteorder), 1) is not None:
        DESTROY(int.from_bytes(code, sys.byteorder))(pointer)


def release(pointer: int) -> None:
    """Gives a count of an object back that is no view."""
    if machine_code().add(pointer, -1) == 1:
        destroy(pointer)


def read(structure: Any, pointer: int) -> Any:
    """A structure where there is memory for it."""
    if not pointer or pointer % 8 or read_memory(pointer, ctypes.sizeof(structure)) is None:
        raise other_layout(f"an object at address {pointer:#x}")
    return structure.from_address(pointer)


def other_layout(what: str) -> errors.FailedPreconditionError:
    return errors.FailedPreconditionError(
        f"the C module gave {what}, which is not laid out as HAL objects of the releases {layout.RELEASES} "
        "are; build it against one of these releases"
    )


_VIEW: Final = "hal.buffer_view"
_BUFFER: Final = "hal.buffer"
_NAMES: Final[dict[type, str]] = {
    BufferView: _VIEW, Buffer: _BUFFER, BufferAllocator: "hal.allocator", Device: "hal.device",
}  # fmt: skip
_ALL: Final = 7
_DISCARD: Final = 4
_WORD: Final = (1 << 64) - 1


class HalObjects:
    """All of one jitree instance.

    ``add_type`` registers a ref type by name and what frees its objects.
    """

    type_names = frozenset(_NAMES.values())

    def __init__(self, add_type: Callable[[str, Callable[[int], None]], int]) -> None:
        self._lock = guard()
        self._objects: dict[int, Any] = {}
        self._addresses: dict[int, int] = {}
        """Addresses of objects that have one structure for all, by the identity of the Python object."""
        self._destructors = dict.fromkeys(_NAMES, destroy) | {BufferView: self._destroy_view}
        self._types = {cls: add_type(name, self._destructors[cls]) for cls, name in _NAMES.items()}
        self._forget = destructor(self._gone)
        self._free_view = destructor(self._control, 4)
        self._allocate = Callback(self._allocate_buffer, 4, _not_allocated, 0)
        self._query = Callback(self._query_compatibility, 3, _incompatible, 0)
        self._free_words = _table(self._free_view.address)
        self._view_allocator = CAllocator(ctypes.addressof(self._free_words), machine_code().ignored)
        self._host_allocator = CAllocator(None, allocator_address())
        code = machine_code()
        forget, nothing, refuse = self._forget.address, code.nothing, code.unimplemented
        self._visible = _table(forget, forget, code.map, nothing, nothing, nothing)
        self._hidden = _table(forget, forget, *(refuse,) * (layout.BUFFER_FUNCTIONS - 2))
        self._allocator_functions = _table(
            forget, code.pair_at_16, nothing, nothing, refuse, self._query.address,
            code.checked_at_32, nothing, refuse, refuse, nothing,
            *(refuse,) * (layout.ALLOCATOR_FUNCTIONS - 11),
        )  # fmt: skip
        self._device_functions = _table(
            forget, code.pair_at_16, code.pair_at_32, code.word_at_48, nothing, nothing, nothing,
            *(refuse,) * (layout.DEVICE_FUNCTIONS - 7),
        )  # fmt: skip

    # -- to C --------------------------------------------------------------------------------------------

    def give(self, value: object) -> tuple[int, int] | None:
        """A new count of an object, as pointer and type; None for what is no object of a type known here."""
        if isinstance(value, BufferView):
            return self._give_view(value), self._types[BufferView]
        if isinstance(value, Buffer):
            return self._give_buffer(value), self._types[Buffer]
        if isinstance(value, Device):
            return self._shared(value, self._make_device), self._types[Device]
        if isinstance(value, BufferAllocator):
            return self._shared(value, self._make_allocator), self._types[BufferAllocator]
        return None

    def name_of(self, pointer: int) -> str | None:
        """The type of an object of ours, None if there is none."""
        cls = self._class_of(pointer)
        return None if cls is None else _NAMES[cls]

    def destructor_of(self, pointer: int) -> Callable[[int], None] | None:
        """What frees an object of ours."""
        cls = self._class_of(pointer)
        return None if cls is None else self._destructors[cls]

    def _class_of(self, pointer: int) -> type | None:
        with self._lock:
            known = self._objects.get(pointer)
        return next((cls for cls in _NAMES if isinstance(known, cls)), None)

    def _shared(self, value: Any, make: Callable[[Any], int]) -> int:
        """The structure of an object, with one more count."""
        with self._lock:
            address = self._addresses.get(id(value))
            if address is not None:
                machine_code().add(address, 1)
                return address
            address = make(value)
            self._objects[address] = value
            self._addresses[id(value)] = address
            return address

    def _give_buffer(self, buffer: Buffer) -> int:
        source = buffer.allocation.source
        whole = not buffer.byte_offset and buffer.byte_length == buffer.allocation.byte_length
        if isinstance(source, LibraryBuffer) and whole:
            machine_code().add(source.pointer, 1)
            return source.pointer
        return self._shared(buffer, self._make_buffer)

    def _make_buffer(self, buffer: Buffer) -> int:
        """What means nothing in a release is what another one has in its place: the queues are an allocator,
        the number of owners (more than one, so that none takes itself for the last) and the bits beside the
        usage are an access. What may be written is tested when it is mapped.
        """
        address = allocate(ctypes.sizeof(layout.OwnBuffer))
        own = layout.OwnBuffer.from_address(address)
        functions = self._hidden if buffer.host_address is None else self._visible
        own.host_address = buffer.host_address
        own.buffer = layout.HalBuffer(
            1, ctypes.addressof(functions), address, buffer.byte_length, 0, buffer.byte_length, None,
            allocator_address(), owners=_ALL, memory_type=buffer.memory_type,
            allowed_usage=buffer.allowed_usage | _DISCARD, allowed_access=buffer.allowed_access,
        )  # fmt: skip
        return address

    def _give_view(self, view: BufferView) -> int:
        """Each time another structure: code in libraries may change it, and frees it by itself."""
        rank = len(view.shape)
        address = allocate(ctypes.sizeof(layout.View) + 8 * rank)
        structure = layout.View.from_address(address)
        structure.count = 1
        structure.allocator = self._view_allocator
        structure.buffer = self._give_buffer(view.buffer)
        structure.element_type, structure.encoding = view.element_type, view.encoding
        structure.byte_length = element_type(view.element_type).byte_length(view.shape)
        structure.rank = rank
        _dimensions(address, rank)[:] = view.shape
        with self._lock:
            self._objects[address] = view
        return address

    def _make_allocator(self, allocator: BufferAllocator) -> int:
        address = allocate(ctypes.sizeof(layout.OwnAllocator))
        layout.OwnAllocator.from_address(address).__init__(  # type: ignore[misc]
            1,
            ctypes.addressof(self._allocator_functions),
            self._host_allocator,
            self._allocate.address,
        )
        return address

    def _make_device(self, device: Device) -> int:
        name = device.id.encode()
        address = allocate(ctypes.sizeof(layout.OwnDevice) + len(name))
        text = address + ctypes.sizeof(layout.OwnDevice)
        ctypes.memmove(text, name, len(name))
        allocator = self._shared(device.device_allocator, self._make_allocator)
        layout.OwnDevice.from_address(address).__init__(  # type: ignore[misc]
            1,
            ctypes.addressof(self._device_functions),
            String(text, len(name)),
            self._host_allocator,
            allocator,
        )
        return address

    # -- from C ------------------------------------------------------------------------------------------

    def find(self, pointer: int, name: str, library: object) -> object:
        """The object that a ref points to, which stays its owner's; ``library`` is kept open with it.

        UNIMPLEMENTED for what code in a library made, other than views and buffers in memory of the host;
        FAILED_PRECONDITION where the layout is that of another release.
        """
        with self._lock:
            known = self._objects.get(pointer)
        if name == _VIEW:
            return self._view(pointer, known, library)
        if name == _BUFFER:
            return self._buffer(pointer, library)
        if known is None:
            raise errors.UnimplementedError(
                f"the C module gave a !{name} that it made itself; of such objects only buffers and views of "
                "them can be used by programs"
            )
        return known

    def _view(self, pointer: int, known: BufferView | None, library: object) -> BufferView:
        view: layout.View = read(layout.View, pointer)
        if view.rank > MAXIMUM_RANK or read_memory(pointer, ctypes.sizeof(view) + 8 * view.rank) is None:
            raise other_layout(f"a view of rank {view.rank}")
        shape = tuple(_dimensions(pointer, view.rank))
        if known is not None and (known.shape, known.element_type, known.encoding) == (
            shape, view.element_type, view.encoding,
        ):  # fmt: skip
            return known
        buffer = self._buffer(view.buffer, library)
        try:
            return BufferView(buffer, shape, view.element_type, view.encoding)
        except errors.OutOfRangeError as error:
            raise error.with_context("taking a view that the C module gave") from None

    def _buffer(self, pointer: int, library: object) -> Buffer:
        with self._lock:
            known = self._objects.get(pointer)
            if known is not None:
                assert isinstance(known, Buffer)
                return known
            buffer: layout.HalBuffer = read(layout.HalBuffer, pointer)
            base = self._objects.get(buffer.allocated)
        if isinstance(base, Buffer):
            return base.subspan(buffer.byte_offset, buffer.byte_length)
        return buffer_of(pointer, buffer, library)

    # -- the end -----------------------------------------------------------------------------------------

    def _gone(self, address: int) -> None:
        """Tells whether our structure has no counts left, and was not given again."""
        with self._lock:
            if address not in self._objects or layout.Resource.from_address(address).count > 0:
                return
            value = self._objects.pop(address)
            del self._addresses[id(value)]
            allocator = layout.OwnDevice.from_address(address).device_allocator if _is_device(value) else 0
            free(address)
        if allocator:
            release(allocator)

    def _destroy_view(self, address: int) -> None:
        """No ref of a view is left, of whatever origin."""
        view = layout.View.from_address(address)
        place = ctypes.c_void_p(address)
        allocator = view.allocator
        if view.buffer:
            release(view.buffer)
        layout.CONTROL(allocator.control)(allocator.self, layout.FREE, None, ctypes.addressof(place))

    def _control(self, _: int, command: int, parameters: int, place: int) -> None:
        """The allocator of views of ours, which only frees them: so it shows when code in a library does."""
        if command & 0xFFFFFFFF == layout.FREE:
            with self._lock:
                address = ctypes.c_void_p.from_address(place).value or 0
                if self._objects.pop(address, None) is not None:
                    free(address)

    # -- what code in libraries calls ----------------------------------------------------------------------

    def _allocate_buffer(self, allocator: int, parameters: int, size: int, out: int) -> int:
        """Writes an address or a code."""
        wanted = layout.BufferParameters.from_address(parameters)
        alignment = max(wanted.alignment, ALIGNMENT)
        buffer = self._objects[allocator].allocate(
            wanted.memory_type, wanted.usage, size & _WORD, alignment=alignment
        )
        ctypes.c_void_p.from_address(out).value = self._give_buffer(buffer)
        return 0

    def _query_compatibility(self, allocator: int, parameters: int, size: int) -> int:
        wanted = layout.BufferParameters.from_address(parameters)
        length = ctypes.c_uint64.from_address(size).value if size else 0
        return int(
            self._objects[allocator].query_compatibility(
                wanted.memory_type, wanted.usage, wanted.usage, length
            )
        )


def _not_allocated(error: BaseException, allocator: int, parameters: int, size: int, out: int) -> int:
    """C code gets the code."""
    _keep_interrupt(error)
    ctypes.c_void_p.from_address(out).value = code_of(error)
    return 0


def _incompatible(error: BaseException, *_: int) -> int:
    """Nothing is possible."""
    _keep_interrupt(error)
    return 0


def _keep_interrupt(error: BaseException) -> None:
    if errors.is_interruption(error):
        keep(error)


def _is_device(value: object) -> bool:
    return isinstance(value, Device)


def _dimensions(view: int, rank: int) -> Any:
    return (ctypes.c_int64 * rank).from_address(view + ctypes.sizeof(layout.View))


def _table(*functions: int) -> Any:
    return (ctypes.c_void_p * len(functions))(*functions)
