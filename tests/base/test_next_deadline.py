"""What machine code is told of the next deadline: never a time after it, in ticks of whatever length."""

from __future__ import annotations

import ctypes
from math import inf

import pytest

from jitree.base import alarms, cancel_scopes, next_deadline
from jitree.base.cancel_scopes import Scope

PER_SECOND = 3e9


class Times:
    """The system's clock and the processor's, which each look at them moves on."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 100.0, step

    def monotonic(self) -> float:
        self.now += self.step
        return self.now

    def ticks(self) -> int:
        return int(self.monotonic() * PER_SECOND)


@pytest.fixture(params=[1e-7, 0.004], ids=["quiet", "interrupted"])
def times(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Times:
    made = Times(request.param)
    monkeypatch.setattr(next_deadline, "time", made)
    monkeypatch.setattr(next_deadline, "_word", ctypes.c_int64(next_deadline.NEVER))
    return made


def word() -> int:
    return next_deadline._word.value


@pytest.mark.parametrize("is_known", [True, False])
def test_it_is_told_soon_enough(times: Times, is_known: bool) -> None:
    following, until = next_deadline._Next(), times.now + 1
    if is_known:
        following.count_by(times.ticks)
    assert not following.is_over()
    following.hasten(until)
    following.count_by(times.ticks)
    for _ in range(1000):
        assert word() <= until * PER_SECOND + 1
        if word() > times.now * PER_SECOND:
            times.now = word() / PER_SECOND  # machine code looks, and has this done again
        following.put(until)
        if times.now >= until:
            break
    assert times.now >= until and following.is_over()
    following.put(inf)
    assert word() == next_deadline.NEVER and not following.is_over()


def test_the_first_deadline_counts(times: Times) -> None:
    following = next_deadline._Next()
    following.count_by(times.ticks)
    following.hasten(times.now + 30)
    first = word()
    following.hasten(times.now + 60)
    assert word() == first
    following.hasten(times.now + 15)
    assert word() < first


def test_a_deadline_that_is_very_far(times: Times) -> None:
    following = next_deadline._Next()
    following.count_by(times.ticks)
    following.hasten(1e300)
    assert times.now * PER_SECOND < word() < next_deadline.NEVER


def test_who_looks_sees_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of the alarms may be late: who finds that a deadline has passed has all look."""
    put: list[float] = []
    mine = alarms._Alarms()
    monkeypatch.setattr(mine, "_is_started", True)
    monkeypatch.setattr(alarms, "look_ahead", mine.look_ahead)
    monkeypatch.setattr(next_deadline, "put", put.append)
    monkeypatch.setattr(next_deadline, "is_over", lambda: True)
    passed, later, left = Scope(), Scope(), Scope()
    with passed, later:
        mine.arm(passed, 0.0)
        mine.arm(later, 1e300)
        mine.arm(left, 1e200)
        before = cancel_scopes.rings()
        assert cancel_scopes.why_to_end() is None
        assert put == [1e300] and cancel_scopes.rings() != before
    before = cancel_scopes.rings()
    assert cancel_scopes.why_to_end() is None
    assert put == [1e300, inf] and cancel_scopes.rings() == before
