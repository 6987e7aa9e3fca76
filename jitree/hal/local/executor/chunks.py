"""Chunks of shared rows: claiming and running them, on every thread of a team. Machine code."""

from __future__ import annotations

from jitree.codegen.primitives import lesser, quotient, remainder
from jitree.codegen.record import atomic_add, atomic_load
from jitree.hal.local.executor.records import Command, Job, Share, ThreadTeam, next_row, next_share
from jitree.hal.local.executor.rows import run_span


def claim_chunks(team: ThreadTeam, worker: int) -> int:
    """Takes chunks of the open group until there are none, and only then says how many it has done; that
    number. A claim is valid only together with a limit of the same generation; while a valid claim is not
    finished the group stays open, so what it refers to stays as it is, and all claims of one call are of one
    group."""
    row = Command(0)
    share = Share(0)
    mine = 0
    while True:
        claim = atomic_add(team.claimed, 1)
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
        if atomic_load(job.failure) == 0:
            first = share.begin + (chunk - share.chunk) * share.chunk_size
            run_span(job, row, share, worker, first, lesser(first + share.chunk_size, share.end))
        mine += 1
    if mine != 0:
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
