"""Executable graphs: the launches of one or more plans as one submission, changed in place for other
addresses."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from jitree.cuda.plan import Launch, LaunchPlan, PlanSegment

if TYPE_CHECKING:
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

Part = tuple[LaunchPlan, PlanSegment]


class LaunchParameters:
    """Memory in which the driver reads the parameters of a plan's launches: a copy of the block, and
    pointers into it."""

    __slots__ = ("_pointers", "_words", "first_pointer", "first_word", "words")

    def __init__(self, block: array[int]) -> None:
        self._words = block[:]
        self.words = memoryview(self._words)
        """The words that were set last. Never resized: the pointers are addresses."""
        first = self.first_word = self._words.buffer_info()[0]
        self._pointers = array("q", range(first, first + 8 * len(block), 8))
        self.first_pointer: int = self._pointers.buffer_info()[0]

    def pointers(self, launch: Launch) -> int:
        """Address of the pointers to a launch's parameters."""
        return self.first_pointer + 8 * launch.first


class Graph:
    """An executable graph of parts that run one after the other. The caller holds the stream's lock."""

    def __init__(self, context: CudaContext, parts: Sequence[Part], blocks: Sequence[array[int]]) -> None:
        """Instantiates it with the parameters in ``blocks``, one a part."""
        self._context = context
        self._api = context.api
        context.release_discarded()
        self._owned = [context.make("cuGraphCreate", (0,), "cuGraphDestroy")]
        self._graph: Any = self._owned[0].handle
        self._parameters = [LaunchParameters(block) for block in blocks]
        count = sum(len(group) for _, segment in parts for group in segment.groups)
        self._structures = array("Q", bytes(PARAMETERS_SIZE * count))
        self._nodes: list[list[tuple[Launch, int, Any, Any]]] = []
        self._add_parts(parts)
        self._owned.append(context.make("cuGraphInstantiate", (self._graph, 0), "cuGraphExecDestroy"))
        self._executable: Any = self._owned[1].handle

    def launch(self, stream: Stream, blocks: Sequence[array[int]]) -> None:
        """Runs it with the parameters in ``blocks``; only what differs from the last run is changed."""
        for nodes, parameters, block in zip(self._nodes, self._parameters, blocks, strict=True):
            if parameters.words != memoryview(block):
                self._change(nodes, parameters.words, block)
        self.launch_again(stream)

    def launch_again(self, stream: Stream) -> None:
        """Runs it with the parameters of the last run."""
        self._api.launch_graph(self._executable, stream.handle)

    def instance(self) -> tuple[tuple[int, int, int, int], array[int]]:
        """The InstanceRecord of a graph of one part, and what it keeps beside the graph."""
        (nodes,), (parameters,) = self._nodes, self._parameters
        handles = array("q", [int(node) for _, _, node, _ in nodes])
        structures = self._structures.buffer_info()[0]
        record = int(self._executable), parameters.first_word, handles.buffer_info()[0], structures
        return record, handles

    def _change(
        self, nodes: list[tuple[Launch, int, Any, Any]], words: memoryview, block: array[int]
    ) -> None:
        set_parameters = self._api.driver.cuGraphExecKernelNodeSetParams
        executable, structures = self._executable, self._structures
        new = memoryview(block)
        for launch, index, node, structure in nodes:
            first = launch.first
            last = first + launch.parameter_count + launch.varying_grid
            if words[first:last] == new[first:last]:
                continue
            words[first:last] = new[first:last]
            if launch.varying_grid:
                structures[index * _PARAMETER_WORDS + _GRID_WORD] = new[last - 1] | 1 << 32
            (result,) = set_parameters(executable, node, structure)
            if result:
                raise self._api.failure("cuGraphExecKernelNodeSetParams", result)

    def _add_parts(self, parts: Sequence[Part]) -> None:
        api = self._api
        make_structure = api.driver.CUDA_KERNEL_NODE_PARAMS
        first_structure = self._structures.buffer_info()[0]
        before: list[Any] = []
        are_kernels, index = True, 0
        for (plan, segment), parameters in zip(parts, self._parameters, strict=True):
            nodes = []
            for group in segment.groups:
                if len(before) > 1 and len(before) * len(group) > _MOST_EDGES:
                    before = [api.call("cuGraphAddEmptyNode", self._graph, before, len(before))]
                    are_kernels = False
                added = []
                for number in group:
                    launch = plan.launches[number]
                    self._fill_structure(index, launch, parameters)
                    structure = make_structure(_ptr=first_structure + PARAMETERS_SIZE * index)
                    if launch.waits and are_kernels and before:
                        node = self._add_early(before, structure)
                    else:
                        node = api.call("cuGraphAddKernelNode", self._graph, before, len(before), structure)
                    nodes.append((launch, index, node, structure))
                    added.append(node)
                    index += 1
                before, are_kernels = added, True
            self._nodes.append(nodes)

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

    def _fill_structure(self, index: int, launch: Launch, parameters: LaunchParameters) -> None:
        x, y, z = grid_of(launch, parameters.words)
        block_x, block_y, block_z = launch.block
        start = index * _PARAMETER_WORDS
        self._structures[start : start + 6] = array("Q", (
            int(launch.function), x | y << 32, z | block_x << 32, block_y | block_z << 32,
            launch.shared_memory, parameters.pointers(launch),
        ))  # fmt: skip


def grid_of(launch: Launch, words: Sequence[int]) -> tuple[int, int, int]:
    """The grid with the parameters in ``words``."""
    return (words[launch.first + launch.parameter_count], 1, 1) if launch.varying_grid else launch.grid


class SegmentRunner:
    """Runs one segment of a plan: a single launch as it is, more of them as a graph."""

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

    def launch(self, stream: Stream, block: array[int], key: bytes) -> None:
        """Submits the segment; ``key`` is the block's bytes. The caller holds the stream's lock."""
        if self._single is not None:
            if self._parameters is None:
                self._parameters = LaunchParameters(block)
            launch_one(stream, self._single, self._parameters, block)
            return
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graph_for(block)
            graph.launch(stream, (block,))
            self._graphs[key] = graph
        else:
            self._graphs.move_to_end(key)
            graph.launch_again(stream)

    def _graph_for(self, block: array[int]) -> Graph:
        """A new graph, or the one whose parameters were used longest ago."""
        if len(self._graphs) < INSTANCES_KEPT:
            return Graph(self._context, ((self._plan, self._segment),), (block,))
        return self._graphs.popitem(last=False)[1]


def launch_one(stream: Stream, launch: Launch, parameters: LaunchParameters, block: array[int]) -> None:
    """A launch without a graph; the driver copies the parameters. The caller holds the stream's lock."""
    parameters.words[:] = memoryview(block)
    stream.api.launch_kernel(
        launch.function, grid_of(launch, block), launch.block, launch.shared_memory, stream.handle,
        parameters.pointers(launch),
    )  # fmt: skip


def launches_of(plan: LaunchPlan, segment: PlanSegment) -> Iterator[Launch]:
    """Launches in an order that respects the groups."""
    return (plan.launches[number] for group in segment.groups for number in group)
