"""Shares a stream with machine code, threads that query it, and forked processes.

Machine code gets its record, functions of the driver and memory. A stream is destroyed when no thread asks
the driver whether it is done, for which no lock is needed. A GPU belongs to the process that opened it, and
CUDA cannot be used in a child of that.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, Protocol, TypeVar
from weakref import finalize

from jitree.base.finalizers import SharedWeakSet, guard
from jitree.base.platform.threads import order_stores
from jitree.codegen import image
from jitree.codegen.record import size_of, words_of
from jitree.cuda.kernels import BYTES_PER_BLOCK, MAXIMUM_BLOCKS
from jitree.cuda.launches import MOST_HELD, MOST_HELD_WORDS, MOST_NEIGHBOURS, StreamRecord
from jitree.cuda.plan import Submission
from jitree.errors import FailedPreconditionError, UnimplementedError
from jitree.hal import watchdog
from jitree.hal.buffer import UNTOLD, Allocation
from jitree.hal.command_layout import List
from jitree.hal.local.queue_record import CLOSED, UNSUPPORTED, WATCHED, QueueRecord
from jitree.hal.timeline_record import (
    EXPORTED_BY_CODE,
    EXPORTED_BY_PYTHON,
    MOST_KNOWN,
    OWNED_BY_PYTHON,
    KnownRecord,
)
from jitree.regs.layout import PLACE_SHIFT

if TYPE_CHECKING:
    from jitree.cuda.api import Api, Handle
    from jitree.cuda.context import CudaContext
    from jitree.cuda.plan import CudaCommandList
    from jitree.hal.timeline_record import KnownLists

    class Inherited(Protocol):
        """A stream."""

        api: Api
        lock: threading.RLock
        share: StreamShare
        is_inherited: bool

    class MemoryStream(Protocol):
        """The stream of the device that memory belongs to."""

        context: CudaContext
        share: StreamShare


Item = TypeVar("Item")

_streams: Final[SharedWeakSet[Inherited]] = SharedWeakSet()

_QUERY_SECONDS: Final = 1.0
"""Seconds that machine code has to come out of a query of the driver, which takes less than a microsecond. A
stream that it is in for longer lives as long as the process."""


def watch(stream: Inherited) -> None:
    """Makes the stream refuse use in children that the process forks."""
    _streams.add(stream)


def _after_fork() -> None:
    for stream in _streams:
        stream.lock = guard()  # a thread that the child does not have may hold it
        stream.is_inherited = True
        stream.share.record.after_fork()
        stream.share.record.hold(CLOSED)
        stream.api.lost = FailedPreconditionError(
            f"{stream.api.name} was opened before this process was forked and cannot be used in it; open the "
            "device in a process that was started with 'spawn' (multiprocessing.set_start_method)"
        )


os.register_at_fork(after_in_child=_after_fork)


class QueriedStream(Protocol):
    """Stands for a stream that machine code queries, too."""

    @property
    def is_asked(self) -> bool: ...


class StreamUsers:
    """Counts the threads that query a stream in Python. The last one after :meth:`end` destroys the stream,
    since the thread that ends it may be among them (the garbage collector runs anywhere)."""

    def __init__(self, asked: QueriedStream, destroy: Callable[[], object]) -> None:
        """``destroy``: twice, also by two threads, is once."""
        self._asked = asked
        self._here: set[object] = set()
        self._destroy: tuple[Callable[[], object], ...] = (destroy,)
        self.are_over = False
        """Whether threads may no longer ask."""

    def ask(self, query: Callable[[bool], Item]) -> Item:
        """Counts this thread while it queries the stream, if it may: the query is told. Functions in C note
        that it is there, and that it has left. No interrupt comes before these, as it could before those of
        a context manager: the stream would have a user for good, and never be destroyed. Where memory is
        refused for the note, no other thread's is taken back."""
        thread = object()
        try:
            self._here.add(thread)  # first: a thread that calls `end` has to see it
            found = query(not self.are_over)
        finally:
            try:
                self._here.discard(thread)
                if self.are_over:
                    self._leave()
            except BaseException:  # an interrupt: no other thread may come
                if self.are_over:
                    self._leave()
                raise
        return found

    def end(self) -> None:
        """Machine code begins no query any more, and nothing is submitted."""
        self.are_over = True
        _ended.add(self)
        self._leave()

    def _leave(self) -> None:
        until = time.monotonic() + _QUERY_SECONDS
        while not self._here and self._asked.is_asked and time.monotonic() < until:
            time.sleep(0)
        if not self._here and not self._asked.is_asked:
            for destroy in self._destroy:  # once more, where that is interrupted
                destroy()
            self._destroy = ()
            _ended.discard(self)


_ended: Final[set[StreamUsers]] = set()
"""Those whose stream a thread is in still: what owns the stream must not be forgotten, which destroys it."""


