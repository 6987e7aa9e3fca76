"""The queue of a device: operations enter its stream when their wait fence lets them.

A wait for something that is done, or that this stream does anyway before, is no wait at all; one for another
stream is an event between the two. Such operations are submitted by the calling thread before the call
returns. Only those that wait for the host, or for another device, are deferred.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from jitree.base.cancel_scopes import CURRENT
from jitree.cuda.deferred import Action, DeferredOperation, DeferredWork, Stepwise
from jitree.cuda.events import PooledEvent
from jitree.cuda.semaphore import CudaSemaphore
from jitree.cuda.stream import Stream
from jitree.errors import (
    CancelledError,
    FailedPreconditionError,
    InternalError,
    StatusError,
    again,
    is_interruption,
)
from jitree.hal.checks import check_fences
from jitree.hal.fence import Fence
from jitree.hal.profiling import now

T = TypeVar("T")


class CudaQueue:
    """Takes operations; everything it holds is released by :meth:`close`."""

    def __init__(self, stream: Stream, name: str) -> None:
        self.stream = stream
        self._deferred = DeferredWork(name, self._submit_deferred)
        self._closed = False

    def submit(self, name: str, wait: Fence | None, signal: Fence | None, action: Action | None) -> None:
        """Submits one operation, or does it if its action is :class:`Stepwise`; ``name`` is for messages and
        profiles.

        A failure that is known before the call returns and that no signal fence carries is raised.
        """
        if self._closed:
            raise FailedPreconditionError(f"{name}: the device has been closed")
        check_fences(wait, signal)
        failure = None if wait is None else wait.failure
        if failure is None:
            if wait is not None and not is_scheduled(wait):
                self._deferred.defer(DeferredOperation(self._deferred, name, wait, signal, action))
                return
            failure = self._enter(name, wait, signal, action)
            if failure is None:
                return
        if signal is None:
            raise again(failure)
        signal.fail(failure)

    def perform(self, name: str, action: Callable[[], T]) -> T:
        """Submits device work that waits for nothing but what has been submitted before, and gives what the
        action returns. Raises its failure."""
        if self._closed:
            raise FailedPreconditionError(f"{name}: the device has been closed")
        stream = self.stream
        with stream.lock:
            stream.begin()
            try:
                if not stream.measures:
                    return action()
                start = now()
                result = action()
                stream.profiler.add(name, start, now())
                return result
            finally:
                stream.end()

    @property
    def waiting_count(self) -> int:
        """Operations whose wait fence lets nothing be submitted yet."""
        return self._deferred.waiting_count

    def close(self) -> None:
        """Refuses new operations, cancels those that wait, and waits for the device."""
        self._closed = True
        self._deferred.close()
        self.stream.finish()

    def _enter(
        self, name: str, wait: Fence | None, signal: Fence | None, action: Action | None
    ) -> StatusError | None:
        """Submits an operation whose waits are reached or promised; returns the failure."""
        stream = self.stream
        if isinstance(action, Stepwise):
            failure = self._enter(name, wait, None, None)
            if failure is None:
                try:
                    action()
                except BaseException as error:
                    failure = _failure(name, signal, error)
            if failure is not None:
                return failure
            action = None
        try:
            marks = () if wait is None else self._marks(wait)
        except StatusError as error:
            return error
        with stream.lock:
            try:
                for event in marks:
                    stream.wait_for(event)
                if action is not None:
                    self.perform(name, action)
                else:
                    stream.api.check_alive()
            except BaseException as error:
                return _failure(name, signal, error)
            finally:
                for event in marks:
                    event.release()
            if signal is not None:
                self._promise(wait if action is None else None, signal, action)
        return None

    def _promise(self, wait: Fence | None, signal: Fence, action: Action | None) -> None:
        if action is None and (wait is None or wait.is_reached()):
            signal.signal()  # there is nothing to be done
            return
        for semaphore, value in signal.timepoints:
            self.stream.promise(semaphore, value)

    def _marks(self, wait: Fence) -> list[PooledEvent]:
        """Events of the other streams that the operation has to wait for.

        Made before this stream's lock is taken: that of another is needed, and a thread there may be waiting
        for this one.
        """
        others = {}
        for semaphore, value in wait.timepoints:
            if isinstance(semaphore, CudaSemaphore) and not semaphore.is_reached(value):
                other = semaphore.stream
                if other is not None and other is not self.stream:
                    others[id(other)] = other
        return [other.mark() for other in others.values()]

    def _submit_deferred(self, operation: DeferredOperation) -> None:
        """Submits on the worker thread, when every wait is reached or promised."""
        action, operation.action = operation.action, None
        operation.timepoints = ()
        failure = operation.interrupted or operation.wait.failure
        if failure is None:
            CURRENT.set(operation.limit)
            failure = self._enter(operation.name, operation.wait, operation.signal, action)
        if failure is None:
            operation.settle()
        else:
            operation.cancel(failure)


def _failure(name: str, signal: Fence | None, error: BaseException) -> StatusError:
    """What an exception in an operation means; raises those that end the thread's work."""
    if is_interruption(error):
        if signal is not None:
            signal.fail(CancelledError(f"{name} was interrupted"))
        raise error
    if isinstance(error, StatusError):
        return error
    failure = InternalError(f"{name} failed: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def is_scheduled(fence: Fence) -> bool:
    """Whether every point is reached or promised by a stream."""
    for semaphore, value in fence.timepoints:
        if not semaphore.is_reached(value) and (
            not isinstance(semaphore, CudaSemaphore) or semaphore.promised < value
        ):
            return False
    return True
