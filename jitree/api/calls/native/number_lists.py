"""Python's lists of numbers as lists of the VM with elements of a declared type. Machine code.

Python gives an entry with memory for the slots; it makes the object of the list when it first asks for that.
"""

from __future__ import annotations

from jitree.api.calls.native.python import drop, invoke_with_number
from jitree.api.calls.native.records import Argument, CallRecord, Python
from jitree.api.calls.native.sequences import item_of, length_of, store_number
from jitree.codegen.primitives import call, stack, store64
from jitree.codegen.record import place_of
from jitree.modules.hal.native.entries import STATE_RELEASED, release
from jitree.modules.hal.native.records import Entry
from jitree.regs.layout import KIND_LIST, LIST_SLOT, OWNER_PYTHON

_SLOT = LIST_SLOT.size
_BITS = LIST_SLOT["bits"]


def pass_list(python: Python, record: CallRecord, argument: Argument, value: int) -> bool:
    """Whether it was a list or tuple of numbers that fit. If not an exception may be set."""
    count = length_of(python, value)
    if count <= 0:
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
        slot = slots + _SLOT * index
        store64(slot, argument.element_type)
        if not store_number(python, argument, item_of(python, value, index), slot + _BITS):
            return False
    return True
