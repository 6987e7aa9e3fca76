"""Handles: counted references to Python objects that machine code can copy, move and drop.

A handle is the address of a 64-byte entry (:data:`jitree.regs.layout.ENTRY`) in one region that never moves.
The entry counts the references that registers, globals and lists hold; as long as it is not free the table
keeps the object alive. Machine code counts by itself (:mod:`jitree.regs.access`); entries whose count it
brought to zero it links into the list of STATE.released, which :meth:`HandleTable.drain` frees. Python counts
by the same rule in views of the table, an eighth of what records take; a test compares both.

Machine code can make objects as well (:class:`ObjectPool`): such an entry has no Python object until
Python asks for it, and goes back to where it came from when its count falls to zero.

A table is touched only by the thread that holds its context's lock. What other threads drop (a list that
the garbage collector finds) waits in ``deferred``. Ctrl-C comes where a call begins or returns, not between
statements that must happen together: it may leave a reference that is never dropped, but drops none twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from jitree.base.records import NamedTuple
from jitree.base.weak_sets import SharedWeakSet
from jitree.codegen.record import words_of
from jitree.errors import InternalError, ResourceExhaustedError, attribute_of
from jitree.regs.layout import (
    COUNT_UNLIMITED,
    ENTRY,
    EXTENSION_SIZE,
    KIND_FREE,
    LINK_POOLED,
    OWNER_PYTHON,
    STATE_WORDS,
    Entry,
)
from jitree.regs.memory import UNBOUNDED, Bounds, MemoryBlock
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
_MANY: Final = 1 << 12
"""References that may be to the same objects, which is worth a look."""
_FEW: Final = 8
"""References that are quicker dropped one by one."""
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
        "__weakref__", "_addresses", "_aliases", "_bytes", "_entries", "_free", "_is_draining", "_later",
        "_memory", "_objects", "_traits", "base", "bounds", "capacity", "deferred", "extension",
        "handle_pool", "i32", "i64", "is_halted", "machines", "make_pool", "readers", "ref_types",
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
        self._is_draining = False
        self.is_halted: Callable[[], bool] = bool
        """Whether what runs on machines of the table is to end, asked when their time is over."""
        self.readers: tuple[EventReader, ...] = ()
        """Those of what Python does for programs: calls and imports (:mod:`jitree.base.events`)."""
        self.handle_pool: ObjectPool | None = None
        self.machines: SharedWeakSet[Connected] = SharedWeakSet()
        """Whose state blocks refer to ``handle_pool``."""
        self.make_pool: Callable[[], None] | None = None
        """Connects one, where its code is there."""

    def readers_changed(self) -> None:
        """See :class:`jitree.base.events.Source`. Who makes calls looks at the readers."""

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
        if self.bounds.objects is not None:
            self._require_room(self.bounds.objects)
        number = self._free.pop() if self._free else self._extend()
        self._objects[number] = obj
        address = self.base + number * ENTRY.size
        word = number * _ENTRY_WORDS
        i32 = self.i32
        i32[word + _ENTRY.kind] = traits.kind
        i32[word + _ENTRY.count] = 1
        self._addresses[key] = address
        if traits.fill is not None:
            try:
                traits.fill(obj, self, address)
            except BaseException:
                self._free_entry(address)
                raise
        return address

    def wrap_later(self, count: int, make: _Make, fields: dict[str, npt.ArrayLike]) -> npt.NDArray[np.int64]:
        """New references to ``count`` objects without ``leave_entry``, of which machine code needs no more
        than the ``fields`` of their entries: arrays, or what all have. ``make`` makes one when Python asks
        for it, given the table and the handle.

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
        if self.bounds.objects is not None:
            self._require_room(self.bounds.objects)
        number = self._free.pop() if self._free else self._extend()
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

    def _extend(self) -> int:
        self._require_entries(1)
        self._objects.append(None)
        return len(self._objects) - 1

    def _require_entries(self, count: int) -> None:
        if count > self.capacity - len(self._objects) + len(self._free) and self.handle_pool is not None:
            self.handle_pool.withdraw()
        if count > self.capacity - len(self._objects) + len(self._free):
            raise ResourceExhaustedError(f"more than {self.capacity} objects are referenced by one context")

    @property
    def _known_count(self) -> int:
        """Objects that are referred to, without those of machine code that Python has never seen."""
        return len(self._addresses) + len(self._aliases) + len(self._later)

    def _require_room(self, most: int, count: int = 1) -> None:
        """RESOURCE_EXHAUSTED where ``count`` more were more objects than bounds allow, with those that
        machine code may make by itself."""
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
        split = max(len(self._free) - count, 0)
        known, self._free[split:] = self._free[split:], []
        first, unused = len(self._objects), count - len(known)
        self._objects += [None] * unused
        numbers = np.arange(first - len(known), first + unused, dtype=np.int64)
        numbers[: len(known)] = known
        return self.base + ENTRY.size * numbers

    def adopt(self, address: int, obj: object) -> None:
        """From now on the entry of an object that machine code made is that of a Python object, with the
        references that it has."""
        word = (address - self.base) >> 2
        traits = self._traits.get(type(obj)) or self._learn(obj)
        count = self.i32[word + _ENTRY.count]
        start, key = address - self.base, id(obj)
        self._bytes[start : start + ENTRY.size] = _POISON
        self.i32[word + _ENTRY.kind] = traits.kind
        self.i32[word + _ENTRY.count] = count
        self._objects[start >> 6] = obj
        if key in self._addresses:
            self._aliases.add(address)
        else:
            self._addresses[key] = address
        if traits.fill is not None:
            traits.fill(obj, self, address)

    def take_over(self, address: int, obj: object) -> None:
        """As :meth:`adopt`, of an object whose entry is as it publishes it."""
        word, key = (address - self.base) >> 2, id(obj)
        _ = self._traits.get(type(obj)) or self._learn(obj)
        self._objects[word // _ENTRY_WORDS] = obj  # no call from here on: Ctrl-C comes before or after
        self._addresses[key] = address
        self.i32[word + _ENTRY.owner] = OWNER_PYTHON
        self.i64[(word >> 1) + _ENTRY.link] = 0

    def keep(self, address: int, obj: object) -> None:
        """Keeps something for a reserved entry, until that is unreserved."""
        self._objects[(address - self.base) >> 6] = obj

    def kept(self, address: int) -> object:
        """What :meth:`keep` was given."""
        return self._objects[(address - self.base) >> 6]

    def unreserve(self, address: int) -> None:
        """Takes back a reserved entry that nothing refers to."""
        start = address - self.base
        self._bytes[start : start + ENTRY.size] = _POISON
        self._objects[start >> 6] = None
        self._free.append(start >> 6)

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
        traits = _Traits(kind, attribute_of(cls, "fill_entry"), attribute_of(cls, "leave_entry"))
        self._traits[cls] = traits
        return traits

    def retain(self, address: int) -> int:
        """Adds a reference and returns the handle."""
        if address:
            word = ((address - self.base) >> 2) + _ENTRY.count
            count = self.i32[word]
            if count < COUNT_UNLIMITED:
                self.i32[word] = count + 1
        return address

    def release(self, address: int) -> None:
        """Drops a reference; the last one frees the entry and lets go of the object."""
        if address:
            word = ((address - self.base) >> 2) + _ENTRY.count
            count = self.i32[word]
            if count < COUNT_UNLIMITED:
                self.i32[word] = count - 1
            if count <= 1:
                if self.i64[((address - self.base) >> 3) + _ENTRY.link] == LINK_POOLED:
                    assert self.handle_pool is not None
                    self.handle_pool.drop(address)
                    return
                self._free_entry(address)
                if self.deferred:
                    self.drain_deferred()

    def take(self, address: int) -> object | None:
        """The object of a handle whose reference the caller gives up."""
        obj = self.object(address)
        self.release(address)
        return obj

    def release_all(self, addresses: Sequence[int] | npt.NDArray[np.int64]) -> None:
        """Drops one reference of each handle; nulls are skipped. Of many, what goes with it goes at once."""
        for address in (
            self._release_last(np.asarray(addresses, np.int64)) if len(addresses) > _FEW else addresses
        ):
            self.release(int(address))

    def _release_last(self, handles: npt.NDArray[np.int64]) -> list[int]:
        """Drops last references to objects that machine code frees or Python has not made; gives the rest."""
        handles = handles[handles != 0]
        numbers = handles - self.base >> 6
        entries = self._entries["i32"]
        if len(handles) > _MANY:  # all but one of those to one object
            repeats = np.bincount(numbers)
            numbers = np.flatnonzero(repeats)
            entries[numbers, _ENTRY.count] -= (repeats[numbers] - 1).astype(np.int32)
            handles = self.base + (numbers << 6)
        only = entries[numbers, _ENTRY.count] == 1
        of_code = only & (entries[numbers, _ENTRY.owner] != OWNER_PYTHON)
        later, others = self._later, ~of_code
        unused = [number for number in numbers[only & others].tolist() if number in later]
        for number in unused:
            del later[number]
        self._free += unused
        if unused:
            entries[unused] = 0
        rest: list[int] = handles[others & (entries[numbers, _ENTRY.count] > 0)].tolist()
        if self.handle_pool is not None and len(rest) + len(unused) < len(handles):
            entries[numbers[of_code], _ENTRY.count] = 0
            self.handle_pool.drop_all(handles[of_code])
            self.handle_pool.settle()
        return rest

    def drain(self, state: memoryview) -> None:
        """Frees the entries that machine code released: the list in a STATE block (viewed as 64-bit words).

        Must run before anything else happens to the table after machine code ran.
        """
        address = state[STATE_WORDS.released]
        state[STATE_WORDS.released] = 0
        while address:
            following = self.i64[((address - self.base) >> 3) + _ENTRY.link]
            self._free_entry(address)
            address = following
        if self.deferred:
            self.drain_deferred()

    def drain_deferred(self) -> None:
        """Drops the references that objects held which died outside the table's control. What those let go of
        in turn waits, too: lists in lists may be deeper than Python's stack."""
        if self._is_draining:
            return
        self._is_draining = True
        try:
            while self.deferred:
                self.release_all([*self.deferred.popleft()])
        finally:
            self._is_draining = False

    def _free_entry(self, address: int) -> None:
        number = (address - self.base) >> 6
        if self.i32[((address - self.base) >> 2) + _ENTRY.owner] != OWNER_PYTHON:
            assert self.handle_pool is not None
            self.handle_pool.free(address)
            return
        obj = self._objects[number]
        if obj is None and self._later.pop(number, None) is not None:
            self.unreserve(address)
            return
        key = id(obj)
        if address in self._aliases:
            self._aliases.discard(address)
        elif key in self._addresses and self._addresses[key] == address:
            del self._addresses[key]
        else:
            raise InternalError(f"reference of a freed object dropped (handle {number}): a counting error")
        # All zero is the poison: a stale handle has kind KIND_FREE and length 0, which every check refuses.
        start = number * ENTRY.size
        self._bytes[start : start + ENTRY.size] = _POISON
        self._objects[number] = None
        self._free.append(number)
        leave = self._traits[type(obj)].leave
        if leave is not None:
            leave(obj, self)

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
