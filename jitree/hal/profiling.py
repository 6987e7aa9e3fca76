"""What a device measured between profiling_begin and profiling_end."""

from __future__ import annotations

import os
import time
from _thread import allocate_lock

from jitree.base.arguments import natural, object_of
from jitree.base.flags import Flags
from jitree.base.records import NamedTuple
from jitree.errors import FailedPreconditionError


class ProfilingMode(Flags):
    NONE = 0
    QUEUE_OPERATIONS = 0x1
    """Times of queue operations."""
    DISPATCH_COUNTERS = 0x2
    """Times of dispatches, by executable and function, where the driver can tell."""
    EXECUTABLE_COUNTERS = 0x4


class Measurement(NamedTuple):
    """One operation; times in nanoseconds of ``time.perf_counter_ns``."""

    name: str
    start: int
    duration: int


class Profiler:
    """Collects measurements of one device; thread-safe."""

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._path: str | None = None
        self._measurements: list[Measurement] = []
        self.mode = ProfilingMode.NONE

    def begin(self, mode: ProfilingMode, path: str | None) -> None:
        with self._lock:
            if self.mode:
                raise FailedPreconditionError("the device is being profiled already; end that first")
            self._path = None if path is None else object_of("path", path, str, os.PathLike)
            self.mode = ProfilingMode(natural("mode", mode))
            self._measurements = []

    def after_fork(self) -> None:
        """In a forked child no thread holds the lock, whatever it says."""
        self._lock = allocate_lock()

    def add(self, name: str, start: int, end: int) -> None:
        with self._lock:
            self._measurements.append(Measurement(name, start, end - start))

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """Since the last beginning; kept after the end."""
        with self._lock:
            return tuple(self._measurements)

    def flush(self) -> None:
        """Writes the measurements as a trace that Chrome and Perfetto open, when there is a path."""
        path = self._path
        if path is None:
            return
        import json  # not needed to start a process

        events = [
            {"ph": "X", "name": m.name, "ts": m.start / 1e3, "dur": m.duration / 1e3, "pid": 0, "tid": 0}
            for m in self.measurements
        ]
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": events}, file)

    def end(self) -> None:
        if self.mode:
            self.flush()
            self.mode = ProfilingMode.NONE

    def summary(self) -> str:
        """A table: count, total and mean microseconds per operation name, most expensive first."""
        totals: dict[str, list[int]] = {}
        for measurement in self.measurements:
            row = totals.setdefault(measurement.name, [0, 0])
            row[0] += 1
            row[1] += measurement.duration
        lines = [f"{'operation':<32} {'count':>8} {'total us':>12} {'mean us':>12}"]
        for name, (count, total) in sorted(totals.items(), key=lambda item: -item[1][1]):
            lines.append(f"{name:<32} {count:>8} {total / 1e3:>12.1f} {total / 1e3 / count:>12.2f}")
        return "\n".join(lines) + "\n"


def now() -> int:
    return time.perf_counter_ns()
