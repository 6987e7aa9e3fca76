"""Counts references, and accesses lists and ranges of buffers, inlined into machine code.

The loop, compiled functions and native fast paths have these functions in common. One that says no has
changed nothing; the plain tier's handler then does the instruction, or fails.
:class:`~jitree.regs.handles.HandleTable` counts the same way in views of the table; a test compares them.

Branches and calls count STATE.fuel down, which costs next to nothing; when it is used up, machine code looks
at the clock. It gives itself as much more as lasts a moment, whatever a branch costs, until the time that it
has (STATE.time) is over.
"""

from __future__ import annotations

from jitree.codegen.primitives import (
    below,
    call,
    call_int,
    load32,
    load64,
    store8,
    store32,
    store64,
    ticks,
    unlikely,
)
from jitree.codegen.record import place_of, size_of
from jitree.regs.layout import (
    COUNT_UNLIMITED,
    KIND_LIST,
    LIBRARY_FUNCTIONS,
    LIST_EMPTY,
    LIST_I8,
    LIST_I64,
    LIST_REF,
    LIST_VARIANT,
    OWNER_CODE,
    SLOW_DONE,
    SLOW_LOOK,
    SLOW_REFUSED,
    TICK_SHIFT,
    Entry,
    ListSlot,
    MachineState,
    Released,
)
from jitree.vmfb.words import TAG_REF_COPY, TAG_VALUE32, TAG_VALUE64

SLOT_SIZE = size_of(ListSlot)
MEMMOVE = 8 * LIBRARY_FUNCTIONS.index("memmove")
MEMCMP = 8 * LIBRARY_FUNCTIONS.index("memcmp")
LONG_RANGE = 4 << 20
"""Bytes. What is longer is left to Python, which looks between parts whether the call is to end. In kernels
machine code looks itself: a workgroup that leaves it goes on on the VM."""
FILL_CHUNK = 4096
"""A fill copies what it has written so far, at most this much at a time: the source stays in cache."""


class Accessed(Entry):
    apart = "kind: entry, address: entry, length: entry, element_type: entry, rank: entry, owner: entry"


def is_of(entry: Accessed, kind: int) -> bool:
    """Whether a reference is null or of a type."""
    return not entry or entry.kind == kind


def list_made(state: MachineState, element_type: int, capacity: int) -> int:
    """A reference to a list without elements; 0: Python has to make it."""
    return 0 if state.new_list == 0 else call(state.new_list, place_of(state), element_type, capacity)


def list_holds(items: Accessed, capacity: int) -> bool:
    """Whether a list has room for so many elements."""
    return bool(items) and items.kind == KIND_LIST and not below(items.rank, capacity)


def list_grows(items: Accessed, size: int) -> bool:
    """Whether a list without a Python object grew to so many."""
    if not items or items.kind != KIND_LIST or items.owner != OWNER_CODE:
        return False
    if below(items.rank, size) or below(size, items.length):
        return False
    kind = items.element_type
    tag = LIST_EMPTY if kind == LIST_VARIANT else LIST_REF if kind > 0 else kind
    for index in range(items.length, size):
        slot_of(items, index).tag = tag
    items.length = size
    return True


def has_element(items: Accessed, index: int) -> bool:
    """What asks a list for elements has found out that it is one."""
    return below(index, items.length)


def slot_of(items: Accessed, index: int) -> ListSlot:
    return ListSlot(items.address + SLOT_SIZE * index)


def list_reads(slot: ListSlot, code: int) -> bool:
    """Whether an element is a value of a type; integers may have any width."""
    tag = slot.tag
    if code >= LIST_I64:
        return tag >= LIST_I64 and tag <= LIST_I8
    return tag == code


def list_takes(items: Accessed, slot: ListSlot, code: int) -> bool:
    """Whether a value becomes an element as it is, over anything but a reference."""
    if slot.tag == LIST_REF:
        return False
    return items.element_type == code or items.element_type == LIST_VARIANT


