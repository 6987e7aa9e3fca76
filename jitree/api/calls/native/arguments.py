"""Arguments of calls: from Python objects into the registers of the host's frame. Machine code.

What is not in its usual form is left to the slow path, which converts it or says what is wrong.
"""

from __future__ import annotations

from jitree.api.calls.native.copies import pass_ndarray
from jitree.api.calls.native.device_arrays import pass_handle, pass_kept, pass_owned
from jitree.api.calls.native.donations import give_up_donations, is_alone, pass_donated
from jitree.api.calls.native.exchange import exchange_of, pass_foreign
from jitree.api.calls.native.in_place import IN_PLACE, pass_in_place
from jitree.api.calls.native.layout import (
    ARGUMENT,
    PASS_ARRAY,
    PASS_BITS,
    PASS_CONSUMED,
    PASS_REFERENCE,
)
from jitree.api.calls.native.lent_arrays import pass_lent
from jitree.api.calls.native.lists import pass_list
from jitree.api.calls.native.numbers import pass_bits, pass_number
from jitree.api.calls.native.overlaps import are_apart
from jitree.api.calls.native.python import drop, invoke_with, type_of
from jitree.api.calls.native.records import Argument, CallRecord, Ndarray, Python
from jitree.api.calls.native.sequences import pass_numbers
from jitree.api.calls.native.undeclared import pass_undeclared
from jitree.api.calls.native.uploads import drop_joined, send_joined
from jitree.api.calls.native.views import has_stream, refuse
from jitree.api.calls.native.workspaces import is_enough
from jitree.codegen.primitives import apart, call, load8, load64, store64, unlikely
from jitree.codegen.record import place_of
from jitree.modules.hal.native.records import Entry
from jitree.types import BY_NAME

_ARGUMENT_SIZE = ARGUMENT.size
_BOOLEAN = BY_NAME["i1"].code
_NO_BOOLEANS = 0xFEFEFEFEFEFEFEFE - (1 << 64)
"""The bits that bytes which are 0 or 1 do not have."""


def pass_arguments(python: Python, record: CallRecord, arguments: int) -> bool:
    """Whether all have been put into their registers. If not an exception may be set."""
    is_passed = pass_each(python, record, arguments)
    if record.shared:
        if is_passed:
            is_passed = send_joined(python, record)
        else:
            drop_joined(record)
    return is_passed and give_up_donations(python, record, arguments)


def pass_each(python: Python, record: CallRecord, arguments: int) -> bool:
    argument = Argument(record.arguments)
    for _ in range(record.argument_count):
        value = load64(arguments + 8 * argument.position)
        if unlikely(not pass_argument(python, record, argument, value)):
            return False
        argument = Argument(place_of(argument) + _ARGUMENT_SIZE)
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
        store64(argument.noted, 0)
        if argument.is_array != 0 and pass_undeclared(python, record, argument, value):
            return True
        if argument.new_list != 0 and pass_list(python, record, argument, value):
            return True
        if call(python.error_occurred) != 0:
            return False
    elif pass_number(python, argument, value):
        return True
    converted = invoke_with(python, argument.convert, value)
    if converted == 0:
        return False
    is_passed = pass_converted(python, argument, converted)
    drop(python, converted)
    return is_passed


def pass_converted(python: Python, argument: Argument, converted: int) -> bool:
    if argument.kind == PASS_REFERENCE:
        return pass_handle(python, argument, converted)
    if argument.kind >= PASS_BITS:
        return pass_bits(python, argument, converted)
    return pass_number(python, argument, converted)


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
        return pass_alike(python, record, argument, Ndarray(value))
    exchange = exchange_of(python, cls)
    if exchange and has_stream(record):
        return pass_lent(python, record, argument, exchange, value)
    if exchange:
        return pass_foreign(python, record, argument, exchange, value)
    if cls == python.donation_type:
        return pass_donated(python, record, argument, load64(value + python.donation_array))
    if pass_numbers(python, record, argument, value):
        return True
    if call(python.error_occurred) != 0:  # Python would lose it in the next call
        return False
    converted = Ndarray(invoke_with(python, argument.convert, value))
    if not converted:
        return False
    is_passed = is_expected(python, argument, place_of(converted)) and pass_ndarray(
        python, record, argument, converted
    )
    drop(python, place_of(converted))
    return is_passed


def is_alike(argument: Argument, value: Ndarray) -> bool:
    """Whether its elements are integers of the declared size, of another kind."""
    return value.dtype == argument.unsigned_dtype or value.dtype == argument.boolean_dtype


def pass_alike(python: Python, record: CallRecord, argument: Argument, value: Ndarray) -> bool:
    if argument.element_type == _BOOLEAN:
        return pass_bytes(python, record, argument, value)
    return pass_ndarray(python, record, argument, value)


def pass_bytes(python: Python, record: CallRecord, argument: Argument, value: Ndarray) -> bool:
    """Bytes that are 0 or 1, where the host sees them, as booleans."""
    if has_stream(record) or not pass_ndarray(python, record, argument, value):
        return False
    view = Entry(load64(argument.place))
    if are_booleans(view.address, view.length):
        return True
    store64(argument.place, 0)
    return refuse(record, view)


def are_booleans(place: int, length: int) -> bool:
    found = 0
    words = length & -8
    for index in range(0, words, 8):
        found |= load64(place + index) & _NO_BOOLEANS
    for index in range(words, length):
        found |= load8(place + index) & _NO_BOOLEANS
    return found == 0


def is_expected(python: Python, argument: Argument, value: int) -> bool:
    """Whether it is a numpy array of the declared type."""
    return type_of(value) == python.ndarray_type and Ndarray(value).dtype == argument.dtype
