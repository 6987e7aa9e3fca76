"""The host module ``hal_inline``: buffers of programs whose kernels are part of their own bytecode.

There are no devices or queues: buffers are host memory, and everything has happened when a call returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from jitree.errors import OutOfRangeError
from jitree.hal.allocator import Allocator
from jitree.hal.buffer import Allocation, Buffer
from jitree.hal.enums import BufferUsage, MemoryAccess, MemoryType
from jitree.hal.executable import ExecutableLoader
from jitree.modules.hal.module import RowModule, TraceSink, write_to_stderr
from jitree.modules.import_rows import text
from jitree.regs.objects import VmBuffer

if TYPE_CHECKING:
    from jitree.dispatch.host_module import ModuleContext

_MEMORY_TYPE: Final = int(MemoryType.HOST_LOCAL | MemoryType.DEVICE_VISIBLE)
_USAGE: Final = int(BufferUsage.TRANSFER | BufferUsage.DISPATCH_STORAGE | BufferUsage.MAPPING)
_PROCESSOR: Final = "hal.cpu"


class HalInlineModule(RowModule):
    """``allocator`` provides host memory; ``loaders`` know the processor's features."""

    name = "hal_inline"
    version = 0

    def __init__(
        self,
        allocator: Allocator,
        loaders: Sequence[ExecutableLoader] = (),
        *,
        trace_sink: TraceSink | None = write_to_stderr,
    ) -> None:
        self.allocator = allocator
        self.loaders = tuple(loaders)
        self.trace_sink = trace_sink

    def create_state(self, context: ModuleContext) -> HalInlineModule:
        """The module itself: it keeps nothing."""
        return self


def allocate(module: HalInlineModule, alignment: int, size: int) -> tuple[Buffer, VmBuffer]:
    allocated = module.allocator.allocate(_MEMORY_TYPE, _USAGE, size, alignment=alignment)
    return allocated, storage(module, allocated)


def allocate_initialized(
    module: HalInlineModule, alignment: int, source: VmBuffer, offset: int, length: int
) -> tuple[Buffer, VmBuffer]:
    """A copy of a range of a VM buffer."""
    _check_range(source, offset, length)
    allocated, target = allocate(module, alignment, length)
    target.view[:] = source.view[offset : offset + length]
    return allocated, target


def wrap(module: HalInlineModule, source: VmBuffer, offset: int, length: int) -> Buffer:
    """A range of a VM buffer as a HAL buffer that shares its memory and keeps it."""
    _check_range(source, offset, length)
    address = source.address + offset
    access = MemoryAccess.ALL if source.writable else MemoryAccess.READ
    allocation = Allocation(
        address, length, _MEMORY_TYPE, _USAGE, int(access), host_address=address, source=source
    )
    return Buffer(allocation)


def storage(module: HalInlineModule, source: Buffer) -> VmBuffer:
    """The memory of a buffer, shared and kept. PERMISSION_DENIED for memory that the host cannot see."""
    return VmBuffer.alias(source.host_array())


def device_query_i64(module: HalInlineModule, category: VmBuffer, key: VmBuffer) -> tuple[int, int]:
    """(1, value) of a feature of the processor, (0, 0) for anything else."""
    if text(category) == _PROCESSOR:
        for loader in module.loaders:
            value = loader.query_i64(_PROCESSOR, text(key))
            if value is not None:
                return 1, value
    return 0, 0


def _check_range(source: VmBuffer, offset: int, length: int) -> None:
    if not 0 <= offset <= offset + length <= source.length:
        raise OutOfRangeError(
            f"bytes {offset} to {offset + length} are outside a buffer of {source.length} bytes"
        )
