"""Numpy arrays that a program writes to where they are: storage of results (``out=``). Machine code.

The memory gets an entry in the handle pool. The entry keeps the numpy array alive until the program and all
results have released it. Python makes the buffer object of an entry when Python code first asks for it.
"""

from __future__ import annotations

from jitree.api.calls.native.layout import NDARRAY_PLAIN
from jitree.api.calls.native.python import drop, invoke_with, invoke_with_number, is_true
from jitree.api.calls.native.records import Argument, CallRecord, Ndarray, Python
from jitree.api.calls.native.views import ALL_ACCESS, LARGEST, describe, fits, view_size, write_shape
from jitree.codegen.primitives import call, stack, store64
from jitree.codegen.record import place_of
from jitree.hal.enums import MemoryType
from jitree.hal.heap import ALIGNMENT
from jitree.modules.hal.native.buffers import granted_type, granted_usage
from jitree.modules.hal.native.entries import STATE_RELEASED, new_entry, release
from jitree.modules.hal.native.records import Entry
from jitree.regs.layout import OWNER_PYTHON
from jitree.types import ENCODING_DENSE

IN_PLACE = 1
"""A bit in the address of an argument: it is a numpy array that the program writes to."""
_DEVICE_LOCAL = int(MemoryType.DEVICE_LOCAL)


def pass_in_place(python: Python, record: CallRecord, argument: Argument, value: Ndarray) -> bool:
    """An array of the declared type. Whether the program can write to it; if not an exception may be set."""
    handle_pool = record.state.handle_pool
    if value.dtype != argument.dtype or value.flags & NDARRAY_PLAIN != NDARRAY_PLAIN:
        return False
    if not handle_pool or not handle_pool.queue or not fits(argument, value.rank, value.dimensions):
        return False
    size = view_size(argument, value.dimensions, LARGEST)
    if size <= 0 or value.data & (ALIGNMENT - 1) != 0:
        return False
    memory = memory_in_place(python, record, value, size)
    if not memory:
        return False
    view = view_in_place(record, argument, memory, value.dimensions)
    if not view:
        is_supplied = is_true(python, invoke_with_number(python, record.supply, 0))
        view = view_in_place(record, argument, memory, value.dimensions) if is_supplied else Entry(0)
        if not view:
            release(handle_pool, memory, place_of(record.state) + STATE_RELEASED)
            return False
    store64(argument.place, place_of(view))
    return True


def memory_in_place(python: Python, record: CallRecord, value: Ndarray, size: int) -> Entry:
    """A buffer over the memory of an array, with one reference; 0 with an exception set."""
    held = invoke_with(python, record.hold, place_of(value))
    if held == 0:
        return Entry(0)
    overflow = stack(4)
    memory = Entry(call(python.long_value, held, overflow))
    drop(python, held)
    queue = record.state.handle_pool.queue
    memory_type, usage = granted_type(queue, _DEVICE_LOCAL), granted_usage(queue, _DEVICE_LOCAL, 0)
    describe(memory, value.data, size, memory_type, usage)
    memory.kind = record.state.handle_pool.buffer
    memory.count = 1
    memory.encoding = ALL_ACCESS
    memory.owner = OWNER_PYTHON
    memory.parent = Entry(0)
    memory.link = Entry(0)
    return memory


def view_in_place(record: CallRecord, argument: Argument, memory: Entry, dimensions: int) -> Entry:
    """A view of the declared type, which takes over the reference to its buffer; 0 without an entry."""
    handle_pool = record.state.handle_pool
    view = new_entry(record.state, handle_pool, handle_pool.buffer_view)
    if not view:
        return Entry(0)
    describe(view, memory.address, memory.length, memory.access, memory.usage)
    view.element_type = argument.element_type
    view.encoding = ENCODING_DENSE
    view.rank = argument.rank
    view.parent = memory
    view.link = Entry(0)  # what it keeps alive is no memory of a pool
    write_shape(handle_pool, argument, view, dimensions)
    return view
