"""Loads executables of the CUDA device: modules and their kernels."""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import ref

from jitree import errors
from jitree.codegen.record import size_of
from jitree.cuda import executable_format, ptx
from jitree.cuda.executable_format import ExportDescription
from jitree.hal.command_layout import KernelEntry
from jitree.hal.executable import Executable, ExecutableLoader, ExecutableParameters

if TYPE_CHECKING:
    from jitree.cuda.api import Owned
    from jitree.cuda.context import CudaContext
    from jitree.hal.pipeline_layout import PipelineLayout, SourceLocation
    from jitree.regs.handles import HandleTable

FORMAT: Final = "cuda-nvptx-fb"
_ENTRY: Final = struct.Struct("<3q6i")
assert _ENTRY.size == size_of(KernelEntry)
_UNKNOWN: Final = -1
_BLOCK_WORDS: Final = 4
"""Words of a function's launch record: threads in x, y and z, bytes of dynamic shared memory."""
_MAXIMUM_PARAMETERS: Final = 4096
"""The most parameters of a kernel; the driver takes 32764 bytes at most."""


class CudaExecutableLoader(ExecutableLoader):
    """Loads ``cuda-nvptx-fb`` for one context."""

    def __init__(self, context: CudaContext) -> None:
        self._context = context

    def query_support(self, format: str) -> bool:
        return format == FORMAT

    def try_load(self, parameters: ExecutableParameters) -> CudaExecutable:
        """Reads the flatbuffer, compiles and loads its images.

        INVALID_ARGUMENT for a damaged flatbuffer, PTX that the driver refuses and a kernel that is missing or
        takes other parameters than stated, INCOMPATIBLE for a newer architecture's, RESOURCE_EXHAUSTED when
        a kernel wants more shared memory than the device has. Specialization constants are not used.
        """
        with errors.error_context(f"loading an executable of format '{parameters.format}'"):
            description = executable_format.read(memoryview(parameters.data))
            layouts = parameters.layouts
            if layouts and len(layouts) != len(description.exports):
                raise errors.InvalidArgumentError(
                    f"the executable has {len(description.exports)} kernels, but {len(layouts)} pipeline "
                    "layouts were given"
                )
            images = [LoadedImage(self._context, image) for image in description.images]
            kernels = [
                CudaKernel(images[export.module], export, layouts[index] if layouts else None)
                for index, export in enumerate(description.exports)
            ]
            return CudaExecutable(self._context, kernels, description.source_files)


class LoadedImage:
    """Holds the modules that the driver made of one image. They are unloaded when nothing refers to them any
    more."""

    def __init__(self, context: CudaContext, image: bytes) -> None:
        self.context = context
        self.is_cubin = ptx.is_cubin(image)
        self.signatures = {} if self.is_cubin else ptx.signatures(image)
        self._modules: list[Owned] = []
        waiting = ptx.with_waits(image) if context.launches_early and not self.is_cubin else None
        self.waits = waiting is not None
        """Whether its kernels first wait for those that they depend on."""
        cubins = ptx.compile_image(context, waiting or image)
        context.enter()
        context.release_discarded()
        for cubin in cubins:
            self._modules.append(context.make("cuModuleLoadData", (cubin,), "cuModuleUnload"))

    def function(self, name: str) -> Any:
        """The CUfunction. NOT_FOUND when no module has it."""
        api = self.context.api
        not_found = api.driver.CUresult.CUDA_ERROR_NOT_FOUND
        for module in self._likeliest_first(name):
            error, function = api.driver.cuModuleGetFunction(module.handle, name.encode())
            if error != not_found:
                api.check("cuModuleGetFunction", error)
                return function
        raise errors.NotFoundError(f"the executable's image has no kernel '{name}'")

    def _likeliest_first(self, name: str) -> list[Owned]:
        """The modules. A text that was split has one for each kernel, in order (``ptx.split``); asking others
        would do no harm, but tools that watch the driver report each kernel that is not found."""
        names = list(self.signatures)
        if len(names) != len(self._modules) or name not in names:
            return self._modules
        place = names.index(name)
        return [self._modules[place], *self._modules[:place], *self._modules[place + 1 :]]


