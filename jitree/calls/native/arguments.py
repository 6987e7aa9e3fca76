"""Arguments of calls: from Python objects into the registers of the host's frame. Machine code.

What is not in its usual form is left to the general way, which converts it or says what is wrong.
"""

from __future__ import annotations

from jitree.calls.native.arrays import Call, over_memory
from jitree.calls.native.layout import (
    ARGUMENT,
    CAPSULE_CONTEXT_AT,
    FLOAT_AT,
    MAXIMUM_RANK,
    NDARRAY,
    NDARRAY_CONTIGUOUS,
    PASS_ARRAY,
    PASS_F32,
    PASS_F64,
    PASS_I32,
    PASS_REFERENCE,
)
from jitree.calls.native.owners import Owners, handle_of
from jitree.calls.native.python import (
    Python,
    drop,
    invoke_with,
    invoke_with_number,
    is_true,
    retained,
    type_of,
)
from jitree.codegen.primitives import (
    Fields,
    call,
    load,
    load32,
    load64,
    narrow,
    stack,
    store,
    store32,
    store64,
)
from jitree.hal.enums import BufferUsage, MemoryAccess, MemoryType
from jitree.modules.hal.native.buffers import give_back, take_storage
from jitree.modules.hal.native.entries import (
    STATE_RELEASED,
    Entry,
    Natives,
    State,
    new_entry,
    release,
    retain,
)
from jitree.regs.layout import LINK_POOLED
from jitree.types import ENCODING_DENSE

Argument = Fields(ARGUMENT)
Ndarray = Fields(NDARRAY)

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


def pass_argument(python: int, record: int, argument: int, value: int) -> bool:
    """Whether it has been put into its register. If not nothing has happened, but an exception may be set."""
    kind = load(argument, Argument.kind)
    if kind == PASS_ARRAY:
        return pass_array(python, record, argument, value)
    if kind != PASS_REFERENCE and pass_number(python, argument, value):
        return True
    converted = invoke_with(python, load(argument, Argument.convert), value)
    if converted == 0:
        return False
    is_passed = pass_converted(python, argument, converted)
    drop(python, converted)
    return is_passed


def pass_converted(python: int, argument: int, converted: int) -> bool:
    if load(argument, Argument.kind) != PASS_REFERENCE:
        return pass_number(python, argument, converted)
    overflow = stack(4)
    handle = call(load(python, Python.long_value), converted, overflow)
    store64(load(argument, Argument.place), handle)
    return True


# -- numbers -------------------------------------------------------------------------------------------


def pass_number(python: int, argument: int, value: int) -> bool:
    """Whether it was a number of the exact type and in range."""
    if load(argument, Argument.kind) >= PASS_F32:
        return type_of(value) == load(python, Python.float_type) and pass_float(
            argument, load64(value + FLOAT_AT)
        )
    return type_of(value) == load(python, Python.int_type) and pass_integer(python, argument, value)


def pass_integer(python: int, argument: int, value: int) -> bool:
    overflow = stack(4)
    number = call(load(python, Python.long_value), value, overflow)
    if load32(overflow) != 0 or not load(argument, Argument.low) <= number <= load(argument, Argument.high):
        return False
    if load(argument, Argument.kind) == PASS_I32:
        store32(load(argument, Argument.place), number)
    else:
        store64(load(argument, Argument.place), number)
    return True


def pass_float(argument: int, bits: int) -> bool:
    if load(argument, Argument.kind) == PASS_F64:
        store64(load(argument, Argument.place), bits)
        return True
    if bits & _MAGNITUDE > _LARGEST_F32:  # infinite, not a number, or something that becomes infinite
        return False
    store32(load(argument, Argument.place), narrow(bits))
    return True


# -- arrays --------------------------------------------------------------------------------------------


def pass_array(python: int, record: int, argument: int, value: int) -> bool:
    if type_of(value) == load(python, Python.array_type):
        return pass_owned(python, record, argument, value)
    if load(argument, Argument.dtype) == 0:
        return False
    if is_expected(python, argument, value):
        return pass_copy(python, record, argument, value)
    converted = invoke_with(python, load(argument, Argument.convert), value)
    if converted == 0:
        return False
    is_passed = is_expected(python, argument, converted) and pass_copy(python, record, argument, converted)
    drop(python, converted)
    return is_passed


def is_expected(python: int, argument: int, value: int) -> bool:
    """Whether it is a numpy array of the declared type."""
    return type_of(value) == load(python, Python.ndarray_type) and load(value, Ndarray.dtype) == load(
        argument, Argument.dtype
    )


def pass_owned(python: int, record: int, argument: int, value: int) -> bool:
    """A device array."""
    if not (
        load64(value + load(python, Python.array_passed_as)) == load(argument, Argument.marker)
        or is_of_type(python, record, argument, value)
        or is_true(python, invoke_with(python, load(argument, Argument.accept), value))
    ):
        return False
    owner = load64(value + load(python, Python.array_owner))
    store64(load(argument, Argument.place), retain(handle_of(owner)))
    return True


