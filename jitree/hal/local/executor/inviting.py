"""Which threads of a team take part in a group. Machine code."""

from __future__ import annotations

from jitree.codegen.primitives import apart, call, greater, lesser, quotient
from jitree.codegen.processor import ticks
from jitree.codegen.record import atomic_add, atomic_load, atomic_replace, place_of
from jitree.hal.command_layout import (
    FUTEX_WAIT,
    FUTEX_WAKE,
    LONGEST_ALONE,
    MOST_GAINED,
    MOST_LOST,
    POSTED_STOP,
    POSTING,
    ROUSED_BY_EACH,
)
from jitree.hal.local.executor.records import Helper, ThreadTeam, helper_at
from jitree.hal.local.executor.rows import longer


def helpers_for(team: ThreadTeam, total: int) -> int:
    """How many workers are to help with so many ticks of work: those that are awake if it is worth it, and
    sleeping ones if it has been lately; each has to find something to do. 0: the group is not shared."""
    if total < team.spinning_ticks:
        return 0
    wanted = lesser(team.most, quotient(total, least_ticks(team)) - 1)
    if wanted <= 0:
        return 0
    now = ticks()
    if now < team.alone_until:
        return 0
    awake = count_awake(team, wanted)
    if awake == wanted:
        return wanted
    owed = quotient(total, awake + 1)
    if now - team.owed_since <= 4 * team.parked_ticks:
        owed = longer(owed, team.owed)
    team.owed_since = now
    if owed < team.parked_ticks:
        team.owed = owed
        return awake
    team.owed = 0
    return lesser(wanted, awake + quotient(owed, greater(team.parked_ticks >> 2, 1)))


def least_ticks(team: ThreadTeam) -> int:
    """What each thread is to have to do: a third of what is worth sharing while a worker spins."""
    return greater(quotient(team.spinning_ticks, 3), 1)


def count_awake(team: ThreadTeam, wanted: int) -> int:
    """How many of the first workers are awake. Those with the lowest numbers are always taken first: as many
    as are needed stay awake, and the others asleep."""
    number = 1
    while number <= wanted and atomic_load(helper_at(team, number).asleep) == 0:
        number += 1
    return number - 1


def invite(team: ThreadTeam, helpers: int) -> None:
    """Tells the first so many workers that there is something to do."""
    before = atomic_load(team.posted)
    atomic_add(team.posted, POSTING + helpers - (before & (POSTING - 1)))


def is_invited(posted: int, worker: int) -> bool:
    return posted & (POSTING - 1) >= worker


def is_dismissed(posted: int) -> bool:
    return posted & POSTED_STOP != 0


def rouse(team: ThreadTeam, worker: int, helpers: int) -> None:
    """Wakes those of the invited workers that are this thread's to wake."""
    first = ROUSED_BY_EACH * worker + 1
    for number in range(first, lesser(first + ROUSED_BY_EACH - 1, helpers) + 1):
        if atomic_load(helper_at(team, number).asleep) != 0:
            wake(team, helper_at(team, number))


@apart
def wake(team: ThreadTeam, helper: Helper) -> None:
    if atomic_replace(helper.asleep, 1, 0):
        futex(team, helper, FUTEX_WAKE, 1)


def sleep(team: ThreadTeam, worker: int, seen: int) -> None:
    """Sleeps until it is woken. A thread that posts work looks at ``asleep`` afterwards. This one sets that
    first, and then looks at what is posted: one of the two sees the other."""
    helper = helper_at(team, worker)
    atomic_replace(helper.asleep, 0, 1)
    posted = atomic_load(team.posted)
    if not is_dismissed(posted) and (posted == seen or not is_invited(posted, worker)):
        futex(team, helper, FUTEX_WAIT, 1)
    atomic_replace(helper.asleep, 1, 0)


def futex(team: ThreadTeam, helper: Helper, operation: int, value: int) -> int:
    return call(team.functions.syscall, team.futex, place_of(helper.asleep), operation, value, 0, 0, 0)


def weigh(team: ThreadTeam, spent: int, gained: int) -> None:
    """Gives sharing up for a while when opening groups and waiting for helpers takes more than they do: other
    programs have the processors, or the system grants less time than it shows processors. The while grows as
    long as that goes on."""
    lost = greater(team.lost + spent - gained, -MOST_GAINED * team.parked_ticks)
    if lost > MOST_LOST * team.parked_ticks:
        doubled = greater(2 * team.alone_ticks, MOST_LOST * lost)
        team.alone_ticks = lesser(doubled, LONGEST_ALONE * team.parked_ticks)
        team.alone_until = ticks() + team.alone_ticks
        lost = 0
    elif lost < -MOST_LOST * team.parked_ticks:
        team.alone_ticks = 0
    team.lost = lost
