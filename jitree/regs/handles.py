"""Handles: counted references to Python objects that machine code can copy, move and drop.

A handle is the address of a 64-byte entry (:data:`jitree.regs.layout.ENTRY`) in one region that never moves.
The entry counts the references that registers, globals and lists hold; as long as it is not free the table
keeps the object alive. Machine code counts by itself (:mod:`jitree.regs.access`); entries whose count it
brought to zero it links into the list of STATE.released, which :meth:`HandleTable.drain` frees. Python counts
by the same rule in views of the table, an eighth of what records take; a test compares both.

Machine code can make objects as well (:class:`ObjectPool`): such an entry has no Python object until
Python asks for it, and goes back to where it came from when its count falls to zero.

A table is touched only by the thread that holds its context's lock. What other threads drop (a list that
the garbage collector finds) waits in ``deferred``. Ctrl-C comes where a call begins or returns and where a
loop turns, not between statements that must happen together. So a reference goes from one slot to another,
or from a slot to ``owed``, in statements without a call. What is owed stays there until statements without a
call drop it: wherever an interrupt comes, no reference is lost and none is dropped twice.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from jitree.base.finalizers import SharedWeakSet
from jitree.base.records import NamedTuple
from jitree.codegen.record import words_of
from jitree.errors import InternalError, ResourceExhaustedError
from jitree.regs.layout import (
    COUNT_UNLIMITED,
    ENTRY,
    EXTENSION_SIZE,
    KIND_FREE,
    KIND_LIST,
    LINK_POOLED,
    OWNER_PYTHON,
    STATE_WORDS,
    Entry,
)
from jitree.regs.memory import UNBOUNDED, Bounds, MemoryBlock, release_last
from jitree.regs.ref_types import RefTypes

if TYPE_CHECKING:
    import numpy.typing as npt

    from jitree.base.events import EventReader
    from jitree.regs.memory import Connected, ObjectPool

CAPACITY: Final = 1 << 20
"""Live objects per table. Untouched entries cost address space only."""

_ENTRY: Final = words_of(Entry)
_ENTRY_WORDS: Final = ENTRY.size // 4
_POISON: Final = bytes(ENTRY.size)
_BEHIND: Final = slice(1 << 62, None)
"""Where a list goes on."""
_FEW: Final = 8
"""References that are quicker dropped one by one."""
_WITHIN_EACH: Final = 8
"""Calls that may come while a reference is dropped: finalizers make fewer, who traces lines more."""
assert KIND_FREE == 0


class _Traits(NamedTuple):
    """What the table needs to know of a class."""

    kind: int
    fill: Callable[[Any, HandleTable, int], None] | None
    """``fill_entry(table, address)`` publishes the object's fields in its new entry."""
    leave: Callable[[Any, HandleTable], None] | None
    """``leave_entry(table)`` tells the object that its entry was freed."""


_Make: TypeAlias = "Callable[[HandleTable, int], object]"


