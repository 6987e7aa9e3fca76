"""Decides whether threads that run a job are to end it. Machine code.

The thread that submitted the job, number 0, looks at the clock and at the word that says when to look, and
has Python look where that is time. What ends the job is its failure, at which the other threads look.

Executes single rows of command lists, and logs them for a profile. Machine code.
"""

from __future__ import annotations

from jitree.codegen.primitives import (
    apart,
    below,
    bit_length,
    call,
    call_kernel,
    lesser,
    load64,
    quotient,
    remainder,
    stack,
    store8,
    store64,
    ticks,
)
from jitree.codegen.record import (
    Atomic,
    atomic_add,
    atomic_load,
    atomic_replace,
    atomic_store,
    layout_of,
    place_of,
    size_of,
)
from jitree.hal.command_layout import (
    BYTES_PER_TICK,
    ENTRY_INTERPRETED,
    ENTRY_SPAN,
    FAILED_COUNTS,
    FAILED_FUNCTION,
    FALL_SHIFT,
    FILL_BLOCK,
    FIRST_WORKGROUPS,
    FOREVER,
    KIND_BARRIER,
    KIND_COPY,
    KIND_DISPATCH,
    KIND_DISPATCH_INDIRECT,
    KIND_FILL,
    LONG_SHIFT,
    MAXIMUM_COUNT_Z,
    MAXIMUM_WORKGROUPS,
    MOST_WORKGROUPS,
    PIECE,
    RISE_SHIFT,
    ROWS_BETWEEN_LOOKS,
    WHOLE_JOB,
    Command,
    Counts,
    Helper,
    Job,
    KernelDispatch,
    KernelEntry,
    List,
    Log,
    LoggedEvent,
    Share,
    ThreadTeam,
    Workgroup,
)


@apart
def is_to_end(job: Job, worker: int, now: int) -> bool:
    """``now``: in ticks."""
    if worker == 0:
        if job.looked == 0:
            job.looked = now
        # order of stop: an old value is seen a look later
        stop = load64(job.functions.stop)
        if stop != job.attended or now >= stop or now - job.looked >= job.functions.look_ticks:
            job.attended = stop
            look_in(job)
            job.looked = ticks()
    # order of failure: the first one; what says more is read after `finished`
    return atomic_load(job.failure) != 0


def look_in(job: Job) -> None:
    """Has Python look. What it begins with serves one thread, and once: see ``interrupts.py``."""
    # order of first_look: an exchange: one thread has it
    first = atomic_load(job.functions.first_look)
    if first != 0 and atomic_replace(job.functions.first_look, first, 0):
        call(first, place_of(job))
    else:
        # order of look_in: does nothing until it is known
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


COMMAND_SIZE = size_of(Command)
SHARE_SIZE = size_of(Share)
HELPER_SIZE = size_of(Helper)
_EVENT_SIZE = size_of(LoggedEvent)

COUNTS_AT = layout_of(Command)["count_x"]
ORDINAL_AT = layout_of(KernelEntry)["ordinal"]
DISPATCH_SIZE = size_of(KernelDispatch)
WORKGROUP_SIZE = size_of(Workgroup)


def row_at(commands: List, index: int) -> Command:
    return Command(place_of(commands.rows) + index * COMMAND_SIZE)


def next_row(row: Command) -> Command:
    return Command(place_of(row) + COMMAND_SIZE)


def next_share(share: Share) -> Share:
    return Share(place_of(share) + SHARE_SIZE)


def parts_of(entry: KernelEntry) -> int:
    """The upper half of a word, so that it can be atomic: see :meth:`CompiledKernels._use`."""
    # order of parts: acquires: who sees parts sees the `code` that knows them
    return atomic_load(Atomic(place_of(entry) + ORDINAL_AT)) >> 32


def helper_at(team: ThreadTeam, worker: int) -> Helper:
    return Helper(team.helpers + worker * HELPER_SIZE)


@apart
def begin_log(job: Job) -> int:
    """The time when the job begins; 0 if nothing is recorded any more. The end of a profile waits for jobs
    that use the log."""
    log = job.log
    # order of users: before `capacity`; releases the events at the end
    atomic_add(log.users, 1)
    # order of capacity: after `users`; `EventLog` stores it, and then loads those
    if atomic_load(log.capacity) == 0:
        atomic_add(log.users, -1)
        job.log = Log(0)
        return 0
    # order of jobs: a number alone
    job.number = atomic_add(log.jobs, 1)
    job.thread = call(job.functions.this_thread)
    return ticks()


@apart
def end_log(job: Job, begun: int) -> None:
    note(job, WHOLE_JOB, -1, 0, begun, 0)
    # order of users: before `capacity`; releases the events at the end
    atomic_add(job.log.users, -1)


