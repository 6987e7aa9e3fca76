"""Threads that take what they are given out of an inbox. There is none as long as there is nothing to do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

from jitree.base.endings import guard

Item = TypeVar("Item")


class InboxThread(Generic[Item]):
    """An inbox and the thread that empties it, which a device has until it is closed."""

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
        """Starts the thread unless there is one."""
        if self._untaken:
            arguments = (self._run, self._untaken)
            thread = threading.Thread(target=_run_first, args=arguments, name=self._name, daemon=True)
            self._threads.append(thread)
            thread.start()

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
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join()
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
