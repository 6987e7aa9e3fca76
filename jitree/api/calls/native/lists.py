"""Converts lists, and results of calls, between Python and the VM. Machine code.

Elements are numbers of a declared type, or anything. Long lists are made by Python, which has their elements
written here. So are lists of results that are in several places, or in a circle.
"""

from __future__ import annotations

from jitree.api.calls.native.arrays import new_result
from jitree.api.calls.native.device_arrays import pass_undeclared
from jitree.api.calls.native.layout import (
    FLOAT_AT,
    PASS_ARRAY,
    PASS_F32,
    PASS_F64,
    PASS_I32,
    PASS_I64,
    Argument,
    CallRecord,
    Python,
    Result,
)
from jitree.api.calls.native.numbers import item_of, length_of, store_number, widened
from jitree.api.calls.native.python import drained, drop, invoke_with, invoke_with_number, retained, type_of
from jitree.codegen.primitives import call, call_double, load32, load64, stack, store64, unlikely
from jitree.codegen.record import place_of, size_of
from jitree.modules.hal.native.entries import STATE_RELEASED, State, bury, new_list, release
from jitree.regs.access import retain
from jitree.regs.layout import (
    KIND_LIST,
    LIST_EMPTY,
    LIST_F32,
    LIST_F64,
    LIST_I8,
    LIST_I64,
    LIST_REF,
    LIST_SLOT,
    LIST_VARIANT,
    Entry,
)

MOST_NESTED = 16
"""Lists in lists, in arguments and results; deeper ones are Python's."""
_SLOT = LIST_SLOT.size
_BITS = LIST_SLOT["bits"]

_RESULT_SIZE = size_of(Result)


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


def take_results(python: Python, record: CallRecord) -> int:
    """None, the one result, or a tuple. 0 with an exception set; what was not taken is in the registers."""
    count = record.result_count
    result = Result(record.results)
    if count == 0:
        return retained(python, python.none)
    if count == 1:
        return take_result(python, record, result)
    results = call(python.new_tuple, count)
    if results == 0:
        return 0
    for index in range(count):
        value = take_result(python, record, result)
        if value == 0:
            drop(python, results)
            return 0
        call(python.set_item, results, index, value)
        result = Result(place_of(result) + _RESULT_SIZE)
    return results


def take_result(python: Python, record: CallRecord, result: Result) -> int:
    value = take_register(python, record, result)
    convert = result.convert
    if value == 0 or convert == 0:
        return value
    arguments = stack(24)
    store64(arguments, value)
    store64(arguments + 8, record.device)
    store64(arguments + 16, python.none)
    converted = call(python.vectorcall, convert, arguments, 3, 0)
    drop(python, value)
    return converted


def take_register(python: Python, record: CallRecord, result: Result) -> int:
    kind = result.kind
    place = result.place
    if kind == PASS_I32:
        unused = 32 + result.unused
        return call(python.new_long, load32(place) << unused >> unused)
    if kind == PASS_I64:
        return call(python.new_long, load64(place))
    if kind == PASS_F64:
        return call_double(python.new_float, load64(place))
    if kind != PASS_ARRAY:
        return call_double(python.new_float, widened(kind, load32(place)))
    handle = Entry(load64(place))
    store64(place, 0)
    if is_tree(handle, MOST_NESTED):
        return take_list(python, record, result, handle, MOST_NESTED)
    return take_reference(python, record, result, handle)
