"""Lists of the VM as Python's lists, but for lists that are in several places. Machine code."""

from __future__ import annotations

from jitree.api.calls.native.arrays import new_result
from jitree.api.calls.native.layout import PASS_F32
from jitree.api.calls.native.numbers import widened
from jitree.api.calls.native.python import drained, drop, invoke_with_number, retained
from jitree.api.calls.native.records import CallRecord, Python, Result
from jitree.codegen.primitives import call, call_double, load64
from jitree.codegen.record import place_of
from jitree.modules.hal.native.entries import STATE_RELEASED, release
from jitree.modules.hal.native.records import Entry
from jitree.regs.access import retain
from jitree.regs.layout import KIND_LIST, LIST_EMPTY, LIST_F32, LIST_F64, LIST_REF, LIST_SLOT

_SLOT = LIST_SLOT.size
_BITS = LIST_SLOT["bits"]


def is_tree(handle: Entry, nested: int) -> bool:
    """Whether it is a list, and no list in it is in several places, or in a circle, or too deep."""
    if not handle or handle.kind != KIND_LIST:
        return False
    for index in range(handle.length):
        slot = handle.address + _SLOT * index
        item = Entry(load64(slot + _BITS) if load64(slot) == LIST_REF else 0)
        if item and item.kind == KIND_LIST and not is_branch(item, nested):
            return False
    return True


def is_branch(item: Entry, nested: int) -> bool:
    """Whether a list is a tree in one place alone."""
    return item.count == 1 and nested != 0 and is_tree(item, nested - 1)


def take_list(python: Python, record: CallRecord, result: Result, handle: Entry, nested: int) -> int:
    """A new list; takes over a reference to the handle. 0 with an exception set."""
    count = handle.length
    values = call(python.new_list, count)
    for index in range(count):
        if values == 0:
            break
        # Python may have run: a finalizer can change a list that the program still has.
        is_there = index < handle.length
        slot = handle.address + _SLOT * index
        value = item_at(python, record, result, slot, nested) if is_there else retained(python, python.none)
        if value != 0:
            call(python.set_list_item, values, index, value)
        else:
            drop(python, values)
            values = 0
    release(record.state.handle_pool, handle, place_of(record.state) + STATE_RELEASED)
    # Before Python makes further results; with an exception set it does not run.
    if values != 0 and not drained(python, record, record.state):
        drop(python, values)
        values = 0
    return values


def item_at(python: Python, record: CallRecord, result: Result, slot: int, nested: int) -> int:
    """The element in a slot. 0 with an exception set."""
    tag, bits = load64(slot), load64(slot + _BITS)
    if tag == LIST_EMPTY or (tag == LIST_REF and bits == 0):
        return retained(python, python.none)
    if tag == LIST_REF:
        item = retain(Entry(bits))
        if item.kind == KIND_LIST and nested != 0:
            return take_list(python, record, result, item, nested - 1)
        return take_reference(python, record, result, item)
    if tag == LIST_F64:
        return call_double(python.new_float, bits)
    if tag == LIST_F32:
        return call_double(python.new_float, widened(PASS_F32, bits))
    return call(python.new_long, bits)


def take_reference(python: Python, record: CallRecord, result: Result, handle: Entry) -> int:
    """An array, or what Python makes of anything else; takes over a reference. 0 with an exception set."""
    if handle and handle.kind == result.view_kind:
        return new_result(python, record, handle)
    made = invoke_with_number(python, record.take_reference, place_of(handle))
    release(record.state.handle_pool, handle, place_of(record.state) + STATE_RELEASED)
    return made
