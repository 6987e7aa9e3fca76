"""Waits for points of timelines: by callback, or on the calling thread, which helps meanwhile.

Loaded when something has to be waited for, which in most programs machine code knows not to be so."""

from __future__ import annotations

import time
from _thread import LockType, allocate_lock
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final

from jitree.base import cancel_scopes
from jitree.base.arguments import seconds
from jitree.base.records import Enumeration, Flags
from jitree.errors import CancelledError, StatusError, again
from jitree.hal import watchdog

if TYPE_CHECKING:
    from typing import Protocol

    from jitree.hal.producer import Producer

    ReachedCallback = Callable[[StatusError | None], None]

    class Registered(Protocol):
        """A callback that can be taken back."""

        def cancel(self) -> bool: ...

    class Timeline(Protocol):
        """A semaphore."""

        _value: int

        @property
        def failure(self) -> StatusError | None: ...
        def is_reached(self, value: int) -> bool: ...
        def producer(self, value: int) -> Producer | None: ...
        def await_device(self, value: int, deadline: float | None) -> None: ...
        def on_reached(self, value: int, callback: ReachedCallback) -> Registered | None: ...


class SemaphoreCompatibility(Flags):
    """What can wait for and signal a semaphore together with a device."""

    NONE = 0
    HOST_WAIT = 0x1
    DEVICE_WAIT = 0x2
    HOST_SIGNAL = 0x4
    DEVICE_SIGNAL = 0x8
    HOST_ONLY = 0x5
    ALL = 0xF


class WaitMode(Enumeration):
    ALL = 0
    ANY = 1


_LOOP_SECONDS: Final = 0.1
"""Between looks whether the event loop, which this thread keeps from its turns, is to end a task."""


class Countdown:
    """Makes one call of the callbacks of several timepoints: all or any reached, or the first failure."""

    __slots__ = ("_done", "_is_over", "_lock", "_missing", "failure")

    def __init__(self, count: int, done: ReachedCallback) -> None:
        self._lock = allocate_lock()
        self._missing = set(range(count))
        self._done = done
        self._is_over = False
        self.failure: StatusError | None = None

    def callback(self, index: int) -> ReachedCallback:
        """Of one of the timepoints, or of any of those that bring about the same."""
        return partial(self._reached, index)

    def _reached(self, index: int, failure: StatusError | None) -> None:
        try:
            with self._lock:
                self._missing.discard(index)
                if self._is_over or (self._missing and failure is None):
                    return
                self._is_over = True
                self.failure = failure
            self._done(failure)
        except BaseException:
            self._is_over = False  # an interrupted callback is called again
            raise


def when_reached(
    points: Iterable[tuple[Timeline, int]], mode: WaitMode, callback: ReachedCallback
) -> list[Registered]:
    """Calls ``callback`` once: when all or any of the points are reached, or with the first failure.

    Returns the timepoints that are still open; they can be cancelled, with no call made once all are.
    """
    points = tuple(points)
    if not points:
        callback(None)
        return []
    if len(points) == 1:
        callbacks = [callback]
    elif mode == WaitMode.ALL:
        callbacks = list(map(Countdown(len(points), callback).callback, range(len(points))))
    else:
        callbacks = [Countdown(1, callback).callback(0)] * len(points)
    registered = (
        semaphore.on_reached(value, callback)
        for (semaphore, value), callback in zip(points, callbacks, strict=True)
    )
    return [timepoint for timepoint in registered if timepoint is not None]


def pending_producers(points: Sequence[tuple[Timeline, int]], mode: WaitMode) -> list[Producer]:
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


def are_held_up(points: Sequence[tuple[Timeline, int]]) -> bool:
    """Whether any of the points has not been reached, and no submitted work will signal it."""
    return any(
        semaphore.producer(value) is None and not semaphore.is_reached(value) and semaphore.failure is None
        for semaphore, value in points
    )


def describe_missing(points: Iterable[tuple[Timeline, int]]) -> str:
    """What a wait for the points still lacks, for reports."""
    missing = [
        f"a semaphore ({id(semaphore):#x}) to go from {semaphore._value} to {value}"
        for semaphore, value in points
        if not semaphore.is_reached(value)
    ]
    return " and ".join(missing) or "nothing more"


def describe_wait(points: Iterable[tuple[Timeline, int]]) -> str:
    """As :func:`describe_missing`, with the work that is to bring it about."""
    points = tuple(points)
    producers = [producer.describe() for producer in pending_producers(points, WaitMode.ALL)]
    by = "; ".join(producers) or "nothing: no operation that signals it has been submitted"
    return f"{describe_missing(points)}; by {by}"


def wait_for(points: Sequence[tuple[Timeline, int]], mode: WaitMode, timeout: float | None) -> bool:
    """Blocks until all or any of the points are reached; arguments and result as of a semaphore's ``wait``.

    Work that was submitted to signal them and has not been started is done here instead of waited for.
    """
    limit = inf if timeout is None else seconds("timeout", timeout)
    deadline = None if limit == inf else time.monotonic() + limit
    dog = watchdog.current
    if dog is None:
        return _wait(points, mode, deadline)
    activity = dog.enter("waiting", partial(describe_wait, points))
    try:
        return _wait(points, mode, deadline)
    finally:
        activity.end()


def _wait(points: Sequence[tuple[Timeline, int]], mode: WaitMode, deadline: float | None) -> bool:
    if mode == WaitMode.ALL:
        latest = _earlier(deadline, cancel_scopes.until())
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


def _sleep(points: Sequence[tuple[Timeline, int]], mode: WaitMode, deadline: float | None) -> bool:
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

    scope = cancel_scopes.current()
    open_points: Sequence[Registered] = ()
    try:
        if scope is not None:
            scope.watch(end)
        help_with(pending, deadline)
        open_points = when_reached(points, mode, reached)
        if deadline is None:
            while not wake.acquire(
                timeout=_LOOP_SECONDS if cancel_scopes.runs_here() else cancel_scopes.LOOK_SECONDS
            ):
                cancel_scopes.require_uncancelled()
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


def _are_reached(points: Sequence[tuple[Timeline, int]], mode: WaitMode) -> bool:
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
        if lock.acquire(True, min(remaining, cancel_scopes.LOOK_SECONDS)):
            return True
