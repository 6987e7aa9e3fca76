"""Fill, update and copy buffers in a queue: little at once, much as lists.

The host remembers the first bytes of arguments that it has just uploaded to a device that works by itself. A
program that wants to see such bytes, as a decoder its position, copies them to memory that the host sees, and
waits. As nothing but uploads has been submitted since, the host can write them there itself.
"""

from __future__ import annotations

from jitree.codegen.primitives import call, lesser, stack, store8, store64
from jitree.codegen.record import atomic_replace, atomic_store, layout_of, place_of, size_of
from jitree.hal.checks import are_apart, fill_refusal, update_refusal
from jitree.hal.command_layout import KIND_COPY, KIND_FILL, KIND_UPDATE, Command, List
from jitree.hal.enums import BufferUsage, MemoryAccess, MemoryType
from jitree.hal.local.executor.rows import COMMAND_SIZE
from jitree.hal.local.queue_record import Queue
from jitree.hal.timeline_record import (
    MOST_KNOWN,
    MOST_KNOWN_BYTES,
    OWNED_BY_CODE,
    SUBMITTING,
    KnownRecord,
    Timeline,
)
from jitree.modules.hal.native.buffers import place_number, range_length
from jitree.modules.hal.native.commands import allows, repeated
from jitree.modules.hal.native.entries import STATE_RELEASED, State, release
from jitree.modules.hal.native.execution import LIST_SIZE, enters, run_transfer, staged_data
from jitree.modules.hal.native.fences import can_signal, follows, promise, tick_of
from jitree.modules.hal.native.layout import HandlePoolRecord
from jitree.modules.hal.native.registers import DONE, REFUSED, finish, is_kind, number, queue_of, reference
from jitree.regs.layout import ACCESS_READ, KIND_BUFFER, LINK_POOLED, OWNER_CODE, Entry

_SOURCE = int(BufferUsage.TRANSFER_SOURCE)
_TARGET = int(BufferUsage.TRANSFER_TARGET)
_READ = int(MemoryAccess.READ)
_WRITE = int(MemoryAccess.WRITE)
_HOST_VISIBLE = int(MemoryType.HOST_VISIBLE)
_KNOWN_SIZE = size_of(KnownRecord)
_BYTES = layout_of(KnownRecord)["bytes"]
MOST_FILLED = 256
MOST_COPIED = 64 << 10
"""Bytes that are moved right here; more is a command, which the threads of the device share."""


def ready_queue(state: State, refs: int, words: int) -> Queue:
    """The queue of the operation if it may run here and now, else 0: readers are told by Python."""
    handle_pool = state.handle_pool
    queue = queue_of(handle_pool, reference(refs, words, 0))
    if not queue or queue.tell != 0 or not follows(handle_pool, queue, reference(refs, words, 2)):
        return Queue(0)
    return queue if can_signal(handle_pool, reference(refs, words, 3)) else Queue(0)


def end(state: State, refs: int, words: int, queue: Queue, length: int) -> int:
    """The operation has run, or has entered the queue's timeline; one without bytes keeps order only."""
    handle_pool = state.handle_pool
    tick = tick_of(handle_pool, reference(refs, words, 2))
    if queue.timeline and length != 0:
        tick = handle_pool.submitted
    promise(reference(refs, words, 3), tick)
    return finish(state, refs, words)


def queue_fill(state: State, values: int, refs: int, words: int) -> int:
    queue = ready_queue(state, refs, words)
    if not queue:
        return REFUSED
    place = place_number(queue)
    handle_pool = state.handle_pool
    target = reference(refs, words, 4)
    offset = number(values, words, 5)
    pattern = number(values, words, 7)
    size = number(values, words, 8)
    if not allows(handle_pool, place, target, _TARGET, _WRITE) or number(values, words, 9) != 0:
        return REFUSED
    length = range_length(target, offset, number(values, words, 6))
    # a range that is refused has the length -1, which is none of a fill
    if length < 0 or fill_refusal(offset, length, size):
        return REFUSED
    first = target.address + offset
    word = repeated(pattern, size)
    if length > MOST_FILLED or (place != 0 and length != 0):
        row = Command(stack(COMMAND_SIZE))
        row.kind = KIND_FILL
        row.operand_count = 1
        row.pattern = word
        if run_command(state, handle_pool, queue, row, length, first, 0, 0) != DONE:
            return REFUSED
    else:
        for index in range(length):
            store8(first + index, word >> (8 * (index & 3)))
    return end(state, refs, words, queue, length)


