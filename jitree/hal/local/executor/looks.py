"""Whether threads that run a job are to end it. Machine code.

The thread that submitted the job, number 0, looks at the clock and at the number of rings, and has Python
look where that is time. What ends the job is its failure, at which the other threads look.
"""

from __future__ import annotations

from jitree.codegen.atomics import atomic_load
from jitree.codegen.primitives import apart, call, load64
from jitree.codegen.processor import ticks
from jitree.codegen.record import place_of
from jitree.hal.local.executor.layout import LONG_SHIFT, MOST_WORKGROUPS
from jitree.hal.local.executor.records import Job


@apart
def is_to_end(job: Job, worker: int, now: int) -> bool:
    """``now``: in ticks."""
    if worker == 0:
        if job.looked == 0:
            job.looked = now
        rings = load64(job.functions.rings)
        if rings != job.attended or now - job.looked >= job.functions.look_ticks:
            job.attended = rings
            call(job.functions.look_in, place_of(job))
            job.looked = ticks()
    return atomic_load(job.failure) != 0


def is_to_end_now(job: Job) -> bool:
    """Between two rows, for the thread that submitted the job."""
    return is_to_end(job, 0, ticks())


@apart
def paced(job: Job, workgroups: int, passed: int) -> int:
    """How many workgroups to run until the next look; the last ones took so many ticks."""
    most = job.functions.look_ticks >> LONG_SHIFT
    if passed > most:
        return workgroups >> 3 | 1
    if passed << 3 <= most and workgroups < MOST_WORKGROUPS:
        return workgroups << 3
    return workgroups
