"""Programs that submit faster than devices work wait for what they have submitted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from jitree import Array, Session
from jitree.errors import (
    CancelledError,
    DeadlineExceededError,
    ResourceExhaustedError,
    StatusCode,
    StatusError,
)
from jitree.hal.fence import COMES_AFTER, Fence
from jitree.hal.heap import HeapAllocator
from jitree.hal.local import interrupts
from jitree.hal.local import queue as local_queue
from jitree.hal.local.device import LocalDevice
from jitree.hal.local.operation import Operation
from jitree.hal.local.queue import CallerExecutor, LocalQueue
from jitree.hal.local.queue_record import WAITS
from jitree.hal.local.task import TaskDevice
from jitree.hal.memory_order import ended
from jitree.hal.profiling import Profiler
from jitree.hal.semaphore import Semaphore
from tests.assembler import Assembler
from tests.hal.helpers import TIMEOUT
from tests.modules.hal_programs import (
    BUFFERS,
    DEVICE,
    DEVICE_LOCAL,
    FENCES,
    FIRST,
    ROWS,
    USAGE,
    Program,
)

TIERS = ("plain", "fast")
SIZE = 700_000
"""Bytes whose filling is left to other threads."""
PLACED = (0, DEVICE_LOCAL, USAGE, SIZE, 0)
TURNS = 200
TURNS_OF_TASKS = 4
AT_ONCE = local_queue.MOST_AHEAD // 2 + 2
"""Turns that may be under way: each has an allocation and what fills it."""


def program(turns: int = TURNS, awaits: bool = True) -> bytes:
    """A chain of buffers, each filled after the one before; the first after the fence of an argument."""
    made = Program(ROWS)
    before = FIRST
    allocated, filled, byte = FENCES[0], FENCES[1], 0
    for byte in range(turns):
        made.call("fence.create", DEVICE, 0, to=allocated)
        made.call(
            "device.queue.alloca",
            DEVICE,
            -1,
            before,
            allocated,
            0,
            DEVICE_LOCAL,
            USAGE,
            SIZE,
            0,
            to=BUFFERS[0],
        )
        made.call("fence.create", DEVICE, 0, to=filled)
        made.call("device.queue.fill", DEVICE, -1, allocated, filled, BUFFERS[0], 0, -1, byte % 251, 1, 0)
        before = filled
    if awaits:
        made.call("fence.await", -1, 0, [[filled]])
    return made.module("m")


def asynchronous_program() -> bytes:
    """Such a chain, which begins when the fence of the call says so and reaches the call's other one."""
    made = Program(ROWS)
    made.lines.clear()
    device, wait, signal, allocated, filled, buffer = (f"%r{index}" for index in (5, 1, 2, 6, 7, 8))
    made.call("devices.get", 0, to=device)
    for byte in range(TURNS):
        before = filled if byte else wait
        made.call("fence.create", device, 0, to=allocated)
        alloca = (device, -1, before, allocated, *PLACED)
        made.call("device.queue.alloca", *alloca, to=buffer)
        made.call("fence.create", device, 0, to=filled)
        made.call("device.queue.fill", device, -1, allocated, filled, buffer, 0, -1, byte % 251, 1, 0)
    made.call("device.queue.barrier", device, -1, filled, signal, 0)
    assembler = Assembler("m")
    for name in sorted(made.used):
        assembler.import_function(f"hal.{name}", ROWS[name])
    attributes = {"iree.abi.model": "coarse-fences"}
    return assembler.function("f", "0rrr_v", "\n".join([*made.lines, "return"]), attrs=attributes).build()


