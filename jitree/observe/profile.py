"""Shows where a session's time goes. It is told by dispatch, function, import, line of Python and operation
of a device.

Devices measure what they execute (:mod:`jitree.hal.profiling`), calls are noted where Python makes them. What
a device did belongs to the call in which the same thread submitted it.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from jitree.base.arguments import object_of
from jitree.base.events import DISPATCH
from jitree.base.finalizers import Finalized, Unique
from jitree.base.page import Piece, notebook
from jitree.base.tables import html_text
from jitree.errors import FailedPreconditionError, InvalidArgumentError, folded
from jitree.hal.executable import prepared_executables
from jitree.hal.profiling import OPERATION, CostlyTimings, Measurement, ProfilingMode
from jitree.observe.profile_rows import Durations, ProfileRow, ProfileTable
from jitree.observe.profiled import CallParts, CallRecorder, DoneCommand, Noted, ProfiledCall, ProfiledImport

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from jitree.hal.device import Device
    from jitree.observe.profiled import Sampler, Samples

BY: Final = ("dispatch", "function", "import", "call site", "device operation")
_WORTH_TELLING: Final = 0.05
"""The least part of the calls' time that a table tells of."""
_MODE: Final = ProfilingMode.QUEUE_OPERATIONS | ProfilingMode.DISPATCH_COUNTERS

Interval = tuple[int, int]