class HandleTable:
    """The handles of one context.

    ``base`` is the region's address; ``i32`` and ``i64`` view it. The entry of handle ``h`` starts at
    ``(h - base) >> 2`` in ``i32``.
    """

    __slots__ = (
        "__weakref__", "_addresses", "_aliases", "_bytes", "_entries", "_free", "_is_draining",
        "_is_releasing", "_later", "_memory", "_objects", "_traits", "_within", "base", "bounds", "capacity",
        "deferred", "extension", "handle_pool", "i32", "i64", "is_halted", "machines", "make_pool", "owed",
        "readers", "ref_types", "told",
    )  # fmt: skip

    def __init__(self, ref_types: RefTypes, capacity: int = CAPACITY, bounds: Bounds = UNBOUNDED) -> None:
        self.ref_types = ref_types
        self.bounds = bounds
        self.capacity = capacity
        self._memory = MemoryBlock(capacity * (ENTRY.size + EXTENSION_SIZE))
        self.extension = capacity * ENTRY.size
        """Bytes from an entry to its extension."""
        self.base = self._memory.address
        self.i32 = self._memory.i32
        self.i64 = self._memory.i64
        self._bytes = self._memory.array.data
        entries = self._memory.array[: self.extension].reshape(-1, ENTRY.size)
        self._entries: dict[str, npt.NDArray[Any]] = {
            "i32": entries.view(np.int32),
            "i64": entries.view(np.int64),
        }
        """A row for each entry, by type of the field."""
        self._objects: list[object] = []
        self._addresses: dict[int, int] = {}
        self._aliases: set[int] = set()
        """Further handles of objects that have one: machine code made them before it knew."""
        self._free: list[int] = []
        self._later: dict[int, _Make] = {}
        """By number: what makes the objects of :meth:`wrap_later` which have not been needed yet."""
        self._traits: dict[type, _Traits] = {}
        self.deferred: deque[Iterable[int]] = deque()
        self._is_draining = self._is_releasing = False
        self._within = 0
        """Counts calls that came while references were dropped. A function that traces may call the session
        at each line: what those calls owe comes faster than it goes, and the rest waits for the next call."""
        self.owed: list[int] = []
        """References that :meth:`release_owed` drops; if an interrupt comes before, the next such call."""
        self.is_halted: Callable[[], bool] = bool
        """Whether what runs on machines of the table is to end, asked when their time is over."""
        self.readers: tuple[EventReader, ...] = ()
        """Those of calls, and of imports by Python (:mod:`jitree.base.events`)."""
        self.told = array("q", (0,))
        """Whether readers are told of calls by machine code: one word."""
        self.handle_pool: ObjectPool | None = None
        self.machines: SharedWeakSet[Connected] = SharedWeakSet()
        """Whose state blocks refer to ``handle_pool``."""
        self.make_pool: Callable[[], None] | None = None
        """Connects one, where its code is there."""

    def readers_changed(self) -> None:
        """See :class:`jitree.base.events.Source`. Who makes calls looks at the readers."""
        self.told[0] = any(reader.reads_calls for reader in self.readers)

    @property
    def live_count(self) -> int:
        """Objects that some register, global or list refers to."""
        handle_pool = self.handle_pool
        return self._known_count + (0 if handle_pool is None else handle_pool.live_count)

    def count(self, address: int) -> int:
        """References to a live handle."""
        return self.i32[((address - self.base) >> 2) + _ENTRY.count]

    def kind(self, address: int) -> int:
        """The type number of the object of a handle, KIND_FREE for null."""
        return self.i32[((address - self.base) >> 2) + _ENTRY.kind] if address else KIND_FREE

    def wrap(self, obj: object) -> int:
        """A new reference to an object; 0 for None. The same object always has the same handle.

        Its class may have ``fill_entry(table, address)``, which publishes fields in the new entry, and
        ``leave_entry(table)``, called when the entry is freed.

        INVALID_ARGUMENT if its class is no ref type, RESOURCE_EXHAUSTED when the table is full.
        """
        if obj is None:
            return 0
        key = id(obj)
        address = self._addresses.get(key)
        if address is not None:
            return self.retain(address)
        traits = self._traits.get(type(obj)) or self._learn(obj)
        number = self._take_free()
        address = self.base + number * ENTRY.size
        word = number * _ENTRY_WORDS
        self._objects[number] = obj
        self.i32[word + _ENTRY.kind] = traits.kind
        self.i32[word + _ENTRY.count] = 1
        self._addresses[key] = address
        if traits.fill is not None:
            try:
                traits.fill(obj, self, address)
            except BaseException:
                self.release(address)
                raise
        return address

    def _take_free(self) -> int:
        """Takes a free entry, which the caller uses before it calls anything."""
        if self.bounds.objects is not None:
            self._require_room(self.bounds.objects)
        free, objects = self._free, self._objects
        if not free:
            self._require_entries(1)  # of a full table by taking some from machine code: not behind its end
        if not free:
            free[_BEHIND], objects[_BEHIND] = (len(objects),), (None,)
        number, free[-1:] = free[-1], ()
        return number

    def put_object(self, slots: memoryview, index: int, obj: object) -> None:
        """Puts a reference to an object into a slot."""
        handle = self.wrap(obj)
        old = slots[index]
        slots[index] = handle
        if old:
            self.owed += (old,)
            self.release_owed()

    def put(self, slots: memoryview, index: int, handle: int) -> None:
        """Puts another reference into a slot, in place of the one that is there."""
        old = slots[index]
        if handle:
            word = ((handle - self.base) >> 2) + _ENTRY.count
            if self.i32[word] < COUNT_UNLIMITED:
                self.i32[word] += 1
        slots[index] = handle
        if old:
            self.owed += (old,)
            self.release_owed()

    def clear(self, slots: memoryview, indices: Sequence[int]) -> None:
        """Drops what slots refer to, which leaves null."""
        for index in indices:
            old = slots[index]
            slots[index] = 0
            if old:
                self.owed += (old,)
        if self.owed:
            self.release_owed()

    def pass_on(self, source: memoryview, at: int, moves: int, slots: memoryview, index: int) -> None:
        """Puts what another slot refers to into a slot. A reference that moves leaves null."""
        handle = source[at]
        if not moves:
            return self.put(slots, index, handle)
        source[at] = 0
        old = slots[index]
        slots[index] = handle
        if old:
            self.owed += (old,)
            self.release_owed()
        return None

    def wrap_later(self, count: int, make: _Make, fields: dict[str, npt.ArrayLike]) -> npt.NDArray[np.int64]:
        """Makes references to ``count`` objects whose entries hold ``fields``. They have no ``leave_entry``;
        machine code needs no more than the fields: arrays, or what all have. ``make`` makes one when Python
        asks for it, given the table and the handle.

        RESOURCE_EXHAUSTED when the table is full.
        """
        if self.bounds.objects is not None:
            self._require_room(self.bounds.objects, count)
        handles = self.reserve(count)
        numbers = self.write(handles, {"count": 1} | fields)
        self._later.update(dict.fromkeys(numbers.tolist(), make))
        return handles

    def reserve_later(self, make: _Make) -> int:
        """As :meth:`wrap_later`, one handle, whose entry machine code writes."""
        number = self._take_free()
        self._later[number] = make
        return self.base + number * ENTRY.size

    def write(
        self, handles: npt.NDArray[np.int64], fields: dict[str, npt.ArrayLike]
    ) -> npt.NDArray[np.int64]:
        """Writes fields of reserved entries: arrays, or what all have. Gives the entries' numbers."""
        numbers: npt.NDArray[np.int64] = handles - self.base >> 6
        for field, values in fields.items():
            self._entries[ENTRY.kinds[field]][numbers, getattr(_ENTRY, field)] = values
        return numbers

    def _require_entries(self, count: int) -> None:
        if count > self.capacity - len(self._objects) + len(self._free) and self.handle_pool is not None:
            self.handle_pool.withdraw()
        if count > self.capacity - len(self._objects) + len(self._free):
            raise ResourceExhaustedError(f"more than {self.capacity} objects are referenced by one context")

    @property
    def _known_count(self) -> int:
        """Counts referenced objects that Python has seen."""
        return len(self._addresses) + len(self._aliases) + len(self._later)

    def _require_room(self, most: int, count: int = 1) -> None:
        """Raises RESOURCE_EXHAUSTED where ``count`` more objects exceed the bounds. What machine code may
        make by itself counts."""
        promised = 0 if self.handle_pool is None else self.handle_pool.promised
        if self._known_count + promised + count <= most:
            return
        self.drain_deferred()
        if self.handle_pool is not None:
            self.handle_pool.withdraw()
        if self.live_count + count > most:
            raise ResourceExhaustedError(
                f"{self.live_count} objects are referenced by registers, globals and lists of a context, and "
                f"{count} more needed; there may be {most} (the limit on handles)"
            )

    @property
    def room(self) -> int:
        """Objects that may still be added."""
        room = self.capacity - len(self._objects) + len(self._free)
        most = self.bounds.objects
        if most is None:
            return room
        promised = 0 if self.handle_pool is None else self.handle_pool.promised
        return min(room, most - self._known_count - promised)

    def reserve(self, count: int) -> npt.NDArray[np.int64]:
        """Addresses of free entries for machine code, until :meth:`adopt` or :meth:`unreserve`.

        RESOURCE_EXHAUSTED when the table is full.
        """
        self._require_entries(count)
        taken = slice(-count if count else _BEHIND.start, None)
        known, self._free[taken] = self._free[taken], ()
        unused = count - len(known)
        first, self._objects[_BEHIND] = len(self._objects), [None] * unused
        numbers = np.arange(first - len(known), first + unused, dtype=np.int64)
        numbers[: len(known)] = known
        return self.base + ENTRY.size * numbers

    def adopt(self, address: int, obj: object, kept: Sequence[int] = ()) -> None:
        """Turns an entry of machine code's object into a Python object's. It keeps its references. The
        references that it ``kept`` are dropped."""
        word = (address - self.base) >> 2
        traits = self._traits.get(type(obj)) or self._learn(obj)
        count = self.i32[word + _ENTRY.count]
        start, key = address - self.base, id(obj)
        self._bytes[start : start + ENTRY.size] = _POISON
        self.i32[word + _ENTRY.kind] = traits.kind
        self.i32[word + _ENTRY.count] = count
        self._objects[start >> 6] = obj
        if key in self._addresses:
            self._aliases |= {address}
        else:
            self._addresses[key] = address
        self.owed += kept
        if traits.fill is not None:
            try:
                traits.fill(obj, self, address)
            except BaseException:  # Ctrl-C; programs may go on to use the entry
                traits.fill(obj, self, address)
                raise
        if self.owed:
            self.release_owed()

    def take_over(self, address: int, obj: Any, kept: Sequence[int] = ()) -> None:
        """As :meth:`adopt`, where entry and slots are as the object publishes them."""
        word, key = (address - self.base) >> 2, id(obj)
        _ = self._traits.get(type(obj)) or self._learn(obj)
        addresses, objects, owners = self._addresses, self._objects, self.i32
        if key in addresses:
            self._aliases |= {address}
            addresses = {}
        # No call from here on, for Ctrl-C; what says whose it is in one line, for debuggers.
        number, owner = word // _ENTRY_WORDS, word + _ENTRY.owner
        objects[number], addresses[key], owners[owner] = obj, address, OWNER_PYTHON
        link, parent = (word >> 1) + _ENTRY.link, (word >> 1) + _ENTRY.parent
        self.i64[link], self.i64[parent], self.owed[_BEHIND] = 0, 0, kept
        if self.i32[word + _ENTRY.kind] == KIND_LIST and obj.held is not None:
            obj.held.words = obj.words
        if self.owed:
            self.release_owed()

    def unreserve(self, address: int) -> None:
        """Takes back a reserved entry that nothing refers to."""
        start = address - self.base
        self._bytes[start : start + ENTRY.size] = _POISON
        self._objects[start >> 6] = None
        self._free += (start >> 6,)

    def connect(self, handle_pool: ObjectPool) -> None:
        """Lets machine code make objects."""
        self.handle_pool = handle_pool
        for machine in self.machines:
            machine.connect(handle_pool)

    def supply_lists(self) -> bool:
        """Machine code has asked Python for a list; whether it can make the next ones itself."""
        if self.handle_pool is None and self.make_pool is not None:
            self.make_pool()
        return self.handle_pool is not None and self.handle_pool.supply_lists()

    def _learn(self, obj: object) -> _Traits:
        cls = type(obj)
        kind = self.ref_types.id_of(obj)
        traits = _Traits._make((kind, getattr(cls, "fill_entry", None), getattr(cls, "leave_entry", None)))
        self._traits[cls] = traits
        return traits

    def retain(self, address: int) -> int:
        """Adds a reference and returns the handle."""
        if address:
            word = ((address - self.base) >> 2) + _ENTRY.count
            if self.i32[word] < COUNT_UNLIMITED:
                self.i32[word] += 1
        return address

    def release(self, address: int) -> None:
        """Drops a reference; the last one frees the entry and lets go of the object."""
        self.owed += (address,)
        self.release_owed()

    def release_all(self, addresses: Sequence[int]) -> None:
        """Drops one reference of each handle; nulls are skipped."""
        self.owed += addresses
        self.release_owed()

    def release_owed(self) -> None:
        """Drops what is owed. Of many, what goes with it goes at once.

        An object that dies here may have a finalizer that calls the session: what such a call owes goes to
        the end of the list, and is dropped after it.
        """
        if self._is_releasing:
            self._within += 1
            return
        self._is_releasing = True
        try:
            owed, i32 = self.owed, self.i32
            most = self._within + _WITHIN_EACH * (len(owed) + _FEW)
            if len(owed) > _FEW:
                release_last(owed, self.base, self._entries, self.handle_pool)
            while owed and self._within < most:
                place = len(owed) - 1
                address = owed[place]
                word = (address - self.base) >> 2
                if not address:
                    del owed[place]
                elif i32[word + _ENTRY.count] > 1:
                    at, behind = word + _ENTRY.count, place + 1
                    i32[at], owed[place:behind] = i32[at] - (i32[at] < COUNT_UNLIMITED), ()
                elif i32[word + _ENTRY.owner] == OWNER_PYTHON:
                    number = (address - self.base) >> 6
                    obj = self._objects[number]
                    key, traits = id(obj), self._traits.get(type(obj))
                    if traits is not None and traits.leave is not None:
                        traits.leave(obj, self)
                    if obj is None and number in self._later:
                        del self._later[number]
                    elif address in self._aliases:
                        self._aliases -= {address}
                    elif key in self._addresses and self._addresses[key] == address:
                        del self._addresses[key]
                    elif obj is None:
                        del owed[place]
                        raise InternalError(f"reference of a freed object dropped (handle {number})")
                    # All zero is the poison: checks refuse a stale handle, of KIND_FREE and length 0.
                    self._bytes[address - self.base : address - self.base + ENTRY.size] = _POISON
                    objects, free, behind = self._objects, self._free, place + 1
                    objects[number], free[_BEHIND], owed[place:behind] = None, (number,), ()
                else:
                    assert self.handle_pool is not None
                    i32[word + _ENTRY.count] = 0
                    if self.i64[(word >> 1) + _ENTRY.link] == LINK_POOLED:
                        self.handle_pool.drop(owed, place)
                    else:
                        self.handle_pool.free(owed, place)
        finally:
            self._is_releasing = False
        if self.deferred and not self._is_draining:
            self.drain_deferred()

    def drain(self, words: memoryview | array[int], at: Any = STATE_WORDS.released) -> None:
        """Frees the entries that machine code released, a list that begins at a word.

        Must run before anything else happens to the table after machine code ran.
        """
        while words[at]:
            word = (words[at] - self.base) >> 3
            self.i32[2 * word + _ENTRY.count] = 1
            self.owed[_BEHIND], words[at] = (words[at],), self.i64[word + _ENTRY.link]
        if not self._is_releasing:  # else it is a list's end, or in a call that drops more
            self.release_owed()

    def drain_deferred(self) -> None:
        """Drops the references that objects held which died outside the table's control. What those let go of
        in turn waits, too: lists in lists may be deeper than Python's stack."""
        if self._is_draining:
            self._within += 1
            return
        self._is_draining = True
        try:
            if self.owed:
                self.release_owed()
            most = self._within + _WITHIN_EACH * (len(self.deferred) + _FEW)
            while self.deferred and self._within < most:
                handles = [*self.deferred[0]]
                del self.deferred[0]
                self.owed += handles
                self.release_owed()
        finally:
            self._is_draining = False

    def address_of(self, obj: object) -> int:
        """The address of an object's entry, 0 without one."""
        return self._addresses.get(id(obj), 0)

    def set_extent(self, address: int, data: int, length: int) -> None:
        """Publishes the address and length of an object's data in its entry."""
        word = (address - self.base) >> 3
        self.i64[word + _ENTRY.address] = data
        self.i64[word + _ENTRY.length] = length

    def extent(self, address: int) -> tuple[int, int]:
        """What :meth:`set_extent` has published."""
        word = (address - self.base) >> 3
        return self.i64[word + _ENTRY.address], self.i64[word + _ENTRY.length]

    def set_word(self, address: int, field: str, value: int) -> None:
        """Publishes any other field of ENTRY."""
        if ENTRY.kinds[field] == "i32":
            self.i32[((address - self.base) >> 2) + getattr(_ENTRY, field)] = value
        else:
            self.i64[((address - self.base) >> 3) + getattr(_ENTRY, field)] = value

    def object(self, address: int) -> object | None:
        """The object of a handle, None for null."""
        if not address:
            return None
        number = (address - self.base) >> 6
        obj = self._objects[number]
        if obj is None and self._later and (make := self._later.get(number)) is not None:
            obj = make(self, address)
            _ = self._traits.get(type(obj)) or self._learn(obj)
            key = id(obj)  # the last call: what interrupts those before it leaves the object to be made
            self._objects[number] = obj
            self._addresses[key] = address
            del self._later[number]
        elif obj is None and self.handle_pool is not None:
            return self.handle_pool.make(self, address)
        return obj
