"""Results of calls: from the registers of the host's frame to Python objects. Machine code."""

from __future__ import annotations

from jitree.calls.native.arrays import Call, new_result
from jitree.calls.native.layout import PASS_F32, PASS_F64, PASS_I32, PASS_I64, RESULT
from jitree.calls.native.python import Python, drop, invoke_with_number, retained
from jitree.codegen.primitives import (
    Fields,
    call,
    call_double,
    load,
    load32,
    load64,
    stack,
    store64,
    widen,
)
from jitree.modules.hal.native.entries import Entry

Result = Fields(RESULT)
_RESULT_SIZE = RESULT.size


def take_results(python: int, record: int) -> int:
    """None, the one result, or a tuple. 0 with an exception set; what was not taken is in the registers."""
    count = load(record, Call.result_count)
    result = load(record, Call.results)
    if count == 0:
        return retained(python, load(python, Python.none))
    if count == 1:
        return take_result(python, record, result)
    results = call(load(python, Python.new_tuple), count)
    if results == 0:
        return 0
    for index in range(count):
        value = take_result(python, record, result)
        if value == 0:
            drop(python, results)
            return 0
        call(load(python, Python.set_item), results, index, value)
        result += _RESULT_SIZE
    return results


def take_result(python: int, record: int, result: int) -> int:
    value = take_register(python, record, result)
    convert = load(result, Result.convert)
    if value == 0 or convert == 0:
        return value
    arguments = stack(24)
    store64(arguments, value)
    store64(arguments + 8, load(record, Call.device))
    store64(arguments + 16, load(python, Python.none))
    converted = call(load(python, Python.vectorcall), convert, arguments, 3, 0)
    drop(python, value)
    return converted


def take_register(python: int, record: int, result: int) -> int:
    kind = load(result, Result.kind)
    place = load(result, Result.place)
    if kind == PASS_I32:
        return call(load(python, Python.new_long), load32(place))
    if kind == PASS_I64:
        return call(load(python, Python.new_long), load64(place))
    if kind == PASS_F32:
        return call_double(load(python, Python.new_float), widen(load32(place)))
    if kind == PASS_F64:
        return call_double(load(python, Python.new_float), load64(place))
    handle = load64(place)
    store64(place, 0)
    if handle != 0 and load(handle, Entry.kind) == load(result, Result.view_kind):
        return new_result(python, record, handle)
    return invoke_with_number(python, load(record, Call.take_reference), handle)
