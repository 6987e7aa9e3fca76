"""Collects what a device measures between profiling_begin and profiling_end."""

from __future__ import annotations

import abc
import os
import time
from _thread import _local, get_ident
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, ClassVar, Final

from jitree.base.arguments import natural, object_of
from jitree.base.finalizers import guard
from jitree.base.records import Flags, NamedTuple
from jitree.errors import FailedPreconditionError, is_interruption

if TYPE_CHECKING:
    from jitree.hal.waiting import Producer

OPERATION: Final = "operation"
"""The kind of a measurement of a whole operation of a queue. Others are those of steps
(:mod:`jitree.hal.stepwise`): ``dispatch``, ``fill``, ``copy``, ``update``."""


class ProfilingMode(Flags):
    NONE = 0
    QUEUE_OPERATIONS = 0x1
    """Times of queue operations."""
    DISPATCH_COUNTERS = 0x2
    """Times of dispatches, by executable and function, where the driver can tell."""
    EXECUTABLE_COUNTERS = 0x4


DISPATCHES: Final = int(ProfilingMode.DISPATCH_COUNTERS | ProfilingMode.EXECUTABLE_COUNTERS)


class Measurement(NamedTuple):
    """Times a queue operation, or one thread's part of a command. Times are nanoseconds of
    ``time.perf_counter_ns``."""

    name: str
    start: int
    duration: int
    kind: str = OPERATION
    submitted: int = 0
    """When, by which ``thread``; 0 where that was not noted."""
    thread: int = 0
    job: int = -1
    """Number of the execution that a command belongs to, and the command's in it."""
    row: int = -1
    worker: int = 0
    """Number of the thread, or of the timeline, that worked."""
    bytes: int = 0
    """Bytes of the memory that a command is bound to, at most what it moves; stated once for each command."""
    weight: float = 1.0
    """How many such, with those that were not timed, it stands for."""


class Timings(abc.ABC):
    """Times what a driver does while its device is profiled. It is the one place where a profile takes a
    driver's times from. A device makes it (:meth:`Device._timings`)."""

    worker: ClassVar[str] = "thread"
    """What the ``worker`` of a measurement is the number of."""
    lost = 0
    """Measurements that there was no room for, since the beginning."""

    @abc.abstractmethod
    def begin(self, mode: ProfilingMode) -> None:
        """Forgets what there was. Without one of DISPATCHES single commands are not wanted."""

    @abc.abstractmethod
    def end(self) -> None:
        """Times nothing more; waits for what has begun."""

    @abc.abstractmethod
    def measurements(self) -> Iterable[Measurement]:
        """What is done so far; the same again after the end."""

    @abc.abstractmethod
    def after_fork(self) -> None:
        """In a forked child nothing works."""


class CostlyTimings(Timings):
    """Slows calls by some per cent, so a session's profile mostly pauses it."""

    callers: Collection[int] = ()
    """Threads that have made calls while it timed, some of which may have ended; told before the end."""

    @abc.abstractmethod
    def pause(self) -> None:
        """Times nothing more until :meth:`resume`. Both wait for what has begun."""

    @abc.abstractmethod
    def resume(self) -> None:
        """Times what is submitted from now on."""


class _ThisWork(_local):
    number = 0
    """The number of the operation that runs here."""


class Profiler:
    """Collects measurements of one device; thread-safe."""

    def __init__(self) -> None:
        self._lock = guard()  # a forgotten session ends its profile wherever the garbage collector runs
        self._path: str | None = None
        self._measurements: list[Measurement] = []
        self._submissions: list[tuple[int, int]] = []
        self._waiting: dict[Producer, int] = {}
        self._here = _ThisWork()
        self.mode = ProfilingMode.NONE
        self.timings: Timings | None = None
        """What the driver times itself."""

    def begin(self, mode: ProfilingMode, path: str | None) -> None:
        with self._lock:
            if self.mode:
                raise FailedPreconditionError("the device is being profiled already; end that first")
            self._path = None if path is None else object_of("path", path, str, os.PathLike)
            self.mode = ProfilingMode(natural("mode", mode))
            self._measurements, self._submissions, self._waiting = [], [(0, 0)], {}
        if self.timings is not None:
            try:
                self.timings.begin(self.mode)
            except BaseException as error:
                self._path = None
                if is_interruption(error):
                    self.timings.end()
                self.mode = ProfilingMode.NONE
                raise

    def after_fork(self) -> None:
        """In a forked child no thread holds the lock, whatever it says, nor works."""
        self._lock = guard()
        if self.timings is not None:
            self.timings.after_fork()

    def add(
        self, name: str, start: int, end: int, kind: str = OPERATION, submitted: int = 0, thread: int = 0,
        size: int = 0,
    ) -> None:  # fmt: skip
        """Without ``submitted`` this thread has submitted it, and done it at once."""
        if not submitted:
            submitted, thread = start, get_ident()
        measured = Measurement(name, start, end - start, kind, submitted, thread, bytes=size)
        with self._lock:
            self._measurements.append(measured)

    # -- operations that Python submits ----------------------------------------------------------------

    def submit(self, operation: Producer) -> None:
        """Notes that this thread submits an operation."""
        with self._lock:
            self._waiting[operation] = len(self._submissions)
            self._submissions.append((now(), get_ident()))

    def measure(self, name: str, operation: Producer, work: Callable[[], object]) -> None:
        """Does the work of an operation."""
        here = self._here
        outer, here.number = here.number, self._waiting.pop(operation, 0)
        submitted, thread = self.submission(here.number)
        start = now()
        try:
            work()
        finally:
            here.number = outer
            self.add(name, start, now(), OPERATION, submitted, thread)

    @property
    def number(self) -> int:
        """The number of the operation that this thread executes; 0 for none."""
        return self._here.number

    def submission(self, number: int) -> tuple[int, int]:
        """When an operation was submitted, and by which thread."""
        return self._submissions[number] if number < len(self._submissions) else (0, 0)

    # -- results ---------------------------------------------------------------------------------------

    @property
    def worker(self) -> str:
        """What works: the word before the number of a thread, or of a timeline."""
        return Timings.worker if self.timings is None else self.timings.worker

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """Since the last beginning; kept after the end."""
        with self._lock:
            return (*self._measurements, *(() if self.timings is None else self.timings.measurements()))

    def flush(self) -> None:
        """Writes a trace for Chrome and Perfetto, when there is a path."""
        path = self._path
        if path is None:
            return
        import json  # not needed to start a process

        events = [
            {
                "ph": "X",
                "name": m.name,
                "ts": m.start / 1e3,
                "dur": m.duration / 1e3,
                "pid": 0,
                "tid": m.worker,
            }
            for m in self.measurements
        ]
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": events}, file)

    def end(self) -> None:
        if self.mode:
            if self.timings is not None:
                self.timings.end()
            self.flush()
            self.mode = ProfilingMode.NONE


def now() -> int:
    return time.perf_counter_ns()
