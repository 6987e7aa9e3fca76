"""Tells machine code when the next deadline passes.

Machine code compares the time each time that it looks at the clock. So a call ends in time also where a
thread that would have to tell it gets its turn late: those of a busy machine, and of Python programs that
keep the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from math import inf
from typing import Final

NEVER: Final = (1 << 63) - 1
_word: Final = ctypes.c_int64(NEVER)
DUE: Final[int] = ctypes.addressof(_word)
"""The address of the time, in the processor's ticks."""
_LONGEST: Final = 1e6
"""Seconds that are counted in ticks; what is later is looked at again then."""


class _Next:
    """Threads change it without a lock: a lost change is made up for by the thread of the alarms."""

    def __init__(self) -> None:
        self._until = inf
        self._clock: Callable[[], int] | None = None
        self._begun = 0.0, 0

    def count_by(self, clock: Callable[[], int]) -> None:
        """Machine code counts ticks by this; all of it by the same ones."""
        if self._clock is None:
            self._begun = time.monotonic(), clock()
            self._clock = clock
            self.put(self._until)

    def hasten(self, until: float) -> None:
        """There is a deadline, by ``time.monotonic``."""
        if until < self._until:
            self.put(until)

    def put(self, until: float) -> None:
        """The first deadline; infinity: there is none."""
        self._until = until
        clock = self._clock
        if clock is None or until == inf:
            _word.value = NEVER
            return
        # In this order the clock seems slow, whenever the thread is interrupted: machine code looks too
        # early then, and this is done again.
        begun, first = self._begun
        ticks = clock()
        now = time.monotonic()
        rate = (ticks - first) / max(now - begun, 1e-9)
        _word.value = ticks + int(rate * min(max(until - now, 0.0), _LONGEST))

    def is_over(self) -> bool:
        """Whether machine code sees that time as over, and will ask again and again until it is put off."""
        return self._clock is not None and self._until != inf and self._clock() >= _word.value


_next: Final = _Next()
count_by: Final = _next.count_by
hasten: Final = _next.hasten
put: Final = _next.put
is_over: Final = _next.is_over
