"""Passes arguments from Python objects into the registers of the host's frame. Machine code.

What is not in its usual form is left to Python, which packs all arguments of such a call or says what is
wrong; what it has packed goes into the registers here, too. So do arguments in the memory of a result, which
Python copies (:mod:`jitree.api.calls.overlaps`), and those of calls whose memory for intermediate results is
not known to be large enough: Python measures that once for all calls with the same shapes and numbers
(:mod:`jitree.api.calls.workspace`). Arrays that a call takes for good are taken from their owners when all
arguments have been passed, and none can be refused any more.
"""

from __future__ import annotations

from jitree.api.calls.native.arrays import handle_of
from jitree.api.calls.native.copies import SCATTERED, exchange_of, pass_foreign, pass_ndarray
from jitree.api.calls.native.device_arrays import (
    is_accepted,
    is_of_type,
    is_present,
    pass_as_declared,
    pass_handle,
    pass_kept,
    pass_owned,
    pass_owner,
    pass_undeclared,
    pass_workspace,
)
from jitree.api.calls.native.layout import (
    COPIED,
    PASS_ARRAY,
    PASS_CONSUMED,
    PASS_F64,
    PASS_I64,
    PASS_REFERENCE,
    Argument,
    CallRecord,
    Ndarray,
    Python,
)
from jitree.api.calls.native.lending import pass_lent
from jitree.api.calls.native.names import IN_PLACE, pass_in_place
from jitree.api.calls.native.numbers import pass_as_array, pass_number, pass_packed_number
from jitree.api.calls.native.python import drop, invoke_with, is_done, is_true, retained, type_of
from jitree.api.calls.native.views import drop_joined, has_timeline, send_joined
from jitree.codegen.primitives import apart, call, load32, load64, stack, store32, store64, unlikely
from jitree.codegen.record import place_of, size_of
from jitree.modules.hal.native.layout import HandlePoolRecord
from jitree.regs.layout import Entry

PACKED = 1
"""A bit in the address of arguments: they are what Python has packed, not what the caller has given."""
_ARGUMENT_SIZE = size_of(Argument)


def are_apart(record: CallRecord) -> bool:
    """Whether no argument lies in a result's storage, unless it may."""
    for index in range(record.argument_count):
        storage = Argument(record.arguments + index * _ARGUMENT_SIZE)
        if unlikely(storage.storage != 0) and not lies_apart(record, storage):
            return False
    return True


def lies_apart(record: CallRecord, storage: Argument) -> bool:
    handle = Entry(load64(storage.place))
    handle_pool = record.state.handle_pool
    if not handle or not handle_pool or handle.address == 0:
        return False
    for index in range(record.argument_count):
        argument = Argument(record.arguments + index * _ARGUMENT_SIZE)
        if PASS_ARRAY <= argument.kind <= PASS_REFERENCE and argument.position != storage.position:
            other = Entry(load64(argument.place))
            is_shared = (storage.in_place >> argument.position) & 1 != 0 and is_same(handle, other)
            if not is_shared and not is_apart(handle_pool, handle, other):
                return False
    return True


def is_same(handle: Entry, other: Entry) -> bool:
    return bool(other) and other.address == handle.address and other.length == handle.length


def is_apart(handle_pool: HandlePoolRecord, handle: Entry, other: Entry) -> bool:
    """Whether two handles have no memory in common. False also where an entry does not tell."""
    if not other or other.kind == handle_pool.fence:
        return True
    if other.kind != handle_pool.buffer_view and other.kind != handle_pool.buffer:
        return False
    if other.length == 0:
        return True
    start, end = handle.address, handle.address + handle.length
    return other.address != 0 and not (other.address < end and start < other.address + other.length)


def pass_donated(python: Python, record: CallRecord, argument: Argument, array: int) -> bool:
    """The array of a donation: its handle in the context."""
    if type_of(array) != python.array_type:
        return False
    is_known = is_accepted(python, argument, array)
    if is_known:
        return pass_owner(python, argument, array)
    if is_present(python, record, argument, array):
        if is_of_type(python, argument, array):
            return pass_owner(python, argument, array)
        return pass_as_declared(python, record, argument, array)
    return is_true(python, invoke_with(python, argument.accept, array)) and pass_owner(
        python, argument, array
    )


def give_up_donations(python: Python, record: CallRecord, arguments: int) -> bool:
    """Takes donated arrays from their owners. False, and nothing has happened, where that may not be."""
    count = 0
    for index in range(record.argument_count):
        argument = Argument(record.arguments + index * _ARGUMENT_SIZE)
        array = donated(python, argument, arguments)
        if array != 0:
            if not may_be_given(python, record, argument, array, arguments):
                return False
            count += 1
    if count == 0:
        return True
    for index in range(record.argument_count):
        argument = Argument(record.arguments + index * _ARGUMENT_SIZE)
        array = donated(python, argument, arguments)
        if array != 0:
            give_up(python, array)
    return True


