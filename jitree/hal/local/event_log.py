"""Reads what the command executor measures while a device is profiled (LOG)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from jitree.base.events import DISPATCH
from jitree.base.platform.threads import order_stores
from jitree.base.records import rows_of
from jitree.codegen.record import atomic_load, atomic_store, layout_of, size_of
from jitree.errors import UnavailableError
from jitree.hal.command_layout import (
    KIND_COPY,
    KIND_FILL,
    KIND_UPDATE,
    WHOLE_JOB,
    Log,
    LoggedEvent,
)
from jitree.hal.executable import LocalExecutable, prepared_executables
from jitree.hal.local import executor
from jitree.hal.profiling import DISPATCHES, OPERATION, Measurement, Profiler, ProfilingMode, Timings
from jitree.regs.memory import MemoryBlock, address_of, zeroed

if TYPE_CHECKING:
    from jitree.hal.local.executor.calling import NativeExecutor
    from jitree.hal.local.queue_record import QueueRecord

CAPACITY: Final = 1 << 23
"""Events: 512 MiB of memory if all are there."""
_READY: Final = 1 << 18
"""Events whose memory is there from the beginning: the first use of a page, of 64 events, takes the system a
microsecond or more, which is longer than noting them takes."""
_PAGE: Final = 4096
EXECUTE: Final = "execute"
_TRANSFERS: Final = {KIND_FILL: "fill", KIND_COPY: "copy", KIND_UPDATE: "update"}
_PAUSE: Final = 1e-4


class EventLog(Timings):
    """Jobs that have begun are waited for at the end."""

    def __init__(self, profiler: Profiler, queues: Sequence[QueueRecord]) -> None:
        self._memory = zeroed(size_of(Log), 128)
        self._log = Log(address_of(self._memory))
        self._profiler = profiler
        self._queues = queues
        self._block: MemoryBlock | None = None
        self._clock: NativeExecutor | None = None
        self._begun = 0, 0
        self._has_commands = False
        self._found: tuple[bytes, dict[int, str], tuple[int, int]] = b"", {}, (0, 0)

    @property
    def address(self) -> int:
        """The address of the Log record."""
        return address_of(self._memory)

    def begin(self, mode: ProfilingMode) -> None:
        """Settles whether machine code or Python executes lists before the first event. They have two
        clocks."""
        self._has_commands = bool(mode & DISPATCHES)
        self.lost = 0
        try:
            self._clock = executor.require_native_executor() if executor.SUPPORTED else None
        except UnavailableError:
            self._clock = None
        self._block = MemoryBlock(CAPACITY * size_of(LoggedEvent))
        self._block.array[: _READY * size_of(LoggedEvent) : _PAGE] = 0
        log = self._log
        # order of next: a number alone
        atomic_store(log.next, 0)
        # order of jobs: a number alone
        atomic_store(log.jobs, 0)
        self._begun = self._moment()
        log.events = LoggedEvent(self._block.address)
        # order of capacity: jobs that see it see the rest
        order_stores()
        atomic_store(log.capacity, CAPACITY)
        for queue in self._queues:
            queue.tell(self.address)

    def end(self) -> None:
        for queue in self._queues:
            queue.tell(0)
        log = self._log
        # order of capacity: a job that begins sees this, or is seen below
        atomic_store(log.capacity, 0)
        order_stores()
        # order of users: before `capacity`; releases the events at the end
        while atomic_load(log.users):  # jobs that have begun may be writing an event
            time.sleep(_PAUSE)
        log.events = LoggedEvent(0)
        # order of next: a number alone
        self.lost = max(0, atomic_load(log.next) - CAPACITY)
        if self._block is not None:  # else an interrupt came before there was one
            self._found = self._written()
        self._block = None

    def after_fork(self) -> None:
        """In a forked child no thread is in a job."""
        # order of users: before `capacity`; releases the events at the end
        atomic_store(self._log.users, 0)

    def measurements(self) -> Iterator[Measurement]:
        data, names, now = self._found if self._block is None else self._written()
        per_tick = self._nanoseconds_per_tick(now)
        jobs: dict[int, list[str]] = {}
        for begun, ended, what, job, origin, thread, size, row, worker in rows_of(
            layout_of(LoggedEvent).packer(), data
        ):
            if not ended:
                continue
            start, end = (self._begun[1] + int((at - self._begun[0]) * per_tick) for at in (begun, ended))
            submitted, submitter = self._profiler.submission(origin) if origin else (start, thread)
            if what == WHOLE_JOB:
                commands = jobs.pop(job, [])
                if not origin:  # Python has measured the others
                    single = len(commands) == 1 and commands[0] in _TRANSFERS.values()
                    name = commands[0] if single else EXECUTE
                    yield Measurement(name, start, end - start, OPERATION, submitted, submitter, job)
                continue
            kind = _TRANSFERS.get(what, DISPATCH)
            name = names.get(what, "a function of an executable that is gone") if kind == DISPATCH else kind
            jobs.setdefault(job, []).append(name)
            if self._has_commands:
                place = job, row, worker, size
                yield Measurement(name, start, end - start, kind, submitted, submitter, *place)

    def _written(self) -> tuple[bytes, dict[int, str], tuple[int, int]]:
        """The events so far, names of functions, ticks and time now."""
        assert self._block is not None
        # order of next: a number alone
        count = min(atomic_load(self._log.next), CAPACITY)
        data = self._block.array[: count * size_of(LoggedEvent)].tobytes()
        executables = (e for e in prepared_executables() if isinstance(e, LocalExecutable))
        return data, _names(executables), self._moment()

    def _nanoseconds_per_tick(self, now: tuple[int, int]) -> float:
        return 1.0 if self._clock is None else self._clock.nanoseconds_per_tick(now)

    def _moment(self) -> tuple[int, int]:
        return (0, 0) if self._clock is None else self._clock.moment()


def _names(executables: Iterable[LocalExecutable]) -> dict[int, str]:
    """Names of functions, by the address of their entry points."""
    names = {}
    for executable in executables:
        for ordinal in range(executable.function_count):
            name = executable.function_name(ordinal) or f"{executable.name}[{ordinal}]"
            names[executable.entry_point(ordinal)] = name
    return names