class Hold:
    """A task of a pool that keeps its thread until it is freed."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.free = threading.Event()

    def run(self) -> None:
        self.begun.set()
        assert self.free.wait(TIMEOUT)

    def cancel(self, failure: StatusError) -> None:
        raise AssertionError(failure)


@contextmanager
def occupied(tier: str, limit: int | None = None) -> Iterator[tuple[Session, Hold]]:
    """A session whose only thread is at something else, until that is freed."""
    hold = Hold()
    with Session("local-task://?threads=1", tier=tier) as session:
        device = session.device
        assert isinstance(device, TaskDevice)
        if limit is not None:
            device.replace_device_allocator(HeapAllocator(limit=limit))
        device._pools[0].post(hold)
        assert hold.begun.wait(TIMEOUT)
        try:
            yield session, hold
        finally:
            hold.free.set()


def arguments(session: Session, first: Fence) -> tuple[Any, ...]:
    return session.device, first, None, None, None, None


def submitted(session: Session, size: int = SIZE) -> Fence:
    """The end of an operation that waits for a thread, so that machine code can do nothing of a chain."""
    done = Fence.create(session.device)
    target = session.device_allocator.allocate(DEVICE_LOCAL, USAGE, size)
    session.device.queue_fill(-1, None, done, target, 0, -1, 0, 1)
    assert done.query() == StatusCode.DEFERRED
    return done


def last_byte(results: list[Any]) -> int:
    view = results[1].host_view()
    assert len(view) == SIZE and view[0] == view[SIZE - 1]
    return int(view[0])


@pytest.mark.parametrize("tier", TIERS)
def test_memory_of_a_chain_does_not_grow_with_its_length(tier: str) -> None:
    with occupied(tier) as (session, _):
        session.load(program())
        assert last_byte(session.call_direct("m.f", *arguments(session, submitted(session)))) == TURNS - 1
        assert SIZE < session.device_allocator.statistics.device.peak <= AT_ONCE * SIZE


@pytest.mark.parametrize("tier", TIERS)
def test_a_chain_has_as_little_memory_as_a_limit_allows(tier: str) -> None:
    """An allocation that finds none waits for those before; one that cannot be met fails."""
    with occupied(tier, limit=3 * SIZE) as (session, _):
        session.load(program(20))
        for _ in range(3):
            assert last_byte(session.call_direct("m.f", *arguments(session, submitted(session)))) == 19
    with occupied(tier, limit=SIZE - 1) as (session, _):
        session.load(program(20))
        with pytest.raises(ResourceExhaustedError):
            session.call_direct("m.f", *arguments(session, submitted(session, SIZE - 1)))


@pytest.mark.parametrize("tier", TIERS)
def test_what_the_host_signals_later_is_not_waited_for(tier: str) -> None:
    """The thread that submits the chain is the one that lets it begin."""
    with occupied(tier) as (session, hold):
        session.load(program(awaits=False))
        first = Fence.create(session.device)
        results = session.call_direct("m.f", *arguments(session, first))
        filled = results[-2]
        assert filled.query() == StatusCode.DEFERRED
        hold.free.set()
        first.signal()
        assert filled.wait(TIMEOUT) == StatusCode.OK
        assert last_byte(results) == TURNS - 1


@pytest.mark.parametrize("tier", TIERS)
def test_an_awaited_call_leaves_the_event_loop_to_others(tier: str) -> None:
    """The device only goes on after another task has had its turn."""
    with occupied(tier) as (session, hold):
        session.load(program(awaits=False))
        function = session.context.lookup("m.f")
        order = []

        async def other() -> None:
            order.append("other")
            hold.free.set()

        async def main() -> list[Any]:
            task = asyncio.create_task(other())
            results = await session.context.invoke_async(function, arguments(session, submitted(session)))
            order.append("submitted")
            await task
            await results[-2]
            return results

        assert last_byte(asyncio.run(main())) == TURNS - 1
        assert order == ["other", "submitted"]


async def awaited(session: Session, first: Fence, count: int) -> asyncio.Task[list[Any]]:
    """A call of an event loop that has submitted all it will, so that so many operations wait."""
    function = session.context.lookup("m.f")
    task = asyncio.create_task(session.context.invoke_async(function, arguments(session, first)))
    while len(waiting(session)) < count:
        await asyncio.sleep(0)
    return task


def waiting(session: Session) -> dict[Any, None]:
    """Operations that have not ended."""
    device = session.device
    assert isinstance(device, TaskDevice)
    announced: dict[Any, None] = device._queues[0].announced if device._queues else {}
    return announced


@pytest.mark.parametrize("tier", TIERS)
def test_awaited_calls_of_a_thread_end_by_themselves(tier: str) -> None:
    """What one has submitted is no matter of another that ends early, nor of how far that is ahead."""
    with occupied(tier) as (session, hold):
        session.load(program(TURNS_OF_TASKS))
        function = session.context.lookup("m.f")

        async def main() -> None:
            first, second = Fence.create(session.device), Fence.create(session.device)
            one = await awaited(session, first, 2 * TURNS_OF_TASKS)
            other = await awaited(session, second, 4 * TURNS_OF_TASKS)
            assert not interrupts.this_thread.submitted
            with pytest.raises(DeadlineExceededError), session.deadline(0):
                session.context.invoke(function, arguments(session, first))
            other.cancel()
            with pytest.raises(asyncio.CancelledError):
                await other
            assert (
                len(waiting(session)) == 2 * TURNS_OF_TASKS
            )  # nobody waits for what the other has submitted
            hold.free.set()
            first.signal()
            assert last_byte(await one) == TURNS_OF_TASKS - 1

        asyncio.run(main())


def array_of(session: Session, fence: Fence) -> Array:
    """An array that is there when a fence is reached."""
    return Array(session.to_device(np.zeros(4, np.float32)).buffer_view, session.device, fence)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("device", ["local-sync", "local-task"])
def test_an_awaited_call_waits_for_what_others_signal(device: str, tier: str) -> None:
    """Its task goes on when it has ended: another one lets it begin."""
    with Session(device, tier=tier) as session:
        function = session.load(asynchronous_program()).f
        first = Fence.create(session.device)
        peaks: list[int] = []

        async def other() -> None:
            for _ in range(8):
                await asyncio.sleep(0)
            peaks.append(session.device_allocator.statistics.device.peak)
            first.signal()

        async def main() -> None:
            task = asyncio.create_task(other())
            await function.async_(array_of(session, first))
            await task

        asyncio.run(asyncio.wait_for(main(), TIMEOUT))
        assert SIZE < peaks[0] < (AT_ONCE + 1) * SIZE


@pytest.mark.parametrize("device", ["local-sync", "local-task"])
def test_what_an_awaited_call_comes_after_is_not_cancelled_with_it(device: str) -> None:
    with Session(device) as session:
        function = session.load(asynchronous_program()).f
        first = Fence.create(session.device)
        earlier = Fence.create(session.device)
        session.device.queue_barrier(-1, first, earlier)

        async def main() -> None:
            task = asyncio.create_task(function.async_(array_of(session, earlier)))
            for _ in range(8):
                await asyncio.sleep(0)
            assert session.device_allocator.statistics.device.peak > SIZE
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        first.signal()
        assert earlier.wait(TIMEOUT) == StatusCode.OK


def test_a_call_inside_an_awaited_one_does_not_keep_the_thread() -> None:
    """What the host has still to do is done by the event loop that its thread is in."""
    with Session("local-sync", tier="plain") as session:
        session.load(program(awaits=False))
        first = Fence.create(session.device)

        async def main() -> list[Any]:
            COMES_AFTER.set(first)
            return session.call_direct("m.f", *arguments(session, first))

        results = asyncio.run(main())
        assert results[-2].query() == StatusCode.DEFERRED
        first.signal()
        assert last_byte(results) == TURNS - 1


def test_a_failure_of_what_is_waited_for_reaches_what_comes_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait itself does not fail: the program learns it where it waits."""
    monkeypatch.setattr(LocalDevice, "is_far_ahead", lambda device, wait, size=0: wait.failure is None)
    with occupied("plain") as (session, _):
        session.load(program(3))
        first = Fence.create(session.device)
        timer = threading.Timer(0.01, first.fail, [CancelledError("it is not wanted")])
        timer.start()
        with pytest.raises(CancelledError, match="it is not wanted"):
            session.call_direct("m.f", *arguments(session, first))
        timer.join()


