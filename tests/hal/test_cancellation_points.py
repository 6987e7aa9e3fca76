"""When a thread that runs a job has Python look whether it is to end (the function itself, in Python), and
what Python does then."""

from __future__ import annotations

import ctypes
import gc
import operator
import signal
import sys
from _thread import interrupt_main
from array import array
from collections import deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Final
from weakref import ref

import pytest

from jitree.base import stop_word
from jitree.base.callbacks import Callback, take_kept
from jitree.base.stop_word import NEVER
from jitree.codegen.record import atomic_store, size_of, words_of
from jitree.hal.command_layout import FAILED_INTERRUPTED, Functions, Job
from jitree.hal.local import executor, interrupts
from jitree.hal.local.executor import rows
from jitree.hal.local.executor.calling import FIRST_LOOK_TICKS, FUNCTION_TABLE

_FUNCTIONS: Final = words_of(Functions)
_JOB: Final = words_of(Job)

_LOOK: Final = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
LOOK_IN, FIRST_LOOK, LOOK_TICKS = 1001, 1002, 1000


class Work:
    """A job; ``asked`` is how often Python has been, ``called`` are the functions for that."""

    def __init__(self) -> None:
        self.asked = 0
        self.called: list[int] = []
        self.word = array("q", [NEVER])
        self._functions = array("q", bytes(size_of(Functions)))
        self._functions[_FUNCTIONS.look_in] = LOOK_IN
        self._functions[_FUNCTIONS.look_ticks] = LOOK_TICKS
        self._functions[_FUNCTIONS.stop] = self.word.buffer_info()[0]
        self._job = array("q", bytes(size_of(Job)))
        self._job[_JOB.functions] = self._functions.buffer_info()[0]
        self.job = Job(self._job.buffer_info()[0])
        self.job.attended = NEVER

    def call(self, address: int, *arguments: int) -> int:
        self.called.append(address)
        self.asked += 1
        if address == FIRST_LOOK:
            rows.look_in(self.job)  # another thread looks while this one does
        return 0

    def look(self, worker: int, now: int) -> int:
        rows.is_to_end(self.job, worker, now)
        return self.asked


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    made = Work()
    monkeypatch.setattr(rows, "call", made.call)
    monkeypatch.setattr(rows, "ticks", lambda: 100)
    return made


def test_one_thread_looks_first(work: Work) -> None:
    atomic_store(work.job.functions.first_look, FIRST_LOOK)
    rows.look_in(work.job)
    rows.look_in(work.job)
    assert work.called == [FIRST_LOOK, LOOK_IN, LOOK_IN]


def test_python_looks_now_and_then(work: Work) -> None:
    assert [work.look(0, now) for now in (100, 1000, 1099, 1100, 1100)] == [0, 0, 0, 1, 2]


def test_python_looks_once_for_each_ring(work: Work) -> None:
    assert work.look(0, 100) == 0
    work.word[0] += 7
    assert [work.look(0, 101), work.look(0, 102)] == [1, 1]


def test_python_looks_when_a_deadline_passes(work: Work) -> None:
    work.word[0] = 200
    assert [work.look(0, now) for now in (100, 199, 200, 201)] == [1, 1, 2, 3], "once for a new time, too"
    assert work.look(1, 202) == 3, "a helper does not ask Python"


def test_looks_are_paced_from_the_native_executor_on(monkeypatch: pytest.MonkeyPatch) -> None:
    table = array("q", FUNCTION_TABLE)
    place = _FUNCTIONS.look_ticks
    table[place] = FIRST_LOOK_TICKS
    monkeypatch.setattr(interrupts, "FUNCTION_TABLE", table)
    monkeypatch.setattr(executor, "native_executor", lambda: None)
    interrupts._look(0)
    assert table[place] == FIRST_LOOK_TICKS
    monkeypatch.setattr(executor, "native_executor", lambda: SimpleNamespace(ticks_per_microsecond=2.5))
    interrupts._look(0)
    assert table[place] == 75_000


def _pending(*functions: Callable[[], object]) -> None:
    """Calls one after the other without Python in between: an interrupt comes where the last begins."""
    deque(map(operator.call, functions), maxlen=0)


class _Alarm(Exception):
    """What a handler raises."""


_SEND: Final = partial(interrupt_main, signal.SIGUSR1)


@pytest.mark.parametrize(("send", "kind"), [
    (interrupt_main, KeyboardInterrupt), (_SEND, _Alarm), (_SEND, GeneratorExit), (_SEND, StopIteration)
])  # fmt: skip
@pytest.mark.parametrize("place", ["as it begins", "in the middle"])
def test_an_interrupt_when_a_thread_looks_for_the_first_time(
    place: str, send: Callable[[], None], kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next look, which is asked for at once, ends the job, whatever a handler raises."""

    def ring(number: int, frame: object) -> None:
        raise kind

    before = signal.signal(signal.SIGUSR1, ring)
    try:
        _look_interrupted(place, send, kind, monkeypatch)
    finally:
        signal.signal(signal.SIGUSR1, before)


class _Held:
    """What the caller uses meanwhile."""


def _look_interrupted(
    place: str, send: Callable[[], None], kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, table = array("q", bytes(size_of(Job))), array("q", FUNCTION_TABLE)
    interruptions = [send] if place == "in the middle" else []
    make = interrupts._look_in

    def interrupted() -> Callback:
        while interruptions:
            interruptions.pop()()
        return make()

    monkeypatch.setattr(interrupts, "FUNCTION_TABLE", table)
    monkeypatch.setattr(interrupts, "_look_in", interrupted)
    unraisable: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)

    def look(function: int) -> Callable[[], int]:
        return partial(_LOOK(function), job.buffer_info()[0])

    first: list[Callable[[], object]] = [send, look(interrupts._first.address)]

    def caller() -> ref[_Held]:
        held = _Held()
        with pytest.raises(kind):
            _pending(*first[place == "in the middle" :])
        return ref(held)

    before = stop_word.WORD.value
    held = caller()
    gc.collect()
    assert held() is None
    assert stop_word.WORD.value != before and job[_JOB.failure] == 0
    _pending(send, look(table[_FUNCTIONS.look_in]))
    assert job[_JOB.failure] == FAILED_INTERRUPTED
    assert isinstance(take_kept(), kind)
    assert not unraisable
