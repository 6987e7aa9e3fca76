"""Tells who may still use a stream: threads that query it, forked processes.

A stream is destroyed when no thread asks the driver whether it is done, for which no lock is needed. A GPU
belongs to the process that opened it, and CUDA cannot be used in a child of that.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from jitree.base.finalizers import guard
from jitree.base.weak_sets import SharedWeakSet
from jitree.errors import FailedPreconditionError
from jitree.hal.local.queue_record import CLOSED

if TYPE_CHECKING:
    from jitree.cuda.api import Api
    from jitree.cuda.stream_share import StreamShare

    class Inherited(Protocol):
        """A stream."""

        api: Api
        lock: threading.RLock
        share: StreamShare
        is_inherited: bool


_streams: Final[SharedWeakSet[Inherited]] = SharedWeakSet()

_QUERY_SECONDS: Final = 1.0
"""Seconds that machine code has to come out of a query of the driver, which takes less than a microsecond. A
stream that it is in for longer lives as long as the process."""


def watch(stream: Inherited) -> None:
    """Makes the stream refuse use in children that the process forks."""
    _streams.add(stream)


def _after_fork() -> None:
    for stream in _streams:
        stream.lock = guard()  # a thread that the child does not have may hold it
        stream.is_inherited = True
        stream.share.record.after_fork()
        stream.share.record.hold(CLOSED)
        stream.api.lost = FailedPreconditionError(
            f"{stream.api.name} was opened before this process was forked and cannot be used in it; open the "
            "device in a process that was started with 'spawn' (multiprocessing.set_start_method)"
        )


os.register_at_fork(after_in_child=_after_fork)


class QueriedStream(Protocol):
    """Stands for a stream that machine code queries, too."""

    @property
    def is_asked(self) -> bool: ...


class StreamUsers:
    """Counts the threads that query a stream in Python. ``with users as may_ask:`` counts one of them; the
    last one after :meth:`end` destroys the stream, since the thread that ends it may be among them (the
    garbage collector runs anywhere)."""

    def __init__(self, asked: QueriedStream, destroy: Callable[[], object]) -> None:
        self._asked = asked
        self._here: list[None] = []
        self._destroy = [destroy]
        self.are_over = False
        """Whether threads may no longer ask."""

    def __enter__(self) -> bool:
        self._here.append(None)  # first: a thread that calls `end` has to see it
        return not self.are_over

    def __exit__(self, *exception: object) -> None:
        self._here.pop()
        if self.are_over:
            self._leave()

    def end(self) -> None:
        """Machine code begins no query any more, and nothing is submitted."""
        self.are_over = True
        _ended.add(self)
        self._leave()

    def _leave(self) -> None:
        until = time.monotonic() + _QUERY_SECONDS
        while not self._here and self._asked.is_asked and time.monotonic() < until:
            time.sleep(0)
        if not self._here and not self._asked.is_asked:
            with suppress(IndexError):  # another thread was quicker
                self._destroy.pop()()
            _ended.discard(self)


_ended: Final[set[StreamUsers]] = set()
"""Those whose stream a thread is in still: what owns the stream must not be forgotten, which destroys it."""
