"""Semaphores in asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jitree.compat.iree_runtime.arguments import anything, of, size, something, takes
from jitree.compat.iree_runtime.fences import HalSemaphore
from jitree.compat.iree_runtime.hal import HalDevice, a_device
from jitree.errors import StatusError
from jitree.hal.semaphore import Semaphore

if TYPE_CHECKING:
    import asyncio


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

        def settle(failure: StatusError | None) -> None:
            if future.done():
                return
            if failure is None:
                future.set_result(value)
            else:
                future.set_exception(failure)

        def reached(failure: StatusError | None) -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(settle, failure)

        semaphore.raw.on_reached(payload, reached)
        return future

    def stop(self) -> None:
        """No more futures are made; those that are open stay so until their semaphores are signalled."""
        self._is_stopped = True
