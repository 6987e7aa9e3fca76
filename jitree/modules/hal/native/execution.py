"""``hal.device.queue.execute`` and ``execute.indirect``: lists run on the calling thread and its team."""

from __future__ import annotations

from jitree.codegen.primitives import Fields, call, load, load64, stack, store, store64
from jitree.hal.command_layout import KIND_COPY, LIST, PATCH, SLOT
from jitree.hal.enums import CommandBufferMode
from jitree.hal.local.queue_record import QUEUE
from jitree.hal.local.walk_layout import JOB, SHARE, TEAM_FIELDS
from jitree.modules.hal.native.buffers import is_host_buffer, range_length
from jitree.modules.hal.native.entries import Entry, Natives, State
from jitree.modules.hal.native.fences import can_signal, is_reached, signal
from jitree.modules.hal.native.layout import LARGEST_SCALE, OPERANDS, ROWS
from jitree.modules.hal.native.recording import COMMAND_SIZE, Command, List, Patch, Recording, Slot
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
from jitree.regs.layout import OWNER_CODE, PATIENT, PROMPT

Job = Fields(JOB)
Queue = Fields(QUEUE)
JOB_SIZE = JOB.size
SHARE_SIZE = SHARE.size
LIST_SIZE = LIST.size
PATCH_SIZE = PATCH.size
SLOT_SIZE = SLOT.size
TEAM_WORKERS = TEAM_FIELDS["workers"]
_ONE_SHOT = int(CommandBufferMode.ONE_SHOT)
_INLINE = int(CommandBufferMode.ALLOW_INLINE_EXECUTION)
MOST_OPERANDS = OPERANDS * LARGEST_SCALE
MOST_ROWS = ROWS * LARGEST_SCALE
"""Of lists whose tables fit on the stack: 256 KiB of ranges, 192 of shares."""
MOST_THREADS = 255


def queue_execute(state: int, values: int, refs: int, words: int, commands_at: int, table_at: int) -> int:
    """``commands_at`` is the number of the command buffer among the arguments, ``table_at`` that of the first
    register of the binding table, 0 = there is none."""
    natives = load(state, State.natives)
    if natives == 0 or load(natives, Natives.execute) == 0:
        return REFUSED
    queue = queue_of(natives, reference(refs, words, 0))
    wait = reference(refs, words, 2)
    fence = reference(refs, words, 3)
    commands = reference(refs, words, commands_at)
    if queue == 0 or not is_reached(natives, wait) or not can_signal(natives, fence):
        return REFUSED
    if not is_kind(commands, load(natives, Natives.command_buffer)) or load(commands, Entry.address) == 0:
        return REFUSED
    recording = load(commands, Entry.address)
    modes = load(recording, Recording.modes)
    if load(recording, Recording.ready) != 1 or (wait != 0 and modes & _INLINE):
        return REFUSED
    by_code = load(commands, Entry.owner) == OWNER_CODE
    if modes & _ONE_SHOT and (not by_code or load(recording, Recording.submitted)):
        return REFUSED
    if not valid_table(natives, recording, values, refs, words, table_at):
        return REFUSED
    if run(state, natives, queue, recording, values, refs, words, table_at) != DONE:
        return REFUSED
    if by_code:
        store(recording, Recording.submitted, 1)
    signal(fence)
    return finish(state, refs, words)


def queue_execute_list(state: int, values: int, refs: int, words: int) -> int:
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


def valid_table(natives: int, recording: int, values: int, refs: int, words: int, table_at: int) -> bool:
    """Whether all entries are ranges of buffers on the host, and those that are used may be used so."""
    count = entry_count(words, table_at)
    for index in range(count):
        buffer = reference(refs, words, table_at + 3 * index)
        if buffer != 0:
            if not is_host_buffer(natives, buffer):
                return False
            offset = number(values, words, table_at + 3 * index + 1)
            if range_length(buffer, offset, number(values, words, table_at + 3 * index + 2)) < 0:
                return False
    slots = load(recording, Recording.slots)
    for slot in range(load(recording, Recording.slot_count)):
        row = slots + slot * SLOT_SIZE
        if load(row, Slot.used):
            if slot >= count:
                return False
            buffer = reference(refs, words, table_at + 3 * slot)
            if buffer == 0:
                return False
            if load(row, Slot.usage) & ~load(buffer, Entry.usage) or load(row, Slot.access) & ~load(
                buffer, Entry.encoding
            ):
                return False
    return True


def bind(table: int, addresses: int, lengths: int, values: int, refs: int, words: int, table_at: int) -> int:
    """Fills in the ranges of one submission (as ``CommandList.bind``)."""
    for index in range(load(table, List.operand_count)):
        store64(addresses + 8 * index, load64(load(table, List.addresses) + 8 * index))
        store64(lengths + 8 * index, load64(load(table, List.lengths) + 8 * index))
    count = entry_count(words, table_at)
    for index in range(load(table, List.patch_count)):
        patch = load(table, List.patches) + index * PATCH_SIZE
        slot = load(patch, Patch.slot)
        if slot >= count:
            return REFUSED
        at = table_at + 3 * slot
        buffer = reference(refs, words, at)
        if buffer == 0:
            return REFUSED
        base = number(values, words, at + 1)
        available = range_length(buffer, base, number(values, words, at + 2))
        offset = load(patch, Patch.offset)
        length = load(patch, Patch.length)
        if length == -1:
            length = available - offset
        if offset < 0 or length < 0 or length > available - offset:
            return REFUSED
        address = load(buffer, Entry.address) + base + offset
        if address & load(patch, Patch.alignment) and length != 0:
            return REFUSED
        store64(addresses + 8 * load(patch, Patch.operand), address)
        store64(lengths + 8 * load(patch, Patch.operand), length)
    return DONE


