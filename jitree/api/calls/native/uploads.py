"""Arguments whose elements go from the host to the memory of a device by its stream. Machine code."""

from __future__ import annotations

from jitree.api.calls.native.layout import LARGEST_UPLOADED, MOST_SHARED
from jitree.api.calls.native.python import drop, invoke_with_number, is_true, retained
from jitree.api.calls.native.records import Argument, CallRecord, Ndarray, Python
from jitree.api.calls.native.views import new_view, refuse, view_over, view_size, write_shape
from jitree.codegen.primitives import call, call_int, store64
from jitree.codegen.record import place_of
from jitree.modules.hal.native.buffers import take_storage
from jitree.modules.hal.native.entries import STATE_RELEASED, release
from jitree.modules.hal.native.records import Entry
from jitree.modules.hal.native.registers import DONE
from jitree.modules.hal.native.transfers import upload_new
from jitree.regs.access import retain

_LARGEST_SHARING = 1024
_ALIGNMENT = 64


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
    """Elements at an address of the host, of dimensions that fit, which go to the device by its stream."""
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
    """0 if a pool is empty, or the elements are not for machine code to copy."""
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
    """Whether an array is one of the few small ones of a call that go to the device together."""
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
