"""Tells machine code whether it may execute a queue's command lists itself."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

from jitree.base.finalizers import guard
from jitree.codegen.record import MemoryRecord, size_of, words_of

if TYPE_CHECKING:
    from jitree.codegen.record import i64
    from jitree.hal.command_layout import Log, ThreadTeam
    from jitree.hal.timeline_record import Timeline


class Queue(MemoryRecord):
    """Says how machine code may work for a device.

    Only Python writes it. A team's record stays valid as long as the device, also when another has replaced
    it: a thread that reads ``team`` once and takes the number of threads from there is never wrong."""

    open: i64  # 1 = machine code may execute lists here; 0 = Python does it
    team: ThreadTeam  # address of the ThreadTeam record to share work with; 0 = the calling thread alone
    immediate: i64  # ticks that a call which must not be held up may spend on a list; ANY_COST
    inline_limit: i64  # ticks that a call may spend while others wait for its session
    local_memory: i64  # bytes of local memory that a workgroup may have, 0 = as many as it needs
    timeline: Timeline  # address of the Timeline that lists enter; 0 = they run here
    log: Log  # address of the Log record that is told of rows; 0 = none
    tell: i64  # of `i64 (TOLD_*, …)`, which tells readers of lists and memory; 0 = there are none
    alone: i64  # 1 = open, but for a team: a thread may execute what it does alone


ANY_COST: Final = -1
UNKNOWN_COST: Final = -1
WAITS: Final = 1 << 40
"""What work costs that no event loop waits for: it waits for other members of a group, or runs in Python."""

UNSUPPORTED: Final = "unsupported"
"""The device does not execute lists as machine code would."""
NO_TEAM: Final = "no team"
"""The threads of the team have not been started."""
_LONE: Final = {NO_TEAM}
PROFILED: Final = "profiled"
WATCHED: Final = "watched"
LISTENED_TO: Final = "listened to"
LOST: Final = "lost"
CLOSED: Final = "closed"

_QUEUE: Final = words_of(Queue)


class QueueRecord:
    """Opens one queue to machine code while there is no reason against it."""

    __slots__ = ("_lock", "_reasons", "_words", "address")

    def __init__(self, timeline: int = 0) -> None:
        """Closed as UNSUPPORTED. ``timeline``: of the Timeline."""
        self._lock = guard()  # a forgotten device closes it wherever the garbage collector runs
        self._reasons = {UNSUPPORTED}
        self._words = array("q", bytes(size_of(Queue)))
        self._words[_QUEUE.immediate] = self._words[_QUEUE.inline_limit] = ANY_COST
        self._words[_QUEUE.timeline] = timeline
        self.address: int = self._words.buffer_info()[0]

    @property
    def is_open(self) -> bool:
        return self._words[_QUEUE.open] != 0

    def hold(self, reason: str) -> None:
        """Closes the record. What machine code has begun to execute goes on."""
        with self._lock:
            self._reasons.add(reason)
            # order of open: plain; who has seen it open goes on, and needs what lives as long as the queue
            self._words[_QUEUE.open] = 0
            self._words[_QUEUE.alone] = self._reasons == _LONE

    def release(self, reason: str) -> None:
        """Takes back a reason to be closed."""
        with self._lock:
            self._reasons.discard(reason)
            self._words[_QUEUE.open] = not self._reasons  # no call between: a reason may come meanwhile
            self._words[_QUEUE.alone] = not self._reasons - _LONE

    def readers_changed(self, are_there: bool) -> None:
        """Closes the record while readers are told of what is submitted."""
        if are_there:
            self.hold(LISTENED_TO)
        else:
            self.release(LISTENED_TO)

    def tell_readers(self, address: int) -> None:
        """Has machine code call a C function for what readers are told of; 0: none."""
        self._words[_QUEUE.tell] = address

    def after_fork(self) -> None:
        """In a forked child no thread holds the lock, whatever it says."""
        self._lock = guard()

    def limit_local_memory(self, size: int) -> None:
        self._words[_QUEUE.local_memory] = size

    def tell(self, log: int) -> None:
        """Has machine code log what it executes in a Log record; 0: none."""
        from jitree.base.platform.threads import order_stores  # here: a first result does without

        # order of log: its own words come first
        order_stores()
        self._words[_QUEUE.log] = log

    def share(self, team: int, immediate: int, inline_limit: int) -> None:
        """Sets the team (0 = none) and what calls may spend."""
        from jitree.base.platform.threads import order_stores

        # order of team: its own words come first
        order_stores()
        self._words[_QUEUE.team] = team
        self._words[_QUEUE.immediate] = immediate
        self._words[_QUEUE.inline_limit] = inline_limit
