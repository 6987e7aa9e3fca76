"""Copies small arrays from a device's memory to the host. Machine code."""

from __future__ import annotations

from jitree.api.calls.native.arrays import dtype_of, give_back_handle, handle_of, new_owner, over_memory
from jitree.api.calls.native.fences import wait_for_device
from jitree.api.calls.native.function import enter_gate, leave_gate, settle
from jitree.api.calls.native.layout import CAPSULE_CONTEXT_AT, CAPSULE_POINTER_AT, CallRecord, Python
from jitree.api.calls.native.python import drop, forgets_error, invoke_with_number, is_true, retained
from jitree.api.calls.native.read_ahead import ahead_of, may_copy, note_read, pinned_copy, take_copy
from jitree.codegen.primitives import call, load64, stack, store64
from jitree.codegen.record import place_of
from jitree.hal.enums import MemoryAccess
from jitree.hal.timeline_record import Timeline
from jitree.modules.hal.native.buffers import place_number
from jitree.regs.layout import PLACE_SHIFT, Entry

LARGEST_READ = 1 << 20
"""Bytes; more is left to Python, which may choose another kind of memory."""
_READ = int(MemoryAccess.READ)


def fetch_method(self: int, arguments: int, count: int, names: int) -> int:
    """Fetches an Array's elements, as a builtin of two arguments: any DirectCall of a session and an Array of
    its: a numpy array with a copy of the elements, or None if that takes Python."""
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
        result = settle(python, record, none if call(python.error_occurred) == 0 else 0)
    if leave_gate(python, record, result) == 0:
        if copy:
            give_back_handle(record.owners, copy)
        return 0
    if not copy:
        return retained(python, none)
    elements = awaited_elements(python, record, copy, Timeline(load64(submission)), load64(submission + 8))
    return elements if elements != 0 else retained(python, none)


def read_back(python: Python, record: CallRecord, array: int, submission: int) -> Entry:
    """Copies an array to pinned memory, with dimensions and element type; 0 if that takes Python, with an
    exception set if a signal's handler has raised one.

    At ``submission`` are the timeline and the number of the copy then."""
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
    if (
        not queue
        or queue.open == 0
        or not queue.timeline
        or view.access >> PLACE_SHIFT != place_number(queue)
    ):
        return Entry(0)
    if not may_copy(python, handle_pool, view, LARGEST_READ):
        return Entry(0)
    timeline = queue.timeline
    store64(submission, place_of(timeline))
    ahead = ahead_of(record.owners, view, timeline)
    copy = take_copy(state, ahead)
    if copy:
        store64(submission + 8, ahead.worked)
        return copy
    begun = timeline.tick
    worked = timeline.worked
    copy = pinned_copy(state, view)
    if not copy and is_true(python, invoke_with_number(python, record.supply, view.length)):
        copy = pinned_copy(state, view)
    if copy:
        submitted = handle_pool.submitted
        store64(submission + 8, submitted)
        note_read(record.owners, ahead, worked, submitted if submitted == begun + 1 else 0)
    else:
        forgets_error(python)
    return copy


def awaited_elements(python: Python, record: CallRecord, copy: Entry, timeline: Timeline, tick: int) -> int:
    """A numpy array over a copy, once the device has made it. Takes over the reference. 0 without an
    exception if that fails."""
    if not wait_for_device(python, timeline, tick):
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
