"""Makes fences: sets of timeline points that order queues and the host."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import cache, partial
from itertools import filterfalse
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final, Protocol

from jitree.base.arguments import items, object_of, seconds
from jitree.base.cancel_scopes import CURRENT
from jitree.base.finalizers import Unique
from jitree.errors import StatusCode, StatusError, again
from jitree.hal import watchdog
from jitree.hal.semaphore import ReachedCallback, Semaphore

if TYPE_CHECKING:
    import asyncio

    from jitree.hal.allocator import HostMemory
    from jitree.hal.waiting import Registered
    from jitree.regs.handles import HandleTable

    WhenReached = Callable[[tuple[tuple[Semaphore, int], ...], ReachedCallback], Sequence[Registered]]

    class Signaller(Protocol):
        """A device, which makes semaphores."""

        def create_semaphore(self, initial_value: int = 0) -> Semaphore: ...


class Fence(Unique):
    """Orders work by semaphores: reached when all have their values, failed when any fails.

    Where a fence may be None (wait and signal fences of queue operations), None means already reached.
    ``await fence`` works in any asyncio loop; the loop stays responsive.
    """

    VM_TYPE: Final = "hal.fence"
    __slots__ = ("__weakref__", "memory", "timepoints")

    memory: HostMemory
    """Counts what it has, where that is much and limited."""

    def __init__(self, timepoints: Iterable[tuple[Semaphore, int]] = ()) -> None:
        self.timepoints: tuple[tuple[Semaphore, int], ...] = tuple(timepoints)

    @classmethod
    def create(cls, device: Signaller) -> Fence:
        """A fence on a new semaphore of the device: payload 0, reached at 1."""
        return cls(((device.create_semaphore(0), 1),))

    @classmethod
    def join(cls, fences: Iterable[Fence | None]) -> Fence | None:
        """Joins fences, by the larger value per semaphore; None for nothing."""
        present = [
            object_of("fences", fence, Fence) for fence in items("fences", fences) if fence is not None
        ]
        if not present:
            return None
        merged: dict[Semaphore, int] = {}
        for fence in present:
            for semaphore, value in fence.timepoints:
                merged[semaphore] = max(value, merged.get(semaphore, 0))
        return cls(merged.items())

    def is_reached(self) -> bool:
        """Without raising: False while pending and when failed."""
        # A generator for ``all`` takes as long as the rest.
        for semaphore, value in self.timepoints:  # noqa: SIM110
            if not semaphore.is_reached(value):
                return False
        return True

    @property
    def failure(self) -> StatusError | None:
        """The failure of the first failed semaphore, or None. Raise a copy (``errors.again``), not the
        object."""
        for semaphore, _ in self.timepoints:
            if semaphore.failure is not None:
                return semaphore.failure
        return None

    def query(self) -> StatusCode:
        """OK when reached, DEFERRED while pending, else the code of the failure."""
        for semaphore, _ in self.timepoints:
            semaphore.look()
        failure = self.failure
        if failure is not None:
            return failure.code
        return StatusCode.OK if self.is_reached() else StatusCode.DEFERRED

    def signal(self) -> None:
        """Raises each semaphore to its value."""
        for semaphore, value in self.timepoints:
            semaphore.advance(value)

    def fail(self, error: StatusError) -> None:
        for semaphore, _ in self.timepoints:
            semaphore.fail(error)

    def wait(self, timeout: float | None = None) -> StatusCode:
        """Waits with the GIL released: OK, or DEADLINE_EXCEEDED when ``timeout`` seconds have passed.

        None waits for ever, 0 looks only. Raises the failure of a failed fence; INVALID_ARGUMENT for what is
        no number of seconds, and for negative ones.
        """
        return wait_fences((self,), timeout)

    def interrupt(self, failure: StatusError, after: Fence | None = None) -> None:
        """Interrupts the work that is to signal it, except what ``after`` does. What that work waits for
        ends, too."""
        from jitree.hal.waiting import WaitMode, interrupt_all, pending_producers

        kept = () if after is None else pending_producers(after.timepoints, WaitMode.ALL)
        interrupt_all(pending_producers(self.timepoints, WaitMode.ALL), failure, kept)

    def _is_pending_after(self, failure: StatusError, after: Fence | None) -> bool:
        """Interrupts; whether anything goes on that is to signal it."""
        from jitree.hal.waiting import WaitMode, pending_producers

        self.interrupt(failure, after)
        return bool(pending_producers(self.timepoints, WaitMode.ALL))

    def stop(self, failure: StatusError, after: Fence | None = None) -> None:
        """As :meth:`interrupt`, until what has been started has ended."""
        if self._is_pending_after(failure, after):
            scope = CURRENT.get()
            try:
                CURRENT.set(None)
                with suppress(StatusError):
                    self.wait()
            finally:
                CURRENT.set(scope)

    async def stop_async(self, failure: StatusError, after: Fence | None = None) -> None:
        """As :meth:`stop`."""
        if self._is_pending_after(failure, after):
            with suppress(StatusError):
                await self

    def on_reached(self, callback: ReachedCallback) -> Sequence[Registered]:
        """Calls ``callback`` once, with None when reached or the failure. At once if that is so now."""
        return _when_reached()(self.timepoints, callback)

    def fill_entry(self, table: HandleTable, address: int) -> None:
        """Shows machine code whether it is reached. Of one that is not, it is to be told later
        (:meth:`publish`)."""
        table.set_extent(address, 0, int(self.is_reached()))

    def publish(self, table: HandleTable) -> None:
        """Tells machine code that it is reached, if it is."""
        address = table.address_of(self)
        if address and self.is_reached():
            table.set_extent(address, 0, 1)

    def __await__(self) -> Generator[object, None, None]:
        if self.is_reached():
            return
        yield from self._as_future().__await__()

    def _as_future(self) -> asyncio.Future[None]:
        import asyncio

        from jitree.hal.waiting import describe_wait

        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def reached(failure: StatusError | None) -> None:
            try:
                loop.call_soon_threadsafe(*settling(future, None, failure and again(failure)))
            except RuntimeError:
                if not loop.is_closed():  # there is no task left to tell when it is
                    raise

        open_points = self.on_reached(reached)
        dog = watchdog.current
        activity = None if dog is None else dog.enter("awaiting", partial(describe_wait, self.timepoints))

        def forget(done: asyncio.Future[None]) -> None:
            if activity is not None:
                activity.end()
            if done.cancelled():
                for timepoint in open_points:
                    timepoint.cancel()

        future.add_done_callback(forget)
        return future


def settling(future: asyncio.Future[Any], result: object, failure: BaseException | None) -> tuple[Any, ...]:
    """Gives a function in C, with arguments, that settles a future.

    It does nothing to a cancelled future. An interrupt could keep a function in Python from its work: then
    the task that awaits the future would wait for ever."""
    called = ("set_result", result) if failure is None else ("set_exception", failure)
    return next, map(methodcaller(*called), filterfalse(methodcaller("done"), (future,))), None


COMES_AFTER: Final[ContextVar[Fence | None]] = ContextVar("comes_after", default=None)
"""What the call comes after whose end the task awaits. The task does nothing else before: what the host has
still to do for that fence, others do."""


class OrderingFence(Fence):
    """Orders after another fence, whether that is reached or fails. What only comes after it has nothing to
    do with its failure."""

    __slots__ = ()

    @property
    def failure(self) -> StatusError | None:
        return None

    def is_reached(self) -> bool:
        """As of a :class:`Fence`."""
        return super().failure is not None or super().is_reached()

    def wait(self, timeout: float | None = None) -> StatusCode:
        """As of a :class:`Fence`."""
        try:
            return super().wait(timeout)
        except StatusError:
            if super().failure is None:  # it is this thread that is to end
                raise
        return StatusCode.OK

    def __await__(self) -> Generator[object, None, None]:
        try:
            yield from super().__await__()
        except StatusError:
            if super().failure is None:
                raise


@cache
def _when_reached() -> WhenReached:
    """What registers a callback for all of some points, imported for the first one."""
    from jitree.hal.waiting import WaitMode, when_reached

    return lambda points, callback: when_reached(points, WaitMode.ALL, callback)


def wait_fences(fences: Iterable[Fence | None], timeout: float | None = None) -> StatusCode:
    """Waits for all; None elements are skipped. Results and errors as :meth:`Fence.wait`."""
    if timeout is not None:
        seconds("timeout", timeout)
    points = [point for fence in fences if fence is not None for point in fence.timepoints]
    if all(semaphore.is_reached(value) for semaphore, value in points):
        return StatusCode.OK
    from jitree.hal.waiting import WaitMode, wait_for

    return StatusCode.OK if wait_for(points, WaitMode.ALL, timeout) else StatusCode.DEADLINE_EXCEEDED


def check_fences(wait: Fence | None, signal: Fence | None) -> None:
    """INVALID_ARGUMENT for what is no fence."""
    if wait is not None:
        object_of("wait", wait, Fence)
    if signal is not None:
        object_of("signal", signal, Fence)
