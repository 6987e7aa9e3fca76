"""Lend memory for buffers and command buffers to machine code."""

from __future__ import annotations

from array import array
from functools import cache, partial
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from jitree.base.finalizers import Borrowed, Finalizer, uninterrupted, without_guards
from jitree.base.records import NamedTuple
from jitree.codegen.record import size_of, words_of
from jitree.errors import ResourceExhaustedError
from jitree.hal.allocator import LendingAllocator
from jitree.hal.command_layout import List
from jitree.hal.heap import size_class
from jitree.modules.hal.native.layout import (
    ACCOUNT_SIZE,
    ACCOUNTS,
    LARGEST_SCALE,
    POOL_COUNT,
    STORAGE_POOLS,
    HandlePoolRecord,
    Recording,
    class_index,
    sections,
)
from jitree.regs.layout import KIND_STORAGE, OWNER_CODE, Entry
from jitree.regs.memory import address_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from jitree.hal.allocator import Block
    from jitree.hal.device import Device
    from jitree.regs.handles import HandleTable

_HANDLE_POOL: Final = words_of(HandlePoolRecord)

_BATCH_BYTES: Final = 256 << 10
_BATCH: Final = 16
"""Blocks of one size that are lent at a time, and their bytes together (at least one block)."""
_FIRST_BATCH: Final = 4
"""Blocks that are lent when a size is first asked for; twice as many each time after that."""
_ARENAS: Final = 16
"""Command buffers of scale 1 that are recorded or waiting to be freed at one time, at first; every refill
doubles them."""
_MOST_ARENA_BYTES: Final = 16 << 20
"""Programs that keep more command buffers have the others in Python."""
_GROWTH: Final = 4
_ENTRY: Final = words_of(Entry)
_NO_LIMIT: Final = 1 << 62
_FIRST_ACCOUNT: Final = ACCOUNTS // 8
_ACCOUNTS: Final = 2
_ACCOUNT_WORDS: Final = ACCOUNT_SIZE // 8
_FIRST_POOL: Final = STORAGE_POOLS // 8
_RECORDING: Final = words_of(Recording)
_LIST: Final = words_of(List)


