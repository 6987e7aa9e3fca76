"""Orders calls that use the same host memory as submitted calls still pending.

Ordered by memory and not by array: a later call that writes where a pending one reads or writes comes after
it, and so does one that reads where it writes, by whatever array, view or numpy array it has the memory.
Only the results of a pending call raise its failure: a call after it just waits until it has ended.

A call that writes where earlier ones read or write stands for them there, whatever part of their memory that
is: it has not ended before they have, so what comes later looks at it alone. However many calls that write
the same memory are pending, or overlapping parts of it, the next one waits for the last of each part.

Calls may be pending by the thousand, and each new one asks which of them have memory that overlaps its own.
So that the answer takes as long as what it finds, extents of about the same length share a grid
(:class:`MemoryMap`), whose cells are at least as long as they are: each lies in two cells at most, and a
question looks into few of them.
"""

from __future__ import annotations

import os
from _thread import get_ident
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final, Generic, TypeVar
from weakref import ref

from jitree.base.finalizers import brief_guard
from jitree.errors import StatusError
from jitree.hal.buffer import PENDING, Buffer, BufferView
from jitree.hal.enums import NOTHING, READING, WRITING
from jitree.hal.fence import Fence, OrderingFence
from jitree.hal.semaphore import Semaphore
from jitree.regs.list import without_lists

if TYPE_CHECKING:
    from jitree.hal.waiting import Producer

Extent = tuple[int, int]
"""Addresses of the host: where memory begins and ends."""

User = TypeVar("User")

_WeakPoints = tuple[tuple["ref[Semaphore]", int], ...]


class _Grid(Generic[User]):
    """Extents of about one length, by the cells that they lie in."""

    def __init__(self) -> None:
        self._numbers: Final[list[int]] = []
        """Of the cells that have extents, sorted: long memory may have any number of short pieces."""
        self._cells: Final[dict[int, dict[Extent, dict[User, None]]]] = {}

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def add(self, number: int, extent: Extent, user: User) -> None:
        index = bisect_left(self._numbers, number)
        if self._numbers[index : index + 1] != [number]:
            self._numbers.insert(index, number)
        self._cells.setdefault(number, {}).setdefault(extent, {})[user] = None

    def remove(self, number: int, extent: Extent, user: User) -> None:
        cell = self._cells.get(number, {})
        users = cell.get(extent, {})
        users.pop(user, None)
        if not users:
            cell.pop(extent, None)
        if not cell:
            self._cells.pop(number, None)
            index = bisect_left(self._numbers, number)
            if self._numbers[index : index + 1] == [number]:
                del self._numbers[index]

    def users(self, first: int, last: int, start: int, stop: int) -> Iterator[tuple[Extent, User]]:
        """Of extents in these cells that overlap the one from start to stop; with these."""
        numbers = self._numbers
        for number in numbers[bisect_left(numbers, first) : bisect_right(numbers, last)]:
            for extent, users in self._cells.get(number, {}).items():
                if extent[0] < stop and start < extent[1]:
                    yield from zip(repeat(extent), users, strict=False)


class MemoryMap(Generic[User]):
    """Users of extents, in the order in which they came. Its caller holds a lock.

    A step that a signal's handler interrupts can be done again: adding and removing change nothing then.
    """

    def __init__(self) -> None:
        self._grids: Final[dict[int, _Grid[User]]] = {}
        """By the binary logarithm of the length of the cells."""

    def __bool__(self) -> bool:
        return bool(self._grids)

    def add(self, user: User, extents: Iterable[Extent]) -> None:
        for extent in extents:
            shift, numbers = _place(extent)
            grid = self._grids.setdefault(shift, _Grid())
            for number in numbers:
                grid.add(number, extent, user)

    def remove(self, user: User, extents: Iterable[Extent]) -> None:
        for extent in extents:
            shift, numbers = _place(extent)
            grid = self._grids.get(shift)
            if grid is None:
                continue
            for number in numbers:
                grid.remove(number, extent, user)
            if not grid:
                self._grids.pop(shift, None)

    def users(self, extents: Iterable[Extent]) -> Iterator[User]:
        """Finds users of overlapping memory; one may come more than once."""
        return (user for _, user in self.uses(extents))

    def uses(self, extents: Iterable[Extent]) -> Iterator[tuple[Extent, User]]:
        """As :meth:`users`, with their extents that overlap."""
        for start, stop in extents:
            for shift, grid in self._grids.items():
                yield from grid.users(start >> shift, (stop - 1) >> shift, start, stop)

    def clear(self) -> None:
        self._grids.clear()


def _place(extent: Extent) -> tuple[int, range]:
    """The grid of an extent, and the numbers of its cells."""
    start, stop = extent
    shift = (stop - start).bit_length()
    return shift, range(start >> shift, ((stop - 1) >> shift) + 1)


