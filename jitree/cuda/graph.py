"""Makes executable graphs of plans, which are changed in place for other words.

What machine code launches it finds by the shape of a command list (``ProgramRecord``): graphs, and the same
launches one by one.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jitree.cuda.plan import GRID_WORDS, Launch, LaunchPlan, PlanSegment, Submission, Word

if TYPE_CHECKING:
    from jitree.cuda.api import Handle
    from jitree.cuda.context import CudaContext
    from jitree.cuda.stream import Stream

PARAMETERS_SIZE: Final = 72
"""Bytes of CUDA_KERNEL_NODE_PARAMS_v2: function, grid and block as six u32, shared memory (u32, padded),
address of the parameter pointers, extra, kernel, context."""
_PARAMETER_WORDS: Final = PARAMETERS_SIZE // 8
_GRID_WORD: Final = 1
_MOST_EDGES: Final = 64
"""Between two groups; with more, an empty node stands between them."""
_PROGRAMMATIC: Final = 1
"""CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC."""
INSTANCES_KEPT: Final = 8
"""Executable graphs of one segment, each with the parameters of its last run."""

_EARLY: Final = array("q", (6, 1, *[0] * 7))
"""CUlaunchAttribute of cuda.h: CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION is allowed."""
_INSTANCES: Final = 2
"""Graphs of one shape: addresses of results that are fed back alternate between two."""


class StreamGraphs(NamedTuple):
    """Holds what a command buffer does, for a ProgramRecord."""

    launch_count: int
    firsts: int
    instances: int
    chains: int
    kept: object
    """What lives as long as machine code knows of it."""
    plan: LaunchPlan
    """Of which those of sequences are made."""


class LaunchParameters:
    """Holds parameters of a plan's launches. The driver reads them there: a copy of the block, and pointers
    into it."""

    __slots__ = ("_own", "_pointers", "_words", "first_pointer", "first_word", "words")

    def __init__(self, block: array[int]) -> None:
        self._words = block[:]
        self.words = memoryview(self._words)
        """The words that were set last. Never resized: the pointers are addresses."""
        first = self.first_word = self._words.buffer_info()[0]
        self._pointers = array("q", range(first, first + 8 * len(block), 8))
        self.first_pointer: int = self._pointers.buffer_info()[0]
        self._own: dict[int, tuple[array[int], array[int]]] = {}
        """Pointers and numbers of launches with parameters of their own, by their first word."""

    def pointers(self, launch: Launch) -> int:
        """Address of the pointers to a launch's parameters."""
        if launch.own is None:
            return self.first_pointer + 8 * launch.first
        if launch.first not in self._own:
            self._own[launch.first] = self._of_own(launch.first, launch.own.parameters)
        return self._own[launch.first][0].buffer_info()[0]

    def _of_own(self, first: int, parameters: Sequence[Word | int]) -> tuple[array[int], array[int]]:
        """Words of the block, and numbers that stay."""
        numbers = array("q", [0 if isinstance(each, Word) else each for each in parameters])
        place, pointers = numbers.buffer_info()[0], array("q")
        for index, each in enumerate(parameters):
            if isinstance(each, Word):
                pointers.append(self.first_word + 8 * (first + each.number))
            else:
                pointers.append(place + 8 * index)
        return pointers, numbers


