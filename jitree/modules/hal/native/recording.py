"""``hal.command_buffer.*``: rows appended to memory of fixed size. Machine code.

What does not fit, or would fail, is left to Python, which takes over what has been recorded so far.
"""

from __future__ import annotations

from jitree.codegen.primitives import load64, store64
from jitree.codegen.record import place_of
from jitree.hal.command_layout import PATCH, SLOT
from jitree.hal.local.executor.records import Command, row_at
from jitree.modules.hal.native.entries import sweep
from jitree.modules.hal.native.layout import KEPT, OPERANDS, PATCHES, ROWS, SLOTS
from jitree.modules.hal.native.records import BindingSlot, Entry, HandlePoolRecord, Patch, Recording, State
from jitree.regs.access import retain

PATCH_SIZE = PATCH.size
SLOT_SIZE = SLOT.size


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
