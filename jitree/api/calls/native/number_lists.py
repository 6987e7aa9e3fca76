"""Python's lists of numbers as lists of the VM with elements of a declared type, or of any. Machine code.

Python gives an entry with memory for the slots; it makes the object of the list when it first asks for that.
"""

from __future__ import annotations

from jitree.api.calls.native.layout import FLOAT_AT
from jitree.api.calls.native.python import drop, invoke_with_number, type_of
from jitree.api.calls.native.records import Argument, CallRecord, Python
from jitree.api.calls.native.sequences import item_of, length_of, store_number
from jitree.codegen.primitives import call, load64, stack, store64
from jitree.codegen.record import place_of
from jitree.modules.hal.native.entries import STATE_RELEASED, release
from jitree.modules.hal.native.records import Entry
from jitree.regs.layout import KIND_LIST, LIST_F64, LIST_I64, LIST_SLOT, LIST_VARIANT, OWNER_PYTHON

_SLOT = LIST_SLOT.size
_BITS = LIST_SLOT["bits"]


def pass_list(python: Python, record: CallRecord, argument: Argument, value: int) -> bool:
    """Whether it was a list or tuple of numbers that fit. If not an exception may be set."""
    count = length_of(python, value)
    if count <= 0 or (argument.element_type == LIST_VARIANT and not are_numbers(python, value, count)):
        return False
    held = invoke_with_number(python, argument.slots, count)
    if held == 0:
        return False
    overflow = stack(4)
    made = Entry(call(python.long_value, held, overflow))
    drop(python, held)
    made.kind = KIND_LIST
    made.count = 1
    made.element_type = argument.element_type
    made.rank = count
    made.owner = OWNER_PYTHON
    made.parent = Entry(0)
    made.link = Entry(0)
    # Python has run, and may have changed the list.
    if length_of(python, value) != count or not store_all(python, argument, value, count, made.address):
        release(record.state.handle_pool, made, place_of(record.state) + STATE_RELEASED)
        return False
    store64(argument.place, place_of(made))
    return True


def store_all(python: Python, argument: Argument, value: int, count: int, slots: int) -> bool:
    """Whether all items were numbers of the element type, or such as become that without loss."""
    for index in range(count):
        slot, item = slots + _SLOT * index, item_of(python, value, index)
        is_stored = (
            store_any(python, argument, item, slot)
            if argument.element_type == LIST_VARIANT
            else store_typed(python, argument, item, slot)
        )
        if not is_stored:
            return False
    return True


def store_typed(python: Python, argument: Argument, item: int, slot: int) -> bool:
    store64(slot, argument.element_type)
    return store_number(python, argument, item, slot + _BITS)


def store_any(python: Python, argument: Argument, item: int, slot: int) -> bool:
    """Integers become i64, floats f64."""
    if type_of(item) == python.float_type:
        store64(slot, LIST_F64)
        store64(slot + _BITS, load64(item + FLOAT_AT))
        return True
    store64(slot, LIST_I64)
    return store_number(python, argument, item, slot + _BITS)


def are_numbers(python: Python, value: int, count: int) -> bool:
    """Whether all items are integers and floats: lists of arrays are not tried."""
    for index in range(count):
        cls = type_of(item_of(python, value, index))
        if cls != python.int_type and cls != python.float_type:
            return False
    return True
