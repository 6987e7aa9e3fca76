"""Modules and graphs of the fake driver. Compiling wraps the PTX text as a cubin; kernels are known by
name."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from jitree.cuda import ptx
from tests.cuda import fake_results
from tests.cuda.fake_call import Fault, driver_call
from tests.cuda.fake_results import CUfunction_attribute, CUjitInputType, CUresult

_OK = CUresult.CUDA_SUCCESS
_MAGIC = b"\x7fELFfake"
_STRUCTURE = struct.Struct("<Q6IIxxxxQQQQ")
"""CUDA_KERNEL_NODE_PARAMS_v2."""
assert _STRUCTURE.size == 72


class NodeParameters:
    """CUDA_KERNEL_NODE_PARAMS of the bindings: a view of the structure at an address."""

    def __init__(self, _ptr: int) -> None:
        self.address = _ptr

    def read(self) -> tuple[int, tuple[int, int, int], tuple[int, int, int], int, int]:
        """Function, grid, block, shared memory, address of the parameter pointers."""
        words = _STRUCTURE.unpack(ctypes.string_at(self.address, _STRUCTURE.size))
        function, x, y, z, block_x, block_y, block_z, shared, pointers, *_ = words
        return function, (x, y, z), (block_x, block_y, block_z), shared, pointers


class FakeModules:
    """cuLink…, cuModule… and cuFunc…"""

    CUjitInputType = CUjitInputType
    CUfunction_attribute = CUfunction_attribute

    kernels: dict[str, Any]
    new_handle: Callable[[], Any]

    def __init__(self) -> None:
        super().__init__()
        self.function_names: dict[int, str] = {}
        self.modules: dict[int, bytes] = {}
        self.links: dict[int, tuple[bytearray, list[bytes]]] = {}
        self.linked: dict[int, ctypes.Array[ctypes.c_char]] = {}
        """What links have made, until they are destroyed: threads compile at a time."""
        self.compiler_log = b""
        """What the next compilation that fails says."""
        self.most_threads = 1024
        self.most_shared_memory = 232448

    @driver_call
    def cuLinkCreate(self, count: int, options: list[Any], values: list[Any]) -> Any:
        handle = self.new_handle()
        self.links[handle] = (values[0], [])
        return _OK, handle

    @driver_call
    def cuLinkAddData(
        self, link: int, kind: Any, data: bytes, size: int, name: bytes, count: int, options: Any, values: Any
    ) -> Any:
        log, texts = self.links[int(link)]
        assert kind is CUjitInputType.CU_JIT_INPUT_PTX and data.endswith(b"\0") and size == len(data)
        if not ptx.signatures(data):
            log[: len(self.compiler_log)] = self.compiler_log
            raise Fault(CUresult.CUDA_ERROR_INVALID_PTX)
        texts.append(_MAGIC + data)
        return (_OK,)

    @driver_call
    def cuLinkComplete(self, link: int) -> Any:
        (text,) = self.links[int(link)][1]
        made = self.linked[int(link)] = ctypes.create_string_buffer(text, len(text))
        return _OK, ctypes.addressof(made), len(text)

    @driver_call
    def cuLinkDestroy(self, link: int) -> Any:
        del self.links[int(link)]
        self.linked.pop(int(link), None)
        return (_OK,)

    @driver_call
    def cuModuleLoadData(self, image: bytes) -> Any:
        handle = self.new_handle()
        self.modules[handle] = bytes(image)
        return _OK, handle

    @driver_call
    def cuModuleUnload(self, module: int) -> Any:
        del self.modules[int(module)]
        return (_OK,)

    @driver_call
    def cuModuleGetFunction(self, module: int, name: bytes) -> Any:
        if name.decode() not in ptx.signatures(self.modules[int(module)]):
            raise Fault(CUresult.CUDA_ERROR_NOT_FOUND)
        handle = self.new_handle()
        self.function_names[handle] = name.decode()
        return _OK, handle

    @driver_call
    def cuFuncGetAttribute(self, attribute: fake_results.CUfunction_attribute, function: int) -> Any:
        assert attribute is CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
        return _OK, self.most_threads

    @driver_call
    def cuFuncSetAttribute(
        self, function: int, attribute: fake_results.CUfunction_attribute, value: int
    ) -> Any:
        if value > self.most_shared_memory:
            raise Fault(CUresult.CUDA_ERROR_INVALID_VALUE)
        return (_OK,)


@dataclass
class FakeNode:
    """A kernel with its parameters as they were copied, or an empty node."""

    dependencies: tuple[int, ...]
    launch: tuple[str, list[int], tuple[int, int, int], tuple[int, int, int]] | None = None


@dataclass
class FakeGraph:
    nodes: dict[int, FakeNode] = field(default_factory=dict)


class FakeGraphs:
    """cuGraph…; an executable graph runs its nodes in the order in which they were added."""

    CUDA_KERNEL_NODE_PARAMS = NodeParameters
    CUgraphEdgeData = SimpleNamespace

    function_names: dict[int, str]
    new_handle: Callable[[], Any]
    read_parameters: Callable[[str, int], list[int]]
    run_kernel: Callable[..., None]
    enqueue: Callable[[int, Callable[[], None]], None]

    def __init__(self) -> None:
        super().__init__()
        self.graphs: dict[int, FakeGraph] = {}
        self.executables: dict[int, FakeGraph] = {}

    @driver_call
    def cuGraphCreate(self, flags: int) -> Any:
        handle = self.new_handle()
        self.graphs[handle] = FakeGraph()
        return _OK, handle

    @driver_call
    def cuGraphDestroy(self, graph: int) -> Any:
        del self.graphs[int(graph)]
        return (_OK,)

    @driver_call
    def cuGraphAddKernelNode(
        self, graph: int, dependencies: list[int], count: int, parameters: NodeParameters
    ) -> Any:
        return self._add(graph, dependencies, count, self._read(parameters))

    @driver_call
    def cuGraphAddDependencies(
        self, graph: int, before: list[int], after: list[int], edges: list[Any], count: int
    ) -> Any:
        assert len(before) == len(after) == len(edges) == count
        assert all(edge.from_port == edge.type == 1 for edge in edges)
        nodes = self.graphs[int(graph)].nodes
        for first, second in zip(before, after, strict=True):
            nodes[int(second)].dependencies += (int(first),)
        return (_OK,)

    @driver_call
    def cuGraphAddEmptyNode(self, graph: int, dependencies: list[int], count: int) -> Any:
        return self._add(graph, dependencies, count, None)

    @driver_call
    def cuGraphInstantiate(self, graph: int, flags: int) -> Any:
        handle = self.new_handle()
        nodes = {
            key: FakeNode(node.dependencies, node.launch)
            for key, node in self.graphs[int(graph)].nodes.items()
        }
        self.executables[handle] = FakeGraph(nodes)
        return _OK, handle

    @driver_call
    def cuGraphExecKernelNodeSetParams(self, executable: int, node: int, parameters: NodeParameters) -> Any:
        self.executables[int(executable)].nodes[int(node)].launch = self._read(parameters)
        return (_OK,)

    @driver_call
    def cuGraphExecDestroy(self, executable: int) -> Any:
        del self.executables[int(executable)]
        return (_OK,)

    @driver_call
    def cuGraphLaunch(self, executable: int, stream: int) -> Any:
        launches = [node.launch for node in self.executables[int(executable)].nodes.values() if node.launch]

        def work() -> None:
            for launch in launches:
                self.run_kernel(*launch)

        self.enqueue(stream, work)
        return (_OK,)

    @driver_call
    def cuEventElapsedTime(self, start: int, end: int) -> Any:
        """Milliseconds."""
        return _OK, 0.25

    def _add(self, graph: int, dependencies: list[int], count: int, launch: Any) -> Any:
        nodes = self.graphs[int(graph)].nodes
        assert len(dependencies) == count and all(int(node) in nodes for node in dependencies)
        handle = self.new_handle()
        nodes[handle] = FakeNode(tuple(map(int, dependencies)), launch)
        return _OK, handle

    def _read(self, parameters: NodeParameters) -> Any:
        function, grid, block, _, pointers = parameters.read()
        if 0 in grid:
            raise Fault(CUresult.CUDA_ERROR_INVALID_VALUE)
        name = self.function_names[function]
        return name, self.read_parameters(name, pointers), grid, block
