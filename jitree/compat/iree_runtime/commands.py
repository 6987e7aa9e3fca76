"""Command buffers, and futures of asyncio that semaphores settle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from jitree.compat.iree_runtime.arguments import (
    Reference,
    anything,
    flag,
    memory,
    of,
    optional,
    size,
    something,
    takes,
)
from jitree.compat.iree_runtime.fences import HalSemaphore
from jitree.compat.iree_runtime.hal import HalDevice, a_device
from jitree.errors import FailedPreconditionError, InvalidArgumentError, StatusError
from jitree.hal.buffer import Buffer
from jitree.hal.command_buffer import CommandBuffer, CommandBufferMode, CommandCategory
from jitree.hal.enums import WHOLE_BUFFER
from jitree.hal.fence import settling
from jitree.hal.semaphore import Semaphore

if TYPE_CHECKING:
    import asyncio

    from jitree.compat.iree_runtime.buffers import HalBuffer

_BARRIER_STAGES: Final = 0x1F
"""All stages."""


class HalCommandBuffer(Reference):
    """Commands that run one after the other."""

    __slots__ = ("_begun",)
    wrapped = CommandBuffer

    @takes(a_device, size, flag)
    def __init__(self, device: HalDevice, binding_capacity: int = 0, begin: bool = True) -> None:
        self.raw = device.raw.create_command_buffer(
            int(CommandBufferMode.DEFAULT), int(CommandCategory.ANY), binding_capacity=binding_capacity
        )
        self._begun = False
        if begin:
            self.begin()

    def begin(self) -> None:
        """FAILED_PRECONDITION when it records already."""
        if self._begun:
            raise FailedPreconditionError("command buffer is already in a recording state")
        self._begun = True

    @takes(of(Buffer), of(Buffer), size, size, optional(size), flag)
    def copy(
        self,
        source_buffer: HalBuffer,
        target_buffer: HalBuffer,
        source_offset: int = 0,
        target_offset: int = 0,
        length: int | None = None,
        end: bool = False,
    ) -> None:
        """Copies ``length`` bytes, None: all of the source, which must be as long as the target."""
        if length is None:
            length = source_buffer.raw.byte_length
            if length != target_buffer.raw.byte_length:
                raise ValueError(
                    "If length is not provided, source and target buffer length must match and it does not. "
                    "Provide explicit length="
                )
        self._require_begun()
        count = source_buffer.raw.range(source_offset, length)
        self.raw.copy_buffer(
            (0, source_buffer.raw, source_offset, count), (0, target_buffer.raw, target_offset, count)
        )
        self._order(end)

    @takes(of(Buffer), memory, size, optional(size), flag)
    def fill(
        self,
        target_buffer: HalBuffer,
        pattern: Any,
        target_offset: int = 0,
        length: int | None = None,
        end: bool = False,
    ) -> None:
        """Repeats the bytes of an array, 1, 2 or 4 of them."""
        self._require_begun()
        if len(pattern) not in (1, 2, 4):
            raise InvalidArgumentError(f"a pattern of {len(pattern)} bytes; it must have 1, 2 or 4")
        count = WHOLE_BUFFER if length is None else length
        self.raw.fill_buffer(
            (0, target_buffer.raw, target_offset, count), int.from_bytes(pattern, "little"), len(pattern)
        )
        self._order(end)

    def end(self) -> None:
        """FAILED_PRECONDITION when recording has ended."""
        self._require_begun()
        self.raw.finalize()

    def _order(self, end: bool) -> None:
        if end:
            self.end()
        else:
            self.raw.execution_barrier(_BARRIER_STAGES, _BARRIER_STAGES)

    def _require_begun(self) -> None:
        if not self._begun:
            raise FailedPreconditionError("command buffer is not in a recording state; call begin()")


class HalDeviceLoopBridge:
    """Futures of an event loop that are done when a semaphore reaches a value."""

    @takes(a_device, something)
    def __init__(self, device: HalDevice, loop: asyncio.AbstractEventLoop) -> None:
        self._device = device
        self._loop = loop
        self._is_stopped = False

    @takes(of(Semaphore), size, anything)
    def on_semaphore(self, semaphore: HalSemaphore, payload: int, value: Any) -> asyncio.Future[Any]:
        """A future whose result is ``value``. It fails with the semaphore."""
        if self._is_stopped:
            raise RuntimeError("the bridge has been stopped")
        future: asyncio.Future[Any] = self._loop.create_future()

        def reached(failure: StatusError | None) -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(*settling(future, value, failure))

        semaphore.raw.on_reached(payload, reached)
        return future

    def stop(self) -> None:
        """No more futures are made; those that are open stay so until their semaphores are signalled."""
        self._is_stopped = True