@apart
def note_row(job: Job, row: Command, worker: int, begun: int, first: int) -> None:
    """Logs a part of a row, from workgroup or byte ``first`` on."""
    number = quotient(place_of(row) - place_of(job.list.rows), COMMAND_SIZE)
    size = bound_bytes(job, row) if first == 0 else 0
    note(job, place_of(row.entry) if row.kind >= KIND_DISPATCH else row.kind, number, worker, begun, size)


def note(job: Job, what: int, row: int, worker: int, begun: int, size: int) -> None:
    ended = ticks()
    log = job.log
    # order of next: a number alone
    number = atomic_add(log.next, 1)
    # order of capacity: after `users`; `EventLog` stores it, and then loads those
    if number >= atomic_load(log.capacity):
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


# -- how much there is to do --------------------------------------------------------------------------------


def prepare(job: Job, row: Command, share: Share) -> None:
    """Sets what a row has to do: counts, first and last workgroup or byte."""
    share.begin = 0
    share.parts = 1
    share.end = units(job, row, share)


def units(job: Job, row: Command, share: Share) -> int:
    """Workgroups or bytes of a row."""
    kind = row.kind
    operand = row.operand
    if kind == KIND_BARRIER:
        return 0
    if kind == KIND_DISPATCH:
        return workgroups(job, row, share, Counts(place_of(row) + COUNTS_AT))
    if kind == KIND_DISPATCH_INDIRECT:
        counts = load64(job.addresses + 8 * (operand + row.operand_count))
        return workgroups(job, row, share, Counts(counts))
    length = load64(job.lengths + 8 * operand)
    if kind == KIND_FILL:
        return length
    if kind == KIND_COPY:
        return lesser(length, load64(job.lengths + 8 * operand + 8))
    return lesser(length, row.data_length)


def workgroups(job: Job, row: Command, share: Share, counts: Counts) -> int:
    x = counts.x
    y = counts.y
    z = counts.z
    share.count_x = x
    share.count_y = y
    share.count_z = z
    plane = x * y
    if below(MAXIMUM_WORKGROUPS, plane) or z > MAXIMUM_COUNT_Z or below(MAXIMUM_WORKGROUPS, plane * z):
        fail(job, row, FAILED_COUNTS, 0, x, y, z)
        return 0
    return plane * z


def estimate_share(row: Command, share: Share) -> int:
    """Ticks that what is left of a row may take."""
    left = share.end - share.begin
    if row.kind < KIND_DISPATCH:
        return quotient(left, BYTES_PER_TICK)
    if share.parts > 1:
        left = quotient(left, share.parts)
    # order of cost: an estimate
    cost = atomic_load(row.entry.cost)
    if bit_length(cost) + bit_length(left) > 62:
        return FOREVER
    return (cost * left) >> 10


def longer(ticks_before: int, more: int) -> int:
    """A sum of estimates."""
    return lesser(ticks_before + more, FOREVER)


# -- doing it -----------------------------------------------------------------------------------------------


def run_span(job: Job, row: Command, share: Share, worker: int, first: int, last: int) -> None:
    """Runs parts of workgroups or bytes [first, last) of a row, at least one. With a thread team, the cost of
    a workgroup is averaged, where the executable does not say it."""
    begun = ticks() if job.log else 0
    if row.kind < KIND_DISPATCH:
        run_pieces(job, row, worker, first, last)
    elif job.team and not row.entry.flags & ENTRY_INTERPRETED:
        run_measured(job, row, share, worker, first, last)
    else:
        run_workgroups(job, row, share, worker, first, last)
    if begun != 0:
        note_row(job, row, worker, begun, first)


@apart
def run_measured(job: Job, row: Command, share: Share, worker: int, first: int, last: int) -> None:
    """Runs a part of a dispatch and averages its cost. The average goes down faster than up, and is at most
    doubled: a thread that lost its processor meanwhile says nothing about the function."""
    cost = row.entry.cost
    start = ticks()
    run_workgroups(job, row, share, worker, first, last)
    sample = quotient(((ticks() - start) << 10) * share.parts, last - first) | 1
    # order of cost: an estimate
    known = atomic_load(cost)
    difference = sample - known
    if known == 0:
        atomic_store(cost, sample)
    elif difference < 0:
        atomic_store(cost, (known + (difference >> FALL_SHIFT)) | 1)
    else:
        atomic_store(cost, (known + lesser(difference >> RISE_SHIFT, known)) | 1)


