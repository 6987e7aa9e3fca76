"""Implements ``io_parameters``: load, gather and scatter as queue operations.

All three return at once, wait for a fence and reach another one when the bytes are where they belong. The
tables are looked up by the call itself, so that what is missing fails it. The operations of a call belong
together: they start after one fence and are done when the other one is reached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from jitree import errors
from jitree.base.cancel_scopes import require_going_on
from jitree.hal.allocator import HostMemory
from jitree.hal.buffer import Buffer
from jitree.hal.device import Device
from jitree.hal.enums import BufferUsage, MemoryAccess
from jitree.hal.fence import Fence
from jitree.modules.hal.module import RowModule
from jitree.modules.io_parameters.agreement import ReadingProgram, require_agreement
from jitree.modules.io_parameters.requests import (
    ParameterRequest,
    ScopeProvider,
    Tables,
    resolve,
    scope_name,
    told_in_turn,
)
from jitree.regs.list import VmList

if TYPE_CHECKING:
    from jitree.dispatch.host_module import ModuleContext

Operation = Callable[[Fence | None, Fence | None], None]
"""Submits itself between a wait and a signal fence."""

Where = tuple[Device, int, Fence | None, Fence | None]
"""Device, affinity of its queues, what to wait for, what to signal."""

_READ: Final = int(MemoryAccess.READ)
_WRITE: Final = int(MemoryAccess.WRITE)
_TOGETHER: Final = 256
"""Operations after which it looks whether the thread is to end."""
_FILL_LENGTHS: Final = (1, 2, 4)
"""Bytes of the patterns that queues fill with."""
_TILE: Final = 1 << 20
"""Bytes of other patterns that are copied at one time; a multiple of all pattern lengths."""

_TRANSFER_TARGET: Final = int(BufferUsage.TRANSFER_TARGET)
_SHARING_IMMUTABLE: Final = int(BufferUsage.SHARING_IMMUTABLE)


class Batch:
    """Collects operations of one call; :meth:`submit` queues them one after another.

    As a context it fails the signal fence when the call fails before all is queued: no other code would.
    """

    def __init__(self, device: Device, queue_affinity: int, wait: Fence | None, signal: Fence | None) -> None:
        self._device = device
        self._affinity = queue_affinity
        self._wait = wait
        self._signal = signal
        self._operations: list[Operation] = []
        self.memory = HostMemory(device.device_allocator.limited_charge)
        """Counts what the host has of the call."""

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.memory.end()
        if isinstance(error, errors.StatusError) and self._signal is not None:
            self._signal.fail(errors.again(error))

    def submit(self) -> None:
        """Queues what was added; without anything, a barrier between the fences."""
        device, affinity = self._device, self._affinity
        if not self._operations:
            device.queue_barrier(affinity, self._wait, self._signal)
            return
        timeline = device.create_semaphore(0) if len(self._operations) > 1 else None
        wait, last = self._wait, len(self._operations)
        for number, operation in enumerate(self._operations, 1):
            if number % _TOGETHER == 0:
                require_going_on()
            signal = self._signal
            if timeline is not None and number < last:
                signal = Fence(((timeline, number),))
            operation(wait, signal)
            wait = signal

    def read(self, source: memoryview, target: Buffer, offset: int) -> None:
        """Copies host bytes to ``offset`` of a buffer."""
        device, affinity, length = self._device, self._affinity, source.nbytes
        if not length:
            return
        file = device.import_file(affinity, _READ, source)
        self._operations.append(
            lambda wait, signal: device.queue_read(affinity, wait, signal, file, 0, target, offset, length)
        )

    def write(self, source: Buffer, offset: int, target: memoryview) -> None:
        """Copies bytes from ``offset`` of a buffer over all of ``target``."""
        device, affinity, length = self._device, self._affinity, target.nbytes
        if not length:
            return
        file = device.import_file(affinity, _WRITE, target)
        self._operations.append(
            lambda wait, signal: device.queue_write(affinity, wait, signal, source, offset, file, 0, length)
        )

    def fill(self, pattern: bytes, phase: int, target: Buffer, offset: int, length: int) -> None:
        """Repeats a pattern, from byte ``phase`` of it, over a range of a buffer."""
        if not length:
            return
        start = phase % len(pattern)
        pattern = _shortest(pattern[start:] + pattern[:start])
        size = len(pattern)
        if size in _FILL_LENGTHS and offset % size == 0 and length % size == 0:
            device, affinity, value = self._device, self._affinity, int.from_bytes(pattern, "little")
            self._operations.append(
                lambda wait, signal: device.queue_fill(
                    affinity, wait, signal, target, offset, length, value, size
                )
            )
            return
        tile = memoryview(pattern * (min(_TILE, length) // size + 1))
        for position in range(0, length, _TILE):
            self.read(tile[: min(_TILE, length - position)], target, offset + position)


def _shortest(pattern: bytes) -> bytes:
    """The shortest pattern that repeats to the same bytes."""
    half = len(pattern) // 2
    if half and pattern[:half] == pattern[half:]:
        return _shortest(pattern[:half])
    return pattern


class ParametersState:
    """The state of one context."""

    __slots__ = ("buffer_type", "program", "providers")

    def __init__(self, providers: Sequence[ScopeProvider], buffer_type: int, program: ReadingProgram) -> None:
        self.providers = providers
        self.program = program
        self.buffer_type = buffer_type
        """Number of the reference type ``hal.buffer``: of what lists of loaded parameters hold."""


def load(state: ParametersState, where: Where, tables: Tables, memory_types: int, usage: int) -> VmList:
    """A list of one buffer a span.

    Memory that the device can use where it is, such as a mapped file, is not copied when the program promises
    to leave it as it is (usage SHARING_IMMUTABLE), and keeps that as far as its bytecode says: what a
    variable starts with may be changed in place, by kernels that would fault on read-only pages.
    """
    with Batch(*where) as batch:
        requests = resolve(state.providers, tables, batch.memory)
        require_agreement(state.program, scope_name(tables), requests)
        is_left = bool(usage & _SHARING_IMMUTABLE) and not state.program.stores_to_constants(where[0].loaders)
        load_one = _used_in_place if is_left else _copied
        buffers = [
            load_one(where[0], batch, request, memory_types, usage) for request in told_in_turn(requests)
        ]
        batch.submit()
    loaded = VmList(state.buffer_type, len(buffers))
    for buffer in buffers:
        loaded.append(buffer)
    return loaded


def _used_in_place(
    device: Device, batch: Batch, request: ParameterRequest, memory_types: int, usage: int
) -> Buffer:
    """Makes a buffer over a parameter's memory if the device can use that. Otherwise it is as
    :func:`_copied`."""
    parameter, start, buffer_offset, length = request
    if parameter.pattern is None and not buffer_offset:
        source = parameter.contents()[start : start + length].toreadonly()
        imported = device.device_allocator.import_host(source, memory_types, usage)
        if imported is not None:
            for executable in device.executables:
                executable.add_constants(source)
            return imported
    return _copied(device, batch, request, memory_types, usage)


def _copied(device: Device, batch: Batch, request: ParameterRequest, memory_types: int, usage: int) -> Buffer:
    parameter, start, buffer_offset, length = request
    if buffer_offset:
        raise errors.InvalidArgumentError(
            f"parameter '{parameter.key}' is loaded into a separate buffer, where it cannot begin at "
            f"{buffer_offset}"
        )
    buffer = device.device_allocator.allocate(memory_types, usage | _TRANSFER_TARGET if usage else 0, length)
    _read(batch, ParameterRequest(parameter, start, 0, length), buffer)
    return buffer


def gather(state: ParametersState, where: Where, tables: Tables, target: Buffer) -> None:
    """Copies ranges of parameters into one buffer."""
    with Batch(*where) as batch:
        requests = resolve(state.providers, tables, batch.memory)
        require_agreement(state.program, scope_name(tables), requests)
        for request in told_in_turn(requests):
            target.range(request.buffer_offset, request.length)
            _read(batch, request, target)
        batch.submit()


def _read(batch: Batch, request: ParameterRequest, target: Buffer) -> None:
    parameter, start, offset, length = request
    if parameter.pattern is not None:
        batch.fill(parameter.pattern, start, target, offset, length)
    else:
        batch.read(parameter.contents()[start : start + length].toreadonly(), target, offset)


def scatter(state: ParametersState, where: Where, tables: Tables, source: Buffer) -> None:
    """Copies ranges of a buffer into parameters.

    FAILED_PRECONDITION for a splat, PERMISSION_DENIED for a parameter that was not opened for writing; then
    none is written.
    """
    with Batch(*where) as batch:
        for parameter, start, offset, length in told_in_turn(resolve(state.providers, tables, batch.memory)):
            if parameter.pattern is not None:
                raise errors.FailedPreconditionError(
                    f"parameter '{parameter.key}' is a repeated pattern, which cannot be written to"
                )
            if not parameter.writable:
                raise errors.PermissionDeniedError(f"parameter '{parameter.key}' is read-only")
            source.range(offset, length)
            batch.write(source, offset, parameter.contents()[start : start + length])
        batch.submit()


class IoParametersModule(RowModule):
    """``io_parameters`` over providers, of which the first one of a scope answers for it."""

    name = "io_parameters"
    version = 0

    def __init__(self, providers: Sequence[ScopeProvider] = ()) -> None:
        self.providers = tuple(providers)

    def create_state(self, context: ModuleContext) -> ParametersState:
        return ParametersState(
            self.providers, context.ref_types.lookup("hal.buffer"), ReadingProgram(context)
        )
