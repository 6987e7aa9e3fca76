"""The loader of embedded ELF libraries, the form in which IREE's compiler puts CPU code into modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from jitree.errors import FailedPreconditionError, IncompatibleError, NotFoundError, error_context
from jitree.hal.executable import ExecutableLoader, ExecutableParameters
from jitree.loaders.cpu_data import host_cpu_data
from jitree.loaders.elf_format import FATELF_MAGIC, host_architecture
from jitree.loaders.elf_image import ElfImage, load_image
from jitree.loaders.environment import Environment, ImportProvider
from jitree.loaders.library import QUERY_SYMBOL, LibraryMemory, NativeExecutable, query_library

_FORMAT_PREFIX: Final = "embedded-elf-"


class EmbeddedElfLoader(ExecutableLoader):
    """Loads ``embedded-elf-<architecture>`` of this machine, FatELF files included."""

    def __init__(self, providers: Sequence[ImportProvider] = ()) -> None:
        """``providers`` resolve the imports of executables, the last first; the list may grow later."""
        self._providers = providers

    def query_support(self, format: str) -> bool:
        architecture = host_architecture()
        return architecture is not None and format == _FORMAT_PREFIX + architecture.name

    def query_i64(self, category: str, key: str) -> int | None:
        """Answers ``hal.cpu``: 1 or 0 for a feature by LLVM's name."""
        return host_cpu_data().query(key) if category == "hal.cpu" else None

    def try_load(self, parameters: ExecutableParameters) -> NativeExecutable:
        """Maps and links the library; for the statuses see README.md."""
        with error_context(f"loading an executable of format '{parameters.format}'"):
            image, query = open_library(memoryview(parameters.data).cast("B"))
            return link_library(image, query, parameters.constants, self._providers)


def open_library(data: memoryview) -> tuple[ElfImage, int]:
    """A library in memory, and the address of its query function."""
    architecture = host_architecture()
    if architecture is None:
        raise IncompatibleError("embedded ELF libraries cannot be loaded on this machine's architecture")
    if bytes(data[: len(FATELF_MAGIC)]) == FATELF_MAGIC:
        from jitree.loaders.fatelf import select_slice  # now: few programs hold such files

        data = select_slice(data, architecture)
    image = load_image(data, architecture)
    query = image.symbol(QUERY_SYMBOL)
    if query is None:
        raise NotFoundError(
            f"the embedded ELF library does not export {QUERY_SYMBOL}; it is not an IREE executable"
        )
    image.check_code(query, 1, "the query function")
    return image, query


def link_library(
    image: LibraryMemory, query: int, constants: Sequence[int], providers: Sequence[ImportProvider]
) -> NativeExecutable:
    """The executable of a library that is in memory; ``query`` is the address of its query function."""
    environment = Environment(constants)
    library = query_library(image, query, environment.address)
    _check_constants(library.constant_count, len(constants))
    environment.link(library.imports, providers)
    return NativeExecutable(library, environment, image)


def _check_constants(declared: int, supplied: int) -> None:
    # Compilers up to 3.13 declare 0 even when the code reads some: only a count that is declared can be held
    # against the caller.
    if declared and declared != supplied:
        raise FailedPreconditionError(
            f"the executable takes {declared} specialization constants, but {supplied} were supplied"
        )
