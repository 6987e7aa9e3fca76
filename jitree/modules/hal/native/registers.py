"""Read arguments of imports from registers, and write results. Machine code.

``words`` are (tag, register) pairs of arguments, then of results; two numbers in front say how many.
"""

from __future__ import annotations

from jitree.codegen.primitives import load32, load64, store32, store64
from jitree.codegen.record import place_of
from jitree.hal.local.queue_record import Queue
from jitree.modules.hal.native.entries import STATE_RELEASED, State, dropped, free_all
from jitree.modules.hal.native.layout import HandlePoolRecord
from jitree.regs.layout import COMPILED_DONE, Entry
from jitree.vmfb.words import TAG_REF_MOVE, TAG_VALUE64

DONE = COMPILED_DONE
REFUSED = 1


def number(values: int, words: int, index: int) -> int:
    """An integer argument of either width."""
    place = values + 4 * load32(words + 8 * index + 4)
    if load32(words + 8 * index) == TAG_VALUE64:
        return load64(place)
    return load32(place)


def optional(values: int, words: int, index: int, default: int) -> int:
    """Returns an integer argument, or a stand-in (``index`` -1)."""
    return default if index < 0 else number(values, words, index)


def reference(refs: int, words: int, index: int) -> Entry:
    """A handle, 0 for null."""
    return Entry(load64(refs + 8 * load32(words + 8 * index + 4)))


def argument_count(words: int) -> int:
    return load32(words - 8)


def finish(state: State, refs: int, words: int) -> int:
    """Drops the references that the call gives up."""
    return finished(state, given_up(state, refs, words))


def given_up(state: State, refs: int, words: int) -> Entry:
    """Drops the references that the call gives up; gives a list of the objects that :func:`finished` is to
    free. Comes before the results are written."""
    dead = Entry(0)
    for index in range(argument_count(words)):
        if load32(words + 8 * index) == TAG_REF_MOVE:
            place = refs + 8 * load32(words + 8 * index + 4)
            entry = Entry(load64(place))
            store64(place, 0)
            dead = dropped(entry, dead, place_of(state) + STATE_RELEASED)
    return dead


def finished(state: State, dead: Entry) -> int:
    """Ends a fast path."""
    if dead:
        free_all(state.handle_pool, dead, place_of(state) + STATE_RELEASED)
    return DONE


def _result(words: int, index: int) -> int:
    return load32(words + 8 * (argument_count(words) + index) + 4)


def give32(state: State, values: int, refs: int, words: int, value: int) -> int:
    """Ends a fast path with one i32."""
    dead = given_up(state, refs, words)
    store32(values + 4 * _result(words, 0), value)
    return finished(state, dead)


def give64(state: State, values: int, refs: int, words: int, value: int) -> int:
    dead = given_up(state, refs, words)
    store64(values + 4 * _result(words, 0), value)
    return finished(state, dead)


def give(state: State, refs: int, words: int, entry: Entry) -> int:
    """Ends a fast path with one reference, which passes to the register."""
    dead = given_up(state, refs, words)
    place = refs + 8 * _result(words, 0)
    old = Entry(load64(place))
    store64(place, place_of(entry))
    return finished(state, dropped(old, dead, place_of(state) + STATE_RELEASED))


def give_two(state: State, refs: int, words: int, first: Entry, second: Entry) -> int:
    """As :func:`give`, of two references."""
    dead = given_up(state, refs, words)
    place = refs + 8 * _result(words, 0)
    dead = dropped(Entry(load64(place)), dead, place_of(state) + STATE_RELEASED)
    store64(place, place_of(first))
    place = refs + 8 * _result(words, 1)
    dead = dropped(Entry(load64(place)), dead, place_of(state) + STATE_RELEASED)
    store64(place, place_of(second))
    return finished(state, dead)


def is_kind(entry: Entry, kind: int) -> bool:
    """Whether a handle is of a type; null is of none."""
    return bool(entry) and entry.kind == kind


def queue_of(handle_pool: HandlePoolRecord, device: Entry) -> Queue:
    """The Queue record of a device on which machine code may work, else 0. With a timeline, only of the one
    whose memory the pools have."""
    if not is_kind(device, handle_pool.device):
        return Queue(0)
    record = Queue(device.address)
    if not record or record.open == 0 or (record.timeline and record != handle_pool.queue):
        return Queue(0)
    return record
