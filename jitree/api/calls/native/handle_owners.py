"""Keeps the handles of one session's arrays for their owners (:mod:`jitree.api.calls.native.arrays`)."""

from __future__ import annotations

import ctypes
import operator
from _thread import start_new_thread
from array import array
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, cast
from weakref import ref

from jitree.api.calls.native.layout import CAPSULE_POINTER_AT, MAXIMUM_RANK, MOST_AHEAD, Ahead, Owners
from jitree.base.finalizers import repeated, with_lock
from jitree.codegen.record import size_of, words_of
from jitree.regs.layout import OWNER_CODE, STATE, Entry, GateRecord

_OWNERS: Final = words_of(Owners)

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from jitree.api.calls.declaration import DeclaredTensor
    from jitree.dispatch.invocation import Invoker
    from jitree.modules.hal.native.handle_pool import HandlePool

    class OwnerCode(Protocol):
        """The machine code of owners (:class:`jitree.api.calls.native.cpython_layout.Interface`)."""

        record: int
        new_owner: Callable[[int, int], object]
        take_back: Callable[[int, int, int], int]


_ENTRY: Final = words_of(Entry)
LARGE: Final = 1 << 20
"""Bytes of an array that goes at once."""
_GATE: Final = words_of(GateRecord)
_AHEAD: Final = words_of(Ahead)


class Keeper:
    """The Owners record of a handle table. Each owner of a handle of the table keeps its keeper."""

    __slots__ = (
        "_ahead", "_aheads_given", "_attend", "_back", "_interface", "_markers", "_put_off", "_steps",
        "_table", "_words", "lock", "pattern", "record",
    )  # fmt: skip

    def __init__(self, invoker: Invoker, interface: OwnerCode) -> None:
        self._table = invoker.table
        self._markers: dict[tuple[DeclaredTensor, bool], object] = {}
        self._interface = interface
        self.pattern: object = None
        """A direct call of the session, if machine code reads arrays in its device's memory."""
        self._words = array("q", bytes(size_of(Owners)))
        self._ahead = array("q", bytes(size_of(Ahead) * MOST_AHEAD))
        self._aheads_given = 0
        self.lock: threading.RLock = invoker.lock
        """The lock of the session's context."""
        self.record: int = self._words.buffer_info()[0]
        self._back = HandleReturns(invoker, interface, self._words, self._ahead)
        self._put_off = self._table.deferred.append
        self._steps = Steps()
        _leave_step(self._back, self._steps)
        late = partial(_attend, self._back, ref(self._steps))
        self._attend = partial(next, map(operator.call, iter(partial(self._steps.pop, 0, late), None)))
        for field, value in {
            "keeper": id(self), "python": interface.record, "put_off": id(self._put_off),
            "attend": id(self._attend), "extension": self._table.extension, "large": LARGE,
            "ahead": self._ahead.buffer_info()[0],
        }.items():  # fmt: skip
            self._words[getattr(_OWNERS, field)] = value

    def connect(self, handle_pool: int) -> None:
        """Machine code gives memory of a device to other libraries: the table's HandlePoolRecord record."""
        self._words[_OWNERS.handle_pool] = handle_pool

    def ahead(self) -> int:
        """The address of an Ahead record for a result of a function. With more results than records some
        share one, and only the last of them is known."""
        number = self._aheads_given % MOST_AHEAD
        self._aheads_given += 1
        return self._ahead.buffer_info()[0] + size_of(Ahead) * number

    def own(self, obj: object) -> object:
        """An owner of the object's handle, with the lock held."""
        return self._interface.new_owner(self.record, self._table.wrap(obj))

    def handle(self, owner: object) -> int:
        """As :func:`jitree.api.calls.native.arrays.handle_of`."""
        return ctypes.c_int64.from_address(id(owner) + CAPSULE_POINTER_AT).value

    def owned(self, owner: object) -> object:
        """The object of an owner's handle, with the lock held."""
        return self._table.object(self.handle(owner))

    def shape(self, owner: object) -> tuple[int, ...] | None:
        """The dimensions of a view that machine code made; None if they are not all in the table, and where
        its Python object tells them."""
        table = self._table
        word = (self.handle(owner) - table.base) >> 3
        rank = table.i32[2 * word + _ENTRY.rank]
        start = word + (table.extension >> 3)
        # One by one: of a part of a memoryview CPython keeps count, wrongly among threads without a GIL.
        dimensions = tuple([table.i64[start + axis] for axis in range(rank)])
        # Last: another thread may just be making the object.
        return (
            dimensions if rank <= MAXIMUM_RANK and table.i32[2 * word + _ENTRY.owner] == OWNER_CODE else None
        )

    def type_and_encoding(self, owner: object) -> tuple[int, int] | None:
        """Element type and encoding of a view that machine code made; None where its Python object tells."""
        words = self._table.i32
        word = (self.handle(owner) - self._table.base) >> 2
        found = words[word + _ENTRY.element_type], words[word + _ENTRY.element_type + 1]
        return found if words[word + _ENTRY.owner] == OWNER_CODE else None

    def extent(self, owner: object) -> tuple[int, int] | None:
        """Address and bytes of the buffer of a view that machine code made; None where its Python object
        tells them."""
        words, table = self._table.i64, self._table
        view = (self.handle(owner) - table.base) >> 3
        buffer = (words[view + _ENTRY.parent] - table.base) >> 3
        found = words[buffer + _ENTRY.address], words[buffer + _ENTRY.length]
        return found if table.i32[2 * view + _ENTRY.owner] == OWNER_CODE else None

    def marker(self, tensor: DeclaredTensor, is_written: bool) -> object:
        """An object that stands for a kind of parameters, always the same."""
        return self._markers.setdefault((tensor, is_written), object())

    def collect(self) -> None:
        """Drops what was given back and unread copies, if nothing runs."""
        self._back.collect()

    def close(self) -> None:
        """No call comes that would take back what is given back: all of it goes at once."""
        self.pattern = None
        self._words[_OWNERS.large] = 0
        self.collect()


