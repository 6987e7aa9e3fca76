"""Run command buffers (``hal.device.queue.execute``), on the calling thread and its team.

A device that works by itself is given them by functions of its driver (``timeline_record.py``).
"""

from __future__ import annotations

from jitree.codegen.primitives import apart, call, greater, load64, stack, store64, unlikely
from jitree.codegen.record import atomic_load, atomic_replace, atomic_store, place_of, size_of
from jitree.hal.buffer import length_inside
from jitree.hal.checks import are_apart, is_aligned, use_refusal
from jitree.hal.command_buffer import CommandBufferMode
from jitree.hal.command_layout import (
    KIND_COPY,
    KIND_UPDATE,
    TOLD_FAILED,
    TOLD_SUBMITTED,
    BindingSlot,
    Job,
    List,
    Log,
    Patch,
    Share,
    ThreadTeam,
)
from jitree.hal.local.executor.rows import SHARE_SIZE, next_row
from jitree.hal.local.queue_record import Queue
from jitree.hal.timeline_record import OWNED_BY_CODE, SUBMITTING, Timeline
from jitree.modules.hal.native.buffers import is_reachable, place_number, range_length, take_storage
from jitree.modules.hal.native.entries import STATE_RELEASED, State, release
from jitree.modules.hal.native.fences import can_signal, follows, promise
from jitree.modules.hal.native.layout import (
    LARGEST_SCALE,
    MOST_UNMEASURED,
    OPERANDS,
    POOL_COUNT,
    RANDOM_SHIFT,
    ROWS,
    SHORT_SHIFT,
    HandlePoolRecord,
    Recording,
)
from jitree.modules.hal.native.registers import (
    DONE,
    REFUSED,
    argument_count,
    finish,
    is_kind,
    number,
    queue_of,
    reference,
)
from jitree.regs.layout import OWNER_CODE, PATIENT, PROMPT, Entry

PATCH_SIZE = size_of(Patch)
SLOT_SIZE = size_of(BindingSlot)

JOB_SIZE = size_of(Job)
LIST_SIZE = size_of(List)
_ONE_SHOT = int(CommandBufferMode.ONE_SHOT)
_INLINE = int(CommandBufferMode.ALLOW_INLINE_EXECUTION)
MOST_OPERANDS = OPERANDS * LARGEST_SCALE
MOST_ROWS = ROWS * LARGEST_SCALE
"""The most rows of lists whose tables fit on the stack: 384 KiB of ranges, 192 of shares."""
MOST_THREADS = 255


def queue_execute(state: State, values: int, refs: int, words: int, commands_at: int, table_at: int) -> int:
    """Executes a command buffer with a binding table. ``commands_at`` is its number among the arguments,
    ``table_at`` that of the first register of the table, 0 = there is none."""
    handle_pool = state.handle_pool
    handle_pool.failure = (
        0  # of an execution that Python was interrupted before it looked at: not of this one
    )
    queue = queue_of(handle_pool, reference(refs, words, 0))
    wait = reference(refs, words, 2)
    fence = reference(refs, words, 3)
    commands = reference(refs, words, commands_at)
    if unlikely(not queue or not follows(handle_pool, queue, wait) or not can_signal(handle_pool, fence)):
        return REFUSED
    if unlikely(not queue.timeline and handle_pool.execute == 0):
        return REFUSED
    if unlikely(not is_kind(commands, handle_pool.command_buffer) or commands.address == 0):
        return REFUSED
    recording = Recording(commands.address)
    modes = recording.modes
    if unlikely(recording.ready != 1 or (bool(wait) and modes & _INLINE != 0)):
        return REFUSED
    by_code = commands.owner == OWNER_CODE
    if modes & _ONE_SHOT and (not by_code or recording.submitted):
        return REFUSED
    if unlikely(recording.place != place_number(queue)):
        return REFUSED
    if not valid_table(handle_pool, recording, values, refs, words, table_at):
        return REFUSED
    if run(state, handle_pool, queue, recording, values, refs, words, table_at) != DONE:
        return REFUSED
    if by_code:
        recording.submitted = 1
    promise(fence, handle_pool.submitted if queue.timeline else 0)
    return finish(state, refs, words)


