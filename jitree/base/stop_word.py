"""Tells machine code when to look whether it is to end. It is one word, which all of it reads.

The word is the time of the next deadline, in the processor's ticks. Machine code compares it each time that
it looks at the clock. So a call ends in time also where a thread that would have to tell it gets its turn
late: those of a busy machine, and of Python programs that keep the interpreter's lock.

Whoever ends something else changes the word (:func:`ring`): a thread looks when the word is not what it was
when that thread looked last. Why a thread is to end is for Python to find (:mod:`jitree.base.cancel_scopes`).

A thread ends scopes when their time is over. It starts with the first deadline.
"""

from __future__ import annotations

import ctypes
import os
import time
from _thread import start_new_thread
from collections.abc import Callable
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Final

from jitree.errors import pass_interruption

if TYPE_CHECKING:
    from _queue import SimpleQueue
    from typing import Protocol

    class Expiring(Protocol):
        """A scope with a deadline."""

        @property
        def is_used(self) -> bool: ...
        def expire(self) -> None: ...


NEVER: Final = 1 << 62
"""The least value of the word while there is no deadline."""
_NUMBERS: Final = (1 << 16) - 1
"""The word differs by as many ticks, some microseconds, from the time; each of its values in a row does."""
WORD: Final = ctypes.c_int64(NEVER)
STOP: Final[int] = ctypes.addressof(WORD)
_LONGEST: Final = 1e6
"""Seconds that the thread sleeps, as waits refuse times that do not fit their clock, and that are counted in
ticks; what is later is looked at again then."""
_FEW: Final = 64
"""Scopes that are kept although they may not be used any more."""


class _StopWord:
    """Threads change the word without a lock: the thread of the deadlines makes up for a lost change."""

    def __init__(self, word: ctypes.c_int64) -> None:
        self._word = word
        self._numbers = count(1)
        self._ticks = NEVER
        """The time of the next deadline, or a little earlier."""
        self._until = inf
        """The same by ``time.monotonic``."""
        self._clock: Callable[[], int] | None = None
        self._begun = 0.0, 0
        self._armed: dict[Expiring, float] = {}
        self._most = _FEW
        self._earlier: SimpleQueue[None] | None = None
        """Wakes the thread; None: it has not started."""
        self._due = inf
        """When the thread wakes up; while it is awake, it is to look again in any case."""

    def ring(self) -> None:
        """Has machine code of all threads look whether it is to end."""
        self._word.value = self._ticks + (next(self._numbers) & _NUMBERS)

    def count_by(self, clock: Callable[[], int]) -> None:
        """Machine code counts ticks by this; all of it by the same ones."""
        if self._clock is None:
            self._begun = time.monotonic(), clock()
            self._clock = clock
            if self._until != inf:
                self._put(self._until)

    def arm(self, scope: Expiring, until: float) -> None:
        """Has a scope end at a time, by ``time.monotonic``, unless it is left before."""
        self._armed[scope] = until
        if until < self._until:
            self._put(until)
        if len(self._armed) > self._most:
            self._drop_left()
        self._start()
        if until < self._due and self._earlier is not None:
            self._earlier.put(None)

    def put_off(self) -> None:
        """Goes on to the next deadline, if machine code sees the last as over. All of it looks then, as
        threads in scopes that are to end have perhaps not seen it."""
        if self._clock is None or self._clock() < self._word.value:
            return
        now = time.monotonic()
        following = (until for scope, until in tuple(self._armed.items()) if until > now and scope.is_used)
        self._put(min(following, default=inf))

    def _put(self, until: float) -> None:
        self._until = until
        clock = self._clock
        if clock is None or until == inf:
            self._ticks = NEVER
        else:
            # In this order the clock seems slow, whenever the thread is interrupted: machine code looks too
            # early then, and this is done again.
            begun, first = self._begun
            ticks = clock()
            now = time.monotonic()
            rate = (ticks - first) / max(now - begun, 1e-9)
            self._ticks = ticks + int(rate * min(max(until - now, 0.0), _LONGEST)) - _NUMBERS
        self.ring()

    def _drop_left(self) -> None:
        for scope in tuple(self._armed):
            if not scope.is_used:
                self._armed.pop(scope, None)
        self._most = 2 * len(self._armed) + _FEW

    def _start(self) -> None:
        if self._earlier is None:
            from _queue import SimpleQueue

            earlier: SimpleQueue[None] = SimpleQueue()
            if self._earlier is None:  # no interrupt, and no other thread, comes between these lines
                self._earlier = earlier
                try:
                    start_new_thread(self._serve, (earlier,))
                except RuntimeError as error:  # the system gives none now: waits look for themselves
                    self._earlier = None
                    pass_interruption(error)

    def _serve(self, earlier: SimpleQueue[None]) -> None:
        from _queue import Empty

        while True:
            self._due = inf
            now = time.monotonic()
            for scope, until in tuple(self._armed.items()):
                if until <= now or not scope.is_used:
                    self._armed.pop(scope, None)
                    if until <= now:
                        scope.expire()
            self._due = following = min(tuple(self._armed.values()), default=now + _LONGEST)
            try:
                earlier.get(timeout=min(max(following - time.monotonic(), 0.0), _LONGEST))
            except Empty:
                continue

    def after_fork(self) -> None:
        """In a forked child the thread is gone."""
        self._earlier = None
        self._due = inf
        if self._armed:
            self._start()


_stop: Final = _StopWord(WORD)
ring: Final = _stop.ring
count_by: Final = _stop.count_by
arm: Final = _stop.arm
put_off: Final = _stop.put_off
os.register_at_fork(after_in_child=_stop.after_fork)
