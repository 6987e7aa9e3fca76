"""Memory of others on a device with a stream, lent to the program for one call. Machine code.

The call keeps the array's owner and the handle of its memory, which ranges of it keep, too. When nothing else
does at the end, and the device has done what it was given, all goes back to the pools; else Python makes
an object of the handle, which keeps the owner from then on.
"""

from __future__ import annotations

from jitree.api.calls.native.layout import MAXIMUM_RANK
from jitree.api.calls.native.python import drop, invoke_with_number, is_done, is_true, retained
from jitree.api.calls.native.records import Argument, CallRecord, Python
from jitree.api.calls.native.views import ALL_ACCESS, LARGEST, describe, view_size
from jitree.codegen.primitives import call, load64, store64
from jitree.codegen.record import place_of
from jitree.hal.enums import MemoryType
from jitree.modules.hal.native.buffers import granted_type, granted_usage, place_number
from jitree.modules.hal.native.entries import STATE_RELEASED, new_entry, release
from jitree.modules.hal.native.records import Entry, HandlePoolRecord, State
from jitree.regs.access import retain
from jitree.regs.layout import OWNER_CODE, PLACE_SHIFT
from jitree.types import ENCODING_DENSE

_DEVICE_LOCAL = int(MemoryType.DEVICE_LOCAL)
_NEXT = 8
"""Bytes in the extension of a handle from its owner to the next handle of the call."""


def lend(
    python: Python, record: CallRecord, argument: Argument, dimensions: int, address: int, owner: int
) -> bool:
    """Memory at an address, of dimensions that fit, as an argument; the call keeps ``owner``. An exception
    may be set if not."""
    size = view_size(argument, dimensions, LARGEST)
    if size <= 0:
        return False
    view = view_of(record, argument, dimensions, address, size)
    if not view:
        if not is_true(python, invoke_with_number(python, record.supply, 0)):
            return False
        view = view_of(record, argument, dimensions, address, size)
        if not view:
            return False
    memory = view.parent.parent
    record.state.handle_pool.queue.stream.lends = 1
    extension = place_of(memory) + record.state.handle_pool.extension
    store64(extension, retained(python, owner))
    store64(extension + _NEXT, place_of(record.lent))
    record.lent = retain(memory)
    store64(argument.place, place_of(view))
    return True


def view_of(record: CallRecord, argument: Argument, dimensions: int, address: int, size: int) -> Entry:
    """A view of a buffer over memory that the pools do not have. 0 without entries."""
    state = record.state
    handle_pool = state.handle_pool
    memory = part_of(state, Entry(0), handle_pool.buffer, address, size)
    buffer = part_of(state, memory, handle_pool.buffer, address, size)
    view = part_of(state, buffer, handle_pool.buffer_view, address, size)
    if not view:
        release(handle_pool, buffer if buffer else memory, place_of(state) + STATE_RELEASED)
        return Entry(0)
    view.element_type = argument.element_type
    view.encoding = ENCODING_DENSE
    view.rank = argument.rank
    shape = place_of(view) + handle_pool.extension
    for index in range(argument.rank):
        store64(shape + 8 * index, load64(dimensions + 8 * index))
    store64(shape + 8 * MAXIMUM_RANK, ALL_ACCESS)
    return view


def part_of(state: State, parent: Entry, kind: int, address: int, size: int) -> Entry:
    """An entry that takes over a reference to its parent; 0 without one, and then nothing is taken over."""
    handle_pool = state.handle_pool
    if not parent and kind != handle_pool.buffer:
        return Entry(0)
    made = new_entry(state, handle_pool, kind)
    if made:
        queue = handle_pool.queue
        memory_type = granted_type(queue, _DEVICE_LOCAL) | place_number(queue) << PLACE_SHIFT
        describe(made, address, size, memory_type, granted_usage(queue, _DEVICE_LOCAL, 0))
        made.encoding = ALL_ACCESS
        made.parent = parent
        made.link = Entry(0)
    return made


def end_lending(python: Python, record: CallRecord) -> None:
    """What was lent for the call goes back to its owners, unless it is still used. No exception is set."""
    handle_pool = record.state.handle_pool
    memory = record.lent
    record.lent = Entry(0)
    while memory:
        extension = place_of(memory) + handle_pool.extension
        owner = load64(extension)
        following = Entry(load64(extension + _NEXT))
        is_kept = True
        if is_used(handle_pool, memory):
            is_kept = is_done(python, invoke_with_number(python, record.keep_lent, place_of(memory)))
        release(handle_pool, memory, place_of(record.state) + STATE_RELEASED)
        if is_kept:
            drop(python, owner)
        else:  # there is no memory for the object: the owner stays for good
            call(python.clear_error)
        memory = following


def is_used(handle_pool: HandlePoolRecord, memory: Entry) -> bool:
    """Whether anything but the call may still use memory."""
    if memory.owner != OWNER_CODE or memory.count != 1:
        return True
    stream = handle_pool.queue.stream
    return stream.completed < stream.tick