def donated(python: Python, argument: Argument, arguments: int) -> int:
    """The array that is donated as an argument, 0 if none is."""
    if not PASS_ARRAY <= argument.kind <= PASS_CONSUMED:
        return 0
    value = load64(arguments + 8 * argument.position)
    if value & IN_PLACE != 0:
        return 0
    return load64(value + python.donation_array) if type_of(value) == python.donation_type else 0


def may_be_given(python: Python, record: CallRecord, argument: Argument, array: int, arguments: int) -> bool:
    """Whether an array still has its memory, passed once, alone."""
    for index in range(record.argument_count):
        if load64(arguments + 8 * index) == array:
            return False
    owner = load64(array + python.array_owner)
    if owner == 0 or owner == python.none:
        return False
    handle, passed = Entry(handle_of(owner)), Entry(load64(argument.place))
    if handle.address != passed.address or handle.length != passed.length:
        return False
    return is_alone(record, argument.place) and was_elsewhere(record, Entry(handle_of(owner)))


def is_alone(record: CallRecord, own: int) -> bool:
    """Whether no other argument lies in a register's memory. False also where an entry does not tell."""
    handle = Entry(load64(own))
    handle_pool = record.state.handle_pool
    if not handle_pool or handle.address == 0:
        return False
    refs = record.refs
    for index in range(record.ref_count):
        place = refs + 8 * index
        if place != own and not is_apart(handle_pool, handle, Entry(load64(place))):
            return False
    return True


def was_elsewhere(record: CallRecord, handle: Entry) -> bool:
    """Whether nothing that was copied for the call lies in memory that is donated."""
    for index in range(record.argument_count):
        argument = Argument(record.arguments + index * _ARGUMENT_SIZE)
        if PASS_ARRAY <= argument.kind <= PASS_REFERENCE and argument.source != 0:
            start, end = argument.source, argument.source + Entry(load64(argument.place)).length
            if start == SCATTERED or (start < handle.address + handle.length and handle.address < end):
                return False
    return True


def give_up(python: Python, array: int) -> None:
    """As :meth:`jitree.api.array.Array._give_up`. What the array had ends last, which is a call."""
    passed_as = cleared(python, array + python.array_passed_as)
    view = cleared(python, array + python.array_view)
    elements = cleared(python, array + python.array_elements)
    owner = cleared(python, array + python.array_owner)
    keeper = cleared(python, array + python.array_keeper)
    drop(python, passed_as)
    drop(python, view)
    drop(python, elements)
    drop(python, owner)
    drop(python, keeper)


def cleared(python: Python, place: int) -> int:
    """What was there."""
    before = load64(place)
    store64(place, retained(python, python.none))
    return before


@apart
def is_enough(record: CallRecord) -> bool:
    """Whether the memory is as large as the call is known to need. False also where that is not known."""
    sizes = record.sizes
    if not sizes:
        return True
    key = stack(8 * sizes.width)
    if not write_key(record, key):
        return False
    row = sizes.rows
    for _ in range(sizes.count):
        if are_equal(row, key, sizes.width):
            return Entry(load64(record.workspace)).length >= load64(row + 8 * sizes.width)
        row += 8 * (sizes.width + 1)
    return False


def write_key(record: CallRecord, key: int) -> bool:
    """Writes what the size may depend on: dimensions and numbers. False if a register holds no view."""
    for index in range(record.argument_count):
        argument = Argument(record.arguments + index * _ARGUMENT_SIZE)
        place = argument.place
        if not PASS_ARRAY <= argument.kind <= PASS_REFERENCE:
            is_wide = argument.kind == PASS_I64 or argument.kind == PASS_F64
            store64(key, load64(place) if is_wide else load32(place))
            key += 8
        elif place != record.workspace:
            view = Entry(load64(place))
            handle_pool = record.state.handle_pool
            if not view or view.kind != handle_pool.buffer_view or view.rank != argument.rank:
                return False
            for axis in range(argument.rank):
                store64(key + 8 * axis, load64(place_of(view) + handle_pool.extension + 8 * axis))
            key += 8 * argument.rank
    return True


def are_equal(row: int, key: int, width: int) -> bool:
    index = 0
    while index < width and load64(row + 8 * index) == load64(key + 8 * index):
        index += 1
    return index == width


def pass_arguments(python: Python, record: CallRecord, arguments: int) -> bool:
    """Whether all have been put into their registers. If not an exception may be set."""
    is_packed = arguments & PACKED != 0
    if unlikely(is_packed):
        is_passed = pass_all_packed(python, record, arguments ^ PACKED)
    else:
        is_passed = pass_each(python, record, arguments)
    if record.shared:
        if is_passed:
            is_passed = send_joined(python, record)
        else:
            drop_joined(record)
    return is_passed and (is_packed or give_up_donations(python, record, arguments))


def pass_each(python: Python, record: CallRecord, arguments: int) -> bool:
    for index in range(record.argument_count):
        argument = Argument(record.arguments + index * _ARGUMENT_SIZE)
        value = load64(arguments + 8 * argument.position)
        if unlikely(not pass_argument(python, record, argument, value)):
            return False
    if record.workspace != 0 and not (is_alone(record, record.workspace) and is_enough(record)):
        return False
    return are_apart(record)