class Use:
    """Holds what a pending call reads and writes, until its fence is over. That is reached, has failed, or
    nothing is left that could reach it: what does keeps the semaphores. One that fails before its turn ends
    when that comes."""

    __slots__ = ("_memory", "_points", "_turn", "driver", "read", "written")

    def __init__(
        self, fence: Fence, read: Sequence[Extent], written: Sequence[Extent], driver: int, turn: Fence | None
    ) -> None:
        """``driver``: the thread whose event loop goes on with the call; 0 = devices do. ``turn``: reached
        when those that the call comes after have ended."""
        self._points = _weak_points(fence)
        self._turn = () if turn is None else _weak_points(turn)
        self._memory = read, written
        self.read = dict.fromkeys(read)
        """Where others find it, less what later calls stand for; as ``written``."""
        self.written = dict.fromkeys(written)
        self.driver = driver

    def restore(self) -> None:
        """No other call stands for it any more."""
        for held, memory in zip((self.read, self.written), self._memory, strict=True):
            held.update(dict.fromkeys(memory))

    @property
    def ends(self) -> Iterator[OrderingFence]:
        """All are reached when it has ended."""
        for points in (self._points, self._turn):
            if not _are_over(points):
                found = ((semaphore(), value) for semaphore, value in points)
                yield OrderingFence((semaphore, value) for semaphore, value in found if semaphore is not None)

    def has_ended(self) -> bool:
        return _are_over(self._points) and _are_over(self._turn)


def _weak_points(fence: Fence) -> _WeakPoints:
    return tuple((ref(semaphore), value) for semaphore, value in fence.timepoints)


def _are_over(points: _WeakPoints) -> bool:
    """Tells whether all are reached, or one has failed or never will be reached."""
    are_reached = True
    for reference, value in points:
        semaphore = reference()
        if semaphore is None:
            return True
        semaphore.look()
        if semaphore.failure is not None:
            return True
        are_reached = are_reached and semaphore.is_reached(value)
    return are_reached


class Earlier:
    """Lists pending calls that another one comes after."""

    __slots__ = ("turn", "uses")

    def __init__(self, uses: Sequence[Use] = ()) -> None:
        self.uses = uses
        self.turn = ended([end for use in uses for end in use.ends]) if uses else None
        """Reached when all have ended; None if they have."""


NOTHING_EARLIER: Final = Earlier()


_uses: deque[Use] = deque()
"""From the oldest."""
_reading: Final[MemoryMap[Use]] = MemoryMap()
_writing: Final[MemoryMap[Use]] = MemoryMap()
_lock = brief_guard()


class _Looks:
    """Limits how many uses are looked at. So looking for those that have ended takes a few steps a call,
    however many are pending."""

    left = 0


_LOOKS: Final = 8
"""For each call. Of as many uses all are looked at each time; of more, the oldest until one has not ended,
and all of them once there have been enough calls."""


def begin(
    fence: Fence, read: Sequence[Extent], written: Sequence[Extent], earlier: Earlier = NOTHING_EARLIER
) -> None:
    """Makes a call pending that comes after ``earlier`` ones, unless it has ended. It reaches the fence at
    its end."""
    _add(Use(fence, read, written, 0, earlier.turn), earlier)


def begin_here(
    fence: Fence, read: Sequence[Extent], written: Sequence[Extent], earlier: Earlier = NOTHING_EARLIER
) -> Use:
    """Begins a call that this thread's event loop goes on with. As :func:`begin`, but what blocks the thread
    cannot wait for it, until :func:`leave_to_devices`."""
    use = Use(fence, read, written, get_ident(), earlier.turn)
    _add(use, earlier)
    return use


def leave_to_devices(use: Use, earlier: Earlier) -> None:
    """Leaves a call of an event loop to devices. It came after ``earlier`` ones. What blocks the thread of
    the loop comes after it now, whatever stood for it there."""
    with _lock:
        _forget_ended()
        use.driver = 0
        if not use.has_ended():
            use.restore()
            _stand(use, earlier)
        _show()


def _add(use: Use, earlier: Earlier) -> None:
    if not use.read and not use.written:
        return
    with _lock:
        _forget_ended()
        if not use.has_ended():
            _uses.append(use)
            _stand(use, earlier)
        _show()


def _stand(use: Use, earlier: Earlier) -> None:
    """Puts a use where others find it, in place of those that it covers. One that an event loop goes on with
    stands for none that others go on with, as it is not found by all that may wait for these."""
    _reading.add(use, use.read)
    _writing.add(use, use.written)
    earlier_uses = {one for one in earlier.uses if use.driver in (0, one.driver)}
    for extent in use.written:
        for memory in (_reading, _writing):
            for piece, one in list(memory.uses((extent,))):
                if one in earlier_uses:
                    _cut(memory, one, piece, extent)


