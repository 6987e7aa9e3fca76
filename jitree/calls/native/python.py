"""Python's C interface, for machine code of calls.

Machine code. ``python`` is the PYTHON record. Functions
return new references; 0 means that an exception is set.
"""

from __future__ import annotations

from jitree.calls.native.layout import PYTHON, TYPE_AT
from jitree.codegen.primitives import Fields, call, load, load64, stack, store64

Python = Fields(PYTHON)


def type_of(value: int) -> int:
    return load64(value + TYPE_AT)


def is_instance(python: int, value: int, cls: int) -> bool:
    """Whether it is an object of a class or of one that is derived from it."""
    return type_of(value) == cls or call(load(python, Python.is_subtype), type_of(value), cls) & 1 != 0


def retained(python: int, value: int) -> int:
    call(load(python, Python.retain), value)
    return value


def drop(python: int, value: int) -> None:
    call(load(python, Python.drop), value)


def invoke(python: int, function: int) -> int:
    """Calls a Python function without arguments."""
    return call(load(python, Python.vectorcall), function, 0, 0, 0)


def invoke_with(python: int, function: int, value: int) -> int:
    arguments = stack(8)
    store64(arguments, value)
    return call(load(python, Python.vectorcall), function, arguments, 1, 0)


def invoke_with_number(python: int, function: int, number: int) -> int:
    value = call(load(python, Python.new_long), number)
    if value == 0:
        return 0
    result = invoke_with(python, function, value)
    drop(python, value)
    return result


def is_done(python: int, result: int) -> bool:
    """Whether a Python function succeeded whose result does not matter."""
    if result == 0:
        return False
    drop(python, result)
    return True


def is_true(python: int, result: int) -> bool:
    """Whether a Python function gave True. An exception that it raised is still set."""
    if result == 0:
        return False
    drop(python, result)
    return result == load(python, Python.true)


def forgets_error(python: int) -> bool:
    """Drops an exception, if one is set, unless it ends more than a call: Ctrl-C, the end of the process."""
    if call(load(python, Python.error_occurred)) == 0:
        return True
    if call(load(python, Python.error_matches), load(python, Python.exception_type)) & 1 == 0:
        return False
    call(load(python, Python.clear_error))
    return True
