"""Repeats a recorded call on a GPU as one graph, with other arguments.

The program does not run. The commands of all submissions become one plan, whose addresses are relative to
arguments and results wherever they lay in them; everything else, transient memory too, stays where it was
when the call was recorded. Where the program looked at bytes, the graph ends, the host waits and compares: as
long as it finds what the program found then, the program would do the same again.
"""

from __future__ import annotations

import weakref
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from jitree.base.finalizers import guard, with_lock
from jitree.cuda.command_buffer import Bound
from jitree.cuda.graph import SegmentRunner
from jitree.cuda.plan import Launch, LaunchPlan, PlanSegment, describe
from jitree.cuda.semaphore import CudaSemaphore
from jitree.hal import recording
from jitree.hal.buffer import Buffer
from jitree.hal.fence import Fence
from jitree.hal.local.queue_record import RECORDED
from jitree.hal.recording import CallRecording, RecordedRead, Request, Submission

if TYPE_CHECKING:
    from jitree.cuda.stream import Stream
    from jitree.hal.allocator import Allocator

_BLOCKS_KEPT: Final = 16
"""Parameter blocks by addresses of arguments and results, which alternate between a few."""

_RECORDED_PART: Final = 16
"""A recording may keep this part of the device's memory,"""
_KEPT_PART: Final = 4
"""All recordings together may keep this part of it."""
_FEW_SUBMISSIONS: Final = 40
"""The most submissions of a call that is not recorded. Measured with 14 programs on an H200: a recorded call
takes 80 us of Python more than one by machine code, and 1.5 to 3.2 us less for each submission."""


class Located(NamedTuple):
    """Locates the arguments of a call as the device finds them."""

    addresses: tuple[int, ...]
    are_borrowed: bool
    """Whether memory of others is among them."""


class ReplayRelocation(NamedTuple):
    """Locates a word of a block that addresses an argument or a result."""

    word: int
    source: int
    """Position among the arguments and, after them, the results."""
    offset: int


class _LaunchSequence:
    """Launches up to a read, or to the end."""

    def __init__(
        self,
        stream: Stream,
        plan: LaunchPlan,
        segment: PlanSegment,
        block: array[int],
        relocations: tuple[ReplayRelocation, ...],
        reads: tuple[RecordedRead, ...],
    ) -> None:
        self._runner = SegmentRunner(stream.context, plan, segment) if segment.groups else None
        self._describe = partial(describe, plan)
        self._template = block
        self._relocations = relocations
        self.reads = reads
        """What the program saw when these launches were done."""
        self._blocks: OrderedDict[tuple[int, ...], tuple[array[int], bytes]] = OrderedDict()

    def launch(self, stream: Stream, addresses: tuple[int, ...]) -> None:
        """The caller holds the stream's lock."""
        if self._runner is None:
            return
        known = self._blocks.get(addresses)
        if known is None:
            block = self._template[:]
            for word, source, offset in self._relocations:
                block[word] = addresses[source] + offset
            known = self._blocks[addresses] = block, block.tobytes()
            if len(self._blocks) > _BLOCKS_KEPT:
                self._blocks.popitem(last=False)
        self._runner.launch(stream, *known)
        stream.note(self._describe)

    def finds_the_same(self) -> bool:
        """Whether the program would see now what it saw. The launches must be done."""
        return all(
            bytes(read.buffer.host_view()[read.offset : read.offset + len(read.contents)]) == read.contents
            for read in self.reads
        )


class CudaReplay:
    """Repeats a recorded call. May be used from any thread."""

    __slots__ = ("__weakref__", "_kept", "_lock", "_parts", "_requests", "_stream", "dropped", "kept_bytes")

    def __init__(
        self,
        stream: Stream,
        parts: list[_LaunchSequence],
        requests: list[Request],
        kept: list[object],
        kept_bytes: int,
    ) -> None:
        """``requests`` are the allocations that the caller gets; ``kept`` is what the commands use
        besides."""
        self._stream = stream
        self._parts = parts
        self._requests = [request[:3] for request in requests]
        self._kept = kept
        self.kept_bytes = kept_bytes
        """Bytes of device and pinned memory that it keeps."""
        self.dropped = False
        """Whether it can no longer be made."""
        self._lock = guard()

    def run(self, arguments: Located, allocator: Allocator) -> list[Buffer] | None:
        """Submits the call and gives its results, which the device still computes.

        None when the program would take another way; then it must be run, and nothing has happened that
        it would notice.
        """
        stream = self._stream
        with self._lock:  # transient memory is for one call at a time
            if self.dropped:
                return None
            results = [allocator.allocate(*request) for request in self._requests]
            addresses = (*arguments.addresses, *[buffer.address for buffer in results])
            for part in self._parts:
                with stream.lock:
                    stream.begin()
                    stream.flush()
                    part.launch(stream, addresses)
                    stream.retain((part, self._kept))
                    stream.end()
                if part.reads:
                    stream.synchronize()
                    if not part.finds_the_same():
                        return None
            if arguments.are_borrowed:
                stream.finish()  # whose memory it is may change it as soon as the call returns
        return results

    def drop(self) -> None:
        """Gives back graphs and memory, as soon as the device is done with them."""
        with self._lock:
            self._drop()

    def drop_if_idle(self) -> None:
        """As :meth:`drop`, unless a call is being submitted."""
        with_lock(self._lock, self._drop)

    def _drop(self) -> None:
        self.dropped = True
        self._parts, self._kept = [], []
        self.kept_bytes = 0


