"""The completion thread: waits for events where a caller wants to be called back.

It starts with the first event given to it. Calls that wait for their own results never need it.
"""

from __future__ import annotations

import warnings
from queue import SimpleQueue
from typing import TYPE_CHECKING

from jitree.cuda.inbox_thread import InboxThread
from jitree.errors import StatusError

if TYPE_CHECKING:
    from jitree.cuda.events import PooledEvent
    from jitree.cuda.stream import Stream


_Watched = tuple["Stream", int, "PooledEvent"]
"""(stream, tick, the event that was recorded after it)"""


class CompletionThread:
    """Retires a stream's work when an event recorded after it is reached."""

    def __init__(self, name: str) -> None:
        self._thread = InboxThread[_Watched](f"{name} completion", _run)

    def watch(self, stream: Stream, tick: int, event: PooledEvent) -> None:
        """See :meth:`jitree.cuda.stream.Watcher.watch`."""
        self._thread.start()
        self._thread.give((stream, tick, event))

    def close(self) -> None:
        """Ends the thread after what it has been given."""
        self._thread.close()


def _run(inbox: SimpleQueue[_Watched | None]) -> None:
    while (item := inbox.get()) is not None:
        stream, tick, event = item
        try:
            _await(stream, tick, event)
        except Exception as error:  # a callback that raises is a defect, but others wait for this thread
            warnings.warn(f"{stream.api.name}: a callback raised {error!r}", RuntimeWarning, stacklevel=1)
        event.release()
        del stream, item, event


def _await(stream: Stream, tick: int, event: PooledEvent) -> None:
    try:
        stream.context.enter()
        stream.api.call("cuEventSynchronize", event.handle)
    except StatusError as error:
        stream.fail(error)
    else:
        stream.retire(tick)
