"""How far a call may be ahead of the work that it has submitted.

A loop submits faster than its operations run. Memory that it allocates is taken at once and given back when
the last operation that uses it has run, so a call that never waited would have as much of it as it has turns.
So a call that is far ahead waits for the operations before its next one, as all calls do in the C runtime.

It waits for submitted work only. What the host signals later, or another member of a group, may be in the
hands of the thread that submits: such a call goes on, however far ahead it is. So does a call that an
operation makes (a tap's callback): it may come after that operation, or after others that have their turn
on its thread. Where a task awaits the end of the call, that is in other hands, and it is awaited here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jitree.hal.fence import COMES_AFTER
from jitree.hal.local.interrupts import this_thread
from jitree.hal.waiting import WaitMode, are_held_up, pending_producers

if TYPE_CHECKING:
    from jitree.hal.fence import Fence
    from jitree.hal.producer import Producer

MOST_AHEAD: Final = 128
"""Operations that a call may have submitted which have not run: enough to keep all threads at work."""
_FEW: Final = 16
"""Operations that it may have submitted in any case: programs without a loop hardly have more."""
_MOST_BYTES: Final = 256 << 20
"""Of memory, if each of those operations has got as much as the next one."""


def is_far_ahead(wait: Fence, size: int) -> bool:
    """Whether the call of this thread is to wait for a fence before it goes on, and can. ``size``: bytes of
    memory that its last operation has got."""
    count = len(this_thread.submitted)
    if count <= _FEW or (count < MOST_AHEAD and count * size < _MOST_BYTES):
        this_thread.next_look = 0
        return False
    if COMES_AFTER.get() is not None:
        return this_thread.operation is None
    if count < this_thread.next_look:
        return False
    if comes_by_itself(wait):
        return True
    this_thread.next_look = 2 * count  # so that looking takes no longer than submitting
    return False


def comes_by_itself(fence: Fence) -> bool:
    """Whether submitted work reaches a fence, with nothing that the host or others have still to do, nor an
    operation that this thread is at."""
    if this_thread.operation is not None or are_held_up(fence.timepoints):
        return False
    found = pending_producers(fence.timepoints, WaitMode.ALL)
    seen: set[Producer] = set(found)
    while found:
        producer = found.pop()
        if producer.is_held_up():
            return False
        earlier = [one for one in producer.prerequisites() if one not in seen]
        seen.update(earlier)
        found += earlier
    return True
