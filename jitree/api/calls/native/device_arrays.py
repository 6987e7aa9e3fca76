"""Passes device arrays by their handle, or copies them. Machine code.

A program looks at what it gets for a parameter without a type of elements, and may write to it: arrays of
other libraries are copied there under the type that they have.
"""

from __future__ import annotations

from jitree.api.calls.native.arrays import BY_DTYPE, BY_TENSOR_TYPE, dtype_row, handle_of, readable
from jitree.api.calls.native.copies import (
    COMPLEX,
    TENSOR_SIZE,
    exchange_of,
    is_described,
    pass_elements,
    pass_ndarray,
    pass_tensor,
)
from jitree.api.calls.native.layout import (
    CAPSULE_CONTEXT_AT,
    MAXIMUM_RANK,
    Argument,
    CallRecord,
    Dtype,
    Ndarray,
    Owners,
    Python,
    Tensor,
)
from jitree.api.calls.native.lending import pass_neighbours
from jitree.api.calls.native.python import drop, invoke_with, invoke_with_number, is_true, retained, type_of
from jitree.api.calls.native.views import fits, has_timeline, is_alike_type
from jitree.codegen.primitives import apart, call, load64, stack, store64
from jitree.codegen.record import place_of
from jitree.hal.enums import MemoryAccess
from jitree.modules.hal.native.buffers import place_number
from jitree.modules.hal.native.views import buffer_of, retyped
from jitree.regs.access import retain
from jitree.regs.layout import PLACE_SHIFT, Entry
from jitree.types import ENCODING_DENSE

_WRITE = int(MemoryAccess.WRITE)


def pass_owned(python: Python, record: CallRecord, argument: Argument, array: int) -> bool:
    """A device array: its handle, if it has one in the context or gets one, else a copy of its elements."""
    if is_accepted(python, argument, array):
        return pass_owner(python, argument, array)
    return pass_unaccepted(python, record, argument, array)


@apart
def pass_unaccepted(python: Python, record: CallRecord, argument: Argument, array: int) -> bool:
    """A device array that is not known to fit. Apart, so that numbers and arrays that are known to fit save
    no registers for it."""
    if is_far(python, record, array):
        if pass_neighbours(python, record, argument, array):
            return True
    elif is_present(python, record, argument, array):
        if is_of_type(python, argument, array):
            return pass_owner(python, argument, array)
        if argument.is_written == 0 and pass_as_declared(python, record, argument, array):
            return True
    if (
        argument.is_written == 0
        and is_elsewhere(python, record, array)
        and pass_copied(python, record, argument, array)
    ):
        return True
    if not is_true(python, invoke_with(python, argument.accept, array)):
        return False
    is_lent = is_far(python, record, array) and pass_neighbours(python, record, argument, array)
    return is_lent or pass_owner(python, argument, array)


def is_accepted(python: Python, argument: Argument, array: int) -> bool:
    """Whether a device array is known to fit, and its elements are there for what the call submits."""
    return load64(array + python.array_passed_as) == argument.marker


def pass_owner(python: Python, argument: Argument, array: int) -> bool:
    owner = load64(array + python.array_owner)
    store64(argument.place, place_of(retain(Entry(handle_of(owner)))))
    return True


def pass_kept(python: Python, record: CallRecord, argument: Argument, array: int) -> bool:
    """A device array for a program that may overwrite it, and whose caller keeps it."""
    return pass_copied(python, record, argument, array) or (
        is_true(python, invoke_with(python, argument.accept, array))
        and pass_copied(python, record, argument, array)
    )


def pass_copied(python: Python, record: CallRecord, argument: Argument, array: int) -> bool:
    """A copy of a device array of any session."""
    owner = load64(array + python.array_owner)
    if argument.dtype == 0 or owner == 0 or owner == python.none:
        return False
    handle = Entry(handle_of(owner))
    if load64(array + python.array_fence) != python.none and not is_accepted(python, argument, array):
        return False
    if not is_alike_type(handle.element_type, argument.element_type) or handle.encoding != ENCODING_DENSE:
        return False
    dimensions = place_of(handle) + Owners(load64(owner + CAPSULE_CONTEXT_AT)).extension
    retained(python, owner)
    is_passed = pass_elements(python, record, argument, handle, dimensions)
    drop(python, owner)
    return is_passed


def is_elsewhere(python: Python, record: CallRecord, array: int) -> bool:
    """Whether a device array has its handle in another session."""
    owner = load64(array + python.array_owner)
    if owner == 0 or owner == python.none:
        return False
    return load64(owner + CAPSULE_CONTEXT_AT) != place_of(record.owners)


def is_far(python: Python, record: CallRecord, array: int) -> bool:
    """Whether a device array lies in memory whose use another timeline orders."""
    owner = load64(array + python.array_owner)
    if owner == 0 or owner == python.none or not has_timeline(record):
        return False
    place = Entry(handle_of(owner)).access >> PLACE_SHIFT
    return place != 0 and place != record.state.handle_pool.queue.timeline.place


