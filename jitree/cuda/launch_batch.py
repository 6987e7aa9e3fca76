"""One-shot command buffers batched into graphs while the GPU is busy.

A program that records small command buffers in a loop would pay a launch for each. The first one is launched
at once, so that the GPU starts; those that come while it works are launched together, a few to a graph.
Everything else that enters the stream, and every wait, flushes first.
"""

from __future__ import annotations

import weakref
from array import array
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from jitree.cuda.graph import Graph, LaunchParameters, launch_one, launches_of
from jitree.cuda.plan_cache import PlanCache

if TYPE_CHECKING:
    from jitree.cuda.commands import CudaCommandList
    from jitree.cuda.plan import LaunchPlan, PlanSegment
    from jitree.cuda.stream import Stream

_MOST_BATCHED: Final = 4
"""Command buffers a graph; with more than 8 the GPU waits for the first of them."""
_GRAPHS_KEPT: Final = 64
"""Executable graphs; the ones used longest ago go."""


class LaunchBatch:
    """Belongs to a stream, whose lock the caller holds."""

    def __init__(self, stream: Stream) -> None:
        self._stream = weakref.ref(stream)
        self.pending = 0
        self._waiting: list[tuple[LaunchPlan, PlanSegment, array[int]]] = []
        self._plans = PlanCache()
        self._graphs: OrderedDict[tuple[LaunchPlan, ...], Graph] = OrderedDict()
        self._launched = 0
        """The tick of the newest launch."""

    def plan(self, commands: CudaCommandList) -> LaunchPlan:
        """The plan of a finished one-shot list."""
        kernels = self._owner().kernels
        assert kernels is not None
        return self._plans.plan(commands, kernels)

    def add(self, plan: LaunchPlan, segment: PlanSegment, block: array[int]) -> None:
        """Submits the only segment of a plan, now or with those that follow."""
        stream = self._owner()
        self._waiting.append((plan, segment, block))
        self.pending += 1
        is_shared = stream.share.record.is_open  # machine code has no launch batch and must not wait
        if is_shared or stream.completed >= self._launched or self.pending >= _MOST_BATCHED:
            stream.flush()

    def flush(self) -> None:
        """Launches the batch. When that fails, none of it will run."""
        waiting, self._waiting = self._waiting, []
        self.pending = 0
        stream = self._owner()
        self._launched = stream.tick
        if len(waiting) == 1:
            plan, segment, block = waiting[0]
            if sum(map(len, segment.groups)) == 1:
                (launch,) = launches_of(plan, segment)
                launch_one(stream, launch, LaunchParameters(block), block)
                return
        blocks = [block for _, _, block in waiting]
        key = tuple(plan for plan, _, _ in waiting)
        graph = self._graphs.pop(key, None)
        if graph is None:
            graph = Graph(stream.context, [(plan, segment) for plan, segment, _ in waiting], blocks)
        graph.launch(stream, blocks)
        self._graphs[key] = graph
        if len(self._graphs) > _GRAPHS_KEPT:
            self._graphs.popitem(last=False)

    def trim(self) -> None:
        """Drops the plans and graphs that are kept for reuse."""
        self._plans.clear()
        self._graphs.clear()

    def _owner(self) -> Stream:
        stream = self._stream()
        assert stream is not None
        return stream
