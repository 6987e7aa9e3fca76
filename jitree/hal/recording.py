"""Records what a call makes a device do, to repeat it without the program.

One recording is made at a time in a process. Drivers and the HAL module state what happens through the
functions here; each looks at :data:`active` first, which is None nearly always. What cannot be done again
the same way (files, host writes, channels) makes the recording useless: :func:`unrepeatable`.
"""

from __future__ import annotations

from _thread import allocate_lock, get_ident
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, Protocol

from jitree.base.records import NamedTuple
from jitree.hal.buffer import Buffer
from jitree.hal.fence import Fence


class Request(NamedTuple):
    """Records an allocation: the arguments of ``Allocator.allocate`` and what it gave."""

    memory_type: int
    usage: int
    size: int
    buffer: Buffer


class Submission(NamedTuple):
    """Commands that entered a queue; what they are is the driver's business."""

    commands: Any
    retained: tuple[object, ...]
    """Kept as long as the recording."""
    persistent: frozenset[int]
    """ids of allocations that the commands name themselves and that outlive the call."""


class RecordedRead(NamedTuple):
    """Records that the program looked at bytes. What it did next depends on them."""

    buffer: Buffer
    offset: int
    contents: bytes


class CallRecording:
    """Records what one call on one device did, in order."""

    def __init__(self, device: object, arguments: Sequence[Buffer], memory_limit: int) -> None:
        """``memory_limit``: bytes that the call may allocate, all of which is kept while it is recorded."""
        self.device = device
        self._memory_left = memory_limit
        self.arguments = tuple(arguments)
        self.requests: list[Request] = []
        self.events: list[Submission | RecordedRead] = []
        self.refusal: str | None = None
        """Why the call cannot be repeated from this."""
        self.announced = 0
        """Submissions that the program made."""
        self._thread = get_ident()

    @property
    def is_here(self) -> bool:
        """Whether the call runs on this thread."""
        return self._thread == get_ident()

    @property
    def submitted(self) -> int:
        """Submissions that have entered the queue."""
        return sum(isinstance(event, Submission) for event in self.events)

    def refuse(self, reason: str) -> None:
        """Nothing is recorded any more, and nothing is kept."""
        if self.refusal is None:
            self.refusal = reason
            self.requests = []
            self.events = []

    def add_request(self, request: Request) -> None:
        self._memory_left -= request.size
        if self._memory_left < 0:
            self.refuse("it allocates too much memory")
        elif self.refusal is None:
            self.requests.append(request)

    def add_event(self, event: Submission | RecordedRead) -> None:
        if len(self.events) >= _MOST_EVENTS:
            self.refuse(f"it makes more than {_MOST_EVENTS} submissions and reads")
        elif self.refusal is None:
            self.events.append(event)


_MOST_EVENTS: Final = 20000
"""The most events of one call: more would become graphs that take long to make."""

active: CallRecording | None = None
_lock: Final = allocate_lock()


@contextmanager
def recording(
    device: object, arguments: Sequence[Buffer], memory_limit: int
) -> Iterator[CallRecording | None]:
    """Records what this thread does inside the block; None while another recording is made."""
    global active
    taken: list[bool] = []  # by functions in C: no interrupt comes before it is known
    try:
        next(map(taken.append, map(_lock.acquire, (False,))))
        if True in taken:
            active = CallRecording(device, arguments, memory_limit)
        yield active if True in taken else None
    finally:
        if True in taken:
            active = None
            _lock.release()


def current(device: object) -> CallRecording | None:
    """The recording of this thread's call on a device."""
    found = active
    return found if found is not None and found.is_here and found.device is device else None


def unrepeatable(what: str) -> None:
    """The call does something that must not, or cannot, be repeated from a recording."""
    found = active
    if found is not None and found.is_here:
        found.refuse(what)


def read(buffer: Buffer, offset: int, contents: bytes) -> None:
    """The program reads bytes of a buffer on the host."""
    found = active
    if found is not None and found.is_here:
        found.add_event(RecordedRead(buffer, offset, contents))


def allocated(request: Request) -> None:
    """The call allocated memory. Staging memory of the driver's own is not meant: it belongs to a
    submission."""
    found = active
    if found is not None and found.is_here:
        found.add_request(request)


class Replay(Protocol):
    """Repeats a recorded call."""

    @property
    def dropped(self) -> bool:
        """Whether it can no longer be made."""


class Replays(Protocol):
    """Keeps the recordings of one device. May be used from any thread."""

    @property
    def are_usable(self) -> bool:
        """Whether calls may be recorded and repeated now."""

    @property
    def submitted(self) -> int:
        """Submissions of the device so far."""

    def pays(self, submissions: int) -> bool:
        """Whether a call that makes so many takes less time from a recording."""

    def follows(self, fence: Fence) -> bool:
        """Whether later submissions run after what the fence stands for."""

    def record(self, arguments: Sequence[Buffer]) -> AbstractContextManager[CallRecording | None]:
        """Records what this thread does on the device; None while another recording is made."""

    def make(self, recording: CallRecording, results: Sequence[int]) -> Replay | None:
        """Makes what repeats a recorded call, None if that is impossible. ``results`` are the numbers of the
        allocations that its caller gets."""

    def locate(self, arguments: Sequence[Buffer]) -> Any:
        """Where the device finds arguments. PERMISSION_DENIED for memory that it cannot reach."""

    def run(self, replay: Any, arguments: Any) -> tuple[list[Buffer], Fence] | None:
        """Repeats a call: its results, and what is reached when they are computed. None when the program must
        be run."""