def _cut(memory: MemoryMap[Use], use: Use, piece: Extent, extent: Extent) -> None:
    """Cuts an extent out of a piece of memory where a use is found. An interrupt leaves no piece in the map
    of which the use does not know."""
    held = use.read if memory is _reading else use.written
    rest = [(piece[0], extent[0])] if piece[0] < extent[0] else []
    rest += [(extent[1], piece[1])] if extent[1] < piece[1] else []
    held.update(dict.fromkeys(rest))
    memory.add(use, rest)
    memory.remove(use, (piece,))
    held.pop(piece, None)


def settle() -> None:
    """Forgets calls that have ended."""
    with _lock:
        _forget_ended()
        _show()


def _forget_ended() -> None:
    """The caller holds the lock."""
    global _uses
    while _uses and _uses[0].has_ended():
        _forget(_uses[0])
        _uses.popleft()
    _Looks.left += _LOOKS
    if _Looks.left >= len(_uses):
        _Looks.left = 0
        kept: deque[Use] = deque()
        for use in _uses:
            if use.has_ended():
                _forget(use)
            else:
                kept.append(use)
        _uses = kept


def _forget(use: Use) -> None:
    _reading.remove(use, use.read)
    _writing.remove(use, use.written)


def before(read: Sequence[Extent], written: Sequence[Extent]) -> list[Use]:
    """Finds pending calls that must end before memory is read and written. It leaves out those that only this
    thread can go on with."""
    here = get_ident()
    return [use for use in before_both(read, written) if use.driver != here]


def before_here(read: Sequence[Extent], written: Sequence[Extent]) -> list[Use]:
    """Finds those that this thread's event loop goes on with, to await. As :func:`before`."""
    here = get_ident()
    return [use for use in before_both(read, written) if use.driver == here]


def before_both(read: Sequence[Extent], written: Sequence[Extent]) -> list[Use]:
    """As :func:`before` and :func:`before_here`."""
    if PENDING[0] == NOTHING:
        return []
    with _lock:
        _forget_ended()
        _show()
        found = chain(_writing.users(read), _writing.users(written), _reading.users(written))
        return [use for use in dict.fromkeys(found) if not use.has_ended()]


def wait_for(uses: Iterable[Use]) -> None:
    """Waits for the ends of pending calls."""
    for use in uses:
        for end in use.ends:
            end.wait()
    settle()


def await_written(*read: Extent) -> None:
    """Waits for pending calls that write memory to be read at once."""
    wait_for(before(read, ()) if PENDING[0] == WRITING else ())


def ended(fences: Sequence[Fence]) -> Fence | None:
    """A fence that is reached at the last of these ends. None if there are none."""
    if not fences:
        return None
    end = Fence(((Semaphore(), 1),))
    _Ends(fences, end).watch()
    return end


class _Ends:
    """The ends of some calls; the producer of a fence for those that come after them."""

    def __init__(self, fences: Sequence[Fence], end: Fence) -> None:
        self._fences = fences
        self._missing = set(range(len(fences)))
        self._lock = brief_guard()
        ((self._semaphore, self._value),) = end.timepoints

    def watch(self) -> None:
        self._semaphore.expect(self._value, self)
        for index, fence in enumerate(self._fences):
            fence.on_reached(partial(self._has_ended, index))

    def _has_ended(self, index: int, failure: StatusError | None) -> None:
        with self._lock:
            self._missing.discard(index)
            if self._missing:
                return
        self._semaphore.settle(self._value, self)
        self._semaphore.advance_in_turn(self._value)

    def run_here(self, deadline: float | None) -> bool:
        """As of a :class:`jitree.hal.waiting.Producer`, like what follows. It has nothing to run itself."""
        return False

    def prerequisites(self) -> Sequence[Producer]:
        from jitree.hal.waiting import WaitMode, pending_producers

        return [
            producer
            for fence in self._fences
            for producer in pending_producers(fence.timepoints, WaitMode.ALL)
        ]

    def is_held_up(self) -> bool:
        from jitree.hal.waiting import are_held_up

        return any(are_held_up(fence.timepoints) for fence in self._fences)

    def interrupt(self, failure: StatusError) -> None:
        """Whoever comes after it ends by itself."""

    def describe(self) -> str:
        return f"{len(self._fences)} ends of calls that use the same memory"


def extents(values: Iterable[object]) -> tuple[Extent, ...]:
    """Finds where buffers, views and lists of them lie in host memory."""
    found = []
    for value in without_lists(values):
        buffer = value.buffer if isinstance(value, BufferView) else value
        if isinstance(buffer, Buffer) and buffer.byte_length and buffer.host_address is not None:
            found.append((buffer.host_address, buffer.host_address + buffer.byte_length))
    return tuple(found)


def _show() -> None:
    """Shows machine code what is pending. The caller holds the lock."""
    PENDING[0] = WRITING if _writing else READING if _uses else NOTHING


def _after_fork() -> None:
    """In a forked child nothing goes on that the parent has submitted."""
    global _lock
    _lock = brief_guard()
    _uses.clear()
    _reading.clear()
    _writing.clear()
    PENDING[0] = NOTHING


os.register_at_fork(after_in_child=_after_fork)
