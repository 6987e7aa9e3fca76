"""Memory layouts of the interface between a runtime and a C module.

Version 0.1, on 64-bit machines. The first part is published. The second is private to the runtime, but code
that libraries are linked with reads and writes it; it has been the same since 2023. Sizes are checked below,
what libraries do with it at each call (:mod:`.state`).

The third, buffers, views, devices and allocators of the HAL, is private to upstream's runtime too. Views and
the functions used here are the same in all releases from 20241104 to 3.13. Of buffers the first 48 bytes are,
which is what reading and writing takes; the memory type and what is allowed stand elsewhere before 3.4 and
before 3.1.
"""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, POINTER, c_int32, c_int64, c_size_t, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Final

from jitree.hal.enums import MemoryType

VERSION: Final = 1
"""The version of the interface: 0.1."""
DEFAULT_CREATE: Final = "iree_vm_dynamic_module_create"

LINKAGE_IMPORT: Final = 1
LINKAGE_EXPORT: Final = 2
LINKAGE_IMPORT_OPTIONAL: Final = 3
DEPENDENCY_OPTIONAL: Final = 2

CODE_MASK: Final = 31
"""The code in a status. The rest is the address of what is known about the failure, or 0."""
TYPE_MASK: Final = 7
"""Where the counter is, in the type of a ref, in units of 4 bytes. The rest is the descriptor's address."""


class String(ctypes.Structure):
    """A text that is not terminated."""

    _fields_ = (("data", c_void_p), ("size", c_size_t))


class CSpan(ctypes.Structure):
    _fields_ = (("data", c_void_p), ("size", c_size_t))


class Pair(ctypes.Structure):
    _fields_ = (("key", String), ("value", String))


class CAllocator(ctypes.Structure):
    _fields_ = (("self", c_void_p), ("control", c_void_p))


class CFunction(ctypes.Structure):
    _fields_ = (("module", c_void_p), ("linkage", c_uint16), ("ordinal", c_uint16))


class CCall(ctypes.Structure):
    """Passed by value.

    The caller owns the refs among the arguments; results pass to the caller.
    """

    _fields_ = (("function", CFunction), ("arguments", CSpan), ("results", CSpan))


class CSignature(ctypes.Structure):
    _fields_ = (
        ("version", c_uint32),
        ("attributes", c_size_t),
        ("imports", c_size_t),
        ("exports", c_size_t),
        ("internals", c_size_t),
    )


class CDependency(ctypes.Structure):
    _fields_ = (("name", String), ("minimum_version", c_uint32), ("flags", c_uint32))


class Descriptor(ctypes.Structure):
    """The description of a ref type; its address is a multiple of 8."""

    _fields_ = (("destroy", c_void_p), ("name", String), ("counter", c_uint64))


class CModule(ctypes.Structure):
    _fields_ = (
        ("self", c_void_p),
        ("count", c_int32),
        ("destroy", c_void_p),
        ("name", c_void_p),
        ("signature", c_void_p),
        ("enumerate_dependencies", c_void_p),
        ("get_module_attr", c_void_p),
        ("lookup_function", c_void_p),
        ("get_function", c_void_p),
        ("get_function_attr", c_void_p),
        ("resolve_source_location", c_void_p),
        ("alloc_state", c_void_p),
        ("free_state", c_void_p),
        ("fork_state", c_void_p),
        ("resolve_import", c_void_p),
        ("notify", c_void_p),
        ("begin_call", c_void_p),
        ("resume_call", c_void_p),
    )


