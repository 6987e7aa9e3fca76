"""Operations that wait for something the device cannot wait for: the host, or another kind of device.

Such an operation is on the list of waiting ones until every semaphore of its wait fence has reached its
value, or a stream has promised to. The thread that brings that about only hands the operation to the worker
thread, which submits it. There is no worker as long as nothing has been deferred.
"""

from __future__ import annotations

import abc
import threading
import warnings
from _thread import allocate_lock
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from jitree.cuda.semaphore import CudaSemaphore
from jitree.errors import CancelledError, FailedPreconditionError, StatusError
from jitree.hal.fence import Fence
from jitree.hal.semaphore import Countdown, ReachedCallback, Timepoint

Action = Callable[[], object]
"""Submits device work to the stream; called with the stream's lock held and its context current."""


class Stepwise(abc.ABC):
    """An action that takes the lock for each of its steps only, and that is done when it returns."""

    @abc.abstractmethod
    def __call__(self) -> None: ...


class DeferredOperation:
    """One queue operation."""

    __slots__ = ("__weakref__", "action", "name", "signal", "timepoints", "wait")

    def __init__(self, name: str, wait: Fence, signal: Fence | None, action: Action | None) -> None:
        """``action`` None: the fences are all there is."""
        self.name = name
        self.wait = wait
        self.signal = signal
        self.action = action
        self.timepoints: Sequence[Timepoint] = ()

    def fail(self, failure: StatusError) -> None:
        """Ends the operation without doing its work."""
        self.action = None
        if self.signal is not None:
            self.signal.fail(failure)

    def cancel(self, failure: StatusError) -> None:
        """As :meth:`fail`, when the submitter has gone on: what no fence carries becomes a warning."""
        self.fail(failure)
        if self.signal is None:
            warnings.warn(
                f"{self.name} without a signal fence failed: {failure}", RuntimeWarning, stacklevel=2
            )


_Ready = tuple[Callable[[DeferredOperation], None], DeferredOperation]
"""(who submits it, an operation)"""


class DeferredWork:
    """The waiting list and the worker of one queue."""

    def __init__(self, name: str, submit: Callable[[DeferredOperation], None]) -> None:
        """``submit`` is called on the worker thread; it fails operations itself and raises nothing."""
        self._name = name
        self._submit = submit
        self._lock = allocate_lock()
        self._waiting: dict[DeferredOperation, None] = {}
        self._ready: SimpleQueue[_Ready | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def waiting_count(self) -> int:
        with self._lock:
            return len(self._waiting)

    def defer(self, operation: DeferredOperation) -> None:
        """Submits the operation when its wait fence allows it, on the worker thread."""
        with self._lock:
            if self._closed:
                raise FailedPreconditionError(f"{operation.name}: the device has been closed")
            self._waiting[operation] = None
            if self._thread is None:
                # The thread refers to the list only, so that a forgotten device can be collected.
                self._thread = threading.Thread(
                    target=_run, args=(self._ready,), name=f"{self._name} deferred work", daemon=True
                )
                self._thread.start()
        operation.timepoints = when_scheduled(
            operation.wait, lambda failure: self._schedule(operation, failure)
        )

    def close(self) -> None:
        """Cancels what waits, submits what is ready, and ends the worker."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = tuple(self._waiting), {}
            thread, self._thread = self._thread, None
        for operation in waiting:
            for timepoint in operation.timepoints:
                timepoint.cancel()
            operation.cancel(
                CancelledError(f"{operation.name}: the device was closed before its wait fence was reached")
            )
        if thread is not None:
            self._ready.put(None)
            if thread is not threading.current_thread():
                thread.join()

    def _schedule(self, operation: DeferredOperation, failure: StatusError | None) -> None:
        """The wait fence was reached, promised or failed, on whatever thread did that."""
        with self._lock:
            if operation not in self._waiting:
                return
            del self._waiting[operation]
        if failure is not None and operation.signal is None:
            operation.cancel(failure)
        else:  # not here: fences of a long chain would call each other
            self._ready.put((self._submit, operation))


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
    if len(points) > 1:
        callback = Countdown(len(points), callback)
    registered = (
        semaphore.on_scheduled(value, callback)
        if isinstance(semaphore, CudaSemaphore)
        else semaphore.on_reached(value, callback)
        for semaphore, value in points
    )
    return [timepoint for timepoint in registered if timepoint is not None]
