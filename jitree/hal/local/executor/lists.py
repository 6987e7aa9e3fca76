"""The command executor: command lists from the first row to the last. Machine code."""

from __future__ import annotations

from jitree.codegen.primitives import load64, stack
from jitree.codegen.processor import flush_denormals, restore_denormals, ticks
from jitree.codegen.record import atomic_load, atomic_replace, atomic_store
from jitree.hal.command_layout import KIND_DISPATCH, KIND_DISPATCH_INDIRECT
from jitree.hal.local.executor.logs import begin_log, end_log
from jitree.hal.local.executor.looks import is_to_end_before
from jitree.hal.local.executor.records import SHARE_SIZE, Job, Share, next_row, row_at
from jitree.hal.local.executor.rows import estimate_share, longer, prepare, run_span
from jitree.hal.local.executor.sharing import run_shared


def clock() -> int:
    """The tick counter."""
    return ticks()


def execute(job: Job) -> int:
    """Runs a whole list; shares what is worth it if there is a thread team that no other thread uses. 0 or
    FAILED_*."""
    job.looked = 0
    job.attended = load64(job.functions.rings)
    begun = begin_log(job) if job.log else 0
    mode = flush_denormals()
    team = job.team
    if team and atomic_replace(team.busy, 0, 1):
        run_shared(job, team)
        atomic_store(team.busy, 0)
    else:
        run_list(job)
    restore_denormals(mode)
    if begun != 0:
        end_log(job, begun)
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
        if atomic_load(job.failure) != 0:
            return
        row = next_row(row)


def estimate(job: Job) -> int:
    """Ticks that a list may take on one thread, -1 if one of its functions has not been run."""
    share = Share(stack(SHARE_SIZE))
    row = job.list.rows
    end = row_at(job.list, job.list.row_count)
    total = 0
    while row != end:
        kind = row.kind
        if kind == KIND_DISPATCH_INDIRECT or (kind == KIND_DISPATCH and atomic_load(row.entry.cost) == 0):
            return -1
        prepare(job, row, share)
        total = longer(total, estimate_share(row, share))
        row = next_row(row)
    return total
