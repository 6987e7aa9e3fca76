"""Arguments of calls: from Python objects into the registers of the host's frame. Machine code.

What is not in its usual form is left to the slow path, which converts it or says what is wrong.
"""

from __future__ import annotations

from jitree.api.calls.native.arrays import over_memory
from jitree.api.calls.native.layout import (
    ARGUMENT,
    CAPSULE_CONTEXT_AT,
    FLOAT_AT,
    MAXIMUM_RANK,
    NDARRAY_CONTIGUOUS,
    PASS_ARRAY,
    PASS_F32,
    PASS_F64,
    PASS_I32,
    PASS_REFERENCE,
)
from jitree.api.calls.native.owners import handle_of
from jitree.api.calls.native.python import drop, invoke_with, invoke_with_number, is_true, retained, type_of
from jitree.api.calls.native.records import Argument, CallRecord, Ndarray, Python
from jitree.codegen.primitives import call, load32, load64, narrow, stack, store32, store64
from jitree.codegen.record import place_of
from jitree.hal.enums import BufferUsage, MemoryAccess, MemoryType
from jitree.modules.hal.native.buffers import give_back, take_storage
from jitree.modules.hal.native.entries import STATE_RELEASED, new_entry, release
from jitree.modules.hal.native.records import Entry, HandlePoolRecord, State
from jitree.regs.counting import retain
from jitree.regs.layout import LINK_POOLED
from jitree.types import ENCODING_DENSE

LARGEST_COPIED = 4 << 20
"""Bytes. Copying more takes so long that other threads should have Python meanwhile."""
_LARGEST_ALWAYS_COPIED = 1 << 18
"""Bytes. Copying more takes longer than using an aligned array in place, which is Python's."""
_ALIGNMENT = 64
_DIMENSIONS = ARGUMENT["dimension_0"]
_MAGNITUDE = (1 << 63) - 1
_LARGEST_F32 = 0x47EFFFFFE0000000
"""Bits, as f64."""
_MEMORY_TYPE = int(MemoryType.DEVICE_LOCAL | MemoryType.HOST_VISIBLE)
_USAGE = int(BufferUsage.DEFAULT | BufferUsage.MAPPING | BufferUsage.TRANSFER)
_ACCESS = int(MemoryAccess.ALL)


def pass_argument(python: Python, record: CallRecord, argument: Argument, value: int) -> bool:
    """Whether it has been put into its register. If not nothing has happened, but an exception may be set."""
    kind = argument.kind
    if kind == PASS_ARRAY:
        return pass_array(python, record, argument, value)
    if kind != PASS_REFERENCE and pass_number(python, argument, value):
        return True
    converted = invoke_with(python, argument.convert, value)
    if converted == 0:
        return False
    is_passed = pass_converted(python, argument, converted)
    drop(python, converted)
    return is_passed


def pass_converted(python: Python, argument: Argument, converted: int) -> bool:
    if argument.kind != PASS_REFERENCE:
        return pass_number(python, argument, converted)
    overflow = stack(4)
    handle = call(python.long_value, converted, overflow)
    store64(argument.place, handle)
    return True


# -- numbers -------------------------------------------------------------------------------------------


def pass_number(python: Python, argument: Argument, value: int) -> bool:
    """Whether it was a number of the exact type and in range."""
    if argument.kind >= PASS_F32:
        return type_of(value) == python.float_type and pass_float(argument, load64(value + FLOAT_AT))
    return type_of(value) == python.int_type and pass_integer(python, argument, value)


def pass_integer(python: Python, argument: Argument, value: int) -> bool:
    overflow = stack(4)
    number = call(python.long_value, value, overflow)
    if load32(overflow) != 0 or not argument.low <= number <= argument.high:
        return False
    if argument.kind == PASS_I32:
        store32(argument.place, number)
    else:
        store64(argument.place, number)
    return True


def pass_float(argument: Argument, bits: int) -> bool:
    if argument.kind == PASS_F64:
        store64(argument.place, bits)
        return True
    if bits & _MAGNITUDE > _LARGEST_F32:  # infinite, not a number, or something that becomes infinite
        return False
    store32(argument.place, narrow(bits))
    return True


# -- arrays --------------------------------------------------------------------------------------------


def pass_array(python: Python, record: CallRecord, argument: Argument, value: int) -> bool:
    if type_of(value) == python.array_type:
        return pass_owned(python, record, argument, value)
    if argument.dtype == 0:
        return False
    if is_expected(python, argument, value):
        return pass_copy(python, record, argument, Ndarray(value))
    converted = Ndarray(invoke_with(python, argument.convert, value))
    if not converted:
        return False
    is_passed = is_expected(python, argument, place_of(converted)) and pass_copy(
        python, record, argument, converted
    )
    drop(python, place_of(converted))
    return is_passed


def is_expected(python: Python, argument: Argument, value: int) -> bool:
    """Whether it is a numpy array of the declared type."""
    return type_of(value) == python.ndarray_type and Ndarray(value).dtype == argument.dtype


