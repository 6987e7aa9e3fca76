"""The loader of system libraries: executables as ordinary shared objects, opened by the system's linker."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from jitree.base.memory import note_native
from jitree.errors import FailedPreconditionError, NotFoundError, error_context
from jitree.hal.executable import ExecutableLoader, ExecutableParameters
from jitree.loaders.elf_format import host_architecture
from jitree.loaders.embedded_elf import link_library
from jitree.loaders.environment import ImportProvider
from jitree.loaders.library import QUERY_SYMBOL, NativeExecutable
from jitree.loaders.shared_object import SharedObject

_FORMAT_PREFIX: Final = "system-elf-"
_FOOTER: Final = struct.Struct("<8sIIQQQQ")
"""Magic, version, flags, offset and size of the library, of debug data."""
_FOOTER_MAGIC: Final = b"IREEDBG\0"


class SystemLibraryLoader(ExecutableLoader):
    """Loads ``system-elf-<architecture>`` of this machine."""

    def __init__(self, providers: Sequence[ImportProvider] = ()) -> None:
        """``providers`` resolve the imports of executables, the last first; the list may grow later."""
        self._providers = providers

    def query_support(self, format: str) -> bool:
        architecture = host_architecture()
        return architecture is not None and format == _FORMAT_PREFIX + architecture.name

    def try_load(self, parameters: ExecutableParameters) -> NativeExecutable:
        """Opens and links the library.

        FAILED_PRECONDITION if it is no library for this machine or needs symbols that no global library
        has, NOT_FOUND without the query function; the rest as of embedded libraries.
        """
        with error_context(f"loading an executable of format '{parameters.format}'"):
            data = library_bytes(memoryview(parameters.data).cast("B"))
            library = SharedObject.from_bytes(data)
            query = library.symbol(QUERY_SYMBOL)
            if query is None:
                raise NotFoundError(
                    f"the system library does not export {QUERY_SYMBOL}; it is not an IREE executable"
                )
            executable = link_library(library, query, parameters.constants, self._providers)
            note_native(data)
            return executable


def library_bytes(data: memoryview) -> memoryview:
    """The library without what a footer says is debug data. FAILED_PRECONDITION for a footer that lies."""
    if len(data) < _FOOTER.size:
        return data
    magic, _, _, offset, size, *_ = _FOOTER.unpack_from(data, len(data) - _FOOTER.size)
    if magic != _FOOTER_MAGIC:
        return data
    if offset + size > len(data) - _FOOTER.size:
        raise FailedPreconditionError(
            f"the system library's footer says bytes {offset} to {offset + size}, but there are "
            f"{len(data) - _FOOTER.size}"
        )
    return data[offset : offset + size]
