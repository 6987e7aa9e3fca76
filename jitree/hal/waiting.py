"""Waits for points of timelines: by callback, or on a thread that helps.

A waiting thread does the work that will signal a semaphore instead of sleeping until it is done. Loaded when
something has to be waited for, which in most programs machine code knows not to be so.
"""

from __future__ import annotations

import time
from _thread import allocate_lock
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

from jitree.base import cancel_scopes
from jitree.base.arguments import seconds
from jitree.base.finalizers import guard, require_no_brief_guard
from jitree.base.records import Enumeration, Flags
from jitree.errors import CancelledError, StatusError, again
from jitree.hal import watchdog

if TYPE_CHECKING:
    ReachedCallback = Callable[[StatusError | None], None]

    class Registered(Protocol):
        """A callback that can be taken back."""

        def cancel(self) -> bool: ...

    class TimelineSemaphore(Protocol):
        """A semaphore."""

        _value: int

        @property
        def failure(self) -> StatusError | None: ...
        def is_reached(self, value: int) -> bool: ...
        def producer(self, value: int) -> Producer | None: ...
        def await_device(self, value: int, deadline: float | None) -> None: ...
        def on_reached(self, value: int, callback: ReachedCallback) -> Registered | None: ...


class SemaphoreCompatibility(Flags):
    """Says what waits for and signals a semaphore together with a device."""

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
    """Calls back once for several timepoints: all or any reached, or failed. It is the first failure that
    counts."""

    __slots__ = ("_done", "_is_over", "_lock", "_missing", "failure")

    def __init__(self, count: int, done: ReachedCallback) -> None:
        self._lock = guard()
        self._missing = set(range(count))
        self._done = done
        self._is_over = False
        self.failure: StatusError | None = None

    def callback(self, index: int) -> ReachedCallback:
        """Makes the callback of a timepoint, or of any that bring it about."""
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
    points: Iterable[tuple[TimelineSemaphore, int]], mode: WaitMode, callback: ReachedCallback
) -> list[Registered]:
    """Calls ``callback`` once all or any points are reached, or one fails.

    Returns the timepoints that are still open; they can be cancelled, with no call made once all are.
    """
    points = tuple(points)
    if not points:
        callback(None)
        return []
    if len(points) == 1:
        callbacks = [callback]
    elif mode == WaitMode.ALL:
        countdown = Countdown(len(points), callback)
        callbacks = [countdown.callback(index) for index in range(len(points))]
    else:
        callbacks = [Countdown(1, callback).callback(0)] * len(points)
    registered = (
        semaphore.on_reached(value, callback)
        for (semaphore, value), callback in zip(points, callbacks, strict=True)
    )
    return [timepoint for timepoint in registered if timepoint is not None]


def pending_producers(points: Sequence[tuple[TimelineSemaphore, int]], mode: WaitMode) -> list[Producer]:
    """Finds the work that will signal the points. None when all (or any) of them are reached or one has
    failed."""
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


def are_held_up(points: Sequence[tuple[TimelineSemaphore, int]]) -> bool:
    """Whether a point is not reached and no submitted work signals it."""
    return any(
        semaphore.producer(value) is None and not semaphore.is_reached(value) and semaphore.failure is None
        for semaphore, value in points
    )


def describe_missing(points: Iterable[tuple[TimelineSemaphore, int]]) -> str:
    """What a wait for the points still lacks, for reports."""
    missing = [
        f"a semaphore ({id(semaphore):#x}) to go from {semaphore._value} to {value}"
        for semaphore, value in points
        if not semaphore.is_reached(value)
    ]
    return " and ".join(missing) or "nothing more"


def describe_wait(points: Iterable[tuple[TimelineSemaphore, int]]) -> str:
    """As :func:`describe_missing`, with the work that is to bring it about."""
    points = tuple(points)
    producers = [producer.describe() for producer in pending_producers(points, WaitMode.ALL)]
    by = "; ".join(producers) or "nothing: no operation that signals it has been submitted"
    return f"{describe_missing(points)}; by {by}"


