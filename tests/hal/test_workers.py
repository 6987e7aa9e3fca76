"""The worker pool: tasks, parking, closing, forgotten pools, forks and interpreter exit."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from jitree.errors import FailedPreconditionError, ResourceExhaustedError, StatusCode, StatusError
from jitree.hal.driver import DriverRegistry
from jitree.hal.fence import Fence
from jitree.hal.local import interrupts, workers
from jitree.hal.local.queue import Waiter
from jitree.hal.local.task import TaskDevice
from jitree.hal.local.topology import Topology
from jitree.hal.local.workers import WorkerPool
from tests.base.interruption import interruptions
from tests.hal.helpers import TIMEOUT, allocate, finish, new_threads

LARGE = 8_000_000
"""Bytes; a fill of that many goes to the workers."""


class Task:
    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work
        self.done = threading.Event()
        self.failure: StatusError | None = None

    def run(self) -> None:
        self.work()
        self.done.set()

    def cancel(self, failure: StatusError) -> None:
        self.failure = failure
        self.done.set()


def nothing() -> None:
    pass


def make_pool(count: int) -> WorkerPool:
    return WorkerPool("test-worker", Topology((None,) * count))


def thread_count(name: str) -> int:
    return sum(thread.name.startswith(name) for thread in threading.enumerate())


def test_tasks_run_on_workers_as_many_as_needed() -> None:
    pool = make_pool(3)
    assert thread_count("test-worker") == 0, "threads start when needed"
    names = []
    for _ in range(20):
        task = Task(lambda: names.append(threading.current_thread().name))
        pool.post(task)
        assert task.done.wait(TIMEOUT)
    assert threading.current_thread().name not in names
    assert thread_count("test-worker") <= 3
    pool.close()
    assert thread_count("test-worker") == 0


def test_tasks_overlap() -> None:
    """Three tasks that wait for each other need three threads."""
    pool, barrier = make_pool(3), threading.Barrier(3, timeout=TIMEOUT)

    def wait() -> None:
        barrier.wait()

    for _ in range(3):
        tasks = [Task(wait) for _ in range(3)]
        pool.post(*tasks)
        assert all(task.done.wait(TIMEOUT) for task in tasks)
    pool.close()


def test_no_wake_up_is_lost() -> None:
    """Many short tasks from several threads, with pauses in which workers park."""
    pool, rounds = make_pool(2), 60

    def post(pause: float) -> None:
        for _ in range(rounds):
            task = Task(nothing)
            pool.post(task)
            assert task.done.wait(TIMEOUT)
            time.sleep(pause)

    threads = [threading.Thread(target=post, args=(pause,)) for pause in (0, 0.0001, 0.0007)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert not any(thread.is_alive() for thread in threads)
    pool.close()


def test_close_finishes_what_runs_and_cancels_the_rest() -> None:
    pool, started, go = make_pool(1), threading.Event(), threading.Event()

    def block() -> None:
        started.set()
        assert go.wait(TIMEOUT)

    running, waiting = Task(block), Task(nothing)
    pool.post(running)
    assert started.wait(TIMEOUT)
    pool.post(waiting)
    threading.Timer(0.02, go.set).start()
    pool.close()
    pool.close()
    assert running.done.is_set() and running.failure is None
    assert waiting.failure is not None and waiting.failure.code == StatusCode.CANCELLED
    with pytest.raises(FailedPreconditionError, match="closed"):
        pool.post(Task(nothing))


def test_close_from_a_worker() -> None:
    pool = make_pool(2)
    task = Task(pool.close)
    pool.post(task)
    assert task.done.wait(TIMEOUT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_worker_survives_a_task_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[object] = []

    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(threading, "excepthook", lambda args: reported.append(args.exc_value))
    pool = make_pool(1)
    pool.post(Task(fail))
    task = Task(nothing)
    pool.post(task)
    assert task.done.wait(TIMEOUT)
    assert isinstance(reported[0], ZeroDivisionError)
    pool.close()


def test_forgotten_pool_ends_its_threads() -> None:
    pool = make_pool(2)
    task = Task(nothing)
    pool.post(task)
    assert task.done.wait(TIMEOUT)
    del pool
    gc.collect()
    deadline = time.monotonic() + TIMEOUT
    while thread_count("test-worker") and time.monotonic() < deadline:
        time.sleep(0.002)
    assert thread_count("test-worker") == 0


def test_workers_are_pinned() -> None:
    processor = max(os.sched_getaffinity(0))
    pool, seen = WorkerPool("test-worker", Topology((processor,))), []
    task = Task(lambda: seen.append(os.sched_getaffinity(threading.get_native_id())))
    pool.post(task)
    assert task.done.wait(TIMEOUT)
    assert seen == [{processor}]
    assert len(os.sched_getaffinity(0)) >= 1
    pool.close()


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_large_work_goes_to_workers(registry: DriverRegistry, threads: int) -> None:
    queues = new_threads("jitree-queue")
    with registry.create_device(f"local-task://?threads={threads}") as device:
        assert isinstance(device, TaskDevice)
        assert queues() == 0
        buffer, done = allocate(device, LARGE), Fence.create(device)
        device.queue_fill(-1, None, done, buffer, 0, LARGE, 3, 1)
        finish(done)
        assert (buffer.host_array() == 3).all()
        assert 1 <= queues() <= threads
    assert queues() == 0


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "dev", "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(program)],
        capture_output=True, text=True, timeout=60, check=False, cwd=os.getcwd(),
    )  # fmt: skip


START = """
    import os
    from jitree.errors import StatusCode
    from jitree.hal.driver import all_drivers
    from jitree.hal.fence import Fence
    device = all_drivers().create_device("local-task://?threads=2")
    buffer = device.device_allocator.allocate(0x30, 0xC03, 8_000_000)
    def fill(value):
        done = Fence.create(device)
        device.queue_fill(-1, None, done, buffer, 0, 8_000_000, value, 1)
        return done
    assert fill(1).wait(20) == StatusCode.OK
