"""Handles: counts, identity, freed entries."""

from __future__ import annotations

import gc
import weakref
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitree.codegen.record import words_of
from jitree.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
)
from jitree.regs.buffer import VmBuffer
from jitree.regs.handles import HandleTable
from jitree.regs.layout import (
    ACCESS_READ,
    ENTRY,
    KIND_BUFFER,
    KIND_FIRST_REGISTERED,
    KIND_FREE,
    KIND_LIST,
    OWNER_CODE,
    STATE,
    STATE_WORDS,
    TYPE_OPAQUE,
    Entry,
)
from jitree.regs.list import VmList
from jitree.regs.ref_types import RefTypes

_ENTRY: Final = words_of(Entry)


class Thing:
    pass


class Special(Thing):
    pass


@pytest.fixture
def table() -> HandleTable:
    ref_types = RefTypes()
    ref_types.register("test.thing", Thing)
    return HandleTable(ref_types, capacity=1000)


def test_null(table: HandleTable) -> None:
    assert table.wrap(None) == 0
    assert table.object(0) is None
    assert table.kind(0) == KIND_FREE
    table.retain(0)
    table.release(0)


def test_one_handle_per_object(table: HandleTable) -> None:
    first, second = Thing(), Thing()
    handle = table.wrap(first)
    assert table.wrap(first) == handle
    assert table.wrap(second) != handle
    assert (table.count(handle), table.live_count) == (2, 2)
    assert table.object(handle) is first


def test_the_last_release_frees_object_and_entry(table: HandleTable) -> None:
    thing = Thing()
    alive = weakref.ref(thing)
    handle = table.retain(table.wrap(thing))
    del thing
    table.release(handle)
    assert alive() is not None
    table.release(handle)
    assert alive() is None
    assert table.live_count == 0
    assert table.kind(handle) == KIND_FREE
    with pytest.raises(InternalError):
        table.release(handle)


def test_an_object_that_is_made_when_asked_for_is_made_later_if_that_was_interrupted(
    table: HandleTable,
) -> None:
    made: list[VmBuffer] = []

    def make(table: HandleTable, address: int) -> VmBuffer:
        made.append(VmBuffer.alias(b"constant"))
        if len(made) == 1:
            raise RecursionError
        return made[-1]

    first, second = table.wrap_later(2, make, {"kind": KIND_BUFFER}).tolist()
    with pytest.raises(RecursionError):
        table.object(first)
    assert table.object(first) is made[1] is table.object(first)
    table.release(first)
    table.release(second)
    assert (len(made), table.live_count) == (2, 0)


def test_entries_are_used_again(table: HandleTable) -> None:
    for _ in range(3):
        handles = [table.wrap(Thing()) for _ in range(table.capacity)]
        with pytest.raises(ResourceExhaustedError, match="1000 objects"):
            table.wrap(Thing())
        table.release_all(handles)
    assert table.live_count == 0


def test_fields_of_a_buffer(table: HandleTable) -> None:
    buffer = VmBuffer(100)
    word = (table.wrap(buffer) - table.base) // 8
    assert table.i64[word + _ENTRY.address] == buffer.address
    assert table.i64[word + _ENTRY.length] == 100
    assert table.i32[2 * word + _ENTRY.kind] == KIND_BUFFER
    assert table.i32[2 * word + _ENTRY.access] == buffer.access == 3
    constant = (table.wrap(VmBuffer.alias(b"xy")) - table.base) // 4
    assert table.i32[constant + _ENTRY.access] == 1


def test_machine_code_releases_through_the_list(table: HandleTable) -> None:
    state = memoryview(bytearray(STATE.size)).cast("q")
    things = [Thing() for _ in range(3)]
    alive = [weakref.ref(thing) for thing in things]
    handles = [table.wrap(thing) for thing in things]
    things.clear()
    for handle in handles[:2]:
        word = (handle - table.base) // 8
        table.i32[2 * word + _ENTRY.count] = 0
        table.i64[word + _ENTRY.link] = state[STATE_WORDS.released]
        state[STATE_WORDS.released] = handle
    table.drain(state)
    assert [reference() is None for reference in alive] == [True, True, False]
    assert state[STATE_WORDS.released] == 0


