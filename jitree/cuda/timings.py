"""The times of a GPU in a profile: CUPTI's records, or events around single launches where it is missing."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from jitree.cuda.cupti import OWN_KERNELS, Records, tracer
from jitree.errors import StatusError
from jitree.hal.local.queue_record import PROFILED
from jitree.hal.observing import DISPATCH
from jitree.hal.profiling import DISPATCHES, OPERATION, CostlyTimings, Measurement, ProfilingMode, now

if TYPE_CHECKING:
    from jitree.cuda.cupti import Tracer
    from jitree.cuda.plan_sizes import Kernel
    from jitree.cuda.stream import Stream

_LOWER_HALF: Final = 0xFFFFFFFF


class CudaTimings(CostlyTimings):
    """The timings of one device. With CUPTI, graphs, recordings and machine code go on; with events they do
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
            "launches by events around each, which adds some us to it, without graphs and recordings; with "
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
            stream.take()
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
        """For each call of the driver what it has launched, from its first beginning to its last end, and
        each kernel and transfer."""
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
