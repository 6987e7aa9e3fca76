"""Models device memory: allocations, buffers (ranges of them), views (shape, element type)."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.base.arguments import integer
from jitree.base.finalizers import Finalizer, Unique, guard
from jitree.codegen.record import words_of
from jitree.errors import OutOfRangeError, PermissionDeniedError
from jitree.hal.enums import NOTHING, WHOLE_BUFFER, BufferUsage, MemoryAccess, MemoryType, names
from jitree.regs.layout import ENTRY, EXTENSION_SIZE, OWNER_PYTHON, PLACE_SHIFT, Entry
from jitree.types import ENCODING_DENSE, format_shaped_type
from jitree.types import element_type as _element_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from jitree.regs.handles import HandleTable

_HOST_VISIBLE: Final = int(MemoryType.HOST_VISIBLE)
_WRITE: Final = int(MemoryAccess.WRITE)
_owners_lock = guard()

_ENTRY: Final = words_of(Entry)
_AFTER_RANK: Final = ENTRY["rank"] // 8 + 1
_PUBLISHED: Final = Struct("=qqiiiiii")
"""The words of a view's entry from the address to the rank."""
UNTOLD: Final = -1
MAXIMUM_KNOWN_RANK: Final = EXTENSION_SIZE // 8 - 1
"""The highest rank of views whose dimensions machine code sees; after them it sees the allowed access."""


PENDING: Final = array("q", (NOTHING,))
"""What pending calls do to memory of the host: NOTHING, as there are none, READING only, or WRITING. Machine
code looks here before each call and read: what might have to wait for them begins in Python."""


def no_device() -> None:
    """Whose memory it is that no device has."""


class Allocation(Finalizer, Unique):
    """Owns a piece of memory, and what keeps it alive.

    What holds the object (buffers, numpy arrays and memoryviews made from it) holds the memory:
    ``release`` is called when nothing refers to it any more, and only then can the memory be used again.
    """

    __slots__ = (
        "__weakref__", "_owners", "address", "allowed_access", "allowed_usage", "byte_length",
        "device", "host_address", "memory_type", "place", "source",
    )  # fmt: skip

    def __init__(
        self,
        address: int,
        byte_length: int,
        memory_type: int,
        allowed_usage: int,
        allowed_access: int,
        host_address: int | None,
        source: object = None,
        release: Callable[[], object] | None = None,
        place: int = 0,
        device: Callable[[], object] = no_device,
    ) -> None:
        """``address`` is what the device uses, ``host_address`` where the host sees it (None: it does not).

        ``source`` is kept; ``release`` is the action of a :class:`Finalizer`. ``place``: as in ENTRY.access,
        ``UNTOLD`` for memory that machine code is to ask Python for. ``device``: as of an allocator.
        """
        Finalizer.__init__(self, release)
        self.address = address
        self.byte_length = byte_length
        self.memory_type = memory_type
        self.allowed_usage = allowed_usage
        self.allowed_access = allowed_access
        self.host_address = host_address
        self.source = source
        self.place = place
        self.device = device
        self._owners = 1

    @property
    def __array_interface__(self) -> dict[str, object]:
        """Makes the allocation the base of every array over its memory."""
        return {
            "version": 3,
            "typestr": "|u1",
            "shape": (self.byte_length,),
            "data": (self.host_address or 0, not self.allowed_access & _WRITE),
        }

    @property
    def owner_count(self) -> int:
        return self._owners

    def preserve(self) -> None:
        """One more owner. The count frees nothing: programs ask for it before they deallocate."""
        with _owners_lock:
            self._owners += 1

    def discard(self) -> bool:
        """One owner less; True when that was the last one."""
        with _owners_lock:
            self._owners = max(0, self._owners - 1)
            return self._owners == 0


def length_inside(available: int, offset: int, length: int) -> int:
    """Resolves WHOLE_BUFFER in a range's length, -1 where it is not inside the bytes: a rule of
    :mod:`jitree.hal.checks`."""
    rest = available - offset
    if length == WHOLE_BUFFER:
        length = rest
    return length if offset >= 0 and 0 <= length <= rest else -1


