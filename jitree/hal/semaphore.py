"""Timeline semaphores: a payload that only grows, callbacks that wait for it, and work that signals it.

Waiting for several: by callback, or on the calling thread, which helps meanwhile.

Everything here is correct with threads that run at the same time: payload and failure change under the
semaphore's lock, callbacks run outside of it. A payload once reached stays reached and a failure is never
taken back, so reading either without the lock can only miss news, which the locked path then sees.
"""

from __future__ import annotations

import time
from _thread import LockType, allocate_lock
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Final

from jitree.base import scopes
from jitree.base.arguments import integer, object_of
from jitree.base.endings import Unique
from jitree.errors import CancelledError, InvalidArgumentError, StatusError, again
from jitree.hal import watchdog
from jitree.hal.enums import MAXIMUM_PAYLOAD, WaitMode

_LOOP_SECONDS: Final = 0.1
"""Between looks whether the event loop, which this thread keeps from its turns, is to end a task."""

if TYPE_CHECKING:
    from jitree.hal.producer import Producer

ReachedCallback = Callable[[StatusError | None], None]
"""Called once, with None when the value was reached and with the failure otherwise, on the thread that caused
it. Must be short, must not block and must not raise."""


class Timepoint:
    """A callback registered for a value of a semaphore."""

    __slots__ = ("_callback", "_semaphore", "value")

    def __init__(self, semaphore: Semaphore, value: int, callback: ReachedCallback) -> None:
        self._semaphore = semaphore
        self._callback = callback
        self.value = value

    def cancel(self) -> bool:
        """Takes the callback back; False when it has been called or is being called."""
        return self._semaphore._forget(self)


class Semaphore(Unique):
    """A timeline semaphore on the host."""

    VM_TYPE: Final = "hal.semaphore"
    __slots__ = ("__weakref__", "_failure", "_lock", "_producers", "_timepoints", "_value")

    def __init__(self, initial_value: int = 0) -> None:
        self._lock = allocate_lock()
        self._value = initial_value
        self._failure: StatusError | None = None
        self._timepoints: dict[Timepoint, None] | None = None
        self._producers: dict[int, Producer] | None = None

    @property
    def failure(self) -> StatusError | None:
        """The failure, or None. To raise it use :meth:`query`, which makes a copy."""
        return self._failure

    def query(self) -> int:
        """The payload. Raises the failure of a failed semaphore."""
        failure = self._failure
        if failure is not None:
            raise again(failure)
        return self._value

    def is_reached(self, value: int) -> bool:
        """Whether the payload is at least ``value`` and the semaphore has not failed; costs nothing."""
        return self._failure is None and self._value >= value

    def signal(self, value: int) -> None:
        """Raises the payload to ``value``, which must be larger than the present one (INVALID_ARGUMENT).

        Raises the failure of a failed semaphore.
        """
        if not 0 < integer("value", value) <= MAXIMUM_PAYLOAD:
            raise InvalidArgumentError(
                f"a semaphore cannot be signalled to {value}; payloads are 1 to {MAXIMUM_PAYLOAD}"
            )
        with self._lock:
            present, failure = self._value, self._failure
            if failure is None and value > present:
                self._value = value
                due = self._take_due(value)
        if failure is not None:
            raise again(failure)
        if value <= present:
            raise InvalidArgumentError(
                f"a semaphore at {present} cannot be signalled to {value}: payloads only grow"
            )
        _call(due, None)

    def advance(self, value: int) -> None:
        """Raises the payload to at least ``value``; no effect when it is there already or has failed."""
        with self._lock:
            if self._failure is not None or value <= self._value:
                return
            self._value = value
            due = self._take_due(value)
        if due:
            _call(due, None)

    def fail(self, error: StatusError) -> None:
        """Fails the semaphore for good; the first failure stays, without the frames of what has failed: these
        may refer to the semaphore, and would keep the memory of the whole call until garbage is collected."""
        from jitree.base.folding import fold_tracebacks

        fold_tracebacks(error)
        with self._lock:
            if self._failure is not None:
                return
            self._failure = error
            due = tuple(self._timepoints or ())
            self._timepoints = None
        _call(due, error)

    def on_reached(self, value: int, callback: ReachedCallback) -> Timepoint | None:
        """Calls ``callback`` once when ``value`` is reached or the semaphore fails.

        Called at once, with None returned, when that is so already; otherwise the timepoint can be cancelled.
        """
        if self._failure is None and self._value < value:
            with self._lock:
                if self._failure is None and self._value < value:
                    timepoint = Timepoint(self, value, callback)
                    if self._timepoints is None:
                        self._timepoints = {}
                    self._timepoints[timepoint] = None
                    return timepoint
        callback(self._failure)
        return None

    def expect(self, value: int, producer: Producer) -> None:
        """States what will signal ``value``: for work that does not run at once. Taken back by
        :meth:`settle`."""
        with self._lock:
            if self._producers is None:
                self._producers = {}
            self._producers[value] = producer

    def settle(self, value: int, producer: Producer) -> None:
        """The work that was to signal ``value`` has ended."""
        with self._lock:
            producers = self._producers
            if producers is not None and producers.get(value) is producer:
                del producers[value]

    def producer(self, value: int) -> Producer | None:
        """The work that will raise the payload to ``value`` or above, as far as has been stated."""
        producers = self._producers
        if not producers:
            return None
        with self._lock:
            found = producers.get(value)
            if found is None:
                later = [signalled for signalled in producers if signalled > value]
                found = producers[min(later)] if later else None
            return found

    def look(self) -> None:
        """Notices how far a device has got that signals the semaphore by itself; nothing for others."""

    def await_device(self, value: int, deadline: float | None) -> None:
        """Blocks while a device is on its way to ``value``, but not beyond ``deadline`` (``time.monotonic``).

        For the semaphores of devices that work by themselves; with others there is no work to wait for.
        """

    def wait(self, value: int, timeout: float | None = None) -> bool:
        """Waits until the payload is at least ``value``; the GIL is released meanwhile.

        ``timeout`` in seconds, None = for ever, 0 = look only. False when the time ran out. Raises the
        failure of a failed semaphore.
        """
        if self._failure is None and self._value >= integer("value", value):
            return True
        return wait_for(((self, value),), WaitMode.ALL, timeout)

    def _take_due(self, value: int) -> Sequence[Timepoint]:
        timepoints = self._timepoints
        if not timepoints:
            return ()
        due = [timepoint for timepoint in timepoints if timepoint.value <= value]
        for timepoint in due:
            del timepoints[timepoint]
        return due

    def _forget(self, timepoint: Timepoint) -> bool:
        with self._lock:
            if not self._timepoints or timepoint not in self._timepoints:
                return False
            del self._timepoints[timepoint]
            return True


