"""Invites threads of a team to shared rows, and runs chunks. Machine code.

Helpers serve until they are dismissed; every thread of a team claims chunks and runs them.
"""

from __future__ import annotations

from jitree.base.platform.threads import PARK, WAKE
from jitree.codegen.primitives import (
    apart,
    call,
    flush_denormals,
    greater,
    lesser,
    load64,
    pause,
    quotient,
    remainder,
    restore_denormals,
    stack,
    store64,
    ticks,
)
from jitree.codegen.record import atomic_add, atomic_load, atomic_replace, place_of
from jitree.hal.command_layout import (
    MASK_SIZE,
    MOST_LOOKS,
    POSTED_STOP,
    POSTING,
    ROUSED_BY_EACH,
    Command,
    Helper,
    Job,
    Share,
    ThreadTeam,
)
from jitree.hal.local.executor.rows import helper_at, longer, next_row, next_share, run_span


def helpers_for(team: ThreadTeam, total: int) -> int:
    """Counts workers that are to help with so many ticks of work. Those that are awake if it is worth it, and
    sleeping ones if it has been lately; each has to find something to do. 0: the group is not shared."""
    if total < team.spinning_ticks:
        return 0
    wanted = lesser(team.most, quotient(total, least_ticks(team)) - 1)
    if wanted <= 0:
        return 0
    awake = count_awake(team, wanted)
    if awake == wanted:
        return wanted
    now = ticks()
    owed = quotient(total, awake + 1)
    if now - team.owed_since <= 4 * team.parked_ticks:
        owed = longer(owed, team.owed)
    team.owed_since = now
    if owed < team.parked_ticks:
        team.owed = owed
        return awake
    team.owed = 0
    return lesser(wanted, awake + quotient(owed, greater(team.parked_ticks >> 2, 1)))


def free_threads(team: ThreadTeam) -> int:
    """Counts threads, with the submitting one, that share what is worth waking them for."""
    # order of busy: a lock: whether it is taken, which may be over
    if atomic_load(team.busy) != 0:
        return 1
    return team.most + 1


def least_ticks(team: ThreadTeam) -> int:
    """Says what each thread must have to do. It is a third of what is worth sharing while a worker spins."""
    return greater(quotient(team.spinning_ticks, 3), 1)


def count_awake(team: ThreadTeam, wanted: int) -> int:
    """How many of the first workers are awake. Those with the lowest numbers are always taken first: as many
    as are needed stay awake, and the others asleep."""
    number = 1
    # order of asleep: before `posted` is loaded; the other side, the other way round
    while number <= wanted and atomic_load(helper_at(team, number).asleep) == 0:
        number += 1
    return number - 1


def invite(team: ThreadTeam, helpers: int) -> None:
    """Tells the first so many workers that there is something to do."""
    # order of posted: before `asleep` is loaded, as helpers do the other way round
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
        # order of asleep: before `posted` is loaded; the other side, the other way round
        if atomic_load(helper_at(team, number).asleep) != 0:
            wake(team, helper_at(team, number))


@apart
def wake(team: ThreadTeam, helper: Helper) -> None:
    # order of asleep: before `posted` is loaded; the other side, the other way round
    if atomic_replace(helper.asleep, 1, 0):
        parking(team, helper, WAKE, 1)


def sleep(team: ThreadTeam, worker: int, seen: int) -> None:
    """Sleeps until it is woken. A thread that posts work looks at ``asleep`` afterwards. This one sets that
    first, and then looks at what is posted: one of the two sees the other."""
    helper = helper_at(team, worker)
    # order of asleep: before `posted` is loaded; the other side, the other way round
    atomic_replace(helper.asleep, 0, 1)
    # order of posted: before `asleep` is loaded, as helpers do the other way round
    posted = atomic_load(team.posted)
    if not is_dismissed(posted) and (posted == seen or not is_invited(posted, worker)):
        parking(team, helper, PARK, 1)
    atomic_replace(helper.asleep, 1, 0)


def parking(team: ThreadTeam, helper: Helper, operation: int, value: int) -> int:
    return call(team.functions.park, team.parking_call, place_of(helper.asleep), operation, value, 0, 0, 0)