class CudaKernel:
    """Describes a kernel as it is launched."""

    __slots__ = ("binding_count", "block", "constant_count", "export", "function", "image", "shared_memory")

    def __init__(self, image: LoadedImage, export: ExportDescription, layout: PipelineLayout | None) -> None:
        self.image = image
        self.export = export
        self.block = export.block
        self.shared_memory = export.shared_memory
        self.binding_count = export.binding_count
        self.constant_count = export.constant_count
        if layout is not None:
            self.binding_count = len(layout.bindings)
            self.constant_count = layout.constant_count
        with errors.error_context(f"kernel {describe(export)}"):
            try:
                self.function = image.function(export.name)
            except errors.NotFoundError as error:
                raise errors.InvalidArgumentError(error.message) from error
            self._check_parameters()
            check_limits(image.context, self.function, self.block, self.shared_memory)

    def _check_parameters(self) -> None:
        """The driver reads as many parameters as the kernel declares: fewer would be read from elsewhere."""
        if self.image.is_cubin:
            count = _parameter_count(self.image.context, self.function)
            stated = (self.binding_count or 0) + (self.constant_count or 0)
            if self.binding_count is None or self.constant_count is None:
                raise errors.InvalidArgumentError(
                    "a cubin needs a pipeline layout that states its parameters"
                )
            if count is not None and count != stated:
                raise errors.InvalidArgumentError(f"takes {count} parameters, but {stated} are stated")
            return
        signature = self.image.signatures.get(self.export.name)
        if signature is None:
            raise errors.InvalidArgumentError("its parameters are not pointers followed by 32-bit words")
        if self.binding_count is None or self.constant_count is None:
            self.binding_count, self.constant_count = signature
        if signature != (self.binding_count, self.constant_count):
            raise errors.InvalidArgumentError(
                f"takes {signature.binding_count} bindings and {signature.constant_count} constants, but "
                f"{self.binding_count} and {self.constant_count} are stated"
            )


def check_limits(
    context: CudaContext, function: Any, block: tuple[int, int, int], shared_memory: int
) -> None:
    """Refuses blocks that a function cannot run, and allows it their shared memory. INVALID_ARGUMENT for too
    many threads, RESOURCE_EXHAUSTED for more memory than the device has."""
    api = context.api
    attributes = api.driver.CUfunction_attribute
    threads = api.call("cuFuncGetAttribute", attributes.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function)
    x, y, z = block
    if x * y * z > threads:
        raise errors.InvalidArgumentError(
            f"its blocks have {x * y * z} threads, but it can run {threads} at most"
        )
    if not shared_memory:
        return
    try:
        attribute = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        api.call("cuFuncSetAttribute", function, attribute, shared_memory)
    except errors.StatusError as error:
        if api.lost is not None:
            raise
        raise errors.ResourceExhaustedError(
            f"it needs {shared_memory} bytes of shared memory for a block, more than {context.info.name} "
            f"has: {error.message}"
        ) from error


def _parameter_count(context: CudaContext, function: Any) -> int | None:
    """How many parameters a function of a cubin takes; None when the driver cannot tell (before 12.4)."""
    driver = context.api.driver
    query = getattr(driver, "cuFuncGetParamInfo", None)
    if query is None:
        return None
    for index in range(_MAXIMUM_PARAMETERS):
        error = query(function, index)[0]
        if error == driver.CUresult.CUDA_ERROR_INVALID_VALUE:
            return index
        if error != driver.CUresult.CUDA_SUCCESS:
            return None
    return None


def describe(export: ExportDescription) -> str:
    """Name and source location, for messages."""
    return f"'{export.name}'" + ("" if export.location is None else f" ({export.location})")


class OwnParameter(NamedTuple):
    """Names what a dispatch says: the address of a binding, or a constant. ``dispatch``: of a run."""

    dispatch: int
    number: int
    is_constant: bool = False


class OwnKernel(NamedTuple):
    """Describes a kernel of the user that is launched in the place of dispatches."""

    name: str
    function: Any
    block: tuple[int, int, int]
    shared_memory: int
    grid: tuple[int, int, int] | None
    """None: the dispatch's."""
    parameters: tuple[OwnParameter | int, ...]
    waits: bool
    run: tuple[int, ...]
    """Addresses of the KernelEntry records of the dispatches that it is for, which follow each other."""
    kept: object
    """What its code is of."""
    call: Callable[[Any, OwnCall], None] | None = None
    """What the host calls in place of a launch, with the stream, whose lock is held."""


class OwnCall(NamedTuple):
    """Says what dispatches give to a function that the host calls."""

    addresses: Sequence[int]
    """Of bindings."""
    lengths: Sequence[int]
    counts: Sequence[int]
    """How many bindings each dispatch has."""
    constants: Sequence[int]
    grid: tuple[int, int, int]


