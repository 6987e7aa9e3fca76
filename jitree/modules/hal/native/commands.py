"""Record command buffers in memory of fixed size; dispatches are in ``dispatches.py``.

What does not fit, or would fail, is left to Python, which takes over what has been recorded so far.
"""

from __future__ import annotations

from jitree.codegen.primitives import call, load64, store64
from jitree.codegen.record import place_of, size_of
from jitree.hal.checks import are_apart, fill_refusal, slot_refusal, update_refusal, use_refusal
from jitree.hal.command_buffer import CommandBufferMode, CommandCategory
from jitree.hal.command_layout import (
    KIND_BARRIER,
    KIND_COPY,
    KIND_FILL,
    KIND_UPDATE,
    BindingSlot,
    Command,
    Patch,
)
from jitree.hal.enums import QUEUE_AFFINITY_ANY, BufferUsage, MemoryAccess
from jitree.hal.local.executor.rows import row_at
from jitree.modules.hal.native.buffers import is_reachable, keeper, place_number, range_length
from jitree.modules.hal.native.entries import STATE_RELEASED, State, new_entry, release_recording, sweep
from jitree.modules.hal.native.layout import (
    DATA,
    KEPT,
    OPERANDS,
    PATCHES,
    ROWS,
    SLOTS,
    HandlePoolRecord,
    Recording,
)
from jitree.modules.hal.native.registers import (
    REFUSED,
    argument_count,
    finish,
    give,
    is_kind,
    number,
    optional,
    queue_of,
    reference,
)
from jitree.regs.access import retain
from jitree.regs.layout import ACCESS_READ, KIND_BUFFER, OWNER_CODE, Entry

PATCH_SIZE = size_of(Patch)
SLOT_SIZE = size_of(BindingSlot)

_ANY = int(CommandCategory.ANY)
_TRANSFER = int(CommandCategory.TRANSFER)
_NESTED = int(CommandBufferMode.NESTED)
_SOURCE = int(BufferUsage.TRANSFER_SOURCE)
_TARGET = int(BufferUsage.TRANSFER_TARGET)
_READ = int(MemoryAccess.READ)
_WRITE = int(MemoryAccess.WRITE)
NO_SLOT = -1
"""Refused where a buffer is null."""


# -- memory ---------------------------------------------------------------------------------------------


def take_recording(state: State, handle_pool: HandlePoolRecord) -> Recording:
    """Memory for an empty command buffer, 0 when there is none."""
    recording = handle_pool.arenas
    if not recording:
        sweep(state)
        recording = handle_pool.arenas
        if not recording:
            return Recording(0)
    handle_pool.arenas = recording.next
    recording.ready = 0
    recording.copies = 0
    recording.slot_count = 0
    recording.submitted = 0
    recording.constant_count = 0
    recording.data_count = 0
    recording.kept_count = 0
    recording.pushed_bindings = 0
    recording.pushed_constants = 0
    table = recording.list
    table.row_count = 0
    table.operand_count = 0
    table.patch_count = 0
    table.local_memory = 0
    return recording


def has_room(recording: Recording, rows: int, operands: int, handles: int) -> bool:
    """Whether so many commands, ranges and handles can be appended."""
    table = recording.list
    scale = recording.scale
    return (
        table.row_count + rows <= ROWS * scale
        and table.operand_count + operands <= OPERANDS * scale
        and table.patch_count + operands <= PATCHES * scale
        and recording.kept_count + handles <= KEPT * scale
    )


def keep(recording: Recording, handle: Entry) -> int:
    """Keeps an object as long as the command buffer; the position among those that are kept."""
    kept = recording.kept
    count = recording.kept_count
    for index in range(count):
        if load64(kept + 8 * index) == place_of(handle):
            return index
    store64(kept + 8 * count, place_of(retain(handle)))
    recording.kept_count = count + 1
    return count


def new_row(recording: Recording, kind: int, operands: int) -> Command:
    """Appends a command whose ``operands`` ranges are the next ones; fields that it does not have are 0."""
    table = recording.list
    count = table.row_count
    row = row_at(table, count)
    for index in range(8):
        store64(place_of(row) + 8 * index, 0)
    row.kind = kind
    row.operand = table.operand_count if operands > 0 else 0
    row.operand_count = operands
    table.row_count = count + 1
    return row


def add_range(recording: Recording, address: int, length: int, access: int) -> None:
    """Appends a range that is known, of a buffer that allows so much."""
    table = recording.list
    count = table.operand_count
    store64(table.addresses + 8 * count, address)
    store64(table.lengths + 8 * count, length)
    store64(table.accesses + 8 * count, access)
    table.operand_count = count + 1


