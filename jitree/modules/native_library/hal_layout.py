"""Memory layouts of buffers, views, devices and allocators of the HAL, as code in libraries reads them.

They are private to upstream's runtime, whose code is linked into the libraries. Views and the functions used
here are the same in all releases from 20241104 to 3.13. Of buffers the first 48 bytes are, which is what
reading and writing takes; the memory type and what is allowed stand elsewhere before 3.4 and before 3.1.
"""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, POINTER, c_int32, c_size_t, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Final

from jitree.hal.enums import MemoryType
from jitree.modules.native_library.layout import CAllocator, CSpan, Status, String

_KNOWN_MEMORY_TYPES: Final = 0x7F
_KNOWN_ACCESS: Final = 0x3F
RELEASES: Final = "20241104 to 3.13"


class Resource(ctypes.Structure):
    """How everything but views and fences begins. The first function frees the object."""

    _fields_ = (("count", c_int32), ("functions", c_void_p))


class HalBuffer(ctypes.Structure):
    """A range of ``allocated``, which may be the buffer itself; since 3.4."""

    _fields_ = (
        ("count", c_int32),
        ("functions", c_void_p),
        ("allocated", c_void_p),
        ("allocation_size", c_uint64),
        ("byte_offset", c_uint64),
        ("byte_length", c_uint64),
        ("device", c_void_p),
        ("queue_affinity", c_uint64),
        ("placement_flags", c_uint32),
        ("placement_reserved", c_uint32),
        ("pooling_allocator", c_void_p),
        ("owners", c_uint32),
        ("memory_type", c_uint32),
        ("allowed_usage", c_uint32),
        ("allowed_access", c_uint16),
        ("reserved", c_uint16),
        ("flags", c_uint32),
    )


class Properties(ctypes.Structure):
    """The part of a buffer that has moved from release to release."""

    _fields_ = (("memory_type", c_uint32), ("allowed_usage", c_uint32), ("allowed_access", c_uint16))

    @property
    def plausible(self) -> bool:
        """Whether these are bits that exist, of memory that the host can see."""
        bits = 0 < self.memory_type <= _KNOWN_MEMORY_TYPES and 0 < self.allowed_access <= _KNOWN_ACCESS
        return bits and bool(self.memory_type & MemoryType.HOST_VISIBLE)


PROPERTIES: Final = (HalBuffer.memory_type.offset, 80, 72)
"""Where they are: since 3.4, since 3.1, before."""


class OwnBuffer(ctypes.Structure):
    """A buffer of ours; the snippet that maps reads where its memory is for the host."""

    _fields_ = (("buffer", HalBuffer), ("host_address", c_void_p))


class View(ctypes.Structure):
    """Followed by the dimensions. Code in libraries frees it by its allocator."""

    _fields_ = (
        ("count", c_int32),
        ("allocator", CAllocator),
        ("buffer", c_void_p),
        ("element_type", c_uint32),
        ("encoding", c_uint32),
        ("byte_length", c_uint64),
        ("rank", c_uint64),
    )


class Mapped(ctypes.Structure):
    """What mapping a buffer fills in."""

    _fields_ = (
        ("contents", CSpan),
        ("buffer", c_void_p),
        ("byte_offset", c_uint64),
        ("access", c_uint16),
        ("flags", c_uint32),
        ("reserved", c_uint64),
    )


class BufferParameters(ctypes.Structure):
    _fields_ = (
        ("usage", c_uint32),
        ("access", c_uint16),
        ("memory_type", c_uint32),
        ("queue_affinity", c_uint64),
        ("alignment", c_uint64),
    )


class OwnAllocator(ctypes.Structure):
    """The snippet that allocates calls ``allocate``."""

    _fields_ = (
        ("count", c_int32),
        ("functions", c_void_p),
        ("host_allocator", CAllocator),
        ("allocate", c_void_p),
    )


class OwnDevice(ctypes.Structure):
    _fields_ = (
        ("count", c_int32),
        ("functions", c_void_p),
        ("id", String),
        ("host_allocator", CAllocator),
        ("device_allocator", c_void_p),
    )


BUFFER_FUNCTIONS: Final = 6
"""Recycle, destroy, map, unmap, invalidate, flush."""
MAP: Final = 2
ALLOCATOR_FUNCTIONS: Final = 20
DEVICE_FUNCTIONS: Final = 64
"""More than there are: of a device only the first seven are the same in all releases."""

MAP_RANGE: Final = CFUNCTYPE(
    Status, c_void_p, c_uint32, c_uint32, c_uint64, c_uint64, POINTER(Mapped)
)  # fmt: skip
MAP_PERSISTENTLY: Final = 2
CONTROL: Final = CFUNCTYPE(Status, c_void_p, c_int32, c_void_p, c_void_p)
FREE: Final = 3

for _layout, _size in (
    (Resource, 16), (HalBuffer, 104), (OwnBuffer, 112), (View, 56), (Mapped, 48), (BufferParameters, 32),
    (OwnAllocator, 40), (OwnDevice, 56),
):  # fmt: skip
    assert ctypes.sizeof(_layout) == _size, _layout
assert ctypes.sizeof(c_size_t) == 8
