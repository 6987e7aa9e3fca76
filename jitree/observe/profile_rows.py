"""Renders a profile as rows, tables, or a trace in the format of Chrome.

Perfetto opens the trace. Threads of Python are one process of it, each device is another, with a track for
its operations and one for each thread or timeline that works. Times are microseconds since the profile has
begun.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from math import prod
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, overload

from jitree.base.events import DISPATCH
from jitree.base.tables import html_table, text_table
from jitree.errors import system_refusals
from jitree.hal.profiling import OPERATION
from jitree.observe.export_names import parse
from jitree.observe.profiled import line_of

if TYPE_CHECKING:
    from types import CodeType

    from jitree.observe.profiled import Noted, ProfiledCall

_CONTRACTIONS: Final = ("matmul", "matvec", "vecmat", "mmt4d", "conv", "dot", "contract")
"""Words in names of dispatches that multiply and add once in each iteration of their loops."""

_PYTHON: Final = 1
"""The number of the process; those of devices follow."""
_QUEUE: Final = 1_000_000
"""The number of a device's track of operations."""

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """What has one name. Times in seconds; None where it does not apply or is not known."""

    name: str
    calls: int
    total: float
    median: float
    worst: float
    share: float
    """The part of the time of all calls."""
    bytes: int | None = None
    """Bytes that dispatches were bound to, at most what they moved; what transfers moved."""
    gigabytes_per_second: float | None = None
    gigaflops: float | None = None
    """Billions of additions and multiplications in a second, where the name of a dispatch says how many."""
    threads: float | None = None
    """How many worked at the same time, on average."""
    waited: float | None = None
    """Between submission and start."""
    gaps: float | None = None
    """Between the commands of executions."""
    device: float | None = None
    """Seconds that devices worked for calls."""
    python: float | None = None
    """Seconds of calls in imports that Python makes, without what devices do there."""
    bytecode: float | None = None
    """Seconds of calls in the rest: bytecode, arguments and results."""
    location: str | None = None
    """The first line of a dispatch or a function in the source, where the module says it."""


_COLUMNS: Final[dict[str, tuple[str, Callable[[Any], str]]]] = {
    "calls": ("calls", "{:d}".format),
    "total": ("total ms", lambda seconds: f"{seconds * 1e3:.3f}"),
    "median": ("median us", lambda seconds: f"{seconds * 1e6:.2f}"),
    "worst": ("worst us", lambda seconds: f"{seconds * 1e6:.2f}"),
    "share": ("share", "{:.1%}".format),
    "gigabytes_per_second": ("GB/s", "{:.1f}".format),
    "gigaflops": ("GFLOP/s", "{:.2f}".format),
    "threads": ("threads", "{:.1f}".format),
    "waited": ("waited ms", lambda seconds: f"{seconds * 1e3:.3f}"),
    "gaps": ("gaps ms", lambda seconds: f"{seconds * 1e3:.3f}"),
    "device": ("device ms", lambda seconds: f"{seconds * 1e3:.3f}"),
    "python": ("python ms", lambda seconds: f"{seconds * 1e3:.3f}"),
    "bytecode": ("bytecode ms", lambda seconds: f"{seconds * 1e3:.3f}"),
    "location": ("location", str),
}


class ProfileTable(Sequence[ProfileRow]):
    """Rows, those with the most time first; a slice is a table."""

    def __init__(
        self, by: str, rows: Iterable[ProfileRow], note: str = "", rest: Iterable[ProfileRow] = ()
    ) -> None:
        self.by = by
        self.note = note
        """What the rows do not say."""
        self._rows = tuple(rows)
        self.rest = tuple(rest)
        """Time of the calls that no row has: with these a table by dispatch adds up to all calls."""

    @overload
    def __getitem__(self, index: int) -> ProfileRow: ...

    @overload
    def __getitem__(self, index: slice) -> ProfileTable: ...

    def __getitem__(self, index: int | slice) -> ProfileRow | ProfileTable:
        if isinstance(index, slice):
            return ProfileTable(self.by, self._rows[index], self.note)
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def first(self, count: int) -> ProfileTable:
        """Those with the most time, with what no row has."""
        return ProfileTable(self.by, self._rows[:count], self.note, self.rest)

    def __str__(self) -> str:
        return text_table(self._cells()) + (f"\n{self.note}" if self.note else "")

    __repr__ = __str__

    def _repr_html_(self) -> str:
        header, rows, note = self.parts()
        return html_table("", header, rows) + escape(note)

    def parts(self) -> tuple[list[str], list[list[str]], str]:
        """Header, rows and note, as they are shown."""
        header, *rows = self._cells()
        return header, rows, self.note

    def _cells(self) -> list[list[str]]:
        rows = self._rows + self.rest
        shown = [field for field in _COLUMNS if any(getattr(row, field) is not None for row in rows)]
        lines = [[self.by, *(_COLUMNS[field][0] for field in shown)]]
        for row in rows:
            values = ((field, getattr(row, field)) for field in shown)
            lines.append(
                [row.name, *("" if value is None else _COLUMNS[field][1](value) for field, value in values)]
            )
        return lines