def _call(due: Sequence[Timepoint], failure: StatusError | None) -> None:
    """Calls all; a callback that raises is a bug, which is reported after the others have been called."""
    raised: BaseException | None = None
    for timepoint in due:
        try:
            timepoint._callback(failure)
        except BaseException as error:
            raised = raised or error
    if raised is not None:
        raise raised


class Countdown:
    """Makes one call of the callbacks of several timepoints: all or any reached, or the first failure."""

    __slots__ = ("_done", "_lock", "_remaining", "failure")

    def __init__(self, remaining: int, done: ReachedCallback) -> None:
        self._lock = allocate_lock()
        self._remaining = remaining
        self._done = done
        self.failure: StatusError | None = None

    def __call__(self, failure: StatusError | None) -> None:
        with self._lock:
            if self._remaining == 0:
                return
            self._remaining = 0 if failure is not None else self._remaining - 1
            if self._remaining:
                return
            self.failure = failure
        self._done(failure)


def when_reached(
    points: Iterable[tuple[Semaphore, int]], mode: WaitMode, callback: ReachedCallback
) -> list[Timepoint]:
    """Calls ``callback`` once: when all or any of the points are reached, or with the first failure.

    Returns the timepoints that are still open; they can be cancelled, with no call made once all are.
    """
    points = tuple(points)
    if not points:
        callback(None)
        return []
    if len(points) > 1:
        callback = Countdown(len(points) if mode == WaitMode.ALL else 1, callback)
    registered = (semaphore.on_reached(value, callback) for semaphore, value in points)
    return [timepoint for timepoint in registered if timepoint is not None]


def pending_producers(points: Sequence[tuple[Semaphore, int]], mode: WaitMode) -> list[Producer]:
    """The work that will signal the points; none when all (or any) of them are reached or one has failed."""
    producers: list[Producer] = []
    for semaphore, value in points:
        if semaphore.failure is not None:
            return []
        if semaphore.is_reached(value):
            if mode == WaitMode.ANY:
                return []
            continue
        producer = semaphore.producer(value)
        if producer is not None:
            producers.append(producer)
    return producers


