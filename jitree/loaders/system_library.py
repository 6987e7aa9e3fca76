"""Loads system libraries: executables that the system's dynamic linker opens.

They come from bytes in memory, or by path. What they import comes from plugin libraries and this process: a
plugin library exports a query function; what that gives is a table of functions that load it, unload it and
resolve symbols (interface 0.1).
"""

from __future__ import annotations

import _ctypes
import ctypes
import os
import struct
import tempfile
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from jitree import errors
from jitree.base.callbacks import allocator_address
from jitree.base.finalizers import Finalizer, OwnedDescriptor, uninterrupted
from jitree.base.memory import note_native
from jitree.base.platform import files, open_library, open_math_library
from jitree.base.records import Protocol
from jitree.hal.executable import ExecutableLoader, ExecutableParameters
from jitree.loaders.elf_file import read_elf
from jitree.loaders.elf_format import host_architecture, select_slice
from jitree.loaders.embedded_elf import link_library, load_image
from jitree.loaders.environment import ImportProvider
from jitree.loaders.library import QUERY_SYMBOL, LibraryMemory, NativeExecutable

PRESERVE_VARIABLE: Final = "IREE_PRESERVE_DYLIB_TEMP_FILES"
"""``1`` keeps the temporary files of libraries, another value is the folder to keep them in."""
Buffer = bytes | memoryview

_FORMAT_PREFIX: Final = "system-elf-"
_FOOTER: Final = struct.Struct("<8sIIQQQQ")
"""Magic, version, flags, offset and size of the library, of debug data."""
_FOOTER_MAGIC: Final = b"IREEDBG\0"


class SharedObject:
    """Owns an opened library, closed when nothing refers to the object any more.

    Reads only what the library's own file was mapped to (``Memory`` of :mod:`jitree.loaders.library`).
    """

    def __init__(self, path: str, data: Buffer, keep: OwnedDescriptor | None = None) -> None:
        """Opens a library, of which the file contains ``data``, and what it needs.

        FAILED_PRECONDITION for what is no complete library for this machine, and with the linker's message
        if that refuses it. ``keep`` is closed after the library.
        """
        architecture = host_architecture()
        if architecture is None:
            raise errors.IncompatibleError("libraries cannot be loaded on this machine's architecture")
        # Linkers read what the headers say without looking where a file ends, and end the process.
        read_elf(memoryview(data), architecture)
        open_math_library()
        status = os.stat(path)
        try:
            # All symbols are bound now: with lazy binding a missing one would end the process when called.
            library = open_library(path)
        except OSError as error:
            errors.pass_interruption(error)
            raise errors.FailedPreconditionError(
                f"the system's linker cannot load the library: {error}"
            ) from None
        self._library = library
        self._ranges = files.mapped_ranges(status.st_dev, status.st_ino)
        self._ending = Finalizer(uninterrupted(partial(_close, library._handle, keep)))

    @staticmethod
    def from_bytes(data: Buffer) -> SharedObject:
        """Opens a library from bytes, through a memory file or a temporary one."""
        preserve = os.environ.get(PRESERVE_VARIABLE, "")
        if preserve:
            return SharedObject(_preserved_file(data, None if preserve == "1" else preserve), data)
        opened = files.code_file(data)
        if opened is not None:
            # The linker knows libraries by name: the descriptor, and with it the name, stays taken while the
            # library is open. A second library under the same name would silently be the first.
            return SharedObject(files.path_of(opened.number), data, opened)
        with tempfile.NamedTemporaryFile(prefix="jitree_", suffix=".so") as file:
            file.write(data)
            file.flush()
            return SharedObject(file.name, data)

    @staticmethod
    def from_path(path: Path) -> SharedObject:
        """Opens a library file. NOT_FOUND if there is none."""
        if not path.is_file():
            raise errors.NotFoundError(f"no library at '{path}'")
        return SharedObject(str(path.resolve()), path.read_bytes())

    def symbol(self, name: str) -> int | None:
        """The address of an exported function, None if there is none."""
        try:
            function = self._library[name]
        except AttributeError as error:
            errors.pass_interruption(error)
            return None
        return ctypes.cast(function, ctypes.c_void_p).value

    def read(self, address: int, size: int, what: str) -> memoryview:
        self._range(address, size, what)
        return memoryview(ctypes.string_at(address, size))

    def read_string(self, address: int, what: str) -> bytes:
        """Text up to its NUL, which must lie in the same mapping."""
        available = self._range(address, 1, what).end - address
        text, nul, _ = ctypes.string_at(address, available).partition(b"\0")
        if not nul:
            raise errors.FailedPreconditionError(
                f"the library cannot be loaded: {what} at {address:#x} has no end"
            )
        return text

    def check_code(self, address: int, size: int, what: str) -> int:
        """Where the executable range with these bytes ends; FAILED_PRECONDITION if there is none."""
        found = self._range(address, size, what)
        if not found.executable:
            raise errors.FailedPreconditionError(
                f"the library cannot be loaded: {what} at {address:#x} is not in an executable segment"
            )
        return found.end

    def _range(self, address: int, size: int, what: str) -> files.AddressRange:
        for mapped in self._ranges:
            if mapped.start <= address and address + size <= mapped.end:
                return mapped
        raise errors.FailedPreconditionError(
            f"the library cannot be loaded: {what} ({size} bytes at {address:#x}) is outside its segments"
        )


def _close(handle: int, keep: OwnedDescriptor | None) -> None:
    """Closes a library; ``keep`` lives until then."""
    _ctypes.dlclose(handle)


def _preserved_file(data: Buffer, folder: str | None) -> str:
    with tempfile.NamedTemporaryFile(
        prefix="iree_dylib_", suffix="_mem_.so", dir=folder, delete=False
    ) as file:
        file.write(data)
    return file.name


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
        with errors.error_context(f"loading an executable of format '{parameters.format}'"):
            data = library_bytes(memoryview(parameters.data).cast("B"))
            library = SharedObject.from_bytes(data)
            query = library.symbol(QUERY_SYMBOL)
            if query is None:
                raise errors.NotFoundError(
                    f"the system library does not export {QUERY_SYMBOL}; it is not an IREE executable"
                )
            executable = link_library(library, query, parameters.constants, self._providers)
            note_native(data)
            return executable


def library_bytes(data: memoryview) -> memoryview:
    """The library without what a footer says is debug data.

    FAILED_PRECONDITION for a footer that lies.
    """
    if len(data) < _FOOTER.size:
        return data
    magic, _, _, offset, size, *_ = _FOOTER.unpack_from(data, len(data) - _FOOTER.size)
    if magic != _FOOTER_MAGIC:
        return data
    if offset + size > len(data) - _FOOTER.size:
        raise errors.FailedPreconditionError(
            f"the system library's footer says bytes {offset} to {offset + size}, but there are "
            f"{len(data) - _FOOTER.size}"
        )
    return data[offset : offset + size]


PLUGIN_QUERY_SYMBOL: Final = "iree_hal_executable_plugin_query"
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
        """Opens a plugin and checks its interface, else raises a status. NOT_FOUND without query function,
        FAILED_PRECONDITION for another interface, UNAVAILABLE for sanitizer builds, or the status that the
        plugin's load function returns."""
        self._library = library
        query = library.symbol(PLUGIN_QUERY_SYMBOL)
        if query is None:
            raise errors.NotFoundError(
                f"the library does not export {PLUGIN_QUERY_SYMBOL}; it is no executable plugin"
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
        function = errors.attribute_of(function, "address")  # Numba's
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