def queue_execute_list(state: State, values: int, refs: int, words: int) -> int:
    """The form with a list of command buffers: one."""
    if argument_count(words) != 5:
        return REFUSED
    return queue_execute(state, values, refs, words, 4, 0)


# -- binding tables ------------------------------------------------------------------------------------


def entry_count(words: int, table_at: int) -> int:
    count = 0
    if table_at != 0:
        for _ in range(table_at, argument_count(words), 3):
            count += 1
    return count


def valid_table(
    handle_pool: HandlePoolRecord, recording: Recording, values: int, refs: int, words: int, table_at: int
) -> bool:
    """Whether all entries are usable ranges of buffers at the place."""
    count = entry_count(words, table_at)
    for index in range(count):
        buffer = reference(refs, words, table_at + 3 * index)
        if buffer:
            if unlikely(not is_reachable(handle_pool, recording.place, buffer)):
                return False
            offset = number(values, words, table_at + 3 * index + 1)
            if range_length(buffer, offset, number(values, words, table_at + 3 * index + 2)) < 0:
                return False
    slots = recording.slots
    for slot in range(recording.slot_count):
        row = BindingSlot(slots + slot * SLOT_SIZE)
        if row.used:
            if slot >= count:
                return False
            buffer = reference(refs, words, table_at + 3 * slot)
            if not buffer:
                return False
            if use_refusal(row.usage, buffer.usage, row.access, buffer.encoding):
                return False
    return True


def bind(job: Job, table: List, values: int, refs: int, words: int, table_at: int) -> int:
    """Fills in the ranges of one submission (as ``CommandList.bind``)."""
    addresses, lengths, accesses = job.addresses, job.lengths, job.accesses
    for index in range(table.operand_count):
        store64(addresses + 8 * index, load64(table.addresses + 8 * index))
        store64(lengths + 8 * index, load64(table.lengths + 8 * index))
        store64(accesses + 8 * index, load64(table.accesses + 8 * index))
    count = entry_count(words, table_at)
    for index in range(table.patch_count):
        patch = Patch(table.patches + index * PATCH_SIZE)
        slot = patch.slot
        if slot >= count:
            return REFUSED
        at = table_at + 3 * slot
        buffer = reference(refs, words, at)
        if not buffer:
            return REFUSED
        base = number(values, words, at + 1)
        available = range_length(buffer, base, number(values, words, at + 2))
        offset = patch.offset
        length = length_inside(available, offset, patch.length)
        address = buffer.address + base + offset
        if length < 0 or not is_aligned(address, length, patch.alignment + 1):
            return REFUSED
        store64(addresses + 8 * patch.operand, address)
        store64(lengths + 8 * patch.operand, length)
        store64(accesses + 8 * patch.operand, buffer.encoding)
    return DONE


def valid_copies(table: List, addresses: int, lengths: int) -> bool:
    """Whether both ranges of every copy have one length and do not overlap."""
    row = table.rows
    for _ in range(table.row_count):
        if row.kind == KIND_COPY:
            operand = 8 * row.operand
            length = load64(lengths + operand)
            source = load64(addresses + operand)
            target = load64(addresses + operand + 8)
            if length != load64(lengths + operand + 8):
                return False
            if not are_apart(source, target, length):
                return False
        row = next_row(row)
    return True


# -- the work ------------------------------------------------------------------------------------------


def run(
    state: State,
    handle_pool: HandlePoolRecord,
    queue: Queue,
    recording: Recording,
    values: int,
    refs: int,
    words: int,
    table_at: int,
) -> int:
    """Executes a list. A failure is left to Python, which knows the names in the error."""
    table = recording.list
    operands = table.operand_count
    rows = table.row_count
    if unlikely(operands > MOST_OPERANDS or rows > MOST_ROWS):
        return REFUSED
    job = Job(stack(JOB_SIZE))
    threads = prepare(handle_pool, queue.team, queue.log, job, table)
    if table.patch_count != 0:
        job.addresses = stack(24 * operands)
        job.lengths = job.addresses + 8 * operands
        job.accesses = job.lengths + 8 * operands
        if bind(job, table, values, refs, words, table_at) != DONE:
            return REFUSED
        if recording.copies and not valid_copies(table, job.addresses, job.lengths):
            return REFUSED
    if unlikely(bool(queue.timeline)):
        return submit(state, handle_pool, queue.timeline, table, job.addresses, job.lengths)
    if not is_short(state, handle_pool, queue, job):
        return REFUSED
    if job.team:
        job.shares = Share(stack((rows + 1) * SHARE_SIZE))
    limit = queue.local_memory
    if limit != 0 and table.local_memory > limit:
        return REFUSED
    tell = queue.tell  # once: readers may end meanwhile, and what it calls stays as long as the device
    if unlikely(tell != 0):
        return execute_told(state, handle_pool, tell, job, threads, words)
    return execute_with_memory(handle_pool, job, threads)


