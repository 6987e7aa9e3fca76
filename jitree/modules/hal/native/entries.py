"""Answers' handles: taken from the table's pools, counted, given back. Machine code."""

from __future__ import annotations

from jitree.codegen.primitives import load64, store64
from jitree.codegen.record import place_of
from jitree.modules.hal.native.layout import ACCOUNT_SIZE, ACCOUNTS, NATIVES, STORAGE_POOLS
from jitree.modules.hal.native.records import Natives, Recording, State
from jitree.regs.counting import Entry, Released, join, lost
from jitree.regs.layout import KIND_FREE, KIND_STORAGE, OWNER_CODE, STATE

STATE_RELEASED = STATE["released"]
NATIVES_RELEASED = NATIVES["released"]


def new_entry(state: State, natives: Natives, kind: int) -> Entry:
    """An entry with one reference, 0 when there is no blank one left."""
    entry = natives.blank
    if not entry:
        sweep(state)
        entry = natives.blank
        if not entry:
            return Entry(0)
    natives.blank = entry.link
    natives.live += 1
    entry.kind = kind
    entry.count = 1
    entry.owner = OWNER_CODE
    entry.parent = Entry(0)
    entry.link = Entry(0)
    return entry


def release(natives: Natives, entry: Entry, released: int) -> None:
    """Drops a reference. An object of Python's whose last one that was joins the list at ``released``."""
    if lost(entry):
        if entry.owner == OWNER_CODE:
            free(natives, entry, released)
        else:
            join(entry, Released(released))


def free(natives: Natives, entry: Entry, released: int) -> None:
    """Gives an object of OWNER_CODE without references back to its pool, and what it kept alive with it."""
    kind = entry.kind
    if kind == KIND_STORAGE:
        freed = place_of(natives) + ACCOUNTS + entry.usage * ACCOUNT_SIZE + 8
        store64(freed, load64(freed) + entry.length)
        pool = place_of(natives) + STORAGE_POOLS + 8 * entry.access
        entry.link = Entry(load64(pool))
        store64(pool, place_of(entry))
        return
    if kind == natives.command_buffer:
        release_recording(natives, Recording(entry.address), released)
    parent = entry.parent
    entry.kind = KIND_FREE
    entry.length = 0
    entry.link = natives.blank
    natives.blank = entry
    natives.live -= 1
    release(natives, parent, released)


def release_recording(natives: Natives, recording: Recording, released: int) -> None:
    """Drops what a command buffer keeps and gives its memory back."""
    kept = recording.kept
    for index in range(recording.kept_count):
        release(natives, Entry(load64(kept + 8 * index)), released)
    recording.next = natives.arenas
    natives.arenas = recording


def sweep(state: State) -> None:
    """Frees what machine code made of the state's released entries and of what Python dropped; Python's own
    stay in the list."""
    natives = state.natives
    bury(natives, place_of(state) + STATE_RELEASED)
    entry = state.released
    state.released = Entry(0)
    while entry:
        following = entry.link
        if entry.owner == OWNER_CODE:
            free(natives, entry, place_of(state) + STATE_RELEASED)
        else:
            join(entry, Released(place_of(state) + STATE_RELEASED))
        entry = following


def bury(natives: Natives, released: int) -> None:
    """Frees the entries that Python dropped."""
    entry = natives.dead
    natives.dead = Entry(0)
    while entry:
        following = entry.link
        free(natives, entry, released)
        entry = following


def free_entry(natives: Natives, entry: Entry) -> None:
    """For Python: as :func:`free`, also what it dropped before; entries of Python's that go with them are in
    the record's list then. ``entry`` may be 0."""
    bury(natives, place_of(natives) + NATIVES_RELEASED)
    if entry:
        free(natives, entry, place_of(natives) + NATIVES_RELEASED)
