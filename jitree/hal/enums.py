"""Names the bits and numbers that compiled modules pass to the HAL.

Objects keep the bits as plain integers (an operation of flags costs ten times an integer one); these
classes name them: ``MemoryType(buffer.memory_type)``.
"""

from __future__ import annotations

from typing import Final

from jitree.base.records import Flags


class MemoryType(Flags):
    """Says where memory lies and what can reach it."""

    NONE = 0
    OPTIMAL = 0x1
    HOST_VISIBLE = 0x2
    HOST_COHERENT = 0x4
    HOST_CACHED = 0x8
    DEVICE_VISIBLE = 0x10
    DEVICE_LOCAL = 0x30
    HOST_LOCAL = 0x46


class BufferUsage(Flags):
    """Says what a buffer may be used for."""

    NONE = 0
    TRANSFER_SOURCE = 0x1
    TRANSFER_TARGET = 0x2
    TRANSFER = 0x3
    DISPATCH_INDIRECT_PARAMETERS = 0x100
    DISPATCH_UNIFORM_READ = 0x200
    DISPATCH_STORAGE_READ = 0x400
    DISPATCH_STORAGE_WRITE = 0x800
    DISPATCH_STORAGE = 0xC00
    DEFAULT = 0xC03
    DISPATCH_IMAGE_READ = 0x1000
    DISPATCH_IMAGE_WRITE = 0x2000
    DISPATCH_IMAGE = 0x3000
    SHARING_EXPORT = 0x10000
    SHARING_REPLICATE = 0x20000
    SHARING_CONCURRENT = 0x40000
    SHARING_IMMUTABLE = 0x80000
    MAPPING_SCOPED = 0x1000000
    MAPPING_PERSISTENT = 0x2000000
    MAPPING_OPTIONAL = 0x4000000
    MAPPING_ACCESS_RANDOM = 0x8000000
    MAPPING = 0x9000000
    MAPPING_ACCESS_SEQUENTIAL_WRITE = 0x10000000


class MemoryAccess(Flags):
    NONE = 0
    READ = 0x1
    WRITE = 0x2
    DISCARD = 0x4
    DISCARD_WRITE = 0x6
    ALL = 0x7
    MAY_ALIAS = 0x8
    UNALIGNED = 0x10
    ANY = 0x20
    PRIVATE = 0x40
    """Of jitree: kernels may store to it though it is constant (ACCESS_PRIVATE)."""


class BufferCompatibility(Flags):
    """Says what an allocator can do with memory of given properties."""

    NONE = 0
    ALLOCATABLE = 0x1
    IMPORTABLE = 0x2
    EXPORTABLE = 0x4
    QUEUE_TRANSFER = 0x400
    QUEUE_DISPATCH = 0x800


class CachingMode(Flags):
    """Says what a loader may do with the bytes of an executable."""

    NONE = 0
    ALIAS_PROVIDED_DATA = 0x1
    """They stay as they are for the life of the executable: no copy is needed."""


def names(flags: Flags) -> str:
    """``"TRANSFER_SOURCE|MAPPING"``, for messages."""
    return flags.name or "NONE"


QUEUE_AFFINITY_ANY: Final = -1
"""All bits of the 64-bit set of queues."""
WHOLE_BUFFER: Final = -1
"""The length that means the rest of the buffer after the offset."""

NOTHING: Final = 0
READING: Final = 1
WRITING: Final = 2
"""What pending calls do to memory of the host (:mod:`jitree.hal.memory_order`), the most of any of them."""

MAXIMUM_RANK: Final = 128
"""Of a buffer view that a program makes."""
MAXIMUM_UPDATE: Final = 65536
"""Bytes of one ``update_buffer`` or ``queue.update``."""
MAXIMUM_BINDINGS: Final = 32
"""The most bindings of one dispatch."""
MAXIMUM_SET_BINDINGS: Final = 32
"""The most bindings of one descriptor set, in ABI 0.2 to 0.4."""
MAXIMUM_CONSTANTS: Final = 64
"""32-bit words that programs of ABI 0.2 to 0.4 can push into a command buffer."""
MAXIMUM_PAYLOAD: Final = 2**63 - 1
"""The highest payload of a timeline semaphore."""
