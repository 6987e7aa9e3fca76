"""Executable graphs for machine code, which finds them by the shape of a command list (PROGRAM)."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

from jitree.cuda.graph import Graph
from jitree.cuda.plan import Launch, LaunchPlan
from jitree.hal.stream_record import StreamGraphs

if TYPE_CHECKING:
    from jitree.cuda.context import CudaContext

_INSTANCES: Final = 2
"""Graphs of one shape: addresses of results that are fed back alternate between two."""


def make_graphs(context: CudaContext, plan: LaunchPlan, kept: object) -> StreamGraphs | None:
    """None for a plan that is not launches alone. The context is current."""
    if plan.segment is None or not plan.launches:
        return None
    launches, words, firsts = _laid_out(plan)
    moved = LaunchPlan(launches, plan.steps, tuple, (), (), (), (), (), ())
    graphs = [Graph(context, ((moved, plan.segment),), (words,)) for _ in range(_INSTANCES)]
    rows = [graph.instance() for graph in graphs]
    instances = array("q", [word for row, _ in rows for word in row])
    return StreamGraphs(
        len(launches), firsts.buffer_info()[0], instances.buffer_info()[0],
        (graphs, rows, instances, firsts, kept),
    )  # fmt: skip


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
