"""Starts operations of the local drivers when their wait fence is reached.

An operation whose waits are met when it is submitted starts before the call returns. Any other is registered
with its wait fence and started by the thread that reaches it; nothing ever blocks for a wait fence, so that a
thread may submit work and signal its wait fence afterwards. Where an operation then runs is the business of
the executor (:mod:`jitree.hal.local.operation`). Those that wait for other members of a group, or that Python
interprets, have a thread of their own (:class:`Waiter`) where the submitter's thread has an event loop to
serve.

A loop submits faster than its operations run. Memory that it allocates is taken at once and given back when
the last operation that uses it has run, so a call that never waited would have as much of it as it has turns.
So a call that is far ahead waits for the operations before its next one, as all calls do in the C runtime.
It waits for submitted work only. What the host signals later, or another member of a group, may be in the
hands of the thread that submits: such a call goes on, however far ahead it is. So does a call that an
operation makes (a tap's callback): it may come after that operation, or after others that have their turn
on its thread. Where a task awaits the end of the call, that is in other hands, and it is awaited here.
"""

from __future__ import annotations

import os
import threading
from _thread import _local
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from jitree.base import cancel_scopes
from jitree.base.finalizers import SharedWeakSet, brief_guard, end_each, start_thread
from jitree.errors import (
    CancelledError,
    FailedPreconditionError,
    ResourceExhaustedError,
    StatusError,
    again,
    is_interruption,
)
from jitree.hal.fence import COMES_AFTER, Fence, check_fences
from jitree.hal.local.interrupts import this_thread
from jitree.hal.local.operation import Operation
from jitree.hal.local.queue_record import CLOSED, WAITS, QueueRecord
from jitree.hal.semaphore import after_failures
from jitree.hal.waiting import WaitMode, are_held_up, pending_producers

if TYPE_CHECKING:
    from jitree.hal.local.operation import Executor
    from jitree.hal.profiling import Profiler
    from jitree.hal.waiting import Producer

MOST_AHEAD: Final = 128
"""Operations that a call may have submitted which have not run: enough to keep all threads at work."""
_FEW: Final = 16
"""Operations that it may have submitted in any case: programs without a loop hardly have more."""
_MOST_BYTES: Final = 256 << 20
"""Of memory, if each of those operations has got as much as the next one."""


class LocalQueue:
    """Takes operations; everything it holds is released by :meth:`close`."""

    def __init__(self, executor: Executor, profiler: Profiler, record: QueueRecord | None = None) -> None:
        self.executor = executor
        self.profiler = profiler
        self.record = record or QueueRecord()
        self._lock = brief_guard()  # a forgotten device closes it wherever the garbage collector runs
        self._waiting: dict[Operation, None] = {}
        self.charge: Callable[[int], object] | None = None
        self.announced: dict[Operation, None] = {}
        self._closed = False
        _queues.add(self)

    def submit(
        self,
        name: str,
        wait: Fence | None,
        signal: Fence | None,
        work: Callable[[], None] | None,
        cost: int = 0,
    ) -> None:
        """Submits one operation; ``name`` is for messages and profiles, for the rest see :class:`Operation`.

        A failure that is known before the call returns and that no signal fence carries is raised.
        """
        if self._closed:
            raise FailedPreconditionError(f"{name}: the device has been closed")
        check_fences(wait, signal)
        operation = Operation(self, name, signal, work, cost)
        try:
            if self.profiler.mode:
                self.profiler.submit(operation)
            failure = self._begin(operation, wait)
        except BaseException as error:
            operation.give_up(error)
            raise
        if failure is not None and signal is None:
            raise again(failure)

    def _begin(self, operation: Operation, wait: Fence | None) -> StatusError | None:
        """Starts an operation, or when its wait fence is reached; the failure of one that has ended."""
        if wait is None or wait.is_reached():
            return self.executor.start(operation)
        failure = wait.failure
        if failure is None:
            self._defer(operation, wait)
        else:
            operation.fail(failure)
        return failure

    @property
    def waiting_count(self) -> int:
        """Operations whose wait fence has not been reached."""
        with self._lock:
            return len(self._waiting)

    def finish(self) -> None:
        """Waits for the operations that have been submitted. What one fails with is told by its own fence."""
        for operation in tuple(self.announced):
            operation.finish()

    def close(self) -> None:
        """Refuses new operations and cancels those that wait. Again, it does what was left when it was
        interrupted."""
        self.record.hold(CLOSED)
        with self._lock:
            self._closed = True
        end_each(self._waiting, self._lock, _cancel)

    def _defer(self, operation: Operation, wait: Fence) -> None:
        operation.wait = wait
        operation.announce()
        with self._lock:
            closed = self._closed
            if not closed:
                self._waiting[operation] = None
        if closed:
            operation.settle()
            raise FailedPreconditionError(f"{operation.name}: the device has been closed")
        operation.timepoints = wait.on_reached(operation._reached)
        if operation.interrupted is not None:
            operation.interrupt(operation.interrupted)

    def claim(self, operation: Operation) -> bool:
        """As :meth:`OperationQueue.claim`."""
        with self._lock:
            if operation not in self._waiting:
                return False
            del self._waiting[operation]
            return True


def _cancel(operation: Operation) -> None:
    operation.forget_wait()
    operation.cancel(
        CancelledError(f"{operation.name}: the device was closed before its wait fence was reached")
    )


_queues: Final[SharedWeakSet[LocalQueue]] = SharedWeakSet()


