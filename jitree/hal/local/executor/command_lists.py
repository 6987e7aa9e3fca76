"""Executes command lists from the first row to the last. Machine code.

Where it pays, the submitting thread shares a list with a team: it divides a group of rows into chunks, and
workgroups into parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jitree.codegen.primitives import (
    apart,
    call,
    flush_denormals,
    greater,
    lesser,
    load64,
    pause,
    quotient,
    restore_denormals,
    stack,
    ticks,
)
from jitree.codegen.record import atomic_load, atomic_replace, atomic_store, place_of
from jitree.hal.command_layout import (
    BYTES_CHUNK,
    CHUNKS_PER_THREAD,
    ENTRY_INTERPRETED,
    ENTRY_SEQUENTIAL,
    FIRST_PART,
    INTERPRETED_SHIFT,
    KIND_BARRIER,
    KIND_DISPATCH,
    KIND_DISPATCH_INDIRECT,
    LOOKS_BETWEEN_YIELDS,
    MOST_CHUNKS,
    TOLD_BEGINS,
    TOLD_ENDS,
    Command,
    Job,
    Share,
    ThreadTeam,
)
from jitree.hal.local.executor.helper_threads import (
    claim_chunks,
    dismiss,
    free_threads,
    helpers_for,
    invite,
    least_ticks,
    rouse,
    serve,
)
from jitree.hal.local.executor.measured_lists import (
    choose,
    is_better_alone,
    is_to_share,
    learn_alone,
    learn_shared,
)
from jitree.hal.local.executor.rows import (
    SHARE_SIZE,
    begin_log,
    end_log,
    estimate_share,
    is_to_end_before,
    is_to_end_now,
    longer,
    next_row,
    next_share,
    parts_of,
    prepare,
    row_at,
    run_span,
)

if TYPE_CHECKING:
    from jitree.codegen.image.generated import Generated


def cut_group(job: Job, team: ThreadTeam, begin: Command, end: Command, threads: int) -> None:
    """Cuts workgroups into parts where too few can be shared evenly."""
    row = begin
    share = job.shares
    while row != end:
        if row.kind >= KIND_DISPATCH and parts_of(row.entry) > 1:
            cut(team, row, share, threads)
        row = next_row(row)
        share = next_share(share)


def cut(team: ThreadTeam, row: Command, share: Share, threads: int) -> None:
    """No part is to take less than a chunk may."""
    left = share.end - share.begin
    if 0 < left < threads * CHUNKS_PER_THREAD:
        # order of cost: an estimate
        most = quotient(atomic_load(row.entry.cost), least_cost(team))
        parts = even_parts(left, parts_of(row.entry), threads, most)
        share.parts = parts
        share.begin *= parts
        share.end *= parts


def even_parts(units: int, steps: int, threads: int, most: int) -> int:
    """Counts parts of a unit with which the last thread ends soonest. At most so many: a unit has so many
    steps of equal length, which stay whole, and one part may take twice as long as others, since units differ
    and threads begin late."""
    best = 1
    best_end = (quotient(units + threads - 1, threads) + 1) * steps
    for turns in range(CHUNKS_PER_THREAD, 0, -1):
        parts = greater(lesser(quotient(turns * threads, units), lesser(most, steps)), 1)
        length = quotient(steps + parts - 1, parts)
        end = (quotient(units * parts + threads - 1, threads) + 1) * length
        if end < best_end:
            best = parts
            best_end = end
    return best


def divide(job: Job, team: ThreadTeam, begin: Command, end: Command, threads: int) -> int:
    """Cuts the rows into chunks; how many these are."""
    row = begin
    share = job.shares
    chunks = 0
    while row != end:
        units = share.end - share.begin
        size = chunk_size(team, row, share, units, threads)
        share.chunk = chunks
        share.chunk_size = size
        chunks += quotient(units + size - 1, size)
        row = next_row(row)
        share = next_share(share)
    share.chunk = chunks
    return chunks


def chunk_size(team: ThreadTeam, row: Command, share: Share, units: int, threads: int) -> int:
    if row.kind < KIND_DISPATCH:
        pieces = threads * CHUNKS_PER_THREAD
        return greater((quotient(units + pieces - 1, pieces) + 63) & -64, BYTES_CHUNK)
    entry = row.entry
    if entry.flags & ENTRY_SEQUENTIAL:
        return greater(units, 1)
    least = least_cost(team) * share.parts
    if entry.flags & ENTRY_INTERPRETED:
        least = team.parked_ticks << INTERPRETED_SHIFT
    # order of cost: an estimate
    return even_size(units, threads, greater(quotient(least, atomic_load(entry.cost) | 1), 1))


def even_size(units: int, threads: int, least: int) -> int:
    """Counts units of a chunk with which the last thread ends soonest. At least so many; as in
    :func:`even_parts`, one chunk may take twice as long as others."""
    best = greater(units, 1)
    best_end = 2 * best
    for turns in range(CHUNKS_PER_THREAD, 0, -1):
        pieces = turns * threads
        size = greater(quotient(units + pieces - 1, pieces), least)
        chunks = quotient(units + size - 1, size)
        end = (quotient(chunks + threads - 1, threads) + 1) * size
        if end < best_end:
            best = size
            best_end = end
    return best


def least_cost(team: ThreadTeam) -> int:
    """The least cost of a chunk, in the measure of KernelEntry.cost."""
    return least_ticks(team) << 10


def run_measured_list(job: Job, team: ThreadTeam) -> None:
    """Runs a list in the way that took less time before."""
    known = choose(team, job.list)
    begun = ticks()
    if is_to_share(known):
        team.expected = 0
        run_shared(job, team)
        learn_shared(known, team, ticks() - begun)
    else:
        run_list(job)
        learn_alone(known, ticks() - begun)


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
        # order of failure: the first one; what says more is read after `finished`
        if end == last or atomic_load(job.failure) != 0 or is_to_end_before(job, number):
            return
        begin = next_row(end)


def run_group(job: Job, team: ThreadTeam, begin: Command, end: Command) -> None:
    total = begin_group(job, begin, end)
    team.expected = longer(team.expected, total)
    helpers = helpers_for(team, total)
    if helpers != 0:
        cut_group(job, team, begin, end, helpers + 1)
        chunks = divide(job, team, begin, end, helpers + 1)
        if 1 < chunks <= MOST_CHUNKS:
            post(job, team, begin, chunks, lesser(helpers, chunks - 1))
            claim_chunks(team, 0)
            wait_for_chunks(job, team, chunks)
            return
    number = 0
    row = begin
    share = job.shares
    # order of failure: the first one; what says more is read after `finished`
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
        # order of cost: an estimate
        if row.kind >= KIND_DISPATCH and share.end > 1 and atomic_load(row.entry.cost) == 0:
            share.begin = quotient(share.end, FIRST_PART) + 1 if row.entry.flags & ENTRY_INTERPRETED else 1
            run_span(job, row, share, 0, 0, share.begin)
        # order of failure: the first one; what says more is read after `finished`
        if atomic_load(job.failure) != 0:
            return 0
        total = longer(total, estimate_share(row, share))
        row = next_row(row)
        share = next_share(share)
    return total


def post(job: Job, team: ThreadTeam, begin: Command, chunks: int, helpers: int) -> None:
    """Opens a group for workers and wakes the first that sleep. Waking takes the submitting thread a
    microsecond or two each, and spinning ones come anyway."""
    team.job = job
    team.begin = begin
    team.threads = helpers + 1
    # order of submitter: an estimate
    atomic_store(team.submitter, call(team.functions.running_on) & 0xFFFFFFFF)
    # order of finished: helpers release what they have done, the submitter acquires it
    atomic_store(team.finished, 0)
    generation = (team.generation + 1) & 0xFFFFFFFF
    team.generation = generation
    # order of limit: released with the rows before `claimed`, loaded after it
    atomic_store(team.limit, generation << 32 | chunks)
    # order of claimed: releases the group, and acquires it
    atomic_store(team.claimed, generation << 32)
    invite(team, helpers)
    rouse(team, 0, helpers)


def wait_for_chunks(job: Job, team: ThreadTeam, chunks: int) -> None:
    """Has Python look now and then whether they are to end."""
    looks = 0
    # order of finished: helpers release what they have done, the submitter acquires it
    while atomic_load(team.finished) < chunks:
        looks += 1
        if looks & LOOKS_BETWEEN_YIELDS:
            pause()
        else:
            call(team.functions.give_way)
            is_to_end_now(job)


def clock() -> int:
    """The tick counter."""
    return ticks()


def execute(job: Job) -> int:
    """Runs a whole list, sharing what pays if a thread team is free. 0 or FAILED_*."""
    job.looked = 0
    job.attended = load64(job.functions.stop)
    begun = begin_log(job) if job.log else 0
    mode = flush_denormals()
    team = job.team
    # order of busy: a lock: acquires what the last owner stored
    if team and atomic_replace(team.busy, 0, 1):
        if job.tell != 0:
            run_told(job, team, mode)
        else:
            run_measured_list(job, team)
        atomic_store(team.busy, 0)
    elif job.tell != 0:
        run_told(job, ThreadTeam(0), mode)
    else:
        run_list(job)
    restore_denormals(mode)
    if begun != 0:
        end_log(job, begun)
    # order of failure: the first one; what says more is read after `finished`
    return atomic_load(job.failure)


def run_list(job: Job) -> None:
    """Runs every row in order, on this thread."""
    number = 0
    share = Share(stack(SHARE_SIZE))
    row = job.list.rows
    end = row_at(job.list, job.list.row_count)
    while row != end:
        prepare(job, row, share)
        if share.end != 0:
            if is_to_end_before(job, number):
                return
            run_span(job, row, share, 0, 0, share.end)
            number += 1
        # order of failure: the first one; what says more is read after `finished`
        if atomic_load(job.failure) != 0:
            return
        row = next_row(row)


@apart
def run_told(job: Job, team: ThreadTeam, mode: int) -> None:
    """Runs row by row, on a team or this thread, and tells of each."""
    number = 0
    share = Share(stack(SHARE_SIZE))
    row = job.list.rows
    end = row_at(job.list, job.list.row_count)
    while row != end:
        following = next_row(row)
        if row.kind != KIND_BARRIER:
            if is_to_end_before(job, number) or not is_told(job, TOLD_BEGINS, row, mode):
                return
            if team:
                run_group(job, team, row, following)
            else:
                prepare(job, row, share)
                if share.end != 0:
                    run_span(job, row, share, 0, 0, share.end)
            # order of failure: the first one; what says more is read after `finished`
            if atomic_load(job.failure) != 0 or not is_told(job, TOLD_ENDS, row, mode):
                return
            number += 1
        row = following


def is_told(job: Job, what: int, row: Command, mode: int) -> bool:
    """Whether readers have been told of a row, and the job goes on. They have denormals."""
    restore_denormals(mode)
    call(job.tell, what, place_of(job), place_of(row), 0)
    flush_denormals()
    # order of failure: the first one; what says more is read after `finished`
    return atomic_load(job.failure) == 0


def estimate(job: Job) -> int:
    """Estimates ticks of a list on its team, without one on one thread; -1 before functions have run."""
    share = Share(stack(SHARE_SIZE))
    row = job.list.rows
    end = row_at(job.list, job.list.row_count)
    threads = 1
    if job.team and not is_better_alone(job.team, job.list):
        threads = free_threads(job.team)
    total = 0
    while row != end:
        kind = row.kind
        # order of cost: an estimate
        if kind == KIND_DISPATCH_INDIRECT or (kind == KIND_DISPATCH and atomic_load(row.entry.cost) == 0):
            return -1
        prepare(job, row, share)
        alone = estimate_share(row, share)
        if threads != 1 and alone >= job.team.parked_ticks:  # all come for it
            alone = quotient(alone, lesser(threads, most_chunks(row, share)))
        total = longer(total, alone)
        row = next_row(row)
    return total


def most_chunks(row: Command, share: Share) -> int:
    """Counts threads that can have a part of a row, at least one; the row has something to do."""
    units = share.end - share.begin
    if row.kind < KIND_DISPATCH:
        return quotient(units + BYTES_CHUNK - 1, BYTES_CHUNK)
    if row.entry.flags & (ENTRY_SEQUENTIAL | ENTRY_INTERPRETED):
        return 1
    return units * greater(parts_of(row.entry), 1)


def generate() -> Generated:
    """The LLVM IR of the command executor, in the builder process."""
    from jitree.codegen import functions
    from jitree.codegen.image.generated import one_unit

    entries = (execute, estimate, clock, serve, dismiss)
    return one_unit(functions.texts(entries), (function.__name__ for function in entries))
