"""Threads that share the work of command lists with the thread that submits them.

Helpers live in native code: they spin for some microseconds after the last work, then park on an eventfd.
What is too small to be worth their help runs on the submitting thread alone. See README.md.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from array import array
from typing import Final

import numpy as np

from jitree.hal.local import walk
from jitree.hal.local.commands import CommandList
from jitree.hal.local.topology import Topology
from jitree.hal.local.walk_layout import MASK_SIZE, TEAM_FIELDS, TEAM_SIZE
from jitree.hal.local.walk_native import FUNCTION_TABLE_ADDRESS, NativeWalker
from jitree.regs.memory import address_of, zeroed

SPINNING_NANOSECONDS: Final = 3_000
"""Work that is worth sharing while a helper spins (measured; 0.2 us is what joining costs)."""
PARKED_NANOSECONDS: Final = 60_000
"""Work that is worth waking helpers (measured: 60 to 100 us)."""
UNKNOWN: Final = -1


class _Helpers:
    """The team's memory and threads. Threads hold this and not the team, so that a forgotten team can end."""

    def __init__(self, name: str, topology: Topology, spin_nanoseconds: int, walker: NativeWalker) -> None:
        self._memory = zeroed(TEAM_SIZE, 128)
        self.address = address_of(self._memory)
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_SEMAPHORE)
        self._walker = walker
        homes = _homes(topology)
        self._homes = array("q", (-1 if home is None else home for home in homes))
        self._masks = b"".join((1 << (home or 0)).to_bytes(MASK_SIZE, "little") for home in homes)
        count = topology.worker_count - 1
        ticks = walker.ticks_per_microsecond / 1000
        for field, value in (
            ("functions", FUNCTION_TABLE_ADDRESS), ("workers", count), ("event", self._event),
            ("spin_ticks", int(spin_nanoseconds * ticks)),
            ("spinning_ticks", int(SPINNING_NANOSECONDS * ticks)),
            ("parked_ticks", int(PARKED_NANOSECONDS * ticks)),
            ("homes", self._homes.buffer_info()[0]),
            ("masks", address_of(np.frombuffer(self._masks, np.uint8))),
        ):  # fmt: skip
            self._set(field, value)
        self._threads = [
            threading.Thread(target=self.serve, args=(number,), name=f"{name}.{number}", daemon=True)
            for number in range(1, count + 1)
        ]
        for thread in self._threads:
            thread.start()

    def __del__(self) -> None:
        os.close(self._event)

    def serve(self, number: int) -> None:
        self._walker.serve(self.address, number)

    def stop(self) -> list[threading.Thread]:
        """Lets the threads end; they are to be joined."""
        self._set("stop", 1)
        os.eventfd_write(self._event, len(self._threads))
        return self._threads

    def _set(self, field: str, value: int) -> None:
        self._memory.data[TEAM_FIELDS[field] : TEAM_FIELDS[field] + 8] = value.to_bytes(8, "little")


class Team:
    """The threads of one queue, of which the submitting thread is one."""

    def __init__(self, name: str, topology: Topology, spin_microseconds: int) -> None:
        """``topology.worker_count`` threads work together; helpers start with the first list to execute."""
        self.name = name
        self.topology = topology
        self._spin_nanoseconds = spin_microseconds * 1000
        self._lock = threading.Lock()
        self._helpers: _Helpers | None = None
        self._closed = False
        _teams.add(self)

    def __del__(self) -> None:
        helpers: _Helpers | None = getattr(self, "_helpers", None)
        if helpers is not None:
            helpers.stop()

    def execute(self, commands: CommandList, addresses: array[int], lengths: array[int]) -> None:
        """As :func:`walk.execute`, shared with the helpers where that is worth it.

        Any number of threads may call this; one at a time has the helpers, the others run alone.
        """
        walker = walk.native_walker()
        if walker is None:
            walk.execute(commands, addresses, lengths)
            return
        helpers = self._helpers or self._start(walker)
        if helpers is None:
            walker.execute(commands, addresses, lengths)
        else:
            walker.execute(commands, addresses, lengths, helpers.address, self.topology.worker_count)

    def estimate(self, commands: CommandList, lengths: array[int]) -> int:
        """Nanoseconds that a list may take on one thread, UNKNOWN until its functions have been run."""
        walker = walk.native_walker()
        if walker is None:
            return UNKNOWN
        ticks = walker.estimate(commands, lengths)
        return UNKNOWN if ticks < 0 else int(ticks * 1000 / walker.ticks_per_microsecond)

    def close(self) -> None:
        """Ends the helpers; lists are run by the submitting thread alone from now on."""
        with self._lock:
            self._closed = True
            helpers, self._helpers = self._helpers, None
        if helpers is not None:
            for thread in helpers.stop():
                thread.join()

    def _start(self, walker: NativeWalker) -> _Helpers | None:
        if self.topology.worker_count < 2 or self._closed:
            return None
        with self._lock:
            if self._helpers is None and not self._closed:
                self._helpers = _Helpers(self.name, self.topology, self._spin_nanoseconds, walker)
            return self._helpers

    def _after_fork(self) -> None:
        """In a forked child the helpers do not exist: they start anew when needed."""
        self._lock = threading.Lock()
        self._helpers = None


def _homes(topology: Topology) -> tuple[int | None, ...]:
    """The processor of each thread: as the topology says; one each if the team has all processors, else any.

    A helper that may run anywhere can wake up on the submitting thread's processor and stay for milliseconds.
    """
    allowed = sorted(os.sched_getaffinity(0))
    homes = topology.processors
    if homes == (None,) * len(allowed):
        homes = tuple(allowed)
    if any(home is not None and home >= 8 * MASK_SIZE for home in homes):
        return (None,) * len(homes)
    return homes


_teams: weakref.WeakSet[Team] = weakref.WeakSet()


def _close_all() -> None:
    for team in list(_teams):
        team.close()


def _restart_all() -> None:
    for team in list(_teams):
        team._after_fork()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_restart_all)
