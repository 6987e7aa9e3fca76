"""Record dispatches, and look up the functions that are dispatched. Machine code."""

from __future__ import annotations

from jitree.codegen.primitives import below, load8, load32, load64, store32, store64
from jitree.codegen.record import layout_of, place_of, size_of
from jitree.hal.checks import (
    binding_refusal,
    constants_refusal,
    is_aligned,
    slot_refusal,
    workgroups_refusal,
)
from jitree.hal.command_buffer import CommandCategory, DispatchFlags
from jitree.hal.command_layout import (
    BINDING_ALIGNMENT,
    KIND_DISPATCH,
    MAXIMUM_COUNT_Z,
    PUSHED_BINDINGS,
    ExecutableRecord,
    KernelEntry,
    pushed_slot,
)
from jitree.hal.enums import MAXIMUM_BINDINGS, MAXIMUM_SET_BINDINGS
from jitree.hal.local.executor.rows import row_at
from jitree.hal.pipeline_layout import PipelineRecord
from jitree.modules.hal.native.buffers import is_reachable, keeper, range_length
from jitree.modules.hal.native.commands import (
    add_range,
    add_slot_range,
    has_room,
    keep,
    new_row,
    recording_of,
    use_slot,
)
from jitree.modules.hal.native.entries import State
from jitree.modules.hal.native.layout import CONSTANTS, HandlePoolRecord, PushedRecord, Recording
from jitree.modules.hal.native.registers import (
    REFUSED,
    argument_count,
    finish,
    give64,
    is_kind,
    number,
    reference,
)
from jitree.regs.layout import KIND_BUFFER, Entry
from jitree.vmfb.words import TAG_VALUE64

ENTRY_POINT_SIZE = size_of(KernelEntry)
DISPATCH = int(CommandCategory.DISPATCH)
_ARGUMENT_FLAGS = int(
    DispatchFlags.CUSTOM_DIRECT_ARGUMENTS
    | DispatchFlags.DYNAMIC_INDIRECT_ARGUMENTS
    | DispatchFlags.STATIC_INDIRECT_ARGUMENTS
)
COUNT_MASK = 0xFFFFFFFF
_NAMES = layout_of(ExecutableRecord)["names"]
_PIPELINES = layout_of(ExecutableRecord)["pipelines"]
_WORDS = size_of(PipelineRecord)
_PUSHED_VALUES, _PUSHED_REFS = layout_of(PushedRecord)["values"], layout_of(PushedRecord)["refs"]
_MAXIMUM_BLOCKS_X = (1 << 31) - 1
"""The most workgroups in x on a device that works by itself; y is limited as z is."""
_UNDERSCORE = ord("_")
_NAME_SIZE = 16
"""Bytes of a row in an executable's table of names: address, length."""


def commands_dispatch(state: State, values: int, refs: int, words: int, constants_at: int) -> int:
    """``constants_at`` is the number of the argument that is the first constant. Bindings come after those,
    five registers each, the last of which is 64 bits wide, as the flags are; constants are 32. 0: all that
    has been pushed, and the layout of the function declares."""
    handle_pool = state.handle_pool
    recording = recording_of(handle_pool, reference(refs, words, 0), DISPATCH)
    executable = reference(refs, words, 1)
    entry = kernel_of(handle_pool, executable, number(values, words, 2))
    if not recording or not entry:
        return REFUSED
    if argument_count(words) > 6 and number(values, words, 6) & _ARGUMENT_FLAGS:
        return REFUSED
    given_values, given_refs, given_words = values, refs, words
    last = argument_count(words)
    first = last
    if constants_at == 0:
        pipeline = pipeline_of(handle_pool, executable, number(values, words, 2))
        if not pipeline or recording.pushed_bindings & pipeline.bindings != pipeline.bindings:
            return REFUSED
        first = pipeline.constant_count
        last = first + 5 * pipeline.binding_count
        reach_constants(recording, first)
        given_values, given_refs = recording.pushed + _PUSHED_VALUES, recording.pushed + _PUSHED_REFS
        given_words = place_of(pipeline) + _WORDS
    while first > constants_at != 0 and load32(words + 8 * (first - 1)) == TAG_VALUE64:
        first -= 5
    constants = first - constants_at
    bindings = 0
    for index in range(first, last, 5):
        bindings += 1
        if not valid_binding(handle_pool, recording, given_values, given_refs, given_words, index):
            return REFUSED
    x = number(values, words, 3) & COUNT_MASK
    y = number(values, words, 4) & COUNT_MASK
    z = number(values, words, 5) & COUNT_MASK
    if not can_append(recording, entry, bindings, constants) or not are_counts(recording, x, y, z):
        return REFUSED
    for index in range(first, last, 5):
        use_binding(recording, given_values, given_refs, given_words, index)
    if x == 0 or y == 0 or z == 0:
        return finish(state, refs, words)
    append_dispatch(recording, executable, entry, bindings, x, y, z)
    for index in range(first, last, 5):
        add_binding(recording, given_values, given_refs, given_words, index)
        if constants_at != 0 and reference(refs, words, index + 2):  # what is pushed is kept
            keep(recording, keeper(reference(refs, words, index + 2)))
    for index in range(constants):
        add_constant(recording, number(given_values, given_words, constants_at + index))
    return finish(state, refs, words)