def queue_update(state: State, values: int, refs: int, words: int) -> int:
    queue = ready_queue(state, refs, words)
    if not queue:
        return REFUSED
    place = place_number(queue)
    handle_pool = state.handle_pool
    source = reference(refs, words, 4)
    target = reference(refs, words, 6)
    if not is_kind(source, KIND_BUFFER) or source.access & ACCESS_READ == 0:
        return REFUSED
    if not allows(handle_pool, place, target, _TARGET, _WRITE) or number(values, words, 9) != 0:
        return REFUSED
    from_offset = number(values, words, 5)
    offset = number(values, words, 7)
    length = range_length(target, offset, number(values, words, 8))
    if update_refusal(source.length, from_offset, length):
        return REFUSED
    if place != 0 and length != 0:
        data = source.address + from_offset
        if upload(state, handle_pool, queue, target.address + offset, data, length) != DONE:
            return REFUSED
    else:
        memmove = handle_pool.functions.memmove
        call(memmove, target.address + offset, source.address + from_offset, length)
    return end(state, refs, words, queue, length)


def upload(
    state: State, handle_pool: HandlePoolRecord, queue: Queue, target: int, source: int, length: int
) -> int:
    """Writes up to MAXIMUM_UPDATE host bytes to a device's memory. The device works by itself."""
    row = Command(stack(COMMAND_SIZE))
    write_update(row, length)
    return run_command(state, handle_pool, queue, row, length, target, 0, source)


def upload_new(
    state: State, handle_pool: HandlePoolRecord, queue: Queue, target: int, source: int, length: int
) -> int:
    """Uploads to new memory of the device, as :func:`upload`. Nothing else has been told of it."""
    row = Command(stack(COMMAND_SIZE))
    write_update(row, length)
    table = List(stack(LIST_SIZE))
    write_list(table, row, stack(32), length, target, 0, source)
    timeline = queue.timeline
    staged = staged_data(state, handle_pool, source, length)
    if not staged:
        return REFUSED
    result = REFUSED
    # order of owner: a lock: acquires what the last owner stored
    if atomic_replace(timeline.owner, OWNED_BY_CODE, SUBMITTING):
        data = staged.address
        if call(timeline.stage, place_of(timeline), target, data, length) != 0 or enters(
            handle_pool, timeline, table, table.addresses, table.lengths, data
        ):
            handle_pool.submitted = timeline.tick
            remember(handle_pool, timeline, target, data, length)
            result = DONE
        atomic_store(timeline.owner, OWNED_BY_CODE)
    release(handle_pool, staged, place_of(state) + STATE_RELEASED)
    return result


def write_update(row: Command, length: int) -> None:
    row.kind = KIND_UPDATE
    row.operand_count = 1
    row.data = 0
    row.data_length = length


def queue_copy(state: State, values: int, refs: int, words: int) -> int:
    queue = ready_queue(state, refs, words)
    if not queue:
        return REFUSED
    place = place_number(queue)
    handle_pool = state.handle_pool
    source = reference(refs, words, 4)
    target = reference(refs, words, 6)
    if not allows(handle_pool, place, source, _SOURCE, _READ):
        return REFUSED
    if not allows(handle_pool, place, target, _TARGET, _WRITE):
        return REFUSED
    from_offset = number(values, words, 5)
    offset = number(values, words, 7)
    length = range_length(source, from_offset, number(values, words, 8))
    if number(values, words, 9) != 0 or length < 0:
        return REFUSED
    if range_length(target, offset, length) < 0:
        return REFUSED
    first = source.address + from_offset
    second = target.address + offset
    if not are_apart(first, second, length):
        return REFUSED
    if place != 0 and is_copied(handle_pool, queue, source, first, target, second, length):
        return end(state, refs, words, queue, 0)
    if length > MOST_COPIED or (place != 0 and length != 0):
        if move(state, handle_pool, queue, first, second, length) != DONE:
            return REFUSED
    else:
        memmove = handle_pool.functions.memmove
        call(memmove, second, first, length)
    return end(state, refs, words, queue, length)


