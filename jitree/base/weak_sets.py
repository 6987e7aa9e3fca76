"""Sets of objects as long as these live, for threads that look at all while others add some."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar
from weakref import ref

Item = TypeVar("Item")


class SharedWeakSet(Generic[Item]):
    """As a ``WeakSet``, which however raises RuntimeError before Python 3.14 where another thread adds to it
    while one iterates, and loses what a signal handler raises as an item dies: its callback is in Python."""

    __slots__ = ("__weakref__", "_references")

    def __init__(self) -> None:
        self._references: set[ref[Item]] = set()

    def add(self, item: Item) -> None:
        self._references.add(ref(item, self._references.discard))

    def __iter__(self) -> Iterator[Item]:
        for reference in self._references.copy():  # in one step, unlike a tuple of it
            item = reference()
            if item is not None:
                yield item

    def __bool__(self) -> bool:
        """Whether there may be any."""
        return bool(self._references)