class Steps(dict[int, "Callable[[], object]"]):
    """Has the next step, in which no interrupt is lost.

    It takes back what is given back, and leaves another. There is none where the last one could not begin,
    at the last levels of Python's stack, and while another thread's begins."""

    __slots__ = ("__weakref__",)


class HandleReturns:
    """Takes back a table's handles. It refers to the GATE record and not to the context: owners keep what
    they lead to, which the garbage collector does not see."""

    __slots__ = ("_ahead", "_gate", "_interface", "_lock", "_released", "_table", "_words")

    def __init__(self, invoker: Invoker, interface: OwnerCode, words: array[int], ahead: array[int]) -> None:
        """``words``: the Owners record."""
        self._gate, self._table, self._lock = invoker.gate, invoker.table, invoker.lock
        self._interface, self._words, self._ahead = interface, words, ahead
        self._released = array("q", bytes(STATE.size))
        """Where machine code leaves objects of Python's; what an interrupt leaves goes the next time."""

    def collect(self) -> None:
        """Drops what was given back and unread copies, if nothing runs."""
        with_lock(self._lock, self._drop_copies)
        self.attend()

    def attend(self) -> None:
        """Takes back what was given back, if nothing runs.

        Where another thread has the lock, or this one a call, the next call takes it back. A closed session
        has no next call, and who has its lock may be past all that looks: a thread waits for the lock then.
        What waits here may have the lock that the other thread wants."""
        if not with_lock(self._lock, self._take_back) and self._is_closed():
            with suppress(RuntimeError):  # the system gives none: the next one that dies takes it along
                start_new_thread(self.collect_later, ())

    def _is_closed(self) -> bool:
        return not self._words[_OWNERS.large]

    def _take_back(self) -> bool:
        if self._gate[_GATE.nesting]:
            return False
        handle_pool, released = self._table.handle_pool, self._released
        place = released.buffer_info()[0] + STATE["released"]
        record = self._words.buffer_info()[0]
        self._interface.take_back(record, 0 if handle_pool is None else handle_pool.record, place)
        self._table.drain(released)
        if handle_pool is not None:
            handle_pool.settle()
        if self._is_closed():  # no call comes that would do this
            self._table.drain_deferred()
            if handle_pool is not None:
                cast("HandlePool", handle_pool).trim()
        return True

    def collect_later(self) -> None:
        """Collects when the lock is free. Nothing waits for this thread, which has no other lock."""
        with self._lock:
            self.collect()

    def _drop_copies(self) -> None:
        words = self._ahead
        for start in range(0, len(words), size_of(Ahead) // 8):
            handles = words[start + _AHEAD.view], words[start + _AHEAD.copy]
            if handles[1]:
                words[start + _AHEAD.copy] = 0
                self._table.deferred.append(handles)
        self._table.drain_deferred()


def _leave_step(back: HandleReturns, steps: Steps) -> None:
    if not steps:
        steps[0] = repeated(partial(_attend, back, ref(steps)))


def _attend(back: HandleReturns, steps: ref[Steps]) -> None:
    """Leaves the next step first: arrays may die in this one. Steps do not keep what they lie in: the garbage
    collector does not see them."""
    left = steps()
    if left is not None:
        _leave_step(back, left)
    back.attend()