def _inside(whole: int, offset: int, length: int) -> int:
    """As :meth:`Buffer.range`, for a buffer of ``whole`` bytes."""
    if type(offset) is not int or type(length) is not int:  # numpy's integers wrap around
        offset, length = integer("offset", offset), integer("length", length)
    inside = length_inside(whole, offset, length)
    if inside < 0:
        end = whole if length == WHOLE_BUFFER else offset + length
        raise OutOfRangeError(f"bytes {offset} to {end} are outside a buffer of {whole} bytes")
    return inside


class Buffer(Unique):
    """Names a range of an allocation.

    ``address`` is where it begins for the device, ``host_address`` for the host (None if the host cannot see
    it); ``memory_type``, ``allowed_usage`` and ``allowed_access``
    are bits of the enumerations as plain integers; lengths and offsets are bytes.
    """

    VM_TYPE: Final = "hal.buffer"
    __slots__ = (
        "__weakref__", "_array", "address", "allocation", "allowed_access", "allowed_usage", "byte_length",
        "byte_offset", "host_address", "memory_type",
    )  # fmt: skip

    def __init__(self, allocation: Allocation, byte_offset: int = 0, byte_length: int = WHOLE_BUFFER) -> None:
        """OUT_OF_RANGE for a range that is not inside."""
        whole = allocation.byte_length
        are_numbers = type(byte_offset) is int and type(byte_length) is int
        if not are_numbers or byte_offset or byte_length not in (WHOLE_BUFFER, whole):
            whole = _inside(whole, byte_offset, byte_length)
        self.allocation = allocation
        self.address = allocation.address + byte_offset
        self.host_address = None if allocation.host_address is None else allocation.host_address + byte_offset
        self.byte_offset = byte_offset
        self.byte_length = whole
        self.memory_type = allocation.memory_type
        self.allowed_usage = allocation.allowed_usage
        self.allowed_access = allocation.allowed_access
        self._array: NDArray[np.uint8] | None = None

    def fill_entry(self, table: HandleTable, address: int) -> None:
        """Address 0: machine code cannot use it."""
        word = (address - table.base) >> 2
        start, length, kind, usage = self.published()
        table.set_extent(address, start, length)
        table.i32[word + _ENTRY.access] = kind
        table.i32[word + _ENTRY.access + 1] = usage
        table.i32[word + _ENTRY.encoding] = self.allowed_access

    @property
    def is_writable(self) -> bool:
        """Whether kernels may write: not to memory that was imported read-only."""
        return bool(self.allowed_access & _WRITE)

    def published(self) -> tuple[int, int, int, int]:
        """Tells machine code where the memory is (0: it must ask Python), its bytes, type and usage. The type
        has the place, as in ENTRY.access."""
        place, kind = self.allocation.place, self.memory_type & (1 << PLACE_SHIFT) - 1
        if not place:
            return self.host_address or 0, self.byte_length, kind, self.allowed_usage
        address = 0 if place == UNTOLD else self.address
        return address, self.byte_length, kind | max(0, place) << PLACE_SHIFT, self.allowed_usage

    def __repr__(self) -> str:
        return (
            f"<hal.buffer of {self.byte_length} bytes, {names(MemoryType(self.memory_type))}, "
            f"{names(BufferUsage(self.allowed_usage))}>"
        )

    def range(self, offset: int, length: int) -> int:
        """The length of the range with WHOLE_BUFFER resolved; OUT_OF_RANGE when it is not inside."""
        return _inside(self.byte_length, offset, length)

    def subspan(self, offset: int, length: int = WHOLE_BUFFER) -> Buffer:
        """Makes a buffer over a part of this range; the whole is itself.

        OUT_OF_RANGE when it is not inside; an empty range at the very end is.
        """
        length = self.range(offset, length)
        offset = int(offset)
        if offset == 0 and length == self.byte_length:
            return self
        return type(self)(self.allocation, self.byte_offset + offset, length)

    def host_array(self) -> NDArray[np.uint8]:
        """Views the memory as a numpy array, read-only where writing is not allowed.

        The array keeps the memory. PERMISSION_DENIED for memory the host cannot see. Waits for nothing.
        """
        array = self._array
        if array is None:
            allocation = self.allocation
            if not self.memory_type & _HOST_VISIBLE or allocation.host_address is None:
                raise PermissionDeniedError(
                    f"the host cannot map a buffer of memory type {names(MemoryType(self.memory_type))}; "
                    "copy it to a host-visible buffer first"
                )
            array = np.asarray(allocation)[self.byte_offset : self.byte_offset + self.byte_length]
            self._array = array
        return array

    def host_view(self) -> memoryview:
        """As :meth:`host_array`, as a memoryview of bytes."""
        return self.host_array().data

    def preserve(self) -> None:
        self.allocation.preserve()

    def discard(self) -> bool:
        return self.allocation.discard()

    def is_terminal(self) -> bool:
        """Whether exactly one owner remains."""
        return self.allocation.owner_count == 1


