"""Answers' handles: taken from the table's pools, counted, given back. Machine code."""

from __future__ import annotations

from jitree.codegen.primitives import Fields, load, load64, store, store64
from jitree.modules.hal.native.layout import ACCOUNT_SIZE, ACCOUNTS, NATIVES, STORAGE_POOLS
from jitree.modules.hal.native.recording import release_recording
from jitree.regs.layout import ENTRY, KIND_FREE, KIND_STORAGE, OWNER_CODE, STATE

State = Fields(STATE)
Entry = Fields(ENTRY)
Natives = Fields(NATIVES)
STATE_RELEASED = STATE["released"]
NATIVES_RELEASED = NATIVES["released"]


def new_entry(state: int, natives: int, kind: int) -> int:
    """An entry with one reference, 0 when there is no blank one left."""
    entry = load(natives, Natives.blank)
    if entry == 0:
        sweep(state)
        entry = load(natives, Natives.blank)
        if entry == 0:
            return 0
    store(natives, Natives.blank, load(entry, Entry.link))
    store(natives, Natives.live, load(natives, Natives.live) + 1)
    store(entry, Entry.kind, kind)
    store(entry, Entry.count, 1)
    store(entry, Entry.owner, OWNER_CODE)
    store(entry, Entry.parent, 0)
    store(entry, Entry.link, 0)
    return entry


def retain(entry: int) -> int:
    if entry != 0:
        store(entry, Entry.count, load(entry, Entry.count) + 1)
    return entry


def release(natives: int, entry: int, released: int) -> None:
    """Drops a reference. An object of Python's whose last one that was joins the list at ``released``."""
    if entry == 0:
        return
    count = load(entry, Entry.count) - 1
    store(entry, Entry.count, count)
    if count == 0:
        if load(entry, Entry.owner) == OWNER_CODE:
            free(natives, entry, released)
        else:
            store(entry, Entry.link, load64(released))
            store64(released, entry)


def free(natives: int, entry: int, released: int) -> None:
    """Gives an object of OWNER_CODE without references back to its pool, and what it kept alive with it."""
    kind = load(entry, Entry.kind)
    if kind == KIND_STORAGE:
        freed = natives + ACCOUNTS + load(entry, Entry.usage) * ACCOUNT_SIZE + 8
        store64(freed, load64(freed) + load(entry, Entry.length))
        pool = natives + STORAGE_POOLS + 8 * load(entry, Entry.access)
        store(entry, Entry.link, load64(pool))
        store64(pool, entry)
        return
    if kind == load(natives, Natives.command_buffer):
        release_recording(natives, load(entry, Entry.address), released)
    parent = load(entry, Entry.parent)
    store(entry, Entry.kind, KIND_FREE)
    store(entry, Entry.length, 0)
    store(entry, Entry.link, load(natives, Natives.blank))
    store(natives, Natives.blank, entry)
    store(natives, Natives.live, load(natives, Natives.live) - 1)
    release(natives, parent, released)


def sweep(state: int) -> None:
    """Frees what machine code made of the state's released entries and of what Python dropped; Python's own
    stay in the list."""
    natives = load(state, State.natives)
    bury(natives, state + STATE_RELEASED)
    entry = load(state, State.released)
    store(state, State.released, 0)
    while entry != 0:
        following = load(entry, Entry.link)
        if load(entry, Entry.owner) == OWNER_CODE:
            free(natives, entry, state + STATE_RELEASED)
        else:
            store(entry, Entry.link, load(state, State.released))
            store(state, State.released, entry)
        entry = following


def bury(natives: int, released: int) -> None:
    """Frees the entries that Python dropped."""
    entry = load(natives, Natives.dead)
    store(natives, Natives.dead, 0)
    while entry != 0:
        following = load(entry, Entry.link)
        free(natives, entry, released)
        entry = following


def free_entry(natives: int, entry: int) -> None:
    """For Python: as :func:`free`, also what it dropped before; entries of Python's that go with them are in
    the record's list then. ``entry`` may be 0."""
    bury(natives, natives + NATIVES_RELEASED)
    if entry != 0:
        free(natives, entry, natives + NATIVES_RELEASED)