class CountingPool:
    """Of the methods of an ObjectPool those that letting go of references takes."""

    def __init__(self) -> None:
        self.dropped: list[int] = []
        self.settled: list[list[int]] = []

    def drop_all(
        self,
        dropped: npt.NDArray[np.int64],
        links: npt.NDArray[np.int64],
        owed: list[int],
        taken: slice,
        rest: list[int],
    ) -> None:
        self.dropped += dropped.tolist()
        owed[taken] = rest

    def settle(self) -> None:
        self.settled.append(self.dropped)
        self.dropped = []


def test_machine_code_frees_its_objects_all_at_once(table: HandleTable) -> None:
    pool = CountingPool()
    table.handle_pool = pool  # type: ignore[assignment]
    objects = table.reserve(8)
    table.write(objects, {"owner": OWNER_CODE, "count": [1, 1, 2, 1, 1, 1, 1, 1], "kind": KIND_BUFFER})
    mine = table.wrap(Thing())
    later = VmBuffer.parts(table, memoryview(b"data"), np.arange(2), np.ones(2, np.int64), ACCESS_READ)
    table.retain(int(later[1]))
    table.release_all([*objects[:3].tolist(), mine, 0, *objects[4:].tolist(), *later.tolist()])
    table.release_all([0] * 20)
    assert pool.settled == [np.delete(objects, [2, 3]).tolist()]
    assert [table.count(int(handle)) for handle in objects] == [0, 0, 1, 1, 0, 0, 0, 0]
    assert [table.kind(int(handle)) for handle in later] == [KIND_FREE, KIND_BUFFER]
    assert bytes(table.object(int(later[1]))) == b"a"  # type: ignore[call-overload]
    table.release(int(later[1]))
    assert table.kind(mine) == KIND_FREE


class Ending(Thing):
    """Uses the table when it dies, as calls do that a finalizer of the caller's makes."""

    def __init__(self, table: HandleTable) -> None:
        self.table = table

    def __del__(self) -> None:
        self.table.release_all([self.table.wrap(Thing()), self.table.wrap(Thing())])


@pytest.mark.parametrize("count", [2, 20])
def test_a_finalizer_that_drops_references_while_some_are_dropped(table: HandleTable, count: int) -> None:
    table.ref_types.register("test.ending", Ending)
    for _ in range(2):
        table.release_all([table.wrap(Ending(table)) for _ in range(count)])
        assert table.live_count == 0 and not table.owed
    assert len({table.wrap(Thing()) for _ in range(4)}) == 4


def test_a_failing_entry_hook_leaves_nothing(table: HandleTable) -> None:
    class Broken(Thing):
        def fill_entry(self, table: HandleTable, address: int) -> None:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        table.wrap(Broken())
    assert table.live_count == 0


def test_a_dropped_list_drops_its_elements(table: HandleTable) -> None:
    items, inner = VmList(), VmList()
    inner.append(Thing())
    items.append(inner)
    items.append(Thing())
    handle = table.wrap(items)
    del items, inner
    assert table.live_count == 4
    table.release(handle)
    gc.collect()
    table.drain_deferred()
    assert table.live_count == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["wrap", "retain", "release"])), max_size=60))
def test_counts_follow_a_model(steps: list[tuple[int, str]]) -> None:
    ref_types = RefTypes()
    ref_types.register("test.thing", Thing)
    table = HandleTable(ref_types, capacity=16)
    things = [Thing() for _ in range(6)]
    counts = [0] * 6
    handles = [0] * 6
    for number, step in steps:
        if step == "wrap":
            handles[number] = table.wrap(things[number])
            counts[number] += 1
        elif counts[number]:
            getattr(table, step)(handles[number])
            counts[number] += 1 if step == "retain" else -1
        assert table.live_count == sum(count > 0 for count in counts)
        for thing, handle, count in zip(things, handles, counts, strict=True):
            if count:
                assert (table.count(handle), table.object(handle)) == (count, thing)


