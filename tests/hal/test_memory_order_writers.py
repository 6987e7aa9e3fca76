"""Pending calls that write the same memory: each waits for the last of them, and with it for all."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from jitree.errors import CancelledError
from jitree.hal import memory_order
from jitree.hal.buffer import PENDING
from jitree.hal.enums import NOTHING, READING, WRITING
from jitree.hal.fence import Fence
from jitree.hal.memory_order import Earlier, Extent
from jitree.hal.semaphore import Semaphore
from tests.hal.test_memory_order import steps_of

pytestmark = pytest.mark.usefixtures("nothing_pending")

FEW, MANY = 100, 400
CACHE: Extent = (4096, 8192)
SLOT: Extent = (5000, 5064)
Extents = tuple[Extent, ...]


def new_fence() -> Fence:
    return Fence(((Semaphore(), 1),))


class Submitted:
    """A call that has been submitted: what it comes after, and its end."""

    def __init__(self, read: Extents, written: Extents) -> None:
        self.earlier = Earlier(memory_order.before(read, written))
        self.end = new_fence()
        memory_order.begin(self.end, read, written, self.earlier)

    def may_begin(self) -> bool:
        return self.earlier.turn is None or self.earlier.turn.is_reached()


def end_in_order(calls: list[Submitted]) -> None:
    for call in calls:
        assert call.may_begin()
        call.end.signal()


def fail_from_the_last(calls: list[Submitted]) -> None:
    """As where all that is pending is given up while the first call runs, which all come after."""
    for call in reversed(calls[1:]):
        call.end.fail(CancelledError("it is not wanted"))
    assert not any(call.may_begin() for call in calls[1:])
    calls[0].end.signal()
    assert all(call.may_begin() for call in calls)


Uses = Callable[[int], tuple[Extents, Extents]]


def write_all(index: int) -> tuple[Extents, Extents]:
    return (), (CACHE,)


def read_and_write(index: int) -> tuple[Extents, Extents]:
    """Every second call reads, so that the next one has two in its way."""
    return ((CACHE,), ()) if index % 2 else ((), (CACHE,))


def write_parts(index: int) -> tuple[Extents, Extents]:
    """Rows, and all of it after some of them."""
    row = 4096 + 64 * (index % 64)
    return ((), (CACHE,)) if index % 8 == 7 else ((), ((row, row + 64),))


def write_several(index: int) -> tuple[Extents, Extents]:
    return ((0, 64),), ((64, 128), (128, 192), (256, 1024))


def write_windows(index: int) -> tuple[Extents, Extents]:
    """Each writes most of what the one before does."""
    return ((64 * index, 64 * index + 1024),), ((64 * index, 64 * index + 4096),)


def write_in_each_other(index: int) -> tuple[Extents, Extents]:
    return (), ((64 * index, (1 << 20) - 64 * index),)


def use_all(uses: Uses, end: Callable[[list[Submitted]], None], count: int) -> None:
    calls = [Submitted(*uses(index)) for index in range(count)]
    assert max(len(call.earlier.uses) for call in calls) <= 8
    end(calls)
    memory_order.settle()
    assert (
        not memory_order._uses
        and not memory_order._reading
        and not memory_order._writing
        and PENDING[0] == NOTHING
    )


@pytest.mark.parametrize(
    ("uses", "end"),
    [
        *((uses, end_in_order) for uses in (write_all, read_and_write, write_parts, write_several)),
        *((uses, end_in_order) for uses in (write_windows, write_in_each_other)),
        *((uses, fail_from_the_last) for uses in (write_all, write_several, write_in_each_other)),
    ],
)
def test_a_call_costs_the_same_however_many_write_the_same_memory(
    uses: Uses, end: Callable[[list[Submitted]], None]
) -> None:
    few, many = (steps_of(partial(use_all, uses, end, count)) for count in (FEW, MANY))
    assert many < 1.5 * MANY / FEW * few


@pytest.mark.parametrize("seed", range(20))
def test_a_call_comes_after_all_that_it_overlaps(seed: int) -> None:
    """Directly, or after one that does."""
    random = Random(seed)

    def some() -> Extents:
        starts = [random.randrange(256) for _ in range(random.randrange(3))]
        return tuple((start, start + random.randint(1, 64)) for start in starts)

    calls: list[tuple[Submitted, Extents, Extents]] = []
    after: dict[object, set[int]] = {}
    for index in range(60):
        read, written = some(), some()
        call = Submitted(read, written)
        found = set().union(*(after[use] for use in call.earlier.uses))
        for number, (_, others_read, others_written) in enumerate(calls):
            if overlap(written, (*others_read, *others_written)) or overlap(read, others_written):
                assert number in found, (number, index)
        calls.append((call, read, written))
        if read or written:
            after[memory_order._uses[-1]] = found | {index}
    for call, _, _ in calls:
        assert call.may_begin()
        call.end.signal()
    memory_order.settle()
    assert not memory_order._uses and not memory_order._reading and not memory_order._writing


def test_what_fails_before_its_turn_is_not_taken_for_what_it_comes_after() -> None:
    """The first call still runs when the second one, which stood for it, is given up."""
    first, second = Submitted((), (CACHE,)), Submitted((), (CACHE,))
    third = Submitted((), (SLOT,))
    assert [len(call.earlier.uses) for call in (first, second, third)] == [0, 1, 1]
    second.end.fail(CancelledError("it is not wanted"))
    fourth = Submitted((SLOT,), ())
    assert not third.may_begin() and not fourth.may_begin() and PENDING[0] == WRITING
    first.end.signal()
    assert third.may_begin() and not fourth.may_begin()
    third.end.signal()
    assert fourth.may_begin()


def test_a_part_stands_for_nothing_else() -> None:
    whole, part = Submitted((), (CACHE,)), Submitted((), (SLOT,))
    other = Submitted(((CACHE[0], SLOT[0]),), ())
    both = Submitted((CACHE,), ())
    part.end.fail(CancelledError("it is not wanted"))
    assert not other.may_begin() and not both.may_begin()
    whole.end.signal()
    assert other.may_begin() and both.may_begin() and part.may_begin()


def test_readers_stand_for_no_writer_and_writers_for_readers() -> None:
    writer, readers = Submitted((), (CACHE,)), [Submitted((CACHE,), ()) for _ in range(5)]
    assert all(len(reader.earlier.uses) == 1 for reader in readers)
    last, after = Submitted((), (CACHE,)), Submitted((SLOT,), ())
    assert len(last.earlier.uses) == 6 and len(after.earlier.uses) == 1
    writer.end.signal()
    for reader in readers:
        assert reader.may_begin() and not last.may_begin()
        reader.end.signal()
    assert last.may_begin() and not after.may_begin()
    last.end.signal()
    assert after.may_begin()


def test_what_nothing_can_end_any_more_is_in_nobodys_way() -> None:
    first = Submitted((), (CACHE,))
    memory_order.begin(new_fence(), (), (CACHE,), first.earlier)
    assert len(memory_order.before((), (CACHE,))) == 1
    middle = Submitted((), (CACHE,))
    del middle
    first.end.signal()
    gc.collect()
    assert not memory_order.before((), (CACHE,))


# -- calls that an event loop goes on with -------------------------------------------------------------


def test_what_an_event_loop_goes_on_with_hides_nothing_from_its_thread() -> None:
    """What blocks the thread does not wait for it, but for what it comes after."""
    first = Submitted((), (CACHE,))
    end, earlier = new_fence(), Earlier(memory_order.before_both((), (CACHE,)))
    use = memory_order.begin_here(end, (), (CACHE,), earlier)
    assert memory_order.before((CACHE,), ()) == list(earlier.uses)
    assert memory_order.before_here((CACHE,), ()) == [use]
    memory_order.leave_to_devices(use, earlier)
    assert memory_order.before((CACHE,), ()) == [use] and not memory_order.before_here((CACHE,), ())
    end.signal()
    assert memory_order.before((CACHE,), ()) == [use]  # which does not end before the first
    first.end.signal()
    assert not memory_order.before((CACHE,), ()) and PENDING[0] == NOTHING


def test_calls_that_an_event_loop_goes_on_with_stand_for_each_other() -> None:
    ends, uses = [new_fence() for _ in range(MANY)], []
    found = []
    for end in ends:
        earlier = Earlier(memory_order.before_both((), (CACHE,)))
        uses.append((memory_order.begin_here(end, (), (CACHE,), earlier), earlier))
        assert len(earlier.uses) == (len(uses) > 1) and not memory_order.before((), (CACHE,))
    thread = threading.Thread(target=lambda: found.extend(memory_order.before((CACHE,), ())))
    thread.start()
    thread.join()
    assert found == [uses[-1][0]]
    memory_order.leave_to_devices(*uses[0])
    assert memory_order.before((), (CACHE,)) == [uses[0][0]]
    for (use, earlier), end in zip(uses, ends, strict=True):
        end.signal()
        memory_order.leave_to_devices(use, earlier)
    assert PENDING[0] == NOTHING


# -- random calls ----------------------------------------------------------------------------------------


class Modelled(Submitted):
    """A call with all that it has to come after, as comparing with each finds it."""

    def __init__(self, before: list[Modelled], read: Extents, written: Extents) -> None:
        self.read, self.written, self.is_over = read, written, False
        self.after = [
            call
            for call in before
            if overlap(call.written, read) or overlap(call.written, written) or overlap(call.read, written)
        ]
        super().__init__(read, written)

    def has_run(self) -> bool:
        return self.is_over and all(call.has_run() for call in self.after if not call.is_over)


def overlap(some: Extents, others: Extents) -> bool:
    return any(start < end and first < last for start, last in some for first, end in others)


def random_extents(chosen: random.Random) -> Extents:
    extents = []
    for _ in range(chosen.randrange(3)):
        start = chosen.choice((0, 8, 16, chosen.randrange(40)))
        extents.append((start, start + chosen.choice((8, 8, 16, 40, chosen.randrange(1, 30)))))
    return tuple(extents)


@pytest.mark.parametrize("seed", range(8))
def test_random_calls_begin_when_what_they_come_after_has_ended(seed: int) -> None:
    """Neither before, whatever fails before its turn, nor later."""
    chosen = random.Random(seed)
    calls: list[Modelled] = []
    held_up = 0
    for _ in range(1500):
        if len(calls) < 12 and chosen.random() < 0.6:
            calls.append(Modelled(calls, random_extents(chosen), random_extents(chosen)))
        elif calls:
            call = chosen.choice(calls)
            if call.may_begin() and chosen.random() < 0.8:
                call.end.signal()
                call.is_over = True
            elif chosen.random() < 0.2:
                call.end.fail(CancelledError("it is not wanted"))
                call.is_over = True
        for call in calls:
            first = [one for one in call.after if not one.is_over]
            assert not (call.may_begin() and first)
            if not call.may_begin():
                held_up += 1
                assert not all(one.has_run() for one in transitive(call))
        calls = [call for call in calls if not call.has_run()]
    assert held_up > 500
    for call in calls:
        call.end.signal() if not call.is_over else None
    memory_order.settle()
    assert PENDING[0] in (NOTHING, READING) and not memory_order._uses


def transitive(call: Modelled) -> list[Modelled]:
    """All that it comes after, of whatever distance."""
    found: dict[Modelled, None] = {}
    left = list(call.after)
    while left:
        one = left.pop()
        if one not in found:
            found[one] = None
            left += one.after
    return list(found)
