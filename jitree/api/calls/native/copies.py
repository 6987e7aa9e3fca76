"""Arguments whose elements are copied into memory of the session: the caller may change them while the
program keeps its argument, and the program may write to it, declared or not. Machine code."""

from __future__ import annotations

from jitree.api.calls.native.arrays import over_memory
from jitree.api.calls.native.layout import LARGEST_COPIED, NDARRAY_CONTIGUOUS
from jitree.api.calls.native.python import drop, invoke_with_number, is_true
from jitree.api.calls.native.records import Argument, CallRecord, Ndarray, Python
from jitree.api.calls.native.uploads import pass_gathered, pass_uploaded
from jitree.api.calls.native.views import (
    fits,
    has_stream,
    new_view,
    refuse,
    view_size,
    write_shape,
)
from jitree.codegen.primitives import call, call_int, store64
from jitree.codegen.record import place_of
from jitree.modules.hal.native.buffers import place_number
from jitree.modules.hal.native.layout import LARGEST_POOLED
from jitree.modules.hal.native.records import Entry
from jitree.modules.hal.native.registers import DONE
from jitree.modules.hal.native.transfers import move
from jitree.regs.layout import PLACE_SHIFT

SCATTERED = 1
"""Stands for the address of elements that cannot be used in place."""


def pass_ndarray(python: Python, record: CallRecord, argument: Argument, value: Ndarray) -> bool:
    """A numpy array of the declared type."""
    is_dense = value.flags & NDARRAY_CONTIGUOUS != 0
    if has_stream(record):
        if not fits(argument, value.rank, value.dimensions):
            return False
        if not is_dense:
            return pass_gathered(python, record, argument, value.dimensions, place_of(value))
        return pass_uploaded(python, record, argument, value.dimensions, value.data)
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


def new_copy(
    python: Python, record: CallRecord, argument: Argument, rank: int, dimensions: int, address: int
) -> Entry:
    """A view of new memory for elements, which lie at an address, or are ``SCATTERED``. 0 if they are not for
    machine code to copy; an exception may be set."""
    state = record.state
    handle_pool = state.handle_pool
    if not handle_pool or not handle_pool.queue or not fits(argument, rank, dimensions):
        return Entry(0)
    size = view_size(argument, dimensions, LARGEST_COPIED)
    if size < 0 or has_stream(record):
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
