"""Runs operations of a queue, from their wait fence to their signal fence."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from jitree import errors
from jitree.base import cancel_scopes, stop_word
from jitree.base.arguments import said
from jitree.base.cancel_scopes import CURRENT
from jitree.hal import watchdog
from jitree.hal.fence import Fence
from jitree.hal.local.interrupts import this_thread
from jitree.hal.local.queue_record import WAITS
from jitree.hal.waiting import WaitMode, are_held_up, describe_missing, pending_producers

if TYPE_CHECKING:
    from jitree.hal.profiling import Profiler
    from jitree.hal.waiting import Producer, Registered
    from jitree.hal.watching import Watchdog

    class Post(Protocol):
        """A place where operations wait for a thread."""

        def withdraw(self, task: Operation) -> bool:
            """Takes a task back; True for the one caller that may run it then."""

        def leave(self, task: Operation) -> bool:
            """Tells whether another thread comes for a task that this one leaves; it may be the one that
            would."""

    class Executor(Protocol):
        """Decides on which thread operations run."""

        def start(self, operation: Operation) -> errors.StatusError | None:
            """Called on the submitter's thread; returns the failure when the operation has run and failed."""

        def start_deferred(self, operation: Operation) -> None:
            """Starts operations on the thread that reached the wait fence, without holding it up."""

    class OperationQueue(Protocol):
        """What operations are submitted to."""

        executor: Executor
        profiler: Profiler
        charge: Callable[[int], object] | None
        """Counts memory of operations until what it gives dies."""
        announced: dict[Operation, None]
        """Operations that have not ended, and whose submitters have gone on."""

        def claim(self, operation: Operation) -> bool:
            """True for the one caller that may start or end a waiting operation."""


