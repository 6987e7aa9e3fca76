"""Shares command lists between the submitting thread and a team of helpers.

Helpers live in native code: they spin for some microseconds after the last work, then park on a word.
What is too small to be worth their help runs on the submitting thread alone. See README.md.
"""

from __future__ import annotations

import atexit
import os
import threading
from array import array
from typing import Final

import numpy as np

from jitree.base.finalizers import Finalizer, SharedWeakSet, guard, join, start_thread, uninterrupted
from jitree.base.platform.available_resources import available_processors
from jitree.base.platform.threads import CAN_PARK, PARKING_CALL, allowed_processors
from jitree.base.records import NamedTuple
from jitree.codegen.record import atomic_load, atomic_store, size_of
from jitree.errors import pass_interruption
from jitree.hal import watchdog
from jitree.hal.command_layout import KNOWN_LISTS, MASK_SIZE, Functions, Helper, MeasuredList, ThreadTeam
from jitree.hal.command_list import CommandList
from jitree.hal.local import executor
from jitree.hal.local.executor.calling import FUNCTION_TABLE_ADDRESS, NOT_LOGGED, NativeExecutor
from jitree.hal.local.queue_record import NO_TEAM, QueueRecord
from jitree.hal.local.topology import Topology, homes
from jitree.regs.memory import address_of, zeroed

SPINNING_NANOSECONDS: Final = 6_000
"""Work that is worth sharing while a helper spins. Joining costs 0.2 us, but data that one processor has just
written costs the other more: with 3 us a loop of small dispatches took twice the time of one thread, from 6
us on nothing of the kind was measured."""
PARKED_NANOSECONDS: Final = 60_000
"""Work that is worth waking helpers (measured: 60 to 100 us)."""
UNKNOWN: Final = -1


class InlineLimits(NamedTuple):
    """Nanoseconds that a command list may take for a call to execute it itself."""

    immediate: int
    """A call that must not be held up."""
    inline_limit: int
    """A call that waits for it anyway, and has its session for itself meanwhile."""


NO_LIMITS: Final = InlineLimits(0, 0)


