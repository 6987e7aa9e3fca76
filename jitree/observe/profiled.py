"""Records a profile's calls, imports and operations, and chooses which calls to time.

Where timing is costly, some calls stand for all: the first calls, the first one of each function, and others
for a small part of the time. What a timed call made devices do counts as often as calls of its function were
made for each that was timed.
"""

from __future__ import annotations

from _thread import allocate_lock, get_ident
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from sys import _getframe
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from jitree.base.events import FUNCTION, IMPORT, PART, EventReader, listen, stop_listening
from jitree.base.finalizers import with_lock
from jitree.base.folding import is_library, is_of_user
from jitree.base.records import NamedTuple
from jitree.dispatch.backtrace import places_of
from jitree.dispatch.session_lock import Held
from jitree.errors import FailedPreconditionError

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from jitree.hal.device import Device
    from jitree.hal.profiling import CostlyTimings, Measurement
    from jitree.regs.handles import HandleTable

_NO_CALL: Final = "(no call)"
_MOST_NOTED: Final = 3 + 2 * 8 - 1
"""A call has eight functions of Python at most."""
_calling: Final = set[int]()
"""Threads that are in a call that is noted."""

_WINDOW: Final = 1_000_000
"""Nanoseconds for which calls are timed, one at least."""
_PAUSE: Final = 49
"""How many times as long others are not: to open and close a window may take some ms, and kernels of some us
take twice their time."""
_LONGEST: Final = 1_000_000_000
"""Nanoseconds for which a window waits for the ends of calls that are timed."""


class ProfiledCall(NamedTuple):
    """Times a call of a function, or a part of one. Times are nanoseconds of ``time.perf_counter_ns``."""

    function: str
    """``module.function``"""
    stack: list[tuple[CodeType, int]]
    """Functions of the user's, the calling one first, and the places in their code."""
    thread: int
    begun: int
    ended: int

    @property
    def site(self) -> str:
        """The line of Python that called: ``model.py:12 in main``. Of what an event loop calls, the one that
        runs the loop."""
        of_user = (each for each in self.stack if not is_library(each[0].co_filename))
        found = next(of_user, self.stack[0] if self.stack else None)
        return _NO_CALL if found is None else describe(*found)


class ProfiledImport(NamedTuple):
    """An import that Python made for a program."""

    module: Any
    number: int
    thread: int
    begun: int
    ended: int

    @property
    def name(self) -> str:
        return str(self.module.imports[self.number].full_name)


class CallParts(NamedTuple):
    """Nanoseconds of one call."""

    device: int
    """While devices work for it."""
    between: int
    """While devices work for it, and execute no command."""
    python: int
    """Imports that Python makes, without what devices do there."""


class DoneCommand(NamedTuple):
    """Records a dispatch, or a command buffer's transfer, from its first to last part."""

    name: str
    kind: str
    begun: int
    ended: int
    busy: int
    """Nanoseconds of all threads together."""
    bytes: int
    weight: float
    """How many such it stands for."""


