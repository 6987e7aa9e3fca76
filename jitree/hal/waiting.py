"""Waiting for several semaphores: by callback, or on the calling thread, which helps meanwhile."""

from __future__ import annotations

import time
from _thread import LockType, allocate_lock
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from jitree.errors import StatusError
from jitree.hal import watchdog
from jitree.hal.enums import WaitMode
from jitree.hal.producer import Producer, help_with, interrupt_all
from jitree.hal.semaphore import ReachedCallback, Semaphore, Timepoint, again

_LONGEST_ACQUIRE: Final = 1e6
"""Seconds; ``lock.acquire`` refuses time-outs that do not fit its clock."""


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
    """Who will signal the points; nobody when all (or any) of them are reached or one has failed."""
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
    """As :func:`describe_missing`, with who is to bring it about."""
    points = tuple(points)
    producers = [producer.describe() for producer in pending_producers(points, WaitMode.ALL)]
    by = "; ".join(producers) or "nobody: no operation that signals it has been submitted"
    return f"{describe_missing(points)}; by {by}"


def wait_for(points: Sequence[tuple[Semaphore, int]], mode: WaitMode, timeout: float | None) -> bool:
    """Blocks until all or any of the points are reached; arguments and result as :meth:`Semaphore.wait`.

    Work that was submitted to signal them and has not been started is done here instead of waited for.
    """
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
        for semaphore, value in points:
            semaphore.await_device(value, deadline)
    if _are_reached(points, mode):
        return True
    if deadline is not None and time.monotonic() >= deadline:
        return False
    try:
        return _sleep(points, mode, deadline)
    except StatusError:
        raise
    except BaseException:  # from a signal handler
        interrupt_all(pending_producers(points, mode))
        raise


def _sleep(points: Sequence[tuple[Semaphore, int]], mode: WaitMode, deadline: float | None) -> bool:
    help_with(partial(pending_producers, points, mode), deadline)
    wake = allocate_lock()
    wake.acquire()
    failures: list[StatusError | None] = []

    def reached(failure: StatusError | None) -> None:
        failures.append(failure)
        wake.release()

    open_points = when_reached(points, mode, reached)
    try:
        if deadline is None:
            wake.acquire()
        else:
            _acquire_until(wake, deadline)
    finally:  # also when a signal handler raised
        for timepoint in open_points:
            timepoint.cancel()
    if not failures:
        return False
    failure = failures[0]
    if failure is not None:
        raise again(failure)
    return True


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
        if lock.acquire(True, min(remaining, _LONGEST_ACQUIRE)):
            return True
