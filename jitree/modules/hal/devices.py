"""Answer ``hal.device.*``, ``hal.allocator.*``, ``hal.executable.*``; make channels, fences and files."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from jitree.base import cancel_scopes
from jitree.dispatch.engine import Pending
from jitree.errors import InvalidArgumentError, PermissionDeniedError, ResourceExhaustedError, StatusError
from jitree.hal.allocator import Allocator
from jitree.hal.buffer import Buffer
from jitree.hal.device import Device, fence_class
from jitree.hal.enums import BufferUsage, CachingMode, MemoryAccess, names
from jitree.hal.executable import Executable, ExecutableParameters
from jitree.modules.hal.module import HalState
from jitree.modules.import_rows import text
from jitree.regs.buffer import VmBuffer
from jitree.regs.layout import ACCESS_PRIVATE

if TYPE_CHECKING:
    from jitree.hal.command_buffer import CommandBuffer
    from jitree.hal.fence import Fence
    from jitree.hal.objects import Channel, File
    from jitree.hal.pipeline_layout import PipelineLayout


def fence_create(_state: HalState, device: Device, _flags: int) -> Fence:
    return fence_class().create(device)


def channel_create(
    state: HalState,
    device: Device,
    queue_affinity: int,
    flags: int,
    identifier: VmBuffer | None,
    group: VmBuffer | None,
    rank: int,
    count: int,
) -> Channel | Pending:
    """-1 and null: from the host's environment. Waits for other members, on an event loop beside it."""
    make = partial(
        device.create_channel,
        queue_affinity,
        None if identifier is None else bytes(identifier),
        None if group is None else text(group),
        rank,
        count,
        flags,
    )
    if not cancel_scopes.runs_here():
        return make()
    joining = Joining(make)
    return Pending(joining.wait, joining.resume, joining.awaitable)


def queue_execute(
    state: HalState,
    device: Device,
    queue_affinity: int,
    wait: Fence | None,
    signal: Fence | None,
    command_buffers: Sequence[CommandBuffer],
) -> None:
    """Runs a list's command buffers in order (ABI 0.2 to 0.5); none is a barrier. Errors in any of them are
    raised before the first is submitted."""
    if not command_buffers:
        device.queue_barrier(queue_affinity, wait, signal)
        return
    *earlier, last = command_buffers
    for index, commands in enumerate(command_buffers):
        commands.check_submission(index > 0 or wait is not None)
    for commands in earlier:
        done = fence_class().create(device)
        device.queue_execute(queue_affinity, wait, done, commands)
        wait = done
    device.queue_execute(queue_affinity, wait, signal, last)


class Joining:
    """Making a channel on any thread."""

    def __init__(self, make: Callable[[], Channel]) -> None:
        self._make = make
        self._made: Channel | None = None
        self._failure: StatusError | None = None

    def wait(self, timeout: float | None) -> bool:
        """Other members decide how long it takes, and the limits of the device."""
        try:
            self._made = self._make()
        except StatusError as error:
            self._failure = error
        return True

    async def awaitable(self) -> None:
        """On a thread that does not keep the event loop from ending."""
        import asyncio
        from concurrent.futures import Future
        from contextvars import copy_context  # the wait ends with the scope of the task
        from threading import Thread

        from jitree.base.platform.threads import thread_refusals

        done = Future[bool]()
        done.set_running_or_notify_cancel()  # the thread goes on when the task does not
        work = partial(copy_context().run, lambda: done.set_result(self.wait(None)))
        with thread_refusals("joining a group"):
            Thread(target=work, name="jitree joins a group", daemon=True).start()
        await asyncio.wrap_future(done)

    def resume(self) -> Channel:
        if self._failure is not None:
            raise self._failure
        assert self._made is not None
        return self._made


def file_from_memory(
    state: HalState,
    device: Device,
    queue_affinity: int,
    access: int,
    source: VmBuffer,
    offset: int,
    length: int,
    flags: int,
) -> File:
    """A file over the bytes of a host buffer, for reading only."""
    if access != MemoryAccess.READ:
        raise PermissionDeniedError(
            "a file over memory of the program can only be read; asked for access "
            f"{names(MemoryAccess(access))}"
        )
    return device.import_file(queue_affinity, access, source.view.toreadonly(), offset, length, flags)


