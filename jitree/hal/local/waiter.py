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
        self._is_at_work = False
        self.process = os.getpid()
        """A forked child needs another one: it does not have the thread."""

    def add(self, operation: Waiting) -> None:
        with self._lock:
            self._operations.append(operation)
            begins, self._is_at_work = not self._is_at_work, True
        if begins:
            threading.Thread(target=self._run, name="jitree beside an event loop", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._operations:
                    self._is_at_work = False
                    return
                operation = self._operations.popleft()
            operation.run()
            del operation
