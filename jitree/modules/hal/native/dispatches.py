"""``hal.command_buffer.dispatch``, and the look-up of the functions that are dispatched."""

from __future__ import annotations

from jitree.codegen.primitives import below, load8, load32, load64, store32
from jitree.codegen.record import place_of
from jitree.hal.command_buffer import CommandCategory, DispatchFlags
from jitree.hal.command_layout import (
    BINDING_ALIGNMENT,
    ENTRY_POINT,
    EXECUTABLE,
    KIND_DISPATCH,
    MAXIMUM_COUNT_Z,
    MAXIMUM_WORKGROUPS,
)
from jitree.hal.enums import MAXIMUM_BINDINGS
from jitree.hal.local.executor.records import KernelEntry, row_at
from jitree.modules.hal.native.buffers import is_reachable, keeper, range_length
from jitree.modules.hal.native.commands import recording_of
from jitree.modules.hal.native.layout import CONSTANTS
from jitree.modules.hal.native.recording import add_range, add_slot_range, has_room, keep, new_row, use_slot
from jitree.modules.hal.native.records import Entry, HandlePoolRecord, Recording, State
from jitree.modules.hal.native.registers import (
    REFUSED,
    argument_count,
    finish,
    give64,
    is_kind,
    number,
    reference,
)
from jitree.regs.layout import KIND_BUFFER
from jitree.vmfb.words import TAG_VALUE64

ENTRY_POINT_SIZE = ENTRY_POINT.size
DISPATCH = int(CommandCategory.DISPATCH)
_ARGUMENT_FLAGS = int(
    DispatchFlags.CUSTOM_DIRECT_ARGUMENTS
    | DispatchFlags.DYNAMIC_INDIRECT_ARGUMENTS
    | DispatchFlags.STATIC_INDIRECT_ARGUMENTS
)
COUNT_MASK = 0xFFFFFFFF
_NAMES = EXECUTABLE["names"]
_MAXIMUM_BLOCKS_X = (1 << 31) - 1
"""The most blocks of a grid in x on a GPU; y is limited as z is."""
_UNDERSCORE = ord("_")
_NAME_SIZE = 16
"""Bytes of a row in an executable's table of names: address, length."""


def commands_dispatch(state: State, values: int, refs: int, words: int) -> int:
    """Bindings are five registers each, the last of which is 64 bits wide, as the flags are; constants
    between them are 32."""
    handle_pool = state.handle_pool
    recording = recording_of(handle_pool, reference(refs, words, 0), DISPATCH)
    executable = reference(refs, words, 1)
    entry = kernel_of(handle_pool, executable, number(values, words, 2))
    if not recording or not entry or number(values, words, 6) & _ARGUMENT_FLAGS:
        return REFUSED
    last = argument_count(words)
    first = last
    while first > 7 and load32(words + 8 * (first - 1)) == TAG_VALUE64:
        first -= 5
    constants = first - 7
    bindings = 0
    for index in range(first, last, 5):
        bindings += 1
        if not valid_binding(handle_pool, recording, values, refs, words, index):
            return REFUSED
    x = number(values, words, 3) & COUNT_MASK
    y = number(values, words, 4) & COUNT_MASK
    z = number(values, words, 5) & COUNT_MASK
    if not can_append(recording, entry, bindings, constants) or not are_counts(recording, x, y, z):
        return REFUSED
    for index in range(first, last, 5):
        use_binding(recording, values, refs, words, index)
    if x == 0 or y == 0 or z == 0:
        return finish(state, refs, words)
    append_dispatch(recording, executable, entry, bindings, x, y, z)
    for index in range(first, last, 5):
        add_binding(recording, values, refs, words, index)
    for index in range(constants):
        add_constant(recording, number(values, words, 7 + index))
    return finish(state, refs, words)


def kernel_of(handle_pool: HandlePoolRecord, executable: Entry, function: int) -> KernelEntry:
    """A function of what must be an executable of which machine code knows, else 0."""
    if not is_kind(executable, handle_pool.executable) or executable.address == 0:
        return KernelEntry(0)
    if not below(function, executable.length):
        return KernelEntry(0)
    return KernelEntry(executable.address + function * ENTRY_POINT_SIZE)


def can_append(recording: Recording, entry: KernelEntry, bindings: int, constants: int) -> bool:
    """Whether a dispatch has room, and as many bindings and constants as its function states."""
    if bindings > MAXIMUM_BINDINGS or not has_room(recording, 1, bindings, bindings + 1):
        return False
    if recording.constant_count + constants > CONSTANTS * recording.scale:
        return False
    return agrees(entry.constant_count, constants) and agrees(entry.binding_count, bindings)


def agrees(stated: int, count: int) -> bool:
    """Whether a count is what an executable states, if it does."""
    return stated < 0 or stated == count


def are_workgroups(x: int, y: int, z: int) -> bool:
    """Whether processors can run so many."""
    if z > MAXIMUM_COUNT_Z or not below(x * y, MAXIMUM_WORKGROUPS + 1):
        return False
    return below(x * y * z, MAXIMUM_WORKGROUPS + 1)


