"""Which way lists run, by what either took, on records alone: no list is executed."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest

from jitree.codegen.record import size_of
from jitree.hal.command_layout import (
    KIND_BARRIER,
    KIND_DISPATCH,
    KIND_FILL,
    KNOWN_LISTS,
    LONG_LIST,
    Command,
    KernelEntry,
    List,
    MeasuredList,
    ThreadTeam,
)
from jitree.hal.local.executor.measured_lists import (
    choose,
    is_better_alone,
    is_to_share,
    key_of,
    learn_alone,
    learn_shared,
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
    assert ways.count("S") < 20 and is_better_alone(team, commands)


def test_a_team_stays_where_it_is_sooner(team: ThreadTeam) -> None:
    commands = _list((KIND_DISPATCH, 8, 3))
    ways = _run(team, commands, _always(200), _always(250), 3000)
    assert "A" * 4 not in ways and 3 <= ways.count("A") <= 15 and not is_better_alone(team, commands)


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


def test_one_interrupted_list_changes_nothing(team: ThreadTeam) -> None:
    ways = _run(
        team, _list((KIND_DISPATCH, 8, 3)), lambda n: 10**6 if n % 50 == 49 else 100, _always(250), 400
    )
    assert ways.count("A") < 40


def test_kernels_that_become_machine_code_are_measured_anew(team: ThreadTeam) -> None:
    commands = _list((KIND_DISPATCH, 8, 3))
    ways = _run(team, commands, lambda n: 10**6 if n < 7 else 100, lambda n: 10**7 if n < 7 else 300, 400)
    assert ways[30:].count("A") < 20, "the first ones have been forgotten"


def test_an_old_time_of_one_thread_does_not_stay(team: ThreadTeam) -> None:
    commands = _list((KIND_DISPATCH, 8, 3))
    ways = _run(team, commands, _always(300), lambda n: 350 if n < 60 else 100, 3000)
    assert ways[1500:].count("S") < 5


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
    assert not is_better_alone(team, fills)


def test_kinds_that_share_a_place_begin_anew(team: ThreadTeam) -> None:
    one = _list((KIND_DISPATCH, 4096, 3))
    _run(team, one, _always(300), _always(200), 20)
    assert is_better_alone(team, one)
    known = choose(team, one)
    known.key += 1
    assert not is_better_alone(team, one)
    assert _run(team, one, _always(100), _always(200), 5) == "SSSSS"
