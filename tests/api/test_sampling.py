"""Which calls a profile times where timing is costly, and what they stand for; the clock is the test's."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from jitree.hal.profiling import CostlyTimings, Measurement, ProfilingMode
from jitree.observe import profiled
from jitree.observe.profiled import ProfiledCall, Sampler

CALL = 200_000
"""Nanoseconds."""


class Timed(CostlyTimings):
    """Knows whether it works."""

    def __init__(self) -> None:
        self.works = True
        self.changes = 0

    def begin(self, mode: ProfilingMode) -> None: ...

    def end(self) -> None: ...

    def measurements(self) -> Iterable[Measurement]:
        return ()

    def after_fork(self) -> None: ...

    def pause(self) -> None:
        assert self.works
        self.works, self.changes = False, self.changes + 1

    def resume(self) -> None:
        assert not self.works
        self.works, self.changes = True, self.changes + 1


class Calls:
    """Makes calls of the thread 1, one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time = 1
        self.timed = list[bool]()
        self.calls = list[ProfiledCall]()
        self.measurements = list[Measurement]()
        monkeypatch.setattr(profiled, "perf_counter_ns", lambda: self.time)
        self.timings = Timed()
        self.sampler = Sampler([self.timings])

    def make(self, function: str, count: int) -> None:
        for _ in range(count):
            self.sampler.before(function, 1, self.time)
            begun, ended = self.time, self.time + CALL
            self.time = ended + 1000
            self.sampler.after(1)
            self.calls.append(ProfiledCall(function, [], 1, begun, ended))
            self.timed.append(self.timings.works)
            if self.timings.works:
                self.work(f"dispatch of {function}", begun, 1)

    def work(self, name: str, submitted: int, thread: int) -> None:
        self.measurements.append(Measurement(name, submitted + 10, 100, "dispatch", submitted, thread))

    def sums(self) -> dict[str, float]:
        self.sampler.stop({call.thread for call in self.calls})
        found = dict[str, float]()
        for each in self.sampler.samples(self.calls).weighed(self.measurements):
            found[each.name] = found.get(each.name, 0) + each.weight
        return found


def test_some_calls_stand_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch)
    calls.make("f", 1000)
    assert calls.timed[0] and 10 < sum(calls.timed) < 40 and calls.timings.changes < 20
    assert any(calls.timed[-400:]), "not only the first ones"
    calls.make("g", 1)
    assert calls.timed[-1], "the first call of each function"
    calls.make("g", 99)
    assert calls.sums() == {"dispatch of f": pytest.approx(1000), "dispatch of g": pytest.approx(100)}


def test_few_calls_are_all_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch)
    calls.make("f", 4)
    calls.work("by a thread that helps", 5, 99)
    assert calls.sums() == {"dispatch of f": 4, "by a thread that helps": 1}
    assert calls.timings.changes == 1 and not calls.timings.works


def test_calls_that_are_timed_in_part_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread closes the window before a call has ended."""
    calls = Calls(monkeypatch)
    begun = calls.time
    calls.make("f", 100)
    calls.calls.append(ProfiledCall("f", [], 2, begun, calls.time))
    calls.work("dispatch of the long one", begun, 2)
    assert calls.sums() == {"dispatch of f": pytest.approx(101)}


def test_threads_whose_calls_are_longer_than_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls of two threads overlap: a window that closed at its time would have no whole call."""
    calls, long = Calls(monkeypatch), 12 * CALL
    running: dict[int, tuple[int, bool]] = {}
    for number in range(400):
        thread = 1 + number % 2
        if thread in running:
            begun, was_timed = running.pop(thread)
            calls.sampler.after(thread)
            calls.calls.append(ProfiledCall("f", [], thread, begun, calls.time))
            if was_timed and calls.timings.works:
                calls.work("dispatch of f", begun, thread)
        calls.sampler.before("f", thread, calls.time)
        running[thread] = calls.time, calls.timings.works
        calls.time += long // 2
    sums = calls.sums()
    assert sums == {"dispatch of f": pytest.approx(398)} and calls.timings.changes > 4


def test_a_call_without_end_does_not_keep_a_window_open(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch)
    calls.sampler.before("without end", 2, calls.time)
    calls.make("f", 10_000)
    assert not all(calls.timed[-2000:])


def test_a_call_that_begins_after_the_end_opens_no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread had been told of the profile before that ended."""
    calls = Calls(monkeypatch)
    calls.sampler.stop(())
    calls.sampler.before("f", 1, calls.time)
    assert not calls.timings.works