class Operation:
    """Holds one queue operation: its work, its signal fence and its expected cost.

    It is a :class:`~jitree.hal.waiting.Producer` while it waits for its wait fence or for a thread.
    """

    __slots__ = (
        "__weakref__", "charge", "cost", "has_begun", "interrupted", "limit", "name", "post", "queue",
        "signal", "submitted", "timepoints", "wait", "work",
    )  # fmt: skip

    def __init__(
        self,
        queue: OperationQueue,
        name: str,
        signal: Fence | None,
        work: Callable[[], None] | None,
        cost: int,
    ) -> None:
        """``work`` None: the fences are all there is. ``cost`` in nanoseconds, or UNKNOWN_COST."""
        self.queue = queue
        self.name = name
        self.signal = signal
        self.work = work
        self.cost = cost
        self.wait: Fence | None = None
        """What it waits for, while it does."""
        self.timepoints: Sequence[Registered] = ()
        self.post: Post | None = None
        """Where it waits for a thread, while it does."""
        self.interrupted: errors.StatusError | None = None
        """Why it is to end early: no call waits for it any more."""
        self.has_begun = False
        """Whether a thread runs it, or has."""
        self.charge: object = None
        """Counts its memory while its submitter has gone on."""
        self.submitted = this_thread.submitted
        self.limit = cancel_scopes.limit()
        """The deadline of the block that it was submitted in; no other ends it, such as one of the thread
        that happens to execute it."""

    def execute(self) -> errors.StatusError | None:
        """Does the work on this thread and signals or fails the fence. The failure is also returned. If a
        signal's handler interrupts it, its caller calls :meth:`stop`."""
        failure: errors.StatusError | None = None
        work, self.work = self.work, None
        if work is not None:
            outer, scope = this_thread.operation, CURRENT.get()
            try:
                this_thread.operation = self
                cancel_scopes.require_uncancelled()
                if self.interrupted is not None:
                    raise errors.again(self.interrupted)
                CURRENT.set(self.limit)
                self._work(work)
            except BaseException as error:
                if errors.is_interruption(error):
                    raise
                failure = self._failure(error)
            finally:
                this_thread.operation = outer  # which no interrupt comes before, as it could after a call
                CURRENT.set(scope)
        if failure is not None:
            self.fail(failure)
        elif self.signal is not None:
            self.signal.signal()
        return failure

    def _failure(self, error: BaseException) -> errors.StatusError:
        """What the fence is told of an error of the work."""
        if isinstance(error, errors.StatusError):
            return error if self.interrupted is None else errors.again(self.interrupted)
        failure: errors.StatusError
        if isinstance(error, RecursionError):
            errors.see_to_overflow(error)
            failure = errors.ResourceExhaustedError(f"{self.name}: Python's stack was full")
        else:
            failure = errors.InternalError(f"{self.name} failed: {said(error)}")
        failure.__cause__ = error
        return failure

    def _work(self, work: Callable[[], None]) -> None:
        if self.queue.profiler.mode or watchdog.current is not None:
            self._watched(work)
        else:
            work()

    def fail(self, failure: errors.StatusError) -> None:
        """Ends the operation without doing its work."""
        self.work = None
        if self.signal is not None:
            self.signal.fail(failure)

    def run(self) -> None:
        """Executes it after the submitter has gone on. As :meth:`execute`, but a failure that no fence
        carries becomes a warning."""
        self.has_begun = True
        self.post = None
        try:
            failure = self.execute()
            self.settle()
        except BaseException as error:
            self.stop(error)
            self.settle()
            raise
        if failure is not None:
            self._report(failure)

    def stop(self, error: BaseException) -> None:
        """Ends it where a signal's handler kept it from ending. Others may wait for it."""
        if not errors.is_interruption(error):
            return
        self.queue.claim(self)
        self._is_not_wanted()  # a thread that has taken it, but has not said so, ends it
        self.work = None
        if self.signal is not None and self.signal.is_reached():
            self.signal.signal()  # calls what was left
        else:
            self.fail(errors.CancelledError(f"{self.name} was interrupted"))
        self.settle()

    def give_up(self, error: BaseException) -> None:
        """Stops it on the submitting thread. Nothing waits for it, so what another thread has begun ends,
        too."""
        if errors.is_interruption(error):
            self._is_not_wanted()
            self._stop_before(error)

    def _is_not_wanted(self) -> None:
        if self.interrupted is None:
            self.interrupted = errors.CancelledError(f"{self.name} was interrupted")
            stop_word.ring()

    def _stop_before(self, error: BaseException) -> None:
        """As :meth:`stop`, but what a thread has begun is left to it."""
        if not errors.is_interruption(error):
            return
        post = self.post
        if post is not None:
            post.withdraw(self)
        if not self.has_begun:
            self.stop(error)

    def cancel(self, failure: errors.StatusError) -> None:
        """As :meth:`fail`, when the submitter has gone on."""
        self.post = None
        self.settle()
        self.fail(failure)
        self._report(failure)

    def announce(self) -> None:
        """Shows it to threads that wait for the signal fence before it runs.

        RESOURCE_EXHAUSTED for more of them than the memory of a sandbox has room for.
        """
        if self.queue.charge is not None:
            points = sum(len(fence.timepoints) for fence in (self.wait, self.signal) if fence is not None)
            if len(self.queue.announced) >= _FEW or points > _FEW_POINTS:
                self.charge = self.queue.charge(_MEMORY + _POINT * points)
        self.submitted[self] = None
        self.queue.announced[self] = None
        if self.limit is not None:
            self.limit.watch(self.interrupt)
        if self.signal is not None:
            for semaphore, value in self.signal.timepoints:
                semaphore.expect(value, self)

    def run_here(self, deadline: float | None) -> bool:
        """As :meth:`Producer.run_here`. What a deadline leaves no time for, or may not, is left to another
        thread, where there is one."""
        post = self.post
        try:
            if post is None or (not self._ends_by(deadline) and post.leave(self)) or not post.withdraw(self):
                return False
            self.run()
        except BaseException as error:
            self._stop_before(error)
            raise
        return True

    def _ends_by(self, deadline: float | None) -> bool:
        """Whether it will have ended by a time and before what limits this thread. If that limits the
        operation, too, it ends it."""
        limit = cancel_scopes.limit()
        times = [deadline, None if limit is self.limit else cancel_scopes.until()]
        return all(end is None or 0 <= self.cost * 1e-9 < end - time.monotonic() for end in times)

    def interrupt(self, failure: errors.StatusError) -> None:
        """As :meth:`Producer.interrupt`."""
        self.interrupted = failure
        stop_word.ring()
        post = self.post
        try:
            if self.queue.claim(self):
                self.forget_wait()
                self.cancel(errors.again(failure))
            elif post is not None and post.withdraw(self):
                self.cancel(errors.again(failure))
        except BaseException as error:
            self._stop_before(error)
            raise

    def forget_wait(self) -> None:
        """It does not come after its wait fence any more: it ends."""
        for timepoint in self.timepoints:
            timepoint.cancel()
        self.timepoints = ()
        self.wait = None

    def finish(self) -> None:
        """Waits until it has ended, however."""
        if self.signal is not None:
            with suppress(errors.StatusError):
                self.signal.wait()

    def prerequisites(self) -> Sequence[Producer]:
        """As :meth:`Producer.prerequisites`."""
        wait = self.wait
        return () if wait is None else pending_producers(wait.timepoints, WaitMode.ALL)

    def is_held_up(self) -> bool:
        """As :meth:`Producer.is_held_up`: also by other members of a group."""
        wait = self.wait
        return self.cost == WAITS or (wait is not None and are_held_up(wait.timepoints))

    def describe(self) -> str:
        """What it is and what holds it up."""
        if self.wait is None:
            return f"{self.name}, which {'has been started' if self.post is None else 'waits for a thread'}"
        first: Producer = self
        seen: set[Producer] = {self}
        while isinstance(first, Operation) and first.wait is not None:
            earlier = first.prerequisites()
            if not earlier or earlier[0] in seen:
                points = describe_missing(first.wait.timepoints)
                return f"{self.name}, after {len(seen) - 1} others, of which the first waits for {points}"
            first = earlier[0]
            seen.add(first)
        return f"{self.name}, after {len(seen) - 1} others, of which the first is {first.describe()}"

    def _watched(self, work: Callable[[], None]) -> None:
        profiler, dog = self.queue.profiler, watchdog.current
        task = work if dog is None else partial(self._reported, work, dog)
        if profiler.mode:
            profiler.measure(self.name, self, task)
        else:
            task()

    def _reported(self, work: Callable[[], None], dog: Watchdog) -> None:
        self.announce()  # also if the submitter waits: reports of others say who signals what they wait for
        from jitree.hal.local.failure import describe_work

        activity = dog.enter("working", partial(describe_work, self.name, work))
        try:
            work()
        finally:
            activity.end()
            self.settle()

    def settle(self) -> None:
        """Takes :meth:`announce` back."""
        self.charge = None
        self.submitted.pop(self, None)
        self.queue.announced.pop(self, None)
        if self.limit is not None:
            self.limit.unwatch(self.interrupt)
        if self.signal is not None:
            for semaphore, value in self.signal.timepoints:
                semaphore.settle(value, self)

    def _report(self, failure: errors.StatusError) -> None:
        if self.signal is None:
            from jitree.base.folding import warn

            warn(f"{self.name} without a signal fence failed: {failure}")

    def _reached(self, failure: errors.StatusError | None) -> None:
        """The wait fence was reached or failed, on whatever thread did that."""
        try:
            if not self.queue.claim(self):
                return
            self.timepoints = ()
            self.wait = None
            if failure is not None:
                self.cancel(failure)
            else:
                self.queue.executor.start_deferred(self)
        except BaseException as error:
            self._stop_before(error)
            raise


_MEMORY: Final = 2048
"""Bytes that an operation has which waits, with its work."""
_POINT: Final = 192
"""Bytes for each point of a timeline that it waits for or signals."""
_FEW_POINTS: Final = 16
_FEW: Final = 64
"""Operations that may wait without being counted: how many do depends on the speed of threads."""