def run_workgroups(job: Job, row: Command, share: Share, worker: int, first: int, last: int) -> None:
    dispatch = KernelDispatch(stack(DISPATCH_SIZE))
    group = Workgroup(stack(WORKGROUP_SIZE))
    fill_dispatch(job, row, share, dispatch)
    entry = row.entry
    # order of code: acquires what it needs: `CompiledKernels._use`
    code = atomic_load(entry.code)
    environment = entry.environment
    local_size = entry.local_memory
    group.reserved = 0
    group.processor = worker
    group.local_memory = job.local_memory + worker * job.local_stride if local_size != 0 else 0
    group.local_size = local_size
    group.padding = 0
    if entry.flags & ENTRY_SPAN:
        group.first = first
        group.last = last
        group.x = 0
        group.y = 0
        group.z = 0
        result = call_kernel(code, environment, place_of(dispatch), place_of(group))
        if result != 0:
            fail(job, row, FAILED_FUNCTION, result, group.x, group.y, group.z)
        return
    count_x = share.count_x
    count_y = share.count_y
    x = 0
    y = 0
    z = 0
    if first != 0:
        line = quotient(first, count_x)
        x = remainder(first, count_x)
        y = remainder(line, count_y)
        z = quotient(line, count_y)
    count = FIRST_WORKGROUPS
    since = 0
    stop = first + lesser(count, last - first)
    while True:
        group.x = x
        group.y = y
        group.z = z
        result = call_kernel(code, environment, place_of(dispatch), place_of(group))
        if result != 0:
            fail(job, row, FAILED_FUNCTION, result, x, y, z)
            return
        first += 1
        if first == stop:
            if first == last:
                return
            now = ticks()
            if since != 0:
                count = paced(job, count, now - since)
            since = now
            if is_to_end(job, worker, now):
                return
            stop = first + lesser(count, last - first)
        x += 1
        if x == count_x:
            x = 0
            y += 1
            if y == count_y:
                y = 0
                z += 1


def fill_dispatch(job: Job, row: Command, share: Share, dispatch: KernelDispatch) -> None:
    dispatch.size_x = 1
    dispatch.size_y = 1
    dispatch.size_z = 1
    dispatch.constant_count = row.constant_count
    dispatch.count_x = share.count_x
    dispatch.count_y = share.count_y
    dispatch.count_z = share.count_z
    dispatch.concurrency = job.concurrency
    dispatch.binding_count = row.operand_count
    dispatch.constants = job.list.constants + 4 * row.constant
    operand = 8 * row.operand
    dispatch.addresses = job.addresses + operand
    dispatch.lengths = job.lengths + operand
    dispatch.accesses = job.accesses + operand
    dispatch.failure = place_of(job.failure)
    dispatch.parts = share.parts


def run_pieces(job: Job, row: Command, worker: int, first: int, last: int) -> None:
    """Bytes of a fill, copy or update."""
    while last - first > PIECE:
        run_bytes(job, row, first, first + PIECE)
        first += PIECE
        if is_to_end(job, worker, ticks()):
            return
    run_bytes(job, row, first, last)


def run_bytes(job: Job, row: Command, first: int, last: int) -> None:
    """A part of a fill, copy or update."""
    memmove = job.functions.memmove
    ranges = job.addresses + 8 * row.operand
    target = load64(ranges) + first
    kind = row.kind
    if kind == KIND_FILL:
        pattern = row.pattern & 0xFFFFFFFF
        byte = pattern & 0xFF
        if pattern == byte * 0x01010101:
            call(job.functions.memset, target, byte, last - first)
        else:
            fill(job, pattern, target, last - first)
    elif kind == KIND_COPY:
        call(memmove, load64(ranges + 8) + first, target, last - first)
    else:
        call(memmove, target, job.list.data + row.data + first, last - first)


@apart
def fill(job: Job, pattern: int, target: int, count: int) -> None:
    """Fills with four bytes."""
    word = pattern * 0x100000001
    place = target
    end = target + lesser(count & -8, FILL_BLOCK)
    while place < end:
        store64(place, word)
        place += 8
    if count > FILL_BLOCK:
        repeat(job, target, count)
        return
    while place < target + count:
        store8(place, word)
        word >>= 8
        place += 1


@apart
def repeat(job: Job, target: int, count: int) -> None:
    """Copies the first FILL_BLOCK bytes to the others."""
    done = FILL_BLOCK
    while done < count:
        call(job.functions.memmove, target + done, target, lesser(count - done, FILL_BLOCK))
        done += FILL_BLOCK


@apart
def fail(job: Job, row: Command, kind: int, code: int, x: int, y: int, z: int) -> None:
    """Only the first failure of a job is recorded."""
    # order of failure: the first one; what says more is read after `finished`
    if atomic_replace(job.failure, 0, kind):
        job.failed_row = quotient(place_of(row) - place_of(job.list.rows), COMMAND_SIZE)
        job.failed_code = code
        job.failed_x = x
        job.failed_y = y
        job.failed_z = z
