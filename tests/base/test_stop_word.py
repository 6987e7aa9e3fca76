"""What machine code is told of the next deadline: never a time after it, in ticks of whatever length."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from math import inf
from queue import SimpleQueue

import pytest

from jitree.base import cancel_scopes, stop_word
from jitree.base.cancel_scopes import Scope
from jitree.base.stop_word import NEVER

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


class Word(stop_word._StopWord):
    """One whose thread does not start."""

    def __init__(self) -> None:
        super().__init__(ctypes.c_int64(NEVER))

    def value(self) -> int:
        return self._word.value

    def _start(self) -> None:
        self._earlier = SimpleQueue()


@pytest.fixture(params=[1e-7, 0.004], ids=["quiet", "interrupted"])
def times(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Times:
    made = Times(request.param)
    monkeypatch.setattr(stop_word, "time", made)
    return made


@pytest.fixture
def scopes() -> Iterator[list[Scope]]:
    """Three, which are open."""
    made = [Scope(), Scope(), Scope()]
    with made[0], made[1], made[2]:
        yield made


@pytest.mark.parametrize("is_known", [True, False])
def test_it_is_told_soon_enough(times: Times, is_known: bool, scopes: list[Scope]) -> None:
    word, until = Word(), times.now + 1
    if is_known:
        word.count_by(times.ticks)
    word.put_off()
    word.arm(scopes[0], until)
    word.count_by(times.ticks)
    for _ in range(1000):
        assert word.value() <= until * PER_SECOND + 1
        if word.value() > times.now * PER_SECOND:
            times.now = word.value() / PER_SECOND  # machine code looks, and has this done again
        word.put_off()
        if times.now >= until:
            break
    assert times.now >= until
    word.put_off()
    assert word.value() >= NEVER


def test_the_first_deadline_counts(times: Times, scopes: list[Scope]) -> None:
    word = Word()
    word.count_by(times.ticks)
    word.arm(scopes[0], times.now + 30)
    first = word.value()
    word.arm(scopes[1], times.now + 60)
    assert word.value() == first
    word.arm(scopes[2], times.now + 15)
    assert word.value() < first


def test_a_deadline_that_is_very_far(times: Times, scopes: list[Scope]) -> None:
    word = Word()
    word.count_by(times.ticks)
    word.arm(scopes[0], 1e300)
    assert times.now * PER_SECOND < word.value() < NEVER


def test_who_looks_sees_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of the deadlines may be late: who finds that one has passed has all look."""
    word, now = Word(), 0
    monkeypatch.setattr(stop_word, "put_off", word.put_off)
    monkeypatch.setattr(stop_word, "WORD", word._word)
    word.count_by(lambda: now)
    passed, later, left = Scope(), Scope(), Scope()
    with passed, later:
        word.arm(passed, 0.0)
        word.arm(later, 1e300)
        word.arm(left, 1e200)
        before, now = word.value(), 1
        assert cancel_scopes.why_to_end() is None
        assert word.value() != before and word._until == 1e300
    before = now = word.value()
    assert cancel_scopes.why_to_end() is None
    assert word.value() != before and word._until == inf
    before = word.value()
    assert cancel_scopes.why_to_end() is None
    assert word.value() == before


def test_each_ring_is_another_value() -> None:
    word = Word()
    values = [word.value()]
    for _ in range(1000):
        word.ring()
        values.append(word.value())
    assert len(set(values)) == len(values) and min(values) >= NEVER
