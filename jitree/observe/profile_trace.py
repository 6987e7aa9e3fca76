"""A profile as a trace in the format of Chrome, which Perfetto opens.

Threads of Python are one process of the trace, each device is another, with a track for its operations and
one for each thread or stream that works. Times are microseconds since the profile has begun.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from jitree.errors import UnavailableError, pass_interruption
from jitree.hal.profiling import OPERATION
from jitree.observe.profiled import line_of

if TYPE_CHECKING:
    from types import CodeType

    from jitree.observe.profiled import Noted, ProfiledCall

_PYTHON: Final = 1
"""The number of the process; those of devices follow."""
_QUEUE: Final = 1_000_000
"""The number of a device's track of operations."""

Event = dict[str, Any]


def write(noted: Noted, path: str | os.PathLike[str]) -> None:
    """UNAVAILABLE where the file cannot be written."""
    text = json.dumps({"traceEvents": list(_Trace(noted).events()), "displayTimeUnit": "ns"})
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        pass_interruption(error)
        raise UnavailableError(f"unable to write file `{os.fspath(path)}`: {error.strerror}") from error


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