class Graph:
    """Launches a segment of a plan as an executable graph. The caller holds the stream's lock."""

    def __init__(
        self, context: CudaContext, plan: LaunchPlan, segment: PlanSegment, words: array[int]
    ) -> None:
        """Instantiates it with parameters and grids in ``words``."""
        self._api = context.api
        context.release_discarded()
        self._owned = [context.make("cuGraphCreate", (0,), "cuGraphDestroy")]
        self._graph: Any = self._owned[0].handle
        self._parameters = LaunchParameters(words)
        self._structures = array("Q", bytes(PARAMETERS_SIZE * sum(map(len, segment.groups))))
        self._nodes: list[tuple[Launch, Any, Any]] = []
        self._add_nodes(plan, segment)
        self._owned.append(context.make("cuGraphInstantiate", (self._graph, 0), "cuGraphExecDestroy"))
        self._executable: Any = self._owned[1].handle

    def launch(self, stream: Stream, words: array[int]) -> None:
        """Launches it with other words, changing what differs from the last run."""
        self._change(memoryview(words))
        self.launch_again(stream)

    def launch_again(self, stream: Stream) -> None:
        """Runs it with the words of the last run."""
        self._api.launch_graph(self._executable, stream.handle)

    def instance(self) -> tuple[tuple[int, int, int, int], array[int]]:
        """Makes the InstanceRecord of a graph. Also gives what it keeps beside the graph."""
        handles = array("q", [int(node) for _, node, _ in self._nodes])
        structures = self._structures.buffer_info()[0]
        first = self._parameters.first_word
        return (int(self._executable), first, handles.buffer_info()[0], structures), handles

    def _change(self, new: memoryview) -> None:
        words = self._parameters.words
        if words == new:
            return
        set_parameters = self._api.driver.cuGraphExecKernelNodeSetParams
        for index, (launch, node, structure) in enumerate(self._nodes):
            first, grid = launch.first, launch.first + launch.parameter_count
            last = grid + GRID_WORDS
            if words[first:last] == new[first:last]:
                continue
            words[first:last] = new[first:last]
            if not launch.has_own_grid:
                self._structures[index * _PARAMETER_WORDS + _GRID_WORD] = new[grid]  # z is the list's
            (result,) = set_parameters(self._executable, node, structure)
            if result:
                raise self._api.failure("cuGraphExecKernelNodeSetParams", result)

    def _add_nodes(self, plan: LaunchPlan, segment: PlanSegment) -> None:
        api = self._api
        make_structure = api.driver.CUDA_KERNEL_NODE_PARAMS
        first_structure = self._structures.buffer_info()[0]
        before: list[Any] = []
        are_kernels = True
        for group in segment.groups:
            if len(before) > 1 and len(before) * len(group) > _MOST_EDGES:
                before = [api.call("cuGraphAddEmptyNode", self._graph, before, len(before))]
                are_kernels = False
            added = []
            for number in group:
                launch, index = plan.launches[number], len(self._nodes)
                self._fill_structure(index, launch)
                structure = make_structure(_ptr=first_structure + PARAMETERS_SIZE * index)
                if launch.waits and are_kernels and before:
                    node = self._add_early(before, structure)
                else:
                    node = api.call("cuGraphAddKernelNode", self._graph, before, len(before), structure)
                self._nodes.append((launch, node, structure))
                added.append(node)
            before, are_kernels = added, True

    def _add_early(self, before: list[Any], structure: Any) -> Any:
        """A kernel that is launched when the blocks of those before it have ended. It waits itself until what
        they have written is there."""
        api, driver, count = self._api, self._api.driver, len(before)
        node = api.call("cuGraphAddKernelNode", self._graph, [], 0, structure)
        edge = driver.CUgraphEdgeData()
        edge.from_port = edge.type = _PROGRAMMATIC
        has_versions = hasattr(driver, "cuGraphAddDependencies_v2")  # until CUDA 13
        add = "cuGraphAddDependencies_v2" if has_versions else "cuGraphAddDependencies"
        api.call(add, self._graph, before, [node] * count, [edge] * count, count)
        return node

    def _fill_structure(self, index: int, launch: Launch) -> None:
        x, y, z = grid_of(launch, self._parameters.words)
        block_x, block_y, block_z = launch.block
        start = index * _PARAMETER_WORDS
        self._structures[start : start + 6] = array("Q", (
            int(launch.function), x | y << 32, z | block_x << 32, block_y | block_z << 32,
            launch.shared_memory | launch.has_own_grid << 32, self._parameters.pointers(launch),
        ))  # fmt: skip


def grid_of(launch: Launch, words: Sequence[int]) -> tuple[int, int, int]:
    """The grid in a block's words, or its own."""
    if launch.own is not None and launch.own.grid is not None:
        return launch.own.grid
    first = launch.first + launch.parameter_count
    return words[first] & 0xFFFFFFFF, words[first] >> 32, words[first + 1]


