"""Loads system libraries: executables that the system's dynamic linker opens.

They come from bytes in memory, or by path.
"""

from __future__ import annotations

import _ctypes
import ctypes
import os
import struct
import tempfile
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Final

from jitree.base.finalizers import Finalizer, uninterrupted
from jitree.base.memory import note_native
from jitree.base.records import NamedTuple
from jitree.errors import (
    FailedPreconditionError,
    IncompatibleError,
    NotFoundError,
    UnavailableError,
    error_context,
    pass_interruption,
)
from jitree.hal.executable import ExecutableLoader, ExecutableParameters
from jitree.loaders.elf_file import read_elf
from jitree.loaders.elf_format import host_architecture
from jitree.loaders.embedded_elf import link_library
from jitree.loaders.environment import ImportProvider
from jitree.loaders.library import QUERY_SYMBOL, NativeExecutable

PRESERVE_VARIABLE: Final = "IREE_PRESERVE_DYLIB_TEMP_FILES"
"""``1`` keeps the temporary files of libraries, another value is the folder to keep them in."""
Buffer = bytes | memoryview

_DESCRIPTORS: Final = "/proc/self/fd"
_MAPS: Final = "/proc/self/maps"
_MFD_CLOEXEC: Final = 1
_MFD_EXEC: Final = 16
"""Linux 6.3 and newer want to be told that the file will be executed; older kernels refuse the flag."""

_FORMAT_PREFIX: Final = "system-elf-"
_FOOTER: Final = struct.Struct("<8sIIQQQQ")
"""Magic, version, flags, offset and size of the library, of debug data."""
_FOOTER_MAGIC: Final = b"IREEDBG\0"


class _AddressRange(NamedTuple):
    start: int
    end: int
    executable: bool


class _Descriptor:
    """An open file, closed with the object."""

    def __init__(self, number: int) -> None:
        self._ending = Finalizer(partial(os.close, number))


class SharedObject:
    """Owns an opened library, closed when nothing refers to the object any more.

    Reads only what the library's own file was mapped to (``Memory`` of :mod:`jitree.loaders.library`).
    """

    def __init__(self, path: str, data: Buffer, keep: _Descriptor | None = None) -> None:
        """Opens a library, of which the file contains ``data``, and what it needs.

        FAILED_PRECONDITION for what is no complete library for this machine, and with the linker's message
        if that refuses it. ``keep`` is closed after the library.
        """
        architecture = host_architecture()
        if architecture is None:
            raise IncompatibleError("libraries cannot be loaded on this machine's architecture")
        # Linkers read what the headers say without looking where a file ends, and end the process.
        read_elf(memoryview(data), architecture)
        _make_math_library_global()
        status = os.stat(path)
        try:
            # All symbols are bound now: with lazy binding a missing one would end the process when called.
            library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as error:
            pass_interruption(error)
            raise FailedPreconditionError(f"the system's linker cannot load the library: {error}") from None
        self._library = library
        self._ranges = _mapped_ranges(status.st_dev, status.st_ino)
        self._ending = Finalizer(uninterrupted(partial(_close, library._handle, keep)))

    @staticmethod
    def from_bytes(data: Buffer) -> SharedObject:
        """Opens a library from bytes, through a memory file or a temporary one."""
        preserve = os.environ.get(PRESERVE_VARIABLE, "")
        if preserve:
            return SharedObject(_preserved_file(data, None if preserve == "1" else preserve), data)
        descriptor = _memory_file(data) if os.path.isdir(_DESCRIPTORS) else None
        if descriptor is not None:
            # The linker knows libraries by name: the descriptor, and with it the name, stays taken while the
            # library is open. A second library under the same name would silently be the first.
            return SharedObject(f"{_DESCRIPTORS}/{descriptor}", data, _Descriptor(descriptor))
        with tempfile.NamedTemporaryFile(prefix="jitree_", suffix=".so") as file:
            file.write(data)
            file.flush()
            return SharedObject(file.name, data)

    @staticmethod
    def from_path(path: Path) -> SharedObject:
        """Opens a library file. NOT_FOUND if there is none."""
        if not path.is_file():
            raise NotFoundError(f"no library at '{path}'")
        return SharedObject(str(path.resolve()), path.read_bytes())

    def symbol(self, name: str) -> int | None:
        """The address of an exported function, None if there is none."""
        try:
            function = self._library[name]
        except AttributeError as error:
            pass_interruption(error)
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
            raise FailedPreconditionError(f"the library cannot be loaded: {what} at {address:#x} has no end")
        return text

    def check_code(self, address: int, size: int, what: str) -> int:
        """Where the executable range with these bytes ends; FAILED_PRECONDITION if there is none."""
        found = self._range(address, size, what)
        if not found.executable:
            raise FailedPreconditionError(
                f"the library cannot be loaded: {what} at {address:#x} is not in an executable segment"
            )
        return found.end

    def _range(self, address: int, size: int, what: str) -> _AddressRange:
        for mapped in self._ranges:
            if mapped.start <= address and address + size <= mapped.end:
                return mapped
        raise FailedPreconditionError(
            f"the library cannot be loaded: {what} ({size} bytes at {address:#x}) is outside its segments"
        )


def _close(handle: int, keep: _Descriptor | None) -> None:
    """Closes a library; ``keep`` lives until then."""
    _ctypes.dlclose(handle)


@cache
def _make_math_library_global() -> ctypes.CDLL | None:
    """Compiled libraries use functions of the C math library without saying that they need it."""
    try:
        return ctypes.CDLL("libm.so.6", mode=os.RTLD_GLOBAL | os.RTLD_NOW)
    except OSError as error:  # where it is part of the C library, which is global anyway
        pass_interruption(error)
        return None


def _memory_file(data: Buffer) -> int | None:
    """The descriptor of a file in memory; None where that is not allowed."""
    for flags in (_MFD_CLOEXEC | _MFD_EXEC, _MFD_CLOEXEC):
        try:
            descriptor = os.memfd_create("jitree-executable", flags)
        except (AttributeError, OSError) as error:
            pass_interruption(error)
            continue
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
        return descriptor
    return None


def _preserved_file(data: Buffer, folder: str | None) -> str:
    with tempfile.NamedTemporaryFile(
        prefix="iree_dylib_", suffix="_mem_.so", dir=folder, delete=False
    ) as file:
        file.write(data)
    return file.name


def _mapped_ranges(device: int, inode: int) -> tuple[_AddressRange, ...]:
    """Where a file is mapped in this process; neighbouring ranges of one kind as one."""
    wanted = f"{os.major(device):02x}:{os.minor(device):02x}", str(inode)
    ranges: list[_AddressRange] = []
    try:
        lines = Path(_MAPS).read_text().splitlines()
    except OSError as error:
        pass_interruption(error)
        raise UnavailableError(f"libraries of the system cannot be used without '{_MAPS}': {error}") from None
    for line in lines:
        place, rights, _, file_device, file_inode, *_ = line.split(maxsplit=5)
        if (file_device, file_inode) != wanted or "r" not in rights:
            continue
        start, end = (int(part, 16) for part in place.split("-"))
        ranges.append(_AddressRange(start, end, "x" in rights))
    return tuple(ranges)


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
    """The library without what a footer says is debug data.

    FAILED_PRECONDITION for a footer that lies.
    """
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
