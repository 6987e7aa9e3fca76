"""What machine code reads of a queue before it executes a command list itself, without asking Python."""

from __future__ import annotations

from array import array
from typing import Final

from jitree.regs.layout import Record

QUEUE: Final = Record(
    "queue",
    """
    i64 open              # 1 = machine code may execute lists here; 0 = closed or watched: Python does it
    i64 team              # address of the TEAM record to share work with; 0 = the calling thread alone
    i64 immediate         # ticks that a thread which must not be held up may spend on a list; ANY_COST
    i64 local_memory      # bytes of local memory that a workgroup may have, 0 = as many as it needs
    """,
)
"""Only Python writes it. A team's record stays valid as long as the device, also when another has replaced it:
whoever reads ``team`` once and takes the number of threads from there is never wrong."""

ANY_COST: Final = -1

_OPEN, _TEAM, _IMMEDIATE, _LOCAL_MEMORY = (QUEUE.word(field) for field in QUEUE.offsets)


class QueueRecord:
    """The QUEUE record of one queue; closed at first."""

    __slots__ = ("_words", "address")

    def __init__(self, local_memory: int = 0) -> None:
        self._words = array("q", bytes(QUEUE.size))
        self._words[_IMMEDIATE] = ANY_COST
        self._words[_LOCAL_MEMORY] = local_memory
        self.address: int = self._words.buffer_info()[0]

    @property
    def is_open(self) -> bool:
        return self._words[_OPEN] != 0

    def open(self) -> None:
        self._words[_OPEN] = 1

    def close(self) -> None:
        """What machine code has begun to execute goes on."""
        self._words[_OPEN] = 0

    def share(self, team: int, immediate: int) -> None:
        """Sets the team (0 = none) and what threads that must not be held up may spend."""
        self._words[_TEAM] = team
        self._words[_IMMEDIATE] = immediate