class CallRecorder(EventReader):
    """Records the calls of one session. It knows which function, from which line of Python, from when to
    when; and the imports that Python makes for them.

    Machine code makes the calls. If Python does not wait for a call, each of its parts counts as a call.
    """

    needs_python = False

    def __init__(self, table: HandleTable, functions: Iterable[Any]) -> None:
        """It begins by :meth:`start`."""
        self.imports: list[ProfiledImport] = []
        self.places: dict[str, str] = {}
        """The places of functions that were called, once it has stopped."""
        self.before: Callable[[str, int, int], bool] | None = None
        """Is told of each call, its thread and when it begins; whether that took a moment."""
        self.after: Callable[[int], None] | None = None
        """Is told of the thread whose call has ended, if ``before`` is told of calls."""
        self._table = table
        self._functions: list[Any] = []
        self._notes: list[Any] = []
        """What each call notes: how many these are, the function, the thread, code and places, begin, end. In
        a row, since objects for each would have the garbage collector look at them, again and again."""
        self._codes: dict[int, tuple[CodeType, bool]] = {}
        """Code by identity, since its hash reads all of it, and whether it is of the user's."""
        self.is_over = False
        self._given = functions

    def start(self) -> None:
        """Begins. FAILED_PRECONDITION while the session is profiled, or a function is explained."""
        if any(isinstance(reader, CallRecorder) for reader in self._table.readers):
            raise FailedPreconditionError("the session is being profiled already; end that first")
        listen(self._table, self)
        for function in self._given:
            self.watch(function)

    def watch(self, function: Any) -> None:
        """Reads the calls of a function, too. FAILED_PRECONDITION while it is explained."""
        if self.is_over:
            return
        if any(reader.is_exclusive for reader in function.readers):
            raise FailedPreconditionError(
                f"{function.full_name} is explained (session.explain); stop that first"
            )
        self._functions.append(function)  # first: an interrupt of the next line leaves nothing
        listen(function, self)

    @property
    def noted(self) -> Iterator[ProfiledCall]:
        """The calls, as they ended."""
        notes, place = self._notes, 0
        while place < len(notes):
            end = place + notes[place]
            stack = list(zip(notes[place + 3 : end - 2 : 2], notes[place + 4 : end - 2 : 2], strict=True))
            yield ProfiledCall(notes[place + 1], stack, notes[place + 2], notes[end - 2], notes[end - 1])
            place = end

    def stop(self) -> None:
        """Notes nothing more; again, it does what an interrupt has left."""
        self.is_over = True
        stop_listening(self._table, self)
        called = {noted.function for noted in self.noted} if self._functions else set()
        while self._functions:
            function = self._functions[-1]
            stop_listening(function, self)
            if function.full_name in called:
                self.places[function.full_name] = next(iter(places_of(function.vm_function)), "")
            self._functions.pop()

    def begins(self, event: Any) -> None:
        """What this does itself is a part of the time of each call."""
        thread, kind = get_ident(), event.kind
        if kind == IMPORT:
            event.noted = perf_counter_ns()
        elif thread not in _calling and (kind is FUNCTION or kind == PART):
            event.noted = note = [0, event.name, thread]
            _calling.add(thread)
            frame: FrameType | None = _getframe(2)
            known = self._codes
            while frame is not None:
                code = frame.f_code
                found = known.get(id(code))
                if found is None:
                    found = known[id(code)] = code, is_of_user(code.co_filename)
                if found[1]:
                    note += code, frame.f_lasti
                    if len(note) > _MOST_NOTED:
                        break
                frame = frame.f_back
            begun = perf_counter_ns()
            if self.before is not None and self.before(event.name, thread, begun):
                begun = perf_counter_ns()
            note.append(begun)

    def ends(self, event: Any) -> None:
        ended, thread, noted = perf_counter_ns(), get_ident(), event.noted
        event.noted = None
        if noted is None:
            return
        if event.kind == IMPORT:
            self.imports.append(ProfiledImport(event.module, event.number, thread, noted, ended))
            return
        _calling.discard(thread)
        if self.after is not None:
            self.after(thread)
        if len(noted) % 2 == 0:  # else Ctrl-C came before it had begun
            noted.append(ended)
            noted[0] = len(noted)
            self._notes += noted


def describe(code: CodeType, place: int) -> str:
    """``model.py:12 in main``"""
    return f"{code.co_filename}:{line_of(code, place)} in {code.co_qualname}"


def line_of(code: CodeType, place: int) -> int:
    lines = (line for first, last, line in code.co_lines() if first <= place < last and line)
    return next(lines, code.co_firstlineno)


class Noted(NamedTuple):
    """All of one profile."""

    begun: int
    calls: tuple[ProfiledCall, ...]
    imports: tuple[ProfiledImport, ...]
    measurements: tuple[tuple[Device, Measurement], ...]
    places: dict[str, str]
    """The places of dispatches and functions in the source."""


