"""What the builder processes of a session may take that limits its programs."""

from __future__ import annotations

import resource
from contextlib import suppress
from math import ceil
from typing import Final, Protocol

from jitree.base.endings import Unique, guard

SPARE_SECONDS: Final = 10
"""Seconds of a processor that each process of a builder may take beside the limit: to start takes one."""
SPARE_MEMORY: Final = 1 << 30
"""Bytes of address space, the same way."""


class Building(Protocol):
    """A thread that starts a builder."""

    @property
    def ident(self) -> int | None:
        """None before it is started."""

    def has_ended(self) -> bool: ...
    def end(self) -> None: ...


class Builds(Unique):
    """Limits builder processes, of which the system ends what takes more, and ends those at work with what
    they work for. What they build is kept in the cache like any other image."""

    def __init__(self, seconds: float | None, memory: int | None) -> None:
        """``seconds``: of processor time; ``memory``: bytes of address space. None limits nothing."""
        self.is_limit = seconds is not None or memory is not None
        """Whether it limits anything; builders without a limit go on when their session ends."""
        self._limits: list[tuple[int, int]] = [(resource.RLIMIT_CORE, 0)]
        if seconds is not None:
            self._limits.append((resource.RLIMIT_CPU, ceil(seconds) + SPARE_SECONDS))
        if memory is not None:
            self._limits.append((resource.RLIMIT_AS, memory + SPARE_MEMORY))
        self._lock = guard()  # a forgotten sandbox ends wherever the garbage collector runs
        self._building: set[Building] = set()

    def add(self, building: Building) -> None:
        """A builder that :meth:`end` is to end."""
        with self._lock:
            self._building.add(building)
            for item in list(self._building):
                if item.ident is not None and item.has_ended():
                    self._building.discard(item)

    def limit(self, process: int) -> None:
        """Limits a process and those that it makes from now on; a lower limit that it has already stays."""
        with suppress(ProcessLookupError):  # it has ended
            for kind, most in self._limits:
                _, hard = resource.prlimit(process, kind)
                most = most if hard == resource.RLIM_INFINITY else min(most, hard)
                resource.prlimit(process, kind, (most, most))

    def end(self) -> None:
        """Ends the builders that are at work, if it limits them."""
        if not self.is_limit:
            return
        with self._lock:
            ended, self._building = self._building, set()
        for building in ended:
            building.end()


UNLIMITED: Final = Builds(None, None)
"""Of sandboxes without limits: they share images, and take none out of packs, which are for others."""