def list_reads_ref(slot: ListSlot, kind: int) -> bool:
    return slot.tag == LIST_REF and is_of(Accessed(slot.bits), kind)


def list_takes_ref(items: Accessed, slot: ListSlot, entry: Accessed) -> bool:
    """Over a reference, null included, or nothing."""
    tag = slot.tag
    if tag != LIST_REF and (tag != LIST_EMPTY or items.element_type != LIST_VARIANT):
        return False
    return items.element_type <= 0 or is_of(entry, items.element_type)


def has_range(available: int, offset: int, count: int) -> bool:
    """Exact for all numbers without sign."""
    return not below(available, offset) and not below(available - offset, count)


def is_long(state: MachineState, length: int) -> bool:
    """Whether a range of bytes is LONG_RANGE."""
    return length > LONG_RANGE and not state.scratch


def buffer_fill(
    state: MachineState, place: int, size: int, offset: int, count: int, value: int, shift: int
) -> bool:
    """Fills with elements of ``1 << shift`` bytes: writes one, then copies what is written to the bytes after
    it."""
    if not has_range(size >> shift, offset, count) or is_long(state, count << shift):
        return False
    start, length, written = place + (offset << shift), count << shift, 1 << shift
    if count != 0:
        if shift == 3:
            store64(start, value)
        elif shift == 2:
            store32(start, value)
        else:
            store8(start, value)
            if shift == 1:
                store8(start + 1, value >> 8)
    while written < length:
        chunk = FILL_CHUNK if written > FILL_CHUNK else written
        if chunk > length - written:
            chunk = length - written
        call(load64(state.math + MEMMOVE), start + written, start, chunk)
        written += chunk
        if written < length and written & (LONG_RANGE - 1) == 0 and look(state):
            return False
    return True


def buffer_copy(
    state: MachineState, source: int, size: int, offset: int, target: int, room: int, into: int, length: int
) -> bool:
    """In kernels long ranges that overlap are left to Python, too: it copies all again where this ends."""
    if not has_range(size, offset, length) or not has_range(room, into, length) or is_long(state, length):
        return False
    start, place = source + offset, target + into
    if length > LONG_RANGE and start < place + length and place < start + length:
        return False
    while length > LONG_RANGE:
        call(load64(state.math + MEMMOVE), place, start, LONG_RANGE)
        start, place, length = start + LONG_RANGE, place + LONG_RANGE, length - LONG_RANGE
        if look(state):
            return False
    call(load64(state.math + MEMMOVE), place, start, length)
    return True


def buffer_compare(
    state: MachineState, lhs: int, lhs_size: int, lhs_offset: int, rhs: int, rhs_size: int, rhs_offset: int,
    length: int,
) -> int:  # fmt: skip
    """1 if the bytes are equal, else 0; -1 if it cannot be done."""
    if not has_range(lhs_size, lhs_offset, length) or not has_range(rhs_size, rhs_offset, length):
        return -1
    if is_long(state, length):
        return -1
    left, right = lhs + lhs_offset, rhs + rhs_offset
    while length > LONG_RANGE:
        if call_int(load64(state.math + MEMCMP), left, right, LONG_RANGE) != 0:
            return 0
        left, right, length = left + LONG_RANGE, right + LONG_RANGE, length - LONG_RANGE
        if look(state):
            return -1
    return 1 if call_int(load64(state.math + MEMCMP), left, right, length) == 0 else 0


CALLED = (
    list_made, list_holds, list_grows, is_of, has_element, slot_of, list_reads, list_takes, list_reads_ref,
    list_takes_ref, buffer_fill, buffer_copy, buffer_compare,
)  # fmt: skip
"""What instructions call."""
FUNCTIONS = (has_range, is_long, *CALLED)


def retain(entry: Entry) -> Entry:
    """Adds a reference; null is left alone."""
    if entry and entry.count < COUNT_UNLIMITED:
        entry.count += 1
    return entry


def lost(entry: Entry) -> bool:
    """Takes a reference away; whether it was the last one."""
    if not entry or entry.count >= COUNT_UNLIMITED:
        return False
    count = entry.count - 1
    entry.count = count
    return count == 0


