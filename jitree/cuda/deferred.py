"""Operations that wait for something the device cannot wait for: the host, or another kind of device.

Such an operation is on the list of waiting ones until every semaphore of its wait fence has reached its
value, or a stream has promised to. The thread that brings that about only hands the operation to the worker
thread, which submits it. There is no worker as long as nothing has been deferred.
"""

from __future__ import annotations

import abc
import warnings
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from jitree.base import cancel_scopes
from jitree.base.endings import end_each, guard
from jitree.cuda.inbox_thread import InboxThread
from jitree.cuda.semaphore import CudaSemaphore
from jitree.errors import CancelledError, FailedPreconditionError, StatusError, again, is_interruption
from jitree.hal.fence import Fence
from jitree.hal.producer import Producer
from jitree.hal.semaphore import ReachedCallback, Timepoint
from jitree.hal.waiting import Countdown, WaitMode, are_held_up, pending_producers

Action = Callable[[], object]
"""Submits device work to the stream; called with the stream's lock held and its context current."""


class Stepwise(abc.ABC):
    """An action that takes the lock for each of its steps only, and that is done when it returns."""

    @abc.abstractmethod
    def __call__(self) -> None: ...


class DeferredOperation:
    """One queue operation, a :class:`jitree.hal.producer.Producer`. It ends with the deadline of the block
    that it was submitted in, and with the call that waits for it."""

    __slots__ = (
        "__weakref__", "action", "interrupted", "limit", "name", "signal", "timepoints", "wait", "waiting",
    )  # fmt: skip

    def __init__(
        self, waiting: DeferredWork, name: str, wait: Fence, signal: Fence | None, action: Action | None
    ) -> None:
        """``action`` None: the fences are all there is."""
        self.waiting = waiting
        self.limit = cancel_scopes.limit()
        self.interrupted: StatusError | None = None
        """Why it is not to be submitted any more."""
        self.name = name
        self.wait = wait
        self.signal = signal
        self.action = action
        self.timepoints: Sequence[Timepoint] = ()

    def announce(self) -> None:
        """Makes it known to threads that wait for the signal fence, and to the deadline."""
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

    def interrupt(self, failure: StatusError) -> None:
        self.interrupted = failure
        self.waiting.fail(self, again(failure))

    def describe(self) -> str:
        return f"{self.name}, which waits for its wait fence"

    def stop_waiting(self) -> None:
        for timepoint in self.timepoints:
            timepoint.cancel()
        self.timepoints = ()

    def cancel(self, failure: StatusError) -> None:
        """Ends the operation without doing its work, when the submitter has gone on: what no fence carries
        becomes a warning."""
        self.action = None
        self.settle()
        if self.signal is not None:
            self.signal.fail(failure)
        else:
            warnings.warn(
                f"{self.name} without a signal fence failed: {failure}", RuntimeWarning, stacklevel=2
            )


_Ready = tuple[Callable[[DeferredOperation], None], DeferredOperation]
"""(what submits an operation, the operation)"""


class DeferredWork:
    """The waiting list and the worker of one queue."""

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
            raise FailedPreconditionError(f"{operation.name}: the device has been closed")
        operation.announce()
        operation.timepoints = when_scheduled(
            operation.wait, lambda failure: self._schedule(operation, failure)
        )

    def fail(self, operation: DeferredOperation, failure: StatusError) -> None:
        """Ends an operation that is still on the list without doing its work, also where a signal's handler
        raises meanwhile: others may wait for it. Only the thread that takes it off the list does so."""
        is_there = False
        try:
            with self._lock:
                is_there = operation in self._waiting
                self._waiting.pop(operation, None)
            if is_there:
                _end(operation, failure)
        except BaseException as error:
            if is_there and is_interruption(error):
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

    def _schedule(self, operation: DeferredOperation, failure: StatusError | None) -> None:
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
    _end(operation, CancelledError(message))


def _end(operation: DeferredOperation, failure: StatusError) -> None:
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
    """Calls ``callback`` once: when every point of the fence is reached or promised, or one has failed.

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
