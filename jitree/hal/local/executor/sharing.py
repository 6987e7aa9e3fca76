"""Sharing a command list among the threads of a team: what the submitting thread does. Machine code."""

from __future__ import annotations

from jitree.codegen.atomics import atomic_add, atomic_load, atomic_store
from jitree.codegen.primitives import call, greater, lesser, quotient
from jitree.codegen.processor import pause, ticks
from jitree.hal.command_layout import (
    BYTES_CHUNK,
    CHUNKS_PER_THREAD,
    ENTRY_INTERPRETED,
    ENTRY_SEQUENTIAL,
    FIRST_PART,
    INTERPRETED_SHIFT,
    KIND_BARRIER,
    KIND_DISPATCH,
    LOOKS_BETWEEN_YIELDS,
    MOST_CHUNKS,
)
from jitree.hal.local.executor.chunks import claim_chunks
from jitree.hal.local.executor.looks import is_to_end_before, is_to_end_now
from jitree.hal.local.executor.records import Command, Job, Share, ThreadTeam, next_row, next_share, row_at
from jitree.hal.local.executor.rows import estimate_share, longer, prepare, run_span
from jitree.hal.local.executor.serving import wake


def run_shared(job: Job, team: ThreadTeam) -> None:
    """Group by group: rows between two barriers may run together."""
    number = 0
    begin = job.list.rows
    last = row_at(job.list, job.list.row_count)
    while begin != last:
        end = begin
        while end != last and end.kind != KIND_BARRIER:
            end = next_row(end)
        run_group(job, team, begin, end)
        number += 1
        if end == last or atomic_load(job.failure) != 0 or is_to_end_before(job, number):
            return
        begin = next_row(end)


def run_group(job: Job, team: ThreadTeam, begin: Command, end: Command) -> None:
    total = begin_group(job, begin, end)
    worth = worth_sharing(team, total)
    if worth != 0:
        cut_group(job, team, begin, end)
        chunks = divide(job, team, begin, end)
        if 1 < chunks <= MOST_CHUNKS:
            post(job, team, begin, chunks, worth)
            claim_chunks(team, 0)
            wait_for_chunks(job, team, chunks)
            return
    number = 0
    row = begin
    share = job.shares
    while row != end and atomic_load(job.failure) == 0:
        if share.begin < share.end:
            if is_to_end_before(job, number):
                return
            run_span(job, row, share, 0, share.begin, share.end)
            number += 1
        row = next_row(row)
        share = next_share(share)


def begin_group(job: Job, begin: Command, end: Command) -> int:
    """Sets what the rows have to do; ticks that it may take. The first workgroup of a function that has never
    been run is run, so that its cost is known; of what Python runs a part, since its beginning takes long."""
    row = begin
    share = job.shares
    total = 0
    while row != end:
        prepare(job, row, share)
        if row.kind >= KIND_DISPATCH and share.end > 1 and atomic_load(row.entry.cost) == 0:
            share.begin = quotient(share.end, FIRST_PART) + 1 if row.entry.flags & ENTRY_INTERPRETED else 1
            run_span(job, row, share, 0, 0, share.begin)
        if atomic_load(job.failure) != 0:
            return 0
        total = longer(total, estimate_share(row, share))
        row = next_row(row)
        share = next_share(share)
    return total


def worth_sharing(team: ThreadTeam, total: int) -> int:
    """Ticks of work that is to be shared; 0: it is not. While the helpers sleep, what they could have shared
    lately adds up until waking them has paid for itself."""
    if total < team.spinning_ticks:
        return 0
    if atomic_load(team.parked) < team.workers:
        return total
    now = ticks()
    if now - team.owed_since <= 4 * team.parked_ticks:
        total = longer(total, team.owed)
    enough = total >= team.parked_ticks
    team.owed_since = now
    team.owed = 0 if enough else total
    return total if enough else 0


def cut_group(job: Job, team: ThreadTeam, begin: Command, end: Command) -> None:
    """Cuts workgroups into parts, where these can be and are too few to be shared evenly."""
    row = begin
    share = job.shares
    while row != end:
        if row.kind >= KIND_DISPATCH and row.entry.parts > 1:
            cut(team, row, share)
        row = next_row(row)
        share = next_share(share)


def cut(team: ThreadTeam, row: Command, share: Share) -> None:
    """No part is to take less than a chunk may."""
    left = share.end - share.begin
    pieces = (team.workers + 1) * CHUNKS_PER_THREAD
    if 0 < left < pieces:
        cost = atomic_load(row.entry.cost)
        useful = lesser(quotient(pieces + left - 1, left), quotient(cost, least_cost(team) | 1))
        parts = lesser(useful, row.entry.parts)
        if parts > 1:
            share.parts = parts
            share.begin *= parts
            share.end *= parts


def divide(job: Job, team: ThreadTeam, begin: Command, end: Command) -> int:
    """Cuts the rows into chunks; how many these are."""
    pieces = (team.workers + 1) * CHUNKS_PER_THREAD
    row = begin
    share = job.shares
    chunks = 0
    while row != end:
        units = share.end - share.begin
        size = greater(chunk_size(team, row, share, units, quotient(units + pieces - 1, pieces)), 1)
        share.chunk = chunks
        share.chunk_size = size
        chunks += quotient(units + size - 1, size)
        row = next_row(row)
        share = next_share(share)
    share.chunk = chunks
    return chunks


def chunk_size(team: ThreadTeam, row: Command, share: Share, units: int, even: int) -> int:
    if row.kind < KIND_DISPATCH:
        return greater((even + 63) & -64, BYTES_CHUNK)
    entry = row.entry
    if entry.flags & ENTRY_SEQUENTIAL:
        return units
    least = least_cost(team) * share.parts
    if entry.flags & ENTRY_INTERPRETED:
        least = team.parked_ticks << INTERPRETED_SHIFT
    return greater(even, quotient(least, atomic_load(entry.cost) | 1))


def least_cost(team: ThreadTeam) -> int:
    """The least cost of a chunk, in the measure of ENTRY_POINT.cost: half of what is worth sharing while a
    worker spins."""
    return team.spinning_ticks << 9


def post(job: Job, team: ThreadTeam, begin: Command, chunks: int, worth: int) -> None:
    """Opens a group for the team and wakes as many workers as there are chunks for, but for each a quarter of
    what is worth waking one: waking takes the submitting thread a microsecond or two each, and spinning ones
    come anyway."""
    team.job = job
    team.begin = begin
    atomic_store(team.submitter, call(team.functions.sched_getcpu) & 0xFFFFFFFF)
    atomic_store(team.finished, 0)
    generation = (team.generation + 1) & 0xFFFFFFFF
    team.generation = generation
    atomic_store(team.limit, generation << 32 | chunks)
    atomic_store(team.claimed, generation << 32)
    atomic_add(team.sequence, 1)
    useful = lesser(greater(quotient(worth, team.parked_ticks >> 2 | 1), 1), chunks - 1)
    count = lesser(atomic_load(team.parked), useful)
    if count > 0:
        wake(team, count)


def wait_for_chunks(job: Job, team: ThreadTeam, chunks: int) -> None:
    """Has Python look now and then whether they are to end."""
    looks = 0
    while atomic_load(team.finished) < chunks:
        looks += 1
        if looks & LOOKS_BETWEEN_YIELDS:
            pause()
        else:
            call(team.functions.sched_yield)
            is_to_end_now(job)
