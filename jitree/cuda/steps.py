"""Runs a plan: its segments as graphs, other steps between them.

While dispatches are profiled singly, events around each measure their times.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jitree.base.events import DISPATCH
from jitree.cuda.collectives import CollectiveCall, run_collectives
from jitree.cuda.executable import OwnCall
from jitree.cuda.graph import LaunchParameters, SegmentRunner, grid_of, launches_of
from jitree.cuda.plan import (
    CallStep,
    CollectiveStep,
    IndirectDispatch,
    Launch,
    LaunchPlan,
    PlanSegment,
    Submission,
    Word,
    check_grid,
)
from jitree.hal.command_buffer import Collective
from jitree.hal.command_list import check_workgroups
from jitree.hal.profiling import DISPATCHES, now

if TYPE_CHECKING:
    from jitree.cuda.api import Owned
    from jitree.cuda.context import CudaContext
    from jitree.cuda.stream import Stream


class PlanRunner:
    """Runs one plan by its graphs. The caller of :meth:`run` holds the stream's lock."""

    def __init__(self, context: CudaContext, plan: LaunchPlan, collectives: Sequence[Collective]) -> None:
        self._plan = plan
        self._collectives = collectives
        self._steps = [
            SegmentRunner(context, plan, step) if isinstance(step, PlanSegment) else step
            for step in plan.steps
        ]

    def run(self, stream: Stream, block: Submission) -> None:
        """Submits every step."""
        for step in self._steps:
            if isinstance(step, SegmentRunner):
                step.launch(stream, block)
            elif isinstance(step, IndirectDispatch):
                run_indirect(stream, self._plan, step, block)
            elif isinstance(step, CallStep):
                run_call(stream, self._plan, step, block)
            else:
                run_collective_step(stream, self._collectives, step, block)


def run_indirect(stream: Stream, plan: LaunchPlan, step: IndirectDispatch, block: Submission) -> None:
    """Waits for counts that earlier commands write, then launches the grid. Any zero is no work.

    Upstream's driver has no indirect dispatches. OUT_OF_RANGE for counts that no device can launch.
    """
    grid = read_counts(stream, block.addresses[step.counts])
    if 0 in grid:
        return
    launch = plan.launches[step.launch]
    grid = launch.grid if launch.has_own_grid else grid
    parameters = LaunchParameters(block.words)
    stream.api.launch_kernel(
        launch.function, grid, launch.block, launch.shared_memory, stream.handle, parameters.pointers(launch)
    )


def read_counts(stream: Stream, address: int) -> tuple[int, int, int]:
    """Three u32 in device memory, when everything submitted before is done."""
    counts = array("I", bytes(12))
    stream.api.call("cuMemcpyDtoHAsync", counts.buffer_info()[0], address, 12, stream.handle)
    stream.api.synchronize_stream(stream.handle)
    stream.api.check_alive()
    x, y, z = counts
    check_workgroups(x, y, z)
    check_grid((x, y, z))
    return x, y, z


def run_call(stream: Stream, plan: LaunchPlan, step: CallStep, block: Submission) -> None:
    """Calls a function of the user, which submits or waits."""
    launch = plan.launches[step.launch]
    assert launch.own is not None and launch.own.kernel.call is not None
    words = [
        block.words[launch.first + each.number] if isinstance(each, Word) else each
        for each in launch.own.parameters
    ]
    count = len(step.operands)
    lengths = [block.lengths[number] for number in step.operands]
    constants = [word & 0xFFFFFFFF for word in words[count:]]
    grid = grid_of(launch, block.words)
    launch.own.kernel.call(stream, OwnCall(words[:count], lengths, step.counts, constants, grid))


def run_collective_step(
    stream: Stream, collectives: Sequence[Collective], step: CollectiveStep, block: Submission
) -> None:
    """The collectives between two barriers, which NCCL may run together."""
    run_collectives(stream, [
        CollectiveCall(
            collectives[number], *block.addresses[first : first + 2], *block.lengths[first : first + 2]
        )
        for number, first in step.operations
    ])  # fmt: skip


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
    stream: Stream, plan: LaunchPlan, collectives: Sequence[Collective], block: Submission
) -> None:
    """Runs a plan launch by launch; each is a measurement with its kernel's name. Waits for the device."""
    timer = _Timer(stream)
    parameters = LaunchParameters(block.words)
    for step in plan.steps:
        if isinstance(step, PlanSegment):
            for launch in launches_of(plan, step):
                timer.launch(launch, grid_of(launch, block.words), parameters.pointers(launch))
        elif isinstance(step, IndirectDispatch):
            launch = plan.launches[step.launch]
            grid = read_counts(stream, block.addresses[step.counts])
            if 0 not in grid:
                grid = launch.grid if launch.has_own_grid else grid
                timer.launch(launch, grid, parameters.pointers(launch))
        elif isinstance(step, CallStep):
            run_call(stream, plan, step, block)
        else:
            run_collective_step(stream, collectives, step, block)
    timer.finish()
