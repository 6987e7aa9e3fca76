"""Shares with machine code how a device that works by itself is given work.

A device that works by itself numbers what it is given. Python owns its timeline while ``owner`` is
OWNED_BY_PYTHON, as at first. When it has submitted what it had to it hands the timeline over, and takes it
back before it counts a submission. Machine code submits by functions of the driver, whose record derives from
:class:`Timeline`. So all that is counted has entered, or is held back, except between Python's count and its
handing over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from jitree.codegen.record import Atomic, MemoryRecord, Repeated

if TYPE_CHECKING:
    from jitree.codegen.record import i64
    from jitree.hal.command_buffer import CommandBuffer
    from jitree.hal.semaphore import Semaphore


class Timeline(MemoryRecord):
    """Numbers what a device was given, and names functions that give more.

    The driver's functions take the address of this record first. They return 1, or 0 where nothing has
    happened. Who calls ``submit`` or ``stage`` has set ``owner`` from OWNED_BY_CODE to SUBMITTING; the others
    do that themselves."""

    owner: Atomic  # OWNED_BY_*, SUBMITTING
    tick: i64  # number of the newest submission
    completed: i64  # everything up to here is done on the device
    worked: i64  # number of the newest submission that is no upload of an argument's elements
    place: i64  # the number by which entries name its memory (ENTRY.access)
    kind: i64  # of the device, as DLPack numbers it,
    ordinal: i64  # its own number there,
    handle: i64  # and that of its order
    lends: i64  # 1 = machine code has used memory of other libraries
    exports: i64  # EXPORTED_BY_*: who has given them memory of the device; 0 = none was given
    exposed: i64  # 1 = other devices use its memory
    known: i64  # address of MOST_KNOWN KnownRecords
    known_count: i64  # uploads since the newest other submission; number N's is record N % MOST_KNOWN
    owed: Atomic  # number of the newest submission that hosts wait for after a call (STATE.owed)
    asking: Atomic  # threads of machine code that use the timeline, which lives as long
    submit: i64  # (HandlePoolRecord.known_lists, a List, addresses, lengths, updates' bytes): counts it
    stage: i64  # (target, source, length): copies an argument from memory that both see, and counts that
    is_done: i64  # (number, looks): whether a submission is done; it begins, also without any look
    follow: i64  # (another library's order): what is submitted from now on comes after what that has by now
    join: i64  # (place): the same, of another timeline of the driver
    precede: i64  # (another library's order): what that gets from now on comes after what is submitted by now


class KnownRecord(MemoryRecord):
    """Says what an upload has written to memory that was new.

    Nothing else had been told of that memory. Where nothing but uploads has been submitted since, the host
    knows what is there."""

    address: i64  # of the device
    length: i64
    bytes: i64 = Repeated(32)  # the first ones


MOST_KNOWN: Final = 8
MOST_KNOWN_BYTES: Final = 8 * 32

DEFAULT_ORDER: Final = 1
"""The order that libraries share which name none, by the number that DLPack gives it."""
OWNED_BY_PYTHON: Final = 0
OWNED_BY_CODE: Final = 1
SUBMITTING: Final = 2
"""Machine code is just submitting something."""
EXPORTED_BY_CODE: Final = 1
"""Python does not know what of it."""
EXPORTED_BY_PYTHON: Final = 2


class KnownLists(Protocol):
    """Learns a handle table's command lists, which machine code can submit then."""

    address: int
    """``HandlePoolRecord.known_lists``, which only the driver reads."""

    def learn(self, commands: CommandBuffer) -> None:
        """Lets machine code submit lists of this shape, if that is possible."""

    def learn_transfers(self) -> None:
        """As :meth:`learn`, of single fills, copies and updates."""

    def clear(self) -> None:
        """Forgets all. What the device still works on it keeps."""


class SharedTimeline(Protocol):
    """Shows a device's timeline to the handle pool that has its memory."""

    def known_lists(self) -> KnownLists:
        """Makes those of one handle table."""

    def promised(self, tick: int) -> Semaphore:
        """Reaches 1 when a submission is done."""
