"""Weak sets and tables that threads share.

They hold objects as long as these live; threads look at all while others add some.

Those of Python's ``weakref`` call Python code as an item dies. If a signal's handler raises in that code,
Python loses the exception, as no caller waits for it. Here the callback is a C function, where Python runs no
handler.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Generic, TypeVar
from weakref import ref

Key = TypeVar("Key")
Item = TypeVar("Item")


class SharedWeakSet(Generic[Item]):
    """Holds objects weakly, while other threads add. A ``WeakSet`` raises RuntimeError before Python 3.14
    where one thread adds while another iterates."""

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

    def __contains__(self, item: Item) -> bool:
        return ref(item) in self._references

    def __len__(self) -> int:
        """How many there may be."""
        return len(self._references)


class SharedWeakValues(Generic[Key, Item]):
    """As a ``WeakValueDictionary``."""

    __slots__ = ("_references",)

    def __init__(self) -> None:
        self._references: dict[Key, ref[Item]] = {}

    def __setitem__(self, key: Key, item: Item) -> None:
        # It is called with the reference, which `pop` takes for what to give where the key is not there.
        self._references[key] = ref(item, partial(self._references.pop, key))

    def get(self, key: Key) -> Item | None:
        reference = self._references.get(key)
        return None if reference is None else reference()

    def pop(self, key: Key, default: None = None) -> Item | None:
        reference = self._references.pop(key, None)
        return default if reference is None else reference()

    def items(self) -> list[tuple[Key, Item]]:
        found = [(key, reference()) for key, reference in self._references.copy().items()]
        return [(key, item) for key, item in found if item is not None]

    def values(self) -> list[Item]:
        return [item for _, item in self.items()]

    def __iter__(self) -> Iterator[Key]:
        return iter([key for key, _ in self.items()])


class SharedWeakKeys(Generic[Key, Item]):
    """As a ``WeakKeyDictionary``, for tables that stay: what it holds is freed by a garbage collection."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: dict[ref[Key], Item] = {}

    def __setitem__(self, key: Key, item: Item) -> None:
        self._items[ref(key, self._items.pop)] = item

    def __getitem__(self, key: Key) -> Item:
        return self._items[ref(key)]

    def get(self, key: Key) -> Item | None:
        return self._items.get(ref(key))

    def setdefault(self, key: Key, item: Item) -> Item:
        return self._items.setdefault(ref(key, self._items.pop), item)
