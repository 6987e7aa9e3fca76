"""Tells machine code whether it may execute a queue's command lists itself."""

from __future__ import annotations

from array import array
from typing import Final

from jitree.base.finalizers import guard
from jitree.base.layout import Record

QUEUE: Final = Record(
    "queue",
    """
    i64 open              # 1 = machine code may execute lists here; 0 = Python does it
    i64 team              # address of the TEAM record to share work with; 0 = the calling thread alone
    i64 immediate         # ticks that a call which must not be held up may spend on a list; ANY_COST
    i64 inline_limit          # ticks that a call may spend while others wait for its session
    i64 local_memory      # bytes of local memory that a workgroup may have, 0 = as many as it needs
    i64 stream            # address of the StreamRecord (hal/stream_record.py) for lists; 0 = they run here
    i64 log               # address of the LOG record that is told of rows; 0 = none
    i64 alone             # 1 = open, but for a team: a thread may execute what it does alone
    """,
)
"""Only Python writes it. A team's record stays valid as long as the device, also when another has replaced
it: a thread that reads ``team`` once and takes the number of threads from there is never wrong."""

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

_OPEN, _TEAM, _IMMEDIATE, _INLINE_LIMIT, _LOCAL_MEMORY, _STREAM, _LOG, _ALONE = (
    QUEUE.word(field) for field in QUEUE.offsets
)


class QueueRecord:
    """Opens one queue to machine code while there is no reason against it."""

    __slots__ = ("_lock", "_reasons", "_words", "address")

    def __init__(self, stream: int = 0) -> None:
        """Closed as UNSUPPORTED. ``stream``: of the StreamRecord."""
        self._lock = guard()  # a forgotten device closes it wherever the garbage collector runs
        self._reasons = {UNSUPPORTED}
        self._words = array("q", bytes(QUEUE.size))
        self._words[_IMMEDIATE] = self._words[_INLINE_LIMIT] = ANY_COST
        self._words[_STREAM] = stream
        self.address: int = self._words.buffer_info()[0]

    @property
    def is_open(self) -> bool:
        return self._words[_OPEN] != 0

    def hold(self, reason: str) -> None:
        """Closes the record. What machine code has begun to execute goes on."""
        with self._lock:
            self._reasons.add(reason)
            self._words[_OPEN] = 0
            self._words[_ALONE] = self._reasons == _LONE

    def release(self, reason: str) -> None:
        """Takes back a reason to be closed."""
        with self._lock:
            self._reasons.discard(reason)
            self._words[_OPEN] = not self._reasons  # no call between: a reason may come meanwhile
            self._words[_ALONE] = not self._reasons - _LONE

    def readers_changed(self, are_there: bool) -> None:
        """Closes the record while readers are told of what is submitted."""
        if are_there:
            self.hold(LISTENED_TO)
        else:
            self.release(LISTENED_TO)

    def after_fork(self) -> None:
        """In a forked child no thread holds the lock, whatever it says."""
        self._lock = guard()

    def limit_local_memory(self, size: int) -> None:
        self._words[_LOCAL_MEMORY] = size

    def tell(self, log: int) -> None:
        """Has machine code log what it executes in a LOG record; 0: none."""
        self._words[_LOG] = log

    def share(self, team: int, immediate: int, inline_limit: int) -> None:
        """Sets the team (0 = none) and what calls may spend."""
        self._words[_TEAM] = team
        self._words[_IMMEDIATE] = immediate
        self._words[_INLINE_LIMIT] = inline_limit
