"""Worker threads: a pool that runs tasks, and how its threads sleep.

A thread without work parks on an eventfd (a wake-up takes 5 to 7 us, half of what locks and conditions of
Python need). The count of parked threads is kept under the pool's lock: whoever adds a task while a thread is
parked takes one off the count and writes one token; tokens are neither lost nor doubled, so no wake-up is
either.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from _thread import allocate_lock
from collections import deque
from typing import Protocol

from jitree.errors import AbortedError, CancelledError, FailedPreconditionError, StatusError
from jitree.hal.local.topology import Topology


class Task(Protocol):
    def run(self) -> None: ...

    def cancel(self, failure: StatusError) -> None:
        """Called instead of :meth:`run` when the pool closes first."""


class Parking(Protocol):
    """Where threads sleep: every token lets one of them go."""

    def wait(self) -> None: ...

    def wake(self, count: int) -> None: ...


class EventParking:
    """Tokens are the count of an eventfd."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_SEMAPHORE)

    def __del__(self) -> None:
        descriptor, self._descriptor = getattr(self, "_descriptor", -1), -1
        if descriptor >= 0:
            os.close(descriptor)

    def wait(self) -> None:
        os.eventfd_read(self._descriptor)

    def wake(self, count: int) -> None:
        os.eventfd_write(self._descriptor, count)


class SemaphoreParking:
    """For systems without eventfd."""

    def __init__(self) -> None:
        self._semaphore = threading.Semaphore(0)

    def wait(self) -> None:
        self._semaphore.acquire()

    def wake(self, count: int) -> None:
        self._semaphore.release(count)


def make_parking() -> Parking:
    """The best that the system has."""
    return EventParking() if hasattr(os, "eventfd") else SemaphoreParking()


class _Shared:
    """What the threads of a pool hold; the pool itself is not among it, so that a forgotten pool can end."""

    def __init__(self, parking: Parking) -> None:
        self.parking = parking
        self.lock = allocate_lock()
        self.tasks: deque[Task] = deque()
        self.parked = 0
        self.stopping = False

    def take(self) -> Task | None:
        """The next task, parked until there is one; None when the pool ends."""
        while True:
            with self.lock:
                if self.tasks:
                    return self.tasks.popleft()
                if self.stopping:
                    return None
                self.parked += 1
            self.parking.wait()

    def stop(self) -> list[Task]:
        """Lets every thread end; the tasks that have not been started."""
        with self.lock:
            self.stopping = True
            left = list(self.tasks)
            self.tasks.clear()
            parked, self.parked = self.parked, 0
        if parked:
            self.parking.wake(parked)
        return left


class WorkerPool:
    """Threads that run tasks, in the order of submission as far as there are threads.

    Threads start when first needed. They are daemons, so that a program that forgets to close its device
    still ends; a pool that is alive then is closed, with its threads joined. In a forked child the threads
    start anew; what the parent's threads were running there does not finish in the child.
    """

    def __init__(self, name: str, topology: Topology, parking: Parking | None = None) -> None:
        self.name = name
        self.topology = topology
        self._shared = _Shared(parking or make_parking())
        self._threads: list[threading.Thread] = []
        self._closed = False
        _pools.add(self)

    def __del__(self) -> None:
        shared = getattr(self, "_shared", None)
        if shared is not None and not self._closed:
            for task in shared.stop():
                task.cancel(CancelledError("the device was dropped while work was queued"))

    @property
    def worker_count(self) -> int:
        return self.topology.worker_count

    def post(self, task: Task, *more: Task) -> None:
        """Adds tasks and wakes as many threads. FAILED_PRECONDITION when the pool has been closed."""
        shared = self._shared
        count = 1 + len(more)
        with shared.lock:
            if shared.stopping:
                raise FailedPreconditionError(f"{self.name} has been closed")
            shared.tasks.append(task)
            shared.tasks.extend(more)
            woken = min(shared.parked, count)
            shared.parked -= woken
            starting = min(count - woken, self.worker_count - len(self._threads))
            started = [self._new_thread() for _ in range(starting)]
        if woken:
            shared.parking.wake(woken)
        for thread in started:
            thread.start()

    def is_worker(self) -> bool:
        """Whether the calling thread belongs to the pool."""
        return threading.current_thread() in self._threads

    def close(self) -> None:
        """Cancels what has not been started, lets running tasks finish and joins the threads."""
        if self._closed:
            return
        self._closed = True
        left = self._shared.stop()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        self._threads = []
        for task in left:
            task.cancel(CancelledError(f"{self.name} was closed before the work was started"))

    def _new_thread(self) -> threading.Thread:
        """A thread that has not been started; the caller holds the lock."""
        index = len(self._threads)
        thread = threading.Thread(
            target=_work,
            args=(self._shared, self.topology.processors[index]),
            name=f"{self.name}.{index}",
            daemon=True,
        )
        self._threads.append(thread)
        return thread

    def _after_fork(self) -> None:
        """In the child no thread but the forking one exists: start over, with the tasks that were waiting."""
        left, stopping = self._shared.tasks, self._shared.stopping
        self._shared = _Shared(make_parking())
        self._shared.stopping = stopping
        self._threads = []
        for task in left:
            task.cancel(AbortedError("the process was forked before the work was started"))


def _work(shared: _Shared, processor: int | None) -> None:
    if processor is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(threading.get_native_id(), {processor})
    while True:
        task = shared.take()
        if task is None:
            return
        try:
            task.run()
        except BaseException:  # a thread that ends here would leave work undone for ever
            kind, error, traceback = sys.exc_info()
            threading.excepthook(
                threading.ExceptHookArgs((kind, error, traceback, threading.current_thread()))
            )
        del task  # what it holds must not live until the next one comes


_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()


def _close_all() -> None:
    for pool in list(_pools):
        pool.close()


def _restart_all() -> None:
    for pool in list(_pools):
        pool._after_fork()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restart_all)
