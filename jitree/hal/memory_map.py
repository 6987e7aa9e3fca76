"""Which pending calls use memory of the host, found by where it lies.

Calls may be pending by the thousand, and each new one asks which of them have memory that overlaps its own.
So that the answer takes as long as what it finds, extents of about the same length share a grid, whose cells
are at least as long as they are: each lies in two cells at most, and a question looks into few of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Final, Generic, TypeVar

Extent = tuple[int, int]
"""Addresses of the host: where memory begins and ends."""

User = TypeVar("User")


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
        """Those with memory that overlaps any of the extents; one may come more than once."""
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
