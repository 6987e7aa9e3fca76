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
from jitree.modules.hal.native.supply import Supplier
from jitree.modules.import_rows import text
from jitree.regs.buffer import VmBuffer

if TYPE_CHECKING:
    from jitree.dispatch.host_module import ModuleContext
    from jitree.hal.device import Device

_MEMORY_TYPE: Final = int(MemoryType.HOST_LOCAL | MemoryType.DEVICE_VISIBLE)
_USAGE: Final = int(BufferUsage.TRANSFER | BufferUsage.DISPATCH_STORAGE | BufferUsage.MAPPING)
_PROCESSOR: Final = "hal.cpu"


class HalInlineModule(RowModule):
    """``allocator`` provides host memory, ``devices`` that of machine code; ``loaders`` know the processor's
    features."""

    name = "hal_inline"
    version = 0

    def __init__(
        self,
        allocator: Allocator,
        loaders: Sequence[ExecutableLoader] = (),
        *,
        trace_sink: TraceSink | None = write_to_stderr,
        devices: Sequence[Device] = (),
    ) -> None:
        self.allocator = allocator
        self.loaders = tuple(loaders)
        self.trace_sink = trace_sink
        self.devices = tuple(devices)

    def create_state(self, context: ModuleContext) -> InlineState:
        return InlineState(self, Supplier(context.table, self.devices))

    def free_state(self, state: object) -> None:
        assert isinstance(state, InlineState)
        state.supplier.close()


class InlineState:
    """State of the module in one context."""

    __slots__ = ("allocator", "loaders", "supplier", "trace_sink")

    def __init__(self, module: HalInlineModule, supplier: Supplier) -> None:
        self.allocator = module.allocator
        self.loaders = module.loaders
        self.trace_sink = module.trace_sink
        self.supplier = supplier


def allocate(state: InlineState, alignment: int, size: int) -> tuple[Buffer, VmBuffer]:
    allocated = state.allocator.allocate(_MEMORY_TYPE, _USAGE, size, alignment=alignment)
    return allocated, storage(state, allocated)


def allocate_initialized(
    state: InlineState, alignment: int, source: VmBuffer, offset: int, length: int
) -> tuple[Buffer, VmBuffer]:
    """A copy of a range of a VM buffer."""
    _check_range(source, offset, length)
    allocated, target = allocate(state, alignment, length)
    target.view[:] = source.view[offset : offset + length]
    return allocated, target


def wrap(state: InlineState, source: VmBuffer, offset: int, length: int) -> Buffer:
    """Wraps a range of a VM buffer as a HAL buffer that shares memory."""
    _check_range(source, offset, length)
    address = source.address + offset
    access = MemoryAccess.ALL if source.writable else MemoryAccess.READ
    allocation = Allocation(
        address, length, _MEMORY_TYPE, _USAGE, int(access), host_address=address, source=source
    )
    return Buffer(allocation)


def storage(state: InlineState, source: Buffer) -> VmBuffer:
    """The memory of a buffer, shared and kept. PERMISSION_DENIED for memory that the host cannot see."""
    return VmBuffer.alias(source.host_array())


def device_query_i64(state: InlineState, category: VmBuffer, key: VmBuffer) -> tuple[int, int]:
    """(1, value) of a feature of the processor, (0, 0) for anything else."""
    if text(category) == _PROCESSOR:
        for loader in state.loaders:
            value = loader.query_i64(_PROCESSOR, text(key))
            if value is not None:
                return 1, value
    return 0, 0


def _check_range(source: VmBuffer, offset: int, length: int) -> None:
    if not 0 <= offset <= offset + length <= source.length:
        raise OutOfRangeError(
            f"bytes {offset} to {offset + length} are outside a buffer of {source.length} bytes"
        )
