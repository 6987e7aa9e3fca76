"""Views of new memory for the elements of arguments. Machine code."""

from __future__ import annotations

from jitree.api.calls.native.layout import ARGUMENT, MAXIMUM_RANK
from jitree.api.calls.native.records import Argument, CallRecord
from jitree.codegen.primitives import load64, quotient, store64
from jitree.codegen.record import place_of
from jitree.hal.enums import MemoryAccess, MemoryType
from jitree.modules.hal.native.buffers import (
    give_back,
    granted_type,
    granted_usage,
    place_number,
    take_storage,
)
from jitree.modules.hal.native.entries import STATE_RELEASED, new_entry, release
from jitree.modules.hal.native.records import Entry, HandlePoolRecord, State
from jitree.regs.layout import LINK_POOLED, PLACE_SHIFT
from jitree.types import CLASS_BOOLEAN, CLASS_INTEGER, CLASS_SIGNED, ENCODING_DENSE

_DIMENSIONS = ARGUMENT["dimensions"]
_DEVICE_LOCAL = int(MemoryType.DEVICE_LOCAL)
ALL_ACCESS = int(MemoryAccess.ALL)
LARGEST = 1 << 47
"""Bytes; no address goes further."""


def has_stream(record: CallRecord) -> bool:
    """Whether the session's memory is that of a device with a stream, which the host does not see."""
    handle_pool = record.state.handle_pool
    if not handle_pool or not handle_pool.queue:
        return False
    return bool(handle_pool.queue.stream)


def fits(argument: Argument, rank: int, dimensions: int) -> bool:
    if rank != argument.rank:
        return False
    for index in range(rank):
        expected = load64(place_of(argument) + _DIMENSIONS + 8 * index)
        if expected >= 0 and expected != load64(dimensions + 8 * index):
            return False
    return True


def is_alike_type(given: int, declared: int) -> bool:
    """Whether elements are of the declared type, or integers of its width of which only one of both has a
    sign; no other integers are booleans."""
    if given == declared:
        return True
    if given & 0xFFFFFF != declared & 0xFFFFFF:
        return False
    if declared >> 24 == CLASS_INTEGER:
        return CLASS_SIGNED <= given >> 24 <= CLASS_BOOLEAN
    return declared >> 24 == CLASS_SIGNED and given >> 24 == CLASS_INTEGER


def view_size(argument: Argument, dimensions: int, most: int) -> int:
    """Bytes of a view of the declared rank, -1 if they are more than ``most``."""
    size = argument.item_size
    for index in range(argument.rank):
        dimension = load64(dimensions + 8 * index)
        if dimension < 0 or (size != 0 and dimension > quotient(most, size)):
            return -1
        size *= dimension
    return size


def write_shape(handle_pool: HandlePoolRecord, argument: Argument, view: Entry, dimensions: int) -> None:
    shape = place_of(view) + handle_pool.extension
    for index in range(argument.rank):
        store64(shape + 8 * index, load64(dimensions + 8 * index))
    store64(shape + 8 * MAXIMUM_RANK, ALL_ACCESS)


def refuse(record: CallRecord, view: Entry) -> bool:
    """Drops what :func:`new_copy` has made. False."""
    state = record.state
    release(state.handle_pool, view, place_of(state) + STATE_RELEASED)
    return False


def new_view(state: State, handle_pool: HandlePoolRecord, argument: Argument, size: int) -> Entry:
    """A view of new memory, its dimensions not yet written; 0 if a pool is empty."""
    storage = take_storage(state, handle_pool, size, 0, 0)
    if not storage:
        return Entry(0)
    return view_over(state, handle_pool, argument, storage, storage.address, size)


def view_over(
    state: State, handle_pool: HandlePoolRecord, argument: Argument, storage: Entry, address: int, size: int
) -> Entry:
    """As :func:`new_view`, of a part of storage, a reference to which is taken over."""
    queue = handle_pool.queue
    memory_type = granted_type(queue, _DEVICE_LOCAL)
    usage = granted_usage(queue, _DEVICE_LOCAL, 0)
    storage.element_type = memory_type
    storage.encoding = usage
    released = place_of(state) + STATE_RELEASED
    buffer = new_entry(state, handle_pool, handle_pool.buffer)
    if not buffer:
        if storage.count == 1:
            give_back(handle_pool, storage)
        else:
            release(handle_pool, storage, released)
        return Entry(0)
    memory_type |= place_number(queue) << PLACE_SHIFT
    describe(buffer, address, size, memory_type, usage)
    buffer.encoding = ALL_ACCESS
    buffer.parent = storage
    view = new_entry(state, handle_pool, handle_pool.buffer_view)
    if not view:
        release(handle_pool, buffer, released)
        return Entry(0)
    describe(view, address, size, memory_type, usage)
    view.element_type = argument.element_type
    view.encoding = ENCODING_DENSE
    view.rank = argument.rank
    view.parent = buffer
    return view


def describe(entry: Entry, address: int, size: int, memory_type: int, usage: int) -> None:
    entry.address = address
    entry.length = size
    entry.access = memory_type
    entry.usage = usage
    entry.link = Entry(LINK_POOLED)
