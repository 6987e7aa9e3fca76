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
        self._thread: threading.Thread | None = None
        self._is_ending = False
        """Whether the thread has been told to end."""

    def start(self) -> None:
        """Starts the thread unless there is one."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, args=(self._inbox,), name=self._name, daemon=True)
            with self._lock:
                is_first = self._thread is None
                if is_first:
                    self._thread = thread
            if is_first:
                thread.start()

    @property
    def inbox(self) -> SimpleQueue[Item | None]:
        """What the thread takes out of."""
        return self._inbox

    def give(self, item: Item) -> None:
        self._inbox.put(item)

    def close(self) -> None:
        """Ends the thread after what it has been given. Again, it waits for that if it was interrupted."""
        thread = self._thread
        if thread is None:
            return
        if not self._is_ending:
            self._inbox.put(None)  # twice does no harm: with the thread the inbox goes
            self._is_ending = True
        if thread.ident is not None and thread is not threading.current_thread():
            thread.join()
        with self._lock:
            if self._thread is thread:
                self._thread, self._inbox, self._is_ending = None, SimpleQueue(), False
