"""Arguments whose elements are copied into memory of the session: the caller may change them while the
program keeps its argument. Machine code."""

from __future__ import annotations

from jitree.api.calls.native.arrays import over_memory
from jitree.api.calls.native.layout import ARGUMENT, MAXIMUM_RANK, NDARRAY_CONTIGUOUS, PASS_CONSUMED
from jitree.api.calls.native.python import drop, invoke_with_number, is_true
from jitree.api.calls.native.records import Argument, CallRecord, Ndarray, Python
from jitree.codegen.primitives import call, call_int, load64, quotient, store64
from jitree.codegen.record import place_of
from jitree.hal.enums import MAXIMUM_UPDATE, MemoryAccess, MemoryType
from jitree.modules.hal.native.buffers import (
    give_back,
    granted_type,
    granted_usage,
    place_number,
    take_storage,
)
from jitree.modules.hal.native.entries import STATE_RELEASED, new_entry, release
from jitree.modules.hal.native.layout import LARGEST_POOLED
from jitree.modules.hal.native.records import Entry, HandlePoolRecord, State
from jitree.modules.hal.native.registers import DONE
from jitree.modules.hal.native.transfers import move, upload
from jitree.regs.layout import LINK_POOLED, PLACE_SHIFT
from jitree.types import ENCODING_DENSE

LARGEST_COPIED = 4 << 20
"""Bytes. Copying more takes so long that other threads should have Python meanwhile."""
_LARGEST_ALWAYS_COPIED = 1 << 18
"""Bytes. Copying more takes longer than using an aligned array in place, which is Python's."""
_ALIGNMENT = 64
SCATTERED = 1
"""Stands for the address of elements that cannot be used in place."""
_DIMENSIONS = ARGUMENT["dimensions"]
_DEVICE_LOCAL = int(MemoryType.DEVICE_LOCAL)
_ACCESS = int(MemoryAccess.ALL)


def pass_ndarray(python: Python, record: CallRecord, argument: Argument, value: Ndarray) -> bool:
    """A numpy array of the declared type."""
    is_dense = value.flags & NDARRAY_CONTIGUOUS != 0
    if has_stream(record):
        return (
            is_dense
            and fits(argument, value.rank, value.dimensions)
            and pass_uploaded(python, record, argument, value.dimensions, value.data)
        )
    address = value.data if is_dense else SCATTERED
    view = new_copy(python, record, argument, value.rank, value.dimensions, address)
    if not view:
        return False
    if is_dense:
        call(python.copy_memory, view.address, value.data, view.length)
    elif not scatter(python, value.dtype, argument, value.dimensions, view, place_of(value)):
        return refuse(record, view)
    store64(argument.place, place_of(view))
    return True


def pass_elements(
    python: Python, record: CallRecord, argument: Argument, source: Entry, dimensions: int
) -> bool:
    """The elements of a view of this session, or of another one."""
    address = source.address
    if has_stream(record):
        return pass_moved(python, record, argument, source, dimensions)
    if address == 0 or source.access >> PLACE_SHIFT != 0:
        return False
    view = new_copy(python, record, argument, source.rank, dimensions, 0)
    if not view:
        return False
    call(python.copy_memory, view.address, address, view.length)
    store64(argument.place, place_of(view))
    return True


def has_stream(record: CallRecord) -> bool:
    """Whether the session's memory is that of a device with a stream, which the host does not see."""
    handle_pool = record.state.handle_pool
    if not handle_pool or not handle_pool.queue:
        return False
    return bool(handle_pool.queue.stream)


def pass_uploaded(python: Python, record: CallRecord, argument: Argument, dimensions: int, data: int) -> bool:
    """Elements at an address of the host, of dimensions that fit, which go to the device by its stream."""
    view = uploaded(record, argument, dimensions, data)
    if not view:
        size = view_size(argument, dimensions, MAXIMUM_UPDATE)
        if size < 0:
            return False
        if not is_true(python, invoke_with_number(python, record.supply, size)):
            return False
        view = uploaded(record, argument, dimensions, data)
        if not view:
            return False
    store64(argument.place, place_of(view))
    return True


