"""Into what a group is divided: parts of workgroups, and chunks of those. Machine code."""

from __future__ import annotations

from jitree.codegen.primitives import greater, lesser, quotient
from jitree.codegen.record import atomic_load
from jitree.hal.command_layout import (
    BYTES_CHUNK,
    CHUNKS_PER_THREAD,
    ENTRY_INTERPRETED,
    ENTRY_SEQUENTIAL,
    INTERPRETED_SHIFT,
    KIND_DISPATCH,
)
from jitree.hal.local.executor.inviting import least_ticks
from jitree.hal.local.executor.records import Command, Job, Share, ThreadTeam, next_row, next_share


def cut_group(job: Job, team: ThreadTeam, begin: Command, end: Command, threads: int) -> None:
    """Cuts workgroups into parts, where these can be and are too few to be shared evenly."""
    row = begin
    share = job.shares
    while row != end:
        if row.kind >= KIND_DISPATCH and row.entry.parts > 1:
            cut(team, row, share, threads)
        row = next_row(row)
        share = next_share(share)


def cut(team: ThreadTeam, row: Command, share: Share, threads: int) -> None:
    """No part is to take less than a chunk may."""
    left = share.end - share.begin
    if 0 < left < threads * CHUNKS_PER_THREAD:
        most = quotient(atomic_load(row.entry.cost), least_cost(team))
        parts = even_parts(left, row.entry.parts, threads, most)
        share.parts = parts
        share.begin *= parts
        share.end *= parts


def even_parts(units: int, steps: int, threads: int, most: int) -> int:
    """Into how many parts each unit is cut, at most, so that the last thread ends soonest: a unit has so many
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
    return even_size(units, threads, greater(quotient(least, atomic_load(entry.cost) | 1), 1))


def even_size(units: int, threads: int, least: int) -> int:
    """How many units a chunk has, at least so many, so that the last thread ends soonest; as in
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
    """The least cost of a chunk, in the measure of ENTRY_POINT.cost."""
    return least_ticks(team) << 10