def test_type_names() -> None:
    types = RefTypes()
    number = types.register("!test.thing", Thing)
    assert number >= KIND_FIRST_REGISTERED
    assert types.register("test.thing", Thing) == number
    assert types.lookup("test.thing") == types.lookup("!test.thing") == types.id_of(Special()) == number
    assert types.id_of(VmBuffer(0)) == types.lookup("vm.buffer") == KIND_BUFFER
    assert types.name(number) == "test.thing"
    with pytest.raises(AlreadyExistsError):
        types.register("test.thing", Special)
    with pytest.raises(AlreadyExistsError):
        types.register("test.other", Thing)
    with pytest.raises(NotFoundError, match=r"'test\.unknown'.*test\.thing"):
        types.lookup("test.unknown")
    with pytest.raises(InvalidArgumentError, match=r"builtins\.int"):
        types.id_of(1)
    special = types.register("test.special", Special)
    assert types.id_of(Special()) == special, "the nearest class decides"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("!vm.list<i8>", KIND_LIST), ("!vm.list<!vm.list<?>>", KIND_LIST), ("!vm.buffer", KIND_BUFFER),
     ("!vm.opaque", TYPE_OPAQUE), ("!vm.ref<?>", TYPE_OPAQUE), ("!vm.ref<!vm.buffer>", KIND_BUFFER),
     ("i32", -3)],
)  # fmt: skip
def test_names_in_type_tables(name: str, expected: int) -> None:
    assert RefTypes().resolve(name) == expected


def test_objects_that_are_made_when_they_are_asked_for(table: HandleTable) -> None:
    free = table.wrap(Thing())
    table.release(free)
    data = bytes(range(16))
    starts, lengths = np.array([0, 4, 8]), np.array([4, 4, 0])
    first, second, empty = VmBuffer.parts(table, memoryview(data), starts, lengths, ACCESS_READ).tolist()
    assert free in (first, second, empty)
    assert [table.kind(handle) for handle in (first, second, empty)] == [KIND_BUFFER] * 3
    assert (table.live_count, table.count(second)) == (3, 1)
    buffer = table.object(second)
    assert isinstance(buffer, VmBuffer)
    assert (bytes(buffer), buffer.writable) == (data[4:8], False)
    word = (second - table.base) >> 3
    assert table.i64[word + _ENTRY.address] == buffer.address
    assert table.object(second) is buffer
    assert table.wrap(buffer) == second
    assert bytes(table.object(empty)) == b""  # type: ignore[call-overload]
    for handle in (first, second, second, empty):
        table.release(handle)
    assert table.live_count == 0
    assert table.kind(first) == table.kind(second) == KIND_FREE
    assert VmBuffer.parts(table, memoryview(b""), starts[:0], lengths[:0], ACCESS_READ).tolist() == []


def test_no_room_for_objects_that_are_made_later(table: HandleTable) -> None:
    zeros = np.zeros(1001, np.int64)
    with pytest.raises(ResourceExhaustedError):
        VmBuffer.parts(table, memoryview(b"data"), zeros, zeros, ACCESS_READ)
    assert (table.room, table.live_count) == (1000, 0)


def test_a_full_table_takes_what_machine_code_has_left() -> None:
    """And gives no entry behind its end."""
    table = HandleTable(RefTypes(), capacity=4)

    class Pool:
        def __init__(self) -> None:
            self.blank = table.reserve(2).tolist()

        def withdraw(self) -> None:
            while self.blank:
                table.unreserve(self.blank.pop())

    pool: Any = Pool()
    table.handle_pool = pool
    handles = [table.wrap(VmBuffer.alias(b"abc")) for _ in range(4)]
    assert sorted(handles) == [table.base + place * ENTRY.size for place in range(4)]
    with pytest.raises(ResourceExhaustedError):
        table.wrap(VmBuffer.alias(b"abc"))