class Sampler:
    """Opens and closes windows in which calls are timed, each where a call begins."""

    def __init__(self, timings: Sequence[CostlyTimings]) -> None:
        self._timings = timings
        self._lock = allocate_lock()
        self._functions = set[str]()
        """Functions of which a call was timed."""
        self._timed = set[int]()
        """Threads whose calls have begun in the window, and have not ended."""
        self._opening = self._opened = perf_counter_ns()
        """When the window, or the last one, began to open, and was open."""
        self._next = self._opened + _WINDOW
        """When to close an open window, or to open the next."""
        self._is_open, self._is_over = True, False
        self._windows: list[tuple[int, int]] = []

    def before(self, function: str, thread: int, at: int) -> bool:
        """A call begins; whether a window has been opened or closed, which takes a moment."""
        if at < self._next and (self._is_open or function in self._functions):
            if self._is_open:
                self._functions.add(function)
                self._timed.add(thread)
            return False
        if self._is_open and self._timed and at < self._opened + _LONGEST:
            return False
        with_lock(self._lock, partial(self._change, at, function, thread))  # else another thread is at it
        return True

    def after(self, thread: int) -> None:
        """The thread's call has ended."""
        self._timed.discard(thread)

    def _change(self, at: int, function: str, thread: int) -> None:
        if self._is_over:  # a call that was about to begin when the profile ended
            return
        if self._is_open:
            self._close(at)
            at = perf_counter_ns()
            if function in self._functions:
                self._next = at + _PAUSE * (at - self._opening)
                return
        self._opening = at
        for each in self._timings:
            each.resume()
        self._functions.add(function)
        self._timed.add(thread)
        self._opened = perf_counter_ns()
        self._is_open, self._next = True, self._opened + _WINDOW

    def _close(self, at: int) -> None:
        self._is_open = False
        self._windows.append((self._opened, at))
        self._timed.clear()
        for each in self._timings:
            each.pause()

    def stop(self, callers: Collection[int]) -> None:
        """``callers``: threads that have made calls."""
        with Held(self._lock):
            self._is_over = True
            if self._is_open:
                self._close(perf_counter_ns())
            for each in self._timings:
                each.callers = callers

    def samples(self, calls: Sequence[ProfiledCall]) -> Samples:
        return Samples(calls, self._windows)


class Samples:
    """Holds calls that were timed from beginning to end, and what they represent."""

    def __init__(self, calls: Sequence[ProfiledCall], windows: Sequence[tuple[int, int]]) -> None:
        self._calls: dict[int, list[ProfiledCall]] = defaultdict(list)
        self._windows = windows
        every, timed = Counter[str](), Counter[str]()
        for call in sorted(calls, key=lambda call: call.begun):
            self._calls[call.thread].append(call)
            every[call.function] += 1
            timed[call.function] += self._is_timed(call)
        self._weights = {name: every[name] / count for name, count in timed.items() if count}
        self.timed, self.all = timed.total(), every.total()

    def weight(self, call: ProfiledCall) -> float:
        """How many calls it tells of; 0 where it was not timed."""
        return self._weights[call.function] if self._is_timed(call) else 0.0

    def weighed(self, measurements: Sequence[Measurement]) -> Iterator[Measurement]:
        """Those of calls that were timed, and of no call."""
        for measured in measurements:
            calls = self._calls.get(measured.thread, ())
            place = bisect_right(calls, measured.submitted, key=lambda call: call.begun)
            weight = self.weight(calls[place - 1]) if place else 1.0
            if not calls and self.timed:  # submitted for a call, by a thread that helps
                weight = self.all / self.timed
            if weight:
                yield measured._replace(weight=weight)

    def _is_timed(self, call: ProfiledCall) -> bool:
        place = bisect_right(self._windows, call.begun, key=lambda window: window[0])
        return bool(place) and call.ended <= self._windows[place - 1][1]
