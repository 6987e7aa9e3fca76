"""Command lists that are nearly as in the last runs: a graph is changed, or they are launched one by one,
whichever takes less time."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import pytest

from jitree.codegen.record import size_of
from jitree.hal.stream_record import BY_GRAPH, ProgramRecord, StreamRecord
from jitree.modules.hal.native import launches
from tests.cuda.test_chains import GRAPH, LAUNCHES, Calls
from tests.cuda.test_chains import SINGLY as LAUNCH


class Timed:
    """A stream and a program whose runs take as long as the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._words = (
            array("q", bytes(size_of(StreamRecord))),
            array("q", bytes(size_of(ProgramRecord))),
        )
        self.stream = StreamRecord(self._words[0].buffer_info()[0])
        self.program = ProgramRecord(self._words[1].buffer_info()[0])
        self.now = 1
        monkeypatch.setattr(launches, "ticks", lambda: self.now)

    def run(self, by_graph: int, singly: int) -> bool:
        """Whether the launches of one more run are single ones; the times that both ways take."""
        is_singly = launches.is_sooner_singly(self.stream, self.program)
        self.stream.tick += 1
        self.stream.worked = self.stream.tick
        self.now += singly if is_singly else by_graph
        self.stream.completed = self.stream.tick
        launches.note_end(self.stream, self.stream.tick)
        self.now += 1000  # until the next run
        return is_singly

    def runs(self, count: int, by_graph: int, singly: int) -> list[bool]:
        return [self.run(by_graph, singly) for _ in range(count)]


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Timed:
    return Timed(monkeypatch)


def test_the_quicker_way_is_taken(timed: Timed) -> None:
    first = timed.runs(launches.FIRST_TRIAL, 340, 300)
    assert not any(first[:-1]) and first[-1]
    assert sum(timed.runs(1000, 340, 300)) > 985


def test_the_slower_way_is_seldom_tried(timed: Timed) -> None:
    found = timed.runs(1000, 300, 340)
    assert 10 < sum(found) < 16
    assert not any(found[520:])


def test_what_becomes_slower_is_left(timed: Timed) -> None:
    timed.runs(200, 340, 300)
    assert sum(timed.runs(200, 340, 500)) < 8


def test_a_slow_run_does_not_count(timed: Timed) -> None:
    """A thread may lose its processor for a while."""
    timed.runs(100, 340, 300)
    timed.run(340, 100_000)
    assert all(timed.runs(20, 340, 300))


def test_runs_of_which_the_end_is_not_known(timed: Timed) -> None:
    stream = timed.stream
    assert not launches.is_sooner_singly(stream, timed.program)
    stream.tick = 1  # an upload
    assert not launches.is_sooner_singly(stream, timed.program)
    stream.worked = 1  # the device works: it says nothing
    assert not launches.is_sooner_singly(stream, timed.program)
    assert (stream.way, timed.program.changes) == (BY_GRAPH, 2)
    assert timed.program.graph_time == 0


def test_another_submission_has_another_time(timed: Timed) -> None:
    stream = timed.stream
    launches.is_sooner_singly(stream, timed.program)
    stream.tick, timed.now = 2, 50
    launches.note_end(stream, 2)
    assert stream.ended == 0
    launches.note_end(stream, 1)
    timed.now = 90
    launches.note_end(stream, 1)  # waited for again
    launches.take_time(stream, timed.program)
    assert timed.program.graph_time == 49
    launches.take_time(stream, timed.program)
    assert timed.program.graph_time == 49


def test_a_program_that_is_gone_is_left_alone(timed: Timed) -> None:
    """Another one has its place in memory, or a list of another shape comes next."""
    launches.is_sooner_singly(timed.stream, timed.program)
    timed.stream.tick, timed.now = 1, 50
    launches.note_end(timed.stream, 1)
    words = array("q", bytes(size_of(ProgramRecord)))
    launches.is_sooner_singly(timed.stream, ProgramRecord(words.buffer_info()[0]))
    timed.program.changes = 0
    launches.is_sooner_singly(timed.stream, timed.program)
    assert timed.program.graph_time == 0


# -- on a device -----------------------------------------------------------------------------------------


@pytest.fixture
def calls(machine_code: None) -> Iterator[Calls]:
    calls = Calls()
    yield calls
    calls.side.close()


def test_both_ways_give_the_same(calls: Calls) -> None:
    """One launch in three is another in each call; the result is checked."""
    views = [calls.view(number) for number in range(40)]
    for view in views[:8]:
        calls.check(view)
    ways_taken = []
    for view in views:
        calls.driver.calls.clear()
        calls.check(view)
        ways_taken.append((calls.driver.count(GRAPH), calls.driver.count(LAUNCH)))
    assert set(ways_taken) == {(1, 0), (0, LAUNCHES)}
