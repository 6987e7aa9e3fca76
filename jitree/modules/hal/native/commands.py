"""``hal.command_buffer.*``: checks of what is recorded, as ``jitree.hal.command_buffer`` makes them."""

from __future__ import annotations

from jitree.hal.enums import (
    MAXIMUM_BINDINGS,
    MAXIMUM_UPDATE,
    BufferUsage,
    CommandBufferMode,
    CommandCategory,
    DispatchFlags,
    MemoryAccess,
)
from jitree.hal.local.commands import (
    BINDING_ALIGNMENT,
    ENTRY_POINT,
    KIND_BARRIER,
    KIND_COPY,
    KIND_DISPATCH,
    KIND_FILL,
    KIND_UPDATE,
    MAXIMUM_COUNT_Z,
    MAXIMUM_WORKGROUPS,
)
from jitree.hal.local.walk_layout import FUNCTIONS
from jitree.modules.hal.native.buffers import is_host_buffer, keeper, range_length
from jitree.modules.hal.native.entries import STATE_RELEASED, Entry, Natives, State, new_entry
from jitree.modules.hal.native.layout import CONSTANTS, DATA, SLOTS
from jitree.modules.hal.native.primitives import (
    Fields,
    below,
    call,
    load,
    load8,
    load32,
    load64,
    store,
    store32,
)
from jitree.modules.hal.native.recording import (
    Command,
    List,
    Recording,
    add_range,
    add_slot_range,
    has_room,
    keep,
    new_row,
    release_recording,
    take_recording,
    use_slot,
)
from jitree.modules.hal.native.registers import (
    REFUSED,
    argument_count,
    finish,
    give,
    give64,
    is_kind,
    number,
    queue_of,
    reference,
)
from jitree.regs.layout import ACCESS_READ, KIND_BUFFER, OWNER_CODE
from jitree.vmfb.words import TAG_VALUE64

EntryPoint = Fields(ENTRY_POINT)
Functions = Fields(FUNCTIONS)
ENTRY_POINT_SIZE = ENTRY_POINT.size
_ANY = int(CommandCategory.ANY)
_TRANSFER = int(CommandCategory.TRANSFER)
_DISPATCH = int(CommandCategory.DISPATCH)
_NESTED = int(CommandBufferMode.NESTED)
_SOURCE = int(BufferUsage.TRANSFER_SOURCE)
_TARGET = int(BufferUsage.TRANSFER_TARGET)
_READ = int(MemoryAccess.READ)
_WRITE = int(MemoryAccess.WRITE)
_ARGUMENT_FLAGS = int(
    DispatchFlags.CUSTOM_DIRECT_ARGUMENTS
    | DispatchFlags.DYNAMIC_INDIRECT_ARGUMENTS
    | DispatchFlags.STATIC_INDIRECT_ARGUMENTS
)
_COUNT_MASK = 0xFFFFFFFF
_NAME_SIZE = 16
"""Bytes of a row in an executable's table of names: address, length."""


def commands_create(state: int, values: int, refs: int, words: int) -> int:
    natives = load(state, State.natives)
    if natives == 0 or queue_of(natives, reference(refs, words, 0)) == 0:
        return REFUSED
    modes = number(values, words, 1)
    categories = number(values, words, 2)
    capacity = number(values, words, 4)
    if modes & _NESTED or categories & _ANY == 0 or not 0 <= capacity <= SLOTS:
        return REFUSED
    recording = take_recording(state, natives)
    if recording == 0:
        return REFUSED
    commands = new_entry(state, natives, load(natives, Natives.command_buffer))
    if commands == 0:
        release_recording(natives, recording, state + STATE_RELEASED)
        return REFUSED
    store(recording, Recording.modes, modes)
    store(recording, Recording.categories, categories)
    store(recording, Recording.affinity, number(values, words, 3))
    store(recording, Recording.capacity, capacity)
    store(commands, Entry.address, recording)
    return give(state, refs, words, commands)


def recording_of(natives: int, commands: int, category: int) -> int:
    """The RECORDING of a command buffer that machine code still records, else 0."""
    if (
        not is_kind(commands, load(natives, Natives.command_buffer))
        or load(commands, Entry.owner) != OWNER_CODE
    ):
        return 0
    recording = load(commands, Entry.address)
    if load(recording, Recording.ready) or category & ~load(recording, Recording.categories):
        return 0
    return recording


def commands_finalize(state: int, values: int, refs: int, words: int) -> int:
    natives = load(state, State.natives)
    if natives == 0:
        return REFUSED
    recording = recording_of(natives, reference(refs, words, 0), 0)
    if recording == 0:
        return REFUSED
    store(recording, Recording.ready, 1)
    return finish(state, refs, words)


def commands_barrier(state: int, values: int, refs: int, words: int) -> int:
    natives = load(state, State.natives)
    if natives == 0:
        return REFUSED
    recording = recording_of(natives, reference(refs, words, 0), 0)
    if recording == 0 or not has_room(recording, 1, 0, 0):
        return REFUSED
    new_row(recording, KIND_BARRIER, 0)
    return finish(state, refs, words)


