"""A thread that ends scopes when their time is over. It starts with the first deadline."""

from __future__ import annotations

import os
import time
from _queue import Empty, SimpleQueue
from _thread import start_new_thread
from math import inf
from typing import Final, Protocol

from jitree.base import next_deadline

_LONGEST: Final = 1e6
"""Seconds that it sleeps: waits refuse times that do not fit their clock."""
_FEW: Final = 64
"""Scopes that are kept although they may not be used any more."""


class Expiring(Protocol):
    """A scope with a deadline."""

    @property
    def is_used(self) -> bool: ...
    def expire(self) -> None: ...


class _Alarms:
    def __init__(self) -> None:
        self._armed: dict[Expiring, float] = {}
        self._most = _FEW
        self._earlier: SimpleQueue[None] = SimpleQueue()
        self._due = inf
        """When the thread wakes up; while it is awake, it is to look again in any case."""
        self._is_started = False

    def arm(self, scope: Expiring, until: float) -> None:
        """Has a scope end at a time, unless it is left before."""
        self._armed[scope] = until
        next_deadline.hasten(until)
        if len(self._armed) > self._most:
            self._drop_left()
        if not self._is_started:
            self._is_started = True
            start_new_thread(self._serve, ())
        if until < self._due:
            self._earlier.put(None)

    def look_ahead(self) -> bool:
        """Tells machine code of the first deadline that has not passed. Returns whether others have, of
        scopes that are to end: the threads in these have perhaps not seen it yet."""
        now = time.monotonic()
        used = [until for scope, until in tuple(self._armed.items()) if scope.is_used]
        next_deadline.put(min((until for until in used if until > now), default=inf))
        return any(until <= now for until in used)

    def _drop_left(self) -> None:
        for scope in tuple(self._armed):
            if not scope.is_used:
                self._armed.pop(scope, None)
        self._most = 2 * len(self._armed) + _FEW

    def _serve(self) -> None:
        while True:
            self._due = inf
            now = time.monotonic()
            for scope, until in tuple(self._armed.items()):
                if until <= now or not scope.is_used:
                    self._armed.pop(scope, None)
                    if until <= now:
                        scope.expire()
            self._due = next_deadline = min(tuple(self._armed.values()), default=now + _LONGEST)
            try:
                self._earlier.get(timeout=min(max(next_deadline - time.monotonic(), 0.0), _LONGEST))
            except Empty:
                continue

    def after_fork(self) -> None:
        """In a forked child the thread is gone."""
        self._earlier = SimpleQueue()
        self._due = inf
        self._is_started = bool(self._armed)
        if self._is_started:
            start_new_thread(self._serve, ())


_alarms: Final = _Alarms()
arm: Final = _alarms.arm
look_ahead: Final = _alarms.look_ahead
os.register_at_fork(after_in_child=_alarms.after_fork)
