"""Defines executables, the loaders that make them, and the cache that asks loaders."""

from __future__ import annotations

import abc
from array import array
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

from jitree.base.finalizers import SharedWeakSet
from jitree.base.records import NamedTuple, Protocol
from jitree.codegen.record import words_of
from jitree.errors import NotFoundError, StatusCode, StatusError, UnimplementedError
from jitree.hal.command_layout import ExecutableRecord
from jitree.hal.enums import CachingMode

if TYPE_CHECKING:
    from jitree.hal.pipeline_layout import PipelineLayout, SourceLocation
    from jitree.regs.handles import HandleTable


class ExecutableParameters(NamedTuple):
    format: str
    data: memoryview
    """Kept by the executable when ``caching_mode`` says it stays as it is, else copied as needed."""
    constants: tuple[int, ...] = ()
    """32-bit specialization constants, unsigned."""
    caching_mode: CachingMode = CachingMode.NONE
    layouts: tuple[PipelineLayout, ...] = ()
    """One per function for ABI 0.2 to 0.4, else empty."""


class Replacing(Protocol):
    """Runs in place of an executable's function, which keeps it."""

    def take_failure(self, result: int) -> BaseException | None:
        """As :meth:`LocalExecutable.take_failure`."""

    @property
    def run(self) -> Sequence[int]:
        """Entry points of dispatches whose work it does with the last one."""


class Executable(abc.ABC):
    """Holds the functions of a loaded executable by ordinal."""

    VM_TYPE: Final = "hal.executable"

    layouts: tuple[PipelineLayout, ...] = ()
    """What the program says that each function takes, in ABI 0.2 to 0.4; set by the cache that loads it."""
    parameters: ExecutableParameters | None = None
    """What it was made of; set by the cache that loads it."""
    charge: object = None
    """What counts its memory, in a session with limits."""

    def publish(self, table: HandleTable, address: int, entry_points: int, names: int) -> None:
        """Shows machine code its KernelEntry records, and names and PipelineRecords by address. The extension
        has these addresses (0 without)."""
        table.set_extent(address, entry_points, self.function_count)
        extension = (address + table.extension - table.base) >> 3
        named = words_of(ExecutableRecord)
        table.i64[extension + named.names] = names
        table.i64[extension + named.pipelines] = self._pipelines() if self.layouts else 0

    def _pipelines(self) -> int:
        """Finds the addresses of the functions' PipelineRecords, 0 if one has none. They last as long as the
        executable: a loader may give it again, with others."""
        if len(self.layouts) != self.function_count:
            return 0
        records = self._published.get(self.layouts)
        if records is None:
            records = self._published[self.layouts] = array("q", [layout.record for layout in self.layouts])
        return records.buffer_info()[0]

    @cached_property
    def _published(self) -> dict[tuple[PipelineLayout, ...], array[int]]:
        return {}

    @property
    def copied(self) -> int:
        """Bytes of copies of the program's constants that it keeps for speed."""
        return 0

    def add_constants(self, data: memoryview) -> None:
        """The program reads these bytes, too, and does not change them: parameters."""
        return

    @property
    @abc.abstractmethod
    def function_count(self) -> int: ...

    @abc.abstractmethod
    def function_name(self, ordinal: int) -> str:
        """The symbol name, or ``""`` when the executable has no names."""

    @abc.abstractmethod
    def lookup(self, name: str) -> int:
        """The ordinal of a function. NOT_FOUND when there is none, UNAVAILABLE without names."""

    @abc.abstractmethod
    def constant_count(self, ordinal: int) -> int | None:
        """32-bit words it takes; None when the executable does not say."""

    @abc.abstractmethod
    def binding_count(self, ordinal: int) -> int | None: ...

    def source_location(self, ordinal: int) -> SourceLocation | None:
        """Where a function comes from, if the executable was compiled with that."""
        return None

    def stage_locations(self, ordinal: int) -> dict[str, SourceLocation]:
        """… by stage of the compilation, with debug information."""
        return {}

    def source_files(self) -> dict[str, bytes]:
        """Contents by path of the sources that the executable carries."""
        return {}

    def places(self, ordinal: int) -> list[str]:
        """All that it says of where a function comes from: ``model.mlir:3``. Damage is told as the only
        place, and raises nothing: the caller reports something more important."""
        known = self._known_places
        if ordinal not in known:
            try:
                location = self.source_location(ordinal)
                stages = (f"{at} ({stage})" for stage, at in self.stage_locations(ordinal).items() if at.path)
                known[ordinal] = [*([str(location)] if location and location.path else ()), *stages]
            except StatusError as error:
                known[ordinal] = [f"<damaged source locations: {error.message}>"]
        return known[ordinal]

    @cached_property
    def _known_places(self) -> dict[int, list[str]]:
        return {}