def uploaded(record: CallRecord, argument: Argument, dimensions: int, data: int) -> Entry:
    """0 if a pool is empty, or the elements are not for machine code to copy."""
    state = record.state
    handle_pool = state.handle_pool
    queue = handle_pool.queue
    size = view_size(argument, dimensions, MAXIMUM_UPDATE)
    if size < 0 or queue.open == 0:
        return Entry(0)
    view = new_view(state, handle_pool, argument, size)
    if not view:
        return Entry(0)
    write_shape(handle_pool, argument, view, dimensions)
    if size != 0 and upload(state, handle_pool, queue, view.address, data, size) != DONE:
        refuse(record, view)
        return Entry(0)
    return view


def pass_moved(
    python: Python, record: CallRecord, argument: Argument, source: Entry, dimensions: int
) -> bool:
    """The elements of a view in the device's memory, which the stream copies."""
    queue = record.state.handle_pool.queue
    if source.access >> PLACE_SHIFT != place_number(queue) or queue.open == 0 or source.address == 0:
        return False
    if not fits(argument, source.rank, dimensions):
        return False
    size = view_size(argument, dimensions, LARGEST_POOLED)
    if size < 0:
        return False
    view = moved(record, argument, source, dimensions, size)
    if not view:
        if not is_true(python, invoke_with_number(python, record.supply, size)):
            return False
        view = moved(record, argument, source, dimensions, size)
        if not view:
            return False
    store64(argument.place, place_of(view))
    return True


def moved(record: CallRecord, argument: Argument, source: Entry, dimensions: int, size: int) -> Entry:
    """0 if a pool is empty, or it is Python's turn."""
    state = record.state
    handle_pool = state.handle_pool
    view = new_view(state, handle_pool, argument, size)
    if not view:
        return Entry(0)
    write_shape(handle_pool, argument, view, dimensions)
    if size != 0 and move(state, handle_pool, handle_pool.queue, source.address, view.address, size) != DONE:
        refuse(record, view)
        return Entry(0)
    return view


def fits(argument: Argument, rank: int, dimensions: int) -> bool:
    if rank != argument.rank:
        return False
    for index in range(rank):
        expected = load64(place_of(argument) + _DIMENSIONS + 8 * index)
        if expected >= 0 and expected != load64(dimensions + 8 * index):
            return False
    return True


def new_copy(
    python: Python, record: CallRecord, argument: Argument, rank: int, dimensions: int, address: int
) -> Entry:
    """A view of new memory for elements, which lie at an address, or are ``SCATTERED``. 0 if they are not for
    machine code to copy."""
    state = record.state
    handle_pool = state.handle_pool
    if not handle_pool or not handle_pool.queue or not fits(argument, rank, dimensions):
        return Entry(0)
    size = view_size(argument, dimensions, LARGEST_COPIED)
    if size < 0 or has_stream(record):
        return Entry(0)
    is_aligned = address & (_ALIGNMENT - 1) == 0
    if size > _LARGEST_ALWAYS_COPIED and is_aligned and argument.kind != PASS_CONSUMED:
        return Entry(0)
    view = new_view(state, handle_pool, argument, size)
    if not view:
        if not is_true(python, invoke_with_number(python, record.supply, size)):
            return Entry(0)
        view = new_view(state, handle_pool, argument, size)
        if not view:
            return Entry(0)
    write_shape(handle_pool, argument, view, dimensions)
    argument.source = address
    return view


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
    store64(shape + 8 * MAXIMUM_RANK, _ACCESS)


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
    buffer = new_entry(state, handle_pool, handle_pool.buffer)
    if not buffer:
        give_back(handle_pool, storage)
        return Entry(0)
    queue = handle_pool.queue
    memory_type = granted_type(queue, _DEVICE_LOCAL)
    usage = granted_usage(queue, _DEVICE_LOCAL, 0)
    storage.element_type = memory_type
    storage.encoding = usage
    memory_type |= place_number(queue) << PLACE_SHIFT
    describe(buffer, storage.address, size, memory_type, usage)
    buffer.encoding = _ACCESS
    buffer.parent = storage
    view = new_entry(state, handle_pool, handle_pool.buffer_view)
    if not view:
        release(handle_pool, buffer, place_of(state) + STATE_RELEASED)
        return Entry(0)
    describe(view, storage.address, size, memory_type, usage)
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


def scatter(
    python: Python, dtype: int, argument: Argument, dimensions: int, view: Entry, source: int
) -> bool:
    """Copies the elements of a numpy array of any strides. An exception may be set if not."""
    target = over_memory(python, dtype, argument.rank, dimensions, 0, view.address, python.none)
    if target == 0:
        return False
    is_copied = call_int(python.copy_into, target, source) == 0
    drop(python, target)
    return is_copied