_lengths: dict[int, dict[tuple[int, ...], int]] = {}
"""By element type and shape: programs make views of the same few again and again."""
_MOST_KNOWN: Final = 256
"""Element types, and shapes of each."""


def _byte_length(element_type: int, shape: tuple[int, ...]) -> int:
    length = _element_type(element_type).byte_length(shape)
    known = _lengths.setdefault(element_type, {})
    if max(len(_lengths), len(known)) > _MOST_KNOWN:
        _lengths.clear()
    known[shape] = length
    return length


class BufferView(Unique):
    """Gives a buffer a shape and an element type.

    ``element_type`` is a number of ``jitree.types``, ``encoding`` one of its ``ENCODING_*``. Users of a
    view may rely on its buffer having all of its elements, if they are dense: kernels do.
    """

    VM_TYPE: Final = "hal.buffer_view"
    __slots__ = ("__weakref__", "_published", "buffer", "element_type", "elements", "encoding", "shape")

    def __init__(
        self, buffer: Buffer, shape: tuple[int, ...], element_type: int, encoding: int = ENCODING_DENSE
    ) -> None:
        """Makes a view. OUT_OF_RANGE for shapes that no tensor can have, and that the buffer is too short
        for."""
        try:
            needed = _lengths[element_type][shape]
        except KeyError:
            needed = _byte_length(element_type, shape)
        if needed > buffer.byte_length and encoding == ENCODING_DENSE:
            raise OutOfRangeError(
                f"a buffer of {buffer.byte_length} bytes cannot be viewed as "
                f"`{format_shaped_type(shape, _element_type(element_type))}`, which has {needed}"
            )
        self.buffer = buffer
        self.shape = shape
        self.element_type = element_type
        self.encoding = encoding
        self.elements: NDArray[Any] | None = None
        """An array over the memory, if one has been made."""
        self._published: tuple[array[int], array[int]] | None = None
        """The words of its entry and of the entry's extension."""

    def fill_entry(self, table: HandleTable, address: int) -> None:
        """What programs ask of a view, and what its buffer would publish."""
        if self._published is None:
            buffer, rank = self.buffer, len(self.shape)
            words = _PUBLISHED.pack(
                *buffer.published(), self.element_type, self.encoding, rank, OWNER_PYTHON
            )  # fmt: skip
            known = (*self.shape[:MAXIMUM_KNOWN_RANK], *(0,) * (MAXIMUM_KNOWN_RANK - rank))
            self._published = array("q", words), array("q", (*known, buffer.allowed_access))
        entry, extension = self._published
        word = (address - table.base) >> 3
        table.i64[word + _ENTRY.address : word + _AFTER_RANK] = entry
        word += table.extension >> 3
        table.i64[word : word + EXTENSION_SIZE // 8] = extension

    def __repr__(self) -> str:
        return f"<hal.buffer_view {format_shaped_type(self.shape, _element_type(self.element_type))}>"
