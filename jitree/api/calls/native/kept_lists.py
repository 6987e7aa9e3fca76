"""Lists that machine code has made for an argument, and uses again in the next call. Machine code.

To make one takes Python, and several microseconds. ``argument.kept`` is the address of a reference to the
last one. It is used again where nothing else refers to it, and Python has made no object of it.
"""

from __future__ import annotations

from jitree.api.calls.native.layout import ARGUMENT
from jitree.api.calls.native.records import Argument, CallRecord
from jitree.codegen.primitives import load64, store64
from jitree.codegen.record import place_of
from jitree.modules.hal.native.entries import STATE_RELEASED, release
from jitree.modules.hal.native.records import Entry
from jitree.regs.layout import LIST_KNOWN, LIST_REF, LIST_SLOT

LEAST_SLOTS = 32
"""Of every list that is made; longer ones are not kept."""
_ARGUMENT_SIZE = ARGUMENT.size
_SLOT = LIST_SLOT.size
_BITS = LIST_SLOT["bits"]


def kept_list(argument: Argument, count: int) -> Entry:
    """A reference to the list of an earlier call, with so many empty slots. 0 if there is none. Nothing is
    dropped here: Python runs before all arguments are passed."""
    kept = Entry(load64(argument.kept) if argument.kept != 0 else 0)
    if not kept or not is_idle(kept) or kept.length != 0 or count > kept.rank:
        return Entry(0)
    kept.count = 2
    kept.length = count
    return kept


def is_idle(kept: Entry) -> bool:
    return kept.count == 1 and kept.access != LIST_KNOWN


def clear_lists(record: CallRecord) -> None:
    """A call has ended: its lists let go of their elements; one that is still in use is given up."""
    argument = Argument(record.arguments)
    for _ in range(record.argument_count):
        kept = Entry(load64(argument.kept) if argument.kept != 0 else 0)
        if kept and is_idle(kept):
            clear_slots(record, kept)
        elif kept:
            store64(argument.kept, 0)
            drop_entry(record, kept)
        argument = Argument(place_of(argument) + _ARGUMENT_SIZE)


def clear_slots(record: CallRecord, kept: Entry) -> None:
    for slot in range(kept.address, kept.address + _SLOT * kept.length, _SLOT):
        held = Entry(load64(slot + _BITS) if load64(slot) == LIST_REF else 0)
        store64(slot, 0)
        store64(slot + _BITS, 0)
        drop_entry(record, held)
    kept.length = 0


def drop_entry(record: CallRecord, entry: Entry) -> None:
    release(record.state.handle_pool, entry, place_of(record.state) + STATE_RELEASED)
