"""Resolves functions that executables import: from plugin libraries and this process.

A plugin library exports a query function; what that gives is a table of functions that load it, unload it and
resolve symbols (interface 0.1).
"""

from __future__ import annotations

import _ctypes
import ctypes
import os
import struct
from array import array
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from jitree import errors
from jitree.base.callbacks import allocator_address
from jitree.base.finalizers import Finalizer, uninterrupted
from jitree.base.records import Protocol
from jitree.errors import attribute_of
from jitree.loaders.elf_format import host_architecture
from jitree.loaders.embedded_elf import load_image
from jitree.loaders.environment import ImportProvider
from jitree.loaders.fatelf import select_slice
from jitree.loaders.library import LibraryMemory
from jitree.loaders.system_library import SharedObject

QUERY_SYMBOL: Final = "iree_hal_executable_plugin_query"
VERSION: Final = 1
EMBEDDED_PREFIX: Final = "embedded:"
EMBEDDED_SUFFIX: Final = ".sos"

_HEADER: Final = struct.Struct("<IxxxxQQII64x")
"""Version, name, description, features, sanitizer, reserved."""
_TABLE: Final = struct.Struct("<4Q")
"""Header, load, unload, resolve."""
_CODE_MASK: Final = 31
"""The code in a status, which is as wide as a pointer; the rest may refer to a message of the plugin."""

_QUERY: Final = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p)
_LOAD: Final = ctypes.CFUNCTYPE(
    ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p
)
_UNLOAD: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_RESOLVE: Final = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class _PluginFile(LibraryMemory, Protocol):
    def symbol(self, name: str) -> int | None: ...


class PluginLibrary(ImportProvider):
    """Loads a plugin, until no loader and no executable refers to it."""

    def __init__(self, library: _PluginFile) -> None:
        """NOT_FOUND without query function, FAILED_PRECONDITION for another interface, UNAVAILABLE for
        sanitizer builds, or the status that the plugin's load function returns."""
        self._library = library
        query = library.symbol(QUERY_SYMBOL)
        if query is None:
            raise errors.NotFoundError(
                f"the library does not export {QUERY_SYMBOL}; it is no executable plugin"
            )
        library.check_code(query, 1, "the query function")
        table = _QUERY(query)(VERSION, None)
        if not table:
            raise errors.FailedPreconditionError(
                f"the executable plugin has no interface of version {VERSION}"
            )
        header, load, unload, resolve = _TABLE.unpack(
            library.read(table, _TABLE.size, "the plugin's function table")
        )
        self.name = self._read_header(header)
        for function in (load, unload, resolve):
            library.check_code(function, 1, "a function of the plugin")
        self._resolve = _RESOLVE(resolve)
        self._self = ctypes.c_void_p()
        environment = array("Q", (0, allocator_address()))
        status = _LOAD(load)(environment.buffer_info()[0], 0, None, ctypes.addressof(self._self))
        if status:
            raise errors.status_error(status & _CODE_MASK, f"executable plugin '{self.name}' refused to load")
        self._ending = Finalizer(uninterrupted(partial(_unload, _UNLOAD(unload), self._self, library)))

    def resolve(self, symbol: str) -> tuple[int, int] | None:
        """Finds (function address, context), None if the plugin lacks it, or its failure."""
        name = ctypes.create_string_buffer(symbol.encode())
        names = array("Q", (ctypes.addressof(name),))
        functions, contexts = array("Q", (0,)), array("Q", (0,))
        parameters = array(
            "Q", (1, names.buffer_info()[0], functions.buffer_info()[0], contexts.buffer_info()[0])
        )
        resolution = ctypes.c_uint32()
        status = self._resolve(self._self.value, parameters.buffer_info()[0], ctypes.addressof(resolution))
        code = status & _CODE_MASK
        if code not in (0, errors.StatusCode.NOT_FOUND):
            raise errors.status_error(code, f"executable plugin '{self.name}' failed to resolve '{symbol}'")
        return (functions[0], contexts[0]) if not code and functions[0] else None

    def _read_header(self, address: int) -> str:
        version, name, _, _, sanitizer = _HEADER.unpack(
            self._library.read(address, _HEADER.size, "the plugin's header")
        )
        if version != VERSION:
            raise errors.FailedPreconditionError(
                f"the executable plugin's interface is version {version}; {VERSION} is expected"
            )
        if sanitizer:
            raise errors.UnavailableError(
                "the executable plugin was compiled for a sanitizer that this process does not run; compile "
                "without sanitizer"
            )
        return (
            str(self._library.read_string(name, "the plugin's name"), "utf-8", "backslashreplace")
            if name
            else ""
        )


def _unload(unload: Callable[[int], None], plugin: ctypes.c_void_p, library: object) -> None:
    """Ends a plugin of a library, which is open until then."""
    unload(plugin.value or 0)


class FunctionTable(ImportProvider):
    """Provides C functions of this process by name.

    They are kept as long as executables use them.

    Each is an address, a pair of address and context, a ctypes function or a Numba ``cfunc``, of type
    ``i32 (parameters, context, reserved)``.
    """

    def __init__(self, functions: Mapping[str, Any]) -> None:
        """INVALID_ARGUMENT for what is not a C function."""
        self._kept = dict(functions)
        self._addresses = {name: _address(name, function) for name, function in self._kept.items()}

    def resolve(self, symbol: str) -> tuple[int, int] | None:
        return self._addresses.get(symbol)


def _address(name: str, function: Any) -> tuple[int, int]:
    if isinstance(function, tuple) and len(function) == 2 and isinstance(function[1], int):
        return _address(name, function[0])[0], function[1]
    if isinstance(function, _ctypes.CFuncPtr):
        function = ctypes.cast(function, ctypes.c_void_p).value
    elif not isinstance(function, int):
        function = attribute_of(function, "address")  # Numba's
    if not isinstance(function, int) or function <= 0:
        raise errors.InvalidArgumentError(
            f"executable plugin: '{name}' is no C function; pass an address, a ctypes function or a Numba "
            "cfunc"
        )
    return function, 0


def open_plugin(plugin: str | os.PathLike[str] | Mapping[str, Any]) -> ImportProvider:
    """A plugin library by path, or C functions by name.

    A path with prefix ``embedded:`` or suffix ``.sos`` is an embedded ELF library.
    """
    if isinstance(plugin, Mapping):
        return FunctionTable(plugin)
    if not isinstance(plugin, (str, os.PathLike)):
        raise errors.InvalidArgumentError(f"expected the path of a plugin but got a {type(plugin).__name__}")
    text = os.fspath(plugin)
    with errors.error_context(f"loading executable plugin '{text}'"):
        path = Path(text.removeprefix(EMBEDDED_PREFIX))
        if text.startswith(EMBEDDED_PREFIX) or text.endswith(EMBEDDED_SUFFIX):
            return PluginLibrary(_open_embedded(path))
        return PluginLibrary(SharedObject.from_path(path))


def _open_embedded(path: Path) -> _PluginFile:
    architecture = host_architecture()
    if architecture is None:
        raise errors.IncompatibleError(
            "embedded ELF libraries cannot be loaded on this machine's architecture"
        )
    if not path.is_file():
        raise errors.NotFoundError(f"no library at '{path}'")
    return load_image(select_slice(memoryview(path.read_bytes()), architecture), architecture)
