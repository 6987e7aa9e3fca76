"""Provides ``hal_inline``, for programs whose kernels are part of their own bytecode. They get buffers.

There are no devices or queues: buffers are host memory, and everything has happened when a call returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from jitree.errors import InvalidArgumentError, OutOfRangeError, ResourceExhaustedError
from jitree.hal.allocator import Allocator
from jitree.hal.buffer import Allocation, Buffer
from jitree.hal.checks import OUTSIDE_BUFFER, refused
from jitree.hal.command_list import DIRECT, BoundCommands, CommandList, Range
from jitree.hal.enums import BufferUsage, MemoryAccess, MemoryType
from jitree.hal.executable import Executable, ExecutableCache, ExecutableLoader, LocalExecutable
from jitree.hal.local import executor
from jitree.modules.hal.devices import parameters_of
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
        raise refused(OUTSIDE_BUFFER, offset=offset, length=length, available=source.length)


# -- hal_loader: executables that programs run without a device, on the calling thread -------------------


MAXIMUM_BINDINGS: Final = 32
"""The most bindings of one dispatch."""


class HalLoaderModule(RowModule):
    """Takes executables from ``loaders``. Readers of ``device`` are told of what they are made to do."""

    name = "hal_loader"
    version = 1

    def __init__(self, loaders: Sequence[ExecutableLoader], device: Device) -> None:
        self.loaders = tuple(loaders)
        self.device = device

    def create_state(self, context: ModuleContext) -> LoaderState:
        return LoaderState(self, Supplier(context.table, (self.device,)))

    def free_state(self, state: object) -> None:
        assert isinstance(state, LoaderState)
        state.supplier.close()


class LoaderState(ExecutableCache):
    def __init__(self, module: HalLoaderModule, supplier: Supplier) -> None:
        super().__init__(module.name, module.loaders)
        self.device = module.device
        self.supplier = supplier


def load(
    cache: ExecutableCache, executable_format: VmBuffer, data: VmBuffer, constants: VmBuffer | None
) -> Executable:
    """NOT_FOUND when no loader takes the format; INVALID_ARGUMENT for constants that are not whole words."""
    return cache.prepare_executable(parameters_of(executable_format, data, constants))


def dispatch(
    cache: LoaderState,
    executable: LocalExecutable,
    function: int,
    x: int,
    y: int,
    z: int,
    constants: Sequence[int],
    bindings: Sequence[tuple[VmBuffer, int, int]],
) -> None:
    """Runs a grid of workgroups to its end.

    OUT_OF_RANGE for a function that the executable lacks and ranges outside their buffers,
    RESOURCE_EXHAUSTED for too many bindings, INVALID_ARGUMENT for other numbers of constants and bindings
    than the function takes; what the function fails with.
    """
    if len(bindings) > MAXIMUM_BINDINGS:
        raise ResourceExhaustedError(f"a dispatch with {len(bindings)} bindings; at most {MAXIMUM_BINDINGS}")
    if not 0 <= function < executable.function_count:
        raise OutOfRangeError(
            f"function {function} of an executable with {executable.function_count} functions"
        )
    _check_count("constants", executable.constant_count(function), len(constants), executable, function)
    _check_count("bindings", executable.binding_count(function), len(bindings), executable, function)
    ranges = [_range(*binding) for binding in bindings]
    commands = CommandList()
    grid = (x & 0xFFFFFFFF, y & 0xFFFFFFFF, z & 0xFFFFFFFF)
    commands.dispatch(executable, function, grid, constants, ranges)
    cache.supplier.learn_dispatch(commands)
    bound = BoundCommands(commands, *commands.bind(()))
    readers = cache.device.readers_of(commands) if cache.device.readers else ()
    if readers:
        from jitree.hal.stepwise import execute_stepwise

        execute_stepwise(_execute, readers, bound)
    else:
        _execute(bound)


def _execute(bound: BoundCommands) -> None:
    executor.execute(bound.commands, bound.addresses, bound.lengths, bound.accesses)


def _check_count(
    what: str, takes: int | None, given: int, executable: LocalExecutable, function: int
) -> None:
    if takes is not None and takes != given:
        name = executable.function_name(function) or f"function {function}"
        raise InvalidArgumentError(
            f"{name} of executable '{executable.name}' takes {takes} {what} but got {given}"
        )


def _range(buffer: VmBuffer, offset: int, length: int) -> Range:
    if not 0 <= offset <= offset + length <= buffer.length:
        raise OutOfRangeError(
            f"bytes {offset} to {offset + length} of a binding are outside its buffer of {buffer.length} "
            "bytes"
        )
    return DIRECT, buffer.address + offset, length, buffer.access  # ACCESS_* are MemoryAccess's bits
