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
from ctypes import CFUNCTYPE, POINTER, c_int32, c_size_t, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Final

from jitree.base.memory import c_fields
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
    _fields_ = c_fields("version:uint32 attributes:size_t imports:size_t exports:size_t internals:size_t")


class CDependency(ctypes.Structure):
    _fields_ = (("name", String), ("minimum_version", c_uint32), ("flags", c_uint32))


class Descriptor(ctypes.Structure):
    """The description of a ref type; its address is a multiple of 8."""

    _fields_ = (("destroy", c_void_p), ("name", String), ("counter", c_uint64))


class CModule(ctypes.Structure):
    _fields_ = c_fields(
        "self:void_p count:int32 destroy:void_p name:void_p signature:void_p enumerate_dependencies:void_p "
        "get_module_attr:void_p lookup_function:void_p get_function:void_p get_function_attr:void_p "
        "resolve_source_location:void_p alloc_state:void_p free_state:void_p fork_state:void_p "
        "resolve_import:void_p notify:void_p begin_call:void_p resume_call:void_p"
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

    _fields_ = c_fields("payloads:void_p last_payload:void_p file:void_p line:uint32 message:String", String)


class StatusPayload(ctypes.Structure):
    _fields_ = c_fields(
        "next:void_p type:int32 allocator:CAllocator formatter:void_p message:String", CAllocator, String
    )


PAYLOAD_MESSAGE: Final = 1
"""Type of the payloads that have a message."""


class RegisteredType(ctypes.Structure):
    _fields_ = (("descriptor", c_void_p), ("count", c_uint32))


class CInstance(ctypes.Structure):
    """Followed by ``capacity`` registered types. The mutex is one word, 0 when free."""

    _fields_ = c_fields(
        "count:int32 allocator:CAllocator mutex:int32 capacity:uint16 type_count:uint16", CAllocator
    )


class Stack(ctypes.Structure):
    _fields_ = c_fields(
        "top:void_p capacity:size_t size:size_t storage:void_p flags:uint32 owns_storage:bool "
        "resolver_self:void_p resolve_state:void_p allocator:CAllocator",
        CAllocator,
    )


class CFrame(ctypes.Structure):
    """Followed by ``data_size`` bytes. A multiple of 16."""

    _fields_ = c_fields(
        "size:size_t parent:void_p data_size:size_t cleanup:void_p type:int32 function:CFunction "
        "state:void_p position:int64 depth:int32",
        CFunction,
    )


FRAME_PUBLIC: Final = CFrame.type.offset
"""Where the part begins that cleanup functions are given."""
FRAME_EXTERNAL: Final = 0
FRAME_WAIT: Final = 3


class CBuffer(ctypes.Structure):
    """``vm.buffer``."""

    _fields_ = c_fields(
        "count:int32 access:uint32 data:CSpan allocator:CAllocator storage_module:void_p", CSpan, CAllocator
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

    _fields_ = c_fields(
        "count:int32 functions:void_p allocated:void_p allocation_size:uint64 byte_offset:uint64 "
        "byte_length:uint64 device:void_p queue_affinity:uint64 placement_flags:uint32 "
        "placement_reserved:uint32 pooling_allocator:void_p owners:uint32 memory_type:uint32 "
        "allowed_usage:uint32 allowed_access:uint16 reserved:uint16 flags:uint32"
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
    """Lays out a buffer of ours. The snippet that maps reads where its memory is for the host."""

    _fields_ = (("buffer", HalBuffer), ("host_address", c_void_p))


class View(ctypes.Structure):
    """Followed by the dimensions. Code in libraries frees it by its allocator."""

    _fields_ = c_fields(
        "count:int32 allocator:CAllocator buffer:void_p element_type:uint32 encoding:uint32 "
        "byte_length:uint64 rank:uint64",
        CAllocator,
    )


class Mapped(ctypes.Structure):
    """What mapping a buffer fills in."""

    _fields_ = c_fields(
        "contents:CSpan buffer:void_p byte_offset:uint64 access:uint16 flags:uint32 reserved:uint64", CSpan
    )


class BufferParameters(ctypes.Structure):
    _fields_ = c_fields(
        "usage:uint32 access:uint16 memory_type:uint32 queue_affinity:uint64 alignment:uint64"
    )


class OwnAllocator(ctypes.Structure):
    """The snippet that allocates calls ``allocate``."""

    _fields_ = c_fields("count:int32 functions:void_p host_allocator:CAllocator allocate:void_p", CAllocator)


class OwnDevice(ctypes.Structure):
    _fields_ = c_fields(
        "count:int32 functions:void_p id:String host_allocator:CAllocator device_allocator:void_p",
        String,
        CAllocator,
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