def is_of_type(python: int, record: int, argument: int, value: int) -> bool:
    """Whether a device array has a handle in the context, of the declared type, and its elements. The array
    remembers that. Of others Python has to tell."""
    none = load(python, Python.none)
    owner = load64(value + load(python, Python.array_owner))
    owners = load(record, Call.owners)
    if load(argument, Argument.dtype) == 0 or owner == 0 or owner == none:
        return False
    if (
        load64(owner + CAPSULE_CONTEXT_AT) != owners
        or load64(value + load(python, Python.array_fence)) != none
    ):
        return False
    handle = handle_of(owner)
    if load(handle, Entry.element_type) != load(argument, Argument.element_type):
        return False
    if load(handle, Entry.encoding) != ENCODING_DENSE or load(handle, Entry.rank) != load(
        argument, Argument.rank
    ):
        return False
    dimensions = handle + load(owners, Owners.extension)
    if load(argument, Argument.access) & ~load64(dimensions + 8 * MAXIMUM_RANK):
        return False
    for index in range(load(argument, Argument.rank)):
        expected = load64(argument + _DIMENSIONS + 8 * index)
        if expected >= 0 and expected != load64(dimensions + 8 * index):
            return False
    place = value + load(python, Python.array_passed_as)
    before = load64(place)
    store64(place, retained(python, load(argument, Argument.marker)))
    drop(python, before)
    return True


def pass_copy(python: int, record: int, argument: int, value: int) -> bool:
    """A numpy array, which is copied: the caller may change it while the program keeps its argument."""
    state = load(record, Call.state)
    natives = load(state, State.natives)
    rank = load(argument, Argument.rank)
    if natives == 0 or load(value, Ndarray.rank) != rank:
        return False
    dimensions = load(value, Ndarray.dimensions)
    size = load(argument, Argument.item_size)
    for index in range(rank):
        expected = load64(argument + _DIMENSIONS + 8 * index)
        size *= load64(dimensions + 8 * index)
        if expected >= 0 and expected != load64(dimensions + 8 * index):
            return False
    if size > LARGEST_COPIED or load(natives, Natives.queue) == 0:
        return False
    if size > _LARGEST_ALWAYS_COPIED and is_usable_in_place(value):
        return False
    view = new_view(state, natives, argument, size)
    if view == 0:
        if not is_true(python, invoke_with_number(python, load(record, Call.supply), size)):
            return False
        view = new_view(state, natives, argument, size)
        if view == 0:
            return False
    shape = view + load(natives, Natives.extension)
    for index in range(rank):
        store64(shape + 8 * index, load64(dimensions + 8 * index))
    store64(shape + 8 * MAXIMUM_RANK, _ACCESS)
    if not copy_elements(python, value, load(view, Entry.address), size):
        release(natives, view, state + STATE_RELEASED)
        return False
    store64(load(argument, Argument.place), view)
    return True


def is_usable_in_place(array: int) -> bool:
    """As :func:`jitree.calls.transfers.lend_or_copy` decides."""
    return load(array, Ndarray.flags) & NDARRAY_CONTIGUOUS != 0 and (
        load(array, Ndarray.data) & (_ALIGNMENT - 1) == 0
    )


def new_view(state: int, natives: int, argument: int, size: int) -> int:
    """A view of new memory, its dimensions not yet written; 0 if a pool is empty."""
    storage = take_storage(state, natives, size, 0)
    if storage == 0:
        return 0
    buffer = new_entry(state, natives, load(natives, Natives.buffer))
    if buffer == 0:
        give_back(natives, storage)
        return 0
    describe(buffer, load(storage, Entry.address), size)
    store(buffer, Entry.encoding, _ACCESS)
    store(buffer, Entry.parent, storage)
    view = new_entry(state, natives, load(natives, Natives.buffer_view))
    if view == 0:
        release(natives, buffer, state + STATE_RELEASED)
        return 0
    describe(view, load(storage, Entry.address), size)
    store(view, Entry.element_type, load(argument, Argument.element_type))
    store(view, Entry.encoding, ENCODING_DENSE)
    store(view, Entry.rank, load(argument, Argument.rank))
    store(view, Entry.parent, buffer)
    return view


def describe(entry: int, address: int, size: int) -> None:
    store(entry, Entry.address, address)
    store(entry, Entry.length, size)
    store(entry, Entry.access, _MEMORY_TYPE)
    store(entry, Entry.usage, _USAGE)
    store(entry, Entry.link, LINK_POOLED)


def copy_elements(python: int, source: int, address: int, size: int) -> bool:
    """Copies the elements of a numpy array of any strides to contiguous memory."""
    if load(source, Ndarray.flags) & NDARRAY_CONTIGUOUS:
        call(load(python, Python.copy_memory), address, load(source, Ndarray.data), size)
        return True
    target = over_memory(
        python,
        load(source, Ndarray.dtype),
        load(source, Ndarray.rank),
        load(source, Ndarray.dimensions),
        address,
        load(python, Python.none),
    )
    if target == 0:
        return False
    is_copied = call(load(python, Python.copy_into), target, source) & 1 == 0
    drop(python, target)
    return is_copied
