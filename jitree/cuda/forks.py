"""Forked processes: a GPU belongs to the process that opened it, and CUDA cannot be used in a child of it."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Final, Protocol

from jitree.base.endings import guard
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


def watch(stream: Inherited) -> None:
    """In children that the process forks, the stream will say what is wrong instead of using the driver."""
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
