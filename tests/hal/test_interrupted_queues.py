"""Signal handlers that raise while operations are executed, and chains of operations that end early."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, cast

import pytest

from jitree.base.finalizers import start_thread
from jitree.errors import CancelledError, ResourceExhaustedError, StatusCode, StatusError
from jitree.hal.fence import Fence
from jitree.hal.local.interrupts import require_going_on, this_thread
from jitree.hal.local.operation import Operation
from jitree.hal.local.queue import CallerExecutor, LocalQueue
from jitree.hal.local.queue_record import WAITS
from jitree.hal.local.task import WorkerExecutor
from jitree.hal.local.thread_team import Team
from jitree.hal.local.topology import Topology
from jitree.hal.local.workers import WorkerPool
from jitree.hal.profiling import Profiler
from jitree.hal.semaphore import Semaphore
from tests.base.interruption import AtJump, Interruption, interruptions
from tests.hal.helpers import TIMEOUT


class Timeout(Exception):
    """What a handler for ``signal.alarm`` usually raises."""


class Handlers:
    """Signal handlers of all forms."""

    @staticmethod
    def function(number: int, frame: object) -> None:
        raise Timeout

    @staticmethod
    def variadic(*_: object) -> None:
        raise Timeout

    def method(self, number: int, frame: object) -> None:
        self.deeper()

    def deeper(self) -> None:
        raise Timeout

    def __call__(self, number: int, frame: object) -> None:
        raise Timeout


HANDLERS = [
    Handlers.function, Handlers.variadic, Handlers().method, Handlers(), partial(Handlers().method)
]  # fmt: skip


@pytest.mark.parametrize("has_begun", [True, False])
def test_an_interrupt_as_a_thread_starts_goes_through(
    monkeypatch: pytest.MonkeyPatch, has_begun: bool
) -> None:
    """The thread begins. In `Thread.start` the exception would be a KeyError, or have the thread die."""
    name = "_start_joinable_thread" if hasattr(threading, "_start_joinable_thread") else "_start_new_thread"
    start_new_thread = getattr(threading, name)  # from CPython 3.13 on it has the first name

    def interrupted(function: Any, *arguments: Any, **named: Any) -> Any:
        started = start_new_thread(function, *arguments, **named)
        if has_begun:
            assert function.__self__._started.wait(TIMEOUT)
        signal.raise_signal(signal.SIGALRM)
        return started

    before = signal.signal(signal.SIGALRM, Handlers.function)
    monkeypatch.setattr(threading, name, interrupted)
    ended = threading.Event()
    try:
        with pytest.raises(Timeout):
            start_thread(threading.Thread(target=ended.set))
        assert ended.wait(TIMEOUT)
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("handler", HANDLERS, ids=["function", "variadic", "method", "object", "partial"])
def test_what_a_signal_handler_raises_goes_through(handler: Callable[[int, object], None]) -> None:
    """As itself, from operations that start at once and from those that another signals."""
    queue = LocalQueue(CallerExecutor(), Profiler())
    before = signal.signal(signal.SIGALRM, handler)
    work = partial(signal.raise_signal, signal.SIGALRM)
    wait, first, second = (Fence([(Semaphore(), 1)]) for _ in range(3))
    try:
        with pytest.raises(Timeout):
            queue.submit("work", None, first, work)
        queue.submit("work", wait, second, work)
        with pytest.raises(Timeout):
            wait.signal()
        assert first.query() == second.query() == StatusCode.CANCELLED
    finally:
        signal.signal(signal.SIGALRM, before)


LONG = 20_000


def of_many_semaphores(length: int) -> list[Fence]:
    return [Fence([(Semaphore(), 1)]) for _ in range(length + 1)]


def of_one_semaphore(length: int) -> list[Fence]:
    """Each operation fails it again, while thousands of others wait for it."""
    semaphore = Semaphore()
    return [Fence([(semaphore, index)]) for index in range(1, length + 2)]


def fail(fences: list[Fence], failure: CancelledError) -> None:
    fences[0].fail(failure)


def interrupt(fences: list[Fence], failure: CancelledError) -> None:
    """As Ctrl-C does with what a call has submitted, from the first operation on."""
    fences[1].interrupt(failure)


@pytest.mark.parametrize("made", [of_many_semaphores, of_one_semaphore])
@pytest.mark.parametrize("end", [fail, interrupt])
def test_a_chain_of_any_length_ends_in_a_flat_stack(
    end: Callable[[list[Fence], CancelledError], None], made: Callable[[int], list[Fence]]
) -> None:
    """Each operation fails the fence of the next one, but they do not call each other."""
    queue = LocalQueue(CallerExecutor(), Profiler())
    fences = made(LONG)
    done: list[None] = []
    for wait, reached in pairwise(fences):
        queue.submit("work", wait, reached, partial(done.append, None))
    end(fences, CancelledError("it is not wanted"))
    assert {fence.query() for fence in fences[1:]} == {StatusCode.CANCELLED}
    assert not done and not queue.waiting_count and not queue.announced


def test_work_begins_after_the_failures_that_it_comes_after() -> None:
    """It may wait for any of them, also for those of its own: nothing on its thread holds them back."""
    queue = LocalQueue(CallerExecutor(), Profiler())
    fences = [Fence([(Semaphore(), 1)]) for _ in range(4)]
    others = [Fence([(Semaphore(), 1)]) for _ in range(2)]
    for chain in (fences, others):
        for wait, reached in pairwise(chain):
            queue.submit("work", wait, reached, fences.clear)
    found: list[StatusCode] = []

    def work() -> None:
        others[0].fail(CancelledError("another one"))
        found.extend(fence.query() for fence in (*fences, *others))

    turn, done = (Fence([(Semaphore(), 1)]) for _ in range(2))
    queue.submit("work", turn, done, work)
    fences[0].on_reached(lambda failure: turn.signal())
    fences[0].fail(CancelledError("it is not wanted"))
    assert found == [StatusCode.CANCELLED] * 6 and done.query() == StatusCode.OK


@pytest.mark.parametrize("kind", [Interruption, AtJump])
def test_an_interrupt_loses_no_work_that_comes_after_failures(kind: type[Interruption]) -> None:
    """It is done, or its fence fails."""
    for interruption in interruptions(0, kind):
        queue = LocalQueue(CallerExecutor(), Profiler())
        failed, *fences = (Fence([(Semaphore(), 1)]) for _ in range(7))
        turns, ends = fences[:3], fences[3:]
        for turn, end in zip(turns, ends, strict=True):
            queue.submit("work", turn, end, lambda: None)
            failed.on_reached(lambda failure, turn=turn: turn.signal())  # type: ignore[misc]
        tell = partial(failed.fail, CancelledError("it is not wanted"))
        interruption.during(tell)
        tell()
        assert {end.query() for end in ends} <= {StatusCode.OK, StatusCode.CANCELLED}
        assert not queue.announced, interruption.place


def test_a_handler_that_raises_between_failures_keeps_none_back() -> None:
    """Its exception is raised when all have been told."""
    semaphores = [Semaphore() for _ in range(3)]
    told: list[StatusError | None] = []

    def interrupted(failure: StatusError | None) -> None:
        semaphores[1].fail(CancelledError("it is not wanted"))
        raise KeyboardInterrupt

    semaphores[0].on_reached(1, interrupted)
    semaphores[0].on_reached(1, told.append)
    semaphores[1].on_reached(1, lambda failure: semaphores[2].fail(CancelledError("nor this")))
    semaphores[2].on_reached(1, told.append)
    with pytest.raises(KeyboardInterrupt):
        semaphores[0].fail(CancelledError("it is not wanted"))
    assert len(told) == 2 and None not in told


class Chain:
    """Operations that come after each other, and what is told of the ends of each."""

    def __init__(self) -> None:
        self.queue = LocalQueue(CallerExecutor(), Profiler())
        self.fences = [Fence([(Semaphore(), 1), (Semaphore(), 2)]) for _ in range(4)]
        self.done: list[None] = []
        self.told: list[list[StatusError | None]] = []
        for wait, reached in pairwise(self.fences):
            self.queue.submit("work", wait, reached, partial(self.done.append, None))
        for fence in self.fences[1:]:
            for _ in range(2):
                self.told.append([])
                fence.on_reached(self.told[-1].append)

    def codes(self) -> list[StatusCode]:
        assert all(self.told) and not self.queue.waiting_count and not self.queue.announced
        return [fence.query() for fence in self.fences[1:]]


def test_an_interrupted_closing_is_finished_by_the_next() -> None:
    """Every operation that waited has failed, and whoever comes after it is told."""
    places = 0
    for interruption in interruptions(0):
        chain = Chain()
        interruption.during(chain.queue.close)
        chain.queue.close()
        assert chain.codes() == [StatusCode.CANCELLED] * 3 and not chain.done
        places += 1
    assert places > 50


@pytest.mark.parametrize(("kind", "least"), [(Interruption, 50), (AtJump, 10)])
@pytest.mark.parametrize("failure", [None, CancelledError("it is not wanted")])
def test_an_interrupted_signal_loses_no_operation(
    failure: CancelledError | None, kind: type[Interruption], least: int
) -> None:
    """Each has ended when the fence of the first is signalled again, or failed. One that was interrupted is
    cancelled, with those that come after it."""
    places = 0
    found = set()
    for interruption in interruptions(0, kind):
        chain = Chain()
        first = chain.fences[0]
        tell = first.signal if failure is None else partial(first.fail, failure)
        interruption.during(tell)
        assert this_thread.operation is None
        tell()
        codes = chain.codes()
        assert codes == sorted(codes) and set(codes) <= {StatusCode.OK, StatusCode.CANCELLED}
        assert len(chain.done) >= codes.count(StatusCode.OK)
        found.add(codes[-1])
        places += 1
    assert places > least
    assert found == ({StatusCode.OK, StatusCode.CANCELLED} if failure is None else {StatusCode.CANCELLED})


class Interrupted:
    """An executor whose caller is interrupted when another thread has begun the operation."""

    def __init__(self, begun: threading.Event) -> None:
        self.begun = begun
        self.threads: list[threading.Thread] = []

    def start(self, operation: Operation) -> None:
        operation.announce()
        self.threads.append(threading.Thread(target=operation.run))
        self.threads[0].start()
        assert self.begun.wait(TIMEOUT)
        raise KeyboardInterrupt

    start_deferred = start


def test_what_an_interrupted_submission_has_begun_ends() -> None:
    """No call has it among what it has submitted, so its submitter says that it is not wanted."""
    begun = threading.Event()
    executor = Interrupted(begun)
    queue = LocalQueue(executor, Profiler())
    gone_on: list[float] = []

    def work() -> None:
        begun.set()
        until = time.monotonic() + TIMEOUT
        while time.monotonic() < until:
            require_going_on()
            time.sleep(0.001)
        gone_on.append(until)

    done = Fence([(Semaphore(), 1)])
    with pytest.raises(KeyboardInterrupt):
        queue.submit("work", None, done, work)
    executor.threads[0].join(TIMEOUT)
    assert not executor.threads[0].is_alive() and not gone_on
    assert done.query() == StatusCode.CANCELLED and not queue.announced


def test_an_interrupted_submission_leaves_nothing_behind() -> None:
    """Whoever waits for it is told, and its queue does not wait for it."""
    places = 0
    for interruption in interruptions(0):
        queue = LocalQueue(CallerExecutor(), Profiler())
        wait, done = (Fence([(Semaphore(), 1)]) for _ in range(2))
        operations: list[Operation] = []
        queue.profiler.mode, queue.profiler.submit = 1, operations.append  # type: ignore[assignment]
        interruption.during(partial(queue.submit, "work", wait, done, operations.clear))
        if interruption.came and operations:
            assert done.query() == StatusCode.CANCELLED
            assert not queue.announced and not queue.waiting_count
            places += 1
    assert places > 5


def test_where_no_thread_starts_beside_an_event_loop_the_signal_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who waited for it was never told; who submitted it got a RuntimeError."""

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def submit() -> None:
        first.signal()
        with pytest.raises(ResourceExhaustedError, match="cannot start a thread"):
            queue.submit("work", None, last, lambda: None, WAITS)

    queue = LocalQueue(CallerExecutor(), Profiler())
    first, done, last = (Fence([(Semaphore(), 1)]) for _ in range(3))
    queue.submit("work", first, done, lambda: None, WAITS)
    with monkeypatch.context() as patch:
        patch.setattr("jitree.hal.local.queue.start_thread", refused)
        asyncio.run(submit())
    assert done.query() == StatusCode.RESOURCE_EXHAUSTED and not queue.announced
    queue.submit("work", None, last, lambda: None, WAITS)
    assert last.wait(TIMEOUT) == StatusCode.OK


class IdleTeam:
    """Has no helpers."""

    def start(self) -> None: ...


def test_an_interrupted_post_ends_what_a_worker_has_begun() -> None:
    """Whatever the place: the operation has ended soon, and its fence says so."""
    places = 0
    for interruption in interruptions(8):
        pool = WorkerPool("interrupted", Topology((None,)))
        queue = LocalQueue(WorkerExecutor(pool, cast("Team", IdleTeam())), Profiler())
        gone_on: list[float] = []

        def work(gone_on: list[float] = gone_on) -> None:
            until = time.monotonic() + TIMEOUT
            while time.monotonic() < until:
                require_going_on()
                time.sleep(0.001)
            gone_on.append(until)

        done = Fence([(Semaphore(), 1)])
        interruption.during(partial(queue.submit, "work", None, done, work, WAITS))
        if not interruption.came:
            done.interrupt(CancelledError("it is not wanted"))
        pool.close()
        assert not gone_on, f"interrupted at place {interruption.place}"
        assert not queue.announced and not queue.waiting_count
        places += 1
    assert places > 5