def wait_for(points: Sequence[tuple[TimelineSemaphore, int]], mode: WaitMode, timeout: float | None) -> bool:
    """Blocks until all or any points are reached, as a semaphore's ``wait``.

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


def _wait(points: Sequence[tuple[TimelineSemaphore, int]], mode: WaitMode, deadline: float | None) -> bool:
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
        interrupt_all(pending_producers(points, mode), CancelledError("the wait for it was interrupted"))
        raise


def _sleep(points: Sequence[tuple[TimelineSemaphore, int]], mode: WaitMode, deadline: float | None) -> bool:
    left = [*points]
    pending = partial(pending_producers, left, mode)
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
    latest = deadline if scope is None else _earlier(deadline, scope.first_until())
    open_points: Sequence[Registered] = ()
    try:
        if scope is not None:
            scope.watch(end)
        help_with(pending, deadline)
        open_points = when_reached(points, mode, reached)
        while not wake.acquire(timeout=_next_look(latest)):
            # Whoever is to wake it may have been interrupted, and threads that end scopes cannot be had.
            cancel_scopes.require_uncancelled()
            ended = None if scope is None else scope.why_to_end()
            if ended is not None:
                end(ended)
            elif _are_reached(points, mode):
                return True
            elif deadline is not None and time.monotonic() >= deadline:
                return False
            require_no_brief_guard()
    finally:  # also when a signal handler raised
        left.clear()  # at once: where that comes again `end` stays with the scope, and keeps no device
        for timepoint in open_points:
            timepoint.cancel()
        if scope is not None:
            scope.unwatch(end)
    failure = failures[0]
    if failure is not None:
        raise again(failure)
    return True


def _earlier(one: float | None, other: float | None) -> float | None:
    """The earlier of two times, None being never."""
    return min((time for time in (one, other) if time is not None), default=None)


def _are_reached(points: Sequence[tuple[TimelineSemaphore, int]], mode: WaitMode) -> bool:
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


def _next_look(deadline: float | None) -> float:
    """Seconds to sleep before the next look."""
    most = _LOOP_SECONDS if cancel_scopes.runs_here() else cancel_scopes.LOOK_SECONDS
    return most if deadline is None else min(max(deadline - time.monotonic(), 0.0), most)


class Producer(Protocol):
    """Stands for submitted work that has not ended. Threads that wait for it look here for something to
    do."""

    def run_here(self, deadline: float | None) -> bool:
        """Does the work on the calling thread, unless something else does. Nothing may hold it up, and it
        must end by ``deadline`` (``time.monotonic``; None = any time). False when it did nothing."""

    def prerequisites(self) -> Sequence[Producer]:
        """The work that it waits for."""

    def is_held_up(self) -> bool:
        """Whether it also waits for something that no submitted work brings about."""

    def interrupt(self, failure: StatusError) -> None:
        """Fails the work as soon as possible: no caller wants it any more."""

    def describe(self) -> str:
        """What it is and what holds it up, in a line."""


def help_with(pending: Callable[[], Sequence[Producer]], deadline: float | None) -> None:
    """Does work on this thread until nothing ``pending`` can be done here. The rest, and what that waits for,
    is running elsewhere, or waits for something that has not been submitted.

    Prerequisites come first, found once each, so that a chain of any length takes one walk along it.
    """
    worked = True
    while worked and (deadline is None or time.monotonic() < deadline):
        worked = False
        found = list(pending())
        seen = set(found)
        while found:
            producer = found[-1]
            if producer.run_here(deadline):
                worked = True
                found.pop()
                if not pending():
                    return
                continue
            earlier = [one for one in producer.prerequisites() if one not in seen]
            seen.update(earlier)
            if earlier:
                found += earlier
            else:
                found.pop()


def interrupt_all(producers: Sequence[Producer], failure: StatusError, kept: Sequence[Producer] = ()) -> None:
    """Interrupts work and what it waits for, except what is ``kept``. What that waits for is excepted,
    too."""
    seen = set(kept)
    found = list(producers)
    while found:
        producer = found.pop()
        if producer not in seen:
            seen.add(producer)
            found += producer.prerequisites()
            producer.interrupt(failure)
