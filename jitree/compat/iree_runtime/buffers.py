"""Buffers, their views, and what the host sees of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from jitree.compat.iree_runtime.arguments import a, dtype, element, integer, of, size, sizes, takes
from jitree.compat.iree_runtime.references import Reference
from jitree.compat.iree_runtime.variants import shown_type
from jitree.errors import InvalidArgumentError, OutOfRangeError
from jitree.hal import enums
from jitree.hal.buffer import Buffer, BufferView

_SHOWN_FIRST: Final = ("DEVICE_LOCAL", "HOST_LOCAL", "ALL", "TRANSFER", "DISPATCH_STORAGE", "DISPATCH_IMAGE",
                       "MAPPING")  # fmt: skip
"""Names of several bits that stand for their parts."""


def _flag_names(flags: Any, bits: int) -> str:
    """Names of sets of bits, then those of single bits that none of the sets names, as iree.runtime does."""
    members = {name: int(value) for name, value in flags.__members__.items()}
    found: list[str] = []
    rest = bits
    for name in (*(name for name in _SHOWN_FIRST if name in members), *members):
        value = members[name]
        if value and name not in found and bits & value == value and rest & value:
            found.append(name)
            rest &= ~value
    return "|".join(sorted(found, key=_place_in(members)) or ["NONE"])


def _place_in(members: dict[str, int]) -> Any:
    return lambda name: (name not in ("DEVICE_LOCAL", "HOST_LOCAL"), members[name] & -members[name])


def described(buffer: Buffer) -> str:
    """Bytes and properties of a buffer, as iree.runtime prints them."""
    return (
        f"{buffer.byte_length} bytes (at offset {buffer.byte_offset} into {buffer.allocation.byte_length}), "
        f"memory_type={_flag_names(enums.MemoryType, buffer.memory_type)}, "
        f"allowed_access={_flag_names(enums.MemoryAccess, buffer.allowed_access)}, "
        f"allowed_usage={_flag_names(enums.BufferUsage, buffer.allowed_usage)}"
    )


class Shape:
    """Dimensions of a view that a buffer is to have."""

    __slots__ = ("indices",)

    @takes(sizes)
    def __init__(self, indices: Sequence[int], /) -> None:
        self.indices = indices


class MappedMemory:
    """Memory of a buffer as the host sees it."""

    __slots__ = ("__weakref__", "_bytes")

    @takes(a(Buffer))
    def __init__(self, buffer: Buffer) -> None:
        """PERMISSION_DENIED for memory that the host cannot see."""
        self._bytes = buffer.host_array()

    @takes(sizes, dtype)
    def asarray(self, shape: Sequence[int], numpy_dtype_descr: Any) -> Any:
        """The elements, over the memory itself, which lives as long as the array.

        OUT_OF_RANGE for more than there is.
        """
        kind = numpy_dtype_descr
        if kind.hasobject or not kind.itemsize:
            raise TypeError(f"asarray(): elements of type {kind} are no memory of a device")
        needed = math.prod(shape) * kind.itemsize
        if needed > len(self._bytes):
            raise OutOfRangeError(
                f"{len(self._bytes)} bytes of mapped memory have no room for {shape} of {kind}, "
                f"which takes {needed}"
            )
        return self._bytes[:needed].view(kind).reshape(shape)


class HalBuffer(Reference):
    """A range of device memory."""

    __slots__ = ()
    wrapped = Buffer

    def byte_length(self) -> int:
        return int(self.raw.byte_length)

    def memory_type(self) -> int:
        return int(self.raw.memory_type)

    def allowed_usage(self) -> int:
        return int(self.raw.allowed_usage)

    @takes(size, size)
    def fill_zero(self, byte_offset: int, byte_length: int) -> None:
        """OUT_OF_RANGE outside of the buffer, PERMISSION_DENIED where the host cannot write."""
        length = self.raw.range(byte_offset, byte_length)
        self.raw.host_array()[byte_offset : byte_offset + length] = 0

    def map(self) -> MappedMemory:
        return MappedMemory(self.raw)

    @takes(a(Shape), integer(1, 2**24))
    def create_view(self, shape: Shape, element_size: int) -> HalBufferView:
        """A view of opaque elements of so many bytes."""
        return HalBufferView(self, shape.indices, element_size * 8)

    def __repr__(self) -> str:
        return f"<HalBuffer {described(self.raw)}>"


class HalBufferView(Reference):
    """A buffer with shape and element type."""

    __slots__ = ()
    wrapped = BufferView

    @takes(of(Buffer), sizes, element)
    def __init__(self, buffer: HalBuffer, shape: Sequence[int], element_type: int) -> None:
        """OUT_OF_RANGE for a buffer that is too short: kernels rely on it."""
        if not element_type:
            raise InvalidArgumentError("HalBufferView(): elements of no type")
        self.raw = BufferView(buffer.raw, tuple(shape), element_type)

    @property
    def shape(self) -> list[int]:
        return list(self.raw.shape)

    @property
    def element_type(self) -> int:
        return int(self.raw.element_type)

    @property
    def byte_length(self) -> int:
        """Bytes of its elements."""
        from jitree.types import element_type

        return element_type(self.raw.element_type).byte_length(self.raw.shape)

    def get_buffer(self) -> HalBuffer:
        return HalBuffer.of(self.raw.buffer)

    def map(self) -> MappedMemory:
        return MappedMemory(self.raw.buffer)

    def __repr__(self) -> str:
        shape = ", ".join(map(str, self.raw.shape))
        return (
            f"<HalBufferView ({shape}), element_type=0x{shown_type(self.raw.element_type)}, "
            f"{described(self.raw.buffer)}>"
        )