# -- transfers -----------------------------------------------------------------------------------------


def allows(natives: int, buffer: int, usage: int, access: int) -> bool:
    """Whether it is a buffer on the host that may be used like that."""
    if not is_host_buffer(natives, buffer):
        return False
    return usage & ~load(buffer, Entry.usage) == 0 and access & ~load(buffer, Entry.encoding) == 0


def commands_fill(state: int, values: int, refs: int, words: int) -> int:
    natives = load(state, State.natives)
    if natives == 0:
        return REFUSED
    recording = recording_of(natives, reference(refs, words, 0), _TRANSFER)
    target = reference(refs, words, 1)
    if recording == 0 or not allows(natives, target, _TARGET, _WRITE) or not has_room(recording, 1, 1, 1):
        return REFUSED
    if argument_count(words) > 7 and number(values, words, 7) != 0:
        return REFUSED
    offset = number(values, words, 2)
    length = range_length(target, offset, number(values, words, 3))
    pattern = number(values, words, 5)
    size = number(values, words, 6)
    if length < 0 or (size != 1 and size != 2 and size != 4):
        return REFUSED
    address = load(target, Entry.address) + offset
    if (offset | length | address) & (size - 1):
        return REFUSED
    if length > 0:
        row = new_row(recording, KIND_FILL, 1)
        add_range(recording, address, length)
        store(row, Command.pattern, repeated(pattern, size))
        store(row, Command.pattern_length, size)
        keep(recording, keeper(target))
    return finish(state, refs, words)


def repeated(pattern: int, size: int) -> int:
    """A pattern of 1, 2 or 4 bytes as a word."""
    if size == 1:
        return (pattern & 0xFF) * 0x01010101
    if size == 2:
        return (pattern & 0xFFFF) * 0x00010001
    return pattern


def commands_update(state: int, values: int, refs: int, words: int) -> int:
    natives = load(state, State.natives)
    if natives == 0:
        return REFUSED
    recording = recording_of(natives, reference(refs, words, 0), _TRANSFER)
    source = reference(refs, words, 1)
    target = reference(refs, words, 3)
    if recording == 0 or not allows(natives, target, _TARGET, _WRITE) or not has_room(recording, 1, 1, 1):
        return REFUSED
    if not is_kind(source, KIND_BUFFER) or (argument_count(words) > 7 and number(values, words, 7) != 0):
        return REFUSED
    from_offset = number(values, words, 2)
    offset = number(values, words, 4)
    length = range_length(target, offset, number(values, words, 5))
    count = load(recording, Recording.data_count)
    if (
        length < 0
        or length > MAXIMUM_UPDATE
        or count + length > DATA
        or range_length(source, from_offset, length) < 0
    ):
        return REFUSED
    if load(source, Entry.access) & ACCESS_READ == 0:
        return REFUSED
    if length > 0:
        table = load(recording, Recording.list)
        row = new_row(recording, KIND_UPDATE, 1)
        add_range(recording, load(target, Entry.address) + offset, length)
        store(row, Command.data, count)
        store(row, Command.data_length, length)
        memmove = load(load(natives, Natives.functions), Functions.memmove)
        call(memmove, load(table, List.data) + count, load(source, Entry.address) + from_offset, length)
        store(recording, Recording.data_count, count + length)
        keep(recording, keeper(target))
    return finish(state, refs, words)


def commands_copy(state: int, values: int, refs: int, words: int) -> int:
    natives = load(state, State.natives)
    if natives == 0:
        return REFUSED
    recording = recording_of(natives, reference(refs, words, 0), _TRANSFER)
    source = reference(refs, words, 3)
    target = reference(refs, words, 5)
    if recording == 0 or not has_room(recording, 1, 2, 2):
        return REFUSED
    if not allows(natives, source, _SOURCE, _READ) or not allows(natives, target, _TARGET, _WRITE):
        return REFUSED
    if argument_count(words) > 8 and number(values, words, 8) != 0:
        return REFUSED
    from_offset = number(values, words, 4)
    to_offset = number(values, words, 6)
    length = range_length(source, from_offset, number(values, words, 7))
    if length < 0 or range_length(target, to_offset, length) < 0:
        return REFUSED
    first = load(source, Entry.address) + from_offset
    second = load(target, Entry.address) + to_offset
    if first < second + length and second < first + length:
        return REFUSED
    if length > 0:
        new_row(recording, KIND_COPY, 2)
        add_range(recording, first, length)
        add_range(recording, second, length)
        keep(recording, keeper(source))
        keep(recording, keeper(target))
    return finish(state, refs, words)


# -- dispatches ----------------------------------------------------------------------------------------