def is_present(python: Python, record: CallRecord, argument: Argument, array: int) -> bool:
    """Whether a device array has a handle in the context, of the declared type or one like it, and its
    elements. Of others Python has to tell."""
    none = python.none
    owner = load64(array + python.array_owner)
    owners = record.owners
    if argument.dtype == 0 or owner == 0 or owner == none:
        return False
    if load64(owner + CAPSULE_CONTEXT_AT) != place_of(owners) or load64(array + python.array_fence) != none:
        return False
    handle = Entry(handle_of(owner))
    if not is_alike_type(handle.element_type, argument.element_type) or handle.encoding != ENCODING_DENSE:
        return False
    dimensions = place_of(handle) + owners.extension
    if not fits(argument, handle.rank, dimensions):
        return False
    return load64(dimensions + 8 * MAXIMUM_RANK) & _WRITE != 0


def is_of_type(python: Python, argument: Argument, array: int) -> bool:
    """Whether an array that is present is of the declared type itself. It remembers that."""
    if Entry(handle_of(load64(array + python.array_owner))).element_type != argument.element_type:
        return False
    place = array + python.array_passed_as
    before = load64(place)
    store64(place, retained(python, argument.marker))
    drop(python, before)
    return True


def pass_as_declared(python: Python, record: CallRecord, argument: Argument, array: int) -> bool:
    """The elements of an array that is present as ones of the declared type, whatever their sign: what the
    program gives back of its arguments has the type of the declaration."""
    source = Entry(handle_of(load64(array + python.array_owner)))
    if not record.state.handle_pool or source.address == 0:
        return False
    view = retyped(record.state, source, argument.element_type)
    if not view:
        if not is_true(python, invoke_with_number(python, record.supply, 0)):
            return False
        view = retyped(record.state, source, argument.element_type)
        if not view:
            return False
    store64(argument.place, place_of(view))
    return True


def pass_handle(python: Python, argument: Argument, number: int) -> bool:
    """A number that Python has made of a handle, a reference to which is taken over."""
    store64(argument.place, call(python.long_value, number, stack(4)))
    drop(python, number)
    return True


def pass_undeclared(python: Python, record: CallRecord, argument: Argument, value: int) -> bool:
    """Whether it is an array that is an argument now: one of the session by its handle, others as a copy. If
    not an exception may be set."""
    cls = type_of(value)
    if cls == python.array_type:
        return pass_present(python, record, argument, value)
    if cls == python.ndarray_type:
        array = Ndarray(value)
        row = dtype_row(python, BY_DTYPE, array.dtype)
        return declare(argument, row, array.rank) and pass_ndarray(python, record, argument, array)
    exchange = exchange_of(python, cls)
    if not exchange or exchange.describe == 0:
        return False
    tensor = Tensor(stack(TENSOR_SIZE))
    argument.tensor_type = COMPLEX  # not known yet; of complex arrays most is asked
    return (
        is_described(python, argument, exchange, value, tensor)
        and declare(argument, dtype_row(python, BY_TENSOR_TYPE, tensor.type), tensor.rank)
        and pass_tensor(python, record, argument, tensor)
    )


def declare(argument: Argument, row: Dtype, rank: int) -> bool:
    """Declares the argument, for this call, as an array of a type and a rank. False if machine code does not
    copy such arrays."""
    if not row or rank > MAXIMUM_RANK:
        return False
    argument.dtype = row.dtype
    argument.element_type = row.code
    argument.tensor_type = row.tensor_type
    argument.item_size = row.item_size
    argument.rank = rank
    return True


def pass_present(python: Python, record: CallRecord, argument: Argument, array: int) -> bool:
    """As :func:`present`. Calls with a fence are left to Python, which notes their memory."""
    return record.signal == 0 and bool(present(python, record, array)) and pass_owner(python, argument, array)


def pass_workspace(python: Python, record: CallRecord, argument: Argument, array: int) -> bool:
    """Memory for intermediate results of a call whose caller waits: the buffer of a device array."""
    handle = present(python, record, array)
    if not handle or handle.length < argument.low or record.signal != 0 or record.goes_on != 0:
        return False
    buffer = buffer_of(record.state, handle)
    store64(argument.place, place_of(buffer))
    return bool(buffer)


def present(python: Python, record: CallRecord, array: int) -> Entry:
    """The handle of a device array of the session's memory whose elements are there, or are before what the
    call submits, and to which the program may write; 0 of others."""
    handle_pool = record.state.handle_pool
    if not handle_pool or not handle_pool.queue:
        return Entry(0)
    handle = readable(python, array)
    if not handle or handle.access >> PLACE_SHIFT != place_number(handle_pool.queue):
        return Entry(0)
    owner = load64(array + python.array_owner)
    return handle if load64(owner + CAPSULE_CONTEXT_AT) == place_of(record.owners) else Entry(0)
