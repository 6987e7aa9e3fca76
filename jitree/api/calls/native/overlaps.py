"""Arguments that lie in the memory of a result: Python copies them. Machine code.

As :mod:`jitree.api.calls.overlaps`."""

from __future__ import annotations

from jitree.api.calls.native.layout import ARGUMENT, PASS_ARRAY, PASS_REFERENCE
from jitree.api.calls.native.records import Argument, CallRecord
from jitree.codegen.primitives import load64, unlikely
from jitree.codegen.record import place_of
from jitree.modules.hal.native.records import Entry, HandlePoolRecord

_ARGUMENT_SIZE = ARGUMENT.size


def are_apart(record: CallRecord) -> bool:
    """Whether no argument lies in the storage of a result, those aside that may be there."""
    storage = Argument(record.arguments)
    for _ in range(record.argument_count):
        if unlikely(storage.storage != 0) and not lies_apart(record, storage):
            return False
        storage = Argument(place_of(storage) + _ARGUMENT_SIZE)
    return True


def lies_apart(record: CallRecord, storage: Argument) -> bool:
    handle = Entry(load64(storage.place))
    handle_pool = record.state.handle_pool
    if not handle or not handle_pool or handle.address == 0:
        return False
    argument = Argument(record.arguments)
    for _ in range(record.argument_count):
        if PASS_ARRAY <= argument.kind <= PASS_REFERENCE and argument.position != storage.position:
            other = Entry(load64(argument.place))
            is_shared = (storage.in_place >> argument.position) & 1 != 0 and is_same(handle, other)
            if not is_shared and not is_apart(handle_pool, handle, other):
                return False
        argument = Argument(place_of(argument) + _ARGUMENT_SIZE)
    return True


def is_same(handle: Entry, other: Entry) -> bool:
    return bool(other) and other.address == handle.address and other.length == handle.length


def is_apart(handle_pool: HandlePoolRecord, handle: Entry, other: Entry) -> bool:
    """Whether two handles have no memory in common. False also where an entry does not tell."""
    if not other or other.kind == handle_pool.fence:
        return True
    if other.kind != handle_pool.buffer_view and other.kind != handle_pool.buffer:
        return False
    if other.length == 0:
        return True
    start, end = handle.address, handle.address + handle.length
    return other.address != 0 and not (other.address < end and start < other.address + other.length)