def device_query_i64(state: HalState, device: Device, category: VmBuffer, key: VmBuffer) -> tuple[int, int]:
    """(1, value) or, for whatever reason there is no answer, (0, 0)."""
    try:
        known, value = device.query_i64(text(category), text(key))
    except StatusError:  # the program has to go on without an answer
        return 0, 0
    return (1, value) if known else (0, 0)


# -- hal.allocator.*: memory that is allocated and imported ----------------------------------------------


_IMMUTABLE: Final = int(BufferUsage.SHARING_IMMUTABLE)
_MAXIMUM_CANDIDATES: Final = 64
"""Devices that a placement policy is asked about at once."""


def import_(
    state: HalState,
    allocator: Allocator,
    try_import: int,
    queue_affinity: int,
    memory_types: int,
    usage: int,
    source: VmBuffer,
    offset: int,
    length: int,
) -> Buffer | None:
    """Makes a buffer over a host buffer's bytes, kept alive by it.

    Memory that the device cannot use in place gives null when ``try_import`` is set, else PERMISSION_DENIED.
    So do constants that the host has where the program may store to any: it makes a copy.
    """
    if length == -1:
        length = source.length - offset
    if not 0 <= offset <= offset + length <= source.length:
        raise InvalidArgumentError(
            f"bytes {offset} to {offset + length} to import are outside the source of {source.length} bytes"
        )
    immutable = bool(usage & _IMMUTABLE)
    if not source.writable and not immutable:
        raise PermissionDeniedError(
            "constant memory can only be imported with usage SHARING_IMMUTABLE; got "
            f"{names(BufferUsage(usage))}"
        )
    if try_import and not (source.writable or source.access & ACCESS_PRIVATE) and state.stores_to_constants:
        return None
    view = source.view[offset : offset + length]
    buffer = allocator.import_host(view.toreadonly() if immutable else view, memory_types, usage)
    if buffer is not None and immutable:
        access = buffer.allowed_access | source.access & ACCESS_PRIVATE
        buffer.allowed_access = buffer.allocation.allowed_access = access
    if buffer is None and not try_import:
        raise PermissionDeniedError(
            f"the device cannot use {length} bytes of host memory at offset {offset} in place"
        )
    return buffer


def select(
    state: HalState, memory_types: int, usage: int, flags: int, candidates: Sequence[tuple[Device, int]]
) -> tuple[Device, int]:
    """Chooses where memory is that several devices share: with the first unless the host has a policy."""
    if flags:
        raise InvalidArgumentError(f"allocator.select: unknown flags {flags:#x}")
    if not candidates:
        raise InvalidArgumentError("allocator.select needs at least one device")
    if state.placement is None:
        return candidates[0]
    if len(candidates) > _MAXIMUM_CANDIDATES:
        raise ResourceExhaustedError(
            f"allocator.select among {len(candidates)} devices; at most {_MAXIMUM_CANDIDATES}"
        )
    return state.placement(candidates, memory_types, usage)


# -- hal.executable.* ------------------------------------------------------------------------------------


def create_executable(
    state: HalState,
    device: Device,
    executable_format: VmBuffer,
    data: VmBuffer,
    constants: VmBuffer | None,
    layouts: Sequence[PipelineLayout] = (),
) -> Executable:
    """Loads an executable with the context's cache of that device.

    INVALID_ARGUMENT when the constants are not whole words; for the rest see ``ExecutableCache``.
    """
    parameters = parameters_of(executable_format, data, constants, layouts)
    executable = state.executable_cache(device).prepare_executable(parameters)
    state.supplier.expect(executable.function_count)
    return executable


def parameters_of(
    executable_format: VmBuffer,
    data: VmBuffer,
    constants: VmBuffer | None,
    layouts: Sequence[PipelineLayout] = (),
) -> ExecutableParameters:
    """What a program passes as loaders take it."""
    return ExecutableParameters(
        text(executable_format),
        data.view,
        constant_words(constants),
        CachingMode.NONE if data.writable else CachingMode.ALIAS_PROVIDED_DATA,
        tuple(layouts),
    )


def constant_words(constants: VmBuffer | None) -> tuple[int, ...]:
    """Little-endian u32 words; none for null."""
    if constants is None:
        return ()
    if constants.length % 4:
        raise InvalidArgumentError(f"executable constants of {constants.length} bytes; they are 32-bit words")
    return struct.unpack(f"<{constants.length // 4}I", constants.view)
