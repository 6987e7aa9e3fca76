"""Sharing a command list among the threads of a team: what the submitting thread does. Machine code."""

from __future__ import annotations

from jitree.codegen.primitives import call, greater, lesser, quotient
from jitree.codegen.processor import pause, ticks
from jitree.codegen.record import atomic_load, atomic_store
from jitree.hal.command_layout import (
    ENTRY_INTERPRETED,
    FIRST_PART,
    KIND_BARRIER,
    KIND_DISPATCH,
    LOOKS_BETWEEN_YIELDS,
    MOST_CHUNKS,
)
from jitree.hal.local.executor.chunks import claim_chunks
from jitree.hal.local.executor.dividing import cut_group, divide
from jitree.hal.local.executor.inviting import helpers_for, invite, rouse, weigh
from jitree.hal.local.executor.looks import is_to_end_before, is_to_end_now
from jitree.hal.local.executor.records import Command, Job, ThreadTeam, next_row, next_share, row_at
from jitree.hal.local.executor.rows import estimate_share, longer, prepare, run_span


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
    helpers = helpers_for(team, total)
    if helpers != 0:
        cut_group(job, team, begin, end, helpers + 1)
        chunks = divide(job, team, begin, end, helpers + 1)
        if 1 < chunks <= MOST_CHUNKS:
            begun = ticks()
            post(job, team, begin, chunks, lesser(helpers, chunks - 1))
            open_at = ticks()
            own = claim_chunks(team, 0)
            done = ticks()
            wait_for_chunks(job, team, chunks)
            spent = open_at - begun + ticks() - done
            known = greater(total, estimate_group(job, begin, end))
            weigh(team, lesser(spent, known + team.parked_ticks), quotient(known, chunks) * (chunks - own))
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


def estimate_group(job: Job, begin: Command, end: Command) -> int:
    """Ticks that one thread takes for what has been shared, as far as that is known now."""
    row = begin
    share = job.shares
    total = 0
    while row != end:
        total = longer(total, estimate_share(row, share))
        row = next_row(row)
        share = next_share(share)
    return total


def post(job: Job, team: ThreadTeam, begin: Command, chunks: int, helpers: int) -> None:
    """Opens a group for so many workers and wakes the first of those that sleep: waking takes the submitting
    thread a microsecond or two each, and spinning ones come anyway."""
    team.job = job
    team.begin = begin
    team.threads = helpers + 1
    atomic_store(team.submitter, call(team.functions.sched_getcpu) & 0xFFFFFFFF)
    atomic_store(team.finished, 0)
    generation = (team.generation + 1) & 0xFFFFFFFF
    team.generation = generation
    atomic_store(team.limit, generation << 32 | chunks)
    atomic_store(team.claimed, generation << 32)
    invite(team, helpers)
    rouse(team, 0, helpers)


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
