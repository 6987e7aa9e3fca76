"""Copies numpy arrays, and arrays of other libraries, as arguments. Machine code.

The caller may change them as soon as the call returns, and the program may write to its argument, declared
or not. Where arrays of other libraries lie says DLPack, by its functions in C where their type has these,
else by ``__dlpack__``. What is not as usual is left to the slow path, whatever the other library says of
it.
"""

from __future__ import annotations

from jitree.api.calls.native.arrays import over_memory
from jitree.api.calls.native.layout import (
    LARGEST_COPIED,
    MAXIMUM_EXCHANGES,
    MAXIMUM_RANK,
    NDARRAY_CONTIGUOUS,
    READ_ONLY_TENSOR,
    TENSOR_ON_HOST,
    Argument,
    CallRecord,
    Exchange,
    Ndarray,
    Python,
    Tensor,
    VersionedTensor,
)
from jitree.api.calls.native.python import drop, forgets_error, invoke_with_number, is_false, is_true
from jitree.api.calls.native.views import (
    fits,
    has_timeline,
    new_view,
    pass_gathered,
    pass_uploaded,
    refuse,
    view_size,
    write_shape,
)
from jitree.codegen.primitives import call, call_int, load64, stack, store64
from jitree.codegen.record import layout_of, place_of, size_of
from jitree.modules.hal.native.buffers import place_number
from jitree.modules.hal.native.layout import LARGEST_POOLED
from jitree.modules.hal.native.registers import DONE
from jitree.modules.hal.native.transfers import move
from jitree.regs.layout import PLACE_SHIFT, Entry

SCATTERED = 1
"""Stands for the address of elements that cannot be used in place."""

_EXCHANGE_SIZE = size_of(Exchange)
TENSOR_SIZE = size_of(Tensor)
_VERSIONED_TENSOR = layout_of(VersionedTensor)["tensor"]
COMPLEX = 5
"""kDLComplex"""
_KNOWN_VERSION = 1
OFFSET_FLAG = -(1 << 63)
"""PY_VECTORCALL_ARGUMENTS_OFFSET"""


def pass_ndarray(python: Python, record: CallRecord, argument: Argument, value: Ndarray) -> bool:
    """A numpy array of the declared type."""
    is_dense = value.flags & NDARRAY_CONTIGUOUS != 0
    if has_timeline(record):
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
    if has_timeline(record):
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
    """The elements of a view in the device's memory, which the device copies itself."""
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
    """Views new memory for elements at an address or ``SCATTERED``. 0 if they are not for machine code to
    copy; an exception may be set."""
    state = record.state
    handle_pool = state.handle_pool
    if not handle_pool or not handle_pool.queue or not fits(argument, rank, dimensions):
        return Entry(0)
    size = view_size(argument, dimensions, LARGEST_COPIED)
    if size < 0 or has_timeline(record):
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


def exchange_of(python: Python, cls: int) -> Exchange:
    """What is known of a type, 0 if nothing is."""
    exchange = Exchange(python.exchanges)
    for _ in range(MAXIMUM_EXCHANGES):
        if exchange.type == cls:
            return exchange
        exchange = Exchange(place_of(exchange) + _EXCHANGE_SIZE)
    return Exchange(0)


def pass_foreign(
    python: Python, record: CallRecord, argument: Argument, exchange: Exchange, value: int
) -> bool:
    """Whether it has been copied. If not an exception may be set."""
    if argument.tensor_type == 0:
        return False
    if exchange.describe == 0:
        return pass_capsule(python, record, argument, exchange, value)
    tensor = Tensor(stack(TENSOR_SIZE))
    return is_described(python, argument, exchange, value, tensor) and pass_tensor(
        python, record, argument, tensor
    )


def is_described(python: Python, argument: Argument, exchange: Exchange, value: int, tensor: Tensor) -> bool:
    """Whether the library's C function tells all of an array. An exception may be set if not."""
    if not has_elements(python, argument, exchange, value):
        return False
    return call_int(exchange.describe, value, place_of(tensor)) == 0 and call(python.error_occurred) == 0


def has_elements(python: Python, argument: Argument, exchange: Exchange, value: int) -> bool:
    """Whether an array's memory holds its elements and all else. The functions in C do not look at that."""
    name = exchange.lazy_attribute
    if name != 0 and not is_false(python, call(python.get_attribute, value, name)):
        return False
    name = exchange.lazy_method
    if name != 0 and not is_false(python, call_method(python, value, name)):
        return False
    name = exchange.lazy_complex
    if name == 0 or argument.tensor_type & 255 != COMPLEX:
        return True
    return is_false(python, call_method(python, value, name))


def call_method(python: Python, value: int, name: int) -> int:
    arguments = stack(16)
    store64(arguments + 8, value)
    return call(python.call_method, name, arguments + 8, 1 | OFFSET_FLAG, 0)


