"""Answer ``hal.devices.*`` and ``hal.device.*``; make channels, fences and files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from jitree.base import cancel_scopes
from jitree.dispatch.engine import Pending
from jitree.errors import PermissionDeniedError, StatusError
from jitree.hal.device import fence_class
from jitree.hal.enums import MemoryAccess, names
from jitree.modules.import_rows import text

if TYPE_CHECKING:
    from jitree.hal.command_buffer import CommandBuffer
    from jitree.hal.device import Device
    from jitree.hal.fence import Fence
    from jitree.hal.objects import Channel, File
    from jitree.modules.hal.module import HalState
    from jitree.regs.buffer import VmBuffer


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

        done = Future[bool]()
        done.set_running_or_notify_cancel()  # the thread goes on when the task does not
        work = partial(copy_context().run, lambda: done.set_result(self.wait(None)))
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


def devices_count(state: HalState) -> int:
    return len(state.devices)


def devices_get(state: HalState, index: int) -> Device | None:
    """Null when there is no such device: programs walk the devices until one fits."""
    return state.devices[index] if 0 <= index < len(state.devices) else None


def device_query_i64(state: HalState, device: Device, category: VmBuffer, key: VmBuffer) -> tuple[int, int]:
    """(1, value) or, for whatever reason there is no answer, (0, 0)."""
    try:
        known, value = device.query_i64(text(category), text(key))
    except StatusError:  # the program has to go on without an answer
        return 0, 0
    return (1, value) if known else (0, 0)