# -- pushed arguments of ABI 0.2 to 0.4 ----------------------------------------------------------------


def push_constants(state: State, values: int, refs: int, words: int) -> int:
    recording = pushed_into(state.handle_pool, refs, words)
    first = number(values, words, 2)
    count = argument_count(words) - 3
    if not recording or constants_refusal(first, count):
        return REFUSED
    reach_constants(recording, first)
    constants = recording.pushed + _PUSHED_VALUES
    for index in range(count):
        store32(constants + 4 * (first + index), number(values, words, 3 + index))
    if recording.pushed_constants < first + count:
        recording.pushed_constants = first + count
    return finish(state, refs, words)


def reach_constants(recording: Recording, count: int) -> None:
    """Makes those before ``count`` that have not been pushed 0."""
    for index in range(recording.pushed_constants, count):
        store32(recording.pushed + _PUSHED_VALUES + 4 * index, 0)
    if recording.pushed_constants < count:
        recording.pushed_constants = count


def push_descriptor_set(state: State, values: int, refs: int, words: int) -> int:
    """Bindings are five registers each: number in the set, slot, buffer, offset, length. Buffers are checked
    by dispatches."""
    handle_pool = state.handle_pool
    recording = pushed_into(handle_pool, refs, words)
    first = number(values, words, 2) * MAXIMUM_SET_BINDINGS
    last = argument_count(words)
    if not recording or not 0 <= first < PUSHED_BINDINGS or not has_room(recording, 0, 0, (last - 3) // 5):
        return REFUSED
    for index in range(3, last, 5):
        if binding_refusal(number(values, words, index)):
            return REFUSED
        buffer = reference(refs, words, index + 2)
        if buffer and not is_kind(buffer, handle_pool.buffer):
            return REFUSED
    for index in range(3, last, 5):
        binding = first + number(values, words, index)
        place = recording.pushed + _PUSHED_VALUES + 4 * pushed_slot(binding)
        store32(place, number(values, words, index + 1))
        store64(place + 8, number(values, words, index + 3))
        store64(place + 16, number(values, words, index + 4))
        buffer = reference(refs, words, index + 2)
        store64(recording.pushed + _PUSHED_REFS + 8 * binding, place_of(buffer))
        if buffer:
            keep(recording, buffer)
        recording.pushed_bindings |= 1 << binding
    return finish(state, refs, words)


def pushed_into(handle_pool: HandlePoolRecord, refs: int, words: int) -> Recording:
    """Returns the RECORDING of a command buffer, else 0. 0 also where the second argument is no layout."""
    if not is_kind(reference(refs, words, 1), handle_pool.pipeline_layout):
        return Recording(0)
    return recording_of(handle_pool, reference(refs, words, 0), 0)


def pipeline_of(handle_pool: HandlePoolRecord, executable: Entry, function: int) -> PipelineRecord:
    """The layout of an executable's function, 0 if it has none."""
    pipelines = load64(place_of(executable) + handle_pool.extension + _PIPELINES)
    return PipelineRecord(load64(pipelines + 8 * function) if pipelines != 0 else 0)


# -- what all dispatches need --------------------------------------------------------------------------


def kernel_of(handle_pool: HandlePoolRecord, executable: Entry, function: int) -> KernelEntry:
    """Returns a function of a known executable, else 0."""
    if not is_kind(executable, handle_pool.executable) or executable.address == 0:
        return KernelEntry(0)
    if not below(function, executable.length):
        return KernelEntry(0)
    return KernelEntry(executable.address + function * ENTRY_POINT_SIZE)


def can_append(recording: Recording, entry: KernelEntry, bindings: int, constants: int) -> bool:
    """Whether a dispatch has room, and its function's bindings and constants."""
    if bindings > MAXIMUM_BINDINGS or not has_room(recording, 1, bindings, bindings + 1):
        return False
    if recording.constant_count + constants > CONSTANTS * recording.scale:
        return False
    return agrees(entry.constant_count, constants) and agrees(entry.binding_count, bindings)


def agrees(stated: int, count: int) -> bool:
    """Whether a count is what an executable states, if it does."""
    return stated < 0 or stated == count


def are_counts(recording: Recording, x: int, y: int, z: int) -> bool:
    """Whether so many workgroups can be run."""
    if workgroups_refusal(x, y, z):
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
        return slot_refusal(recording.capacity, slot, offset, length) == 0
    if not is_reachable(handle_pool, recording.place, buffer):
        return False
    length = range_length(buffer, offset, length)
    return length >= 0 and is_aligned(buffer.address + offset, length, BINDING_ALIGNMENT)


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
