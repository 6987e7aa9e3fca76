"""Take handles from the table's pools, count them, give them back. Machine code."""

from __future__ import annotations

from jitree.codegen.checked.layout import ENTRY_SHUT, keep_out, let_access
from jitree.codegen.primitives import apart, below, load64, store64, unlikely
from jitree.codegen.record import layout_of, place_of
from jitree.modules.hal.native.layout import (
    ACCOUNT_SIZE,
    ACCOUNTS,
    POOL_COUNT,
    STORAGE_POOLS,
    HandlePoolRecord,
    Recording,
)
from jitree.regs.access import join, lost
from jitree.regs.layout import (
    ENTRY,
    KIND_FREE,
    KIND_LIST,
    KIND_STORAGE,
    LIST_CAPACITY,
    LIST_REF,
    LIST_SLOT,
    OWNER_CODE,
    STATE,
    Entry,
    MachineState,
    Released,
)

STATE_RELEASED = STATE["released"]
HANDLE_POOL_RELEASED = layout_of(HandlePoolRecord)["released"]
STORAGE_TICK = ENTRY["parent"]
_SLOT = LIST_SLOT.size
_BITS = LIST_SLOT["bits"]


class State(MachineState):
    """A machine: what it has of its handle table."""

    handle_pool: HandlePoolRecord


def new_entry(state: State, handle_pool: HandlePoolRecord, kind: int) -> Entry:
    """An entry with one reference, 0 when there is no blank one left."""
    if unlikely(not handle_pool.blank):
        return swept_entry(state, handle_pool, kind)
    return taken_entry(handle_pool, kind)


@apart
def swept_entry(state: State, handle_pool: HandlePoolRecord, kind: int) -> Entry:
    """As :func:`new_entry`, after what is dead has been freed."""
    sweep(state)
    return taken_entry(handle_pool, kind) if handle_pool.blank else Entry(0)


def taken_entry(handle_pool: HandlePoolRecord, kind: int) -> Entry:
    """The first blank entry, with one reference."""
    entry = handle_pool.blank
    handle_pool.blank = entry.link
    return begun(handle_pool, entry, kind)


def begun(handle_pool: HandlePoolRecord, entry: Entry, kind: int) -> Entry:
    """An entry of a pool as that of a new object, with one reference."""
    let_access(place_of(entry), ENTRY_SHUT)
    handle_pool.live += 1
    entry.kind = kind
    entry.count = 1
    entry.owner = OWNER_CODE
    entry.parent = Entry(0)
    entry.link = Entry(0)
    return entry


def release(handle_pool: HandlePoolRecord, entry: Entry, released: int) -> None:
    """Drops a reference. An object of Python's whose last one that was joins the list at ``released``."""
    if lost(entry):
        if entry.owner == OWNER_CODE:
            free(handle_pool, entry, released)
        else:
            join(entry, Released(released))


def dropped(entry: Entry, dead: Entry, released: int) -> Entry:
    """Releases a reference; objects of OWNER_CODE join the ``dead`` list. That list is the result; see
    :func:`release`. Loops that call nothing save no registers."""
    if lost(entry):
        if entry.owner == OWNER_CODE:
            entry.link = dead
            return entry
        join(entry, Released(released))
    return dead


def free(handle_pool: HandlePoolRecord, entry: Entry, released: int) -> None:
    """Returns an unreferenced OWNER_CODE object to its pool, with what it kept."""
    kind = entry.kind
    if kind == KIND_STORAGE:
        freed = place_of(handle_pool) + ACCOUNTS + entry.usage * ACCOUNT_SIZE + 8
        store64(freed, load64(freed) + entry.length)
        keep_out(entry.address, entry.length)
        queue = handle_pool.queue
        if unlikely(entry.access >= POOL_COUNT) and queue:
            store64(place_of(entry) + STORAGE_TICK, queue.timeline.tick)
        pool = place_of(handle_pool) + STORAGE_POOLS + 8 * entry.access
        entry.link = Entry(load64(pool))
        store64(pool, place_of(entry))
        keep_out(place_of(entry), ENTRY_SHUT)
    elif kind == handle_pool.command_buffer:
        free_command_buffer(handle_pool, entry, released)
    elif kind == KIND_LIST:
        free_list(handle_pool, entry, released)
    else:
        free_object(handle_pool, entry, released)