class StoragePool:
    """Blocks of an allocator, lent to the fast paths of a table. Each has an entry of KIND_STORAGE."""

    def __init__(
        self, allocator: LendingAllocator, table: HandleTable, words: array[int], queue: int
    ) -> None:
        self.allocator = allocator
        self._table = table
        self._words = words
        self.blocks: dict[int, Block] = {}
        """The lent block that each handle of the pool stands for."""
        self._lent = 0
        self._batches: dict[int, int] = {}
        """Blocks to lend next, by place of the list."""
        self._queue = queue
        words[_HANDLE_POOL.queue] = queue
        words[_HANDLE_POOL.room] = _NO_LIMIT
        words[_HANDLE_POOL.zeroed] = allocator.is_zeroed
        allocator.borrowers.add(self)
        self._ending = Finalizer(uninterrupted(partial(without_guards, partial(_forget, allocator, words))))

    @classmethod
    def of(cls, device: Device, table: HandleTable, words: array[int]) -> StoragePool | None:
        """The pool for a device; None if its allocator is not one that lends."""
        allocator = device.device_allocator
        if not isinstance(allocator, LendingAllocator) or not allocator.lends:
            return None
        return cls(allocator, table, words, device.queue_record())

    @property
    def counts(self) -> Sequence[int]:
        """See :class:`~jitree.hal.allocator.Borrower`."""
        return _counts(self._words)

    @property
    def live(self) -> int:
        """See :class:`~jitree.hal.allocator.Borrower`."""
        counts = self.counts
        return counts[0] - counts[1] + counts[3] - counts[4]

    def limit(self, room: int) -> None:
        """See :class:`~jitree.hal.allocator.Borrower`."""
        self._words[_HANDLE_POOL.room] = room

    def stop(self) -> None:
        """Fast paths allocate no more: the device has another allocator now."""
        self._words[_HANDLE_POOL.queue] = 0

    def resume(self) -> None:
        """See :class:`~jitree.hal.allocator.Borrower`."""
        self._words[_HANDLE_POOL.queue] = self._queue

    def supply(self, size: int, memory_type: int) -> bool:
        """Lends blocks for a request, if there is none idle; whether it has."""
        capacity = size_class(size)
        is_pinned = self.allocator.is_pinned(memory_type)
        place = _FIRST_POOL + class_index(capacity) + (POOL_COUNT if is_pinned else 0)
        if not self._words[_HANDLE_POOL.queue] or (self._words[place] and not is_pinned):
            return False
        if self._words[place] and self.allocator.has_rested(self._table.i64[self._tick(place)]):
            return False
        most = self.allocator.most_lent
        batch = self._batches.get(place, _FIRST_BATCH)
        count = max(1, min(batch, _BATCH_BYTES // capacity, (most - self._lent) // capacity))
        if self._lent + count * capacity > most:
            self.trim()
            if self._lent + count * capacity > most:
                return False
        try:
            blocks = self.allocator.lend(capacity, count, memory_type)
            handles = self._table.reserve(len(blocks)).tolist()
        except ResourceExhaustedError:
            return False  # the caller asks for memory and says so, if there is none for that either
        self._batches[place] = min(2 * batch, _BATCH)
        self._publish(dict(zip(handles, blocks, strict=True)), place)
        return True

    def _publish(self, lent: dict[int, Block], place: int) -> None:
        """Makes entries of blocks, in front of those that a list has."""
        table = self._table
        self.blocks |= lent
        for handle, (address, capacity, _) in lent.items():
            self._lent += capacity
            word = (handle - table.base) >> 3
            table.i32[2 * word + _ENTRY.kind] = KIND_STORAGE
            table.i32[2 * word + _ENTRY.owner] = OWNER_CODE
            table.i32[2 * word + _ENTRY.access] = place - _FIRST_POOL
            table.i64[word + _ENTRY.address] = address
            table.i64[word + _ENTRY.link] = self._words[place]
            self._words[place] = handle

    def _tick(self, place: int) -> int:
        """The word of the tick of the first pinned storage of a list."""
        return ((self._words[place] - self._table.base) >> 3) + _ENTRY.parent

    def trim(self) -> None:
        """Gives idle blocks back."""
        table = self._table
        for place in range(_FIRST_POOL, _FIRST_POOL + 2 * POOL_COUNT):
            handle, self._words[place] = self._words[place], 0
            while handle:
                following = table.i64[((handle - table.base) >> 3) + _ENTRY.link]
                block = self.blocks.pop(handle)
                self._lent -= block[1]
                table.unreserve(handle)
                self.allocator.take_back(block[0])
                handle = following

    def close(self) -> None:
        """Gives idle blocks back and lends no more. What is still in use counts as freed."""
        self.stop()
        self._queue = 0
        self.trim()
        self._table = cast("HandleTable", Borrowed(self._table))
        for account in range(_ACCOUNTS):
            first = _FIRST_ACCOUNT + account * _ACCOUNT_WORDS
            self._words[first + 1] = self._words[first]


def _counts(words: array[int]) -> array[int]:
    return words[_FIRST_ACCOUNT : _FIRST_ACCOUNT + _ACCOUNTS * _ACCOUNT_WORDS]


def _forget(allocator: LendingAllocator, words: array[int]) -> None:
    allocator.forget(_counts(words))


class _Block(NamedTuple):
    """Arenas that were made together, a row each."""

    words: npt.NDArray[np.int64]
    address: int

    def arena(self, address: int) -> npt.NDArray[np.int64]:
        row: npt.NDArray[np.int64] = self.words[(address - self.address) // self.words.strides[0]]
        return row


class ArenaPool:
    """Memory of command buffers that fast paths record (RECORDING)."""

    def __init__(self, words: array[int]) -> None:
        self._words = words
        self._place = _HANDLE_POOL.arenas
        self._scale = 1
        self._expected = _ARENAS
        self._blocks: dict[int, _Block] = {}
        """The block that each arena lies in, by the arena's address."""
        self._size = 0
        """Bytes of all blocks."""

    def supply(self) -> bool:
        """Makes some if there is none left, and there is not too much; whether it has."""
        if self._words[self._place] or self._size >= _MOST_ARENA_BYTES:
            return False
        size = size_of(Recording) + sum(sections(self._scale).values())
        wanted = max(self._expected, len(self._blocks)) // self._scale
        count = min(wanted, (_MOST_ARENA_BYTES - self._size) // size)
        words = np.empty((max(1, count), size // 8), np.int64)  # written before they are read
        block = _Block(words, address_of(words))
        self._size += words.nbytes
        self._lay_out(block)
        self._blocks |= dict.fromkeys(range(block.address, block.address + words.nbytes, size), block)
        self._words[self._place] = block.address  # Ctrl-C may come before, and the block is not used then
        return True

    def expect(self, count: int) -> None:
        """The program records so many command buffers, as far as one can say."""
        self._expected = max(self._expected, count)

    def enlarge(self, recording: int) -> None:
        """What was recorded at an address did not fit: from now on there is more room."""
        arena = self._blocks[recording].arena(recording)
        if arena[_RECORDING.scale] != self._scale or self._scale == LARGEST_SCALE:
            return
        self._scale *= _GROWTH
        idle, self._words[self._place] = self._words[self._place], 0
        while idle:
            arena = self._blocks.pop(idle).arena(idle)
            self._size -= arena.nbytes
            idle = int(arena[_RECORDING.next])

    def give_back(self, recording: int) -> None:
        """An arena that is free again. A smaller one than are made now is not used any more."""
        arena = self._blocks[recording].arena(recording)
        if arena[_RECORDING.scale] == self._scale:
            arena[_RECORDING.next] = self._words[self._place]
            self._words[self._place] = recording
        else:
            del self._blocks[recording]
            self._size -= arena.nbytes

    def _lay_out(self, block: _Block) -> None:
        """Writes what each entry holds: they become a list, which goes on with those that there are."""
        words, head = block.words, _head(self._scale)
        addresses = block.address + words.strides[0] * np.arange(len(words))
        words[:, : head.shape[1]] = head[0] + head[1] * addresses[:, None]
        words[:-1, _RECORDING.next] = addresses[1:]
        words[-1, _RECORDING.next] = self._words[self._place]


@cache
def _head(scale: int) -> npt.NDArray[np.int64]:
    """How an arena begins: its words, and which of them count from its address on (1)."""
    first = size_of(Recording) // 8
    head = np.zeros((2, first + size_of(List) // 8), np.int64)
    head[0, _RECORDING.scale] = scale
    fields = {name: getattr(_RECORDING, name) for name in ("list", "slots", "kept", "pushed")} | {
        field: first + getattr(_LIST, field)
        for field in ("rows", "addresses", "lengths", "accesses", "constants", "data", "patches")
    }
    position = size_of(Recording)
    for name, size in sections(scale).items():
        head[:, fields[name]] = position, 1
        position += size
    return head
