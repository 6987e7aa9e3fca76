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

    __slots__ = ("_context", "_free", "_is_closed")

    def __init__(self, context: CudaContext) -> None:
        self._context = context
        self._free: dict[int, Handle] = {}
        self._is_closed = False

    def acquire(self) -> Handle:
        """An event; the context must be current."""
        try:
            return self._free.popitem()[1]
        except KeyError:
            return self._context.api.call("cuEventCreate", _BLOCKING_SYNC | _DISABLE_TIMING)

    def release(self, event: Handle) -> None:
        """Takes an event back, also one that has not been reached: it may be recorded anew. Twice is once."""
        self._free[int(event)] = event

    def close(self, last: Handle) -> None:
        """Destroys the free ones, and the last one in use. Again, it does what was left when it was
        interrupted."""
        if not self._is_closed:
            self.release(last)
            self._is_closed = True
        while self._free:
            self._context.api.attempt("cuEventDestroy", self._free.popitem()[1])