def add_slot_range(recording: Recording, slot: int, offset: int, length: int, alignment: int) -> None:
    """Appends a range of what a submission has in a slot."""
    table = recording.list
    number = table.patch_count
    patch = Patch(table.patches + number * PATCH_SIZE)
    patch.operand = table.operand_count
    patch.slot = slot
    patch.offset = offset
    patch.length = length
    patch.alignment = alignment - 1
    table.patch_count = number + 1
    add_range(recording, 0, 0, 0)


def use_slot(recording: Recording, slot: int, usage: int, access: int) -> None:
    """Notes what a submission must have in a slot."""
    slots = recording.slots
    count = recording.slot_count
    while count <= slot and count < SLOTS:
        store64(slots + count * SLOT_SIZE, 0)
        store64(slots + count * SLOT_SIZE + 8, 0)
        count += 1
        recording.slot_count = count
    row = BindingSlot(slots + slot * SLOT_SIZE)
    row.used = 1
    row.usage |= usage
    row.access |= access


# -- command buffers -------------------------------------------------------------------------------------


def commands_create(
    state: State, values: int, refs: int, words: int, affinity_at: int, capacity_at: int
) -> int:
    """``affinity_at`` is the number of an argument that older signatures do not have, -1: any queue."""
    handle_pool = state.handle_pool
    queue = queue_of(handle_pool, reference(refs, words, 0))
    modes = number(values, words, 1)
    categories = number(values, words, 2)
    capacity = number(values, words, capacity_at)
    if not queue or modes & _NESTED or categories & _ANY == 0 or not 0 <= capacity <= SLOTS:
        return REFUSED
    recording = take_recording(state, handle_pool)
    if not recording:
        return REFUSED
    commands = new_entry(state, handle_pool, handle_pool.command_buffer)
    if not commands:
        release_recording(handle_pool, recording, place_of(state) + STATE_RELEASED)
        return REFUSED
    recording.place = place_number(queue)
    recording.modes = modes
    recording.categories = categories
    recording.affinity = optional(values, words, affinity_at, QUEUE_AFFINITY_ANY)
    recording.capacity = capacity
    commands.address = place_of(recording)
    return give(state, refs, words, commands)


def recording_of(handle_pool: HandlePoolRecord, commands: Entry, category: int) -> Recording:
    """The RECORDING of a command buffer that machine code still records, else 0."""
    if not is_kind(commands, handle_pool.command_buffer) or commands.owner != OWNER_CODE:
        return Recording(0)
    recording = Recording(commands.address)
    if recording.ready or category & ~recording.categories:
        return Recording(0)
    return recording


def commands_finalize(state: State, values: int, refs: int, words: int) -> int:
    handle_pool = state.handle_pool
    recording = recording_of(handle_pool, reference(refs, words, 0), 0)
    if not recording:
        return REFUSED
    recording.ready = 1
    return finish(state, refs, words)


def commands_barrier(state: State, values: int, refs: int, words: int) -> int:
    handle_pool = state.handle_pool
    recording = recording_of(handle_pool, reference(refs, words, 0), 0)
    if not recording or not has_room(recording, 1, 0, 0):
        return REFUSED
    new_row(recording, KIND_BARRIER, 0)
    return finish(state, refs, words)


# -- transfers -----------------------------------------------------------------------------------------


def allows(handle_pool: HandlePoolRecord, place: int, buffer: Entry, usage: int, access: int) -> bool:
    """Whether it is a buffer at a place that may be used like that."""
    if not is_reachable(handle_pool, place, buffer):
        return False
    return use_refusal(usage, buffer.usage, access, buffer.encoding) == 0


def usable(
    handle_pool: HandlePoolRecord,
    recording: Recording,
    buffer: Entry,
    slot: int,
    offset: int,
    length: int,
    usage: int,
    access: int,
) -> int:
    """The length of a range to record, -1 if it cannot be recorded here. What is in a slot (``buffer`` is 0)
    submissions know; ranges of it that are empty or reach to its end are Python's."""
    if not buffer:
        if length <= 0 or slot_refusal(recording.capacity, slot, offset, length):
            return -1
        return length
    if not allows(handle_pool, recording.place, buffer, usage, access):
        return -1
    return range_length(buffer, offset, length)


def record(
    recording: Recording,
    buffer: Entry,
    slot: int,
    offset: int,
    length: int,
    alignment: int,
    usage: int,
    access: int,
) -> None:
    """Appends a range that is :func:`usable` to those of the last command."""
    if not buffer:
        use_slot(recording, slot, usage, access)
        add_slot_range(recording, slot, offset, length, alignment)
    else:
        add_range(recording, buffer.address + offset, length, buffer.encoding)
        keep(recording, keeper(buffer))


