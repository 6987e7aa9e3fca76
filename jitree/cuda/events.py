"""CUDA events for reuse: creating and destroying one costs more than all that is done with it."""

from __future__ import annotations

from typing import Final

from jitree.cuda.api import Handle
from jitree.cuda.context import CudaContext

_BLOCKING_SYNC: Final = 0x1
"""Threads that wait for an event sleep instead of spinning."""
_DISABLE_TIMING: Final = 0x2


class EventPool:
    """Events of one context; safe to use from several threads."""

    __slots__ = ("_context", "_free", "_permanent")

    def __init__(self, context: CudaContext) -> None:
        self._context = context
        self._free: dict[int, Handle] = {}
        self._permanent: list[Handle] = []

    def permanent(self) -> Handle:
        """An event for as long as the pool is open; the context must be current."""
        event = self.acquire()
        self._permanent.append(event)
        return event

    def acquire(self) -> Handle:
        """An event; the context must be current."""
        try:
            return self._free.popitem()[1]
        except KeyError:
            return self._context.api.call("cuEventCreate", _BLOCKING_SYNC | _DISABLE_TIMING)

    def release(self, event: Handle) -> None:
        """Takes an event back, also one that has not been reached: it may be recorded anew. Twice is once."""
        self._free[int(event)] = event

    def close(self) -> None:
        """Destroys the free and the permanent ones. Called again, it finishes what was interrupted."""
        while self._permanent:
            self.release(self._permanent[-1])
            self._permanent.pop()
        while self._free:
            self._context.api.attempt("cuEventDestroy", self._free.popitem()[1])