def are_counts(recording: Recording, x: int, y: int, z: int) -> bool:
    """Whether so many workgroups can be run."""
    if not are_workgroups(x, y, z):
        return False
    return recording.place == 0 or (x <= _MAXIMUM_BLOCKS_X and y <= MAXIMUM_COUNT_Z)


def append_dispatch(
    recording: Recording, executable: Entry, entry: KernelEntry, bindings: int, x: int, y: int, z: int
) -> None:
    """Appends a dispatch whose bindings and constants come next."""
    table = recording.list
    row = new_row(recording, KIND_DISPATCH, bindings)
    row.operand = table.operand_count
    row.constant = recording.constant_count
    row.count_x = x
    row.count_y = y
    row.count_z = z
    row.entry = entry
    row.object = keep(recording, executable)
    if entry.local_memory > table.local_memory:
        table.local_memory = entry.local_memory


def add_constant(recording: Recording, value: int) -> None:
    """Appends a constant to those of the last dispatch."""
    table = recording.list
    count = recording.constant_count
    store32(table.constants + 4 * count, value)
    recording.constant_count = count + 1
    row = row_at(table, table.row_count - 1)
    row.constant_count += 1


def is_bindable(
    handle_pool: HandlePoolRecord, recording: Recording, slot: int, buffer: Entry, offset: int, length: int
) -> bool:
    """Whether a range can be bound."""
    if not buffer:
        return 0 <= slot < recording.capacity and offset >= 0 and length >= -1
    if not is_reachable(handle_pool, recording.place, buffer):
        return False
    length = range_length(buffer, offset, length)
    return length == 0 or (length > 0 and (buffer.address + offset) & (BINDING_ALIGNMENT - 1) == 0)


def valid_binding(
    handle_pool: HandlePoolRecord, recording: Recording, values: int, refs: int, words: int, index: int
) -> bool:
    """Whether the binding (reserved, slot, buffer, offset, length) at an argument can be recorded."""
    slot, buffer = number(values, words, index + 1), reference(refs, words, index + 2)
    offset, length = number(values, words, index + 3), number(values, words, index + 4)
    return is_bindable(handle_pool, recording, slot, buffer, offset, length)


def use_binding(recording: Recording, values: int, refs: int, words: int, index: int) -> None:
    """What a binding asks of submissions, also when there is nothing to run."""
    if not reference(refs, words, index + 2):
        use_slot(recording, number(values, words, index + 1), 0, 0)


def add_binding(recording: Recording, values: int, refs: int, words: int, index: int) -> None:
    buffer = reference(refs, words, index + 2)
    offset = number(values, words, index + 3)
    length = number(values, words, index + 4)
    if not buffer:
        add_slot_range(recording, number(values, words, index + 1), offset, length, BINDING_ALIGNMENT)
        return
    length = range_length(buffer, offset, length)
    add_range(recording, buffer.address + offset, length, buffer.encoding)
    keep(recording, keeper(buffer))


def executable_lookup(state: State, values: int, refs: int, words: int) -> int:
    """The number of a function; names that are not found are left to Python."""
    handle_pool = state.handle_pool
    executable = reference(refs, words, 0)
    name = reference(refs, words, 1)
    if not is_kind(executable, handle_pool.executable) or not is_kind(name, KIND_BUFFER):
        return REFUSED
    if executable.address == 0:
        return REFUSED
    function = find_name(handle_pool, executable, name, 0)
    if function < 0 and executable.rank != 0:
        function = find_name(handle_pool, executable, name, executable.rank)
    if function < 0:
        return REFUSED
    return give64(state, values, refs, words, function)


def find_name(handle_pool: HandlePoolRecord, executable: Entry, name: Entry, symbols: int) -> int:
    """The number of a function by its name, -1 if there is none. With ``symbols`` 1 the executable's names
    are those of symbols: with ``_`` for what is no letter, digit or ``_``."""
    names = load64(place_of(executable) + handle_pool.extension + _NAMES)
    length = name.length
    for function in range(executable.length):
        if load64(names + function * _NAME_SIZE + 8) == length:
            known = load64(names + function * _NAME_SIZE)
            if symbols == 0:
                if same_bytes(known, name.address, length):
                    return function
            elif same_symbol(known, name.address, length):
                return function
    return -1


def same_symbol(symbol: int, name: int, length: int) -> bool:
    for position in range(length):
        letter = load8(name + position)
        if load8(symbol + position) != (letter if is_of_symbol(letter) else _UNDERSCORE):
            return False
    return True


def is_of_symbol(letter: int) -> bool:
    lower = letter | 0x20
    return 0x61 <= lower <= 0x7A or 0x30 <= letter <= 0x39 or letter == _UNDERSCORE


def same_bytes(first: int, second: int, length: int) -> bool:
    position = 0
    while position + 8 <= length:
        if load64(first + position) != load64(second + position):
            return False
        position += 8
    while position < length:
        if load8(first + position) != load8(second + position):
            return False
        position += 1
    return True
