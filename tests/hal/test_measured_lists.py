"""Which way lists run, by what either took, on records alone: no list is executed."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest

from jitree.codegen.record import atomic_store, place_of, size_of
from jitree.hal.command_layout import (
    ENTRY_INTERPRETED,
    ENTRY_SPAN,
    FAILED_INTERRUPTED,
    KIND_BARRIER,
    KIND_DISPATCH,
    KIND_FILL,
    KNOWN_LISTS,
    LONG_LIST,
    Command,
    Job,
    KernelEntry,
    List,
    MeasuredList,
    ThreadTeam,
)
from jitree.hal.local.executor import command_lists
from jitree.hal.local.executor.command_lists import run_measured_list
from jitree.hal.local.executor.measured_lists import (
    choose,
    is_interpreted,
    is_to_share,
    key_of,
    learn_alone,
    learn_shared,
    ticks_alone,
)

PARKED = 1000
"""Ticks."""
_KEPT: list[array[int]] = []


def _zeroed(size: int) -> int:
    _KEPT.append(array("q", bytes(size)))
    return _KEPT[-1].buffer_info()[0]


@pytest.fixture
def team() -> ThreadTeam:
    record = ThreadTeam(_zeroed(size_of(ThreadTeam)))
    record.lists = _zeroed(KNOWN_LISTS * size_of(MeasuredList))
    record.parked_ticks = PARKED
    return record


def _list(*rows: tuple[int, int, int]) -> List:
    """A list of rows with a kind, the address of a function, and a number of workgroups."""
    commands = List(_zeroed(size_of(List)))
    memory = _zeroed(size_of(Command) * max(len(rows), 1))
    commands.rows, commands.row_count = Command(memory), len(rows)
    for index, (kind, entry, count) in enumerate(rows):
        row = Command(memory + index * size_of(Command))
        row.kind, row.entry = kind, KernelEntry(entry)
        row.count_x, row.count_y, row.count_z = count, 1, 1
    return commands


def _run(
    team: ThreadTeam, commands: List, shared: Callable[[int], int], alone: Callable[[int], int], count: int
) -> str:
    """The ways of so many lists: S for a team, which takes ``shared`` of the number, and A for one thread."""
    ways = ""
    for number in range(count):
        known = choose(team, commands)
        if is_to_share(known):
            learn_shared(known, team, shared(number))
            ways += "S"
        else:
            learn_alone(known, alone(number))
            ways += "A"
    return ways


def _always(spent: int) -> Callable[[int], int]:
    return lambda number: spent


def test_one_thread_is_tried_and_stays_where_it_is_sooner(team: ThreadTeam) -> None:
    commands = _list((KIND_DISPATCH, 8, 3))
    ways = _run(team, commands, _always(300), _always(200), 1000)
    assert ways.startswith("S" * 8 + "A" * 8)
    assert ways.count("S") < 60 and ticks_alone(team, commands) == 200


def test_a_team_stays_where_it_is_sooner(team: ThreadTeam) -> None:
    commands = _list((KIND_DISPATCH, 8, 3))
    ways = _run(team, commands, _always(200), _always(250), 3000)
    assert "A" * 4 not in ways and 3 <= ways.count("A") <= 15 and not ticks_alone(team, commands)


def test_a_trial_ends_where_it_takes_half_as_long_again(team: ThreadTeam) -> None:
    ways = _run(team, _list((KIND_DISPATCH, 8, 3)), _always(200), _always(900), 3000)
    assert "AA" not in ways and 1 <= ways.count("A") <= 5


def test_long_lists_that_gain_much_are_not_tried(team: ThreadTeam) -> None:
    commands = _list((KIND_DISPATCH, 8, 3))
    team.expected = 10 * LONG_LIST * PARKED
    assert _run(team, commands, _always(2 * LONG_LIST * PARKED), _always(1), 3000) == "S" * 3000
    team.expected = 4 * LONG_LIST * PARKED  # the team gains a factor of two
    assert "A" in _run(team, commands, _always(2 * LONG_LIST * PARKED), _always(1), 3000)


def test_the_way_changes_when_times_do(team: ThreadTeam) -> None:
    """Other programs take the processors of helpers from the 100th list to the 2000th."""
    commands = _list((KIND_DISPATCH, 8, 3))
    ways = _run(team, commands, lambda n: 900 if 100 <= n < 2000 else 100, _always(150), 6000)
    assert ways[:100].count("A") < 10
    assert ways[120:2000].count("S") < 20
    assert ways[4000:].count("A") < 10


@pytest.mark.parametrize("busy", [50, 90, 150, 300, 700, 1500])
@pytest.mark.parametrize("factor", [2, 3])
def test_a_team_that_has_been_slow_comes_back_soon(team: ThreadTeam, busy: int, factor: int) -> None:
    """Other programs had the processors of helpers for so many lists: 900 more ran on one thread."""
    slow = factor * 200
    ways = _run(team, _list((KIND_DISPATCH, 8, 3)), lambda n: slow if n < busy else 100, _always(200), 3000)
    assert ways[busy:].count("A") <= 64 * factor + 12


@pytest.mark.parametrize("percent", [105, 145, 160, 200, 300, 700, 2000])
def test_trials_of_a_team_cost_little(team: ThreadTeam, percent: int) -> None:
    ways = _run(team, _list((KIND_DISPATCH, 8, 3)), _always(10 * percent), _always(1000), 20_000)
    assert (percent - 100) * ways[2000:].count("S") <= 100 * 18_000 // 40


def test_one_interrupted_list_changes_nothing(team: ThreadTeam) -> None:
    ways = _run(
        team, _list((KIND_DISPATCH, 8, 3)), lambda n: 10**6 if n % 50 == 49 else 100, _always(250), 400
    )
    assert ways.count("A") < 40


def test_two_interrupted_lists_change_nothing(team: ThreadTeam) -> None:
    """Eight lists ran on one thread after each two, and the team gains a factor of 1.7."""
    ways = _run(
        team,
        _list((KIND_DISPATCH, 8, 3)),
        lambda n: 10**6 if n % 100 in (48, 49) else 100,
        _always(170),
        3000,
    )
    assert ways.count("A") < 20


@pytest.mark.parametrize("flags", [0, ENTRY_SPAN, ENTRY_INTERPRETED, ENTRY_INTERPRETED | ENTRY_SPAN])
def test_lists_that_python_runs_a_kernel_of(flags: int) -> None:
    entries = [KernelEntry(_zeroed(size_of(KernelEntry))) for _ in range(2)]
    entries[1].flags = flags
    commands = _list(*((KIND_DISPATCH, place_of(entry), 1) for entry in entries))
    assert is_interpreted(commands) == (flags & ENTRY_INTERPRETED != 0)
    assert not is_interpreted(_list((KIND_BARRIER, 0, 0), (KIND_FILL, 0, 0)))


def test_the_first_runs_are_forgotten(team: ThreadTeam) -> None:
    """They find code and data in no cache, and take some times as long."""
    ways = _run(
        team, _list((KIND_DISPATCH, 8, 3)), lambda n: 400 - 50 * n if n < 6 else 100, _always(180), 400
    )
    assert ways.count("A") < 10


def test_an_old_time_of_one_thread_does_not_stay(team: ThreadTeam) -> None:
    commands = _list((KIND_DISPATCH, 8, 3))
    ways = _run(team, commands, _always(300), lambda n: 350 if n < 60 else 100, 3000)
    assert ways[1500:].count("S") < 12


def test_lists_of_different_kinds_are_told_apart(team: ThreadTeam) -> None:
    barrier, fill = (KIND_BARRIER, 0, 0), (KIND_FILL, 0, 0)
    lists = [
        _list((KIND_DISPATCH, 4096, 3)),
        _list((KIND_DISPATCH, 4096, 4)),
        _list((KIND_DISPATCH, 4160, 3)),
        _list((KIND_DISPATCH, 4096, 3), barrier),
        _list((KIND_DISPATCH, 4096, 3), barrier, (KIND_DISPATCH, 4160, 3)),
        _list((KIND_DISPATCH, 4160, 3), barrier, (KIND_DISPATCH, 4096, 3)),
        _list(fill, fill, (KIND_DISPATCH, 4096, 3)),
    ]
    assert len({key_of(commands) for commands in lists}) == len(lists)
    assert key_of(_list()) == key_of(_list(fill, barrier)) == 0
    assert key_of(_list(barrier, (KIND_DISPATCH, 4096, 3))) == key_of(_list(fill, (KIND_DISPATCH, 4096, 3)))


def test_lists_without_dispatches_are_shared(team: ThreadTeam) -> None:
    """One thread ran all of them: a large fill, too, whatever small ones had taken."""
    fills = _list((KIND_FILL, 0, 0))
    assert _run(team, fills, _always(100), _always(900), 3000) == "S" * 3000
    assert not ticks_alone(team, fills)


def test_kinds_that_share_a_place_begin_anew(team: ThreadTeam) -> None:
    one = _list((KIND_DISPATCH, 4096, 3))
    _run(team, one, _always(300), _always(200), 20)
    assert ticks_alone(team, one) == 200
    known = choose(team, one)
    known.key += 1
    assert not ticks_alone(team, one)
    assert _run(team, one, _always(100), _always(200), 5) == "SSSSS"


def test_fills_and_copies_are_shared(team: ThreadTeam) -> None:
    """All of them have one key, of which nothing was known but that one thread takes some time."""
    for commands in (_list((KIND_FILL, 0, 0)), _list()):
        assert _run(team, commands, _always(300), _always(200), 1000) == "S" * 1000
        assert not ticks_alone(team, commands)


class _Runs:
    """Runs lists that take so many ticks, or fail after so many."""

    def __init__(self, team: ThreadTeam, monkeypatch: pytest.MonkeyPatch) -> None:
        self._team, self._now, self.ways = team, 10**6, ""
        self.shared, self.alone, self.failure = 300, 500, 0
        self._job = Job(_zeroed(size_of(Job)))
        self._job.list = _list((KIND_DISPATCH, _zeroed(size_of(KernelEntry)), 3))
        monkeypatch.setattr(command_lists, "ticks", lambda: self._now)
        monkeypatch.setattr(command_lists, "run_shared", lambda job, team: self._pass("S", self.shared))
        monkeypatch.setattr(command_lists, "run_list", lambda job: self._pass("A", self.alone))

    def _pass(self, way: str, spent: int) -> None:
        self.ways += way
        self._now += spent
        # order of failure: the first one; what says more is read after `finished`
        atomic_store(self._job.failure, self.failure)

    def run(self, count: int) -> str:
        self.ways = ""
        for _ in range(count):
            run_measured_list(self._job, self._team)
        return self.ways


@pytest.fixture
def runs(team: ThreadTeam, monkeypatch: pytest.MonkeyPatch) -> _Runs:
    return _Runs(team, monkeypatch)


def test_lists_that_end_early_do_not_count_as_quick(runs: _Runs) -> None:
    """A deadline ends a trial of one thread, which then seemed to take next to nothing."""
    runs.run(8)
    runs.failure, runs.alone = FAILED_INTERRUPTED, 1
    assert runs.run(1) == "A"
    runs.failure, runs.alone = 0, 500
    assert runs.run(40) == "S" * 40


def test_lists_that_fail_after_a_longer_time_count(runs: _Runs) -> None:
    runs.alone = 200
    assert runs.run(30).endswith("A" * 5)
    runs.failure, runs.alone = FAILED_INTERRUPTED, 900
    assert runs.run(10) == "AA" + "S" * 8


def test_clocks_that_run_backwards_change_nothing(runs: _Runs) -> None:
    runs.run(20)
    runs.shared = -1000
    runs.run(1)
    runs.shared = 300
    runs.run(20)
    assert runs.run(40).count("A") <= 1
    runs.shared, runs.alone = 500, 200
    runs.run(600)
    runs.alone = -1000
    runs.run(1)
    runs.shared, runs.alone = 100, 300
    runs.run(2000)
    assert runs.run(1000).count("A") <= 3