class Profile(Unique, Finalized):
    """Measures until the end of a ``with`` block, or :meth:`stop`. Tables may be asked for when it has.

    It ends where nothing refers to it, too."""

    def __init__(self, devices: Sequence[Device], notes: CallRecorder) -> None:
        self.notes = notes
        self._devices: list[Device] = []
        self._measured: list[tuple[Device, Measurement]] = []
        self.begun = self._ended = 0
        self._is_done = False
        self._sampler: Sampler | None = None
        self.places: dict[str, str] = {}
        """Lines of the source that dispatches and functions come from."""
        self.will_end()
        try:
            notes.start()
            for device in devices:
                self._begin(device)
            timings = (device.profiler.timings for device in self._devices)
            costly = [each for each in timings if isinstance(each, CostlyTimings)]
            if costly:
                from jitree.observe import profiled

                self._sampler = profiled.Sampler(costly)
                notes.before, notes.after = self._sampler.before, self._sampler.after
        except BaseException:
            self.stop()
            raise
        self.begun = perf_counter_ns()

    def _begin(self, device: Device) -> None:
        """Has a device measure. It is noted first: an interrupt of what follows leaves nothing."""
        self._devices.append(device)
        try:
            device.profiling_begin(_MODE)
        except FailedPreconditionError:  # another measures
            self._devices.remove(device)
            raise

    @property
    def is_going_on(self) -> bool:
        return not self._ended

    def stop(self) -> None:
        """Measures nothing more. Waits for command buffers that are being executed. Again, it does what an
        interrupt has left."""
        if self._is_done:
            return
        self._ended = self._ended or perf_counter_ns()
        self.notes.stop()
        for device in self._devices:
            device.finish_submitted()
        if self._sampler is not None:
            self._sampler.stop({call.thread for call in self.calls})
        self._measured = []
        for device in self._devices:
            device.profiling_end()
            measurements: Iterable[Measurement] = device.profiler.measurements
            if self.samples is not None and device.profiler.timings:
                measurements = self.samples.weighed(device.profiler.measurements)
            self._measured += [(device, measured) for measured in measurements]
        self._find_places()
        self._is_done = True

    def end(self) -> None:
        """Nothing refers to it any more."""
        self.stop()

    def __enter__(self) -> Profile:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.stop()

    def _find_places(self) -> None:
        """Executables may be gone when a table is asked for."""
        self.places = dict(self.notes.places)
        dispatches = {measured.name for _, measured in self._measured if measured.kind == DISPATCH}
        for executable in prepared_executables() if dispatches else ():
            for number in range(executable.function_count):
                name = executable.function_name(number)
                if name in dispatches:
                    self.places[name] = next(iter(executable.places(number)), "")

    # -- what was measured -----------------------------------------------------------------------------

    @cached_property
    def calls(self) -> tuple[ProfiledCall, ...]:
        self.require_ended()
        return tuple(self.notes.noted)

    def require_ended(self) -> None:
        if not self._ended:
            raise FailedPreconditionError("the profile has not ended; ask after the with block, or stop() it")

    @cached_property
    def samples(self) -> Samples | None:
        """The calls whose work was timed; None for all."""
        return None if self._sampler is None else self._sampler.samples(self.calls)

    @property
    def imports(self) -> tuple[ProfiledImport, ...]:
        return tuple(self.notes.imports)

    @property
    def measurements(self) -> tuple[tuple[Device, Measurement], ...]:
        """The measurements of the devices."""
        return tuple(self._measured)

    def restrict(self, is_chosen: Callable[[Device, Measurement], bool]) -> None:
        """Forgets the commands that are not chosen; operations stay."""
        self.require_ended()
        self._measured = [each for each in self._measured if each[1].kind == OPERATION or is_chosen(*each)]

    @property
    def total(self) -> float:
        """Seconds that all calls took."""
        return self._whole / 1e9

    @property
    def rows(self) -> ProfileTable:
        """The table by dispatch."""
        return self.table()

    @folded
    def table(self, by: str = "dispatch") -> ProfileTable:
        """``by`` is "dispatch", "function", "import", "call site" or "device operation". Dispatches come with
        the fills, copies and updates of command buffers.

        INVALID_ARGUMENT for anything else, FAILED_PRECONDITION before the end."""
        if by not in BY:
            raise InvalidArgumentError(f"table: by={by!r}; it is one of {', '.join(BY)}")
        self.require_ended()
        make = {"dispatch": self._dispatches, "import": self._imports, "device operation": self._operations}
        rows = make[by]() if by in make else self._callers(by)
        if by in ("dispatch", "function"):
            rows = (replace(row, location=self.places.get(row.name) or None) for row in rows)
        rest = self._between() if by == "dispatch" and self.samples is None else ()
        return ProfileTable(by, sorted(rows, key=lambda row: -row.total), self._note(by), rest)

    @folded
    def plot(self, by: str = "dispatch", count: int = 10) -> Figure:
        """Draws a bar for each of the rows with the most time. ``count``: how many of :meth:`table`. It gives
        a figure of matplotlib, which notebooks show (``figure.savefig("profile.png")`` writes it).

        UNAVAILABLE without matplotlib; as of :meth:`table`."""
        from jitree.observe.plots import plot_table

        return plot_table(self.table(by), count)

    @folded
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a trace that Perfetto and Chrome open: threads and timelines, calls with the Python
        functions that they come from, and arrows from submissions to executions."""
        path = object_of("path", path, str, os.PathLike)
        from jitree.observe.profile_rows import write

        write(self._found, path)

    @property
    def _found(self) -> Noted:
        return Noted(self.begun, self.calls, self.imports, self.measurements, self.places)

    def __str__(self) -> str:
        return str(self.table()) if self._ended else "<a profile that has not ended>"

    __repr__ = __str__

    def pieces(self) -> list[Piece]:
        """Tables and a timeline, for a page."""
        from jitree.observe.graph import profile_pieces

        tables = map(self.table, ("dispatch", "function", "device operation"))
        return profile_pieces(tables, self._found)

    def _repr_html_(self) -> str:
        return notebook("profile", self.pieces()) if self._ended else html_text("", str(self))

    # -- tables ------------------------------------------------------------------------------------------

    @cached_property
    def _whole(self) -> int:
        return sum(call.ended - call.begun for call in self.calls)

    @cached_property
    def commands(self) -> list[DoneCommand]:
        """Each once, of whatever threads have done it."""
        parts: dict[tuple[int, int, int], list[Measurement]] = defaultdict(list)
        for number, (device, measured) in enumerate(self._measured):
            if measured.kind != OPERATION:
                single = number if measured.row < 0 else -1
                parts[id(device), measured.job, measured.row if single < 0 else ~single].append(measured)
        return [
            DoneCommand(
                every[0].name,
                every[0].kind,
                min(part.start for part in every),
                max(part.start + part.duration for part in every),
                sum(part.duration for part in every),
                max(part.bytes for part in every),
                every[0].weight,
            )
            for every in parts.values()
        ]

    def _dispatches(self) -> Iterator[ProfileRow]:
        found: dict[tuple[str, str], Durations] = defaultdict(Durations)
        for command in self.commands:
            sums = found[command.name, command.kind]
            sums.add(command.ended - command.begun, command.weight)
            sums.bytes += command.weight * command.bytes
            sums.busy += command.weight * command.busy
        return (sums.command(name, kind, self._whole) for (name, kind), sums in found.items())

    def _operations(self) -> Iterator[ProfileRow]:
        found: dict[str, Durations] = defaultdict(Durations)
        done = merged((command.begun, command.ended) for command in self.commands)
        for _, measured in self._measured:
            if measured.kind == OPERATION:
                sums, weight = found[measured.name], measured.weight
                sums.add(measured.duration, weight)
                if measured.submitted:
                    sums.waited += weight * max(0, measured.start - measured.submitted)
                if measured.name == "execute":
                    sums.gaps += weight * (measured.duration - covered(done, span(measured)))
        return (sums.operation(name, self._whole) for name, sums in found.items())

    def _imports(self) -> Iterator[ProfileRow]:
        found: dict[str, Durations] = defaultdict(Durations)
        for each in self.imports:
            found[each.name].add(each.ended - each.begun)
        return (sums.row(name, self._whole) for name, sums in found.items())

    def _callers(self, by: str) -> Iterator[ProfileRow]:
        found: dict[str, Durations] = defaultdict(Durations)
        for call, parts in self._parts:
            sums = found[call.site if by == "call site" else call.function]
            sums.add(call.ended - call.begun)
            weight = 1.0 if self.samples is None else self.samples.weight(call)
            sums.device += weight * parts.device
            sums.python += weight * parts.python
        return (sums.caller(name, self._whole) for name, sums in found.items())

    @cached_property
    def _parts(self) -> list[tuple[ProfiledCall, CallParts]]:
        """What each call consists of."""
        work, commands, imports = (defaultdict[int, list[Interval]](list) for _ in range(3))
        for _, measured in self._measured:
            (work if measured.kind == OPERATION else commands)[measured.thread].append(span(measured))
        for each in self.imports:
            imports[each.thread].append((each.begun, each.ended))
        device = {thread: merged(spans) for thread, spans in work.items()}
        dispatched = {thread: merged(spans) for thread, spans in commands.items()}
        python = {thread: merged([*spans, *work[thread]]) for thread, spans in imports.items()}
        found = []
        for call in self.calls:
            whole, thread = (call.begun, call.ended), call.thread
            worked = covered(device.get(thread, []), whole)
            between = worked - covered(dispatched.get(thread, []), whole)
            away = max(0, covered(python.get(thread, []), whole) - worked)
            found.append((call, CallParts(worked, max(0, between), away)))
        return found

    def _between(self) -> Iterator[ProfileRow]:
        """What of the calls is no dispatch."""
        names = "(between dispatches)", "(imports in Python)", "(bytecode, arguments, results)"
        sums = [Durations() for _ in names]
        for call, parts in self._parts:
            rest = call.ended - call.begun - parts.device - parts.python
            for durations, time in zip(sums, (parts.between, parts.python, max(0, rest)), strict=True):
                durations.add(time)
        rows = zip(names, sums, strict=True) if self.calls else ()
        return (durations.row(name, self._whole) for name, durations in rows)

    @cached_property
    def _outside(self) -> float:
        """The part of the calls in which no device works for them."""
        rows = list(self._callers("function"))
        whole = sum(row.total for row in rows)
        return 1 - sum(row.device or 0.0 for row in rows) / whole if whole else 0.0

    def _note(self, by: str) -> str:
        timings = (device.profiler.timings for device in self._devices)
        lost = sum(each.lost for each in timings if each is not None)
        notes = [f"{lost} measurements were lost: there was no room for them"] if lost else []
        if self.samples is not None and self.samples.timed < self.samples.all:
            notes.append(f"{self.samples.timed} of {self.samples.all} calls were timed on devices, for all")
        if by == "dispatch":
            notes += sorted({f"{device.id} measures {device.measures}" for device in self._devices})
            outside = self._outside
            if outside >= _WORTH_TELLING:
                notes.append(f"{outside:.0%} of the calls' time is outside of devices: table('function')")
        if by == "import":
            notes.append("imports that Python makes; those that machine code makes are a part of bytecode")
        return "; ".join(notes)


def span(measured: Measurement) -> Interval:
    return measured.start, measured.start + measured.duration


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Intervals in order, without overlaps."""
    found: list[Interval] = []
    for begun, ended in sorted(intervals):
        if found and begun <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], ended)
        else:
            found.append((begun, ended))
    return found


def covered(intervals: Sequence[Interval], whole: Interval) -> int:
    """How much of an interval merged ones cover."""
    first = max(0, bisect_right(intervals, whole[0], key=lambda interval: interval[0]) - 1)
    total = 0
    for number in range(first, len(intervals)):  # a part of the list would be a copy of all that follows
        begun, ended = intervals[number]
        if begun >= whole[1]:
            break
        total += max(0, min(ended, whole[1]) - max(begun, whole[0]))
    return total
