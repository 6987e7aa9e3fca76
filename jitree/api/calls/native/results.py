"""Makes Python's values of results. Machine code.

Arrays and numbers are made here. Of any other reference, such as a list, Python makes what is returned.
"""

from __future__ import annotations

from jitree.api.calls.native.arrays import new_result
from jitree.api.calls.native.layout import (
    PASS_ARRAY,
    PASS_F64,
    PASS_I32,
    PASS_I64,
    CallRecord,
    Python,
    Result,
)
from jitree.api.calls.native.numbers import widened
from jitree.api.calls.native.python import drop, invoke_with_object_and_number, retained
from jitree.codegen.primitives import apart, call, call_double, load32, load64, stack, store64
from jitree.codegen.record import place_of, size_of
from jitree.modules.hal.native.entries import STATE_RELEASED, release
from jitree.regs.layout import Entry

_RESULT_SIZE = size_of(Result)


def take_reference(python: Python, record: CallRecord, result: Result, handle: Entry) -> int:
    """An array, or what Python makes of anything else, as of lists; takes over a reference. 0 with an
    exception set."""
    if handle and handle.kind == result.view_kind:
        return new_result(python, record, handle)
    return take_other(python, record, handle)


@apart
def take_other(python: Python, record: CallRecord, handle: Entry) -> int:
    """What Python makes of a reference, which is taken over. 0 with an exception set."""
    made = invoke_with_object_and_number(python, record.take_reference, record.fence, place_of(handle))
    release(record.state.handle_pool, handle, place_of(record.state) + STATE_RELEASED)
    return made


def take_results(python: Python, record: CallRecord) -> int:
    """None, the one result, or a tuple. 0 with an exception set; what was not taken is in the registers."""
    count = record.result_count
    if count == 0:
        return retained(python, python.none)
    if count == 1:
        return take_result(python, record, Result(record.results))
    results = call(python.new_tuple, count)
    if results == 0:
        return 0
    for index in range(count):
        value = take_result(python, record, Result(record.results + index * _RESULT_SIZE))
        if value == 0:
            drop(python, results)
            return 0
        call(python.set_item, results, index, value)
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
    return take_reference(python, record, result, handle)
