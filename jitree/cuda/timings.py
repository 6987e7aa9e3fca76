"""Measures a GPU for a profile, from CUPTI's activity records or events.

CUPTI says what the GPU did, and when, while graphs and machine code remain. It comes with the
CUDA toolkit and with other packages (``nvidia-cuda-cupti``). Without it launches are measured by events
around each (:mod:`jitree.cuda.steps`).
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from jitree.base.events import DISPATCH
from jitree.base.finalizers import guard
from jitree.base.platform import open_library
from jitree.base.records import NamedTuple
from jitree.errors import StatusError, pass_interruption
from jitree.hal.local.queue_record import PROFILED
from jitree.hal.profiling import DISPATCHES, OPERATION, CostlyTimings, Measurement, ProfilingMode, now

if TYPE_CHECKING:
    from jitree.cuda.plan import Kernel
    from jitree.cuda.stream import Stream

MEMCPY: Final = 1
MEMSET: Final = 2
DRIVER: Final = 4
KERNEL: Final = 10
"""CUPTI_ACTIVITY_KIND_…"""
_KINDS: Final = (KERNEL, MEMCPY, MEMSET, DRIVER)
_NAMES: Final = {MEMCPY: "copy", MEMSET: "fill"}
OWN_KERNELS: Final = {"jitree_copy": "copy", "jitree_fill": "fill"}
_BUFFER: Final = 4 << 20
"""Bytes that CUPTI gets at a time: 20,000 kernels."""
_FORCED: Final = 1
"""CUPTI_ACTIVITY_FLAG_FLUSH_FORCED"""
_READINGS: Final = 5
_DOUBT: Final = 20_000
"""Nanoseconds by which two spans may differ because readings take time."""
_KIND: Final = struct.Struct("<I")
RECORDS: Final = {
    KERNEL: struct.Struct("<16xQQ8xI4xIiii28xI8xQ"),
    MEMCPY: struct.Struct("<8xQQQI4xII"),
    MEMSET: struct.Struct("<8xQQQI4xII"),
    DRIVER: struct.Struct("<8xQQ4xII"),
}
"""The same from CUDA 9 (CUpti_ActivityKernel4) to 13: of kernels beginning, end, device, stream, grid, launch
and name; of transfers bytes, beginning, end, device, stream, launch; of calls of the driver beginning, end,
thread, launch."""

_LOWER_HALF: Final = 0xFFFFFFFF


class Work(NamedTuple):
    """Times a kernel or a transfer; times are CUPTI's."""

    name: str
    kind: str
    begun: int
    ended: int
    device: int
    stream: int
    launch: int
    """Number of the call of the driver: all kernels of a graph have one."""
    bytes: int
    """Bytes that a transfer moved."""
    grid: tuple[int, int, int]
    """Workgroups of a kernel."""


class DriverCall(NamedTuple):
    """Times a call of the driver."""

    begun: int
    thread: int
    """The lower half of its number."""


class Clock(NamedTuple):
    """CUPTI's clock, by what it and ours show at two moments. It counts nanoseconds,
    some less or more than ours, unless another tool of the process has given CUPTI a clock of another unit,
    as torch.profiler does for good."""

    begun: tuple[int, int]
    """The moment of the beginning by CUPTI's clock, and by ours."""
    ended: tuple[int, int]

    @property
    def unit(self) -> float:
        """Nanoseconds of ours that are one of CUPTI's."""
        (begun, own_begun), (ended, own_ended) = self
        theirs, own = ended - begun, own_ended - own_begun
        return 1 if abs(theirs - own) < _DOUBT else own / max(theirs, 1)

    def own(self, time: int) -> int:
        """The time of our clock for one of CUPTI's."""
        theirs, own = self.ended
        return own + round((time - theirs) * self.unit)


class Records(NamedTuple):
    """Holds what CUPTI has told."""

    work: list[Work]
    launches: dict[int, DriverCall]
    """Calls of the driver that started kernels, by the number that CUPTI gives them."""
    clock: Clock
    dropped: int


