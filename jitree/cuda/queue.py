"""Lets operations enter a device's stream when their wait fence allows it.

A wait for something that is done, or that this stream does anyway before, is no wait at all; one for another
stream is an event between the two. Such operations are submitted by the calling thread before the call
returns. Only those that wait for the host, or for another kind of device, are deferred: they are on the list
of waiting ones until every semaphore of their wait fence has reached its value, or a stream has promised to.
The thread that brings that about only hands the operation to the worker thread, which submits it. There is no
worker as long as nothing has been deferred.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TypeVar

from jitree import errors
from jitree.base import cancel_scopes
from jitree.base.arguments import said
from jitree.base.cancel_scopes import CURRENT
from jitree.base.finalizers import end_each, guard
from jitree.base.folding import warn
from jitree.cuda.completion import InboxThread
from jitree.cuda.context import PooledEvent
from jitree.cuda.semaphore import CudaSemaphore
from jitree.cuda.stream import Stream
from jitree.hal.fence import Fence, check_fences
from jitree.hal.profiling import now
from jitree.hal.semaphore import ReachedCallback, Timepoint
from jitree.hal.waiting import Countdown, Producer, WaitMode, are_held_up, pending_producers

Action = Callable[[], object]
"""Submits device work to the stream; called with the stream's lock held and its context current."""

T = TypeVar("T")


class Stepwise:
    """Acts in steps, takes the lock for each, and is done on return."""

    __slots__ = ("_act",)

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act

    def __call__(self) -> object:
        return self._act()


class DeferredOperation:
    """Holds one queue operation until it can be submitted: a :class:`jitree.hal.waiting.Producer`. It ends
    with the deadline of the block that it was submitted in, and with the call that waits for it."""

    __slots__ = (
        "__weakref__", "action", "interrupted", "limit", "name", "signal", "timepoints", "wait", "waiting",
    )  # fmt: skip

    def __init__(
        self, waiting: DeferredWork, name: str, wait: Fence, signal: Fence | None, action: Action | None
    ) -> None:
        """``action`` None: the fences are all there is."""
        self.waiting = waiting
        self.limit = cancel_scopes.limit()
        self.interrupted: errors.StatusError | None = None
        """Why it is not to be submitted any more."""
        self.name = name
        self.wait = wait
        self.signal = signal
        self.action = action
        self.timepoints: Sequence[Timepoint] = ()

    def announce(self) -> None:
        """Shows it to the deadline and to threads that wait for its signal fence."""
        if self.signal is not None:
            for semaphore, value in self.signal.timepoints:
                semaphore.expect(value, self)
        if self.limit is not None:
            self.limit.watch(self.interrupt)

    def settle(self) -> None:
        """It has been submitted, or has failed."""
        if self.limit is not None:
            self.limit.unwatch(self.interrupt)
        if self.signal is not None:
            for semaphore, value in self.signal.timepoints:
                semaphore.settle(value, self)

    def run_here(self, deadline: float | None) -> bool:
        return False  # it waits for what no thread here does

    def prerequisites(self) -> Sequence[Producer]:
        return pending_producers(self.wait.timepoints, WaitMode.ALL)

    def is_held_up(self) -> bool:
        return are_held_up(self.wait.timepoints)

    def interrupt(self, failure: errors.StatusError) -> None:
        self.interrupted = failure
        self.waiting.fail(self, errors.again(failure))

    def describe(self) -> str:
        return f"{self.name}, which waits for its wait fence"

    def stop_waiting(self) -> None:
        for timepoint in self.timepoints:
            timepoint.cancel()
        self.timepoints = ()

    def cancel(self, failure: errors.StatusError) -> None:
        """Ends the operation without its work, after the submitter has gone on. What no fence carries becomes
        a warning."""
        self.action = None
        self.settle()
        if self.signal is not None:
            self.signal.fail(failure)
        else:
            warn(f"{self.name} without a signal fence failed: {failure}")


_Ready = tuple[Callable[[DeferredOperation], None], DeferredOperation]
"""(what submits an operation, the operation)"""


