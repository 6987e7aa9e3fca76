"""The recordings that a device can repeat, and the memory that they keep."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from jitree.base.endings import guard
from jitree.cuda.replay import CudaReplay, Located, make_replay
from jitree.cuda.semaphore import CudaSemaphore
from jitree.hal import recording
from jitree.hal.fence import Fence
from jitree.hal.local.queue_record import RECORDED
from jitree.hal.recording import RecordedRead

if TYPE_CHECKING:
    from jitree.cuda.stream import Stream
    from jitree.hal.allocator import Allocator
    from jitree.hal.buffer import Buffer
    from jitree.hal.recording import CallRecording

_RECORDED_PART: Final = 16
"""A recording may keep this part of the device's memory,"""
_KEPT_PART: Final = 4
"""All recordings together may keep this part of it."""
_FEW_SUBMISSIONS: Final = 40
"""The most submissions of a call that is not recorded. Measured with 14 programs on an H200: a recorded call
takes 80 us of Python more than one by machine code, and 1.5 to 3.2 us less for each submission."""


class CudaReplays:
    """The :class:`jitree.hal.replays.Replays` of one GPU."""

    def __init__(self, stream: Stream, allocator: Allocator) -> None:
        """``allocator``: the one that recorded calls get their memory from."""
        self._stream = stream
        self._allocator = allocator
        self.is_device_allocator = True
        """Whether the device allocates with that one."""
        self._memory = stream.context.info.memory
        self._lock = guard()
        self._made: list[weakref.ref[CudaReplay]] = []
        """The oldest first."""

    @property
    def are_usable(self) -> bool:
        return self.is_device_allocator and not self._stream.measures

    @property
    def submitted(self) -> int:
        return self._stream.tick

    def pays(self, submissions: int) -> bool:
        return not self._stream.share.is_connected or submissions > _FEW_SUBMISSIONS

    def follows(self, fence: Fence) -> bool:
        return self._stream.follows(fence)

    @contextmanager
    def record(self, arguments: Sequence[Buffer]) -> Iterator[CallRecording | None]:
        """A recording keeps the transient memory of its call, which must not be too much. Machine code, which
        records nothing, does nothing meanwhile."""
        record = self._stream.share.record
        with recording.recording(self._stream, arguments, self._memory // _RECORDED_PART) as made:
            if made is not None:
                record.hold(RECORDED)
            try:
                yield made
            finally:
                if made is not None:
                    record.release(RECORDED)

    def make(self, recorded: CallRecording, results: Sequence[int]) -> CudaReplay | None:
        if not self.pays(0 if _reads(recorded) else recorded.submitted):
            return None
        replay = make_replay(self._stream, recorded, results)
        if isinstance(replay, str):
            return None
        kept = self._kept()
        total = replay.kept_bytes + sum(made.kept_bytes for made in kept)
        for made in kept:
            if total <= self._memory // _KEPT_PART:
                break
            total -= made.kept_bytes
            made.drop()
        with self._lock:
            self._made.append(weakref.ref(replay))
        return replay

    def locate(self, arguments: Sequence[Buffer]) -> Located:
        stream = self._stream
        return Located(
            tuple([stream.device_address(buffer) for buffer in arguments]),
            not all([stream.orders(buffer.allocation) for buffer in arguments]),
        )

    def run(self, replay: CudaReplay, arguments: Located) -> tuple[list[Buffer], Fence] | None:
        buffers = replay.run(arguments, self._allocator)
        return None if buffers is None else (buffers, self._fence_here())

    def drop(self) -> None:
        """Gives back all that recordings keep; the calls are run, and recorded, anew."""
        for replay in self._kept():
            replay.drop()

    def drop_idle(self) -> None:
        """As :meth:`drop`, of those that are not just being made: memory has run out. Does not wait."""
        for replay in self._kept():
            replay.drop_if_idle()

    def _kept(self) -> list[CudaReplay]:
        """Those that can still be made."""
        with self._lock:
            found = [replay for reference in self._made if (replay := reference()) and not replay.dropped]
            self._made = [weakref.ref(replay) for replay in found]
        return found

    def _fence_here(self) -> Fence:
        """Reached when everything submitted so far is done."""
        semaphore = CudaSemaphore()
        with self._stream.lock:
            self._stream.promise(semaphore, 1)
        return Fence(((semaphore, 1),))


def _reads(recorded: CallRecording) -> bool:
    """Whether the host reads: then a recording is many graphs, and the program has its results sooner."""
    return any(isinstance(event, RecordedRead) for event in recorded.events)
