"""``hal.fence.*``: a fence is a word, 1 when known to be reached, which it stays. Python publishes it for
those it made or looked at, which only Python signals.
"""

from __future__ import annotations

from jitree.codegen.record import place_of
from jitree.modules.hal.native.entries import new_entry
from jitree.modules.hal.native.records import Entry, HandlePoolRecord, State
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


def is_reached(handle_pool: HandlePoolRecord, fence: Entry) -> bool:
    """Whether a fence or null is known to be reached."""
    if not fence:
        return True
    return is_kind(fence, handle_pool.fence) and fence.length == 1


def can_signal(handle_pool: HandlePoolRecord, fence: Entry) -> bool:
    """Whether a fence is null, or one that Python does not know."""
    if not fence:
        return True
    return is_kind(fence, handle_pool.fence) and fence.owner == OWNER_CODE


def signal(fence: Entry) -> None:
    if fence:
        fence.length = 1


def fence_create(state: State, values: int, refs: int, words: int) -> int:
    handle_pool = state.handle_pool
    if not queue_of(handle_pool, reference(refs, words, 0)):
        return REFUSED
    fence = new_entry(state, handle_pool, handle_pool.fence)
    if not fence:
        return REFUSED
    fence.length = 0
    return give(state, refs, words, fence)


def fence_join(state: State, values: int, refs: int, words: int, first: int) -> int:
    """``first`` is the number of the first fence among the arguments, here and in :func:`fence_await`."""
    handle_pool = state.handle_pool
    present = 0
    for index in range(first, argument_count(words)):
        fence = reference(refs, words, index)
        present |= place_of(fence)
        if not is_reached(handle_pool, fence):
            return REFUSED
    if present == 0:
        return give(state, refs, words, Entry(0))
    joined = new_entry(state, handle_pool, handle_pool.fence)
    if not joined:
        return REFUSED
    joined.length = 1
    return give(state, refs, words, joined)


def fence_await(state: State, values: int, refs: int, words: int, first: int) -> int:
    handle_pool = state.handle_pool
    if argument_count(words) - first > 32:
        return REFUSED
    for index in range(first, argument_count(words)):
        if not is_reached(handle_pool, reference(refs, words, index)):
            return REFUSED
    return give32(state, values, refs, words, 0)


def fence_query(state: State, values: int, refs: int, words: int) -> int:
    handle_pool = state.handle_pool
    fence = reference(refs, words, 0)
    if not fence or not can_signal(handle_pool, fence):
        return REFUSED
    return give32(state, values, refs, words, 0 if fence.length == 1 else _DEFERRED)


def fence_signal(state: State, values: int, refs: int, words: int) -> int:
    handle_pool = state.handle_pool
    fence = reference(refs, words, 0)
    if not fence or not can_signal(handle_pool, fence):
        return REFUSED
    signal(fence)
    return finish(state, refs, words)


def queue_barrier(state: State, values: int, refs: int, words: int, flags: int) -> int:
    """Also of operations that do nothing but keep order. ``flags`` is the number of an argument that has to
    be 0; -1 = none has."""
    handle_pool = state.handle_pool
    if not queue_of(handle_pool, reference(refs, words, 0)):
        return REFUSED
    fence = reference(refs, words, 3)
    if not is_reached(handle_pool, reference(refs, words, 2)) or not can_signal(handle_pool, fence):
        return REFUSED
    if flags >= 0 and number(values, words, flags) != 0:
        return REFUSED
    signal(fence)
    return finish(state, refs, words)


def queue_flush(state: State, values: int, refs: int, words: int) -> int:
    handle_pool = state.handle_pool
    if not queue_of(handle_pool, reference(refs, words, 0)):
        return REFUSED
    return finish(state, refs, words)