def move(
    state: State, handle_pool: HandlePoolRecord, queue: Queue, source: int, target: int, length: int
) -> int:
    """Copies between ranges that do not overlap, as a command."""
    row = Command(stack(COMMAND_SIZE))
    row.kind = KIND_COPY
    row.operand_count = 2
    return run_command(state, handle_pool, queue, row, length, source, target, 0)


def run_command(
    state: State,
    handle_pool: HandlePoolRecord,
    queue: Queue,
    row: Command,
    length: int,
    first: int,
    second: int,
    data: int,
) -> int:
    """Runs a fill, update or copy of ranges. The first is the target; bytes of an update are at ``data``,
    those of a copy in the second one."""
    table = List(stack(LIST_SIZE))
    write_list(table, row, stack(32), length, first, second, data)
    return run_transfer(state, handle_pool, queue, table)


def write_list(
    table: List, row: Command, ranges: int, length: int, first: int, second: int, data: int
) -> None:
    """A list of one transfer (as :func:`run_command`); ``ranges`` is room for two."""
    row.operand = 0
    row.constant_count = 0
    store64(ranges, first)
    store64(ranges + 8, second)
    store64(ranges + 16, length)
    store64(ranges + 24, length)
    table.rows = row
    table.row_count = 1
    table.addresses = ranges
    table.lengths = ranges + 16
    table.accesses = 0  # kernels alone look at them
    table.data = data


# -- bytes that the host knows ------------------------------------------------------------------------


def remember(handle_pool: HandlePoolRecord, timeline: Timeline, address: int, data: int, length: int) -> None:
    """Remembers bytes that the last submission wrote to new memory. Machine code is just submitting."""
    known = record_of(timeline, timeline.known_count)
    timeline.known_count += 1
    known.address = address
    known.length = length
    memmove = handle_pool.functions.memmove
    call(memmove, place_of(known) + _BYTES, data, lesser(length, MOST_KNOWN_BYTES))


def record_of(timeline: Timeline, number: int) -> KnownRecord:
    return KnownRecord(timeline.known + _KNOWN_SIZE * (number & (MOST_KNOWN - 1)))


def known_bytes(timeline: Timeline, address: int, length: int) -> int:
    """Where the host has the bytes of a range of the device; 0 = it does not know them."""
    count = timeline.known_count
    for index in range(lesser(count, MOST_KNOWN)):
        known = record_of(timeline, count - 1 - index)
        if address < known.address + known.length and known.address < address + length:
            offset = address - known.address
            is_whole = offset >= 0 and offset + length <= lesser(known.length, MOST_KNOWN_BYTES)
            return place_of(known) + _BYTES + offset if is_whole else 0
    return 0


def is_copied(
    handle_pool: HandlePoolRecord,
    queue: Queue,
    source: Entry,
    first: int,
    target: Entry,
    second: int,
    length: int,
) -> bool:
    """Whether the host has copied by itself, to unused visible memory: all that could is done, and uploads
    write to the device's own."""
    timeline = queue.timeline
    if not timeline or timeline.known_count == 0 or timeline.exposed or length > MOST_KNOWN_BYTES:
        return False
    if not is_own(source) or not is_own(target):
        return False
    if source.access & _HOST_VISIBLE != 0 or target.access & _HOST_VISIBLE == 0:
        return False
    # order of owner: a lock: acquires what the last owner stored
    if not atomic_replace(timeline.owner, OWNED_BY_CODE, SUBMITTING):
        return False
    found = 0
    if timeline.completed >= timeline.worked:
        found = known_bytes(timeline, first, length)
    if found != 0:
        memmove = handle_pool.functions.memmove
        call(memmove, second, found, length)
    atomic_store(timeline.owner, OWNED_BY_CODE)
    return found != 0


def is_own(buffer: Entry) -> bool:
    """Whether memory is the pools', without a Python object."""
    return buffer.owner == OWNER_CODE and buffer.link == Entry(LINK_POOLED)
