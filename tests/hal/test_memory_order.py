"""Thousands of pending calls: what each costs does not depend on how many there are."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from jitree.errors import CancelledError, StatusError
from jitree.hal import memory_order
from jitree.hal.buffer import PENDING
from jitree.hal.enums import NOTHING, READING, WRITING
from jitree.hal.fence import Fence
from jitree.hal.memory_order import Extent, MemoryMap
from jitree.hal.semaphore import Semaphore

pytestmark = pytest.mark.usefixtures("nothing_pending")

FEW, MANY = 100, 400
WEIGHTS: Extent = (1 << 40, (1 << 40) + (1 << 30))
Order = Callable[[int], list[int]]


def steps_of(work: Callable[[], object]) -> int:
    """Instructions of Python that the work takes in this package."""
    count = 0

    def count_one(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if event == "opcode":
            count += 1
        return count_one

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_globals.get("__name__", "").startswith("jitree."):
            return None
        frame.f_trace_opcodes = True
        return count_one

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 traces none that is asked for only later
    sys.settrace(enter)
    try:
        work()
    finally:
        sys.settrace(before)
    assert count, "nothing was counted"
    return count


def in_order(count: int) -> list[int]:
    return list(range(count))


def reverse(count: int) -> list[int]:
    return list(reversed(range(count)))


def mixed(count: int) -> list[int]:
    return random.Random(count).sample(range(count), count)


ORDERS = (in_order, reverse, mixed)


def result_of(index: int) -> Extent:
    return (index * 4096, index * 4096 + 4000)


def submit_all(count: int, order: Order) -> None:
    """Each call reads what all read, and the result of the one before; all end before the next round."""
    fences = [Fence(((Semaphore(), 1),)) for _ in range(count)]
    for index, fence in enumerate(fences):
        read, written = (WEIGHTS, result_of(index)), (result_of(index + 1),)
        assert len(memory_order.before(read, written)) == (index > 0)
        memory_order.begin(fence, read, written)
    for index in order(count):
        fences[index].signal()
        memory_order.settle()
    assert (
        not memory_order._uses
        and not memory_order._reading
        and not memory_order._writing
        and PENDING[0] == NOTHING
    )


@pytest.mark.parametrize("order", ORDERS)
def test_a_pending_call_costs_the_same_however_many_there_are(order: Order) -> None:
    few, many = (steps_of(partial(submit_all, count, order)) for count in (FEW, MANY))
    assert many < 1.5 * MANY / FEW * few


def wait_for_all(count: int, order: Order) -> None:
    semaphore, called = Semaphore(), list[int]()

    def call(index: int, failure: StatusError | None) -> None:
        called.append(index)

    for index in order(count):
        semaphore.on_reached(index + 1, partial(call, index))
    for index in range(count):
        semaphore.signal(index + 1)
        assert called[-1] == index and len(called) == index + 1
    assert not semaphore._timepoints


@pytest.mark.parametrize("order", ORDERS)
def test_a_point_of_a_timeline_costs_the_same_however_many_there_are(order: Order) -> None:
    few, many = (steps_of(partial(wait_for_all, count, order)) for count in (FEW, MANY))
    assert many < 1.5 * MANY / FEW * few


def find_all(count: int, order: Order) -> None:
    """What is to signal values between which others are waited for."""
    semaphore = Semaphore()
    producers: list[Any] = [object() for _ in range(count)]
    for index in order(count):
        semaphore.expect(2 * index + 2, producers[index])
    for index in order(count):
        assert semaphore.producer(2 * index + 1) is semaphore.producer(2 * index + 2) is producers[index]
    for index in order(count):
        semaphore.settle(2 * index + 2, producers[index])
        assert semaphore.producer(2 * index + 2) is not producers[index]
    assert semaphore.producer(1) is None


@pytest.mark.parametrize("order", ORDERS)
def test_work_that_signals_a_timeline_is_found_however_much_there_is(order: Order) -> None:
    few, many = (steps_of(partial(find_all, count, order)) for count in (FEW, MANY))
    assert many < 1.5 * MANY / FEW * few


def test_cancelled_points_of_a_timeline_leave_nothing() -> None:
    semaphore, called = Semaphore(), list[StatusError | None]()
    semaphore.on_reached(1, called.append)
    for value in range(2, MANY):
        timepoint = semaphore.on_reached(value, called.append)
        assert timepoint is not None and timepoint.cancel() and not timepoint.cancel()
        assert semaphore._timepoints is not None and len(semaphore._timepoints._heap) < 32
    semaphore.fail(CancelledError("ended"))
    assert len(called) == 1 and isinstance(called[0], StatusError) and not semaphore._timepoints


def test_what_has_ended_out_of_turn_is_in_nobodys_way() -> None:
    """Whether or not it has been forgotten."""
    fences = [Fence(((Semaphore(), 1),)) for _ in range(MANY)]
    for index, fence in enumerate(fences):
        memory_order.begin(fence, (), (result_of(index),))
    for index in mixed(MANY - 1):
        assert len(memory_order.before((result_of(index + 1),), ())) == 1
        fences[index + 1].signal()
        assert not memory_order.before((result_of(index + 1),), ())
    assert PENDING[0] == WRITING and len(memory_order.before((result_of(0),), ())) == 1
    fences[0].fail(CancelledError("ended"))
    memory_order.settle()
    assert PENDING[0] == NOTHING


def test_readers_are_only_in_the_way_of_writers() -> None:
    fence = Fence(((Semaphore(), 1),))
    memory_order.begin(fence, (WEIGHTS,), ())
    assert PENDING[0] == READING
    start, stop = WEIGHTS
    assert not memory_order.before((WEIGHTS,), ())
    assert not memory_order.before((), ((start - 64, start), (stop, stop + 64)))
    for written in ((start - 64, start + 1), (stop - 1, stop + 64), (start + 5, start + 6), WEIGHTS):
        assert len(memory_order.before((), (written,))) == 1


def test_what_overlaps_is_found_wherever_it_lies() -> None:
    """As comparing with each of them finds it, for memory of all lengths."""
    chosen = random.Random(3)
    known: dict[int, Extent] = {}
    users: MemoryMap[int] = MemoryMap()
    hits = 0
    for step in range(3000):
        start = chosen.randrange(1 << chosen.randrange(1, 16))
        extent = (start, start + chosen.randrange(1, 2 << chosen.randrange(14)))
        expected = {user for user, (first, last) in known.items() if first < extent[1] and extent[0] < last}
        assert set(users.users((extent,))) == expected
        hits += len(expected)
        if len(known) > 60:
            gone = chosen.choice(list(known))
            users.remove(gone, (known[gone],))
            users.remove(gone, (known.pop(gone),))
        known[step] = extent
        users.add(step, (extent,))
        users.add(step, (extent,))
    assert hits > 3000
    for user, extent in known.items():
        users.remove(user, (extent,))
    assert not users
