"""Times of single dispatches, measured on the device by events around each."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jitree.cuda.graph import LaunchParameters, grid_of, launches_of
from jitree.cuda.plan import IndirectDispatch, Launch, LaunchPlan, PlanSegment
from jitree.cuda.steps import read_counts, run_collective_step
from jitree.hal.command_buffer import Collective
from jitree.hal.observing import DISPATCH
from jitree.hal.profiling import DISPATCHES, now

if TYPE_CHECKING:
    from jitree.cuda.handles import Owned
    from jitree.cuda.stream import Stream


def measures_dispatches(mode: int) -> bool:
    """Whether single dispatches are to be measured, which runs them without graphs."""
    return bool(mode & DISPATCHES)


class _Timer:
    """Pairs of events on one stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._events: list[tuple[Launch, Owned, Owned]] = []
        stream.api.synchronize_stream(stream.handle)
        self._start = self._record()
        self._start_time = now()

    def launch(self, launch: Launch, grid: tuple[int, int, int], parameters: int) -> None:
        stream = self._stream
        before = self._record()
        stream.api.launch_kernel(
            launch.function, grid, launch.block, launch.shared_memory, stream.handle, parameters
        )
        self._events.append((launch, before, self._record()))

    def finish(self) -> None:
        """Waits for the launches and hands their times to the stream's profiler."""
        stream = self._stream
        api = stream.api
        api.synchronize_stream(stream.handle)
        for launch, before, after in self._events:
            started = api.call("cuEventElapsedTime", self._start.handle, before.handle)
            start = self._start_time + round(1e6 * started)
            duration = round(1e6 * api.call("cuEventElapsedTime", before.handle, after.handle))
            stream.profiler.add(launch.name, start, start + duration, DISPATCH, size=launch.bytes)
            before.close()
            after.close()
        self._start.close()

    def _record(self) -> Owned:
        stream = self._stream
        event = stream.context.make("cuEventCreate", (0,), "cuEventDestroy")
        stream.api.record_event(event.handle, stream.handle)
        return event


def run_profiled(
    stream: Stream, plan: LaunchPlan, collectives: Sequence[Collective], block: array[int]
) -> None:
    """Runs a plan launch by launch; each is a measurement with its kernel's name. Waits for the device."""
    timer = _Timer(stream)
    parameters = LaunchParameters(block)
    for step in plan.steps:
        if isinstance(step, PlanSegment):
            for launch in launches_of(plan, step):
                timer.launch(launch, grid_of(launch, block), parameters.pointers(launch))
        elif isinstance(step, IndirectDispatch):
            launch = plan.launches[step.launch]
            grid = read_counts(stream, block[step.counts])
            if 0 not in grid:
                timer.launch(launch, grid, parameters.pointers(launch))
        else:
            run_collective_step(stream, collectives, step, block)
    timer.finish()
