"""``hal.command_buffer.*``: rows appended to memory of fixed size. Machine code.

What does not fit, or would fail, is left to Python, which takes over what has been recorded so far.
"""

from __future__ import annotations

from jitree.codegen.primitives import Fields, load, load64, store, store64
from jitree.hal.command_layout import COMMAND, LIST, PATCH, SLOT
from jitree.modules.hal.native import entries
from jitree.modules.hal.native.layout import KEPT, OPERANDS, PATCHES, RECORDING, ROWS, SLOTS

Recording = Fields(RECORDING)
List = Fields(LIST)
Command = Fields(COMMAND)
Patch = Fields(PATCH)
Slot = Fields(SLOT)
COMMAND_SIZE = COMMAND.size
PATCH_SIZE = PATCH.size
SLOT_SIZE = SLOT.size


def take_recording(state: int, natives: int) -> int:
    """Memory for an empty command buffer, 0 when there is none."""
    recording = load(natives, entries.Natives.arenas)
    if recording == 0:
        entries.sweep(state)
        recording = load(natives, entries.Natives.arenas)
        if recording == 0:
            return 0
    store(natives, entries.Natives.arenas, load(recording, Recording.next))
    store(recording, Recording.ready, 0)
    store(recording, Recording.copies, 0)
    store(recording, Recording.slot_count, 0)
    store(recording, Recording.submitted, 0)
    store(recording, Recording.constant_count, 0)
    store(recording, Recording.data_count, 0)
    store(recording, Recording.kept_count, 0)
    table = load(recording, Recording.list)
    store(table, List.row_count, 0)
    store(table, List.operand_count, 0)
    store(table, List.patch_count, 0)
    store(table, List.local_memory, 0)
    return recording


def release_recording(natives: int, recording: int, released: int) -> None:
    """Drops what a command buffer keeps and gives its memory back."""
    kept = load(recording, Recording.kept)
    for index in range(load(recording, Recording.kept_count)):
        entries.release(natives, load64(kept + 8 * index), released)
    store(recording, Recording.next, load(natives, entries.Natives.arenas))
    store(natives, entries.Natives.arenas, recording)


def has_room(recording: int, rows: int, operands: int, handles: int) -> bool:
    """Whether so many commands, ranges and handles can be appended."""
    table = load(recording, Recording.list)
    scale = load(recording, Recording.scale)
    return (
        load(table, List.row_count) + rows <= ROWS * scale
        and load(table, List.operand_count) + operands <= OPERANDS * scale
        and load(table, List.patch_count) + operands <= PATCHES * scale
        and load(recording, Recording.kept_count) + handles <= KEPT * scale
    )


def keep(recording: int, handle: int) -> int:
    """Keeps an object as long as the command buffer; the position among those that are kept."""
    kept = load(recording, Recording.kept)
    count = load(recording, Recording.kept_count)
    for index in range(count):
        if load64(kept + 8 * index) == handle:
            return index
    store64(kept + 8 * count, entries.retain(handle))
    store(recording, Recording.kept_count, count + 1)
    return count


def new_row(recording: int, kind: int, operands: int) -> int:
    """Appends a command whose ``operands`` ranges are the next ones; fields that it does not have are 0."""
    table = load(recording, Recording.list)
    count = load(table, List.row_count)
    row = load(table, List.rows) + count * COMMAND_SIZE
    for index in range(8):
        store64(row + 8 * index, 0)
    store(row, Command.kind, kind)
    store(row, Command.operand, load(table, List.operand_count) if operands > 0 else 0)
    store(row, Command.operand_count, operands)
    store(table, List.row_count, count + 1)
    return row


def add_range(recording: int, address: int, length: int) -> None:
    """Appends a range that is known."""
    table = load(recording, Recording.list)
    count = load(table, List.operand_count)
    store64(load(table, List.addresses) + 8 * count, address)
    store64(load(table, List.lengths) + 8 * count, length)
    store(table, List.operand_count, count + 1)


def add_slot_range(recording: int, slot: int, offset: int, length: int, alignment: int) -> None:
    """Appends a range of what a submission has in a slot."""
    table = load(recording, Recording.list)
    number = load(table, List.patch_count)
    patch = load(table, List.patches) + number * PATCH_SIZE
    store(patch, Patch.operand, load(table, List.operand_count))
    store(patch, Patch.slot, slot)
    store(patch, Patch.offset, offset)
    store(patch, Patch.length, length)
    store(patch, Patch.alignment, alignment - 1)
    store(table, List.patch_count, number + 1)
    add_range(recording, 0, 0)


def use_slot(recording: int, slot: int, usage: int, access: int) -> None:
    """Notes what a submission must have in a slot."""
    slots = load(recording, Recording.slots)
    count = load(recording, Recording.slot_count)
    while count <= slot and count < SLOTS:
        store64(slots + count * SLOT_SIZE, 0)
        store64(slots + count * SLOT_SIZE + 8, 0)
        count += 1
        store(recording, Recording.slot_count, count)
    row = slots + slot * SLOT_SIZE
    store(row, Slot.used, 1)
    store(row, Slot.usage, load(row, Slot.usage) | usage)
    store(row, Slot.access, load(row, Slot.access) | access)
