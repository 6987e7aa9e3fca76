"""``hal.command_buffer.*`` of ABI 0.2 to 0.4, where arguments are pushed before a dispatch (``abi_0_4.py``).
Machine code.

Ranges are checked when they are pushed, and not again by each dispatch; one that cannot be bound is Python's.
"""

from __future__ import annotations

from jitree.codegen.primitives import load32, load64, store32
from jitree.codegen.record import place_of
from jitree.hal.command_layout import BINDING_ALIGNMENT, EXECUTABLE
from jitree.hal.enums import MAXIMUM_CONSTANTS, MAXIMUM_SET_BINDINGS
from jitree.hal.pipeline_layout import PIPELINE
from jitree.modules.hal.native.buffers import keeper, range_length
from jitree.modules.hal.native.commands import recording_of
from jitree.modules.hal.native.dispatches import (
    COUNT_MASK,
    DISPATCH,
    add_constant,
    append_dispatch,
    are_counts,
    can_append,
    is_bindable,
    kernel_of,
)
from jitree.modules.hal.native.layout import PUSHED, PUSHED_BINDING, PUSHED_BINDINGS
from jitree.modules.hal.native.recording import add_range, add_slot_range, has_room, keep, use_slot
from jitree.modules.hal.native.records import (
    Entry,
    HandlePoolRecord,
    PipelineRecord,
    PushedBinding,
    Recording,
    State,
)
from jitree.modules.hal.native.registers import REFUSED, argument_count, finish, is_kind, number, reference

_PIPELINES = EXECUTABLE["pipelines"]
_BINDING_NUMBERS = PIPELINE.size
_BINDING_SIZE = PUSHED_BINDING.size
_BINDINGS = PUSHED["bindings"]
_CONSTANTS = PUSHED["constants"]


def push_constants(state: State, values: int, refs: int, words: int) -> int:
    recording = pushed_into(state.handle_pool, refs, words)
    first = number(values, words, 2)
    count = argument_count(words) - 3
    if not recording or not 0 <= first <= MAXIMUM_CONSTANTS - count:
        return REFUSED
    constants = recording.pushed + _CONSTANTS
    for index in range(recording.pushed_constants, first):
        store32(constants + 4 * index, 0)
    for index in range(count):
        store32(constants + 4 * (first + index), number(values, words, 3 + index))
    if recording.pushed_constants < first + count:
        recording.pushed_constants = first + count
    return finish(state, refs, words)


def push_descriptor_set(state: State, values: int, refs: int, words: int) -> int:
    """Bindings are five registers each: number in the set, slot, buffer, offset, length."""
    handle_pool = state.handle_pool
    recording = pushed_into(handle_pool, refs, words)
    first = number(values, words, 2) * MAXIMUM_SET_BINDINGS
    last = argument_count(words)
    if not recording or not 0 <= first < PUSHED_BINDINGS or not has_room(recording, 0, 0, (last - 3) // 5):
        return REFUSED
    for index in range(3, last, 5):
        if not 0 <= number(values, words, index) < MAXIMUM_SET_BINDINGS:
            return REFUSED
        slot, buffer = number(values, words, index + 1), reference(refs, words, index + 2)
        offset, length = number(values, words, index + 3), number(values, words, index + 4)
        if not is_bindable(handle_pool, recording, slot, buffer, offset, length):
            return REFUSED
    for index in range(3, last, 5):
        slot, buffer = number(values, words, index + 1), reference(refs, words, index + 2)
        offset, length = number(values, words, index + 3), number(values, words, index + 4)
        push_range(recording, first + number(values, words, index), slot, buffer, offset, length)
    return finish(state, refs, words)


def pushed_into(handle_pool: HandlePoolRecord, refs: int, words: int) -> Recording:
    """The RECORDING of the command buffer, and 0 also where the second argument is no layout."""
    if not is_kind(reference(refs, words, 1), handle_pool.pipeline_layout):
        return Recording(0)
    return recording_of(handle_pool, reference(refs, words, 0), 0)


def push_range(
    recording: Recording, binding: int, slot: int, buffer: Entry, offset: int, length: int
) -> None:
    """Binds a range that can be bound."""
    place = binding_at(recording, binding)
    place.slot = slot
    if buffer:
        place.owner = keeper(buffer)
        place.start = buffer.address + offset
        place.length = range_length(buffer, offset, length)
        place.access = buffer.encoding
        keep(recording, keeper(buffer))
    else:
        place.owner = Entry(0)
        place.start = offset
        place.length = length
    recording.pushed_bindings |= 1 << binding


def binding_at(recording: Recording, binding: int) -> PushedBinding:
    return PushedBinding(recording.pushed + _BINDINGS + binding * _BINDING_SIZE)


def dispatch_pushed(state: State, values: int, refs: int, words: int) -> int:
    """What has been pushed, as the layout of the function declares it."""
    handle_pool = state.handle_pool
    recording = recording_of(handle_pool, reference(refs, words, 0), DISPATCH)
    executable = reference(refs, words, 1)
    function = number(values, words, 2)
    entry = kernel_of(handle_pool, executable, function)
    if not recording or not entry or (argument_count(words) > 6 and number(values, words, 6) != 0):
        return REFUSED
    pipeline = pipeline_of(handle_pool, executable, function)
    if not pipeline or not has_pushed(recording, pipeline):
        return REFUSED
    bindings, constants = pipeline.binding_count, pipeline.constant_count
    x = number(values, words, 3) & COUNT_MASK
    y = number(values, words, 4) & COUNT_MASK
    z = number(values, words, 5) & COUNT_MASK
    if not can_append(recording, entry, bindings, constants) or not are_counts(recording, x, y, z):
        return REFUSED
    for index in range(bindings):
        binding = binding_at(recording, binding_number(pipeline, index))
        if not binding.owner:
            use_slot(recording, binding.slot, 0, 0)
    if x == 0 or y == 0 or z == 0:
        return finish(state, refs, words)
    append_dispatch(recording, executable, entry, bindings, x, y, z)
    for index in range(bindings):
        add_pushed(recording, binding_at(recording, binding_number(pipeline, index)))
    for index in range(constants):
        is_there = index < recording.pushed_constants
        add_constant(recording, load32(recording.pushed + _CONSTANTS + 4 * index) if is_there else 0)
    return finish(state, refs, words)


def pipeline_of(handle_pool: HandlePoolRecord, executable: Entry, function: int) -> PipelineRecord:
    """The layout of an executable's function, 0 if it has none."""
    pipelines = load64(place_of(executable) + handle_pool.extension + _PIPELINES)
    return PipelineRecord(load64(pipelines + 8 * function) if pipelines != 0 else 0)


def binding_number(pipeline: PipelineRecord, index: int) -> int:
    return load64(place_of(pipeline) + _BINDING_NUMBERS + 8 * index)


def has_pushed(recording: Recording, pipeline: PipelineRecord) -> bool:
    """Whether all that a layout declares is there."""
    for index in range(pipeline.binding_count):
        place = binding_number(pipeline, index)
        if place >= PUSHED_BINDINGS or (recording.pushed_bindings >> place) & 1 == 0:
            return False
    return True


def add_pushed(recording: Recording, binding: PushedBinding) -> None:
    """Appends a range to those of the last command."""
    if not binding.owner:
        add_slot_range(recording, binding.slot, binding.start, binding.length, BINDING_ALIGNMENT)
    else:
        add_range(recording, binding.start, binding.length, binding.access)
