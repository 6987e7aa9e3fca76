"""What the worker threads of a team do until they are dismissed. Machine code."""

from __future__ import annotations

from jitree.codegen.atomics import atomic_add, atomic_load, atomic_store
from jitree.codegen.primitives import call, load64
from jitree.codegen.processor import flush_denormals, pause, restore_denormals, ticks
from jitree.codegen.record import place_of
from jitree.hal.command_layout import FUTEX_WAIT, FUTEX_WAKE, MASK_SIZE, MOST_LOOKS
from jitree.hal.local.executor.chunks import claim_chunks
from jitree.hal.local.executor.records import ThreadTeam


def serve(team: ThreadTeam, worker: int) -> None:
    """A worker thread, numbered from 1: helps with what is posted, parks when there has been nothing for a
    while."""
    home = -1
    seen = -1
    while True:
        spin(team, seen)
        sequence = atomic_load(team.sequence)
        if sequence != seen:
            seen = sequence
            home = settle(team, worker, home)
            mode = flush_denormals()
            claim_chunks(team, worker)
            restore_denormals(mode)
        elif atomic_load(team.stop) != 0:
            return
        else:
            park(team, seen)


def dismiss(team: ThreadTeam) -> None:
    """Lets the workers end."""
    atomic_store(team.stop, 1)
    atomic_add(team.sequence, 1)
    wake(team, 0x7FFFFFFF)


def spin(team: ThreadTeam, seen: int) -> None:
    """Looks until there is something new, the workers are to end, or patience ends."""
    since = ticks()
    for _ in range(MOST_LOOKS):
        if atomic_load(team.sequence) != seen or atomic_load(team.stop) != 0:
            return
        if ticks() - since >= team.spin_ticks:
            return
        pause()


def park(team: ThreadTeam, seen: int) -> None:
    """Sleeps until it is woken. The kernel looks at the sequence again before it lets the worker sleep: what
    was posted meanwhile is not missed."""
    atomic_add(team.parked, 1)
    if futex(team, FUTEX_WAIT, seen) != 0:
        atomic_add(team.parked, -1)


def wake(team: ThreadTeam, count: int) -> None:
    """Wakes so many workers, if so many sleep, and takes them off the count."""
    woken = futex(team, FUTEX_WAKE, count)
    if woken > 0:
        atomic_add(team.parked, -woken)


def futex(team: ThreadTeam, operation: int, value: int) -> int:
    return call(team.functions.syscall, team.futex, place_of(team.sequence), operation, value, 0, 0, 0)


def settle(team: ThreadTeam, worker: int, home: int) -> int:
    """Sees to it that a helper is not on the submitting thread's processor: one whose home that is goes to
    the home of the first thread, which has no other. The number of the thread whose home it is at."""
    own = load64(team.homes + 8 * worker)
    wanted = 0 if own == atomic_load(team.submitter) else worker
    if own < 0 or wanted == home:
        return home
    call(team.functions.sched_setaffinity, 0, MASK_SIZE, team.masks + wanted * MASK_SIZE)
    return wanted
