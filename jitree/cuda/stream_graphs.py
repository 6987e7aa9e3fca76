"""What machine code launches for a command list, which it finds by the shape of that (PROGRAM): executable
graphs, and the same launches one by one."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

from jitree.cuda.graph import Graph, LaunchParameters
from jitree.cuda.plan import Launch, LaunchPlan
from jitree.hal.stream_record import StreamGraphs

if TYPE_CHECKING:
    from jitree.cuda.api import Handle
    from jitree.cuda.stream import Stream

_EARLY: Final = array("q", (6, 1, *[0] * 7))
"""CUlaunchAttribute of cuda.h: CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION is allowed."""
_INSTANCES: Final = 2
"""Graphs of one shape: addresses of results that are fed back alternate between two."""


def make_graphs(stream: Stream, plan: LaunchPlan, kept: object) -> StreamGraphs | None:
    """None for a plan that is not launches alone. The context is current."""
    if plan.segment is None or not plan.launches:
        return None
    launches, words, firsts = _laid_out(plan)
    moved = LaunchPlan(launches, plan.steps, tuple, (), (), (), (), (), ())
    chains = _Chains(stream.handle, launches, words)
    graphs = []
    if len(launches) > 1 or not stream.share.launches_kernels:
        graphs = [Graph(stream.context, ((moved, plan.segment),), (words,)) for _ in range(_INSTANCES)]
    rows = [graph.instance() for graph in graphs]
    instances = array("q", [word for row, _ in rows for word in row])
    return StreamGraphs(
        len(launches), firsts.buffer_info()[0], instances.buffer_info()[0],
        chains.address, (graphs, rows, instances, firsts, chains, kept),
    )  # fmt: skip


class _Chains:
    """ChainRecords of one shape and what they refer to. Launches that could run side by side, too, come one
    after the other."""

    def __init__(self, stream: Handle, launches: tuple[Launch, ...], words: array[int]) -> None:
        """``words``: as the launches lie in them."""
        self._parameters = [LaunchParameters(words) for _ in range(_INSTANCES)]
        self._launches = [_launch_records(stream, launches, each) for each in self._parameters]
        self._records = array("q")
        for parameters, records in zip(self._parameters, self._launches, strict=True):
            self._records.extend((parameters.first_word, records.buffer_info()[0]))
        self.address: int = self._records.buffer_info()[0]


def _launch_records(stream: Handle, launches: tuple[Launch, ...], parameters: LaunchParameters) -> array[int]:
    records = array("q")
    for number, launch in enumerate(launches):
        block_x, block_y, block_z = launch.block
        waits = launch.waits and number > 0  # what comes before the first one need not be a kernel
        records.extend((
            0, block_x << 32, block_y | block_z << 32, launch.shared_memory, int(stream),
            _EARLY.buffer_info()[0], int(waits), int(launch.function), parameters.pointers(launch),
        ))  # fmt: skip
    return records


def _laid_out(plan: LaunchPlan) -> tuple[tuple[Launch, ...], array[int], array[int]]:
    """The launches with their parameters where machine code writes them, those words, and the number of each
    launch's first one."""
    launches, words, firsts = [], array("q"), array("q")
    for launch in plan.launches:
        firsts.append(len(words))
        x, y, z = launch.grid
        launches.append(launch._replace(first=len(words), varying_grid=False))
        words.extend((*[0] * launch.parameter_count, x | y << 32, z))
    firsts.append(len(words))
    return tuple(launches), words, firsts
