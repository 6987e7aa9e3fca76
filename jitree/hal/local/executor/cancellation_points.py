"""Decides whether threads that run a job are to end it. Machine code.

The thread that submitted the job, number 0, looks at the clock and at the word that says when to look, and
has Python look where that is time. What ends the job is its failure, at which the other threads look.
"""

from __future__ import annotations

from jitree.codegen.primitives import apart, call, load64
from jitree.codegen.processor import ticks
from jitree.codegen.record import atomic_load, atomic_replace, place_of
from jitree.hal.command_layout import LONG_SHIFT, MOST_WORKGROUPS, ROWS_BETWEEN_LOOKS, Job


@apart
def is_to_end(job: Job, worker: int, now: int) -> bool:
    """``now``: in ticks."""
    if worker == 0:
        if job.looked == 0:
            job.looked = now
        stop = load64(job.functions.stop)
        if stop != job.attended or now >= stop or now - job.looked >= job.functions.look_ticks:
            job.attended = stop
            look_in(job)
            job.looked = ticks()
    return atomic_load(job.failure) != 0


def look_in(job: Job) -> None:
    """Has Python look. What it begins with serves one thread, and once: see ``interrupts.py``."""
    first = atomic_load(job.functions.first_look)
    if first != 0 and atomic_replace(job.functions.first_look, first, 0):
        call(first, place_of(job))
    else:
        call(job.functions.look_in, place_of(job))


def is_to_end_now(job: Job) -> bool:
    """Whether it is to end, for the thread that submitted the job."""
    return is_to_end(job, 0, ticks())


def is_to_end_before(job: Job, number: int) -> bool:
    """As :func:`is_to_end_now`, before the row or group of that number, from 0. The clock, which takes as
    long as a small row, is read for some of them."""
    if number & ROWS_BETWEEN_LOOKS == 0 or load64(job.functions.stop) != job.attended:
        return number != 0 and is_to_end_now(job)
    return False


@apart
def paced(job: Job, workgroups: int, passed: int) -> int:
    """Counts workgroups until the next look, from ticks of the last ones."""
    most = job.functions.look_ticks >> LONG_SHIFT
    if passed > most:
        return workgroups >> 3 | 1
    if passed << 3 <= most and workgroups < MOST_WORKGROUPS:
        return workgroups << 3
    return workgroups
