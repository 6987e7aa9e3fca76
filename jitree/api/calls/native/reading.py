"""The elements of small arrays in a device's memory, copied to the host. Machine code."""

from __future__ import annotations

from jitree.api.calls.native.arrays import dtype_of, over_memory
from jitree.api.calls.native.fences import wait_for_device
from jitree.api.calls.native.function import enter_gate, leave_gate, settle
from jitree.api.calls.native.layout import CAPSULE_CONTEXT_AT, CAPSULE_POINTER_AT, MAXIMUM_RANK
from jitree.api.calls.native.owners import give_back_handle, handle_of, new_owner
from jitree.api.calls.native.python import drop, invoke_with_number, is_true, retained
from jitree.api.calls.native.records import CallRecord, Python
from jitree.codegen.primitives import call, load64, stack, store64
from jitree.codegen.record import place_of
from jitree.hal.enums import MemoryAccess
from jitree.modules.hal.native.buffers import place_number, take_storage
from jitree.modules.hal.native.entries import STATE_RELEASED, new_entry, release
from jitree.modules.hal.native.layout import POOL_COUNT
from jitree.modules.hal.native.records import Entry, State, StreamRecord
from jitree.modules.hal.native.registers import DONE
from jitree.modules.hal.native.transfers import move
from jitree.regs.layout import LINK_POOLED, PLACE_SHIFT
from jitree.types import ENCODING_DENSE

LARGEST_READ = 1 << 20
"""Bytes; more is left to Python, which may choose another kind of memory."""
_READ = int(MemoryAccess.READ)


def fetch_method(self: int, arguments: int, count: int, names: int) -> int:
    """A builtin of two arguments, any DirectCall of a session and an Array of its: a numpy array with a copy
    of the elements, or None if that takes Python."""
    python = Python(load64(self + CAPSULE_POINTER_AT))
    record = CallRecord(load64(load64(load64(arguments) + python.direct_record) + CAPSULE_POINTER_AT))
    array = load64(arguments + 8)
    none = python.none
    if not enter_gate(python, record):
        return 0
    gate = record.gate
    copy = Entry(0)
    submission = stack(16)
    result = none
    if gate.ready != 0:
        gate.ready = 0
        gate.nesting = 1
        copy = read_back(python, record, array, submission)
        result = settle(python, record, none)
    if leave_gate(python, record, result) == 0:
        if copy:
            give_back_handle(record.owners, copy)
        return 0
    if not copy:
        return retained(python, none)
    elements = awaited_elements(
        python, record, copy, StreamRecord(load64(submission)), load64(submission + 8)
    )
    return elements if elements != 0 else retained(python, none)


def read_back(python: Python, record: CallRecord, array: int, submission: int) -> Entry:
    """A buffer of pinned memory that gets the bytes of an array, with its dimensions and element type; 0 if
    that takes Python. At ``submission`` are the stream and the number of the copy then."""
    state = record.state
    handle_pool = state.handle_pool
    none = python.none
    owner = load64(array + python.array_owner)
    if not handle_pool or owner == 0 or owner == none or load64(array + python.array_fence) != none:
        return Entry(0)
    if load64(owner + CAPSULE_CONTEXT_AT) != place_of(record.owners):
        return Entry(0)
    view = Entry(handle_of(owner))
    queue = handle_pool.queue
    if not queue or queue.open == 0 or not queue.stream or view.access >> PLACE_SHIFT != place_number(queue):
        return Entry(0)
    dimensions = place_of(view) + handle_pool.extension
    if view.encoding != ENCODING_DENSE or view.rank > MAXIMUM_RANK or not 0 < view.length <= LARGEST_READ:
        return Entry(0)
    if load64(dimensions + 8 * MAXIMUM_RANK) & _READ == 0 or dtype_of(python, view.element_type) == 0:
        return Entry(0)
    copy = pinned_copy(state, view)
    if not copy and is_true(python, invoke_with_number(python, record.supply, view.length)):
        copy = pinned_copy(state, view)
    if copy:
        store64(submission, place_of(queue.stream))
        store64(submission + 8, handle_pool.submitted)
    else:
        call(python.clear_error)
    return copy


def pinned_copy(state: State, view: Entry) -> Entry:
    """As :func:`read_back`, of a view that fits; 0 also if a pool is empty."""
    handle_pool = state.handle_pool
    queue = handle_pool.queue
    storage = take_storage(state, handle_pool, view.length, 1, POOL_COUNT)
    if not storage:
        return Entry(0)
    released = place_of(state) + STATE_RELEASED
    copy = new_entry(state, handle_pool, handle_pool.buffer)
    if not copy:
        release(handle_pool, storage, released)
        return Entry(0)
    copy.address = storage.address
    copy.length = view.length
    copy.access = place_number(queue) << PLACE_SHIFT
    copy.element_type = view.element_type
    copy.rank = view.rank
    copy.parent = storage
    copy.link = Entry(LINK_POOLED)
    for index in range(view.rank):
        place = handle_pool.extension + 8 * index
        store64(place_of(copy) + place, load64(place_of(view) + place))
    if move(state, handle_pool, queue, view.address, storage.address, view.length) == DONE:
        return copy
    release(handle_pool, copy, released)
    return Entry(0)


def awaited_elements(python: Python, record: CallRecord, copy: Entry, stream: StreamRecord, tick: int) -> int:
    """A numpy array over a copy, once the device has made it. Takes over the reference. 0 without an
    exception if that fails."""
    if not wait_for_device(python, stream, tick):
        give_back_handle(record.owners, copy)
        return 0
    owner = new_owner(record.owners, copy)
    if owner == 0:
        call(python.clear_error)
        return 0
    shape = place_of(copy) + record.owners.extension
    dtype = dtype_of(python, copy.element_type)
    elements = over_memory(python, dtype, copy.rank, shape, 0, copy.address, owner)
    drop(python, owner)
    return elements
