"""Devices and sessions that are forgotten end wherever the garbage collector runs: also on a thread that has
a lock which their end wants."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from jitree import Session
from jitree.base.events import EventReader
from jitree.errors import CancelledError, StatusError
from jitree.hal.buffer import Buffer
from jitree.hal.device import Device
from jitree.hal.driver import DriverRegistry
from jitree.hal.heap import HeapAllocator
from jitree.hal.local.thread_team import Team
from jitree.hal.local.topology import Topology
from jitree.hal.local.workers import WorkerPool
from jitree.hal.profiling import Profiler, ProfilingMode
from jitree.hal.semaphore import Semaphore
from jitree.hal.watching import Watchdog
from tests.base.ending_inside import ending_inside

PROGRAM = Path(__file__).parents[1] / "data" / "programs" / "arithmetic.vmfb"


def test_a_session_ends_while_another_borrows() -> None:
    """As it was seen: both have one device."""
    owner = Session("local-sync")
    device = owner.device
    values = np.arange(4, dtype=np.float32)
    forgotten = list[Session]()
    for _ in range(8):
        session = Session(device=device, tier="fast")
        add = session.load(PROGRAM).add
        while not add.is_direct:
            add(values, values)
        forgotten.append(session)
    allocator = device.device_allocator
    assert isinstance(allocator, HeapAllocator)

    def end() -> None:
        if forgotten:
            forgotten.pop().end()

    ending_inside("HeapAllocator.lend", partial(allocator.lend, 64, 64), end)
    assert len(forgotten) < 8


@pytest.mark.parametrize("is_zeroed", [False, True])
def test_memory_comes_back_while_some_is_taken(is_zeroed: bool) -> None:
    allocator = HeapAllocator(is_zeroed=is_zeroed)
    kept = list[Buffer]()
    lent = [allocator.lend(64 * (1 + number % 3), 1)[0] for number in range(30)]

    def end() -> None:
        if lent:
            address, _, _memory = lent.pop()
            allocator.take_back(address)
        elif kept:
            kept.pop()
        if len(lent) % 4 == 0:
            allocator.trim()

    def work() -> None:
        for size in (64, 128, 192) * 20:
            kept.append(allocator.allocate(0, 0, size))
            lent.extend(allocator.lend(size, 3))

    ending_inside("HeapAllocator._take", work, end)
    ending_inside("HeapAllocator.lend", work, end)
    allocator.trim()
    assert allocator.kept_bytes == 0
    kept.clear()
    assert allocator.kept_bytes == sum(capacity * len(blocks) for capacity, blocks in allocator._free.items())


def _advance(semaphore: Semaphore) -> None:
    semaphore.advance(5)


def _fail(semaphore: Semaphore) -> None:
    semaphore.fail(CancelledError("the device was closed"))


@pytest.mark.parametrize("end", [_advance, _fail])
@pytest.mark.parametrize(
    ("name", "work"),
    [
        ("Semaphore.on_reached", lambda semaphore: None),
        ("Semaphore.advance", lambda semaphore: semaphore.advance(4)),
        ("Semaphore.signal", lambda semaphore: semaphore.signal(4)),
        ("Semaphore.fail", lambda semaphore: semaphore.fail(CancelledError("it was closed"))),
        ("Semaphore.producer", lambda semaphore: semaphore.producer(2)),
        ("Semaphore.expect", lambda semaphore: None),
    ],
)
def test_a_semaphore_moves_while_it_is_used(
    name: str, work: Callable[[Semaphore], object], end: Callable[[Semaphore], None]
) -> None:
    """Every callback is called once."""
    semaphore = Semaphore()
    calls = {number: list[StatusError | None]() for number in range(1, 9)}

    class Work:
        def describe(self) -> str:
            return ""

    def run() -> None:
        for number in calls:
            semaphore.expect(number, Work())  # type: ignore[arg-type]
            semaphore.on_reached(number, calls[number].append)
        with suppress(StatusError):
            work(semaphore)

    ending_inside(name, run, partial(end, semaphore))
    semaphore.fail(CancelledError("the test has ended"))
    assert [len(failures) for failures in calls.values()] == [1] * len(calls)


def test_timepoints_are_cancelled_while_a_semaphore_moves() -> None:
    semaphore, called, cancelled = Semaphore(), list[int](), list[int]()
    points = {
        number: semaphore.on_reached(number, lambda failure, number=number: called.append(number))  # type: ignore[misc]
        for number in range(1, 40)
    }

    def cancel() -> None:
        if not points:
            return
        number, point = points.popitem()
        assert point is not None
        if point.cancel():
            cancelled.append(number)

    ending_inside("Semaphore.advance", partial(semaphore.advance, 40), cancel)
    assert sorted(called + cancelled) == list(range(1, 40))


def test_a_pool_ends_while_a_thread_is_made() -> None:
    pool = WorkerPool("test-worker", Topology((None,) * 2))

    class Task:
        def run(self) -> None: ...
        def cancel(self, failure: StatusError) -> None: ...

    ending_inside("_Shared._start", lambda: pool.post(Task(), Task()), pool._shared.stop)
    pool.close()


def test_a_team_ends_while_it_starts() -> None:
    team = Team("test-team", Topology((None,) * 2), 0)
    ending_inside("Team._start", team.start, team.close)
    assert team._helpers is None


def test_a_profile_ends_while_work_is_noted() -> None:
    profiler = Profiler()
    profiler.begin(ProfilingMode.QUEUE_OPERATIONS, None)
    works = [threading.Event() for _ in range(20)]

    def submit() -> None:
        for work in works:
            profiler.submit(work)  # type: ignore[arg-type]

    ending_inside("Profiler.submit", submit, lambda: profiler.measurements)


def test_a_listener_stops_while_another_begins(registry: DriverRegistry) -> None:
    device: Device = registry.create_device("local-sync")
    forgotten, new = EventReader(), EventReader()
    device.listen(forgotten)
    name = "_replace"
    ending_inside(name, partial(device.listen, new), partial(device.stop_listening, forgotten))
    assert device.readers == (new,)


def test_something_waits_while_the_watchdog_looks() -> None:
    dog = Watchdog(100, lambda text: None, lambda: ())
    dog.enter("waiting", str)
    ending_inside("Watchdog._snapshot", dog._snapshot, lambda: dog.enter("waiting", str).end())
    dog.stop()