# -- what may be waited for ----------------------------------------------------------------------------


def chain(queue: LocalQueue, first: Fence, length: int, cost: int = 0) -> list[Fence]:
    fences = [first, *(Fence([(Semaphore(), 1)]) for _ in range(length))]
    for wait, reached in pairwise(fences):
        queue.submit("work", wait, reached, lambda: None, cost)
    return fences


def test_only_what_submitted_work_reaches_is_waited_for() -> None:
    """Not what the host or another member of a group has still to do, at whatever distance."""
    queue = LocalQueue(CallerExecutor(), Profiler())
    first, other = (Fence([(Semaphore(), 1)]) for _ in range(2))
    fences = chain(queue, first, 10)
    joined = Fence.join([fences[-1], other])
    assert joined is not None
    assert not any(map(local_queue.comes_by_itself, (*fences, joined)))
    source = Source()
    first.timepoints[0][0].expect(1, source)
    assert all(map(local_queue.comes_by_itself, fences)) and not local_queue.comes_by_itself(joined)
    end = ended(fences[-2:])
    assert end is not None and local_queue.comes_by_itself(end)
    (others,) = chain(queue, fences[-1], 1, WAITS)[1:]
    assert not local_queue.comes_by_itself(others)
    first.timepoints[0][0].settle(1, source)
    assert not local_queue.comes_by_itself(end)
    first.signal()
    assert all(map(local_queue.comes_by_itself, (*fences, end, others))) and not local_queue.comes_by_itself(
        joined
    )
    other.fail(CancelledError("it is not wanted"))
    assert local_queue.comes_by_itself(joined)