_FUNCTIONS: Final = {
    "set_current": "cuCtxSetCurrent",
    "launch_graph": "cuGraphLaunch", "set_node": "cuGraphExecKernelNodeSetParams",
    "query": "cuStreamQuery", "record_event": "cuEventRecord", "wait_for_event": "cuStreamWaitEvent",
    "copy_to_device": "cuMemcpyHtoDAsync",
}  # fmt: skip
_LAST_PLACE: Final = (1 << 31 - PLACE_SHIFT) - 1
"""Devices that a process makes beyond that Python submits to."""
_places: Final = itertools.count(1)
_refuse: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda _: 1)
"""In place of cuStreamQuery, so that machine code leaves waiting to Python."""
_neighbours: Final = array("q", bytes(8 * MOST_NEIGHBOURS))
"""Addresses of StreamRecords by place."""
_STREAM: Final = words_of(StreamRecord)
_CUDA_DEVICE: Final = 2
"""kDLCUDA of dlpack.h."""
_HOOKS: Final = "submit", "stage", "is_done", "follow", "join", "precede"
"""Functions that a Timeline names."""
_LOOKS: Final = 8192
"""At a stream, before others than machine code wait: some 3 ms."""
_Fill: Final = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6)
RECIPE: Final = image.Recipe("streams", "what submits to GPUs", "jitree.cuda.submission:generate", 4.0)


def _forget(place: int) -> None:
    if 0 <= place < MOST_NEIGHBOURS:
        _neighbours[place] = 0


class _Code:
    """Functions of machine code that take the address of a StreamRecord. The GIL is released meanwhile."""

    def __init__(self, built: image.Image) -> None:
        number, addresses = ctypes.c_int64, built.addresses
        self.take_over = ctypes.CFUNCTYPE(number, number)(addresses["take_over"])
        self.hand_over = ctypes.CFUNCTYPE(None, number)(addresses["hand_over"])
        self.is_done = ctypes.CFUNCTYPE(number, number, number, number)(addresses["is_done"])


