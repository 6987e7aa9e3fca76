"""Memory layouts of the interface between a runtime and a C module (version 0.1, 64-bit machines).

The first part is published. The second is private to the runtime, but code that libraries are linked with
reads and writes it; it has been the same since 2023. Sizes are checked below, what libraries do with
it at each call (:mod:`.stack`).
"""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, POINTER, c_int32, c_int64, c_size_t, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Final

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
    """Passed by value. The caller owns the refs among the arguments; results pass to the caller."""

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

for _layout, _size in (
    (CCall, 48), (CSignature, 40), (CModule, 144), (Descriptor, 32), (CDependency, 24), (StatusStorage, 48),
    (StatusPayload, 56), (CInstance, 32), (RegisteredType, 16), (Stack, 72), (CFrame, 80), (CBuffer, 48),
):  # fmt: skip
    assert ctypes.sizeof(_layout) == _size, _layout