def execute_with_memory(handle_pool: HandlePoolRecord, job: Job, threads: int) -> int:
    """Executes a list that may need local memory, on so many threads."""
    local = (job.list.local_memory + 63) & -64
    if local == 0:
        return execute(handle_pool, job)
    if handle_pool.busy or local * threads > handle_pool.local_size:
        return REFUSED
    handle_pool.busy = 1
    provide_local_memory(handle_pool, job, local, threads)
    result = execute(handle_pool, job)
    handle_pool.busy = 0
    return result


def provide_local_memory(handle_pool: HandlePoolRecord, job: Job, size: int, threads: int) -> None:
    """Lends each thread its part of the pool's; zero where buffers are to be."""
    job.local_memory = handle_pool.local_memory
    job.local_stride = size
    if unlikely(handle_pool.zeroed != 0):
        call(handle_pool.functions.memset, job.local_memory, 0, size * threads)


@apart
def execute_told(
    state: State, handle_pool: HandlePoolRecord, tell: int, job: Job, threads: int, words: int
) -> int:
    """Executes a list of which readers are told: nothing refuses it when they have been."""
    local = (job.list.local_memory + 63) & -64
    if local != 0 and (handle_pool.busy or local * threads > handle_pool.local_size):
        return REFUSED
    call(tell, TOLD_SUBMITTED, place_of(state), place_of(job), words)
    # order of failure: the first one; what says more is read after `finished`
    failure = atomic_load(job.failure)
    if failure == 0:
        provide_local_memory(handle_pool, job, local, threads)
        handle_pool.busy += local
        failure = call(handle_pool.execute, place_of(job))
        handle_pool.busy -= local
    if failure == 0:
        return DONE
    call(tell, TOLD_FAILED, place_of(job), 0, 0)
    return refuse_failed(handle_pool, job, failure)


def run_transfer(state: State, handle_pool: HandlePoolRecord, queue: Queue, table: List) -> int:
    """Executes a list of one transfer."""
    if queue.timeline:
        return submit(state, handle_pool, queue.timeline, table, table.addresses, table.lengths)
    job = Job(stack(JOB_SIZE))
    prepare(handle_pool, queue.team, queue.log, job, table)
    if handle_pool.execute == 0 or not is_short(state, handle_pool, queue, job):
        return REFUSED
    job.shares = Share(stack(2 * SHARE_SIZE))
    return execute(handle_pool, job)


def run_alone(handle_pool: HandlePoolRecord, table: List) -> int:
    """Executes a list on this thread alone, without telling a profile of it."""
    job = Job(stack(JOB_SIZE))
    threads = prepare(handle_pool, ThreadTeam(0), Log(0), job, table)
    return execute_with_memory(handle_pool, job, threads)


def prepare(handle_pool: HandlePoolRecord, team: ThreadTeam, log: Log, job: Job, table: List) -> int:
    """Fills in a job without local memory and shares; the number of threads that may work on it."""
    threads = team.workers + 1 if team else 1
    job.list = table
    job.addresses = table.addresses
    job.lengths = table.lengths
    job.accesses = table.accesses
    job.functions = handle_pool.functions
    job.team = team
    job.log = log
    job.tell = 0
    job.origin = 0
    job.concurrency = threads if threads < MOST_THREADS else MOST_THREADS
    job.local_memory = 0
    job.local_stride = 0
    # order of failure: no other thread has the job; `claimed` releases it with the job
    atomic_store(job.failure, 0)
    job.shares = Share(0)
    return threads