"""


def test_interpreter_exit_with_an_open_device_and_queued_work() -> None:
    result = run_python(
        START
        + """
    for value in range(20):
        fill(value)
    device.queue_barrier(-1, Fence.create(device), Fence.create(device))
    print("end")
    """
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "end\n", "")


def test_forks_while_other_threads_hold_the_locks() -> None:
    """A child does not wait for threads that it does not have."""
    result = run_python(
        START
        + """
    import threading
    stop = threading.Event()
    def submit():
        while not stop.is_set():
            semaphore = device.create_semaphore()
            device.queue_barrier(-1, Fence([(semaphore, 1)]), None)
            device.profiling_begin(1)
            device.profiling_end()
            semaphore.signal(1)
            fill(3).wait()
    thread = threading.Thread(target=submit)
    thread.start()
    children = []
    for _ in range(20):
        child = os.fork()
        if child == 0:
            wait, done = Fence.create(device), Fence.create(device)
            device.queue_barrier(-1, wait, done)
            wait.signal()
            own = device.device_allocator.allocate(0x30, 0xC03, 8_000_000)
            filled = Fence.create(device)
            device.queue_fill(-1, done, filled, own, 0, 8_000_000, 5, 1)
            os._exit(int(filled.wait(20) != StatusCode.OK or own.host_view()[-1] != 5))
        children.append(child)
    stop.set()
    thread.join()
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 20
    device.close()
    print("end")
    """
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "end\n", "")


def test_forked_child_gets_workers_of_its_own() -> None:
    result = run_python(
        START
        + """
    child = os.fork()
    if child == 0:
        ok = fill(7).wait(20) == StatusCode.OK and buffer.host_view()[0] == 7
        device.close()
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert buffer.host_view()[0] == 1
    assert fill(2).wait(20) == StatusCode.OK
    device.close()
    print("end")
    """
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "end\n", "")


@pytest.mark.parametrize("has_thread", [False, True])
def test_an_interrupted_post_loses_no_thread(has_thread: bool) -> None:
    """The next task is run, by the one thread of the pool; the interrupted one is with the pool or not."""
    places = 0
    for interruption in interruptions(16):
        pool = make_pool(1)
        if has_thread:
            first = Task(nothing)
            pool.post(first)
            assert first.done.wait(TIMEOUT)
            until = time.monotonic() + TIMEOUT
            while not pool._shared.parked and time.monotonic() < until:
                time.sleep(0.0001)
        interruption.during(partial(pool.post, Task(nothing)))
        task = Task(nothing)
        pool.post(task)
        assert task.done.wait(TIMEOUT), f"interrupted at place {interruption.place}"
        pool.close()
        places += 1
    assert places > 5


def test_a_thread_apart_leaves_no_task_behind() -> None:
    """It has posted one, which a thread of the pool would take next; it ends instead."""
    pool, other = make_pool(1), Task(nothing)
    held, first = threading.Event(), Task(lambda: pool.post_next(other))

    def wait() -> None:
        pool.post(first)
        assert pool.leave(first)
        held.wait(TIMEOUT)

    holding = Task(wait)
    pool.post(holding)
    assert first.done.wait(TIMEOUT)
    held.set()
    assert holding.done.wait(TIMEOUT) and other.done.wait(TIMEOUT)
    pool.close()


def test_threads_without_what_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """No descriptor to sleep on: the post fails, the next one does not. Processors that are gone: any will
    do."""
    pool, task = WorkerPool("test-worker", Topology((0,))), Task(nothing)

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr(workers, "Parking", refuse)
        with pytest.raises(ResourceExhaustedError, match="cannot start a thread"):
            pool.post(Task(nothing))
    with monkeypatch.context() as patched:
        patched.setattr(workers, "place_thread", refuse)
        pool.post(task)
        assert task.done.wait(TIMEOUT)
    pool.close()


def test_an_interrupted_rest_ends() -> None:
    """Of a thread for whose part another one waits, which would rest for good."""

    def rest() -> None:
        with interrupts.resting(1):
            pass

    places = 0
    for interruption in interruptions(0):
        interruption.during(rest)
        assert not interrupts._resting, f"interrupted at place {interruption.place}"
        places += 1
    assert places > 1


def test_an_interrupted_resizing_ends_threads_that_are_left_over() -> None:
    places = 0
    for interruption in interruptions(0):
        pool, barrier = make_pool(2), threading.Barrier(2, timeout=TIMEOUT)

        def meet(barrier: threading.Barrier = barrier) -> None:
            barrier.wait()

        tasks = [Task(meet) for _ in range(2)]
        pool.post(*tasks)
        assert all(task.done.wait(TIMEOUT) for task in tasks)
        until = time.monotonic() + TIMEOUT
        while len(pool._shared.parked) < 2 and time.monotonic() < until:
            time.sleep(0.0001)
        interruption.during(partial(pool.resize, Topology((None,))))
        pool.resize(Topology((None,)))
        closing = threading.Thread(target=pool.close)
        closing.start()
        closing.join(TIMEOUT)
        assert not closing.is_alive(), f"interrupted at place {interruption.place}"
        places += 1
    assert places > 5


def test_an_interrupted_addition_loses_no_thread_beside_an_event_loop() -> None:
    """Of operations that wait for others."""
    places = 0
    for interruption in interruptions(16):
        waiter = Waiter()
        interruption.during(partial(waiter.add, Task(nothing)))
        with waiter._lock:
            assert waiter._thread is not None or not waiter._operations, (
                "an operation without a thread that runs it"
            )
        task = Task(nothing)
        waiter.add(task)
        assert task.done.wait(TIMEOUT), f"interrupted at place {interruption.place}"
        places += 1
    assert places > 5


def test_an_operation_that_there_is_no_memory_for_is_refused_by_its_status() -> None:
    class Full(deque[Any]):
        def append(self, operation: object) -> None:
            raise MemoryError

    waiter = Waiter()
    waiter._operations = Full()
    with pytest.raises(ResourceExhaustedError, match="thread"):
        waiter.add(Task(nothing))
    assert waiter._thread is None
