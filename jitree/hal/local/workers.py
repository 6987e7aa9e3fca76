"""Runs tasks on a pool of worker threads, which sleep between them.

Each thread without work parks on a descriptor (a wake-up takes 5 to 7 us, half of what locks and
conditions of Python need). The pool's lock guards the list of parked threads: who takes a thread off that
list has given it a token before, so that no wake-up is lost, also where a signal's handler raises in between.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from jitree import errors
from jitree.base.finalizers import (
    Finalizer,
    SharedWeakSet,
    brief_guard,
    end_each,
    join,
    start_thread,
    uninterrupted,
    without_guards,
)
from jitree.base.platform.threads import Parking, place_thread
from jitree.hal import watchdog
from jitree.hal.local.topology import Topology


class Task(Protocol):
    def run(self) -> None: ...

    def cancel(self, failure: errors.StatusError) -> None:
        """Called instead of :meth:`run` when the pool closes first."""


class _Shared:
    """What the threads of a pool hold; the pool itself is not among it, so that a forgotten pool can end.

    At most one thread is on its way to the tasks: that thread, not the one that adds tasks, summons the
    next one if it leaves any. So a burst of tasks costs its submitter one wake-up.
    """

    def __init__(self, name: str, topology: Topology) -> None:
        self.name = name
        self.topology = topology
        self.lock = brief_guard()
        """A forgotten pool ends where the garbage collector runs: also where a thread of it makes another."""
        self.tasks: OrderedDict[Task, None] = OrderedDict()
        self.threads: dict[int, threading.Thread] = {}
        """By place in the topology."""
        self.parked: dict[int, Parking] = {}
        """By place; the last one to park is the first to be woken."""
        self.coming = False
        """Whether a thread has been woken or started that has not looked at the tasks yet."""
        self.stopping = False

    def add(self, tasks: Sequence[Task], taken_here: int) -> None:
        """Adds tasks; the calling thread comes for as many as ``taken_here`` itself."""
        try:
            with self.lock:
                if self.stopping:
                    raise errors.FailedPreconditionError(f"{self.name} has been closed")
                for task in tasks:
                    self.tasks[task] = None
                if len(self.tasks) > taken_here:
                    self._summon()
        except BaseException:  # also when a signal's handler raised
            for task in tasks:
                self.withdraw(task)
            raise

    def take(self, place: int, parking: Parking) -> Task | None:
        """The next task, parked until there is one; None when the thread at ``place`` is to end."""
        while True:
            with self.lock:
                if self.stopping:
                    return None
                leaves = place >= self.topology.worker_count
                if leaves or self.tasks:
                    task = None if leaves else self.tasks.popitem(last=False)[0]
                    if self.tasks:
                        self._summon()
                    if leaves:
                        del self.threads[place]
                    return task
                self.parked[place] = parking
            parking.wait()
            self.arrive(place)

    def arrive(self, place: int) -> bool:
        """The thread that was woken or started is there. False for one whose start was interrupted: another
        may have its place."""
        with self.lock:
            if self.threads.get(place) is not threading.current_thread():
                return False
            self.coming = False
            self.parked.pop(place, None)
            return True

    def withdraw(self, task: Task) -> bool:
        """Takes a task back; False when a thread has it already."""
        with self.lock:
            return self.tasks.pop(task, self) is None

    def run_apart(self, task: Task) -> bool:
        """Has one more thread do a task, if no other is quicker; False where the system gives none."""
        with self.lock:
            place = max((self.topology.worker_count - 1, *self.threads)) + 1
            thread = threading.Thread(
                target=_work_apart, args=(self, place, task), name=f"{self.name}.{place}", daemon=True
            )
            self.threads[place] = thread
        try:
            start_thread(thread)
        except (RuntimeError, MemoryError) as error:
            errors.pass_interruption(error)
            with self.lock:
                del self.threads[place]
            return False
        return True

    def resize(self, topology: Topology) -> None:
        """Threads whose place is gone end when they have done what they are at."""
        with self.lock:
            self.topology = topology
            self._wake([place for place in self.parked if place >= topology.worker_count])

    def stop(self) -> None:
        """Lets every thread end. What is interrupted can be done again: a thread may be woken twice."""
        with self.lock:
            self.stopping = True
            self._wake([*self.parked])

    def cancel(self, failure: errors.StatusError) -> None:
        """Cancels the tasks that no thread has, when it has been stopped."""
        end_each(self.tasks, self.lock, lambda task: task.cancel(failure))

    # The caller of the following has the lock. A signal's handler may raise after any of their calls: what a
    # thread is to be told has been told before the tables say so.

    def _wake(self, places: Sequence[int]) -> None:
        for place in places:
            self.parked[place].wake()
            del self.parked[place]

    def _summon(self) -> None:
        """Has one more thread come, if none is on its way."""
        if self.coming:
            return
        for place in reversed(self.parked):
            self._wake((place,))
            self.coming = True
            return
        for place, processor in enumerate(self.topology.processors):
            if place not in self.threads:
                self._start(place, processor)
                return

    def _start(self, place: int, processor: int | None) -> None:
        """RESOURCE_EXHAUSTED where there is no thread and the system gives none, or no descriptor."""
        try:
            self._start_parking(place, processor, Parking())
        except (RuntimeError, MemoryError, OSError) as error:
            errors.pass_interruption(error)
            if not self.threads:
                raise errors.ResourceExhaustedError(f"{self.name}: cannot start a thread: {error}") from error

    def _start_parking(self, place: int, processor: int | None, parking: Parking) -> None:
        """Starts a thread with all that it needs: one that fails is waited for in vain."""
        thread = threading.Thread(
            target=_work, args=(self, place, processor, parking), name=f"{self.name}.{place}", daemon=True
        )
        try:
            self.threads[place], self.coming = thread, True
            start_thread(thread)
        except BaseException:
            if thread.ident is None:  # one that begins after all ends at once
                del self.threads[place]
                self.coming = False
            raise


class _ThisWorker(threading.local):
    shared: _Shared | None = None
    """What the pool that the thread belongs to shares."""


_this_thread = _ThisWorker()


class WorkerPool:
    """Runs tasks on threads, in the order of submission as threads are free.

    Threads start when first needed. They are daemons, so that a program that forgets to close its device
    still ends; a pool that is alive then is closed, with its threads joined. In a forked child the threads
    start anew; what the parent's threads were running there does not finish in the child.
    """

    def __init__(self, name: str, topology: Topology) -> None:
        self._shared = _Shared(name, topology)
        self._ending = Finalizer(uninterrupted(partial(without_guards, partial(_drop, self._shared))))
        _pools.add(self)
        watchdog.ask(self)

    @property
    def name(self) -> str:
        return self._shared.name

    @property
    def topology(self) -> Topology:
        return self._shared.topology

    @property
    def worker_count(self) -> int:
        return self._shared.topology.worker_count

    def post(self, *tasks: Task) -> None:
        """Adds tasks and sees to it that a thread comes. FAILED_PRECONDITION when the pool has been
        closed."""
        self._shared.add(tasks, 0)

    def post_next(self, task: Task) -> None:
        """Posts a task from a thread that ends its own. As :meth:`post`, but one of the pool's takes the task
        itself."""
        self._shared.add((task,), int(self.is_worker()))

    def withdraw(self, task: Task) -> bool:
        """Takes a task back: True when no thread has it, and none will then."""
        return self._shared.withdraw(task)

    def leave(self, task: Task) -> bool:
        """Whether another thread comes for a task that the calling one waits for. All of the pool may be
        waiting like that: a thread of it gets another one to its side, if the system gives one."""
        return not self.is_worker() or self._shared.run_apart(task)

    def resize(self, topology: Topology) -> None:
        """Changes the number of threads; tasks stay as they are. Threads that are left over end when they are
        done with theirs."""
        self._shared.resize(topology)

    def is_worker(self) -> bool:
        """Whether the calling thread belongs to the pool."""
        return _this_thread.shared is self._shared

    def report(self) -> list[str]:
        """As :meth:`watching.Reporter.report`."""
        shared = self._shared
        with shared.lock:
            queued, threads, parked = len(shared.tasks), len(shared.threads), len(shared.parked)
        if not threads and not queued:
            return []
        return [
            f"{self.name}: {threads} of {self.worker_count} threads, {parked} parked; {queued} tasks wait"
        ]

    def close(self) -> None:
        """Cancels what has not been started, lets running tasks finish and joins the threads. Again, it does
        what was left when it was interrupted."""
        self._shared.stop()
        for thread in tuple(self._shared.threads.values()):
            if thread.ident not in (None, threading.get_ident()):
                join(thread)
        self._shared.cancel(errors.CancelledError(f"{self.name} was closed before the work was started"))
        self._ending.cancel()

    def _after_fork(self) -> None:
        """In the child no thread but the forking one exists: start over, with the tasks that were waiting."""
        left, stopping = self._shared.tasks, self._shared.stopping
        self._ending.cancel()
        self._shared = _Shared(self.name, self.topology)
        self._shared.stopping = stopping
        self._ending = Finalizer(uninterrupted(partial(without_guards, partial(_drop, self._shared))))
        for task in left:
            task.cancel(errors.AbortedError("the process was forked before the work was started"))


def _drop(shared: _Shared) -> None:
    """Nothing refers to the pool any more."""
    shared.stop()
    shared.cancel(errors.CancelledError("the device was dropped while work was queued"))


def _work(shared: _Shared, place: int, processor: int | None, parking: Parking) -> None:
    if processor is not None:
        with suppress(OSError):  # taken from the process meanwhile
            place_thread({processor})
    _this_thread.shared = shared
    if not shared.arrive(place):
        return
    while True:
        task = shared.take(place, parking)
        if task is None:
            return
        _run(task)
        del task  # what it holds must not live until the next one comes


def _run(task: Task) -> None:
    try:
        task.run()
    except BaseException:  # a thread that ends here would leave work undone for ever
        kind, error, traceback = sys.exc_info()
        threading.excepthook(threading.ExceptHookArgs((kind, error, traceback, threading.current_thread())))


def _work_apart(shared: _Shared, place: int, task: Task) -> None:
    _this_thread.shared = shared
    try:
        if shared.withdraw(task):
            _run(task)
    finally:
        with shared.lock:
            del shared.threads[place]
            if shared.tasks:  # which the task has posted, for this thread to come for them
                shared._summon()


_pools: Final[SharedWeakSet[WorkerPool]] = SharedWeakSet()


def _close_all() -> None:
    for pool in _pools:
        pool.close()


def _restart_all() -> None:
    for pool in _pools:
        pool._after_fork()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_restart_all)
