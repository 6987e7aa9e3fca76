"""Arguments and results of answers. Machine code.

``words`` are (tag, register) pairs of arguments, then of results; two numbers in front say how many.
"""

from __future__ import annotations

from jitree.codegen.primitives import load, load32, load64, store32, store64
from jitree.modules.hal.native.entries import STATE_RELEASED, Entry, Natives, State, release
from jitree.regs.layout import COMPILED_DONE
from jitree.vmfb.words import TAG_REF_MOVE, TAG_VALUE64

DONE = COMPILED_DONE
REFUSED = 1


def number(values: int, words: int, index: int) -> int:
    """An integer argument of either width."""
    place = values + 4 * load32(words + 8 * index + 4)
    if load32(words + 8 * index) == TAG_VALUE64:
        return load64(place)
    return load32(place)


def reference(refs: int, words: int, index: int) -> int:
    """A handle, 0 for null."""
    return load64(refs + 8 * load32(words + 8 * index + 4))


def argument_count(words: int) -> int:
    return load32(words - 8)


def finish(state: int, refs: int, words: int) -> int:
    """Drops the references that the call gives up. Comes before the results are written."""
    for index in range(argument_count(words)):
        if load32(words + 8 * index) == TAG_REF_MOVE:
            place = refs + 8 * load32(words + 8 * index + 4)
            entry = load64(place)
            store64(place, 0)
            release(load(state, State.natives), entry, state + STATE_RELEASED)
    return DONE


def _result(words: int, index: int) -> int:
    return load32(words + 8 * (argument_count(words) + index) + 4)


def give32(state: int, values: int, refs: int, words: int, value: int) -> int:
    """Ends an answer with one i32."""
    finish(state, refs, words)
    store32(values + 4 * _result(words, 0), value)
    return DONE


def give64(state: int, values: int, refs: int, words: int, value: int) -> int:
    finish(state, refs, words)
    store64(values + 4 * _result(words, 0), value)
    return DONE


def give(state: int, refs: int, words: int, entry: int) -> int:
    """Ends an answer with one reference, which passes to the register."""
    finish(state, refs, words)
    place = refs + 8 * _result(words, 0)
    old = load64(place)
    store64(place, entry)
    release(load(state, State.natives), old, state + STATE_RELEASED)
    return DONE


def is_kind(entry: int, kind: int) -> bool:
    """Whether a handle is of a type; null is of none."""
    return entry != 0 and load(entry, Entry.kind) == kind


def queue_of(natives: int, device: int) -> int:
    """The QUEUE record of a device on which machine code may work, else 0."""
    if not is_kind(device, load(natives, Natives.device)):
        return 0
    record = load(device, Entry.address)
    if record == 0 or load64(record) == 0:
        return 0
    return record
