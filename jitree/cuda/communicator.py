"""Communicators of NCCL: of one member of a group each, and given back where calls of NCCL may be made."""

from __future__ import annotations

from _thread import get_ident
from collections import deque
from typing import TYPE_CHECKING, Final

from jitree.base.endings import guard
from jitree.errors import StatusError
from jitree.hal.groups.waiting import wait_looking

if TYPE_CHECKING:
    from jitree.cuda.context import CudaContext
    from jitree.cuda.nccl import Nccl

_FINAL_SECONDS: Final = 5.0
"""For which the end of a group waits for its other members."""


class Communicator:
    """What NCCL has of one member of a group; it ends once."""

    def __init__(self, library: Nccl, context: CudaContext, handle: int) -> None:
        self.handle = handle
        self._library = library
        self._context = context
        self._lock = guard()
        self._has_ended = False
        self._asking = 0
        """The thread that asks for the failure."""

    def failure(self) -> StatusError | None:
        """What happened to the group, such as another member's end."""
        with self._lock:
            if self._has_ended:
                return None
            self._asking = get_ident()
            try:
                return self._library.failure_of(self.handle)
            finally:
                self._asking = 0

    def abort(self) -> None:
        """What is in progress ends at once, on the GPU too; calls of NCCL on other threads fail."""
        if self._end():
            self._context.enter()
            self._library.attempt("ncclCommAbort", self.handle)

    def release(self) -> None:
        """Its work is done. Other members take part, which may have ended: it does not wait long for them."""
        if self._asking == get_ident():  # the garbage collector runs in `failure`
            ABANDONED.append(self)
        elif self._end():
            try:
                is_final = wait_looking(self._finalize, _FINAL_SECONDS)
            except StatusError:
                is_final = False
            except RuntimeError:  # the interpreter exits, and starts no more threads
                is_final = self._finalize()
            self._context.enter()
            self._library.attempt("ncclCommDestroy" if is_final else "ncclCommAbort", self.handle)

    def _finalize(self) -> bool:
        self._context.enter()
        return self._library.attempt("ncclCommFinalize", self.handle)

    def _end(self) -> bool:
        """Whether it ends now."""
        with self._lock:
            ended, self._has_ended = self._has_ended, True
        return not ended


ABANDONED: Final[deque[Communicator]] = deque()
"""Those of channels that nothing refers to: finalizers run anywhere, so they only note them."""


def release_abandoned() -> None:
    """Gives back the communicators of channels that are no longer used; their work must be done."""
    for _ in range(len(ABANDONED)):  # one that this thread is in the middle of comes back
        try:
            communicator = ABANDONED.popleft()
        except IndexError:  # another thread was quicker
            return
        communicator.release()
