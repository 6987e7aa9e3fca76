"""What a profile is told of rows: when they began and ended, and on which thread. Machine code."""

from __future__ import annotations

from jitree.codegen.primitives import apart, call, lesser, load64, quotient
from jitree.codegen.processor import ticks
from jitree.codegen.record import atomic_add, place_of
from jitree.hal.command_layout import COMMAND, EVENT, KIND_DISPATCH, WHOLE_JOB
from jitree.hal.local.executor.records import Command, Job, Log, LoggedEvent

_COMMAND_SIZE = COMMAND.size
_EVENT_SIZE = EVENT.size


@apart
def begin_log(job: Job) -> int:
    """The time when the job begins; 0 if nothing is recorded any more. The end of a profile waits for jobs
    that use the log."""
    log = job.log
    atomic_add(log.users, 1)
    if not log.events:
        atomic_add(log.users, -1)
        job.log = Log(0)
        return 0
    job.number = atomic_add(log.jobs, 1)
    job.thread = call(job.functions.pthread_self)
    return ticks()


@apart
def end_log(job: Job, begun: int) -> None:
    note(job, WHOLE_JOB, -1, 0, begun, 0)
    atomic_add(job.log.users, -1)


@apart
def note_row(job: Job, row: Command, worker: int, begun: int, first: int) -> None:
    """A thread has done a part of a row, from workgroup or byte ``first`` on."""
    number = quotient(place_of(row) - place_of(job.list.rows), _COMMAND_SIZE)
    size = bound_bytes(job, row) if first == 0 else 0
    note(job, place_of(row.entry) if row.kind >= KIND_DISPATCH else row.kind, number, worker, begun, size)


def note(job: Job, what: int, row: int, worker: int, begun: int, size: int) -> None:
    ended = ticks()
    log = job.log
    number = atomic_add(log.next, 1)
    if number >= log.capacity:
        return
    event = LoggedEvent(place_of(log.events) + number * _EVENT_SIZE)
    event.begun = begun
    event.what = what
    event.job = job.number
    event.origin = job.origin
    event.thread = job.thread
    event.bytes = size
    event.row = row
    event.worker = worker
    event.ended = ended


def bound_bytes(job: Job, row: Command) -> int:
    """Bytes of the ranges of a row; of those that overlap the largest."""
    total = 0
    for index in range(row.operand_count):
        place = 8 * (row.operand + index)
        begin = load64(job.addresses + place)
        length = load64(job.lengths + place)
        total += length
        for other in range(index):
            place = 8 * (row.operand + other)
            start = load64(job.addresses + place)
            size = load64(job.lengths + place)
            if start < begin + length and begin < start + size:
                total -= lesser(size, length)
                break
    return total