def join(entry: Entry, released: Released) -> None:
    """Puts an entry without references first in a list."""
    entry.link = released.first
    released.first = entry


def drop(entry: Entry, released: Released) -> None:
    """Takes a reference away; an entry without any joins the list."""
    if unlikely(lost(entry)):
        join(entry, released)


def put(entry: Entry, register: int, released: Released) -> None:
    """Replaces a register's reference and drops the old one."""
    old = Entry(load64(register))
    store64(register, place_of(entry))
    drop(old, released)


def move(
    tag: int, source: int, target: int, values: int, refs: int, into_values: int, into_refs: int,
    released: Released,
) -> None:  # fmt: skip
    """Moves or copies one register, also to another frame; the tag says what it is."""
    if tag == TAG_VALUE32:
        store32(into_values + 4 * target, load32(values + 4 * source))
    elif tag == TAG_VALUE64:
        store64(into_values + 4 * target, load64(values + 4 * source))
    else:
        register = refs + 8 * source
        entry = Entry(load64(register))
        if tag == TAG_REF_COPY:
            retain(entry)
        else:
            store64(register, 0)
        put(entry, into_refs + 8 * target, released)


CLOCK = 8 * len(LIBRARY_FUNCTIONS)
"""Where the address of :func:`clock` is, which is not the same for all processors."""
STOP = CLOCK + 8
"""Where the address of the word is that says when to look (:mod:`jitree.base.stop_word`)."""
MOST = 1 << 13
"""Branches in a row. Looking at the clock takes as long as some twenty of them."""
LONG = 1_000_000
"""Nanoseconds after which less is given: less than a thousandth of what a user would notice."""


def clock() -> int:
    """The time, in ticks."""
    return ticks()


def spend_time(state: MachineState) -> int:
    """Counts the time since the clock was last looked at, and gives it; where that was in another call, a
    nanosecond for each branch. The time is over when another thread has rung, or a deadline has passed."""
    now = call(load64(state.math + CLOCK))
    passed = (now - state.looked) * state.tick >> TICK_SHIFT
    if state.looked == 0 or passed < 0:
        passed = state.grant
    state.looked = now
    # order of stop: an old value is seen a look later
    stop = load64(load64(state.math + STOP))
    if stop == state.attended and now < stop:
        state.time -= passed
    else:
        state.attended = stop
        state.time = 0
    return passed


def grant(state: MachineState) -> int:
    """The fuel that follows."""
    passed = spend_time(state)
    fuel = state.grant
    if passed > LONG:
        fuel = fuel >> 3 | 1
    elif fuel < MOST:
        fuel <<= 1
    state.grant = fuel
    return fuel


def ask(state: MachineState) -> int:
    """Has Python look after signals, and fill the time up. SLOW_*, SLOW_LOOK where the call is to end."""
    if state.slow == 0:
        return SLOW_REFUSED
    state.outcome = SLOW_LOOK
    call(state.slow, place_of(state))
    state.looked = 0
    outcome: int = state.outcome
    return outcome


def refuel(state: MachineState) -> int:
    """More fuel for the loop; 0 where the time is over, and Python is to see what else there is to do."""
    fuel = grant(state)
    return 0 if state.time <= 0 else fuel


def refuel_function(state: MachineState) -> int:
    """More fuel for a compiled function, which loses much when it is left; 0 where it is to be left all the
    same, -1 where the call is to end."""
    fuel = grant(state)
    if state.time <= 0:
        outcome = ask(state)
        if outcome != SLOW_DONE:
            fuel = 0 if outcome == SLOW_REFUSED else -1
    return fuel


def look(state: MachineState) -> bool:
    """Whether code that does much without branches that take fuel is to end."""
    spend_time(state)
    return state.time <= 0 and ask(state) == SLOW_LOOK


FUEL_FUNCTIONS = (spend_time, grant, ask, refuel, refuel_function, look)
FUEL_CALLED = (refuel, refuel_function, look)
"""What the loop and compiled functions call."""
