"""Lends memory of others on a device that works by itself to one call. Machine code.

The call keeps the array's owner and the handle of its memory, which ranges of it keep, too. When nothing else
does at the end, and the device has done what it was given, all goes back to the pools; else Python makes
an object of the handle, which keeps the owner from then on.
"""

from __future__ import annotations

from jitree.api.calls.native.arrays import handle_of
from jitree.api.calls.native.copies import (
    OFFSET_FLAG,
    TENSOR_SIZE,
    address_of,
    device_kind,
    is_described,
    is_of_argument,
    is_row_major,
    is_writable,
    pass_capsule,
    pass_tensor,
    tensor_of,
)
from jitree.api.calls.native.layout import (
    CAPSULE_CONTEXT_AT,
    MAXIMUM_RANK,
    TENSOR_ON_HOST,
    Argument,
    CallRecord,
    Exchange,
    Owners,
    Python,
    Tensor,
)
from jitree.api.calls.native.python import drop, invoke_with_number, is_done, is_true, retained
from jitree.api.calls.native.views import ALL_ACCESS, LARGEST, describe, fits, is_alike_type, view_size
from jitree.codegen.primitives import call, call_int, load64, stack, store64
from jitree.codegen.record import atomic_add, place_of
from jitree.hal.command_layout import BINDING_ALIGNMENT
from jitree.hal.enums import MemoryType
from jitree.hal.timeline_record import DEFAULT_ORDER, Timeline
from jitree.modules.hal.native.buffers import granted_type, granted_usage, place_number
from jitree.modules.hal.native.entries import STATE_RELEASED, State, new_entry, release
from jitree.modules.hal.native.layout import HandlePoolRecord
from jitree.regs.access import retain
from jitree.regs.layout import OWNER_CODE, PLACE_SHIFT, Entry
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
    record.state.handle_pool.queue.timeline.lends = 1
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
    """Gives back what was lent for the call, unless it is used. No exception is set."""
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
    timeline = handle_pool.queue.timeline
    return timeline.completed < timeline.tick


def pass_lent(python: Python, record: CallRecord, argument: Argument, exchange: Exchange, value: int) -> bool:
    """Whether an array is an argument now. If not an exception may be set."""
    if argument.tensor_type == 0 or argument.is_written != 0:
        return False
    if exchange.describe == 0:
        return pass_lent_capsule(python, record, argument, exchange, value)
    tensor = Tensor(stack(TENSOR_SIZE))
    if not is_described(python, argument, exchange, value, tensor):
        return False
    if tensor.device_kind == TENSOR_ON_HOST:
        return pass_tensor(python, record, argument, tensor)
    return (
        is_declared(argument, tensor)
        and is_here(record, tensor)
        and follows_producer(record, exchange, tensor)
        and lend(python, record, argument, tensor.shape, address_of(tensor), value)
    )


def pass_lent_capsule(
    python: Python, record: CallRecord, argument: Argument, exchange: Exchange, value: int
) -> bool:
    """Passes what ``__dlpack__`` gives, which orders the device's work itself. The capsule, not used up, is
    the owner. Of arrays in host memory it is not asked for a timeline, which many refuse."""
    kind = device_kind(python, value)
    if kind == TENSOR_ON_HOST:
        return pass_capsule(python, record, argument, exchange, value)
    queue = record.state.handle_pool.queue
    if kind != queue.timeline.kind:
        return False
    # order of asking: with the GIL, as what closes the queue
    atomic_add(queue.timeline.asking, 1)  # before it looks whether there is work to order
    capsule = 0 if queue.open == 0 else ordered_capsule(python, queue.timeline, exchange, value)
    atomic_add(queue.timeline.asking, -1)
    if capsule == 0:
        return False
    tensor = tensor_of(python, capsule)
    is_passed = (
        bool(tensor)
        and is_writable(python, capsule)
        and is_declared(argument, tensor)
        and is_here(record, tensor)
        and lend(python, record, argument, tensor.shape, address_of(tensor), capsule)
    )
    drop(python, capsule)
    return is_passed


def ordered_capsule(python: Python, timeline: Timeline, exchange: Exchange, value: int) -> int:
    """What ``__dlpack__`` gives for a timeline; 0 with an exception."""
    number = call(python.new_long, timeline.handle)
    if number == 0:
        return 0
    arguments = stack(32)
    store64(arguments + 8, value)
    store64(arguments + 16, number)
    store64(arguments + 24, python.dlpack_version)
    names = python.order_names if exchange.names != 0 else python.old_order_names
    capsule = call(python.call_method, python.dlpack_name, arguments + 8, 1 | OFFSET_FLAG, names)
    drop(python, number)
    return capsule


def pass_neighbours(python: Python, record: CallRecord, argument: Argument, array: int) -> bool:
    """A device array in memory of another timeline, not for a result. The call keeps its handle, so that the
    memory is used for nothing else, and comes after what that timeline has by now."""
    owner = load64(array + python.array_owner)
    source = Entry(handle_of(owner))
    if argument.dtype == 0 or argument.is_written != 0 or load64(array + python.array_fence) != python.none:
        return False
    if not is_alike_type(source.element_type, argument.element_type) or source.encoding != ENCODING_DENSE:
        return False
    dimensions = place_of(source) + Owners(load64(owner + CAPSULE_CONTEXT_AT)).extension
    return (
        fits(argument, source.rank, dimensions)
        and follows_neighbour(record, source)
        and lend(python, record, argument, dimensions, source.address, owner)
    )


def follows_neighbour(record: CallRecord, source: Entry) -> bool:
    """Whether the call comes after what another timeline has whose memory it may use."""
    queue = record.state.handle_pool.queue
    if queue.open == 0 or source.address == 0 or source.address & (BINDING_ALIGNMENT - 1) != 0:
        return False
    timeline = queue.timeline
    return call(timeline.join, place_of(timeline), source.access >> PLACE_SHIFT) != 0


def is_declared(argument: Argument, tensor: Tensor) -> bool:
    """Whether a tensor is of the declared type and shape, without gaps."""
    return is_of_argument(argument, tensor) and is_row_major(tensor)


def is_here(record: CallRecord, tensor: Tensor) -> bool:
    """Whether it lies in memory of the device, where programs assume it."""
    queue = record.state.handle_pool.queue
    timeline = queue.timeline
    if tensor.device_kind != timeline.kind or tensor.device_number != timeline.ordinal:
        return False
    is_aligned = address_of(tensor) & (BINDING_ALIGNMENT - 1) == 0
    return queue.open != 0 and tensor.data != 0 and is_aligned


def follows_producer(record: CallRecord, exchange: Exchange, tensor: Tensor) -> bool:
    """Whether the call comes after what the library has submitted so far."""
    if record.producer_type == place_of(exchange):
        return True
    place = stack(8)
    store64(place, 0)
    if exchange.find_order == 0:
        return False
    if call_int(exchange.find_order, tensor.device_kind, tensor.device_number, place) != 0:
        return False
    producer = load64(place)
    if producer == 0:
        producer = DEFAULT_ORDER
    timeline = record.state.handle_pool.queue.timeline
    if record.producer != producer and call(timeline.follow, place_of(timeline), producer) == 0:
        return False
    record.producer = producer
    record.producer_type = place_of(exchange)
    return True
