"""Makes timeline semaphores that know what the device is going to do.

When an operation is submitted to a stream, its signals are *promised*: the stream will reach them without
help. A wait for a promised value needs no event and no thread: on the same stream the order of
submission is the wait, on another stream it is an event, and on the host it is the synchronisation of the
stream. Only callbacks need the completion thread.
"""

from __future__ import annotations

from _thread import RLock
from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, Protocol

from jitree.cuda.context import EventPool, PooledEvent
from jitree.errors import StatusError, is_interruption
from jitree.hal.semaphore import ReachedCallback, Semaphore, Timepoint

Promise = tuple[int, Semaphore, int]
"""The number of a submission, and the value that a semaphore reaches when it is done."""


class SignallingStream(Protocol):
    """Stands for a stream, whose work reaches promised values."""

    events: EventPool

    def watch(self) -> None: ...
    def wait(self, deadline: float | None) -> Any: ...
    def poll(self) -> Any: ...
    def mark(self) -> PooledEvent: ...


class CudaSemaphore(Semaphore):
    """Counts up by streams, or by the host: a timeline semaphore."""

    __slots__ = ("_schedule", "promised", "stream")

    def __init__(self, initial_value: int = 0) -> None:
        super().__init__(initial_value)
        self.promised = 0
        """The largest value that work already submitted reaches; 0 = none."""
        self.stream: SignallingStream | None = None
        """Where that work is."""
        self._schedule: Semaphore | None = None
        """Its payload is what has been reached or promised; made when a thread first waits for that."""

    def promise(self, value: int, stream: SignallingStream) -> None:
        """The work that has just been submitted to the stream reaches the value. The caller holds the
        stream's lock. Twice does no harm: it does what was left when it was interrupted."""
        with self._lock:
            if value > self.promised:
                self.promised = value
                self.stream = stream
            schedule = self._schedule
            awaited = bool(self._timepoints)
        if schedule is not None:
            schedule.advance(value)
        if awaited:
            stream.watch()

    def on_scheduled(self, value: int, callback: ReachedCallback) -> Timepoint | None:
        """As :meth:`on_reached`, for values that are reached or promised."""
        with self._lock:
            schedule = self._schedule
            if schedule is None:
                schedule = self._schedule = Semaphore(max(self._value, self.promised))
            failure = self._failure
        schedule.advance(max(self._value, self.promised))  # an ending may have raised it meanwhile
        if failure is not None:
            schedule.fail(failure)
        return schedule.on_reached(value, callback)

    def on_reached(self, value: int, callback: ReachedCallback) -> Timepoint | None:
        timepoint = super().on_reached(value, callback)
        stream = self.stream
        if timepoint is not None and stream is not None and self.promised >= value:
            stream.watch()
        return timepoint

    def await_device(self, value: int, deadline: float | None) -> None:
        """Blocks while submitted work is to reach the value, up to the deadline."""
        stream = self.stream
        if stream is not None and self.promised >= value and not self.is_reached(value):
            stream.wait(deadline)

    def look(self) -> None:
        stream = self.stream
        if stream is not None and self.promised > self._value:
            stream.poll()

    def query(self) -> int:
        self.look()
        return super().query()

    def signal(self, value: int) -> None:
        super().signal(value)
        if self._schedule is not None:
            self._schedule.advance(value)

    def advance(self, value: int) -> None:
        super().advance(value)
        if self._schedule is not None:
            self._schedule.advance(value)

    def fail(self, error: StatusError) -> None:
        super().fail(error)
        if self._schedule is not None:
            self._schedule.fail(error)


def settle(lock: RLock, promises: deque[Promise], tick: float, end: Callable[[Semaphore, int], None]) -> None:
    """Ends what was promised up to a submission.

    ``end`` does it, to a semaphore and a value; twice does no harm. What an interrupt leaves is ended before
    that is raised: other threads wait for it."""
    due = list[Promise]()
    try:
        with lock:
            due += takewhile(lambda promise: promise[0] <= tick, promises)
            while promises and promises[0][0] <= tick:
                promises.popleft()
        _end_all(due, end)
    except BaseException as error:
        if is_interruption(error):
            _end_all(due, end)
        raise


def _end_all(due: Sequence[Promise], end: Callable[[Semaphore, int], None]) -> None:
    """Ends every one, also after a callback has raised."""
    raised: BaseException | None = None
    for _, semaphore, value in due:
        try:
            end(semaphore, value)
        except BaseException as error:
            raised = raised or error
    if raised is not None:
        raise raised
