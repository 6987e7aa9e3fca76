"""Answer ``hal.buffer.*``: check, read and write bytes of buffers."""

from __future__ import annotations

from jitree.errors import InvalidArgumentError, OutOfRangeError, PermissionDeniedError
from jitree.hal.allocator import Allocator
from jitree.hal.buffer import Buffer
from jitree.hal.device import Device
from jitree.hal.enums import BufferUsage, MemoryAccess, MemoryType, names
from jitree.modules.hal.module import HalState
from jitree.modules.import_rows import text
from jitree.regs.buffer import VmBuffer


def assert_(
    state: HalState,
    buffer: Buffer,
    message: VmBuffer,
    allocator: Allocator,
    minimum_length: int,
    memory_types: int,
    usage: int,
) -> None:
    """What a program demands of a caller's buffer: length, and all of the memory and usage bits."""
    if (
        buffer.byte_length >= minimum_length
        and not memory_types & ~buffer.memory_type
        and not usage & ~buffer.allowed_usage
    ):
        return
    subject = text(message)
    if buffer.byte_length < minimum_length:
        raise InvalidArgumentError(
            f"{subject} buffer byte length too small; expected at least {minimum_length} but have "
            f"{buffer.byte_length}"
        )
    if memory_types & ~buffer.memory_type:
        raise PermissionDeniedError(
            f"{subject} buffer memory type is not compatible; expected {names(MemoryType(memory_types))} "
            f"but have {names(MemoryType(buffer.memory_type))}"
        )
    raise PermissionDeniedError(
        f"{subject} buffer usage is not compatible; expected {names(BufferUsage(usage))} but have "
        f"{names(BufferUsage(buffer.allowed_usage))}"
    )


def load(state: HalState, source: Buffer, offset: int, length: int) -> int:
    """1 to 4 bytes, little endian, extended with zeros. Waits for nothing but what calls have owed."""
    data = _scalar(source, offset, length, MemoryAccess.READ)
    return int.from_bytes(data, "little", signed=length == 4)


def store(state: HalState, value: int, target: Buffer, offset: int, length: int) -> None:
    """The low 1 to 4 bytes of the value."""
    data = _scalar(target, offset, length, MemoryAccess.WRITE)
    data[:] = (value & 0xFFFFFFFF).to_bytes(4, "little")[:length]


def _scalar(buffer: Buffer, offset: int, length: int, access: int) -> memoryview:
    if not 0 <= length <= 4:
        raise InvalidArgumentError(f"a scalar of {length} bytes in a buffer; must be 1 to 4")
    if offset < 0 or offset + length > buffer.byte_length:
        raise OutOfRangeError(
            f"bytes {offset} to {offset + length} are outside a buffer of {buffer.byte_length} bytes"
        )
    if not buffer.allowed_access & access:
        raise PermissionDeniedError(f"the buffer does not allow access {names(MemoryAccess(access))}")
    view = buffer.host_view()[offset : offset + length]
    device = buffer.allocation.device()
    if isinstance(device, Device):
        device.await_owed()
    return view