def valid_copies(table: int, addresses: int, lengths: int) -> bool:
    """Whether both ranges of every copy have one length and do not overlap."""
    row = load(table, List.rows)
    for _ in range(load(table, List.row_count)):
        if load(row, Command.kind) == KIND_COPY:
            operand = 8 * load(row, Command.operand)
            length = load64(lengths + operand)
            source = load64(addresses + operand)
            target = load64(addresses + operand + 8)
            if length != load64(lengths + operand + 8):
                return False
            if source < target + length and target < source + length:
                return False
        row += COMMAND_SIZE
    return True


# -- the work ------------------------------------------------------------------------------------------


def run(
    state: int, natives: int, queue: int, recording: int, values: int, refs: int, words: int, table_at: int
) -> int:
    """Executes a list. A failure is left to Python, which knows the names in the error."""
    table = load(recording, Recording.list)
    operands = load(table, List.operand_count)
    rows = load(table, List.row_count)
    if operands > MOST_OPERANDS or rows > MOST_ROWS:
        return REFUSED
    job = stack(JOB_SIZE)
    threads = prepare(natives, queue, job, table)
    if load(table, List.patch_count) != 0:
        addresses = stack(16 * operands)
        lengths = addresses + 8 * operands
        if bind(table, addresses, lengths, values, refs, words, table_at) != DONE:
            return REFUSED
        if load(recording, Recording.copies) and not valid_copies(table, addresses, lengths):
            return REFUSED
        store(job, Job.addresses, addresses)
        store(job, Job.lengths, lengths)
    if not is_short(state, natives, queue, job):
        return REFUSED
    if load(job, Job.team) != 0:
        store(job, Job.shares, stack((rows + 1) * SHARE_SIZE))
    local = (load(table, List.local_memory) + 63) & -64
    if local == 0:
        return execute(natives, job)
    limit = load(queue, Queue.local_memory)
    if limit != 0 and load(table, List.local_memory) > limit:
        return REFUSED
    if load(natives, Natives.busy) or local * threads > load(natives, Natives.local_size):
        return REFUSED
    store(natives, Natives.busy, 1)
    store(job, Job.local_memory, load(natives, Natives.local_memory))
    store(job, Job.local_stride, local)
    result = execute(natives, job)
    store(natives, Natives.busy, 0)
    return result


def run_row(state: int, natives: int, queue: int, row: int, addresses: int, lengths: int) -> int:
    """Executes one fill or copy, whose ranges stand in tables of their own."""
    table = stack(LIST_SIZE)
    store(table, List.rows, row)
    store(table, List.row_count, 1)
    store(table, List.addresses, addresses)
    store(table, List.lengths, lengths)
    job = stack(JOB_SIZE)
    prepare(natives, queue, job, table)
    if load(natives, Natives.execute) == 0 or not is_short(state, natives, queue, job):
        return REFUSED
    store(job, Job.shares, stack(2 * SHARE_SIZE))
    return execute(natives, job)


def prepare(natives: int, queue: int, job: int, table: int) -> int:
    """Fills in a job without local memory and shares; the number of threads that may work on it."""
    team = load(queue, Queue.team)
    threads = 1 if team == 0 else load64(team + TEAM_WORKERS) + 1
    store(job, Job.list, table)
    store(job, Job.addresses, load(table, List.addresses))
    store(job, Job.lengths, load(table, List.lengths))
    store(job, Job.functions, load(natives, Natives.functions))
    store(job, Job.team, team)
    store(job, Job.concurrency, threads if threads < MOST_THREADS else MOST_THREADS)
    store(job, Job.local_memory, 0)
    store(job, Job.local_stride, 0)
    store(job, Job.failure, 0)
    store(job, Job.shares, 0)
    return threads


def execute(natives: int, job: int) -> int:
    failure = call(load(natives, Natives.execute), job)
    if failure == 0:
        return DONE
    store(natives, Natives.failure, failure)
    store(natives, Natives.failed_row, load(job, Job.failed_row))
    store(natives, Natives.failed_code, load(job, Job.failed_code))
    store(natives, Natives.failed_x, load(job, Job.failed_x))
    store(natives, Natives.failed_y, load(job, Job.failed_y))
    store(natives, Natives.failed_z, load(job, Job.failed_z))
    return REFUSED


def is_short(state: int, natives: int, queue: int, job: int) -> bool:
    """Whether a list takes no longer than this call may hold up its host or others that wait for its
    context."""
    prompt = load(state, State.prompt)
    if prompt == PATIENT:
        return True
    most = load(queue, Queue.immediate) if prompt == PROMPT else load(queue, Queue.patience)
    if most < 0:
        return True
    ticks = call(load(natives, Natives.estimate), job)
    return 0 <= ticks <= most