@pytest.mark.parametrize("tier", TIERS)
def test_a_call_that_an_operation_makes_may_come_after_it(tier: str) -> None:
    """A callback that submits: its thread reaches what the chain waits for when it returns."""
    with Session("local-task://?threads=1", tier=tier) as session:
        session.load(program(awaits=False))
        done = Fence.create(session.device)
        calls: list[list[Any]] = []
        pool = session.device._pools[0]  # type: ignore[attr-defined]
        first = Operation(
            session.device._queue(-1),  # type: ignore[attr-defined]
            "callback",
            done,
            lambda: calls.append(session.call_direct("m.f", *arguments(session, done))),
            0,
        )
        first.announce()
        pool.post(Posted(first))
        assert done.wait(TIMEOUT) == StatusCode.OK
        assert calls[0][-2].wait(TIMEOUT) == StatusCode.OK
        assert last_byte(calls[0]) == TURNS - 1


class Posted:
    """A task of a pool that is an operation."""

    def __init__(self, operation: Operation) -> None:
        self.run = operation.run
        self.cancel = operation.cancel


class Source:
    """Work that is going on."""

    def run_here(self, deadline: float | None) -> bool:
        return False

    def prerequisites(self) -> tuple[()]:
        return ()

    def is_held_up(self) -> bool:
        return False

    def interrupt(self, failure: StatusError) -> None:
        raise AssertionError

    def describe(self) -> str:
        return "it"


def test_looking_takes_no_longer_than_submitting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain that the host has still to begin is walked along as it doubles, not for each operation."""
    looks: list[Fence] = []

    def look(fence: Fence) -> bool:
        looks.append(fence)
        return False

    monkeypatch.setattr(local_queue, "comes_by_itself", look)
    state = State()
    monkeypatch.setattr(local_queue, "this_thread", state)
    for count in range(100_000):
        state.submitted[count] = None
        assert not local_queue.is_far_ahead(Fence(), 0)
    assert 5 <= len(looks) <= 20


def test_what_one_call_could_not_wait_for_holds_up_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Awaited calls share the thread of their event loop, and none of them ends what it knows."""
    state = State()
    monkeypatch.setattr(local_queue, "this_thread", state)
    state.submitted = dict.fromkeys(range(100_000))
    held_up, reached = Fence([(Semaphore(), 1)]), Fence()
    assert not local_queue.is_far_ahead(held_up, 0) and not local_queue.is_far_ahead(reached, 0)
    state.submitted = dict.fromkeys(range(local_queue.MOST_AHEAD - 1))
    assert not local_queue.is_far_ahead(reached, 0)
    state.submitted[-1] = None
    assert local_queue.is_far_ahead(reached, 0)


class State:
    """What is known of a thread."""

    operation = None

    def __init__(self) -> None:
        self.submitted: dict[int, None] = {}
        self.next_look = 0
