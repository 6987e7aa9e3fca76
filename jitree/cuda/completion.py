"""Waits for events on a thread where a caller wants to be called back.

Threads take what they are given out of an inbox; there is none as long as there is nothing to do. Calls that
wait for their own results never need the completion thread.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Generic, TypeVar

from jitree.base.finalizers import guard, join, start_thread
from jitree.base.platform.threads import thread_refusals
from jitree.errors import ResourceExhaustedError, StatusError

if TYPE_CHECKING:
    from jitree.cuda.context import PooledEvent
    from jitree.cuda.stream import Stream

Item = TypeVar("Item")

_Watched = tuple["Stream", int, "PooledEvent"]
"""(stream, tick, the event that was recorded after it)"""


class InboxThread(Generic[Item]):
    """Empties an inbox on a thread that a device has until it closes."""

    def __init__(self, name: str, run: Callable[[SimpleQueue[Item | None]], None]) -> None:
        """``run`` takes items from the inbox until it gets None. The thread refers to nothing else, so that a
        forgotten device can be collected."""
        self._name = name
        self._run = run
        self._lock = guard()  # a forgotten device closes it wherever the garbage collector runs
        self._inbox: SimpleQueue[Item | None] = SimpleQueue()
        self._untaken = [self._inbox]
        """The inbox until a thread has taken it. Where the start of one was interrupted others are started:
        the first takes it, and the others end."""
        self._threads: list[threading.Thread] = []
        self._is_ending = False
        """Whether the thread has been told to end."""

    def start(self) -> None:
        """Starts the thread unless there is one. RESOURCE_EXHAUSTED where the system gives none."""
        if self._untaken:
            arguments = (self._run, self._untaken)
            thread = threading.Thread(target=_run_first, args=arguments, name=self._name, daemon=True)
            threads = self._threads
            threads.append(thread)
            try:
                with thread_refusals(self._name):
                    start_thread(thread)
            except ResourceExhaustedError:
                threads.remove(thread)  # it never was one
                raise

    @property
    def inbox(self) -> SimpleQueue[Item | None]:
        """What the thread takes out of."""
        return self._inbox

    def give(self, item: Item) -> None:
        self._inbox.put(item)

    def close(self) -> None:
        """Ends the thread after what it has been given. Again, it waits for that if it was interrupted."""
        inbox, threads = self._inbox, list(self._threads)
        if not threads:
            return
        if not self._is_ending:
            inbox.put(None)  # twice does no harm: with the thread the inbox goes
            self._is_ending = True
        for thread in threads:
            if thread.ident not in (None, threading.get_ident()):
                join(thread)
        with self._lock:
            if self._inbox is inbox:
                new: SimpleQueue[Item | None] = SimpleQueue()
                self._threads, self._inbox, self._untaken, self._is_ending = [], new, [new], False


def _run_first(
    run: Callable[[SimpleQueue[Item | None]], None], untaken: list[SimpleQueue[Item | None]]
) -> None:
    try:
        inbox = untaken.pop()
    except IndexError:
        return
    run(inbox)


class CompletionThread:
    """Retires a stream's work when an event recorded after it is reached."""

    def __init__(self, name: str) -> None:
        self._thread = InboxThread[_Watched](f"{name} completion", _run)

    def watch(self, stream: Stream, tick: int, event: PooledEvent) -> None:
        """See :meth:`jitree.cuda.stream.CompletionWatcher.watch`."""
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
    except StatusError:
        stream.finish()
    else:
        stream.retire(tick)
