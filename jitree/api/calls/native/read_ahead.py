"""Results that the host reads as soon as a call has ended. Machine code.

To ask the device for the elements when they are read takes another launch and another wait. So the elements
of a result that was read after the last call go to the host before this call waits for the device.
"""

from __future__ import annotations

from jitree.api.calls.native.arrays import dtype_of
from jitree.api.calls.native.layout import (
    LARGEST_AHEAD,
    MAXIMUM_RANK,
    MOST_AHEAD,
    Ahead,
    CallRecord,
    Owners,
    Python,
    Result,
)
from jitree.codegen.primitives import load64, store64
from jitree.codegen.record import place_of, size_of
from jitree.hal.enums import MemoryAccess, MemoryType
from jitree.hal.timeline_record import Timeline
from jitree.modules.hal.native.buffers import place_number, take_storage
from jitree.modules.hal.native.entries import STATE_RELEASED, State, new_entry, release
from jitree.modules.hal.native.layout import POOL_COUNT, HandlePoolRecord
from jitree.modules.hal.native.registers import DONE
from jitree.modules.hal.native.transfers import is_own, move
from jitree.regs.access import retain
from jitree.regs.layout import LINK_POOLED, PLACE_SHIFT, Entry
from jitree.types import ENCODING_DENSE

AHEAD_SIZE = size_of(Ahead)
RESULT_SIZE = size_of(Result)
_READ = int(MemoryAccess.READ)
_HOST_VISIBLE = int(MemoryType.HOST_VISIBLE)


def read_ahead(python: Python, record: CallRecord, timeline: Timeline, tick: int) -> int:
    """Copies results that the host will read, after submission ``tick``. Gives the number of the submission
    that the call waits for."""
    begun = timeline.tick
    copies = 0
    result = Result(record.results)
    for _ in range(record.result_count):
        if result.ahead and renew(python, record.state, result, timeline):
            copies += 1
        result = Result(place_of(result) + RESULT_SIZE)
    last = record.state.handle_pool.submitted if copies != 0 else tick
    worked = timeline.worked
    if copies != 0 and (worked != last or last != begun + copies):
        worked = 0  # another session has submitted something, and may have written to what is copied
    result = Result(record.results)
    for _ in range(record.result_count):
        if result.ahead:
            result.ahead.worked = worked
        result = Result(place_of(result) + RESULT_SIZE)
    return last


def renew(python: Python, state: State, result: Result, timeline: Timeline) -> bool:
    """Copies a result if the host has read the last one. Whether it did."""
    handle_pool = state.handle_pool
    ahead = result.ahead
    unread = take_copy(state, ahead)
    if unread:
        ahead.wanted = 0
        release(handle_pool, unread, place_of(state) + STATE_RELEASED)
    view = Entry(load64(result.place))
    ahead.view = view
    if ahead.wanted == 0 or not view or view.kind != result.view_kind or is_open_to_others(timeline):
        return False
    if view.access >> PLACE_SHIFT != place_number(handle_pool.queue):
        return False
    if not is_own(view) or view.access & _HOST_VISIBLE != 0:  # the host or a library may write to it
        return False
    if not may_copy(python, handle_pool, view, LARGEST_AHEAD):
        return False
    copy = pinned_copy(state, view)
    ahead.copy = copy
    if copy:
        retain(view)  # or another array could have its handle, and the copy
    return bool(copy)


def take_copy(state: State, ahead: Ahead) -> Entry:
    """A reference to the copy of a result, 0 if there is none."""
    if not ahead or not ahead.copy:
        return Entry(0)
    copy = ahead.copy
    ahead.copy = Entry(0)
    release(state.handle_pool, ahead.view, place_of(state) + STATE_RELEASED)
    return copy


def is_open_to_others(timeline: Timeline) -> bool:
    """Whether other libraries or devices may write to the memory of a device."""
    return timeline.exports != 0 or timeline.exposed != 0


def ahead_of(owners: Owners, view: Entry, timeline: Timeline) -> Ahead:
    """The record of a result whose elements nothing can have changed since its call; 0 = there is none."""
    if is_open_to_others(timeline):
        return Ahead(0)
    ahead = owners.ahead
    for _ in range(MOST_AHEAD):
        if ahead.view == view:
            return ahead if ahead.worked == timeline.worked else Ahead(0)
        ahead = Ahead(place_of(ahead) + AHEAD_SIZE)
    return Ahead(0)


def note_read(owners: Owners, ahead: Ahead, worked: int, now: int) -> None:
    """The host has a result copied. That changes no elements, but Timeline.worked, which was ``worked``;
    it is ``now``, or 0 if something else has been submitted as well."""
    if not ahead:
        return
    ahead.wanted = 1
    if now == 0:
        return
    other = owners.ahead
    for _ in range(MOST_AHEAD):
        if other.worked == worked:
            other.worked = now
        other = Ahead(place_of(other) + AHEAD_SIZE)


def may_copy(python: Python, handle_pool: HandlePoolRecord, view: Entry, most: int) -> bool:
    """Whether numpy may show a view's bytes, at most so many."""
    dimensions = place_of(view) + handle_pool.extension
    if view.encoding != ENCODING_DENSE or view.rank > MAXIMUM_RANK or not 0 < view.length <= most:
        return False
    return load64(dimensions + 8 * MAXIMUM_RANK) & _READ != 0 and dtype_of(python, view.element_type) != 0


def pinned_copy(state: State, view: Entry) -> Entry:
    """Copies a view to pinned memory, with dimensions and element type. 0 if a pool is empty."""
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