class SegmentRunner:
    """Runs one segment of a plan: single launches directly, several as a graph."""

    def __init__(self, context: CudaContext, plan: LaunchPlan, segment: PlanSegment) -> None:
        self._context = context
        self._plan = plan
        self._segment = segment
        self._single: Launch | None = None
        self._parameters: LaunchParameters | None = None
        if sum(map(len, segment.groups)) == 1:
            self._single = plan.launches[segment.groups[0][0]]
        self._graphs: OrderedDict[bytes, Graph] = OrderedDict()
        """By the bytes of their parameters."""

    def launch(self, stream: Stream, block: Submission) -> None:
        """Submits the segment. The caller holds the stream's lock."""
        words, key = block.words, block.key or block.words.tobytes()
        if self._single is not None:
            if self._parameters is None:
                self._parameters = LaunchParameters(words)
            self._parameters.words[:] = memoryview(words)
            launch_one(stream, self._single, self._parameters)
            return
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graph_for(words)
            graph.launch(stream, words)
            self._graphs[key] = graph
        else:
            self._graphs.move_to_end(key)
            graph.launch_again(stream)

    def _graph_for(self, words: array[int]) -> Graph:
        """A new graph, or the one whose words were used longest ago."""
        if len(self._graphs) < INSTANCES_KEPT:
            return Graph(self._context, self._plan, self._segment, words)
        return self._graphs.popitem(last=False)[1]


def launch_one(stream: Stream, launch: Launch, parameters: LaunchParameters) -> None:
    """A launch without a graph; the driver copies the parameters. The caller holds the stream's lock."""
    stream.api.launch_kernel(
        launch.function, grid_of(launch, parameters.words), launch.block, launch.shared_memory, stream.handle,
        parameters.pointers(launch),
    )  # fmt: skip


def launches_of(plan: LaunchPlan, segment: PlanSegment) -> Iterator[Launch]:
    """Launches in an order that respects the groups."""
    return (plan.launches[number] for group in segment.groups for number in group)


def launch_each(stream: Stream, plan: LaunchPlan, segment: PlanSegment, words: array[int]) -> None:
    """Launches a segment that will not come again. The caller holds the stream's lock."""
    parameters = LaunchParameters(words)
    for launch in launches_of(plan, segment):
        launch_one(stream, launch, parameters)


def make_graphs(stream: Stream, plan: LaunchPlan, kept: object) -> StreamGraphs | None:
    """None for a plan that is not launches alone. The context is current."""
    if plan.segment is None or not plan.launches:
        return None
    launches, words = plan.launches, array("q", bytes(8 * plan.word_count))
    for launch in launches:
        x, y, z = launch.grid
        grid = launch.first + launch.parameter_count
        words[grid], words[grid + 1] = x | y << 32, z
    firsts = array("q", [*(launch.first for launch in launches), plan.word_count])
    chains = _Chains(stream.handle, launches, words)
    graphs = []
    if len(launches) > 1 or not stream.share.launches_kernels:
        graphs = [Graph(stream.context, plan, plan.segment, words) for _ in range(_INSTANCES)]
    rows = [graph.instance() for graph in graphs]
    instances = array("q", [word for row, _ in rows for word in row])
    return StreamGraphs(
        len(launches), firsts.buffer_info()[0], instances.buffer_info()[0],
        chains.address, (graphs, rows, instances, firsts, chains, kept), plan,
    )  # fmt: skip


def join_graphs(stream: Stream, lists: Sequence[StreamGraphs]) -> StreamGraphs:
    """Makes the graphs of lists one after the other. The caller holds the stream's lock."""
    stream.context.enter()
    launches: list[Launch] = []
    groups: list[tuple[int, ...]] = []
    words = 0
    for each in lists:
        assert each.plan.segment is not None
        groups += [tuple(number + len(launches) for number in group) for group in each.plan.segment.groups]
        launches += [launch._replace(first=words + launch.first) for launch in each.plan.launches]
        words += each.plan.word_count
    plan = LaunchPlan(tuple(launches), (PlanSegment(tuple(groups)),), words)
    made = make_graphs(stream, plan, [each.kept for each in lists])
    assert made is not None
    return made


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
        x, y, z = launch.grid if launch.has_own_grid else (0, 0, 0)
        records.extend((
            x | y << 32, z | block_x << 32, block_y | block_z << 32,
            launch.shared_memory | launch.has_own_grid << 32, int(stream),
            _EARLY.buffer_info()[0], int(waits), int(launch.function), parameters.pointers(launch),
        ))  # fmt: skip
    return records
