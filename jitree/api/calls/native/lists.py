"""Python's lists as lists of the VM, with numbers of a declared type or with anything. Machine code.

Long lists are made by Python, which has their elements written here.
"""

from __future__ import annotations

from jitree.api.calls.native.layout import FLOAT_AT
from jitree.api.calls.native.python import drop, invoke_with, invoke_with_number, retained, type_of
from jitree.api.calls.native.records import Argument, CallRecord, Python
from jitree.api.calls.native.sequences import item_of, length_of, store_number
from jitree.api.calls.native.undeclared import pass_undeclared
from jitree.codegen.primitives import call, load64, stack, store64, unlikely
from jitree.codegen.record import place_of
from jitree.modules.hal.native.entries import STATE_RELEASED, bury, new_list, release
from jitree.modules.hal.native.records import Entry, State
from jitree.regs.layout import LIST_F32, LIST_F64, LIST_I8, LIST_I64, LIST_REF, LIST_SLOT, LIST_VARIANT

MOST_NESTED = 16
"""Lists in lists, in arguments and results; deeper ones are Python's."""
_SLOT = LIST_SLOT.size
_BITS = LIST_SLOT["bits"]


def pass_list(python: Python, record: CallRecord, argument: Argument, value: int) -> bool:
    """Whether it was a list or tuple of what fits. If not an exception may be set."""
    count = length_of(python, value)
    if count < 0:
        return False
    is_any = argument.element_type == LIST_VARIANT and may_refer(record, argument)
    if argument.element_type == LIST_VARIANT and not is_any and not are_numbers(python, value, count):
        return False
    made = list_of(python, record, argument, count)
    if not made:
        return False
    if not store_all(python, record, argument, value, count, made.address, MOST_NESTED):
        drop_list(record.state, made)
        return False
    store64(argument.place, place_of(made))
    return True


def drop_list(state: State, made: Entry) -> None:
    """Drops a list with what it has, copies of arrays among it."""
    released = place_of(state) + STATE_RELEASED
    release(state.handle_pool, made, released)
    if state.handle_pool:
        bury(state.handle_pool, released)


def list_of(python: Python, record: CallRecord, argument: Argument, count: int) -> Entry:
    """A reference to a list of so many elements, which are to be written. 0 if there is none; there may be an
    exception then."""
    state = record.state
    made = new_list(state, argument.element_type, count) if state.handle_pool else 0
    if unlikely(made == 0):
        given = invoke_with_number(python, argument.new_list, count)
        if given == 0:
            return Entry(0)
        made = call(python.long_value, given, stack(4))
        drop(python, given)
        if made != 0:
            return Entry(made)
        made = new_list(state, argument.element_type, count) if state.handle_pool else 0
    if made != 0:
        Entry(made).length = count
    return Entry(made)


def may_refer(record: CallRecord, argument: Argument) -> bool:
    """Whether machine code passes what is no number: Python notes what a call uses whose caller goes on."""
    return bool(argument.element) and record.signal == 0 and record.goes_on == 0


def are_numbers(python: Python, value: int, count: int) -> bool:
    """Whether all items are numbers: others are not tried."""
    for index in range(count):
        cls = type_of(item_of(python, value, index))
        if cls != python.int_type and cls != python.float_type and cls != type_of(python.true):
            return False
    return True


def store_all(
    python: Python, record: CallRecord, argument: Argument, value: int, count: int, slots: int, nested: int
) -> bool:
    """Whether all items became elements; lists among them may be so deep. Python may run between them, and
    change the list."""
    for index in range(count):
        if length_of(python, value) != count:
            return False
        item = retained(python, item_of(python, value, index))
        slot = slots + _SLOT * index
        is_stored = (
            store_any(python, record, argument, item, slot, nested)
            if argument.element_type == LIST_VARIANT
            else store_typed(python, argument, item, slot)
        )
        drop(python, item)
        if not is_stored:
            return False
    return True


def store_typed(python: Python, argument: Argument, item: int, slot: int) -> bool:
    """A number of the element type, or one that becomes such without loss."""
    code = argument.element_type
    store64(slot, code)
    if not store_number(python, argument, item, slot + _BITS):
        return False
    if type_of(item) == argument.scalar_type and code != LIST_F32 and code != LIST_F64:
        sign = 1 << ((8 << (LIST_I8 - code)) - 1)
        store64(slot + _BITS, (load64(slot + _BITS) ^ sign) - sign)
    return True


def store_any(
    python: Python, record: CallRecord, argument: Argument, item: int, slot: int, nested: int
) -> bool:
    """Integers become i64, floats f64, what is no number a reference."""
    cls = type_of(item)
    if cls == python.float_type:
        return store_float(item, slot)
    if cls == python.int_type:
        store64(slot, LIST_I64)
        return store_number(python, argument, item, slot + _BITS)
    if cls == type_of(python.true):
        store64(slot, LIST_I64)
        store64(slot + _BITS, item == python.true)
        return True
    if not may_refer(record, argument):
        return False
    store64(slot, LIST_REF)
    count = length_of(python, item)
    if count >= 0 and nested != 0:
        return store_list(python, record, argument, item, count, slot, nested - 1)
    return item == python.none or store_reference(python, record, argument.element, item, slot)


def store_list(
    python: Python, record: CallRecord, argument: Argument, value: int, count: int, slot: int, nested: int
) -> bool:
    """A list in a list, whose elements go with it where they are refused."""
    made = list_of(python, record, argument, count)
    store64(slot + _BITS, place_of(made))
    return bool(made) and store_all(python, record, argument, value, count, made.address, nested)


def store_float(value: int, slot: int) -> bool:
    store64(slot, LIST_F64)
    store64(slot + _BITS, load64(value + FLOAT_AT))
    return True


def store_reference(python: Python, record: CallRecord, element: Argument, item: int, slot: int) -> bool:
    """An array, or what Python makes of an item: an array, a float or a handle."""
    element.place = slot + _BITS
    if pass_undeclared(python, record, element, item):
        return True
    if call(python.error_occurred) != 0:
        return False
    converted = invoke_with(python, element.convert, item)
    if converted == 0:
        return False
    is_stored = store_converted(python, record, element, converted, slot)
    drop(python, converted)
    return is_stored


def store_converted(python: Python, record: CallRecord, element: Argument, converted: int, slot: int) -> bool:
    cls = type_of(converted)
    if cls == python.float_type:
        return store_float(converted, slot)
    if cls == python.ndarray_type:
        return pass_undeclared(python, record, element, converted)
    overflow = stack(4)
    store64(slot + _BITS, call(python.long_value, converted, overflow))
    return True