class StreamShare:
    """Keeps the STREAM and Queue records of one stream. The caller holds the stream's lock."""

    def __init__(self, context: CudaContext, handle: Handle, event: Handle) -> None:
        """``event``: for machine code."""
        self._words = array("q", bytes(size_of(StreamRecord)))
        self._known = array("q", bytes(size_of(KnownRecord) * MOST_KNOWN))
        self._held = array("q", bytes(8 * (MOST_HELD + MOST_HELD_WORDS)))
        self.address: int = self._words.buffer_info()[0]
        self.record = QueueRecord(self.address)
        """Open when machine code may submit."""
        self._lock = guard()
        """Of what groups change without the stream's."""
        self._is_over = False
        number = next(_places)
        self.place = number if number <= _LAST_PLACE else UNTOLD
        """The number of the memory whose use the stream orders."""
        self._programs: SharedWeakSet[KnownLists] = SharedWeakSet()
        self.awaited = 0
        """The newest submission that a thread has waited for in Python."""
        self._code: _Code | None = None
        self._driver = dict.fromkeys(_FUNCTIONS, 0)
        """Addresses of functions of the driver."""
        self._has_driver = self.place != UNTOLD and self._find_driver(context, handle, event)
        if self._has_driver and self.place < MOST_NEIGHBOURS:
            _neighbours[self.place] = self.address
        self.close = finalize(self, _forget, self.place)
        """Other streams do not follow this one any more."""
        self.close.atexit = False
        if watchdog.current is not None:
            self.record.hold(WATCHED)

    def _find_driver(self, context: CudaContext, handle: Handle, event: Handle) -> bool:
        values = {
            "handle": int(handle), "context": int(context.handle), "place": self.place,
            "event": int(event), "kind": _CUDA_DEVICE, "ordinal": context.ordinal,
            "block_bytes": BYTES_PER_BLOCK, "most_blocks": MAXIMUM_BLOCKS,
            "neighbours": _neighbours.buffer_info()[0], "known": self._known.buffer_info()[0],
            "held_programs": self._held.buffer_info()[0],
            "words": self._held.buffer_info()[0] + 8 * MOST_HELD,
        }  # fmt: skip
        for field, value in values.items():
            self._words[getattr(_STREAM, field)] = value
        try:
            self._driver = {field: context.api.address(name) for field, name in _FUNCTIONS.items()}
        except UnimplementedError:
            return False
        with suppress(UnimplementedError):  # before CUDA 11.8
            self._words[_STREAM.launch_kernel] = context.api.address("cuLaunchKernelEx")
        for field, value in self._driver.items():
            self._words[getattr(_STREAM, field)] = value
        return True

    def block(
        self, commands: CudaCommandList, count: int, addresses: array[int], lengths: array[int], data: int
    ) -> Submission:
        """What a submission of a list varies, in ``count`` words. ``data``: where the device finds the bytes
        of its updates."""
        words = array("q", bytes(8 * count))
        ranges, target = (addresses.buffer_info()[0], lengths.buffer_info()[0], data), words.buffer_info()[0]
        built = image.get(RECIPE)
        if built is None:
            from jitree.cuda.submission import fill_words  # where there is no machine code

            fill_words(StreamRecord(self.address), List(commands.address()), *ranges, target)
        else:
            _Fill(built.addresses["fill_words"])(self.address, commands.address(), *ranges, target)
        return Submission(words, addresses, lengths)

    @property
    def tick(self) -> int:
        """Number of the newest submission."""
        return self._words[_STREAM.tick]

    @property
    def completed(self) -> int:
        """Everything up to here is done on the device."""
        return self._words[_STREAM.completed]

    @completed.setter
    def completed(self, tick: int) -> None:
        self._words[_STREAM.completed] = tick

    @property
    def lends(self) -> bool:
        """Whether machine code has used memory of other libraries."""
        return bool(self._words[_STREAM.lends])

    @property
    def exports(self) -> bool:
        """Whether machine code has given memory to other libraries."""
        return self._words[_STREAM.exports] == EXPORTED_BY_CODE

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Keeps machine code from submitting meanwhile. The caller holds the stream's lock."""
        is_code = self._words[_STREAM.owner] != OWNED_BY_PYTHON
        self.take()
        try:
            yield
        finally:
            if is_code:
                self.hand_over()

    def launch_held(self) -> None:
        """Has what machine code holds back enter the stream."""
        if self._words[_STREAM.held]:
            self.take()
            self.hand_over()

    @property
    def refused(self) -> int:
        """The number of the submission of machine code that the driver has refused; 0 = none."""
        return self._words[_STREAM.failed]

    def forget_refused(self) -> None:
        self._words[_STREAM.failed] = 0

    def connect(self, programs: KnownLists) -> bool:
        """Whether machine code submits from now on what programs' tables hold."""
        self._programs.add(programs)
        if self._has_driver and self._code is None and not self._is_over:
            built = image.get(RECIPE)
            if built is not None:
                for name in _HOOKS:
                    self._words[getattr(_STREAM, name)] = built.addresses[name]
                self._code = _Code(built)
                self.record.release(UNSUPPORTED)
        return self._code is not None

    def forget_programs(self) -> None:
        """Has machine code forget what it has launched."""
        for programs in tuple(self._programs):
            programs.clear()
        self.hand_over()

    def refuse_waits(self) -> None:
        """Leaves waiting to Python. The device may get there without having done what it was told."""
        if self._has_driver:
            self._words[_STREAM.query] = ctypes.cast(_refuse, ctypes.c_void_p).value or 0

    def end(self) -> None:
        """Stops machine code from submitting, for good. Threads that wait do not ask for the stream again."""
        self.close()
        self.record.hold(CLOSED)
        with self._lock:
            self._is_over = True
            self.refuse_waits()
        self.take()
        self._code = None

    @property
    def is_owed(self) -> bool:
        """Whether another call waits, or has left a wait to the host."""
        return max(self._words[_STREAM.owed], self.awaited) > self._words[_STREAM.completed]

    @property
    def is_asked(self) -> bool:
        """Whether machine code asks the driver for the stream just now, on any thread."""
        # order of asking: a thread that begins to ask sees that it may not, or is seen here
        order_stores()
        return bool(self._words[_STREAM.asking])

    def allow_waits(self) -> None:
        """Takes :meth:`refuse_waits` back, unless the stream has ended."""
        with self._lock:
            if not self._is_over:
                self._words[_STREAM.query] = self._driver["query"]

    @property
    def launches_kernels(self) -> bool:
        """Whether machine code can launch kernels without a graph."""
        return bool(self._words[_STREAM.launch_kernel])

    def take(self) -> None:
        """The stream is Python's from now on."""
        if self._words[_STREAM.owner] != OWNED_BY_PYTHON:
            assert self._code is not None
            while not self._code.take_over(self.address):
                time.sleep(0)

    def count(self) -> int:
        """Counts a submission of Python's, which has taken the stream."""
        self._words[_STREAM.tick] += 1
        self._words[_STREAM.known_count], self._words[_STREAM.worked] = 0, self._words[_STREAM.tick]
        return self._words[_STREAM.tick]

    def forget_uploads(self) -> None:
        """Other libraries may write from now on to what the host knew of. The stream is Python's then."""
        self.take()
        self._words[_STREAM.known_count] = 0
        self._words[_STREAM.exports] = self._words[_STREAM.exports] or EXPORTED_BY_PYTHON

    def expose(self) -> None:
        """Other devices use its memory: from now on the host knows nothing of it."""
        self._words[_STREAM.exposed] = 1

    def is_done_in_a_moment(self, tick: int) -> bool:
        """Whether machine code, if there is any, finds a submission done."""
        code = self._code
        return tick <= self.completed or (code is not None and code.is_done(self.address, tick, _LOOKS) == 1)

    def hand_over(self) -> None:
        """All that has been counted has entered the stream: machine code may submit."""
        if self._code is not None:
            self._code.hand_over(self.address)


class CudaAllocation(Allocation):
    """Owns memory that GPUs reach. ``stream`` is set when it has been made."""

    __slots__ = ("stream",)
    stream: MemoryStream


class OrderedAllocation(CudaAllocation):
    """Owns memory that only its stream uses, in order. No user needs to retain it, and no other code writes
    to it."""

    __slots__ = ()