def _after_fork() -> None:
    """In a forked child no thread holds a lock, whatever it says. Waiting operations go on waiting there."""
    for queue in _queues:
        queue._lock = brief_guard()


os.register_at_fork(after_in_child=_after_fork)


class _Turns:
    """Operations that have their turn on a thread, one after the other."""

    def __init__(self, first: Operation) -> None:
        self.left = OrderedDict({first: None})

    def withdraw(self, task: Operation) -> bool:
        """Withdraws a post, as :meth:`Post.withdraw`, for what is awaited in the midst of one."""
        return _this_thread.ready is self and self.left.pop(task, self) is None

    def leave(self, task: Operation) -> bool:
        """As :meth:`Post.leave`."""
        return _this_thread.ready is not self


class _ThisSubmitter(_local):
    ready: _Turns | None = None


_this_thread = _ThisSubmitter()


def run_on_this_thread(operation: Operation) -> None:
    """Runs a deferred operation here, after what is running here already.

    Its signal fence may start further ones: chains of any length take turns in one loop instead of nesting.
    """
    ready = _this_thread.ready
    if ready is None:
        after_failures(partial(_run_in_turn, operation), operation._stop_before)
    else:
        operation.post = ready
        ready.left[operation] = None


def _run_in_turn(operation: Operation) -> None:
    ready = _this_thread.ready = _Turns(operation)
    left = ready.left
    interruption: BaseException | None = None
    try:
        while left:
            try:
                while left:
                    operation = next(iter(left))
                    del left[operation]  # which no interrupt comes before, as it could after a call
                    operation.run()
            except BaseException as error:  # raised when the others have run: they have been promised
                interruption = interruption or error
                operation.stop(error)
    finally:
        _this_thread.ready = None
    if interruption is not None:
        raise interruption


class CallerExecutor:
    """Runs everything on the thread that submits it or reaches its fence. What costs WAITS does not keep an
    event loop from its turns."""

    def __init__(self) -> None:
        self._waiter: Waiter | None = None

    def start(self, operation: Operation) -> StatusError | None:
        if operation.cost != WAITS or not cancel_scopes.runs_here():
            return operation.execute()
        operation.announce()
        try:
            self._start_apart(operation)
        except StatusError:
            operation.settle()
            raise
        return None

    def start_deferred(self, operation: Operation) -> None:
        if operation.cost != WAITS or not cancel_scopes.runs_here():
            run_on_this_thread(operation)
            return
        try:
            self._start_apart(operation)
        except StatusError as error:
            operation.cancel(error)

    def _start_apart(self, operation: Operation) -> None:
        waiter = self._waiter
        if waiter is None or waiter.process != os.getpid():
            waiter = self._waiter = Waiter()
        waiter.add(operation)


class Waiting(Protocol):
    def run(self) -> None: ...


class Waiter:
    """Runs operations one after the other, since other members have the same order. The thread is there while
    there are any."""

    def __init__(self) -> None:
        self._lock = brief_guard()  # endings add some wherever the garbage collector runs
        self._operations: deque[Waiting] = deque()
        self._thread: threading.Thread | None = None
        self.process = os.getpid()
        """A forked child needs another one: it does not have the thread."""

    def add(self, operation: Waiting) -> None:
        """Has an operation run. RESOURCE_EXHAUSTED where there is no thread and the system gives none."""
        with self._lock:
            try:
                self._operations.append(operation)
                if self._thread is None:
                    self._start()
            except BaseException as error:
                if self._thread is None and operation in self._operations:
                    self._operations.remove(operation)  # no thread comes for it
                if is_interruption(error) or not isinstance(error, RuntimeError | MemoryError):
                    raise
                raise ResourceExhaustedError(f"cannot start a thread: {error}") from error

    def _start(self) -> None:
        """Starts the thread; the caller has the lock. A signal's handler may raise after any call."""
        thread = threading.Thread(target=self._run, name="jitree beside an event loop", daemon=True)
        try:
            self._thread = thread
            start_thread(thread)
        except BaseException:
            if thread.ident is None:  # if it begins after all, it ends at once
                self._thread = None
            raise

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._thread is not threading.current_thread():
                    return
                if not self._operations:
                    self._thread = None
                    return
                operation = self._operations.popleft()
            operation.run()
            del operation


def is_far_ahead(wait: Fence, size: int) -> bool:
    """Whether this thread's call must, and can, wait for a fence first. ``size``: bytes of memory that its
    last operation has got."""
    count = len(this_thread.submitted)
    if count <= _FEW or (count < MOST_AHEAD and count * size < _MOST_BYTES):
        this_thread.next_look = 0
        return False
    if COMES_AFTER.get() is not None:
        return this_thread.operation is None
    if count < this_thread.next_look:
        return False
    if comes_by_itself(wait):
        return True
    this_thread.next_look = 2 * count  # so that looking takes no longer than submitting
    return False


def comes_by_itself(fence: Fence) -> bool:
    """Whether submitted work alone reaches a fence. The host and others have nothing to do for it, nor an
    operation that this thread is at."""
    if this_thread.operation is not None or are_held_up(fence.timepoints):
        return False
    found = pending_producers(fence.timepoints, WaitMode.ALL)
    seen: set[Producer] = set(found)
    while found:
        producer = found.pop()
        if producer.is_held_up():
            return False
        earlier = [one for one in producer.prerequisites() if one not in seen]
        seen.update(earlier)
        found += earlier
    return True
