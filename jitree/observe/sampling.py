"""Which calls of a session a profile times on devices whose timing is costly: some stand for all.

The first calls, the first one of each function, and others for a small part of the time. What a timed call
made devices do counts as often as calls of its function were made for each that was timed.
"""

from __future__ import annotations

from _thread import allocate_lock
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from jitree.hal.profiling import CostlyTimings, Measurement
    from jitree.observe.profiled import ProfiledCall

_WINDOW: Final = 1_000_000
"""Nanoseconds for which calls are timed, one at least."""
_PAUSE: Final = 49
"""How many times as long others are not: to open and close a window takes some ms with CUPTI, and kernels of
some us take twice their time."""
_LONGEST: Final = 1_000_000_000
"""Nanoseconds for which a window waits for the ends of calls that are timed."""


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
        if self._lock.acquire(blocking=False):  # else another thread is at it
            try:
                self._change(at, function, thread)
            finally:
                self._lock.release()
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
        with self._lock:
            self._is_over = True
            if self._is_open:
                self._close(perf_counter_ns())
            for each in self._timings:
                each.callers = callers

    def samples(self, calls: Sequence[ProfiledCall]) -> Samples:
        return Samples(calls, self._windows)


class Samples:
    """Calls that were timed from their beginning to their end, and what they stand for."""

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
