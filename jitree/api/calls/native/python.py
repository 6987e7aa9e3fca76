"""Python's C interface, for machine code of calls.

Machine code. ``python`` is the Python record. Functions
return new references; 0 means that an exception is set.
"""

from __future__ import annotations

from jitree.api.calls.native.layout import TYPE_AT, CallRecord, Python
from jitree.codegen.primitives import call, load64, stack, store64, unlikely
from jitree.modules.hal.native.entries import State


def type_of(value: int) -> int:
    return load64(value + TYPE_AT)


def is_instance(python: Python, value: int, cls: int) -> bool:
    """Whether it is an object of a class or a derived one."""
    return type_of(value) == cls or call(python.is_subtype, type_of(value), cls) & 1 != 0


def retained(python: Python, value: int) -> int:
    call(python.retain, value)
    return value


def drop(python: Python, value: int) -> None:
    call(python.drop, value)


def invoke(python: Python, function: int) -> int:
    """Calls a Python function without arguments."""
    return call(python.vectorcall, function, 0, 0, 0)


def invoke_with(python: Python, function: int, value: int) -> int:
    arguments = stack(8)
    store64(arguments, value)
    return call(python.vectorcall, function, arguments, 1, 0)


def call_with_self(python: Python, function: int, self: int, arguments: int, count: int, names: int) -> int:
    """Calls a Python function as the method of an object. ``count`` is without arguments that have names."""
    named = 0 if names == 0 else call(python.length, names)
    values = stack(8 * (1 + count + named))
    store64(values, self)
    for index in range(count + named):
        store64(values + 8 * (1 + index), load64(arguments + 8 * index))
    return call(python.vectorcall, function, values, 1 + count, names)


def invoke_with_number(python: Python, function: int, number: int) -> int:
    value = call(python.new_long, number)
    if value == 0:
        return 0
    result = invoke_with(python, function, value)
    drop(python, value)
    return result


def invoke_with_numbers(python: Python, function: int, first: int, second: int) -> int:
    value = call(python.new_long, first)
    if value == 0:
        return 0
    result = invoke_with_object_and_number(python, function, value, second)
    drop(python, value)
    return result


def invoke_with_object_and_number(python: Python, function: int, value: int, number: int) -> int:
    last = call(python.new_long, number)
    if last == 0:
        return 0
    arguments = stack(16)
    store64(arguments, value)
    store64(arguments + 8, last)
    result = call(python.vectorcall, function, arguments, 2, 0)
    drop(python, last)
    return result


def is_done(python: Python, result: int) -> bool:
    """Whether a Python function succeeded whose result does not matter."""
    if result == 0:
        return False
    drop(python, result)
    return True


def is_true(python: Python, result: int) -> bool:
    """Whether a Python function gave True. An exception that it raised is still set."""
    if result == 0:
        return False
    drop(python, result)
    return result == python.true


def is_false(python: Python, result: int) -> bool:
    """As :func:`is_true`, whether it gave False."""
    if result == 0:
        return False
    drop(python, result)
    return result == python.false


def comes_again(python: Python) -> bool:
    """Whether the set exception would come again, by its class. What ends more than a call (Ctrl-C, the end
    of the process) would not, nor would ``session.cancel()``, which ends a call that has begun, and none that
    begins after it."""
    if call(python.error_matches, python.exception_type) & 1 == 0:
        return False
    return call(python.error_matches, python.cancelled_type) & 1 == 0


def forgets_error(python: Python) -> bool:
    """Drops an exception, if one is set that comes again. What a signal's handler has raised comes once."""
    if call(python.error_occurred) == 0:
        return True
    if not comes_again(python):
        return False
    error = stack(24)
    call(python.fetch_error, error, error + 8, error + 16)
    call(python.normalize_error, error, error + 8, error + 16)
    if load64(error + 16) != 0:
        call(python.set_traceback, load64(error + 8), load64(error + 16))
    is_forgotten = is_done(python, invoke_with(python, python.pass_interruption, load64(error + 8)))
    for index in range(3):
        if load64(error + 8 * index) != 0:
            drop(python, load64(error + 8 * index))
    return is_forgotten


def drained(python: Python, record: CallRecord, state: State) -> bool:
    """Frees the objects of Python's that machine code has released. False with an exception set."""
    if unlikely(bool(state.released)):
        return is_done(python, invoke(python, record.drain))
    return True