@cache
def tracer() -> Tracer | None:
    """The tracer of this process; None without CUPTI."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        path = load_nvidia_dynamic_lib("cupti").abs_path
    except Exception as error:  # too old to know it, or none is installed: each version has another exception
        pass_interruption(error)
        path = "libcupti.so"
    try:
        return Tracer(open_library(path))
    except OSError as error:
        pass_interruption(error)
        return None


class Tracer:
    """CUPTI's records. Full buffers wait until a profile asks for them, since reading takes time."""

    def __init__(self, cupti: Any) -> None:
        self._cupti = cupti
        self._lock = guard()
        """A session that is forgotten ends its profile where another begins or ends its own."""
        self._users = 0
        self._recording = 0
        """How many users have not paused."""
        self._begun = 0, 0
        self._memory: dict[int, ctypes.Array[ctypes.c_uint64]] = {}
        self._complete: list[tuple[int, int]] = []
        """Address and length of each buffer that CUPTI has filled."""
        self._request, self._completed = _REQUEST(self._give), _COMPLETED(self._take)

    def start(self) -> bool:
        """Whether it records from now on: not if another tool uses CUPTI."""
        with self._lock:
            cupti = self._cupti
            self._users += 1  # first, so that nothing is disabled that another user ends meanwhile
            self._recording += 1
            is_first, begins = self._users == 1, self._recording == 1
            if is_first and cupti.cuptiActivityRegisterCallbacks(self._request, self._completed):
                self._take_back()
                return False
            if begins and any(cupti.cuptiActivityEnable(kind) for kind in _KINDS):
                self._disable()
                self._take_back()
                return False
            if is_first:
                self._begun = self._times()
            return True

    def _take_back(self) -> None:
        self._users -= 1
        self._recording -= 1

    def pause(self) -> None:
        """Stops records for one user until it resumes. The device of that user is idle."""
        with self._lock:
            self._recording -= 1
            if not self._recording:
                self._cupti.cuptiActivityFlushAll(0)  # else the ends of kernels are as late as the next flush
                self._disable()

    def resume(self) -> None:
        with self._lock:
            self._recording += 1
            if self._recording == 1:
                for kind in _KINDS:
                    self._cupti.cuptiActivityEnable(kind)

    def stop(self) -> Records:
        """All records since the first of its present users began. The user that stops has paused, and the
        device of that user is idle."""
        with self._lock:
            clock = Clock(self._begun, self._times())
            self._cupti.cuptiActivityFlushAll(_FORCED)
            work, launches = list[Work](), dict[int, DriverCall]()
            for address, length in self._complete:
                self._read(address, length, work, launches)
            self._users -= 1
            if not self._users:
                for address, _ in self._complete:
                    del self._memory[address]
                self._complete = []
            dropped = ctypes.c_size_t()
            self._cupti.cuptiActivityGetNumDroppedRecords(None, 0, ctypes.byref(dropped))
            return Records(work, launches, clock, dropped.value)

    def _disable(self) -> None:
        for kind in _KINDS:
            self._cupti.cuptiActivityDisable(kind)

    def _times(self) -> tuple[int, int]:
        """The time of CUPTI's clock and of ours, from the closest of several readings."""
        readings, stamp = [], ctypes.c_uint64()
        for _ in range(_READINGS):
            before = now()
            self._cupti.cuptiGetTimestamp(ctypes.byref(stamp))
            after = now()
            readings.append((after - before, stamp.value, (before + after) // 2))
        return min(readings)[1:]

    # -- called by CUPTI, on any thread ------------------------------------------------------------------

    def _give(self, buffer: Any, size: Any, most: Any) -> None:
        memory = (ctypes.c_uint64 * (_BUFFER // 8))()
        address = ctypes.addressof(memory)
        self._memory[address] = memory
        buffer[0], size[0], most[0] = address, _BUFFER, 0

    def _take(self, context: int, stream: int, address: int, size: int, length: int) -> None:
        self._complete.append((address, length))

    # ------------------------------------------------------------------------------------------------------

    def _read(self, address: int, length: int, work: list[Work], launches: dict[int, DriverCall]) -> None:
        memory, record = self._memory[address], ctypes.c_void_p()
        following = self._cupti.cuptiActivityGetNextRecord
        while not following(ctypes.c_void_p(address), ctypes.c_size_t(length), ctypes.byref(record)):
            place = (record.value or 0) - address
            (kind,) = _KIND.unpack_from(memory, place)
            if kind not in RECORDS:
                continue
            fields = RECORDS[kind].unpack_from(memory, place)
            if kind == DRIVER:
                begun, _, thread, number = fields
                launches[number] = DriverCall(begun, thread)
            elif kind == KERNEL:
                *place_and_time, x, y, z, launch, name = fields
                text = ctypes.string_at(name).decode(errors="backslashreplace")
                what = text, OWN_KERNELS.get(text, DISPATCH)
                work.append(Work._make((*what, *place_and_time, launch, 0, (x, y, z))))
            else:
                size, *rest = fields
                work.append(Work._make((_NAMES[kind], _NAMES[kind], *rest, size, (0, 0, 0))))


_REQUEST: Final = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
_COMPLETED: Final = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
)


class CudaTimings(CostlyTimings):
    """Times what one device does. With CUPTI, graphs and machine code go on; with events they do
    not."""

    worker = "stream"

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._mode = ProfilingMode.NONE
        self._tracer: Tracer | None = None
        self._begun = 0
        self._is_paused = False
        self._measured: tuple[Measurement, ...] = ()

    def describe(self) -> str:
        """What it measures, or has measured."""
        if self._tracer is not None:
            return "kernels and transfers of the process on the GPU, by CUPTI's records of them"
        return (
            "launches by events around each, which adds some us to it, without graphs; with "
            "nvidia-cuda-cupti installed it has the GPU's own times"
        )

    def begin(self, mode: ProfilingMode) -> None:
        self._mode, self._measured, self._tracer, self.lost, self.callers = mode, (), None, 0, ()
        with self._stream.lock:
            self._stream.sizes.begin()
        if mode & DISPATCHES:
            self._stream.context.enter()
            found = tracer()
            if found is not None and found.start():
                self._tracer = found
        self._begun, self._is_paused = now(), self._tracer is None
        self.resume()

    def resume(self) -> None:
        if not self._is_paused:
            return
        self._stream.finish()
        self._is_paused = False
        if self._tracer is not None:
            self._tracer.resume()
        else:
            self._stream.measures = self._mode
            self._stream.share.record.hold(PROFILED)

    def pause(self) -> None:
        if self._is_paused:
            self._stream.finish()
            return
        self._is_paused = True
        try:
            self._stream.finish()  # what was promised is signalled without the lock
        finally:  # Ctrl-C ends the wait
            if self._tracer is not None:
                self._stop_tracing(self._tracer)
            else:
                self._stream.measures = 0
                self._stream.share.record.release(PROFILED)

    def end(self) -> None:
        self.pause()
        with self._stream.lock:
            sizes = self._stream.sizes.end()
        if self._tracer is not None:
            records = self._tracer.stop()
            self.lost = records.dropped
            self._measured = tuple(self._measurements(records, sizes))

    def measurements(self) -> Iterable[Measurement]:
        """With CUPTI, once it has ended; events are the profiler's as they come."""
        return self._measured

    def after_fork(self) -> None:
        """CUPTI knows nothing of the child."""
        self._tracer, self._is_paused = None, True

    def _stop_tracing(self, tracer: Tracer) -> None:
        """Between submissions: ends of kernels that are running would be as late as CUPTI's next flush."""
        stream = self._stream
        with stream.lock:
            stream.share.take()
            try:
                with suppress(StatusError):  # the next wait has it, too
                    stream.context.enter()
                    stream.flush()
                    if stream.tick != stream.completed and stream.api.lost is None:
                        stream.api.synchronize_stream(stream.handle)
            finally:
                tracer.pause()
                stream.end()

    def _measurements(self, records: Records, sizes: Mapping[Kernel, int]) -> Iterator[Measurement]:
        """Pairs driver calls with what they launched, and each kernel and transfer. A call's launches last
        from the first beginning to the last end."""
        ordinal, own = self._stream.context.ordinal, records.clock.own
        threads = {identity & _LOWER_HALF: identity for identity in (*self.callers, *sys._current_frames())}
        spans: dict[int, tuple[str, int, int]] = {}
        for work in records.work:
            begun, ended = own(work.begun), own(work.ended)
            if work.device != ordinal or begun < self._begun:
                continue
            launch = records.launches.get(work.launch)
            submitted = own(launch.begun) if launch is not None else 0
            thread = threads.get(launch.thread, 0) if launch is not None else 0
            size = work.bytes or sizes.get((work.name, work.grid), 0)
            shown = OWN_KERNELS.get(work.name, work.name)
            yield Measurement(
                shown, begun, ended - begun, work.kind, submitted, thread,
                job=work.launch, worker=work.stream, bytes=size,
            )  # fmt: skip
            name = "execute" if work.kind == DISPATCH or work.launch in spans else work.kind
            _, first, last = spans.get(work.launch, ("", begun, ended))
            spans[work.launch] = name, min(first, begun), max(last, ended)
        for number, (name, begun, ended) in spans.items():
            launch = records.launches.get(number)
            submitted = own(launch.begun) if launch is not None else 0
            thread = threads.get(launch.thread, 0) if launch is not None else 0
            yield Measurement(name, begun, ended - begun, OPERATION, submitted, thread, job=number)
