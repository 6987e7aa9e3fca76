"""Threads that wait for an operation do it themselves; bursts of tasks."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from jitree.base.cancel_scopes import deadline
from jitree.base.platform.threads import Parking
from jitree.errors import (
    CancelledError,
    DataLossError,
    ResourceExhaustedError,
    StatusCode,
)
from jitree.hal.fence import Fence
from jitree.hal.local import workers
from jitree.hal.local.interrupts import is_to_end
from jitree.hal.local.queue import CallerExecutor, LocalQueue
from jitree.hal.local.queue_record import UNKNOWN_COST
from jitree.hal.local.task import WorkerExecutor
from jitree.hal.local.thread_team import Team
from jitree.hal.local.topology import unpinned
from jitree.hal.local.workers import WorkerPool
from jitree.hal.profiling import Profiler
from jitree.hal.semaphore import Semaphore
from jitree.hal.waiting import WaitMode, wait_for
from tests.hal.helpers import TIMEOUT, Meeting, wait_until

LARGE = 60_001
"""Nanoseconds: more than what runs at once on the submitting thread."""


def _executor(pool: WorkerPool) -> WorkerExecutor:
    return WorkerExecutor(pool, Team("test-team", unpinned(1), 0))


class Occupied:
    """A queue of which every thread is held up until :meth:`free`."""

    def __init__(self, threads: int = 1) -> None:
        self.pool = WorkerPool("test-queue", unpinned(threads))
        self.queue = LocalQueue(_executor(self.pool), Profiler())
        self._free = threading.Event()
        busy = threading.Barrier(threads + 1)

        def hold() -> None:
            busy.wait(TIMEOUT)
            assert self._free.wait(TIMEOUT)

        self.held = [self.submit(hold) for _ in range(threads)]
        busy.wait(TIMEOUT)

    def submit(self, work: Callable[[], None], wait: Fence | None = None, cost: int = LARGE) -> Fence:
        signal = Fence([(Semaphore(), 1)])
        self.queue.submit("work", wait, signal, work, cost)
        return signal

    def free(self) -> None:
        self._free.set()
        for fence in self.held:
            assert fence.wait(TIMEOUT) == StatusCode.OK
        self.queue.close()
        self.pool.close()


@pytest.fixture
def occupied() -> Iterator[Occupied]:
    occupied = Occupied()
    yield occupied
    occupied.free()


def note(names: list[str], name: str) -> None:
    names.append(f"{name} on {threading.current_thread().name}")


def test_a_waiting_thread_does_the_work_that_no_worker_has_begun(occupied: Occupied) -> None:
    names: list[str] = []
    done = occupied.submit(partial(note, names, "work"))
    assert names == [] and done.query() == StatusCode.DEFERRED
    assert done.wait() == StatusCode.OK
    assert names == [f"work on {threading.current_thread().name}"]


def test_and_what_that_work_waits_for(occupied: Occupied) -> None:
    """Of a tree of operations those that are needed, each once, in their order."""
    names: list[str] = []
    first = occupied.submit(partial(note, names, "first"))
    second = occupied.submit(partial(note, names, "second"), first)
    third = occupied.submit(partial(note, names, "third"), first)
    last = occupied.submit(partial(note, names, "last"), Fence.join([second, third]))
    other = occupied.submit(partial(note, names, "other"))
    assert last.wait() == StatusCode.OK
    done = [name.split()[0] for name in names]
    assert done[0] == "first" and set(done[1:3]) == {"second", "third"} and done[3:] == ["last"]
    assert other.query() == StatusCode.DEFERRED
    assert other.wait() == StatusCode.OK and len(names) == 5


def test_a_long_chain_on_one_timeline(occupied: Occupied) -> None:
    semaphore, turns, links = Semaphore(), [0], 2000

    def step(expected: int) -> None:
        assert turns[0] == expected
        turns[0] += 1

    for index in range(links):
        wait = Fence([(semaphore, index)]) if index else None
        occupied.queue.submit("step", wait, Fence([(semaphore, index + 1)]), partial(step, index), LARGE)
    assert semaphore.wait(links) and turns == [links]


def test_waiting_for_any_does_no_more_than_it_needs(occupied: Occupied) -> None:
    names: list[str] = []
    fences = [occupied.submit(partial(note, names, str(index))) for index in range(3)]
    points = [point for fence in fences for point in fence.timepoints]
    assert wait_for(points, WaitMode.ANY, None)
    assert len(names) == 1
    assert wait_for(points, WaitMode.ALL, None)
    assert len(names) == 3


def test_time_outs_are_kept(occupied: Occupied) -> None:
    """Work that may last longer than the caller wants to wait is left to the workers."""
    names: list[str] = []
    long = occupied.submit(partial(note, names, "long"), cost=3_600 * 10**9)
    unknown = occupied.submit(partial(note, names, "unknown"), cost=-1)
    for fence in (long, unknown):
        assert fence.wait(0.01) == StatusCode.DEADLINE_EXCEEDED
        assert fence.wait(0) == StatusCode.DEADLINE_EXCEEDED
    short = occupied.submit(partial(note, names, "short"))
    assert short.wait(TIMEOUT) == StatusCode.OK
    assert [name.split()[0] for name in names] == ["short"]
    assert long.wait() == unknown.wait() == StatusCode.OK


def test_failures_of_work_done_by_the_waiting_thread(occupied: Occupied) -> None:
    def fail() -> None:
        raise DataLossError("broken")

    after = occupied.submit(lambda: None, occupied.submit(fail))
    with pytest.raises(DataLossError, match="broken"):
        after.wait()
    assert occupied.submit(lambda: None).wait() == StatusCode.OK


def test_interrupted_while_helping(occupied: Occupied) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    done = occupied.submit(interrupt)
    with pytest.raises(KeyboardInterrupt):
        done.wait()
    assert done.query() == StatusCode.CANCELLED
    assert occupied.submit(lambda: None).wait() == StatusCode.OK


def test_an_interrupted_wait_interrupts_what_other_threads_do_for_it() -> None:
    """And what that waits for, but nothing that was there before."""
    occupied = Occupied()
    occupied.pool.resize(unpinned(2))
    begun = threading.Event()
    before = occupied.submit(lambda: None)

    def endless() -> None:
        begun.set()
        wait_until(is_to_end)
        raise CancelledError("interrupted")

    def interrupt() -> None:
        [(semaphore, _)] = last.timepoints
        wait_until(lambda: bool(semaphore._timepoints))  # by the main thread
        os.kill(os.getpid(), signal.SIGINT)

    first = occupied.submit(endless, before)
    last = occupied.submit(lambda: None, first)
    thread = threading.Thread(target=interrupt)
    thread.start()
    assert begun.wait(TIMEOUT)  # else this thread does it
    with pytest.raises(KeyboardInterrupt):
        wait_for(last.timepoints, WaitMode.ALL, None)
    thread.join()
    for fence in (first, last):
        with pytest.raises(CancelledError):
            fence.wait(TIMEOUT)
    assert before.query() == StatusCode.OK
    occupied.free()


def test_interrupting_ends_at_a_fence(occupied: Occupied) -> None:
    before = occupied.submit(lambda: None)
    kept = occupied.submit(lambda: None, before)
    interrupted = occupied.submit(lambda: None, kept)
    interrupted.interrupt(CancelledError("it is not wanted"), kept)
    assert kept.wait() == StatusCode.OK
    with pytest.raises(CancelledError):
        interrupted.wait()


def test_work_that_runs_is_waited_for() -> None:
    occupied = Occupied(2)
    timer = threading.Timer(0.02, occupied.free)
    timer.start()
    for fence in occupied.held:
        assert fence.wait() == StatusCode.OK
    timer.join()


UNLIMITED = 10 * TIMEOUT
"""Seconds that nothing here takes."""


def _within(end: Fence) -> StatusCode:
    with deadline(UNLIMITED):
        return end.wait(TIMEOUT)


LIMITS: dict[str, Callable[[Fence], object]] = {
    "none": lambda end: end.wait(None),
    "a time-out": lambda end: end.wait(TIMEOUT),
    "a deadline": _within,
}


@pytest.mark.parametrize("cost", [LARGE, UNKNOWN_COST])
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("has_workers", [True, False])
def test_work_that_waits_for_what_only_its_thread_would_do(has_workers: bool, limit: str, cost: int) -> None:
    """The operation waits under a time-out for another one, which only the same thread could run."""
    pool = WorkerPool("test-alone", unpinned(1))
    queue = LocalQueue(_executor(pool) if has_workers else CallerExecutor(), Profiler())
    first, begun, outer, end = (Fence([(Semaphore(), 1)]) for _ in range(4))
    found: list[object] = []

    def wait() -> None:
        begun.signal()
        found.append(LIMITS[limit](end))

    queue.submit("inner", begun, end, lambda: None, cost)
    queue.submit("outer", first, outer, wait, UNKNOWN_COST)
    first.signal()
    assert outer.wait(2 * TIMEOUT) == StatusCode.OK
    assert found == [StatusCode.OK]
    queue.close()
    pool.close()
    assert not any(thread.name.startswith("test-alone") for thread in threading.enumerate())


def test_what_a_deadline_of_the_thread_has_time_for(occupied: Occupied) -> None:
    """The deadline is not the operation's; it has ended before."""
    names: list[str] = []
    done = occupied.submit(partial(note, names, "it"))
    with deadline(UNLIMITED):
        assert done.wait(TIMEOUT) == StatusCode.OK
    assert names == [f"it on {threading.current_thread().name}"]