class LocalExecutable(Executable):
    """Holds functions that the local drivers can run."""

    @property
    @abc.abstractmethod
    def name(self) -> str: ...

    @abc.abstractmethod
    def entry_point(self, ordinal: int) -> int:
        """Address of the function's KernelEntry record (``hal.command_layout``), valid as long as the
        executable."""

    @abc.abstractmethod
    def local_memory(self, ordinal: int) -> int:
        """Bytes of memory a workgroup needs for itself."""

    def owner(self) -> Executable:
        """What command lists keep of it is the executable itself."""
        return self

    def replace_function(
        self, ordinal: int, kernel: Replacing, code: int, flags: int, environment: int
    ) -> array[int]:
        """Replaces a function's code, with ENTRY_* ``flags`` and what it is given, until
        :meth:`restore_function`. No dispatch of it runs meanwhile, unless the code that runs calls this
        itself. Gives a copy of the original's KernelEntry."""
        raise UnimplementedError(f"the functions of executable '{self.name}' cannot be replaced")

    def restore_function(self, ordinal: int) -> None:
        """Has a function run by its own code again, if it is replaced."""

    def replacing(self, ordinal: int) -> Replacing | None:
        """What runs in place of a function."""
        return None

    def take_failure(self, result: int) -> BaseException | None:
        """Takes the Python error of the call that returned ``result``, once. None if there is none, as for
        functions that are machine code."""
        return None


class ExecutableLoader(abc.ABC):
    """Loads executables of its formats, for devices that it is handed to."""

    @abc.abstractmethod
    def query_support(self, format: str) -> bool:
        """Whether the loader takes executables of this format."""

    @abc.abstractmethod
    def try_load(self, parameters: ExecutableParameters) -> Executable:
        """Loads one. CANCELLED or NOT_FOUND let the next loader try."""

    def stores(self, data: memoryview) -> Sequence[tuple[str, int]]:
        """Lists for each function the bindings it may store to, as bits. Nothing for bytes that are no
        executable of this loader, or of which it does not know that."""
        return ()

    def refusal(self, format: str) -> StatusError | None:
        """Why an executable that no loader takes is refused, if this loader knows."""
        return None

    @property
    def runs_in_python(self) -> bool:
        """Whether Python interprets its kernels. That takes seconds where machine code takes milliseconds."""
        return False

    def query_i64(self, category: str, key: str) -> int | None:
        """Answers device queries that only loaders can (``hal.cpu`` :: feature), or None."""
        return None


_NEXT_LOADER = (StatusCode.CANCELLED, StatusCode.NOT_FOUND)


_prepared: Final[SharedWeakSet[Executable]] = SharedWeakSet()


def prepared_executables() -> tuple[Executable, ...]:
    """Those that caches have prepared and that are still there."""
    return tuple(_prepared)


class ExecutableCache:
    """Asks loaders in order, and prepares executables for one device."""

    def __init__(
        self,
        identifier: str,
        loaders: Sequence[ExecutableLoader],
        note: Callable[[Executable], object] | None = None,
    ) -> None:
        """``note`` is called with each executable that it prepares."""
        self.identifier = identifier
        self._note = note
        self._loaders = tuple(loaders)

    def can_prepare_format(self, format: str) -> bool:
        return any(loader.query_support(format) for loader in self._loaders)

    def prepare_executable(self, parameters: ExecutableParameters) -> Executable:
        """Loads an executable.

        NOT_FOUND naming the format when no loader takes it. When loaders took it and passed, the cause that
        the first one gave is raised.
        """
        cause: StatusError | None = None
        for loader in self._loaders:
            if not loader.query_support(parameters.format):
                continue
            try:
                executable = loader.try_load(parameters)
            except StatusError as error:
                if error.code not in _NEXT_LOADER:
                    raise
                cause = cause or error
                continue
            if parameters.layouts:
                executable.layouts = parameters.layouts
            _prepared.add(executable)
            if self._note is not None:
                self._note(executable)
            executable.parameters = parameters
            return executable
        if cause is not None:
            raise cause.with_context(f"loading an executable of format '{parameters.format}'")
        for loader in self._loaders:
            refusal = loader.refusal(parameters.format)
            if refusal is not None:
                raise refusal
        raise NotFoundError(
            f"no loader of this device takes executables of format '{parameters.format}'; compile the module "
            "for this machine or use another device"
        )