class CudaFunctionTable:
    """Tables KernelEntry records of the kernels, as command lists take them.

    ``code`` is the CUfunction, ``environment`` the address of four i32: threads in x, y and z, bytes of
    dynamic shared memory. Code that keeps an address keeps the table, and with it the loaded modules.
    """

    __slots__ = (
        "__weakref__", "_blocks", "_entries", "_first_entry", "_name_rows", "_text", "kernels", "name",
        "names", "own_kernels", "owner",
    )  # fmt: skip

    def __init__(self, kernels: Sequence[CudaKernel]) -> None:
        self.kernels = tuple(kernels)
        self.own_kernels: dict[int, OwnKernel] = {}
        """Those of the user, by ordinal. Plans have them: who changes this has the device forget plans."""
        self.owner: Callable[[], CudaExecutable | None] = _none
        """Gives the executable, as long as it is there."""
        self.name = kernels[0].export.name if kernels else "empty"
        self._blocks = array("i")
        for kernel in kernels:
            self._blocks.extend((*kernel.block, kernel.shared_memory))
        first_block = self._blocks.buffer_info()[0]
        self._entries = array("q")
        for ordinal, kernel in enumerate(kernels):
            self._entries.frombytes(_ENTRY.pack(
                int(kernel.function), first_block + 4 * _BLOCK_WORDS * ordinal, 0, 0, 0,
                _known(kernel.constant_count), _known(kernel.binding_count), ordinal, 0,
            ))  # fmt: skip
        self._first_entry: int = self._entries.buffer_info()[0]
        names = [kernel.export.name.encode() for kernel in kernels]
        self._text = array("B", b"".join(names))
        self._name_rows, position = array("q"), self._text.buffer_info()[0]
        for name in names:
            self._name_rows.extend((position, len(name)))
            position += len(name)
        self.names: int = self._name_rows.buffer_info()[0]
        """Address of the (address, length) of each kernel's name."""

    def function_name(self, ordinal: int) -> str:
        return self.kernels[ordinal].export.name

    def entry_point(self, ordinal: int) -> int:
        """Address of the function's KernelEntry record."""
        return self._first_entry + ordinal * size_of(KernelEntry)

    def local_memory(self, ordinal: int) -> int:
        """None on the host: shared memory is the device's."""
        return 0

    def kernel_at(self, entry: int) -> CudaKernel:
        """The kernel of an KernelEntry record's address."""
        return self.kernels[(entry - self._first_entry) // size_of(KernelEntry)]

    def own_kernel_at(self, entry: int) -> OwnKernel | None:
        """What the user has put in the place of a kernel."""
        return self.own_kernels.get((entry - self._first_entry) // size_of(KernelEntry))


_SYMBOLS: Final = 1
"""The rank of an entry whose names are those of symbols (:meth:`CudaExecutable.lookup`)."""


class CudaExecutable(Executable):
    """Kernels by ordinal, for one context."""

    def __init__(
        self, context: CudaContext, kernels: Sequence[CudaKernel], source_files: dict[str, bytes]
    ) -> None:
        self.context = context
        self.functions = CudaFunctionTable(kernels)
        self.functions.owner = ref(self)
        self._kernels = tuple(kernels)
        self._source_files = source_files
        self._ordinals = {kernel.export.name: ordinal for ordinal, kernel in enumerate(kernels)}

    def fill_entry(self, table: HandleTable, address: int) -> None:
        """Its functions."""
        self.publish(table, address, self.functions.entry_point(0), self.functions.names)
        table.set_word(address, "rank", _SYMBOLS)

    @property
    def name(self) -> str:
        return self.functions.name

    @property
    def function_count(self) -> int:
        return len(self._kernels)

    def function_name(self, ordinal: int) -> str:
        return self._kernels[ordinal].export.name

    def lookup(self, name: str) -> int:
        """The ordinal of a kernel. NOT_FOUND when there is none.

        PTX symbols consist of letters, digits and underscores. The compiler gives kernels that form of their
        name and lets programs ask for the name as it was.
        """
        ordinal = self._ordinals.get(name)
        if ordinal is None:
            ordinal = self._ordinals.get(re.sub(rb"\W", b"_", name.encode()).decode())
        if ordinal is None:
            raise errors.NotFoundError(
                f"the executable has no function '{name}'; it has {', '.join(self._ordinals) or 'none'}"
            )
        return ordinal

    def constant_count(self, ordinal: int) -> int | None:
        """32-bit words that the kernel takes."""
        return self._kernels[ordinal].constant_count

    def binding_count(self, ordinal: int) -> int | None:
        """Bindings that the kernel takes."""
        return self._kernels[ordinal].binding_count

    def block(self, ordinal: int) -> tuple[int, int, int]:
        """Threads of a block in x, y and z."""
        return self._kernels[ordinal].block

    def source_location(self, ordinal: int) -> SourceLocation | None:
        return self._kernels[ordinal].export.location

    def stage_locations(self, ordinal: int) -> dict[str, SourceLocation]:
        return self._kernels[ordinal].export.stages

    def source_files(self) -> dict[str, bytes]:
        return self._source_files


def _none() -> None:
    """No executable."""


def _known(count: int | None) -> int:
    return _UNKNOWN if count is None else count