@apart
def free_command_buffer(handle_pool: HandlePoolRecord, entry: Entry, released: int) -> None:
    release_recording(handle_pool, Recording(entry.address), released)
    free_object(handle_pool, entry, released)


@apart
def free_list(handle_pool: HandlePoolRecord, entry: Entry, released: int) -> None:
    """Elements that nothing else refers to wait, as long as the others: lists in lists may be deeper than the
    stack."""
    for slot in range(entry.address, entry.address + _SLOT * entry.length, _SLOT):
        element = Entry(load64(slot + _BITS) if load64(slot) == LIST_REF else 0)
        store64(slot, 0)
        store64(slot + _BITS, 0)
        handle_pool.dead = dropped(element, handle_pool.dead, released)
    entry.kind = KIND_FREE
    entry.length = 0
    entry.link = handle_pool.lists
    handle_pool.lists = entry
    handle_pool.live -= 1
    keep_out(place_of(entry), ENTRY_SHUT)


def free_object(handle_pool: HandlePoolRecord, entry: Entry, released: int) -> None:
    """As :func:`free`, of what has no more than a parent."""
    parent = entry.parent
    entry.kind = KIND_FREE
    entry.length = 0
    entry.link = handle_pool.blank
    handle_pool.blank = entry
    handle_pool.live -= 1
    keep_out(place_of(entry), ENTRY_SHUT)
    release(handle_pool, parent, released)


@apart
def free_all(handle_pool: HandlePoolRecord, dead: Entry, released: int) -> None:
    """Frees a list of objects of OWNER_CODE."""
    while dead:
        following = dead.link
        free(handle_pool, dead, released)
        dead = following


def release_recording(handle_pool: HandlePoolRecord, recording: Recording, released: int) -> None:
    """Drops what a command buffer keeps and gives its memory back."""
    kept = recording.kept
    for index in range(recording.kept_count):
        release(handle_pool, Entry(load64(kept + 8 * index)), released)
    recording.next = handle_pool.arenas
    handle_pool.arenas = recording


def sweep(state: State) -> None:
    """Frees released entries of machine code and what Python dropped; Python's own stay in the list."""
    handle_pool = state.handle_pool
    entry = state.released
    state.released = Entry(0)
    while entry:
        following = entry.link
        if entry.owner == OWNER_CODE:
            free(handle_pool, entry, place_of(state) + STATE_RELEASED)
        else:
            join(entry, Released(place_of(state) + STATE_RELEASED))
        entry = following
    bury(handle_pool, place_of(state) + STATE_RELEASED)


def bury(handle_pool: HandlePoolRecord, released: int) -> None:
    """Frees the entries that Python dropped, and those that were in lists."""
    while handle_pool.dead:
        dead = handle_pool.dead
        handle_pool.dead = Entry(0)
        free_all(handle_pool, dead, released)


def free_entry(handle_pool: HandlePoolRecord, entry: Entry) -> None:
    """Does for Python what :func:`free` does, also what it dropped before; entries of Python's that go with
    them are in the record's list then. ``entry`` may be 0."""
    if entry:
        free(handle_pool, entry, place_of(handle_pool) + HANDLE_POOL_RELEASED)
    bury(handle_pool, place_of(handle_pool) + HANDLE_POOL_RELEASED)


# -- lists of programs ---------------------------------------------------------------------------------


def new_list(state: State, element_type: int, capacity: int) -> int:
    """A reference to a ``vm.list`` without elements; 0 where there is none idle, or it has to have more than
    LIST_CAPACITY slots, which lists keep when they are freed (they are all 0 then)."""
    handle_pool = state.handle_pool
    if below(LIST_CAPACITY, capacity):
        return 0
    if unlikely(not handle_pool.lists):
        sweep(state)
        if not handle_pool.lists:
            return 0
    made = handle_pool.lists
    handle_pool.lists = made.link
    made.element_type = element_type
    return place_of(begun(handle_pool, made, KIND_LIST))
