"""What a buffer holds, as the host sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jitree.elements import Bytes
from jitree.hal.enums import BufferUsage, MemoryType
from jitree.hal.fence import Fence

if TYPE_CHECKING:
    from jitree.hal.buffer import Buffer
    from jitree.hal.device import Device

_HOST_VISIBLE: Final = int(MemoryType.HOST_VISIBLE)
_STAGING: Final = int(MemoryType.HOST_LOCAL | MemoryType.DEVICE_VISIBLE)
_STAGING_USAGE: Final = int(BufferUsage.TRANSFER | BufferUsage.MAPPING)
_ANY_QUEUE: Final = -1


def host_bytes(buffer: Buffer, device: Device) -> Bytes:
    """The bytes of a buffer: over its own memory where the host can see it, else a copy."""
    if buffer.memory_type & _HOST_VISIBLE:
        return buffer.host_array()
    staging = device.device_allocator.allocate(_STAGING, _STAGING_USAGE, buffer.byte_length)
    done = Fence.create(device)
    device.queue_copy(_ANY_QUEUE, None, done, buffer, 0, staging, 0, buffer.byte_length)
    done.wait()
    return staging.host_array()
