"""Counting references: the rule for the loop, compiled functions and native fast paths, which inline it.

:class:`~jitree.regs.handles.HandleTable` does the same in views of the table; a test compares them.
"""

from __future__ import annotations

from jitree.codegen.primitives import load32, load64, store32, store64, unlikely
from jitree.codegen.record import MemoryRecord, place_of
from jitree.regs.layout import COUNT_UNLIMITED, ENTRY, RELEASED
from jitree.vmfb.words import TAG_REF_COPY, TAG_VALUE32, TAG_VALUE64


class Entry(MemoryRecord, layout=ENTRY, apart={"count": "count", "link": "link"}):
    parent: Entry
    link: Entry


class Released(MemoryRecord, layout=RELEASED, apart={"first": "state"}):
    first: Entry


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
    """Puts a reference into a register in place of the one that is there, which is dropped."""
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
