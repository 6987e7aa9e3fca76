"""Chooses a team or one thread for lists, by what either took. Machine code.

Threads fetch from each other what the dispatch before has written, and small processors share caches, memory
and the time that a system grants: no sum of what single dispatches take says how long a list takes.
"""

from __future__ import annotations

from jitree.codegen.primitives import greater, lesser, quotient
from jitree.codegen.record import atomic_load, place_of, size_of
from jitree.hal.command_layout import (
    ENTRY_INTERPRETED,
    FIRST_INTERVAL,
    FOREVER,
    INTERVAL_SHIFT,
    KIND_DISPATCH,
    KNOWN_LISTS,
    LAST_INTERVAL,
    LISTS_BETWEEN_TRIALS,
    LONG_LIST,
    TRIALS,
    WORTH_TRYING,
    Command,
    Job,
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


def ticks_alone(team: ThreadTeam, commands: List) -> int:
    """What one thread takes for such lists, if that is less; 0 if not."""
    key = key_of(commands)
    known = measured_list(team, key)
    return known.alone if known.key == key and is_alone_sooner(known) else 0


def is_alone_sooner(known: MeasuredList) -> bool:
    return known.alone != 0 and known.alone < known.shared


def is_interpreted(commands: List) -> bool:
    """Whether Python runs a kernel of a list: machine code will take a small part of the time."""
    row = commands.rows
    end = row_at(commands, commands.row_count)
    while row != end:
        if row.kind >= KIND_DISPATCH and row.entry.flags & ENTRY_INTERPRETED != 0:
            return True
        row = next_row(row)
    return False


def choose(team: ThreadTeam, commands: List) -> MeasuredList:
    """Finds what is known of such lists, for one that is to run now. Of fills and copies alone it is never
    anything: how long they are says what they take, and they share a key."""
    key = key_of(commands)
    known = measured_list(team, key)
    if known.key != key or key == 0:
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


def time_of(job: Job, spent: int, known: int) -> int:
    """Ticks of a list that took so many. One that has failed or was ended takes longer, and not less than
    ``known``; clocks of two processors may differ."""
    # order of failure: the first one; what says more is read after `finished`
    if atomic_load(job.failure) == 0:
        return greater(spent, 1)
    return greater(spent, known) if known != 0 else FOREVER


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
        wait(known, FIRST_INTERVAL)
    elif known.trials != 0:
        known.trials = 0 if 2 * spent > 3 * other else known.trials - 1
        if known.trials == 0:
            wait(known, interval_after(known))


def interval_after(known: MeasuredList) -> int:
    """Lists until the next trial. What other programs take, and so the team's time, changes at any moment:
    where one thread is sooner, trials come as soon as a fiftieth of the time allows."""
    if not is_alone_sooner(known):
        return known.interval
    return lesser(known.interval, quotient(known.shared, known.alone) * LISTS_BETWEEN_TRIALS)


def averaged(known: int, sample: int) -> int:
    """The average grows by a quarter at the most, and slower than it falls: a thread that has lost its
    processor meanwhile says little, also in two lists one after the other."""
    if known == 0 or known == FOREVER:
        return sample
    if sample < known:
        return known - ((known - sample) >> 1)
    return known + (lesser(sample - known, known) >> 2)