def describe_missing(points: Iterable[tuple[Semaphore, int]]) -> str:
    """What a wait for the points still lacks, for reports."""
    missing = [
        f"a semaphore ({id(semaphore):#x}) to go from {semaphore._value} to {value}"
        for semaphore, value in points
        if not semaphore.is_reached(value)
    ]
    return " and ".join(missing) or "nothing more"


def describe_wait(points: Iterable[tuple[Semaphore, int]]) -> str:
    """As :func:`describe_missing`, with the work that is to bring it about."""
    points = tuple(points)
    producers = [producer.describe() for producer in pending_producers(points, WaitMode.ALL)]
    by = "; ".join(producers) or "nothing: no operation that signals it has been submitted"
    return f"{describe_missing(points)}; by {by}"


def wait_for(points: Sequence[tuple[Semaphore, int]], mode: WaitMode, timeout: float | None) -> bool:
    """Blocks until all or any of the points are reached; arguments and result as :meth:`Semaphore.wait`.

    Work that was submitted to signal them and has not been started is done here instead of waited for.
    """
    if timeout is not None:
        object_of("timeout", timeout, Real)
    deadline = None if timeout is None else time.monotonic() + timeout
    dog = watchdog.current
    if dog is None:
        return _wait(points, mode, deadline)
    activity = dog.enter("waiting", partial(describe_wait, points))
    try:
        return _wait(points, mode, deadline)
    finally:
        activity.end()


def _wait(points: Sequence[tuple[Semaphore, int]], mode: WaitMode, deadline: float | None) -> bool:
    if mode == WaitMode.ALL:
        latest = _earlier(deadline, scopes.until())
        for semaphore, value in points:
            semaphore.await_device(value, latest)
    if _are_reached(points, mode):
        return True
    if deadline is not None and time.monotonic() >= deadline:
        return False
    try:
        return _sleep(points, mode, deadline)
    except StatusError:
        raise
    except BaseException:  # from a signal handler
        from jitree.hal.producer import interrupt_all

        interrupt_all(pending_producers(points, mode), CancelledError("the wait for it was interrupted"))
        raise


def _sleep(points: Sequence[tuple[Semaphore, int]], mode: WaitMode, deadline: float | None) -> bool:
    from jitree.hal.producer import help_with, interrupt_all

    pending = partial(pending_producers, points, mode)
    wake = allocate_lock()
    wake.acquire()
    failures: list[StatusError | None] = []

    def reached(failure: StatusError | None) -> None:
        failures.append(failure)
        with suppress(RuntimeError):  # reached, and told to end
            wake.release()

    def end(failure: StatusError) -> None:
        if isinstance(failure, CancelledError):  # what a deadline ends knows that by itself
            interrupt_all(pending(), failure)
        reached(failure)

    scope = scopes.current()
    open_points: Sequence[Timepoint] = ()
    try:
        if scope is not None:
            scope.watch(end)
        help_with(pending, deadline)
        open_points = when_reached(points, mode, reached)
        if deadline is None:
            while not wake.acquire(timeout=_LOOP_SECONDS if scopes.runs_here() else scopes.LOOK_SECONDS):
                scopes.require_uncancelled()
        else:
            _acquire_until(wake, deadline)
    finally:  # also when a signal handler raised
        for timepoint in open_points:
            timepoint.cancel()
        if scope is not None:
            scope.unwatch(end)
    if not failures:
        return False
    failure = failures[0]
    if failure is not None:
        raise again(failure)
    return True


def _earlier(one: float | None, other: float | None) -> float | None:
    """The earlier of two times, None being never."""
    return min((time for time in (one, other) if time is not None), default=None)


def _are_reached(points: Sequence[tuple[Semaphore, int]], mode: WaitMode) -> bool:
    """Whether all or any are reached now. Raises the first failure that decides the wait."""
    for semaphore, value in points:
        failure = semaphore.failure
        if failure is not None:
            raise again(failure)
        if mode == WaitMode.ANY and semaphore.is_reached(value):
            return True
    if mode == WaitMode.ANY:
        return not points
    return all(semaphore.is_reached(value) for semaphore, value in points)


def _acquire_until(lock: LockType, deadline: float) -> bool:
    while True:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return lock.acquire(False)
        if lock.acquire(True, min(remaining, scopes.LOOK_SECONDS)):
            return True
