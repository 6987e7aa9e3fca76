"""Whether the memory for intermediate results is as large as a call needs. Machine code.

Python measures that once for all calls with the same shapes and numbers
(:mod:`jitree.api.calls.known_sizes`).
"""

from __future__ import annotations

from jitree.api.calls.native.layout import ARGUMENT, PASS_ARRAY, PASS_F64, PASS_I64, PASS_REFERENCE
from jitree.api.calls.native.records import Argument, CallRecord
from jitree.codegen.primitives import apart, load32, load64, stack, store64
from jitree.codegen.record import place_of
from jitree.modules.hal.native.records import Entry

_ARGUMENT_SIZE = ARGUMENT.size


@apart
def is_enough(record: CallRecord) -> bool:
    """Whether the memory is as large as the call is known to need. False also where that is not known."""
    sizes = record.sizes
    if not sizes:
        return True
    key = stack(8 * sizes.width)
    if not write_key(record, key):
        return False
    row = sizes.rows
    for _ in range(sizes.count):
        if are_equal(row, key, sizes.width):
            return Entry(load64(record.workspace)).length >= load64(row + 8 * sizes.width)
        row += 8 * (sizes.width + 1)
    return False


def write_key(record: CallRecord, key: int) -> bool:
    """Writes what the size may depend on: dimensions and numbers. False if a register holds no view."""
    argument = Argument(record.arguments)
    for _ in range(record.argument_count):
        place = argument.place
        if not PASS_ARRAY <= argument.kind <= PASS_REFERENCE:
            is_wide = argument.kind == PASS_I64 or argument.kind == PASS_F64
            store64(key, load64(place) if is_wide else load32(place))
            key += 8
        elif place != record.workspace:
            view = Entry(load64(place))
            handle_pool = record.state.handle_pool
            if not view or view.kind != handle_pool.buffer_view or view.rank != argument.rank:
                return False
            for axis in range(argument.rank):
                store64(key + 8 * axis, load64(place_of(view) + handle_pool.extension + 8 * axis))
            key += 8 * argument.rank
        argument = Argument(place_of(argument) + _ARGUMENT_SIZE)
    return True


def are_equal(row: int, key: int, width: int) -> bool:
    index = 0
    while index < width and load64(row + 8 * index) == load64(key + 8 * index):
        index += 1
    return index == width
