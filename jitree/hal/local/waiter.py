"""A thread for operations that wait for other members of a group, or that Python interprets, where the
submitter's thread has an event loop to serve."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Protocol

from jitree.base.endings import guard


class Waiting(Protocol):
    def run(self) -> None: ...


class Waiter:
    """Runs operations one after the other, since other members have the same order. The thread is there while
    there are any."""

    def __init__(self) -> None:
        self._lock = guard()  # endings add some wherever the garbage collector runs
        self._operations: deque[Waiting] = deque()
        self._thread: threading.Thread | None = None
        self.process = os.getpid()
        """A forked child needs another one: it does not have the thread."""

    def add(self, operation: Waiting) -> None:
        with self._lock:
            self._operations.append(operation)
            if self._thread is None:
                self._start()

    def _start(self) -> None:
        """Starts the thread; the caller has the lock. A signal's handler may raise after any call."""
        thread = threading.Thread(target=self._run, name="jitree beside an event loop", daemon=True)
        try:
            self._thread = thread
            thread.start()
        except BaseException:
            if thread.ident is None:  # if it begins after all, it ends at once
                self._thread = None
            raise

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._thread is not threading.current_thread():
                    return
                if not self._operations:
                    self._thread = None
                    return
                operation = self._operations.popleft()
            operation.run()
            del operation
