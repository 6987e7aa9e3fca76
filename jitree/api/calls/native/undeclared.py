"""Arrays as arguments whose type is not declared: the program looks at what it gets, and may write to it.
Machine code."""

from __future__ import annotations

from jitree.api.calls.native.arrays import BY_DTYPE, BY_TENSOR_TYPE, dtype_row, readable
from jitree.api.calls.native.copies import pass_ndarray
from jitree.api.calls.native.device_arrays import pass_owner
from jitree.api.calls.native.exchange import COMPLEX, TENSOR_SIZE, exchange_of, is_described, pass_tensor
from jitree.api.calls.native.layout import CAPSULE_CONTEXT_AT, MAXIMUM_RANK
from jitree.api.calls.native.python import type_of
from jitree.api.calls.native.records import Argument, CallRecord, Dtype, Ndarray, Python, Tensor
from jitree.codegen.primitives import load64, stack
from jitree.codegen.record import place_of
from jitree.modules.hal.native.buffers import place_number
from jitree.regs.layout import PLACE_SHIFT


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
    """A device array of the session's memory whose elements are there, or are before what the call submits,
    and to which the program may write. Calls with a fence are left to Python, which notes their memory."""
    handle_pool = record.state.handle_pool
    if not handle_pool or not handle_pool.queue or record.signal != 0:
        return False
    handle = readable(python, array)
    if not handle or handle.access >> PLACE_SHIFT != place_number(handle_pool.queue):
        return False
    owner = load64(array + python.array_owner)
    if load64(owner + CAPSULE_CONTEXT_AT) != place_of(record.owners):
        return False
    return pass_owner(python, argument, array)