def pass_owned(python: Python, record: CallRecord, argument: Argument, value: int) -> bool:
    """A device array."""
    if not (
        load64(value + python.array_passed_as) == argument.marker
        or is_of_type(python, record, argument, value)
        or is_true(python, invoke_with(python, argument.accept, value))
    ):
        return False
    owner = load64(value + python.array_owner)
    store64(argument.place, place_of(retain(Entry(handle_of(owner)))))
    return True


def is_of_type(python: Python, record: CallRecord, argument: Argument, value: int) -> bool:
    """Whether a device array has a handle in the context, of the declared type, and its elements. The array
    remembers that. Of others Python has to tell."""
    none = python.none
    owner = load64(value + python.array_owner)
    owners = record.owners
    if argument.dtype == 0 or owner == 0 or owner == none:
        return False
    if load64(owner + CAPSULE_CONTEXT_AT) != place_of(owners) or load64(value + python.array_fence) != none:
        return False
    handle = Entry(handle_of(owner))
    if handle.element_type != argument.element_type:
        return False
    if handle.encoding != ENCODING_DENSE or handle.rank != argument.rank:
        return False
    dimensions = place_of(handle) + owners.extension
    if argument.access & ~load64(dimensions + 8 * MAXIMUM_RANK):
        return False
    for index in range(argument.rank):
        expected = load64(place_of(argument) + _DIMENSIONS + 8 * index)
        if expected >= 0 and expected != load64(dimensions + 8 * index):
            return False
    place = value + python.array_passed_as
    before = load64(place)
    store64(place, retained(python, argument.marker))
    drop(python, before)
    return True


def pass_copy(python: Python, record: CallRecord, argument: Argument, value: Ndarray) -> bool:
    """A numpy array, which is copied: the caller may change it while the program keeps its argument."""
    state = record.state
    handle_pool = state.handle_pool
    rank = argument.rank
    if not handle_pool or value.rank != rank:
        return False
    dimensions = value.dimensions
    size = argument.item_size
    for index in range(rank):
        expected = load64(place_of(argument) + _DIMENSIONS + 8 * index)
        size *= load64(dimensions + 8 * index)
        if expected >= 0 and expected != load64(dimensions + 8 * index):
            return False
    if size > LARGEST_COPIED or not handle_pool.queue:
        return False
    if size > _LARGEST_ALWAYS_COPIED and is_usable_in_place(value):
        return False
    view = new_view(state, handle_pool, argument, size)
    if not view:
        if not is_true(python, invoke_with_number(python, record.supply, size)):
            return False
        view = new_view(state, handle_pool, argument, size)
        if not view:
            return False
    shape = place_of(view) + handle_pool.extension
    for index in range(rank):
        store64(shape + 8 * index, load64(dimensions + 8 * index))
    store64(shape + 8 * MAXIMUM_RANK, _ACCESS)
    if not copy_elements(python, value, view.address, size):
        release(handle_pool, view, place_of(state) + STATE_RELEASED)
        return False
    store64(argument.place, place_of(view))
    return True


def is_usable_in_place(array: Ndarray) -> bool:
    """As :func:`jitree.api.calls.transfers.lend_or_copy` decides."""
    return array.flags & NDARRAY_CONTIGUOUS != 0 and (array.data & (_ALIGNMENT - 1) == 0)


def new_view(state: State, handle_pool: HandlePoolRecord, argument: Argument, size: int) -> Entry:
    """A view of new memory, its dimensions not yet written; 0 if a pool is empty."""
    storage = take_storage(state, handle_pool, size, 0)
    if not storage:
        return Entry(0)
    buffer = new_entry(state, handle_pool, handle_pool.buffer)
    if not buffer:
        give_back(handle_pool, storage)
        return Entry(0)
    describe(buffer, storage.address, size)
    buffer.encoding = _ACCESS
    buffer.parent = storage
    view = new_entry(state, handle_pool, handle_pool.buffer_view)
    if not view:
        release(handle_pool, buffer, place_of(state) + STATE_RELEASED)
        return Entry(0)
    describe(view, storage.address, size)
    view.element_type = argument.element_type
    view.encoding = ENCODING_DENSE
    view.rank = argument.rank
    view.parent = buffer
    return view


def describe(entry: Entry, address: int, size: int) -> None:
    entry.address = address
    entry.length = size
    entry.access = _MEMORY_TYPE
    entry.usage = _USAGE
    entry.link = Entry(LINK_POOLED)


def copy_elements(python: Python, source: Ndarray, address: int, size: int) -> bool:
    """Copies the elements of a numpy array of any strides to contiguous memory."""
    if source.flags & NDARRAY_CONTIGUOUS:
        call(python.copy_memory, address, source.data, size)
        return True
    target = over_memory(
        python,
        source.dtype,
        source.rank,
        source.dimensions,
        address,
        python.none,
    )
    if target == 0:
        return False
    is_copied = call(python.copy_into, target, place_of(source)) & 1 == 0
    drop(python, target)
    return is_copied