class Durations:
    """What is added up for one row; nanoseconds."""

    def __init__(self) -> None:
        self._times: list[int] = []
        self._count = self._total = 0.0
        self.bytes = self.busy = self.waited = self.gaps = self.device = self.python = 0.0

    def add(self, time: int, weight: float = 1.0) -> None:
        """``weight``: how many such it stands for."""
        self._times.append(time)
        self._count += weight
        self._total += weight * time

    def row(self, name: str, whole: int) -> ProfileRow:
        times, total = self._times, self._total
        share = total / whole if whole else 0.0
        return ProfileRow(name, round(self._count), total / 1e9, median(times) / 1e9, max(times) / 1e9, share)

    def command(self, name: str, kind: str, whole: int) -> ProfileRow:
        """The row of a dispatch, or of a transfer in a command buffer."""
        row, total = self.row(name, whole), max(self._total, 1)
        row = replace(row, bytes=round(self.bytes), threads=self.busy / total)
        if self.bytes:
            row = replace(row, gigabytes_per_second=self.bytes / total)
        work = operations(name) if kind == DISPATCH else 0
        return replace(row, gigaflops=work * row.calls / total) if work else row

    def operation(self, name: str, whole: int) -> ProfileRow:
        return replace(self.row(name, whole), waited=self.waited / 1e9, gaps=self.gaps / 1e9)

    def caller(self, name: str, whole: int) -> ProfileRow:
        rest = self._total - self.device - self.python
        row = self.row(name, whole)
        return replace(row, device=self.device / 1e9, python=self.python / 1e9, bytecode=max(rest, 0) / 1e9)


def operations(name: str) -> int:
    """Additions and multiplications of a dispatch, as far as its name says; 0 where it does not."""
    parts = parse(name)
    is_contraction = any(word in parts.operation for word in _CONTRACTIONS)
    return 2 * prod(parts.loops) if is_contraction and parts.loops else 0


def write(noted: Noted, path: str | os.PathLike[str]) -> None:
    """UNAVAILABLE where the file cannot be written."""
    text = json.dumps({"traceEvents": list(_Trace(noted).events()), "displayTimeUnit": "ns"})
    with system_refusals(f"unable to write file `{os.fspath(path)}`"):
        Path(path).write_text(text, encoding="utf-8")


class _Trace:
    def __init__(self, noted: Noted) -> None:
        self._noted = noted
        self._begun = noted.begun
        self._threads: dict[int, int] = {}

    def events(self) -> Iterator[Event]:
        yield from self._calls()
        yield from self._work()
        yield _named("process", _PYTHON, 0, "Python")
        for number in self._threads.values():
            yield _named("thread", _PYTHON, number, f"thread {number}")

    def _thread(self, identity: int) -> int:
        return self._threads.setdefault(identity, len(self._threads) + 1)

    def _slice(self, name: str, place: tuple[int, int], begun: int, ended: int, **arguments: Any) -> Event:
        process, thread = place
        if self._noted.places.get(name):
            arguments |= {"location": self._noted.places[name]}
        event = {
            "ph": "X", "name": name, "pid": process, "tid": thread,
            "ts": self._time(begun), "dur": (ended - begun) / 1e3,
        }  # fmt: skip
        return event | {"args": arguments} if arguments else event

    def _time(self, at: int) -> float:
        return (at - self._begun) / 1e3

    # -- Python ------------------------------------------------------------------------------------------

    def _calls(self) -> Iterator[Event]:
        """Calls and imports, inside the functions of Python that they come from."""
        by_thread: dict[int, list[ProfiledCall]] = defaultdict(list)
        for call in self._noted.calls:
            by_thread[call.thread].append(call)
        for identity, calls in by_thread.items():
            place = _PYTHON, self._thread(identity)
            for code, line, begun, ended in frames(calls):
                yield self._slice(code.co_qualname, place, begun, ended, file=code.co_filename, line=line)
            for call in calls:
                yield self._slice(call.function, place, call.begun, call.ended, call_site=call.site)
        for each in self._noted.imports:
            yield self._slice(each.name, (_PYTHON, self._thread(each.thread)), each.begun, each.ended)

    # -- devices -----------------------------------------------------------------------------------------

    def _work(self) -> Iterator[Event]:
        numbers: dict[int, int] = {}
        tracks: set[tuple[int, int]] = set()
        for index, (device, measured) in enumerate(self._noted.measurements):
            if id(device) not in numbers:
                numbers[id(device)] = _PYTHON + 1 + len(numbers)
                yield _named("process", numbers[id(device)], 0, device.uri)
            is_operation = measured.kind == OPERATION
            place = numbers[id(device)], _QUEUE if is_operation else measured.worker
            if place not in tracks:
                tracks.add(place)
                worker = "" if is_operation else f"{device.profiler.worker} {measured.worker}"
                yield _named("thread", *place, worker or "queue")
            ended = measured.start + measured.duration
            details = {"bytes": measured.bytes} if measured.bytes else {}
            yield self._slice(measured.name, place, measured.start, ended, **details)
            if is_operation and measured.submitted:
                flow = {"cat": "submission", "name": measured.name, "id": index}
                submitter = self._thread(measured.thread)
                yield flow | {
                    "ph": "s",
                    "pid": _PYTHON,
                    "tid": submitter,
                    "ts": self._time(measured.submitted),
                }
                start = self._time(measured.start)
                yield flow | {"ph": "f", "bp": "e", "pid": place[0], "tid": place[1], "ts": start}


def frames(calls: Sequence[ProfiledCall]) -> Iterator[tuple[CodeType, int, int, int]]:
    """The functions of Python that calls of one thread come from: code, line, from the first to the last of
    consecutive calls that came from there."""
    open_frames: list[tuple[CodeType, int, int]] = []
    last = 0
    for call in sorted(calls, key=lambda call: call.begun):
        stack = [(code, line_of(code, place)) for code, place in reversed(call.stack)]
        common = 0
        while common < min(len(stack), len(open_frames)) and stack[common] == open_frames[common][:2]:
            common += 1
        for code, line, begun in open_frames[common:]:
            yield code, line, begun, last
        open_frames[common:] = [(code, line, call.begun) for code, line in stack[common:]]
        last = call.ended
    for code, line, begun in open_frames:
        yield code, line, begun, last


def _named(what: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": f"{what}_name", "pid": process, "tid": thread, "args": {"name": name}}