class _Helpers:
    """A ThreadTeam record and the threads that serve it. Threads hold this and not the team, so that a
    forgotten team can end. The record outlives its threads: a thread that still uses it does all the work
    alone."""

    def __init__(self, name: str, topology: Topology, spin_nanoseconds: int, native: NativeExecutor) -> None:
        self.name = name
        self.thread_count = topology.worker_count if CAN_PARK else 1
        self._memory = zeroed(size_of(ThreadTeam), 128)
        self._helpers = zeroed(size_of(Helper) * topology.worker_count, 128)
        self._lists = zeroed(size_of(MeasuredList) * KNOWN_LISTS, 128)
        self.address = address_of(self._memory)
        team = self._team = ThreadTeam(self.address)
        team.helpers = address_of(self._helpers)
        team.lists = address_of(self._lists)
        self._native = native
        self._dismiss = native.dismiss
        """Made here: what ends threads may come when Python ends."""
        self._processors = available_processors() if self.thread_count > 1 else 1
        allowed = sorted(allowed_processors())
        places = homes(topology, self._processors)
        self._masks = b"".join(_mask(allowed if place is None else [place]) for place in places)
        """Where each thread may run."""
        ticks = native.ticks_per_microsecond / 1000
        team.functions = Functions(FUNCTION_TABLE_ADDRESS)
        team.spin_ticks = int(spin_nanoseconds * ticks)
        team.spinning_ticks = int(SPINNING_NANOSECONDS * ticks)
        team.parked_ticks = int(PARKED_NANOSECONDS * ticks)
        team.masks = address_of(np.frombuffer(self._masks, np.uint8))
        team.parking_call = PARKING_CALL
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Starts the threads, as many as the system gives. Those of an earlier time have been stopped; one
        whose start was interrupted, and that begins from now on, ends at once."""
        earlier, self._threads = self._threads, []
        _join([earlier])
        # order of posted: before `asleep` is loaded, as helpers do the other way round
        atomic_store(self._team.posted, 0)
        # order of workers: `QueueRecord.share` comes later; a number that is too large wakes no thread
        self._team.workers = self.thread_count - 1
        self._team.most = min(self.thread_count, self._processors) - 1
        self._start(1)

    def _start(self, number: int) -> None:
        """Starts a thread, which starts the next one: a caller that wants the team waits for the first
        alone. A thread in the list has been started when the one before it ends."""
        if number == self.thread_count:
            return
        thread = threading.Thread(
            target=self._serve, args=(number,), name=f"{self.name}.{number}", daemon=True
        )
        self._threads.append(thread)
        try:
            start_thread(thread)
        except RuntimeError as error:
            pass_interruption(error)
            self._threads.pop()
            self._team.workers = number - 1
            self._team.most = min(self._team.most, number - 1)

    def _serve(self, number: int) -> None:
        if threading.current_thread() not in self._threads:
            return
        self._start(number + 1)
        self._native.serve(self.address, number)

    def stop(self) -> list[threading.Thread]:
        """Lets the threads end; they are to be joined."""
        self._dismiss(self.address)
        return self._threads

    def report(self) -> str:
        """What the helpers do, for the watchdog."""
        team = self._team
        finished, limit, busy = [atomic_load(word) for word in (team.finished, team.limit, team.busy)]
        done = f"{finished} of {limit & 0xFFFFFFFF} chunks done" if busy else "no work"
        count = len(self._threads)
        asleep = sum(
            # order of asleep: before `posted` is loaded; the other side, the other way round
            atomic_load(Helper(team.helpers + number * size_of(Helper)).asleep)
            for number in range(1, count + 1)
        )
        return f"{self.name}: {count} helpers, {asleep} asleep; {done}"


class Team:
    """Runs command lists on a queue's threads and the one that submits."""

    def __init__(
        self,
        name: str,
        topology: Topology,
        spin_microseconds: int,
        record: QueueRecord | None = None,
        limits: InlineLimits = NO_LIMITS,
    ) -> None:
        """``topology.worker_count`` threads work together, from :meth:`start` or the first list on.

        ``record`` is told then which team to use, with the ``limits`` of what calls do themselves.
        """
        self.name = name
        self.topology = topology
        self._spin_nanoseconds = spin_microseconds * 1000
        self._limits = limits
        self._record = record or QueueRecord()
        self._record.hold(NO_TEAM)
        self._lock = guard()  # a forgotten device closes it wherever the garbage collector runs
        self._helpers: _Helpers | None = None
        self._all: dict[int, _Helpers] = {}
        """By number of threads. Machine code may still read a record that has been replaced, so they stay."""
        self._ending = Finalizer(None)
        """Lets the helpers' threads end."""
        self._closed = False
        _teams.add(self)
        watchdog.ask(self)

    def start(self) -> None:
        """Starts the helpers if the native executor is there. From then on machine code uses the team."""
        if self._helpers is None:
            native = executor.native_executor()
            if native is not None:
                self._start(native)

    def execute(
        self,
        commands: CommandList,
        addresses: array[int],
        lengths: array[int],
        accesses: array[int],
        logged: tuple[int, int] = NOT_LOGGED,
    ) -> None:
        """As :func:`executor.execute`, shared with the helpers where that is worth it.

        Any number of threads may call this; one at a time has the helpers, the others run alone.
        """
        native = executor.native_executor()
        if native is None:
            executor.execute(commands, addresses, lengths, accesses, logged)
            return
        helpers = self._helpers or self._start(native)
        if helpers is None:
            native.execute(commands, addresses, lengths, accesses, logged=logged)
        else:
            native.execute(
                commands, addresses, lengths, accesses, helpers.address, helpers.thread_count, logged
            )

    def estimate(self, commands: CommandList, lengths: array[int]) -> int:
        """Estimates nanoseconds of a list on one thread; UNKNOWN before functions have run."""
        native = executor.native_executor()
        if native is None:
            return UNKNOWN
        ticks = native.estimate(commands, lengths)
        return UNKNOWN if ticks < 0 else int(ticks * 1000 / native.ticks_per_microsecond)

    def resize(self, topology: Topology) -> None:
        """Changes the threads, from the next list on."""
        with self._lock:
            self.topology = topology
            stopped = self._stop()
        _join(stopped)

    def close(self) -> None:
        """Ends the helpers; lists are run by the submitting thread alone from now on. Again, it does what was
        left when it was interrupted."""
        with self._lock:
            self._closed = True
            stopped = self._stop()
        _join(stopped)

    def report(self) -> list[str]:
        """As :meth:`watching.Reporter.report`."""
        helpers = self._helpers
        return [] if helpers is None else [helpers.report()]

    def _start(self, native: NativeExecutor) -> _Helpers | None:
        with self._lock:
            if self._helpers is None and not self._closed:
                self._helpers = self._ready(native)
            if self._closed:  # perhaps in the meantime
                self._stop()
            return self._helpers

    def _ready(self, native: NativeExecutor) -> _Helpers:
        """Helpers with their threads running; the caller holds the lock."""
        count = self.topology.worker_count
        helpers = self._all.get(count)
        if helpers is None:
            helpers = _Helpers(self.name, self.topology, self._spin_nanoseconds, native)
            self._all[count] = helpers
        self._ending = Finalizer(uninterrupted(helpers.stop))
        try:
            helpers.start()
        except BaseException:  # it was interrupted: some helpers run, and the caller never gets them to stop
            helpers.stop()
            raise
        immediate, inline_limit = (int(limit * native.ticks_per_microsecond / 1000) for limit in self._limits)
        self._record.share(helpers.address, immediate, inline_limit)
        self._record.release(NO_TEAM)
        return helpers

    def _stop(self) -> list[list[threading.Thread]]:
        """Ends the helpers; the threads to join, with those of earlier times, whose end may have been
        interrupted. The caller holds the lock."""
        self._record.hold(NO_TEAM)
        stopped = [helpers.stop() for helpers in self._all.values()]
        self._helpers = None
        self._ending.cancel()
        return stopped

    def _after_fork(self) -> None:
        """In a forked child the helpers do not exist: they start anew, with new records, when
        needed."""
        self._lock = guard()
        self._ending.cancel()
        self._helpers = None
        self._all = {}
        self._record.after_fork()
        self._record.hold(NO_TEAM)


def _join(stopped: list[list[threading.Thread]]) -> None:
    for threads in stopped:
        for thread in threads:
            if thread.ident is not None:  # its start was not interrupted
                join(thread)


def _mask(processors: list[int]) -> bytes:
    bits = sum(1 << processor for processor in processors if processor < 8 * MASK_SIZE)
    return bits.to_bytes(MASK_SIZE, "little")


_teams: Final[SharedWeakSet[Team]] = SharedWeakSet()


def _close_all() -> None:
    for team in _teams:
        team.close()


def _restart_all() -> None:
    for team in _teams:
        team._after_fork()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_restart_all)
