"""``hal.fence.*``: a fence is a word, 1 when known to be reached, which it stays. Python publishes it for
those it made or looked at, which only Python signals.
"""

from __future__ import annotations

from jitree.codegen.primitives import load, store
from jitree.modules.hal.native.entries import Entry, Natives, State, new_entry
from jitree.modules.hal.native.registers import (
    REFUSED,
    argument_count,
    finish,
    give,
    give32,
    is_kind,
    number,
    queue_of,
    reference,
)
from jitree.regs.layout import OWNER_CODE

_DEFERRED = 17


def is_reached(natives: int, fence: int) -> bool:
    """Whether a fence or null is known to be reached."""
    if fence == 0:
        return True
    return is_kind(fence, load(natives, Natives.fence)) and load(fence, Entry.length) == 1


def can_signal(natives: int, fence: int) -> bool:
    """Whether a fence is null, or one that Python does not know."""
    if fence == 0:
        return True
    return is_kind(fence, load(natives, Natives.fence)) and load(fence, Entry.owner) == OWNER_CODE


def signal(fence: int) -> None:
    if fence != 0:
        store(fence, Entry.length, 1)


def fence_create(state: int, values: int, refs: int, words: int) -> int:
    natives = load(state, State.natives)
    if natives == 0 or queue_of(natives, reference(refs, words, 0)) == 0:
        return REFUSED
    fence = new_entry(state, natives, load(natives, Natives.fence))
    if fence == 0:
        return REFUSED
    store(fence, Entry.length, 0)
    return give(state, refs, words, fence)


def fence_join(state: int, values: int, refs: int, words: int, first: int) -> int:
    """``first`` is the number of the first fence among the arguments, here and in :func:`fence_await`."""
    natives = load(state, State.natives)
    if natives == 0:
        return REFUSED
    present = 0
    for index in range(first, argument_count(words)):
        fence = reference(refs, words, index)
        present |= fence
        if not is_reached(natives, fence):
            return REFUSED
    if present == 0:
        return give(state, refs, words, 0)
    joined = new_entry(state, natives, load(natives, Natives.fence))
    if joined == 0:
        return REFUSED
    store(joined, Entry.length, 1)
    return give(state, refs, words, joined)


def fence_await(state: int, values: int, refs: int, words: int, first: int) -> int:
    natives = load(state, State.natives)
    if natives == 0 or argument_count(words) - first > 32:
        return REFUSED
    for index in range(first, argument_count(words)):
        if not is_reached(natives, reference(refs, words, index)):
            return REFUSED
    return give32(state, values, refs, words, 0)


def fence_query(state: int, values: int, refs: int, words: int) -> int:
    natives = load(state, State.natives)
    if natives == 0:
        return REFUSED
    fence = reference(refs, words, 0)
    if fence == 0 or not can_signal(natives, fence):
        return REFUSED
    return give32(state, values, refs, words, 0 if load(fence, Entry.length) == 1 else _DEFERRED)


def fence_signal(state: int, values: int, refs: int, words: int) -> int:
    natives = load(state, State.natives)
    if natives == 0:
        return REFUSED
    fence = reference(refs, words, 0)
    if fence == 0 or not can_signal(natives, fence):
        return REFUSED
    signal(fence)
    return finish(state, refs, words)


def queue_barrier(state: int, values: int, refs: int, words: int, flags: int) -> int:
    """Also of operations that do nothing but keep order. ``flags`` is the number of an argument that has to
    be 0; -1 = none has."""
    natives = load(state, State.natives)
    if natives == 0 or queue_of(natives, reference(refs, words, 0)) == 0:
        return REFUSED
    fence = reference(refs, words, 3)
    if not is_reached(natives, reference(refs, words, 2)) or not can_signal(natives, fence):
        return REFUSED
    if flags >= 0 and number(values, words, flags) != 0:
        return REFUSED
    signal(fence)
    return finish(state, refs, words)


def queue_flush(state: int, values: int, refs: int, words: int) -> int:
    natives = load(state, State.natives)
    if natives == 0 or queue_of(natives, reference(refs, words, 0)) == 0:
        return REFUSED
    return finish(state, refs, words)
