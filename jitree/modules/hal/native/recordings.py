"""Make Python objects of command buffers that machine code has recorded."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Final, cast

from jitree.codegen.record import layout_of, size_of
from jitree.hal.allocator import HostMemory
from jitree.hal.buffer import Allocation, Buffer
from jitree.hal.command_buffer import Reference
from jitree.hal.command_layout import (
    KIND_COPY,
    PUSHED_BINDINGS,
    BindingSlot,
    Command,
    List,
    Patch,
    pushed_slot,
)
from jitree.hal.command_list import CommandList, ListCommandBuffer
from jitree.hal.local.command_buffer import LocalCommandBuffer
from jitree.hal.pipeline_layout import Pushed, set_and_binding
from jitree.modules.hal.native.layout import PushedRecord, Recording

if TYPE_CHECKING:
    from jitree.hal.device import Device
    from jitree.regs.handles import HandleTable

_RANGE: Final = Struct("=i4xqq")
"""The registers of a binding that has been pushed: slot, offset, length."""


def kept_handles(recording: int) -> array[int]:
    """The handles that a recording keeps."""
    fields = _fields(recording, layout_of(Recording).offsets, size_of(Recording))
    return array("q", _bytes(fields["kept"], fields["kept_count"] * 8))


def restore(
    recording: int,
    handles: Sequence[int],
    table: HandleTable,
    memory_of: Callable[[int], object],
    device: Device | None,
) -> ListCommandBuffer:
    """The command buffer that has been recorded at an address so far. What it kept by ``handles``, it keeps;
    ``device``: of those that work on private memory. The recording stays as it is."""
    fields = _fields(recording, layout_of(Recording).offsets, size_of(Recording))
    rows = _fields(fields["list"], layout_of(List).offsets, size_of(List))
    arguments = fields["modes"], fields["categories"], fields["affinity"], fields["capacity"]
    if fields["place"] and device is not None:
        commands = cast(ListCommandBuffer, device.create_command_buffer(*arguments))
    else:
        commands = LocalCommandBuffer(*arguments, table.bounds.limited_charge)
    into = commands.commands
    into.rows.frombytes(_bytes(rows["rows"], rows["row_count"] * size_of(Command)))
    into.addresses.frombytes(_bytes(rows["addresses"], rows["operand_count"] * 8))
    into.lengths.frombytes(_bytes(rows["lengths"], rows["operand_count"] * 8))
    into.accesses.frombytes(_bytes(rows["accesses"], rows["operand_count"] * 8))
    into.constants.frombytes(_bytes(rows["constants"], fields["constant_count"] * 4))
    into.data += _bytes(rows["data"], fields["data_count"])
    into.patches.frombytes(_bytes(rows["patches"], rows["patch_count"] * size_of(Patch)))
    into.most_local_memory = rows["local_memory"]
    for handle in handles:
        commands.keep_recorded(memory_of(handle))
    if fields["pushed_bindings"] or fields["pushed_constants"]:
        commands.pushed = _pushed(fields, table)
    slots = array("i", _bytes(fields["slots"], fields["slot_count"] * size_of(BindingSlot)))
    for slot in range(fields["slot_count"]):
        used, usage, access, _ = slots[4 * slot : 4 * slot + 4]
        if used:
            commands.require_slot(slot, usage, access)
    if fields["copies"]:
        for source, target in _copies(into):
            commands.require_apart(source, target)
    if fields["ready"]:
        commands.finalize()
    if fields["submitted"]:
        commands.mark_submitted()
    return commands


def _pushed(fields: dict[str, int], table: HandleTable) -> Pushed:
    """What has been pushed into a RECORDING with these fields."""
    pushed, place = Pushed(HostMemory(table.bounds.limited_charge)), fields["pushed"]
    count = fields["pushed_constants"]
    pushed.constants[:count] = array("i", _bytes(place + layout_of(PushedRecord)["values"], 4 * count))
    refs = array("q", _bytes(place + layout_of(PushedRecord)["refs"], 8 * PUSHED_BINDINGS))
    for number in range(PUSHED_BINDINGS):
        if fields["pushed_bindings"] >> number & 1:
            values = place + layout_of(PushedRecord)["values"] + 4 * pushed_slot(number)
            slot, offset, length = _RANGE.unpack(_bytes(values, _RANGE.size))
            buffer = cast(Buffer | None, table.object(refs[number]))
            pushed.bindings[set_and_binding(number)] = (slot, buffer, offset, length)
    return pushed


def _copies(commands: CommandList) -> Iterator[tuple[Reference, Reference]]:
    """Source and target of every copy that refers to a slot."""
    fields = iter(commands.patches)
    slots: dict[int, Reference] = {
        operand: (slot, None, offset, length)
        for operand, slot, offset, length, _ in zip(fields, fields, fields, fields, fields, strict=True)
    }
    for kind, operand, *_ in commands.decoded_rows():
        if kind == KIND_COPY and (operand in slots or operand + 1 in slots):
            source, target = (slots.get(index) or _known(commands, index) for index in (operand, operand + 1))
            yield source, target


def _known(commands: CommandList, operand: int) -> Reference:
    """A range whose address is known, for comparing it with others: the list itself keeps the memory."""
    address, length = commands.addresses[operand], commands.lengths[operand]
    memory = Allocation(address, length, 0, 0, 0, host_address=address)
    return 0, Buffer(memory), 0, length


def _fields(address: int, offsets: dict[str, int], size: int) -> dict[str, int]:
    words = array("q", _bytes(address, size))
    return {name: words[offset // 8] for name, offset in offsets.items()}


def _bytes(address: int, size: int) -> bytes:
    return ctypes.string_at(address, size)
