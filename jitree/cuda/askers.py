"""When a stream is destroyed: not while a thread asks the driver whether it is done, for which no lock is
needed."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

_PATIENCE: Final = 1.0
"""Seconds that machine code has to come out of a query of the driver, which takes less than a microsecond. A
stream that it is in for longer lives as long as the process."""


class Asked(Protocol):
    """A stream that machine code asks the driver about, too."""

    @property
    def is_asked(self) -> bool: ...


class Askers:
    """The threads that ask in Python. ``with askers as may_ask:`` counts one of them; the last one after
    :meth:`end` destroys the stream, since the thread that ends it may be among them (the garbage collector
    runs anywhere)."""

    def __init__(self, asked: Asked, destroy: Callable[[], object]) -> None:
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
        until = time.monotonic() + _PATIENCE
        while not self._here and self._asked.is_asked and time.monotonic() < until:
            time.sleep(0)
        if not self._here and not self._asked.is_asked:
            with suppress(IndexError):  # another thread was quicker
                self._destroy.pop()()
            _ended.discard(self)


_ended: Final[set[Askers]] = set()
"""Those whose stream a thread is in still: what owns the stream must not be forgotten, which destroys it."""
