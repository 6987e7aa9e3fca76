"""Arguments that callers give by name, and ``out=``, in the order of the declaration. Machine code.

What is given twice, or not at all, or by a name that there is not, is left to
:class:`jitree.api.calls.declaration.ArgumentOrder`.
"""

from __future__ import annotations

from jitree.api.calls.native.in_place import IN_PLACE
from jitree.api.calls.native.layout import ARGUMENT, PASS_ARRAY
from jitree.api.calls.native.python import type_of
from jitree.api.calls.native.records import Argument, CallRecord, Python
from jitree.codegen.primitives import call, load64, store64
from jitree.codegen.record import place_of

_ARGUMENT_SIZE = ARGUMENT.size


def put_in_order(
    python: Python, record: CallRecord, arguments: int, count: int, names: int, values: int
) -> bool:
    """Writes to ``values``, as many words as there are parameters, from ``count`` arguments and those that
    ``names`` belong to. Whether that could be done."""
    for index in range(record.argument_count):
        store64(values + 8 * index, 0)
    named = arguments + 8 * count
    stored = put_all_storage(python, record, named, names, values)
    if stored < 0:
        return False
    position = 0
    for index in range(count):
        while position < record.argument_count and load64(values + 8 * position) != 0:
            position += 1
        if position >= record.argument_count:
            return False
        store64(values + 8 * position, load64(arguments + 8 * index))
    for index in range(call(python.length, names)):
        name = call(python.get_item, names, index)
        argument = argument_named(record, name)
        if argument:
            if not put(values, argument, load64(named + 8 * index)):
                return False
            stored += 1
        elif name != python.out_name:
            return False
    return stored + count == record.argument_count


def put_all_storage(python: Python, record: CallRecord, named: int, names: int, values: int) -> int:
    """The number of arguments that ``out=`` stands for, -1 if that is not as usual."""
    if argument_named(record, python.out_name):
        return 0
    for index in range(call(python.length, names)):
        if call(python.get_item, names, index) == python.out_name:
            return put_storage(python, record, load64(named + 8 * index), values)
    return 0


def put_storage(python: Python, record: CallRecord, out: int, values: int) -> int:
    """Arrays for the results that the program puts into memory of its caller."""
    if type_of(out) != python.tuple_type:
        return 1 if put_stored(python, record, out, 1, values) and not argument_storing(record, 2) else -1
    count = call(python.length, out)
    for index in range(count):
        if not put_stored(python, record, call(python.get_item, out, index), index + 1, values):
            return -1
    return -1 if count == 0 or argument_storing(record, count + 1) else count


def put_stored(python: Python, record: CallRecord, array: int, number: int, values: int) -> bool:
    """A device array, or a numpy array that is written in place, for one of those results."""
    argument = argument_storing(record, number)
    if not argument:
        return False
    if type_of(array) == python.array_type:
        return put(values, argument, array)
    if type_of(array) != python.ndarray_type or record.hold == 0 or argument.kind != PASS_ARRAY:
        return False
    return put(values, argument, array | IN_PLACE)


def put(values: int, argument: Argument, value: int) -> bool:
    place = values + 8 * argument.position
    if load64(place) != 0:
        return False
    store64(place, value)
    return True


def argument_named(record: CallRecord, name: int) -> Argument:
    """0 if there is none. Names are the same object if they are equal, unless the caller made one up."""
    argument = Argument(record.arguments)
    for _ in range(record.argument_count):
        if argument.name == name:
            return argument
        argument = Argument(place_of(argument) + _ARGUMENT_SIZE)
    return Argument(0)


def argument_storing(record: CallRecord, number: int) -> Argument:
    argument = Argument(record.arguments)
    for _ in range(record.argument_count):
        if argument.storage == number:
            return argument
        argument = Argument(place_of(argument) + _ARGUMENT_SIZE)
    return Argument(0)