class DeferredWork:
    """Keeps the waiting list and the worker of one queue."""

    def __init__(self, name: str, submit: Callable[[DeferredOperation], None]) -> None:
        """``submit`` is called on the worker thread; it fails operations itself and raises nothing."""
        self._submit = submit
        self._lock = guard()  # a forgotten device closes it wherever the garbage collector runs
        self._waiting: dict[DeferredOperation, None] = {}
        self._worker = InboxThread[_Ready](f"{name} deferred work", _run)
        self._closed = False

    @property
    def waiting_count(self) -> int:
        with self._lock:
            return len(self._waiting)

    def defer(self, operation: DeferredOperation) -> None:
        """Submits the operation when its wait fence allows it, on the worker thread."""
        self._worker.start()
        with self._lock:
            is_closed = self._closed
            if not is_closed:
                self._waiting[operation] = None
        if is_closed:
            self._worker.close()  # which may have begun again
            raise errors.FailedPreconditionError(f"{operation.name}: the device has been closed")
        operation.announce()
        operation.timepoints = when_scheduled(
            operation.wait, lambda failure: self._schedule(operation, failure)
        )

    def fail(self, operation: DeferredOperation, failure: errors.StatusError) -> None:
        """Fails an operation that is still on the list, without doing its work. It does so also where a
        signal's handler raises meanwhile: others may wait for it. Only the thread that takes it off the list
        fails it."""
        is_there = False
        try:
            with self._lock:
                is_there = operation in self._waiting
                self._waiting.pop(operation, None)
            if is_there:
                _end(operation, failure)
        except BaseException as error:
            if is_there and errors.is_interruption(error):
                self._waiting.pop(operation, None)
                _end(operation, failure)
            raise

    def close(self) -> None:
        """Cancels what waits, submits what is ready, and ends the worker. Again, it does what was left when
        it was interrupted."""
        with self._lock:
            self._closed = True
        end_each(self._waiting, self._lock, _cancel)
        self._worker.close()

    def _schedule(self, operation: DeferredOperation, failure: errors.StatusError | None) -> None:
        """The wait fence was reached, promised or failed, on whatever thread did that."""
        if failure is not None and operation.signal is None:
            self.fail(operation, failure)
            return
        with self._lock:  # what is no longer on the list is given to the worker before that is told to end
            if operation in self._waiting:  # not done here: fences of a long chain would call each other
                ready = self._submit, operation
                # In one step, in C: an interrupt in between would lose the operation. `put` ignores the None
                # that it gets besides.
                taken = map(self._waiting.__delitem__, (operation,))
                _ = [*map(self._worker.inbox.put, (ready,), taken)]  # type: ignore[misc]


def _cancel(operation: DeferredOperation) -> None:
    message = f"{operation.name}: the device was closed before its wait fence was reached"
    _end(operation, errors.CancelledError(message))


def _end(operation: DeferredOperation, failure: errors.StatusError) -> None:
    operation.stop_waiting()
    operation.cancel(failure)


def _run(inbox: SimpleQueue[_Ready | None]) -> None:
    while (ready := inbox.get()) is not None:
        submit, operation = ready
        try:
            submit(operation)
        except Exception as error:  # a callback that raises is a defect, but others wait for this thread
            warnings.warn(f"{operation.name}: a callback raised {error!r}", RuntimeWarning, stacklevel=1)
        del ready, submit, operation


def when_scheduled(fence: Fence, callback: ReachedCallback) -> list[Timepoint]:
    """Calls ``callback`` once every point is reached or promised, or one has failed.

    Returns the timepoints that are still open.
    """
    points = fence.timepoints
    countdown = Countdown(len(points), callback)
    registered = (
        semaphore.on_scheduled(value, countdown.callback(index))
        if isinstance(semaphore, CudaSemaphore)
        else semaphore.on_reached(value, countdown.callback(index))
        for index, (semaphore, value) in enumerate(points)
    )
    return [timepoint for timepoint in registered if timepoint is not None]


class CudaQueue:
    """Takes operations; everything it holds is released by :meth:`close`."""

    def __init__(self, stream: Stream, name: str) -> None:
        self.stream = stream
        self._deferred = DeferredWork(name, self._submit_deferred)
        self._closed = False

    def submit(self, name: str, wait: Fence | None, signal: Fence | None, action: Action | None) -> None:
        """Submits one operation, or does it if its action is :class:`Stepwise`. ``name`` is for messages and
        profiles.

        A failure that is known before the call returns and that no signal fence carries is raised.
        """
        if self._closed:
            raise errors.FailedPreconditionError(f"{name}: the device has been closed")
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
            raise errors.again(failure)
        signal.fail(failure)

    def perform(self, name: str, action: Callable[[], T]) -> T:
        """Submits device work that waits for earlier submissions only. Gives what the action returns, or
        raises its failure."""
        if self._closed:
            raise errors.FailedPreconditionError(f"{name}: the device has been closed")
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
    ) -> errors.StatusError | None:
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
        except errors.StatusError as error:
            return error
        with stream.lock:
            try:
                self._work_after(marks, name, action)
            except BaseException as error:
                return _failure(name, signal, error)
            try:
                self._promise(wait, signal, action)
            except BaseException as error:
                if errors.is_interruption(error):  # others wait for what is submitted; twice does no harm
                    self._promise(wait, signal, action)
                raise
        return None

    def _work_after(self, marks: Sequence[PooledEvent], name: str, action: Action | None) -> None:
        try:
            for event in marks:
                self.stream.wait_for(event)
            if action is not None:
                self.perform(name, action)
            else:
                self.stream.api.check_alive()
        finally:
            for event in marks:
                event.release()

    def _promise(self, wait: Fence | None, signal: Fence | None, action: Action | None) -> None:
        if signal is None:
            return
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


def _failure(name: str, signal: Fence | None, error: BaseException) -> errors.StatusError:
    """What an exception in an operation means; raises those that end the thread's work."""
    if errors.is_interruption(error):
        if signal is not None:
            signal.fail(errors.CancelledError(f"{name} was interrupted"))
        raise error
    if isinstance(error, errors.StatusError):
        return error
    failure = errors.InternalError(f"{name} failed: {said(error)}")
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