def execute(handle_pool: HandlePoolRecord, job: Job) -> int:
    """Most lists are not measured: reading the clock twice takes as long as a small one."""
    if handle_pool.unmeasured == 0:
        return execute_measured(handle_pool, job)
    handle_pool.unmeasured -= 1
    failure = call(handle_pool.execute, place_of(job))
    return DONE if failure == 0 else refuse_failed(handle_pool, job, failure)


@apart
def execute_measured(handle_pool: HandlePoolRecord, job: Job) -> int:
    """Executes a list and times a random one of short lists."""
    if handle_pool.spent > handle_pool.most_spent:
        handle_pool.spent = 0
        return REFUSED
    begun = call(handle_pool.clock)
    failure = call(handle_pool.execute, place_of(job))
    passed = call(handle_pool.clock) - begun
    short = handle_pool.most_spent >> SHORT_SHIFT
    following = begun >> RANDOM_SHIFT & MOST_UNMEASURED if passed < short else 0
    handle_pool.spent += passed * (1 + following)
    handle_pool.unmeasured = following
    return DONE if failure == 0 else refuse_failed(handle_pool, job, failure)


@apart
def refuse_failed(handle_pool: HandlePoolRecord, job: Job, failure: int) -> int:
    """Python raises the error."""
    handle_pool.failure = failure
    handle_pool.failed_row = job.failed_row
    handle_pool.failed_code = job.failed_code
    handle_pool.failed_x = job.failed_x
    handle_pool.failed_y = job.failed_y
    handle_pool.failed_z = job.failed_z
    return REFUSED


def is_short(state: State, handle_pool: HandlePoolRecord, queue: Queue, job: Job) -> bool:
    """Whether a list is short enough to hold up its host. Others may wait for its context, too."""
    prompt = state.prompt
    if not unlikely(prompt != PATIENT):
        return True
    most = queue.immediate if prompt == PROMPT else queue.inline_limit
    if most < 0:
        return True
    ticks = call(handle_pool.estimate, place_of(job))
    return 0 <= ticks <= most


# -- devices that work by themselves ---------------------------------------------------------------------


def submit(
    state: State,
    handle_pool: HandlePoolRecord,
    timeline: Timeline,
    table: List,
    addresses: int,
    lengths: int,
) -> int:
    """Submits a list with the ranges given. REFUSED when the driver does not, or Python owns the timeline."""
    size = update_size(table)
    staged = Entry(0)
    if size != 0:
        staged = staged_data(state, handle_pool, table.data, size)
        if not staged:
            return REFUSED
    result = REFUSED
    # order of owner: a lock: acquires what the last owner stored
    if atomic_replace(timeline.owner, OWNED_BY_CODE, SUBMITTING):
        data = staged.address if staged else 0
        if enters(handle_pool, timeline, table, addresses, lengths, data):
            forget(timeline)
            result = DONE
        atomic_store(timeline.owner, OWNED_BY_CODE)
    release(handle_pool, staged, place_of(state) + STATE_RELEASED)
    return result


def enters(
    handle_pool: HandlePoolRecord,
    timeline: Timeline,
    table: List,
    addresses: int,
    lengths: int,
    data: int,
) -> bool:
    """Whether a list has been submitted; ``data`` is where the device finds the bytes of updates."""
    lists = handle_pool.known_lists
    if call(timeline.submit, place_of(timeline), lists, place_of(table), addresses, lengths, data) == 0:
        return False
    handle_pool.submitted = timeline.tick
    return True


def staged_data(state: State, handle_pool: HandlePoolRecord, data: int, size: int) -> Entry:
    """Memory that the device sees, too, with bytes of the host; 0 without such memory."""
    staged = take_storage(state, handle_pool, size, 1, POOL_COUNT)
    if staged:
        memmove = handle_pool.functions.memmove
        call(memmove, staged.address, data, size)
    return staged


def update_size(table: List) -> int:
    """Bytes of a list's updates."""
    size = 0
    row = table.rows
    for _ in range(table.row_count):
        if row.kind == KIND_UPDATE:
            size = greater(size, row.data + row.data_length)
        row = next_row(row)
    return size


def forget(timeline: Timeline) -> None:
    """The last submission may have written anywhere. Machine code is just submitting."""
    timeline.known_count = 0
    timeline.worked = timeline.tick
