"""Make, signal, join and wait for fences (``hal.fence.*``). Machine code.

A fence is a word, REACHED when known to be, which it stays. Python publishes it for those it made or looked
at, which only Python signals. PROMISED is one that a device reaches when the submission is done whose
number is the fence's address.
"""

from __future__ import annotations

from jitree.codegen.primitives import call, greater, unlikely
from jitree.codegen.record import atomic_load, atomic_replace, place_of
from jitree.hal.local.queue_record import Queue
from jitree.hal.timeline_record import Timeline
from jitree.modules.hal.native.entries import State, new_entry
from jitree.modules.hal.native.layout import PROMISED, REACHED, HandlePoolRecord
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
from jitree.regs.layout import OWNER_CODE, PATIENT, Entry

_DEFERRED = 17
_GLANCE = 32
"""Looks at a device: some 20 us. Small work takes no longer, and to be called back takes twice that."""
MOMENT = 8192
"""Some 4 to 6 ms. What waits for longer does so in Python, where signals, deadlines and ``cancel`` end it."""


def is_reached(handle_pool: HandlePoolRecord, fence: Entry) -> bool:
    """Whether a fence or null is known to be reached."""
    if not fence:
        return True
    return is_kind(fence, handle_pool.fence) and fence.length == REACHED


def tick_of(handle_pool: HandlePoolRecord, fence: Entry) -> int:
    """The submission after which a fence or null is reached: 0 if it is already, -1 if that is not known."""
    if is_reached(handle_pool, fence):
        return 0
    if fence.kind == handle_pool.fence and fence.length == PROMISED:
        return fence.address
    return -1


def follows(handle_pool: HandlePoolRecord, queue: Queue, fence: Entry) -> bool:
    """Whether a queue's next work comes after a fence. It is reached, or promised by its device."""
    if unlikely(bool(queue.timeline)):
        return tick_of(handle_pool, fence) >= 0
    return is_reached(handle_pool, fence)


def can_signal(handle_pool: HandlePoolRecord, fence: Entry) -> bool:
    """Whether a fence is null, or one that Python does not know."""
    if not fence:
        return True
    return is_kind(fence, handle_pool.fence) and fence.owner == OWNER_CODE


def signal(fence: Entry) -> None:
    if fence:
        fence.length = REACHED


def promise(fence: Entry, tick: int) -> None:
    """The fence is reached when submission ``tick`` is done; 0 = now."""
    if fence and fence.length == 0:
        fence.length = REACHED if tick == 0 else PROMISED
        fence.address = tick


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
    """Joins fences from argument ``first`` on. ``first`` is the same in :func:`fence_await`."""
    handle_pool = state.handle_pool
    present = 0
    last = 0
    for index in range(first, argument_count(words)):
        fence = reference(refs, words, index)
        present |= place_of(fence)
        tick = tick_of(handle_pool, fence)
        if tick < 0:
            return REFUSED
        last = greater(last, tick)
    if present == 0:
        return give(state, refs, words, Entry(0))
    joined = new_entry(state, handle_pool, handle_pool.fence)
    if not joined:
        return REFUSED
    promise(joined, last)
    return give(state, refs, words, joined)


def fence_await(state: State, values: int, refs: int, words: int, first: int) -> int:
    handle_pool = state.handle_pool
    if unlikely(argument_count(words) - first > 32):
        return REFUSED
    last = 0
    for index in range(first, argument_count(words)):
        tick = tick_of(handle_pool, reference(refs, words, index))
        if tick < 0:
            return REFUSED
        last = greater(last, tick)
    if unlikely(last != 0):
        timeout = number(values, words, 0)
        note_owed(handle_pool.queue.timeline, last)
        if may_owe(state, words, timeout):
            state.owed = last
        elif not await_device(state, handle_pool.queue, last, timeout):
            return REFUSED
    return give32(state, values, refs, words, 0)


def may_owe(state: State, words: int, timeout: int) -> bool:
    """Whether the host waits itself at the end of the call: nothing that follows looks at elements."""
    queue = state.handle_pool.queue
    return state.last_wait == words and timeout == -1 and bool(queue) and queue.open != 0


def note_owed(timeline: Timeline, tick: int) -> None:
    """Notes a submission that the host waits for. It waits in the call without its lock, or after it. Another
    thread may begin a call before that, and look at memory of the host that the submission writes to."""
    # order of owed: a number alone, which grows
    owed = atomic_load(timeline.owed)
    while owed < tick and not atomic_replace(timeline.owed, owed, tick):
        owed = atomic_load(timeline.owed)


def await_owed(state: State, queue: Queue) -> bool:
    """Whether what other calls left to the host is done."""
    # order of owed: a number alone, which grows
    owed = atomic_load(queue.timeline.owed)
    return owed <= queue.timeline.completed or await_device(state, queue, owed, -1)


def await_device(state: State, queue: Queue, tick: int, timeout: int) -> bool:
    """Whether submission ``tick`` is done: waits a moment for the device, only for a glance if the call must
    not be held up, and not at all if the program sets a time. The host's other threads go on."""
    if not queue or queue.open == 0:
        return False
    timeline = queue.timeline
    if tick <= timeline.completed:
        return True
    if timeout != -1:
        return False
    if state.prompt != PATIENT:
        return is_done_at_a_glance(timeline, tick)
    return is_done_in_a_moment(timeline, tick) != 0


def is_done_at_a_glance(timeline: Timeline, tick: int) -> bool:
    """Whether submission ``tick`` is done, or is within some 20 us."""
    return is_done_within(timeline, tick, _GLANCE)


def is_done_in_a_moment(timeline: Timeline, tick: int) -> bool:
    """Whether submission ``tick`` is done within some 3 ms; not if the device has failed."""
    return is_done_within(timeline, tick, MOMENT)


def is_done_within(timeline: Timeline, tick: int, looks: int) -> bool:
    """Whether one of so many looks finds submission ``tick`` done. It begins without any, too."""
    return tick <= timeline.completed or call(timeline.is_done, place_of(timeline), tick, looks) != 0


def fence_query(state: State, values: int, refs: int, words: int) -> int:
    handle_pool = state.handle_pool
    fence = reference(refs, words, 0)
    if not fence or not can_signal(handle_pool, fence) or fence.length == PROMISED:
        return REFUSED
    return give32(state, values, refs, words, 0 if fence.length == REACHED else _DEFERRED)


def fence_signal(state: State, values: int, refs: int, words: int) -> int:
    handle_pool = state.handle_pool
    fence = reference(refs, words, 0)
    if not fence or not can_signal(handle_pool, fence) or fence.length == PROMISED:
        return REFUSED
    signal(fence)
    return finish(state, refs, words)


def queue_barrier(state: State, values: int, refs: int, words: int, flags: int) -> int:
    """A barrier, or another operation that does nothing but keep order. ``flags`` is the number of an
    argument that has to be 0; -1 = none has."""
    handle_pool = state.handle_pool
    queue = queue_of(handle_pool, reference(refs, words, 0))
    wait = reference(refs, words, 2)
    fence = reference(refs, words, 3)
    if not queue or not follows(handle_pool, queue, wait) or not can_signal(handle_pool, fence):
        return REFUSED
    if flags >= 0 and number(values, words, flags) != 0:
        return REFUSED
    promise(fence, tick_of(handle_pool, wait))
    return finish(state, refs, words)


def queue_flush(state: State, values: int, refs: int, words: int) -> int:
    handle_pool = state.handle_pool
    if not queue_of(handle_pool, reference(refs, words, 0)):
        return REFUSED
    return finish(state, refs, words)