def pass_capsule(
    python: Python, record: CallRecord, argument: Argument, exchange: Exchange, value: int
) -> bool:
    """Passes what ``__dlpack__`` gives of an array in host memory. The capsule is not used up: its own end
    gives the tensor back at once."""
    arguments = stack(24)
    store64(arguments + 8, value)
    store64(arguments + 16, python.dlpack_version)
    capsule = call(python.call_method, python.dlpack_name, arguments + 8, 1 | OFFSET_FLAG, exchange.names)
    if capsule == 0:
        return False
    tensor = tensor_of(python, capsule)
    is_passed = bool(tensor) and pass_tensor(python, record, argument, tensor)
    drop(python, capsule)
    return is_passed


def device_kind(python: Python, value: int) -> int:
    """TENSOR.device_kind as ``__dlpack_device__`` tells it, -1 where it does not. An exception may be set
    then."""
    device = call_method(python, value, python.dlpack_device_name)
    if device == 0:
        return -1
    kind = -1
    number = call(python.get_item, device, 0)
    if number != 0:
        kind = call(python.long_value, number, stack(4))
    drop(python, device)
    return kind


def tensor_of(python: Python, capsule: int) -> Tensor:
    """The tensor of a capsule, 0 if it is none that is known. An exception may be set then."""
    address = call(python.capsule_pointer, capsule, python.versioned_name)
    if address != 0:
        return Tensor(address + _VERSIONED_TENSOR if VersionedTensor(address).major == _KNOWN_VERSION else 0)
    if not forgets_error(python):
        return Tensor(0)
    return Tensor(call(python.capsule_pointer, capsule, python.unversioned_name))


def is_writable(python: Python, capsule: int) -> bool:
    """Whether a capsule's tensor may be written to, as capsules with a version say."""
    address = call(python.capsule_pointer, capsule, python.versioned_name)
    if address == 0:
        call(python.clear_error)
        return True
    return bool(VersionedTensor(address).flags & READ_ONLY_TENSOR == 0)


def address_of(tensor: Tensor) -> int:
    return tensor.data + tensor.byte_offset


def is_of_argument(argument: Argument, tensor: Tensor) -> bool:
    """Whether a tensor is of the declared type and shape, of any strides. Its integers may be unsigned."""
    if tensor.type != argument.tensor_type and tensor.type != argument.unsigned_tensor:
        return False
    if (tensor.rank != 0 and tensor.shape == 0) or tensor.byte_offset < 0:
        return False
    return fits(argument, tensor.rank, tensor.shape)


def pass_tensor(python: Python, record: CallRecord, argument: Argument, tensor: Tensor) -> bool:
    """The elements of a tensor in host memory. An exception may be set if not."""
    if tensor.device_kind != TENSOR_ON_HOST or not is_of_argument(argument, tensor):
        return False
    if has_timeline(record):
        return pass_sent(python, record, argument, tensor)
    is_dense = is_row_major(tensor)
    data = address_of(tensor) if is_dense else SCATTERED
    view = new_copy(python, record, argument, tensor.rank, tensor.shape, data)
    if not view:
        return False
    if view.length != 0 and (tensor.data == 0 or not copied(python, argument, tensor, view, is_dense)):
        return refuse(record, view)
    store64(argument.place, place_of(view))
    return True


def pass_sent(python: Python, record: CallRecord, argument: Argument, tensor: Tensor) -> bool:
    """The elements go to a device that works by itself."""
    if tensor.data == 0:
        return False
    if is_row_major(tensor):
        return pass_uploaded(python, record, argument, tensor.shape, address_of(tensor))
    source = elements_of_tensor(python, argument, tensor)
    if source == 0:
        return False
    is_passed = pass_gathered(python, record, argument, tensor.shape, source)
    drop(python, source)
    return is_passed


def copied(python: Python, argument: Argument, tensor: Tensor, view: Entry, is_dense: bool) -> bool:
    if is_dense:
        call(python.copy_memory, view.address, address_of(tensor), view.length)
        return True
    source = elements_of_tensor(python, argument, tensor)
    if source == 0:
        return False
    is_copied = scatter(python, argument.dtype, argument, tensor.shape, view, source)
    drop(python, source)
    return is_copied


def elements_of_tensor(python: Python, argument: Argument, tensor: Tensor) -> int:
    """Makes a numpy array over a host tensor of any strides; its rank is that of the argument. 0 without an
    exception if it fails."""
    strides = stack(8 * MAXIMUM_RANK)
    for index in range(argument.rank):
        store64(strides + 8 * index, load64(tensor.strides + 8 * index) * argument.item_size)
    return over_memory(
        python, argument.dtype, argument.rank, tensor.shape, strides, address_of(tensor), python.none
    )


def is_row_major(tensor: Tensor) -> bool:
    """Whether elements lie one after the other. Its rank is that of the argument."""
    strides = tensor.strides
    if strides == 0:
        return True
    expected = 1
    for index in range(tensor.rank - 1, -1, -1):
        size = load64(tensor.shape + 8 * index)
        if size != 1 and load64(strides + 8 * index) != expected:
            return False
        expected *= size
    return True