def pass_argument(python: Python, record: CallRecord, argument: Argument, value: int) -> bool:
    kind = argument.kind
    if PASS_ARRAY <= kind <= PASS_CONSUMED:
        argument.source = 0
        if unlikely(value & IN_PLACE != 0):
            return pass_in_place(python, record, argument, Ndarray(value ^ IN_PLACE))
        return pass_array(python, record, argument, value)
    if kind == PASS_REFERENCE:
        argument.source = 0
        return pass_reference(python, record, argument, value)
    if pass_number(python, argument, value):
        return True
    converted = invoke_with(python, argument.convert, value)
    if converted == 0:
        return False
    is_passed = pass_packed_number(python, argument, converted)
    drop(python, converted)
    return is_passed


@apart
def pass_reference(python: Python, record: CallRecord, argument: Argument, value: int) -> bool:
    """An array of any type, or what Python notes. If not an exception may be set."""
    if argument.is_array != 0 and pass_undeclared(python, record, argument, value):
        return True
    if argument.place == record.workspace and pass_workspace(python, record, argument, value):
        return True
    if argument.convert == 0 or call(python.error_occurred) != 0:
        return False
    store64(argument.noted, 0)
    handle = invoke_with(python, argument.convert, value)
    return handle != 0 and pass_handle(python, argument, handle)


@apart
def pass_all_packed(python: Python, record: CallRecord, arguments: int) -> bool:
    """What Python has packed of all arguments. If not an exception may be set."""
    if record.rows != 0:
        return pass_rows(python, record, arguments)
    for index in range(record.argument_count):
        argument = Argument(record.arguments + index * _ARGUMENT_SIZE)
        if not pass_packed(python, record, argument, load64(arguments + 8 * argument.position)):
            return False
    return True


def pass_rows(python: Python, record: CallRecord, packed: int) -> bool:
    """As :func:`pass_all_packed`, of a tuple that Python looks into: it makes numbers' bits, handles with a
    reference each, which are taken, and where elements lie."""
    if not is_done(python, invoke_with(python, record.wrap, packed)):
        return False
    is_passed = True
    for index in range(record.argument_count):
        argument = Argument(record.arguments + index * _ARGUMENT_SIZE)
        place, row = argument.place, load64(record.rows + 8 * index)
        if not PASS_ARRAY <= argument.kind <= PASS_REFERENCE:
            if argument.kind == PASS_I64 or argument.kind == PASS_F64:
                store64(place, row)
            else:
                store32(place, row)
        elif row & COPIED == 0:
            store64(place, row)
            store64(record.rows + 8 * index, 0)
        elif is_passed:
            is_passed = pass_ndarray(python, record, argument, Ndarray(row ^ COPIED))
    return is_passed


def pass_packed(python: Python, record: CallRecord, argument: Argument, value: int) -> bool:
    if not PASS_ARRAY <= argument.kind <= PASS_REFERENCE:
        return pass_packed_number(python, argument, value)
    if type_of(value) == python.array_type:
        is_known = is_accepted(python, argument, value)
        is_known = is_known or (
            is_present(python, record, argument, value) and is_of_type(python, argument, value)
        )
        return is_known and pass_owner(python, argument, value)
    if is_expected(python, argument, value):
        return pass_ndarray(python, record, argument, Ndarray(value))
    handle = invoke_with(python, record.wrap, value)
    return handle != 0 and pass_handle(python, argument, handle)


# -- arrays --------------------------------------------------------------------------------------------


def pass_array(python: Python, record: CallRecord, argument: Argument, value: int) -> bool:
    cls = type_of(value)
    if unlikely(cls != python.array_type):
        return argument.dtype != 0 and pass_host_array(python, record, argument, value, cls)
    if unlikely(argument.kind != PASS_ARRAY):
        return pass_kept(python, record, argument, value)
    return pass_owned(python, record, argument, value)


@apart
def pass_host_array(python: Python, record: CallRecord, argument: Argument, value: int, cls: int) -> bool:
    """An array of another library, or what becomes one."""
    if is_expected(python, argument, value):
        return pass_ndarray(python, record, argument, Ndarray(value))
    if cls == python.ndarray_type and is_alike(argument, Ndarray(value)):
        return pass_ndarray(python, record, argument, Ndarray(value))
    exchange = exchange_of(python, cls)
    if exchange and has_timeline(record):
        return pass_lent(python, record, argument, exchange, value)
    if exchange:
        return pass_foreign(python, record, argument, exchange, value)
    if cls == python.donation_type:
        return pass_donated(python, record, argument, load64(value + python.donation_array))
    return pass_as_array(python, record, argument, value)


def is_alike(argument: Argument, value: Ndarray) -> bool:
    """Whether its elements are integers of the declared size, of another kind."""
    return value.dtype == argument.unsigned_dtype or value.dtype == argument.boolean_dtype


def is_expected(python: Python, argument: Argument, value: int) -> bool:
    """Whether it is a numpy array of the declared type."""
    return type_of(value) == python.ndarray_type and Ndarray(value).dtype == argument.dtype
