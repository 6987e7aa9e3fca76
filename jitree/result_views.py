"""Numpy views of results that lie in pooled memory, without an object between the handle and the view.

A result that machine code made is a handle: there is no buffer in Python that could keep its memory. What
:func:`numpy.asarray` gives for it is a view of an array that this module keeps for each place, type and shape
(:class:`Place`), and that array's reference count tells whether any view is left. The handle keeps the memory
from being used again; an array that was looked at hands it over when it dies, and later calls give it back
when the views are gone. An interpreter that does not count exactly gives it back at the end of the session.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.elements import is_packed
from jitree.regs.layout import ENTRY, EXTENSION_SIZE, KIND_STORAGE, OWNER_CODE, STATE
from jitree.types import element_type

if TYPE_CHECKING:
    import numpy.typing as npt

    from jitree.dispatch.invocation import Invoker
    from jitree.hal.heap import HeapAllocator

_ADDRESS: Final = ENTRY.word("address")
_LENGTH: Final = ENTRY.word("length")
_KIND: Final = ENTRY.word("kind")
_COUNT: Final = ENTRY.word("count")
_OWNER: Final = ENTRY.word("owner")
_PARENT: Final = ENTRY.word("parent")
_LINK: Final = ENTRY.word("link")
_RELEASED: Final = STATE.word("released")
_TYPE: Final = ENTRY["element_type"] // 8
"""Word with element type and encoding."""
_ELEMENT_TYPE: Final = ENTRY.word("element_type")
_RANK: Final = ENTRY["rank"] // 8
_LOW: Final = 0xFFFFFFFF
_OWNED_BY_CODE: Final = OWNER_CODE << 32
"""In the word with the rank. Views of other owners have less there."""
_MAXIMUM_RANK: Final = EXTENSION_SIZE // 8 - 1
"""Of views whose dimensions lie in the table."""

_UNUSED: Final = 3
"""References of the bytes of a place whose array has no views: from the place, that array, whoever counts."""
_MAXIMUM_PLACES: Final = 4096
LARGE: Final = 1 << 20
"""Bytes from which memory is given back at once if that is possible, not with the next call."""


class _Piece:
    """Bytes of a block, as the base of all arrays over them."""

    __slots__ = ("__array_interface__", "memory")

    def __init__(self, memory: npt.NDArray[np.uint8]) -> None:
        self.__array_interface__ = memory.__array_interface__
        self.memory = memory


class Place:
    """An array over a piece of a block; callers get views of it."""

    __slots__ = ("bytes", "elements")

    def __init__(self, memory: npt.NDArray[np.uint8], dtype: np.dtype[Any], shape: Sequence[int]) -> None:
        self.bytes: npt.NDArray[np.uint8] = np.asarray(_Piece(memory))
        """The base of every view: numpy goes no further back, since its own base is no array."""
        self.elements = self.bytes.view(dtype).reshape(shape)

    def is_unused(self) -> bool:
        """Whether there is no view of the array."""
        return getrefcount(self.bytes) == _UNUSED


class ResultViews:
    """The places of one session's results."""

    __slots__ = (
        "_allocator", "_base", "_extension", "_i32", "_i64", "_invoker", "_places", "_table", "give_back",
        "gone",
    )  # fmt: skip

    def __init__(self, allocator: HeapAllocator, invoker: Invoker) -> None:
        """``allocator``: whose pooled blocks machine code uses."""
        self._allocator = allocator
        self._invoker = invoker
        self._table = invoker.table
        self._extension = invoker.table.extension >> 3
        self._base = invoker.table.base
        self._i32, self._i64 = invoker.table.i32, invoker.table.i64
        self._places: dict[tuple[int, ...], Place] = {}
        self.gone: deque[tuple[int, Place | None]] = deque()
        """Handles of arrays that are gone, and the places whose views may still be there."""
        self.give_back: Callable[[tuple[int, Place | None]], None] = self.gone.append
        """Takes the handle of an array that is gone; and its place, if its elements were looked at."""

    def find(self, handle: int) -> Place | None:
        """The place of a view in a pooled block; None for other memory and for packed elements."""
        words = self._i64
        entry = (handle - self._base) >> 3
        rank = words[entry + _RANK] - _OWNED_BY_CODE
        if rank < 0:
            return None
        address = words[entry + _ADDRESS]
        start = entry + self._extension
        if rank == 1:
            key: tuple[int, ...] = (address, words[entry + _TYPE], words[start])
        else:
            key = (address, words[entry + _TYPE], *words[start : start + min(rank, _MAXIMUM_RANK)])
        place = self._places.get(key)
        if place is None and rank <= _MAXIMUM_RANK:
            place = self._make(key, self._block(entry), words[entry + _LENGTH])
        return place

    def _block(self, entry: int) -> int:
        """The address of the block that a view lies in, by the first word of its entry; 0 if machine code has
        not made all that is in between."""
        words, halves = self._table.i64, self._i32
        while halves[2 * entry + _KIND] != KIND_STORAGE:
            if halves[2 * entry + _OWNER] != OWNER_CODE:
                return 0
            entry = (words[entry + _PARENT] - self._table.base) >> 3
        return words[entry + _ADDRESS]

    @property
    def lock(self) -> threading.RLock:
        """The context's."""
        return self._invoker.lock

    def shape(self, handle: int) -> tuple[int, ...] | None:
        """The dimensions of a view; None if there are more than the table holds, and where only its Python
        object tells, which another thread may just be making."""
        words = self._i64
        entry = (handle - self._base) >> 3
        rank = words[entry + _RANK] - _OWNED_BY_CODE
        start = entry + self._extension
        return tuple(words[start : start + rank]) if 0 <= rank <= _MAXIMUM_RANK else None

    def type_and_encoding(self, handle: int) -> tuple[int, int] | None:
        """Element type and encoding of a view; None where only its Python object tells."""
        entry = (handle - self._base) >> 3
        word = 2 * entry + _ELEMENT_TYPE
        found = self._i32[word], self._i32[word + 1]
        return found if self._i64[entry + _RANK] >= _OWNED_BY_CODE else None

    def _make(self, key: tuple[int, ...], block: int, length: int) -> Place | None:
        address, kind, *shape = key
        memory = self._allocator.small_blocks.get(block)
        row = element_type(kind & _LOW)
        if memory is None or is_packed(row):
            return None
        size = row.byte_length(math.prod(shape))
        start = address - memory.__array_interface__["data"][0]
        if not 0 <= size <= length or start + size > memory.nbytes:
            return None
        if len(self._places) >= _MAXIMUM_PLACES:
            self._places.clear()
        place = Place(memory[start : start + size], row.dtype, shape)
        self._places[key] = place
        return place

    def sweep(self, state: memoryview, looks: int) -> None:
        """Gives back the handles that nobody uses among the next few: more than a call can add, so that there
        are not ever more. Machine code frees what they stood for when it is next done with ``state``. For
        direct calls, with the lock held."""
        gone, i32 = self.gone, self._i32
        left = len(gone)
        if left > looks:
            left = looks
        while left:
            left -= 1
            item = gone.popleft()
            handle, place = item
            if place is not None and getrefcount(place.bytes) != _UNUSED:
                gone.append(item)
                continue
            word = handle - self._base >> 2
            count = i32[word + _COUNT] - 1
            i32[word + _COUNT] = count
            if count == 0:
                self._i64[(word >> 1) + _LINK] = state[_RELEASED]
                state[_RELEASED] = handle

    def collect(self) -> None:
        """Gives back all that is not used any more, if nothing of the context runs right now."""
        invoker = self._invoker
        if invoker.ready is None or not invoker.lock.acquire(blocking=False):
            return
        try:
            if invoker.ready is not None:
                self._table.drain_deferred()
                self._release_all()
        finally:
            invoker.lock.release()

    def _release_all(self) -> None:
        for _ in range(len(self.gone)):
            item = self.gone.popleft()
            if item[1] is None or item[1].is_unused():
                self._table.release(item[0])
            else:
                self.gone.append(item)

    def give_back_large(self, item: tuple[int, Place | None]) -> None:
        """As ``give_back``, for arrays that may be large: memory that is not used any more is given back at
        once if that is possible, and not by the next call."""
        self.gone.append(item)
        if self._i64[((item[0] - self._base) >> 3) + _LENGTH] >= LARGE:
            self.collect()

    def forget(self) -> None:
        """Lets go of the memory of all places, which callers' views keep."""
        self._places.clear()
