"""The channels that a device has made: programs ask for theirs in each call."""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from jitree.base.cancel_scopes import require_going_on

_LOOK_SECONDS: Final = 0.02
T = TypeVar("T")


class KnownChannels(Generic[T]):
    """By what they were asked for with. One is made at a time: all members make theirs in one order."""

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._channels: dict[Hashable, T] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        found = self._channels.get(key)
        if found is not None:
            return found
        while not self._lock.acquire(timeout=_LOOK_SECONDS):
            require_going_on()
        try:
            found = self._channels.get(key)
            if found is None:
                found = self._channels[key] = make()
        finally:
            self._lock.release()
        return found

    def clear(self) -> None:
        self._channels.clear()
