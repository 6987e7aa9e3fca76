"""The completion thread: waits for events where a caller wants to be called back.

It starts with the first event given to it. Calls that wait for their own results never need it.
"""

from __future__ import annotations

import threading
import warnings
from _thread import RLock
from queue import SimpleQueue
from typing import TYPE_CHECKING

from jitree.errors import StatusError

if TYPE_CHECKING:
    from jitree.cuda.api import Handle
    from jitree.cuda.stream import Stream


class CompletionThread:
    """Retires a stream's work when an event recorded after it is reached."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = RLock()  # a forgotten device closes it wherever the garbage collector runs
        self._inbox: SimpleQueue[tuple[Stream, int, Handle] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def watch(self, stream: Stream, tick: int, event: Handle) -> None:
        """See :meth:`jitree.cuda.stream.Watcher.watch`."""
        if self._thread is None:
            # The thread refers to the inbox only, so that a forgotten device can be collected.
            thread = threading.Thread(
                target=_run, args=(self._inbox,), name=f"{self._name} completion", daemon=True
            )
            with self._lock:
                is_first = self._thread is None
                if is_first:
                    self._thread = thread
            if is_first:
                thread.start()
        self._inbox.put((stream, tick, event))

    def close(self) -> None:
        """Ends the thread after what it has been given."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._inbox.put(None)
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join()


def _run(inbox: SimpleQueue[tuple[Stream, int, Handle] | None]) -> None:
    while (item := inbox.get()) is not None:
        stream, tick, event = item
        try:
            _await(stream, tick, event)
        except Exception as error:  # a callback that raises is a defect, but others wait for this thread
            warnings.warn(f"{stream.api.name}: a callback raised {error!r}", RuntimeWarning, stacklevel=1)
        stream.events.release(event)
        del stream, item


def _await(stream: Stream, tick: int, event: Handle) -> None:
    try:
        stream.context.enter()
        stream.api.call("cuEventSynchronize", event)
    except StatusError as error:
        stream.fail(error)
    else:
        stream.retire(tick)
