"""CUDA events for reuse: creating and destroying one costs more than all that is done with it.

An event that is taken out of a pool has an owner, which gives it back to the pool: when it is told to, or
when nothing refers to it any more.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from jitree.base.endings import Ending
from jitree.cuda.api import Handle
from jitree.cuda.context import CudaContext
from jitree.cuda.handles import Owned

_BLOCKING_SYNC: Final = 0x1
"""Threads that wait for an event sleep instead of spinning."""
_DISABLE_TIMING: Final = 0x2


class PooledEvent:
    """An event of a pool."""

    __slots__ = ("_ending", "_free", "_owned")

    def __init__(self, free: list[Owned]) -> None:
        """``free``: where it comes from and goes back to."""
        self._owned: list[Owned] = []
        self._free = free
        self._ending = Ending(partial(free.extend, self._owned))

    def take(self, context: CudaContext) -> None:
        """Has a free event of the pool, or a new one."""
        try:
            self._owned.extend(map(self._free.pop, (-1,)))
        except IndexError:
            flags = _BLOCKING_SYNC | _DISABLE_TIMING
            self._owned.append(context.make("cuEventCreate", (flags,), "cuEventDestroy"))

    @property
    def handle(self) -> Handle:
        return self._owned[0].handle

    def __int__(self) -> int:
        return int(self.handle)

    def release(self) -> None:
        """Gives it back, also if it has not been reached: it may be recorded anew. Twice is once."""
        try:
            self._free.extend(map(self._owned.pop, (-1,)))
        except IndexError:
            return


class EventPool:
    """Events of one context; safe to use from several threads."""

    __slots__ = ("_context", "_free", "_permanent")

    def __init__(self, context: CudaContext) -> None:
        self._context = context
        self._free: list[Owned] = []
        self._permanent: list[PooledEvent] = []

    def permanent(self) -> PooledEvent:
        """An event for as long as the pool is open; the context must be current."""
        event = self.acquire()
        self._permanent.append(event)
        return event

    def acquire(self) -> PooledEvent:
        """An event; the context must be current."""
        event = PooledEvent(self._free)
        event.take(self._context)
        return event

    def close(self) -> None:
        """Destroys the free and the permanent ones. Called again, it finishes what was interrupted."""
        for event in self._permanent:
            event.release()
        self._permanent.clear()
        self._free.clear()
        self._context.release_discarded()