Status = c_size_t
CREATE: Final = CFUNCTYPE(Status, c_uint32, c_void_p, c_size_t, POINTER(Pair), CAllocator, POINTER(c_void_p))
DEPENDENCY: Final = CFUNCTYPE(Status, c_void_p, POINTER(CDependency))
DESTROY: Final = CFUNCTYPE(None, c_void_p)
BEGIN_CALL: Final = CFUNCTYPE(Status, c_void_p, c_void_p, CCall)
GET_FUNCTION: Final = CFUNCTYPE(
    Status, c_void_p, c_int32, c_size_t, POINTER(CFunction), POINTER(String), POINTER(String)
)
FUNCTIONS: Final = {
    "destroy": DESTROY,
    "name": CFUNCTYPE(String, c_void_p),
    "signature": CFUNCTYPE(CSignature, c_void_p),
    "enumerate_dependencies": CFUNCTYPE(Status, c_void_p, DEPENDENCY, c_void_p),
    "get_module_attr": CFUNCTYPE(Status, c_void_p, c_size_t, POINTER(Pair)),
    "get_function": GET_FUNCTION,
    "get_function_attr": CFUNCTYPE(Status, c_void_p, c_int32, c_size_t, c_size_t, POINTER(Pair)),
    "alloc_state": CFUNCTYPE(Status, c_void_p, CAllocator, POINTER(c_void_p)),
    "free_state": CFUNCTYPE(None, c_void_p, c_void_p),
    "fork_state": CFUNCTYPE(Status, c_void_p, c_void_p, CAllocator, POINTER(c_void_p)),
    "resolve_import": CFUNCTYPE(
        Status, c_void_p, c_void_p, c_size_t, POINTER(CFunction), POINTER(String)
    ),
    "notify": CFUNCTYPE(Status, c_void_p, c_void_p, c_int32),
    "begin_call": BEGIN_CALL,
    "resume_call": CFUNCTYPE(Status, c_void_p, c_void_p, CSpan),
}  # fmt: skip
"""Types of the functions of :class:`CModule` that a host calls."""


# -- private to the runtime ------------------------------------------------------------------------------


class StatusStorage(ctypes.Structure):
    """What a status knows besides its code."""

    _fields_ = (
        ("payloads", c_void_p),
        ("last_payload", c_void_p),
        ("file", c_void_p),
        ("line", c_uint32),
        ("message", String),
    )


class StatusPayload(ctypes.Structure):
    _fields_ = (
        ("next", c_void_p),
        ("type", c_int32),
        ("allocator", CAllocator),
        ("formatter", c_void_p),
        ("message", String),
    )


PAYLOAD_MESSAGE: Final = 1
"""Type of the payloads that have a message."""


class RegisteredType(ctypes.Structure):
    _fields_ = (("descriptor", c_void_p), ("count", c_uint32))


class CInstance(ctypes.Structure):
    """Followed by ``capacity`` registered types. The mutex is one word, 0 when free."""

    _fields_ = (
        ("count", c_int32),
        ("allocator", CAllocator),
        ("mutex", c_int32),
        ("capacity", c_uint16),
        ("type_count", c_uint16),
    )


class Stack(ctypes.Structure):
    _fields_ = (
        ("top", c_void_p),
        ("capacity", c_size_t),
        ("size", c_size_t),
        ("storage", c_void_p),
        ("flags", c_uint32),
        ("owns_storage", ctypes.c_bool),
        ("resolver_self", c_void_p),
        ("resolve_state", c_void_p),
        ("allocator", CAllocator),
    )


class CFrame(ctypes.Structure):
    """Followed by ``data_size`` bytes. A multiple of 16."""

    _fields_ = (
        ("size", c_size_t),
        ("parent", c_void_p),
        ("data_size", c_size_t),
        ("cleanup", c_void_p),
        ("type", c_int32),
        ("function", CFunction),
        ("state", c_void_p),
        ("position", c_int64),
        ("depth", c_int32),
    )


FRAME_PUBLIC: Final = CFrame.type.offset
"""Where the part begins that cleanup functions are given."""
FRAME_EXTERNAL: Final = 0
FRAME_WAIT: Final = 3


class CBuffer(ctypes.Structure):
    """``vm.buffer``."""

    _fields_ = (
        ("count", c_int32),
        ("access", c_uint32),
        ("data", CSpan),
        ("allocator", CAllocator),
        ("storage_module", c_void_p),
    )


BUFFER_MUTABLE: Final = 1
BUFFER_FROM_HOST: Final = 8


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
    (CCall, 48), (CSignature, 40), (CModule, 144), (Descriptor, 32), (CDependency, 24), (StatusStorage, 48),
    (StatusPayload, 56), (CInstance, 32), (RegisteredType, 16), (Stack, 72), (CFrame, 80), (CBuffer, 48),
    (Resource, 16), (HalBuffer, 104), (OwnBuffer, 112), (View, 56), (Mapped, 48), (BufferParameters, 32),
    (OwnAllocator, 40), (OwnDevice, 56),
):  # fmt: skip
    assert ctypes.sizeof(_layout) == _size, _layout
assert ctypes.sizeof(c_size_t) == 8
