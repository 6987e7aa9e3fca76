"""Arrays that a call gives to the program for good. Machine code.

They are taken from their owners when all arguments have been passed, and none can be refused any more.
"""

from __future__ import annotations

from jitree.api.calls.native.copies import SCATTERED
from jitree.api.calls.native.device_arrays import (
    is_accepted,
    is_of_type,
    is_present,
    pass_as_declared,
    pass_handle,
    pass_owner,
)
from jitree.api.calls.native.in_place import IN_PLACE
from jitree.api.calls.native.layout import (
    ARGUMENT,
    PASS_ARRAY,
    PASS_CONSUMED,
    PASS_REFERENCE,
)
from jitree.api.calls.native.overlaps import is_apart
from jitree.api.calls.native.owners import handle_of
from jitree.api.calls.native.python import drop, invoke_with, retained, type_of
from jitree.api.calls.native.records import Argument, CallRecord, Python
from jitree.codegen.primitives import load64, store64
from jitree.codegen.record import place_of
from jitree.modules.hal.native.records import Entry

_ARGUMENT_SIZE = ARGUMENT.size


def pass_donated(python: Python, record: CallRecord, argument: Argument, array: int) -> bool:
    """The array of a donation: its handle in the context."""
    if type_of(array) != python.array_type:
        return False
    if is_present(python, record, argument, array):
        if is_of_type(python, argument, array):
            return pass_owner(python, argument, array)
        return pass_as_declared(python, record, argument, array)
    accepted = invoke_with(python, argument.accept, array)
    if accepted == 0:
        return False
    is_handle = accepted != python.true and accepted != python.false
    if is_handle:  # not the array's own: the call, which Python makes, drops it with the other registers
        pass_handle(python, argument, accepted)
    drop(python, accepted)
    return not is_handle and is_accepted(python, argument, array) and pass_owner(python, argument, array)


def give_up_donations(python: Python, record: CallRecord, arguments: int) -> bool:
    """Takes donated arrays from their owners. False, and nothing has happened, where that may not be."""
    argument = Argument(record.arguments)
    count = 0
    for _ in range(record.argument_count):
        array = donated(python, argument, arguments)
        if array != 0:
            if not may_be_given(python, record, argument, array, arguments):
                return False
            count += 1
        argument = Argument(place_of(argument) + _ARGUMENT_SIZE)
    if count == 0:
        return True
    argument = Argument(record.arguments)
    for _ in range(record.argument_count):
        array = donated(python, argument, arguments)
        if array != 0:
            give_up(python, array)
        argument = Argument(place_of(argument) + _ARGUMENT_SIZE)
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
    """Whether an array still has the memory that is passed, is not passed a second time, and is alone."""
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
    """Whether nothing else that is passed lies in the memory of what is in a register. False also where an
    entry does not tell."""
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
    argument = Argument(record.arguments)
    for _ in range(record.argument_count):
        if PASS_ARRAY <= argument.kind <= PASS_REFERENCE and argument.source != 0:
            start, end = argument.source, argument.source + Entry(load64(argument.place)).length
            if start == SCATTERED or (start < handle.address + handle.length and handle.address < end):
                return False
        argument = Argument(place_of(argument) + _ARGUMENT_SIZE)
    return True


def give_up(python: Python, array: int) -> None:
    """As :meth:`jitree.api.array.Array._give_up`."""
    clear(python, array + python.array_passed_as)
    clear(python, array + python.array_view)
    clear(python, array + python.array_elements)
    clear(python, array + python.array_owner)
    clear(python, array + python.array_keeper)


def clear(python: Python, place: int) -> None:
    before = load64(place)
    store64(place, retained(python, python.none))
    drop(python, before)