def test_what_a_deadline_of_the_thread_may_leave_no_time_for(occupied: Occupied) -> None:
    names: list[str] = []
    done = occupied.submit(partial(note, names, "it"), cost=UNKNOWN_COST)
    with deadline(UNLIMITED):
        assert done.wait(0.001) == StatusCode.DEADLINE_EXCEEDED
    assert names == []


def test_every_operation_runs_once_on_any_thread() -> None:
    """Workers and four waiting threads after the same operations."""
    pool = WorkerPool("test-queue", unpinned(3))
    queue = LocalQueue(_executor(pool), Profiler())
    runs = [0] * 400
    fences: list[Fence] = []

    def work(index: int) -> None:
        runs[index] += 1

    for index in range(len(runs)):
        fence = Fence([(Semaphore(), 1)])
        queue.submit("work", fences[-1] if index % 3 else None, fence, partial(work, index), LARGE)
        fences.append(fence)
    threads = [
        threading.Thread(target=lambda order: [fence.wait() for fence in order], args=(order,))
        for order in (fences, fences[::-1], fences[::7], fences[1::2])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert all(fence.wait(TIMEOUT) == StatusCode.OK for fence in fences)
    assert runs == [1] * len(runs)
    pool.close()


def test_semaphores_forget_work_that_has_ended(occupied: Occupied) -> None:
    semaphore = Semaphore()
    occupied.queue.submit("work", None, Fence([(semaphore, 1)]), lambda: None, LARGE)
    assert semaphore.producer(1) is not None and semaphore.producer(2) is None
    assert semaphore.wait(1)
    assert semaphore.producer(1) is None
    occupied.queue.submit("work", Fence([(Semaphore(), 1)]), Fence([(semaphore, 3)]), lambda: None)
    assert semaphore.producer(2) is semaphore.producer(3) is not None
    occupied.queue.close()
    assert semaphore.producer(3) is None


# Wake-ups.


class Gate:
    """Makes parkings that no thread, once woken, leaves before they are opened."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.wakers: list[str] = []

    def parking(self) -> Parking:
        gate = self

        class Gated(Parking):
            def wait(self) -> None:
                super().wait()
                assert gate.open.wait(TIMEOUT)

            def wake(self) -> None:
                gate.wakers.append(threading.current_thread().name)
                super().wake()

        return Gated()


def test_a_burst_costs_its_submitter_one_wake_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are woken by the threads that come, as far as there is work: four tasks that need each
    other."""
    gate = Gate()
    gate.open.set()
    monkeypatch.setattr(workers, "Parking", gate.parking)
    pool = WorkerPool("test-pool", unpinned(4))
    for turn in range(4):
        barrier = threading.Barrier(4, timeout=TIMEOUT)
        tasks = [Meeting(barrier) for _ in range(4)]
        gate.wakers.clear()
        gate.open.clear()
        for task in tasks:
            pool.post(task)
        assert gate.wakers == ([threading.current_thread().name] if turn else [])
        gate.open.set()
        assert all(task.done.wait(TIMEOUT) for task in tasks)
        assert len(gate.wakers) == (4 if turn else 0)
        wait_until(lambda: all("4 parked" in line for line in pool.report()))
    pool.close()


@pytest.mark.parametrize("refusal", [RuntimeError("can't start new thread"), MemoryError()])
def test_no_thread_to_be_had(monkeypatch: pytest.MonkeyPatch, refusal: Exception) -> None:
    pool = WorkerPool("test-pool", unpinned(2))
    executor = _executor(pool)
    queue, fence = LocalQueue(executor, Profiler()), Fence([(Semaphore(), 1)])

    def refuse(thread: threading.Thread) -> None:
        raise refusal

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(ResourceExhaustedError, match="cannot start a thread"):
            queue.submit("work", None, fence, lambda: None, LARGE)
    assert fence.query() == StatusCode.DEFERRED
    queue.submit("work", None, fence, lambda: None, LARGE)
    assert fence.wait(TIMEOUT) == StatusCode.OK
    pool.close()
