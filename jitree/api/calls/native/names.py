"""Puts arguments with names, and ``out=``, in the order of the declaration. Machine code.

What is given twice, or not at all, or by a name that there is not, is left to
:class:`jitree.api.calls.argument_order.ArgumentOrder`. A numpy array as ``out=`` gets an entry in the
handle pool, which keeps it alive until the program and all results have released it. Python makes the
buffer object of an entry when Python code first asks for it.
"""

from __future__ import annotations

from jitree.api.calls.native.layout import NDARRAY_PLAIN, PASS_ARRAY, Argument, CallRecord, Ndarray, Python
from jitree.api.calls.native.python import drop, invoke_with, invoke_with_number, is_true, type_of
from jitree.api.calls.native.views import ALL_ACCESS, LARGEST, describe, fits, view_size, write_shape
from jitree.codegen.primitives import call, load64, stack, store64
from jitree.codegen.record import place_of, size_of
from jitree.hal.enums import MemoryType
from jitree.hal.heap import ALIGNMENT
from jitree.modules.hal.native.buffers import granted_type, granted_usage
from jitree.modules.hal.native.entries import STATE_RELEASED, new_entry, release
from jitree.regs.layout import OWNER_PYTHON, Entry
from jitree.types import ENCODING_DENSE

IN_PLACE = 1
"""A bit in the address of an argument: it is a numpy array that the program writes to."""
_DEVICE_LOCAL = int(MemoryType.DEVICE_LOCAL)

_ARGUMENT_SIZE = size_of(Argument)


def pass_in_place(python: Python, record: CallRecord, argument: Argument, value: Ndarray) -> bool:
    """An array of the declared type. Whether the program can write to it; if not an exception may be set."""
    handle_pool = record.state.handle_pool
    if value.dtype != argument.dtype or value.flags & NDARRAY_PLAIN != NDARRAY_PLAIN:
        return False
    if not handle_pool or not handle_pool.queue or not fits(argument, value.rank, value.dimensions):
        return False
    size = view_size(argument, value.dimensions, LARGEST)
    if size <= 0 or value.data & (ALIGNMENT - 1) != 0:
        return False
    memory = memory_in_place(python, record, value, size)
    if not memory:
        return False
    view = view_in_place(record, argument, memory, value.dimensions)
    if not view:
        is_supplied = is_true(python, invoke_with_number(python, record.supply, 0))
        view = view_in_place(record, argument, memory, value.dimensions) if is_supplied else Entry(0)
        if not view:
            release(handle_pool, memory, place_of(record.state) + STATE_RELEASED)
            return False
    store64(argument.place, place_of(view))
    return True


def memory_in_place(python: Python, record: CallRecord, value: Ndarray, size: int) -> Entry:
    """A buffer over the memory of an array, with one reference; 0 with an exception set."""
    held = invoke_with(python, record.hold, place_of(value))
    if held == 0:
        return Entry(0)
    overflow = stack(4)
    memory = Entry(call(python.long_value, held, overflow))
    drop(python, held)
    queue = record.state.handle_pool.queue
    memory_type, usage = granted_type(queue, _DEVICE_LOCAL), granted_usage(queue, _DEVICE_LOCAL, 0)
    describe(memory, value.data, size, memory_type, usage)
    memory.kind = record.state.handle_pool.buffer
    memory.count = 1
    memory.encoding = ALL_ACCESS
    memory.owner = OWNER_PYTHON
    memory.parent = Entry(0)
    memory.link = Entry(0)
    return memory


def view_in_place(record: CallRecord, argument: Argument, memory: Entry, dimensions: int) -> Entry:
    """A view of the declared type, which takes over the reference to its buffer; 0 without an entry."""
    handle_pool = record.state.handle_pool
    view = new_entry(record.state, handle_pool, handle_pool.buffer_view)
    if not view:
        return Entry(0)
    describe(view, memory.address, memory.length, memory.access, memory.usage)
    view.element_type = argument.element_type
    view.encoding = ENCODING_DENSE
    view.rank = argument.rank
    view.parent = memory
    view.link = Entry(0)  # what it keeps alive is no memory of a pool
    write_shape(handle_pool, argument, view, dimensions)
    return view


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
    for index in range(record.argument_count):
        argument = Argument(record.arguments + index * _ARGUMENT_SIZE)
        if argument.name == name:
            return argument
    return Argument(0)


def argument_storing(record: CallRecord, number: int) -> Argument:
    for index in range(record.argument_count):
        argument = Argument(record.arguments + index * _ARGUMENT_SIZE)
        if argument.storage == number:
            return argument
    return Argument(0)