def commands_fill(state: State, values: int, refs: int, words: int, slot_at: int, pattern_at: int) -> int:
    """The numbers of arguments: of the slot, -1 where a signature has none, and of the pattern, whose size
    comes after it."""
    if argument_count(words) > 7 and number(values, words, 7) != 0:
        return REFUSED
    slot = optional(values, words, slot_at, NO_SLOT)
    handle_pool = state.handle_pool
    recording = recording_of(handle_pool, reference(refs, words, 0), _TRANSFER)
    if not recording or not has_room(recording, 1, 1, 1):
        return REFUSED
    target = reference(refs, words, 1)
    offset = number(values, words, 2)
    length = usable(handle_pool, recording, target, slot, offset, number(values, words, 3), _TARGET, _WRITE)
    pattern = number(values, words, pattern_at)
    size = number(values, words, pattern_at + 1)
    address = 0 if not target else target.address
    # a range that is refused has the length -1, which is none of a fill
    if length < 0 or fill_refusal(offset | address, length, size):
        return REFUSED
    if length > 0:
        row = new_row(recording, KIND_FILL, 1)
        row.pattern = repeated(pattern, size)
        row.pattern_length = size
        record(recording, target, slot, offset, length, size, _TARGET, _WRITE)
    return finish(state, refs, words)


def repeated(pattern: int, size: int) -> int:
    """A pattern of 1, 2 or 4 bytes as a word."""
    if size == 1:
        return (pattern & 0xFF) * 0x01010101
    if size == 2:
        return (pattern & 0xFFFF) * 0x00010001
    return pattern


def commands_update(state: State, values: int, refs: int, words: int) -> int:
    handle_pool = state.handle_pool
    recording = recording_of(handle_pool, reference(refs, words, 0), _TRANSFER)
    source = reference(refs, words, 1)
    if not recording or not is_kind(source, KIND_BUFFER) or not has_room(recording, 1, 1, 1):
        return REFUSED
    if argument_count(words) > 7 and number(values, words, 7) != 0:
        return REFUSED
    target = reference(refs, words, 3)
    from_offset = number(values, words, 2)
    offset = number(values, words, 4)
    slot = number(values, words, 6)
    length = usable(handle_pool, recording, target, slot, offset, number(values, words, 5), _TARGET, _WRITE)
    count = recording.data_count
    if update_refusal(source.length, from_offset, length) or count + length > DATA * recording.scale:
        return REFUSED
    if source.access & ACCESS_READ == 0:
        return REFUSED
    if length > 0:
        table = recording.list
        row = new_row(recording, KIND_UPDATE, 1)
        row.data = count
        row.data_length = length
        record(recording, target, slot, offset, length, 1, _TARGET, _WRITE)
        memmove = handle_pool.functions.memmove
        call(memmove, table.data + count, source.address + from_offset, length)
        recording.data_count = count + length
    return finish(state, refs, words)


def commands_copy(
    state: State, values: int, refs: int, words: int, from_slot_at: int, to_slot_at: int, first: int
) -> int:
    """The numbers of arguments: of the slots, -1 where a signature has none, and of the source; its offset,
    the target and its offset and the length come after it."""
    if argument_count(words) > 8 and number(values, words, 8) != 0:
        return REFUSED
    from_slot = optional(values, words, from_slot_at, NO_SLOT)
    to_slot = optional(values, words, to_slot_at, NO_SLOT)
    handle_pool = state.handle_pool
    recording = recording_of(handle_pool, reference(refs, words, 0), _TRANSFER)
    if not recording or not has_room(recording, 1, 2, 2):
        return REFUSED
    source = reference(refs, words, first)
    from_offset = number(values, words, first + 1)
    target = reference(refs, words, first + 2)
    to_offset = number(values, words, first + 3)
    length = number(values, words, first + 4)
    length = usable(handle_pool, recording, source, from_slot, from_offset, length, _SOURCE, _READ)
    if length < 0 or usable(handle_pool, recording, target, to_slot, to_offset, length, _TARGET, _WRITE) < 0:
        return REFUSED
    if not source or not target:
        recording.copies = 1
    elif not are_apart(source.address + from_offset, target.address + to_offset, length):
        return REFUSED
    if length > 0:
        new_row(recording, KIND_COPY, 2)
        record(recording, source, from_slot, from_offset, length, 1, _SOURCE, _READ)
        record(recording, target, to_slot, to_offset, length, 1, _TARGET, _WRITE)
    return finish(state, refs, words)