def claim_chunks(team: ThreadTeam, worker: int) -> int:
    """Runs chunks of the open group until none are left, and counts them. Only then it says how many. A claim
    is valid only together with a limit of the same generation; while a valid claim is not finished the group
    stays open, so what it refers to stays as it is, and all claims of one call are of one group."""
    row = Command(0)
    share = Share(0)
    mine = 0
    while True:
        # order of claimed: releases the group, and acquires it
        claim = atomic_add(team.claimed, 1)
        # order of limit: released with the rows before `claimed`, loaded after it
        limit = atomic_load(team.limit)
        number = claim & 0xFFFFFFFF
        chunks = limit & 0xFFFFFFFF
        if claim >> 32 != limit >> 32 or number >= chunks:
            break
        job = team.job
        chunk = place(job, number, chunks)
        if mine == 0 or chunk < share.chunk:
            row = team.begin
            share = job.shares
        while next_share(share).chunk <= chunk:
            row = next_row(row)
            share = next_share(share)
        # order of failure: the first one; what says more is read after `finished`
        if atomic_load(job.failure) == 0:
            first = share.begin + (chunk - share.chunk) * share.chunk_size
            run_span(job, row, share, worker, first, lesser(first + share.chunk_size, share.end))
        mine += 1
    if mine != 0:
        # order of finished: helpers release what they have done, the submitter acquires it
        atomic_add(team.finished, mine)
    return mine


def place(job: Job, claim: int, chunks: int) -> int:
    """The chunk that a claim stands for. Claims go round as many stretches of the chunks as there are
    threads, so that what runs at the same time lies far apart: threads that write to one cache line slow each
    other down tenfold."""
    threads = job.team.threads
    stretch = remainder(claim, threads)
    before = stretch * quotient(chunks, threads) + lesser(stretch, remainder(chunks, threads))
    return before + quotient(claim, threads)


def serve(team: ThreadTeam, worker: int) -> None:
    """Runs a worker thread, numbered from 1. It helps with what it is invited to, and sleeps when there has
    been nothing for a while."""
    avoided = -1
    seen = 0
    while True:
        posted = spin(team, worker, seen)
        if is_dismissed(posted):
            return
        if posted == seen:
            sleep(team, worker, seen)
        else:
            seen = posted
            rouse(team, worker, posted & (POSTING - 1))
            avoided = settle(team, worker, avoided)
            mode = flush_denormals()
            claim_chunks(team, worker)
            restore_denormals(mode)


def dismiss(team: ThreadTeam) -> None:
    """Lets the workers end."""
    # order of posted: before `asleep` is loaded, as helpers do the other way round
    posted = atomic_load(team.posted)
    while not atomic_replace(team.posted, posted, posted | POSTED_STOP):
        posted = atomic_load(team.posted)
    for worker in range(1, team.workers + 1):
        wake(team, helper_at(team, worker))


def spin(team: ThreadTeam, worker: int, seen: int) -> int:
    """Looks until the worker is invited, is to end, or has spun for long. What is posted; ``seen`` if that is
    nothing new for this worker."""
    most = team.spin_ticks
    since = ticks()
    for _ in range(MOST_LOOKS):
        # order of posted: before `asleep` is loaded, as helpers do the other way round
        posted = atomic_load(team.posted)
        if posted != seen and (is_invited(posted, worker) or is_dismissed(posted)):
            return posted
        if ticks() - since >= most:
            return seen
        pause()
    return seen


def settle(team: ThreadTeam, worker: int, avoided: int) -> int:
    """Keeps a helper off the submitting thread's processor, where it would wait. That takes milliseconds. One
    that may be on no other goes where the first thread of the team may be. The processor that it avoids from
    now on; -1: none yet."""
    # order of submitter: an estimate
    submitter = atomic_load(team.submitter)
    if submitter == avoided or submitter >= 8 * MASK_SIZE:
        return avoided
    mask = stack(MASK_SIZE)
    allowed = team.masks + worker * MASK_SIZE
    others = 0
    for place in range(0, MASK_SIZE, 8):
        word = load64(allowed + place)
        if place == submitter >> 6 << 3:
            word &= ~(1 << (submitter & 63))
        store64(mask + place, word)
        others |= word
    if others == 0:
        mask = team.masks
    call(team.functions.place_thread, 0, MASK_SIZE, mask)
    return submitter
