"""Chooses a team or one thread for lists, by what either took. Machine code.

Threads fetch from each other what the dispatch before has written, and small processors share caches, memory
and the time that a system grants: no sum of what single dispatches take says how long a list takes.
"""

from __future__ import annotations

from jitree.codegen.primitives import lesser
from jitree.codegen.record import place_of, size_of
from jitree.hal.command_layout import (
    FALL_SHIFT,
    FIRST_INTERVAL,
    INTERVAL_SHIFT,
    KIND_DISPATCH,
    KNOWN_LISTS,
    LAST_INTERVAL,
    LONG_LIST,
    TRIALS,
    WORTH_TRYING,
    Command,
    List,
    MeasuredList,
    ThreadTeam,
)
from jitree.hal.local.executor.rows import next_row, row_at

_SIZE = size_of(MeasuredList)


def key_of(commands: List) -> int:
    """What lists of one kind have in common: how many rows they have, what is dispatched first and last; 0
    where nothing is dispatched."""
    first = commands.rows
    end = row_at(commands, commands.row_count)
    last = end
    while first != end and first.kind < KIND_DISPATCH:
        first = next_row(first)
    if first == end:
        return 0
    for index in range(commands.row_count - 1, -1, -1):
        last = row_at(commands, index)
        if last.kind >= KIND_DISPATCH:
            break
    return mixed(mixed(commands.row_count, first), last)


def mixed(key: int, row: Command) -> int:
    """A number of 48 bits that differs for other rows."""
    counts = row.count_x + (row.count_y << 7) + (row.count_z << 14)
    return ((key << 5) ^ (key >> 43) ^ (place_of(row.entry) >> 3) ^ (counts << 16)) & ((1 << 48) - 1)


def measured_list(team: ThreadTeam, key: int) -> MeasuredList:
    return MeasuredList(team.lists + ((key ^ key >> 16) & (KNOWN_LISTS - 1)) * _SIZE)


def is_better_alone(team: ThreadTeam, commands: List) -> bool:
    """Whether one thread took less time for such lists."""
    key = key_of(commands)
    known = measured_list(team, key)
    return known.key == key and is_alone_sooner(known)


def is_alone_sooner(known: MeasuredList) -> bool:
    return known.alone != 0 and known.alone < known.shared


def choose(team: ThreadTeam, commands: List) -> MeasuredList:
    """Finds what is known of such lists, for one that is to run now. Fills and copies are of any size, and
    shared in parts of some size: one thread is not tried for those without dispatches."""
    key = key_of(commands)
    known = measured_list(team, key)
    if known.key != key:
        known.key = key
        known.shared = 0
        known.alone = 0
        known.trials = 0
        wait(known, FIRST_INTERVAL)
    if key != 0 and known.trials == 0:
        if known.left == 0:
            known.trials = TRIALS
        else:
            known.left -= 1
    return known


def wait(known: MeasuredList, interval: int) -> None:
    """The next trial comes after so many lists."""
    known.left = interval
    known.interval = lesser(interval << INTERVAL_SHIFT, LAST_INTERVAL)


def is_to_share(known: MeasuredList) -> bool:
    """Whether the team is to run the list that was chosen for last: the sooner way, or the other one in a
    trial."""
    return is_alone_sooner(known) == (known.trials != 0)


def learn_shared(known: MeasuredList, team: ThreadTeam, spent: int) -> None:
    """Averages the team's time; a trial forgets what was before. One thread is not tried for long lists where
    the team gains much for sure."""
    sooner = is_alone_sooner(known)
    known.shared = spent if known.trials > TRIALS - 2 else averaged(known.shared, spent)
    learn(known, sooner, spent, known.alone)
    if spent > LONG_LIST * team.parked_ticks and team.expected > WORTH_TRYING * spent:
        known.left = known.left | 1


def learn_alone(known: MeasuredList, spent: int) -> None:
    """Averages one thread's time; a trial forgets what was before."""
    sooner = is_alone_sooner(known)
    known.alone = spent if known.trials > TRIALS - 2 else averaged(known.alone, spent)
    learn(known, sooner, spent, known.shared)


def learn(known: MeasuredList, sooner: bool, spent: int, other: int) -> None:
    """Ends a trial that is over, or has changed which way is sooner."""
    if is_alone_sooner(known) != sooner:
        known.trials = 0
        wait(known, known.interval)
    elif known.trials != 0:
        known.trials = 0 if 2 * spent > 3 * other else known.trials - 1
        if known.trials == 0:
            wait(known, known.interval)


def averaged(known: int, sample: int) -> int:
    """The average grows by half at the most: a thread that has lost its processor meanwhile says little. It
    falls at once when kernels become machine code."""
    if known == 0 or 4 * sample < known:
        return sample
    return known + ((lesser(sample, 3 * known) - known) >> FALL_SHIFT)
