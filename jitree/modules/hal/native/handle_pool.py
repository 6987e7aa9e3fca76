"""Fill a handle table's pools, and make Python objects of their entries."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import ref

import numpy as np

from jitree.base.finalizers import Borrowed, Finalizer
from jitree.codegen.record import size_of, words_of
from jitree.hal.buffer import Allocation, Buffer, BufferView
from jitree.hal.device import Device, fence_class, semaphore_class
from jitree.hal.local import executor
from jitree.hal.local.executor.calling import FUNCTION_TABLE, FUNCTION_TABLE_ADDRESS
from jitree.modules.hal.native import FREE, NEW_LIST, SWEEP
from jitree.modules.hal.native.layout import LARGEST_POOLED, MOST_SPENT, PROMISED, STAGED, HandlePoolRecord
from jitree.modules.hal.native.pools import ArenaPool, StoragePool
from jitree.regs.buffer import VmBuffer
from jitree.regs.layout import (
    KIND_BUFFER,
    KIND_FREE,
    KIND_LIST,
    KIND_STORAGE,
    LIST_CAPACITY,
    LIST_SLOT,
    OWNER_CODE,
    PLACE_SHIFT,
    Entry,
)
from jitree.regs.memory import address_of, local_memory

if TYPE_CHECKING:
    import numpy.typing as npt

    from jitree.codegen import image
    from jitree.hal.allocator import Allocator
    from jitree.hal.command_buffer import CommandBuffer
    from jitree.hal.device import Device
    from jitree.hal.fence import Fence
    from jitree.hal.local.failure import Failure
    from jitree.hal.timeline_record import KnownLists, SharedTimeline
    from jitree.regs.handles import HandleTable
    from jitree.regs.list import VmList

_ALIGNMENT: Final = 64
_BLANK_BATCH: Final = 128
"""Entries that a table reserves at a time."""
_LIST_BATCH: Final = 16
"""Lists that machine code gets at a time."""
_KINDS: Final = (
    "device", "allocator", "buffer", "buffer_view", "fence", "command_buffer", "executable",
    "pipeline_layout",
)  # fmt: skip
_ENTRY: Final = words_of(Entry)
_HANDLE_POOL: Final = words_of(HandlePoolRecord)

_TYPE_MASK: Final = (1 << PLACE_SHIFT) - 1

_Free = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)


class HandlePool:
    """The HandlePoolRecord record of a table; implements :class:`~jitree.regs.memory.ObjectPool`.

    Used by the thread that holds the context.
    """

    def __init__(self, table: HandleTable, device: Device | None, code: image.Image) -> None:
        """``device``: whose allocator fills the pools of memory; None = fast paths allocate nothing."""
        self._table: HandleTable = table
        self._code = code
        self._words = array("q", bytes(size_of(HandlePoolRecord)))
        self.record: int = self._words.buffer_info()[0]
        self.sweep: int = code.addresses[SWEEP]
        self.new_list: int = code.addresses[NEW_LIST]
        self._slots: dict[int, array[int]] = {}
        """Of lists that machine code makes, by address."""
        self._free: Callable[[int, int], None] = _Free(code.addresses[FREE])
        self._kinds = {name: table.ref_types.lookup(f"hal.{name}") for name in _KINDS}
        self._set(**self._kinds, extension=table.extension, functions=FUNCTION_TABLE_ADDRESS)
        self._used: list[object] = [FUNCTION_TABLE]
        """By machine code, also in calls that are made when Python ends and modules have lost their names."""
        self._makers: dict[int, Callable[[HandlePool, int], object]] = {
            self._kinds["allocator"]: HandlePool._make_allocator,
            self._kinds["buffer"]: HandlePool._make_buffer,
            self._kinds["buffer_view"]: HandlePool._make_view,
            self._kinds["fence"]: HandlePool._make_fence,
            KIND_BUFFER: HandlePool._make_memory,
        }
        """Functions, not methods of this object: it must not refer to itself."""
        self._allocations: dict[int, ref[Allocation]] = {}
        """By storage. What is gone stays until that is used again: to forget it at once takes Python code,
        which Ctrl-C is lost in."""
        self._promised = 0
        self._local: np.ndarray[Any, Any] | None = None
        self._arenas = ArenaPool(self._words)
        self._device = device
        self._timeline: SharedTimeline | None = None
        self._storage: StoragePool | None = None
        self._known_lists: KnownLists | None = None
        if device is not None:
            self._storage = StoragePool.of(device, table, self._words)
            timeline = self._timeline = device.shared_timeline
            if timeline is not None:
                self._known_lists = timeline.known_lists()
                self._set(known_lists=self._known_lists.address)

    def _set(self, **fields: int) -> None:
        for field, value in fields.items():
            self._words[getattr(_HANDLE_POOL, field)] = value

    @property
    def live_count(self) -> int:
        """As :attr:`ObjectPool.live_count`."""
        self.settle()
        return self._words[_HANDLE_POOL.live]

    @property
    def promised(self) -> int:
        """As :attr:`ObjectPool.promised`."""
        return self._promised

    def withdraw(self) -> None:
        """As :meth:`ObjectPool.withdraw`."""
        self.settle()
        while self._words[_HANDLE_POOL.blank]:
            address = self._words[_HANDLE_POOL.blank]
            self._words[_HANDLE_POOL.blank] = self._following(address)
            self._table.unreserve(address)
            self._promised -= 1
        self._withdraw_lists()

    def _withdraw_lists(self) -> None:
        while self._words[_HANDLE_POOL.lists]:
            address = self._words[_HANDLE_POOL.lists]
            self._words[_HANDLE_POOL.lists] = self._following(address)
            del self._slots[self._table.extent(address)[0]]
            self._table.unreserve(address)
            self._promised -= 1

    # -- what pools need -------------------------------------------------------------------------------

    def supply(self) -> bool:
        """Refills what is empty, and tells whether anything was: a fast path gave up, for whatever reason.
        One blank entry is too few: a buffer with its view takes two, and gives the first back."""
        words = self._words
        last = words[_HANDLE_POOL.blank]
        has_few = not (last and self._following(last))
        lacks = has_few or not words[_HANDLE_POOL.execute]
        if has_few and self._table.room >= 2 * _BLANK_BATCH:
            blank = self._table.reserve(_BLANK_BATCH)
            self._table.write(blank, {"owner": OWNER_CODE, "link": np.append(blank[1:], last)})
            words[_HANDLE_POOL.blank] = int(blank[0])
            self._promised += _BLANK_BATCH
        has_room = self._arenas.supply()
        if not words[_HANDLE_POOL.execute]:
            native = executor.native_executor()
            if native is not None:
                self._used.append(native)
                self._set(
                    execute=native.execute_address,
                    estimate=native.estimate_address,
                    clock=native.clock_address,
                    most_spent=MOST_SPENT,
                )
        return has_room or (lacks and bool(words[_HANDLE_POOL.blank] and words[_HANDLE_POOL.execute]))

    def supply_lists(self) -> bool:
        """See :meth:`ObjectPool.supply_lists`. Where memory or objects are limited Python makes each."""
        table, words = self._table, self._words
        bounds = table.bounds
        if bounds.objects is not None or bounds.limited_charge is not None:
            return False
        if words[_HANDLE_POOL.lists] or table.room < _LIST_BATCH:
            return bool(words[_HANDLE_POOL.lists])
        for handle in table.reserve(_LIST_BATCH).tolist():
            slots = array("q", bytes(LIST_CAPACITY * LIST_SLOT.size))
            address = slots.buffer_info()[0]
            self._slots[address] = slots
            table.set_extent(handle, address, 0)
            table.set_word(handle, "rank", LIST_CAPACITY)
            table.set_word(handle, "owner", OWNER_CODE)
            table.set_word(handle, "link", words[_HANDLE_POOL.lists])
            words[_HANDLE_POOL.lists] = handle
            self._promised += 1
        return True

    def expect(self, command_buffers: int) -> None:
        """So many may be recorded before Python is asked for the next."""
        self._arenas.expect(command_buffers)

    def supply_storage(self, size: int, memory_type: int) -> bool:
        """Adds memory of a program's size, and says if none was left; what the program has dropped is free by
        then."""
        self._take_back()
        if self._storage is None or not 0 <= size <= LARGEST_POOLED:
            return False
        return self._storage.supply(size, memory_type)

    def supply_argument(self, size: int) -> None:
        """All that a copy of so many bytes of the host takes."""
        self.supply()
        self.supply_storage(size, 0)
        if self._known_lists is not None:
            self._known_lists.learn_transfers()
            self.supply_storage(size, STAGED)

    @property
    def has_timeline(self) -> bool:
        """Whether the pools have the memory of a device that works by itself."""
        return self._timeline is not None

    def serves(self, device: Device) -> bool:
        """Whether the pools have the memory of a device."""
        return self._storage is not None and device is self._device

    def learn_transfers(self, device: Device) -> None:
        """As :meth:`learn`, for queue operations that are single transfers."""
        if self._known_lists is not None and device is self._device:
            self._known_lists.learn_transfers()

    def learn(self, commands: CommandBuffer) -> None:
        """From now on fast paths submit lists like this one to the device."""
        if self._known_lists is not None:
            from jitree.hal.command_list import ListCommandBuffer

            self._known_lists.learn(commands)
            if isinstance(commands, ListCommandBuffer) and commands.commands.data:
                self.supply_storage(len(commands.commands.data), STAGED)

    def supply_local_memory(self, size: int, threads: int) -> None:
        """Supplies local memory of ``size`` bytes for each thread."""
        total = (size + _ALIGNMENT - 1 & -_ALIGNMENT) * threads
        if total > self._words[_HANDLE_POOL.local_size] and not self._words[_HANDLE_POOL.busy]:
            self._local = local_memory(total)
            self._set(local_memory=address_of(self._local), local_size=total)

    def take_failure(self) -> Failure | None:
        """How the last execution by machine code failed, given once."""
        words = self._words
        if not words[_HANDLE_POOL.failure]:
            return None
        from jitree.hal.local.failure import Failure

        failure = Failure(*words[_HANDLE_POOL.failure : _HANDLE_POOL.failure + len(Failure._fields)])
        words[_HANDLE_POOL.failure] = 0
        return failure

    def _following(self, blank: int) -> int:
        """The blank entry after one; 0 after the last."""
        return self._table.i64[((blank - self._table.base) >> 3) + _ENTRY.link]

    def _take_back(self) -> None:
        """Frees what Python has dropped, too."""
        if self._table.deferred or self._table.owed:
            self._table.drain_deferred()
        self.settle()

    def trim(self) -> None:
        """Gives idle memory back to its allocator."""
        self._take_back()
        self._withdraw_lists()
        if self._known_lists is not None:
            self._known_lists.clear()
        if self._storage is not None:
            self._storage.trim()

    def close(self) -> None:
        """The context is closed: fast paths allocate no more. What Python still holds stays, and with it the
        table, which from now on owns this object without being owned: both go with the last array, and not
        when circles are looked for."""
        self._take_back()
        if self._known_lists is not None:
            self._known_lists.clear()
        if self._storage is not None:
            self._storage.close()
        self._table = cast("HandleTable", Borrowed(self._table))

    # -- from entries to objects -----------------------------------------------------------------------

    def free(self, owed: list[int], place: int) -> None:
        """See :meth:`ObjectPool.free`. An interrupt comes after the call, not before it."""
        address = owed[place]
        del owed[place]
        self._free(self.record, address)
        if self._words[_HANDLE_POOL.released]:
            self._table.drain(self._words, _HANDLE_POOL.released)

    def drop(self, owed: list[int], place: int) -> None:
        """See :meth:`ObjectPool.drop`. Machine code frees it when a pool is empty."""
        address, words, dead = owed[place], self._words, _HANDLE_POOL.dead
        links, link = self._table.i64, ((address - self._table.base) >> 3) + _ENTRY.link
        # One line: a function that traces lines may call the session, which frees the dead.
        links[link], words[dead], owed[place : place + 1] = words[dead], address, ()

    def drop_all(
        self,
        dropped: npt.NDArray[np.int64],
        links: npt.NDArray[np.int64],
        owed: list[int],
        taken: slice,
        rest: list[int],
    ) -> None:
        """See :meth:`ObjectPool.drop_all`. What signals interrupt may call the session, too, which frees the
        dead: the last line looks at them, and calls nothing."""
        numbers, following = dropped - self._table.base >> 6, np.roll(dropped, -1)
        words, dead, first = self._words, _HANDLE_POOL.dead, int(dropped[0])
        following[-1], links[numbers], words[dead], owed[taken] = words[dead], following, first, rest

    def settle(self) -> None:
        """Frees what was dropped."""
        if self._words[_HANDLE_POOL.dead]:
            self._free(self.record, 0)
        if self._words[_HANDLE_POOL.released]:
            self._table.drain(self._words, _HANDLE_POOL.released)

    def make(self, table: HandleTable, address: int) -> object:
        """See :meth:`ObjectPool.make`."""
        word = (address - table.base) >> 3
        kind = table.i32[2 * word]
        if kind == KIND_FREE:
            return None
        if kind == KIND_LIST:
            return self._make_list(table, address)
        if kind == self._kinds["command_buffer"]:
            return self._make_command_buffer(table, address)
        parent = table.i64[word + _ENTRY.parent]
        obj = self._makers[kind](self, word)
        is_as_published = parent != 0 and kind in (self._kinds["buffer"], self._kinds["buffer_view"])
        take = table.take_over if is_as_published else table.adopt
        self._hand_over(table, address, partial(take, address, obj, (parent,)))
        return obj

    def _hand_over(self, table: HandleTable, address: int, take: Callable[[], None]) -> None:
        """An entry becomes Python's. What it keeps is its own before, the object's after: Ctrl-C may come
        where ``take`` begins or returns."""
        try:
            take()
        finally:
            if table.i32[((address - table.base) >> 2) + _ENTRY.owner] != OWNER_CODE:
                self._words[_HANDLE_POOL.live] -= 1
                self._promised -= 1

    def allocation_of(self, storage: int, memory_type: int, usage: int) -> Allocation:
        """The memory of storage that is in use; the object keeps the storage."""
        table = self._table
        known = self._allocations.get(storage)
        allocation = None if known is None else known()
        if allocation is None:
            assert self._storage is not None
            word, drop = (storage - table.base) >> 3, partial(table.deferred.append, (storage,))
            length = table.i64[word + _ENTRY.length]
            allocation = self._storage.allocator.allocation_over(
                self._storage.blocks[storage], length, memory_type, usage
            )
            kept = Finalizer(None)  # ends when weak references give nothing: `__del__` comes before that
            allocation.action = partial(bool, kept)
            table.i32[2 * word + _ENTRY.count] += 1  # no call from here to where it is known what drops it
            kept.action = drop
            self._allocations[storage] = ref(allocation)
        return allocation

    def _make_buffer(self, word: int) -> Buffer:
        table = self._table
        parent = table.i64[word + _ENTRY.parent]
        start, length = table.i64[word + _ENTRY.address], table.i64[word + _ENTRY.length]
        if not parent:
            return self._make_lent(word, start, length)
        above = (parent - table.base) >> 3
        if table.i32[2 * above] != KIND_STORAGE:
            source = table.object(parent)
            whole = source.buffer if isinstance(source, BufferView) else cast(Buffer, source)
            first, *_ = whole.published()
            offset = start - first if start else table.i64[word + (table.extension >> 3)]
            return whole.subspan(offset, length)
        memory_type = table.i32[2 * word + _ENTRY.access] & _TYPE_MASK
        allocation = self.allocation_of(parent, memory_type, table.i32[2 * word + _ENTRY.usage])
        return Buffer(allocation, start - table.i64[above + _ENTRY.address], length)

    def _make_lent(self, word: int, address: int, length: int) -> Buffer:
        """Memory of another library; the call that it was lent for has told of its owner."""
        owner = ctypes.cast(self._table.i64[word + (self._table.extension >> 3)], ctypes.py_object).value
        assert self._device is not None
        exchange = self._device.array_exchange
        assert exchange is not None
        return exchange.import_memory(address, length, owner)

    def memory_of(self, handle: int) -> object:
        """What has to live as long as commands that use a handle: an executable, or the owner of memory."""
        table = self._table
        word = (handle - table.base) >> 3
        if table.i32[2 * word] == KIND_STORAGE:
            memory_type, usage = (
                table.i32[2 * word + _ENTRY.element_type],
                table.i32[2 * word + _ENTRY.encoding],
            )
            return self.allocation_of(handle, memory_type, usage)
        obj = table.object(handle)
        if isinstance(obj, BufferView):
            obj = obj.buffer
        return obj.allocation if isinstance(obj, Buffer) else obj

    def _make_memory(self, word: int) -> VmBuffer:
        source = cast(Buffer, self._table.object(self._table.i64[word + _ENTRY.parent]))
        return VmBuffer.alias(source.host_array())

    def _make_view(self, word: int) -> BufferView:
        table = self._table
        rank = table.i32[2 * word + _ENTRY.rank]
        shape = word + (table.extension >> 3)
        return BufferView(
            self._buffer_of(table.i64[word + _ENTRY.parent]),
            tuple(table.i64[shape : shape + rank]),
            table.i32[2 * word + _ENTRY.element_type],
            table.i32[2 * word + _ENTRY.encoding],
        )

    def _buffer_of(self, handle: int) -> Buffer:
        """The buffer of a view. One that nothing else refers to goes with the view's entry, and is never
        asked for again: it gets an object, which its entry is not told of."""
        table, word = self._table, (handle - self._table.base) >> 3
        owner, count = table.i32[2 * word + _ENTRY.owner], table.i32[2 * word + _ENTRY.count]
        if owner == OWNER_CODE and count == 1 and table.i64[word + _ENTRY.parent]:
            return self._make_buffer(word)
        return cast(Buffer, table.object(handle))

    def _make_list(self, table: HandleTable, address: int) -> VmList:
        """Entry and slots stay as they are: machine code may be using them. The list keeps its table, which
        the pool of a closed context does not."""
        from jitree.regs.list import VmList

        word = (address - table.base) >> 3
        element_type, length = table.i32[2 * word + _ENTRY.element_type], table.i64[word + _ENTRY.length]
        slots = table.i64[word + _ENTRY.address]
        made = VmList.over(self._slots[slots], element_type, length, table, address)
        made.hold()
        self._hand_over(table, address, partial(table.take_over, address, made))
        del self._slots[slots]
        return made

    def _make_fence(self, word: int) -> Fence:
        make = fence_class()
        state, timeline = self._table.i64[word + _ENTRY.length], self._timeline
        if timeline is None or self._device is None:
            return make(((semaphore_class()(state), 1),))
        if state != PROMISED:
            return make(((self._device.create_semaphore(state), 1),))
        return make(((timeline.promised(self._table.i64[word + _ENTRY.address]), 1),))

    def _make_allocator(self, word: int) -> Allocator:
        device = cast("Device", self._table.object(self._table.i64[word + _ENTRY.parent]))
        return device.device_allocator

    def _make_command_buffer(self, table: HandleTable, address: int) -> CommandBuffer:
        """The recording's handles are dropped when it is no more machine code's."""
        from jitree.modules.hal.native.recordings import kept_handles, restore  # for what goes on in Python

        recording = table.i64[((address - table.base) >> 3) + _ENTRY.address]
        handles = kept_handles(recording)
        commands = restore(recording, handles, table, self.memory_of, self._device)
        self._hand_over(table, address, partial(table.adopt, address, commands, handles))
        if commands.recording:
            self._arenas.enlarge(recording)
        self._arenas.give_back(recording)
        return commands