def commands_dispatch(state: int, values: int, refs: int, words: int) -> int:
    """Bindings are five registers each, the last of which is 64 bits wide, as the flags are; constants
    between them are 32."""
    natives = load(state, State.natives)
    if natives == 0:
        return REFUSED
    recording = recording_of(natives, reference(refs, words, 0), _DISPATCH)
    executable = reference(refs, words, 1)
    if (
        recording == 0
        or not is_kind(executable, load(natives, Natives.executable))
        or load(executable, Entry.address) == 0
    ):
        return REFUSED
    function = number(values, words, 2)
    if not below(function, load(executable, Entry.length)) or number(values, words, 6) & _ARGUMENT_FLAGS:
        return REFUSED
    entry = load(executable, Entry.address) + function * ENTRY_POINT_SIZE
    last = argument_count(words)
    first = last
    while first > 7 and load32(words + 8 * (first - 1)) == TAG_VALUE64:
        first -= 5
    constants = first - 7
    bindings = 0
    for index in range(first, last, 5):
        bindings += 1
        if not valid_binding(natives, recording, values, refs, words, index):
            return REFUSED
    if bindings > MAXIMUM_BINDINGS or not has_room(recording, 1, bindings, bindings + 1):
        return REFUSED
    if load(recording, Recording.constant_count) + constants > CONSTANTS:
        return REFUSED
    if not agrees(load(entry, EntryPoint.constant_count), constants):
        return REFUSED
    if not agrees(load(entry, EntryPoint.binding_count), bindings):
        return REFUSED
    x = number(values, words, 3) & _COUNT_MASK
    y = number(values, words, 4) & _COUNT_MASK
    z = number(values, words, 5) & _COUNT_MASK
    if z > MAXIMUM_COUNT_Z or not below(x * y, MAXIMUM_WORKGROUPS + 1):
        return REFUSED
    if not below(x * y * z, MAXIMUM_WORKGROUPS + 1):
        return REFUSED
    for index in range(first, last, 5):
        use_binding(natives, recording, values, refs, words, index)
    if x == 0 or y == 0 or z == 0:
        return finish(state, refs, words)
    table = load(recording, Recording.list)
    row = new_row(recording, KIND_DISPATCH, bindings)
    store(row, Command.operand, load(table, List.operand_count))
    for index in range(first, last, 5):
        add_binding(recording, values, refs, words, index)
    count = load(recording, Recording.constant_count)
    for index in range(constants):
        store32(load(table, List.constants) + 4 * (count + index), number(values, words, 7 + index))
    store(recording, Recording.constant_count, count + constants)
    store(row, Command.constant, count)
    store(row, Command.constant_count, constants)
    store(row, Command.count_x, x)
    store(row, Command.count_y, y)
    store(row, Command.count_z, z)
    store(row, Command.entry, entry)
    store(row, Command.object, keep(recording, executable))
    if load(entry, EntryPoint.local_memory) > load(table, List.local_memory):
        store(table, List.local_memory, load(entry, EntryPoint.local_memory))
    return finish(state, refs, words)


def agrees(stated: int, count: int) -> bool:
    """Whether a count is what an executable states, if it does."""
    return stated < 0 or stated == count


def valid_binding(natives: int, recording: int, values: int, refs: int, words: int, index: int) -> bool:
    """Whether the binding (reserved, slot, buffer, offset, length) at an argument can be recorded."""
    buffer = reference(refs, words, index + 2)
    offset = number(values, words, index + 3)
    length = number(values, words, index + 4)
    if buffer == 0:
        slot = number(values, words, index + 1)
        return 0 <= slot < load(recording, Recording.capacity) and offset >= 0 and length >= -1
    if not is_host_buffer(natives, buffer):
        return False
    length = range_length(buffer, offset, length)
    return length == 0 or (
        length > 0 and (load(buffer, Entry.address) + offset) & (BINDING_ALIGNMENT - 1) == 0
    )


def use_binding(natives: int, recording: int, values: int, refs: int, words: int, index: int) -> None:
    """What a binding asks of submissions, also when there is nothing to run."""
    if reference(refs, words, index + 2) == 0:
        use_slot(recording, number(values, words, index + 1), 0, 0)


def add_binding(recording: int, values: int, refs: int, words: int, index: int) -> None:
    buffer = reference(refs, words, index + 2)
    offset = number(values, words, index + 3)
    length = number(values, words, index + 4)
    if buffer == 0:
        add_slot_range(recording, number(values, words, index + 1), offset, length, BINDING_ALIGNMENT)
        return
    add_range(recording, load(buffer, Entry.address) + offset, range_length(buffer, offset, length))
    keep(recording, keeper(buffer))


def executable_lookup(state: int, values: int, refs: int, words: int) -> int:
    """The number of a function; names that are not found are left to Python."""
    natives = load(state, State.natives)
    if natives == 0:
        return REFUSED
    executable = reference(refs, words, 0)
    name = reference(refs, words, 1)
    if not is_kind(executable, load(natives, Natives.executable)) or not is_kind(name, KIND_BUFFER):
        return REFUSED
    if load(executable, Entry.address) == 0:
        return REFUSED
    names = load64(executable + load(natives, Natives.extension))
    length = load(name, Entry.length)
    wanted = load(name, Entry.address)
    for function in range(load(executable, Entry.length)):
        if load64(names + function * _NAME_SIZE + 8) == length:
            known = load64(names + function * _NAME_SIZE)
            if same_bytes(known, wanted, length):
                return give64(state, values, refs, words, function)
    return REFUSED


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
