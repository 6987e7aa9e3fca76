"""The host module ``hal_inline``: buffers of programs whose kernels are part of their own bytecode.

There are no devices or queues: buffers are host memory, and everything has happened when a call returns.
"""

# ruff: noqa: E501 - one import, one line where it fits

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Final

from jitree.dispatch.host_export import HostExport
from jitree.dispatch.host_module import HostModule
from jitree.errors import OutOfRangeError
from jitree.hal.allocator import Allocator
from jitree.hal.buffer import Allocation, Buffer
from jitree.hal.enums import BufferUsage, MemoryAccess, MemoryType
from jitree.hal.executable import ExecutableLoader
from jitree.modules.hal import buffer, buffer_view
from jitree.modules.hal.module import CheckedExport
from jitree.modules.hal.references import ImportRow, register_hal_types
from jitree.modules.hal.state import TraceSink
from jitree.modules.hal.trace import write_to_stderr
from jitree.modules.hal.values import text
from jitree.regs.objects import VmBuffer
from jitree.regs.ref_types import RefTypes

if TYPE_CHECKING:
    from jitree.dispatch.host_module import ModuleContext

_MEMORY_TYPE: Final = int(MemoryType.HOST_LOCAL | MemoryType.DEVICE_VISIBLE)
_USAGE: Final = int(BufferUsage.TRANSFER | BufferUsage.DISPATCH_STORAGE | BufferUsage.MAPPING)
_PROCESSOR: Final = "hal.cpu"


class HalInlineModule(HostModule):
    """``allocator`` provides host memory; ``loaders`` know the processor's features, which programs ask for."""

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

    def exports(self) -> Iterable[HostExport]:
        return _exports()

    def register_types(self, ref_types: RefTypes) -> None:
        register_hal_types(ref_types)

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


_VIEW: Final = "buffer_view: hal.buffer_view"

ROWS: Final = (
    ImportRow("buffer.allocate", "0iI_rr", "minimum_alignment, allocation_size", allocate),
    ImportRow("buffer.allocate.initialized", "0irII_rr", "minimum_alignment, source: vm.buffer, offset, length",
        allocate_initialized),
    ImportRow("buffer.wrap", "0rII_r", "source: vm.buffer, offset, length", wrap),
    ImportRow("buffer.subspan", "0rII_r", "source_buffer: hal.buffer, source_offset, length", buffer.subspan),
    ImportRow("buffer.length", "0r_I", "buffer: hal.buffer", buffer.length),
    ImportRow("buffer.storage", "0r_r", "buffer: hal.buffer", storage),
    ImportRow("buffer_view.create", "0rIIiiCID_r",
        "buffer: hal.buffer, source_offset, source_length, element_type, encoding_type, [dim]", buffer_view.create),
    ImportRow("buffer_view.assert", "0rriiCID_v", f"{_VIEW}, message: vm.buffer, element_type, encoding_type, [dim]",
        buffer_view.assert_),
    ImportRow("buffer_view.buffer", "0r_r", _VIEW, buffer_view.buffer),
    ImportRow("buffer_view.element_type", "0r_i", _VIEW, buffer_view.element_type_),
    ImportRow("buffer_view.encoding_type", "0r_i", _VIEW, buffer_view.encoding_type),
    ImportRow("buffer_view.rank", "0r_i", _VIEW, buffer_view.rank),
    ImportRow("buffer_view.dim", "0ri_I", f"{_VIEW}, index", buffer_view.dim),
    ImportRow("buffer_view.trace", "0rCrD_v", f"key: vm.buffer, [{_VIEW}]", buffer_view.trace),
    ImportRow("device.query.i64", "0rr_iI", "category: vm.buffer, key: vm.buffer", device_query_i64),
)  # fmt: skip
"""Imports of all releases."""


@cache
def _exports() -> tuple[HostExport, ...]:
    return tuple(CheckedExport(row, HalInlineModule.name) for row in ROWS)
