"""Functions of the fast paths run in Python as they do as machine code, on the same memory."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest

from jitree.codegen import image
from jitree.codegen.record import place_of, size_of
from jitree.hal.local.queue_record import Queue
from jitree.modules.hal.native import FREE, RECIPE
from jitree.modules.hal.native.entries import State, free_entry, new_entry, release
from jitree.modules.hal.native.fences import fence_create, fence_query, fence_signal
from jitree.modules.hal.native.layout import HandlePoolRecord
from jitree.regs.access import retain
from jitree.regs.layout import ENTRY, OWNER_CODE, STATE, Entry
from jitree.vmfb.words import TAG_REF_COPY, TAG_REF_MOVE, TAG_VALUE32
from tests.checked.begin import let

ENTRIES = 4
_STATE, _HANDLE_POOL = 0, 512
_ENTRIES = _HANDLE_POOL + size_of(HandlePoolRecord) + 64
_QUEUE = _ENTRIES + ENTRIES * ENTRY.size
_REGISTERS = _QUEUE + 64
_SIZE = _REGISTERS + 512
DEVICE_KIND, FENCE_KIND = 7, 9


class Memory:
    """A state, handle_pool with blank entries, a device, and registers."""

    def __init__(self) -> None:
        self._block = ctypes.create_string_buffer(_SIZE + 64)
        self.base = (ctypes.addressof(self._block) + 63) & -64
        self.state, self.handle_pool = State(self.base + _STATE), HandlePoolRecord(self.base + _HANDLE_POOL)
        self.entries = [Entry(self.base + _ENTRIES + ENTRY.size * number) for number in range(ENTRIES)]
        self.refs = self.base + _REGISTERS
        self.values = self.refs + 64
        self.words = self.values + 64
        self.state.handle_pool = self.handle_pool
        self.handle_pool.device, self.handle_pool.fence = DEVICE_KIND, FENCE_KIND
        device, *blanks = self.entries
        device.kind, device.count, device.address = DEVICE_KIND, 1, self.base + _QUEUE
        ctypes.c_int64.from_address(place_of(Queue(self.base + _QUEUE))).value = 1
        for entry in blanks:
            entry.owner, entry.link = OWNER_CODE, self.handle_pool.blank
            self.handle_pool.blank = entry
        assert STATE.size <= _HANDLE_POOL

    def contents(self) -> bytes:
        return ctypes.string_at(self.base, _SIZE)

    def restore(self, data: bytes) -> None:
        """Puts back what was there, with entries that have been freed since."""
        ctypes.memmove(self.base, data, _SIZE)
        let(self.base, _SIZE)

    def registers(self, *refs: Entry) -> None:
        for number, entry in enumerate(refs):
            ctypes.c_int64.from_address(self.refs + 8 * number).value = place_of(entry)

    def call_words(self, arguments: list[tuple[int, int]], results: list[tuple[int, int]]) -> int:
        """Writes them; gives the address that a fast path gets."""
        words = [len(arguments), len(results), *(word for pair in arguments + results for word in pair)]
        for number, word in enumerate(words):
            ctypes.c_int32.from_address(self.words + 4 * number).value = word
        return self.words + 8


@pytest.fixture
def memory() -> Iterator[Memory]:
    yield Memory()


def by_machine(symbol: str, *arguments: int) -> int:
    kinds = [ctypes.c_int32, *[ctypes.c_int64] * len(arguments)]
    result: int = ctypes.CFUNCTYPE(*kinds)(image.wait(RECIPE).addresses[symbol])(*arguments)
    return result


def test_entries_go_back_to_where_they_came_from(memory: Memory) -> None:
    entry = new_entry(memory.state, memory.handle_pool, FENCE_KIND)
    assert entry and entry.count == 1 and entry.kind == FENCE_KIND and memory.handle_pool.live == 1
    release(memory.handle_pool, retain(entry), 0)
    assert entry.count == 1
    before = memory.contents()
    free_entry(memory.handle_pool, entry)
    by_python = memory.contents()
    assert by_python != before and memory.handle_pool.blank == entry and memory.handle_pool.live == 0
    memory.restore(before)
    by_machine(FREE, place_of(memory.handle_pool), place_of(entry))
    assert memory.contents() == by_python


def test_answers_do_the_same_in_python(memory: Memory) -> None:
    """A fence is made, asked, signalled, asked again, and dropped."""
    value = (TAG_VALUE32, 0)
    device, fence = (TAG_REF_COPY, 0), (TAG_REF_COPY, 1)
    memory.registers(memory.entries[0])
    for symbol, function, arguments, results in (
        ("hal.fence.create.0ri_r", fence_create, [device, value], [(TAG_REF_MOVE, 1)]),
        ("hal.fence.query.0r_i", fence_query, [fence], [value]),
        ("hal.fence.signal.0r_v", fence_signal, [fence], []),
        ("hal.fence.query.0r_i", fence_query, [(TAG_REF_MOVE, 1)], [value]),
        ("hal.fence.query.0r_i", fence_query, [fence], [value]),
    ):
        words = memory.call_words(arguments, results)
        before = memory.contents()
        status = function(memory.state, memory.values, memory.refs, words)
        by_python = memory.contents()
        memory.restore(before)
        state = place_of(memory.state)
        assert by_machine(symbol, state, memory.values, memory.refs, words) == status
        assert memory.contents() == by_python
    assert status == 1, "there is no fence any more"
