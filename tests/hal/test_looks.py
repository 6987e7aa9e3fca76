"""When a thread that runs a job has Python look whether it is to end: the function itself, in Python."""

from __future__ import annotations

from array import array

import pytest

from jitree.base.due import NEVER
from jitree.hal.local.executor import looks
from jitree.hal.local.executor.layout import FUNCTIONS, JOB
from jitree.hal.local.executor.records import Job

LOOK_IN, LOOK_TICKS = 1001, 1000


class Work:
    """A job; ``asked`` is how often Python has been."""

    def __init__(self) -> None:
        self.asked = 0
        self.rings, self.due = array("q", [0]), array("q", [NEVER])
        self._functions = array("q", bytes(FUNCTIONS.size))
        self._functions[FUNCTIONS.word("look_in")] = LOOK_IN
        self._functions[FUNCTIONS.word("look_ticks")] = LOOK_TICKS
        self._functions[FUNCTIONS.word("rings")] = self.rings.buffer_info()[0]
        self._functions[FUNCTIONS.word("due")] = self.due.buffer_info()[0]
        self._job = array("q", bytes(JOB.size))
        self._job[JOB.word("functions")] = self._functions.buffer_info()[0]
        self.job = Job(self._job.buffer_info()[0])

    def call(self, address: int, *arguments: int) -> int:
        assert address == LOOK_IN
        self.asked += 1
        return 0

    def look(self, worker: int, now: int) -> int:
        looks.is_to_end(self.job, worker, now)
        return self.asked


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    made = Work()
    monkeypatch.setattr(looks, "call", made.call)
    monkeypatch.setattr(looks, "ticks", lambda: 100)
    return made


def test_python_looks_now_and_then(work: Work) -> None:
    assert [work.look(0, now) for now in (100, 1000, 1099, 1100, 1100)] == [0, 0, 0, 1, 2]


def test_python_looks_once_for_each_ring(work: Work) -> None:
    assert work.look(0, 100) == 0
    work.rings[0] = 7
    assert [work.look(0, 101), work.look(0, 102)] == [1, 1]


def test_python_looks_when_a_deadline_passes(work: Work) -> None:
    work.due[0] = 200
    assert [work.look(0, now) for now in (100, 199, 200, 201)] == [0, 0, 1, 2]
    assert work.look(1, 202) == 2, "who helps asks nobody"