def make_replay(stream: Stream, recording: CallRecording, results: Sequence[int]) -> CudaReplay | str:
    """The replay of a recording; else why it cannot be repeated.

    ``results`` are the numbers of the allocations that the caller gets.
    """
    refusal = _refusal(recording)
    if refusal is not None:
        return refusal
    requests = [recording.requests[number] for number in results]
    moving = {id(request.buffer.allocation) for request in requests}
    moving |= {id(buffer.allocation) for buffer in recording.arguments}
    if any(
        isinstance(event, RecordedRead) and id(event.buffer.allocation) in moving
        for event in recording.events
    ):
        return "the host reads an argument or a result"
    buffers = [*recording.arguments, *(request.buffer for request in requests)]
    fresh = _Ranges([request.buffer for request in recording.requests])
    builder = _ReplayBuilder(stream, _Ranges(buffers), None if not _reads(recording) else fresh)
    for event in recording.events:
        if isinstance(event, Submission):
            builder.submit(event)
        else:
            builder.read(event)
    if builder.refusal is not None:
        return builder.refusal
    kept: list[object] = [event.retained for event in recording.events if isinstance(event, Submission)]
    wanted = set(results)
    transient = [request for number, request in enumerate(recording.requests) if number not in wanted]
    kept += [request.buffer for request in transient]
    kept_bytes = sum(request.size for request in transient)
    return CudaReplay(stream, builder.finish(), requests, kept, kept_bytes)


def _reads(recording: CallRecording) -> int:
    return sum(isinstance(event, RecordedRead) for event in recording.events)


def _refusal(recording: CallRecording) -> str | None:
    if recording.refusal is not None:
        return recording.refusal
    if recording.announced != recording.submitted:
        return "work waited for something outside of the call"
    arguments = {id(buffer.allocation) for buffer in recording.arguments}
    for event in recording.events:
        if isinstance(event, Submission) and event.persistent & arguments:
            return "an argument is memory that the program keeps"
    return None


class _Ranges:
    """Which of some buffers an address lies in."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        rows = sorted((b.address, b.address + b.byte_length, number) for number, b in enumerate(buffers))
        self._rows = rows
        self._starts = [start for start, _, _ in rows]

    def find(self, address: int) -> tuple[int, int] | None:
        """(number of the buffer, offset in it)"""
        position = bisect_right(self._starts, address) - 1
        if position < 0:
            return None
        start, end, number = self._rows[position]
        return (number, address - start) if address < end else None


class _ReplayBuilder:
    """Puts submissions after each other into parts."""

    def __init__(self, stream: Stream, movable: _Ranges, writable: _Ranges | None) -> None:
        """``writable``: where commands may write when the call may have to be made again; None: anywhere."""
        self._stream = stream
        self._movable = movable
        self._writable = writable
        self.refusal: str | None = None
        self._parts: list[_LaunchSequence] = []
        self._start()

    def submit(self, submission: Submission) -> None:
        bound = submission.commands
        assert isinstance(bound, Bound)
        plan, block = bound.plan, bound.block
        if not plan.steps:
            return
        segment = plan.segment
        if segment is None:
            self.refusal = "it has collectives, or grids that lie in device memory"
            return
        base, first = len(self._block), len(self._launches)
        self._block.extend(block)
        self._launches.extend(launch._replace(first=launch.first + base) for launch in plan.launches)
        self._groups.extend(tuple(number + first for number in group) for group in segment.groups)
        for word in plan.addresses:
            found = self._movable.find(block[word])
            if found is not None:
                self._relocations.append(ReplayRelocation(base + word, *found))
        if self._writable is not None and not all(self._writable.find(block[word]) for word in plan.written):
            self.refusal = "it reads on the host and changes memory that outlives the call"

    def read(self, event: RecordedRead) -> None:
        self._reads.append(event)
        self._end()

    def finish(self) -> list[_LaunchSequence]:
        if self._launches or not self._parts:
            self._end()
        return self._parts

    def _start(self) -> None:
        self._block = array("q")
        self._launches: list[Launch] = []
        self._groups: list[tuple[int, ...]] = []
        self._relocations: list[ReplayRelocation] = []
        self._reads: list[RecordedRead] = []

    def _end(self) -> None:
        segment = PlanSegment(tuple(self._groups))
        plan = LaunchPlan(tuple(self._launches), (segment,), tuple, (), (), (), (), (), ())
        part = _LaunchSequence(
            self._stream, plan, segment, self._block, tuple(self._relocations), tuple(self._reads)
        )
        self._parts.append(part)
        self._start()


class CudaReplays:
    """Keeps the recordings of one GPU."""

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
        """Keeps a recording, unless its call has too much transient memory. Machine code, which records
        nothing, does nothing meanwhile."""
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
        if not self.pays(0 if _has_reads(recorded) else recorded.submitted):
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


def _has_reads(recorded: CallRecording) -> bool:
    """Whether the host reads: then a recording is many graphs, and the program has its results sooner."""
    return any(isinstance(event, RecordedRead) for event in recorded.events)
