"""Python's lists as lists of the VM, with numbers of a declared type or with anything. Machine code.

Python gives an entry with memory for the slots, which later calls use again (``kept_lists``); it makes the
object of the list when it first asks for that.
"""

from __future__ import annotations

from jitree.api.calls.native.kept_lists import LEAST_SLOTS, drop_entry, kept_list
from jitree.api.calls.native.layout import FLOAT_AT
from jitree.api.calls.native.python import drop, invoke_with, invoke_with_number, retained, type_of
from jitree.api.calls.native.records import Argument, CallRecord, Python
from jitree.api.calls.native.sequences import item_of, length_of, store_number
from jitree.api.calls.native.undeclared import pass_undeclared
from jitree.codegen.primitives import call, greater, load64, stack, store64
from jitree.codegen.record import place_of
from jitree.modules.hal.native.records import Entry
from jitree.regs.counting import retain
from jitree.regs.layout import (
    KIND_LIST,
    LIST_F32,
    LIST_F64,
    LIST_I8,
    LIST_I64,
    LIST_REF,
    LIST_SLOT,
    LIST_VARIANT,
    OWNER_PYTHON,
)

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
    made = kept_list(argument, count)
    if not made:
        made = new_list(python, record, argument, count)
        if not made:
            return False
    if not store_all(python, record, argument, value, count, made.address):
        drop_entry(record, made)
        return False
    store64(argument.place, place_of(made))
    return True


def new_list(python: Python, record: CallRecord, argument: Argument, count: int) -> Entry:
    """A reference to a list with so many empty slots. 0 with an exception set."""
    slots = greater(count, LEAST_SLOTS)
    held = invoke_with_number(python, argument.slots, slots)
    if held == 0:
        return Entry(0)
    overflow = stack(4)
    made = Entry(call(python.long_value, held, overflow))
    drop(python, held)
    made.kind = KIND_LIST
    made.count = 1
    made.length = count
    made.access = 0
    made.element_type = argument.element_type
    made.rank = slots
    made.owner = OWNER_PYTHON
    made.parent = Entry(0)
    made.link = Entry(0)
    if slots == LEAST_SLOTS and argument.kept != 0 and load64(argument.kept) == 0:
        store64(argument.kept, place_of(retain(made)))
    return made


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
    python: Python, record: CallRecord, argument: Argument, value: int, count: int, slots: int
) -> bool:
    """Whether all items became elements. Python may run between them, and change the list."""
    for index in range(count):
        if length_of(python, value) != count:
            return False
        item = retained(python, item_of(python, value, index))
        slot = slots + _SLOT * index
        is_stored = (
            store_any(python, record, argument, item, slot)
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


def store_any(python: Python, record: CallRecord, argument: Argument, item: int, slot: int) -> bool:
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
    return item == python.none or store_reference(python, record, argument.element, item, slot)


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
