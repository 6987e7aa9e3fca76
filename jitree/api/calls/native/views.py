"""Makes views of new memory for elements of arguments, and uploads these. Machine code."""

from __future__ import annotations

from jitree.api.calls.native.layout import (
    LARGEST_UPLOADED,
    MAXIMUM_RANK,
    MOST_SHARED,
    Argument,
    CallRecord,
    Ndarray,
    Python,
)
from jitree.api.calls.native.python import drop, invoke_with_number, is_true, retained
from jitree.codegen.primitives import call, call_int, load64, quotient, store64
from jitree.codegen.record import layout_of, place_of
from jitree.hal.enums import MemoryAccess, MemoryType
from jitree.modules.hal.native.buffers import (
    give_back,
    granted_type,
    granted_usage,
    place_number,
    take_storage,
)
from jitree.modules.hal.native.entries import STATE_RELEASED, State, new_entry, release
from jitree.modules.hal.native.layout import HandlePoolRecord
from jitree.modules.hal.native.registers import DONE
from jitree.modules.hal.native.transfers import upload_new
from jitree.regs.access import retain
from jitree.regs.layout import LINK_POOLED, PLACE_SHIFT, Entry
from jitree.types import CLASS_BOOLEAN, CLASS_INTEGER, CLASS_SIGNED, ENCODING_DENSE

_DIMENSIONS = layout_of(Argument)["dimensions"]
_DEVICE_LOCAL = int(MemoryType.DEVICE_LOCAL)
ALL_ACCESS = int(MemoryAccess.ALL)
LARGEST = 1 << 47
"""Bytes; no address goes further."""

_LARGEST_SHARING = 1024
_ALIGNMENT = 64


def has_timeline(record: CallRecord) -> bool:
    """Whether the device has a timeline: it executes what it was given without the host."""
    handle_pool = record.state.handle_pool
    if not handle_pool or not handle_pool.queue:
        return False
    return bool(handle_pool.queue.timeline)


def fits(argument: Argument, rank: int, dimensions: int) -> bool:
    if rank != argument.rank:
        return False
    for index in range(rank):
        expected = load64(place_of(argument) + _DIMENSIONS + 8 * index)
        if expected >= 0 and expected != load64(dimensions + 8 * index):
            return False
    return True


def is_alike_type(given: int, declared: int) -> bool:
    """Whether elements have the declared type or its integer width. Only one of both has a sign then; no
    other integers are booleans."""
    if given == declared:
        return True
    if given & 0xFFFFFF != declared & 0xFFFFFF:
        return False
    if declared >> 24 == CLASS_INTEGER:
        return CLASS_SIGNED <= given >> 24 <= CLASS_BOOLEAN
    return declared >> 24 == CLASS_SIGNED and given >> 24 == CLASS_INTEGER


def view_size(argument: Argument, dimensions: int, most: int) -> int:
    """Computes bytes of a view of the declared rank. -1 if they are more than ``most``."""
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


def pass_gathered(
    python: Python, record: CallRecord, argument: Argument, dimensions: int, source: int
) -> bool:
    """As :func:`pass_uploaded`, the elements of a numpy array of any strides. An exception may be set if
    not."""
    if view_size(argument, dimensions, LARGEST_UPLOADED) < 0:
        return False
    dtype = retained(python, argument.dtype)
    dense = call(python.new_array, python.ndarray_type, dtype, argument.rank, dimensions, 0, 0, 0, 0)
    if dense == 0:
        return False
    is_passed = call_int(python.copy_into, dense, source) == 0 and pass_uploaded(
        python, record, argument, dimensions, Ndarray(dense).data
    )
    drop(python, dense)
    return is_passed


def pass_uploaded(python: Python, record: CallRecord, argument: Argument, dimensions: int, data: int) -> bool:
    """Passes host elements to a device that works by itself. Their dimensions fit."""
    size = view_size(argument, dimensions, LARGEST_UPLOADED)
    if size < 0 or record.uploads == 0 or record.state.handle_pool.queue.open == 0:
        return False
    if may_join(record, size):
        return pass_joined(python, record, argument, dimensions, data, size)
    view = uploaded(record, argument, dimensions, data, size)
    if not view and is_refilled(python, record, size):
        view = uploaded(record, argument, dimensions, data, size)
    if not view:
        return False
    store64(argument.place, place_of(view))
    return True


def is_refilled(python: Python, record: CallRecord, size: int) -> bool:
    """Whether there may be what an upload of so many bytes takes now. An exception may be set if not."""
    return is_true(python, invoke_with_number(python, record.supply, size))


def uploaded(record: CallRecord, argument: Argument, dimensions: int, data: int, size: int) -> Entry:
    """Uploads elements; 0 without pool or for Python to copy."""
    state = record.state
    handle_pool = state.handle_pool
    view = new_view(state, handle_pool, argument, size)
    if not view:
        return Entry(0)
    write_shape(handle_pool, argument, view, dimensions)
    if size != 0 and upload_new(state, handle_pool, handle_pool.queue, view.address, data, size) != DONE:
        refuse(record, view)
        return Entry(0)
    return view


# -- small arrays of one call, which share memory of the device and one upload -----------------------------


def may_join(record: CallRecord, size: int) -> bool:
    """Whether a small array goes to the device with others."""
    if record.staging == 0 or size > _LARGEST_SHARING:
        return False
    return not record.shared or record.shared_size + size <= MOST_SHARED


def pass_joined(
    python: Python, record: CallRecord, argument: Argument, dimensions: int, data: int, size: int
) -> bool:
    view = joined(record, argument, dimensions, size)
    if not view and is_true(python, invoke_with_number(python, record.supply, MOST_SHARED)):
        view = joined(record, argument, dimensions, size)
    if not view:
        return False
    call(python.copy_memory, record.staging + view.address - record.shared.address, data, size)
    store64(argument.place, place_of(view))
    return True


def joined(record: CallRecord, argument: Argument, dimensions: int, size: int) -> Entry:
    """A view of the next part of the memory that they share. 0 if a pool is empty."""
    state = record.state
    handle_pool = state.handle_pool
    shared = record.shared
    if not shared:
        shared = take_storage(state, handle_pool, MOST_SHARED, 0, 0)
        if not shared:
            return Entry(0)
        record.shared = shared
        record.shared_size = 0
    offset = record.shared_size
    view = view_over(state, handle_pool, argument, retain(shared), shared.address + offset, size)
    if view:
        write_shape(handle_pool, argument, view, dimensions)
        record.shared_size = (offset + size + _ALIGNMENT - 1) & -_ALIGNMENT
    return view


def send_joined(python: Python, record: CallRecord) -> bool:
    """Whether the elements of the call's small arrays are on their way. An exception may be set if not."""
    shared = record.shared
    if not shared:
        return True
    size = record.shared_size
    is_sent = size == 0 or is_uploaded(record, shared.address, size)
    if not is_sent:
        is_sent = is_refilled(python, record, size) and is_uploaded(record, shared.address, size)
    drop_joined(record)
    return is_sent


def is_uploaded(record: CallRecord, address: int, size: int) -> bool:
    state = record.state
    handle_pool = state.handle_pool
    return upload_new(state, handle_pool, handle_pool.queue, address, record.staging, size) == DONE


def drop_joined(record: CallRecord) -> None:
    """From now on only the call's arguments keep the memory of its small arrays."""
    shared = record.shared
    record.shared = Entry(0)
    state = record.state
    release(state.handle_pool, shared, place_of(state) + STATE_RELEASED)
