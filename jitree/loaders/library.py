"""The executable library ABI, versions 3 to 6: what a loaded library says about itself.

The versions differ in where fields lie: one row of offsets each. Everything is read through a
``LibraryMemory``, which refuses addresses that are not the library's. ``NativeExecutable`` is
what the local drivers run of it, as ENTRY_POINT records with names.
"""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate, chain, count, repeat
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from jitree.base.memory import NAMES_CODE, name_code
from jitree.base.records import NamedTuple, Protocol
from jitree.errors import FailedPreconditionError, NotFoundError, OutOfRangeError, UnavailableError
from jitree.hal.command_layout import ENTRY_POINT, ENTRY_SEQUENTIAL
from jitree.hal.executable import LocalExecutable, SourceLocation
from jitree.loaders.environment import Environment

if TYPE_CHECKING:
    from jitree.regs.handles import HandleTable


_ENTRY: Final = struct.Struct("<3q6i")
assert _ENTRY.size == ENTRY_POINT.size
_UNKNOWN: Final = -1
_NONE: Final[tuple[tuple[Any, ...], ...]] = ((),) * 7


class EntryPoint(NamedTuple):
    """A function. Counts are None when the executable does not state them."""

    name: str | None
    code: int
    """Address."""
    environment: int
    """Address that every call gets."""
    local_memory: int
    """Bytes that each workgroup in flight needs for itself."""
    constant_count: int | None
    binding_count: int | None
    flags: int
    """ENTRY_*"""


class TabledExecutable(LocalExecutable):
    """An executable whose functions are known when it is loaded.

    Code that keeps the address of an entry point, an environment or a function keeps the executable.
    """

    def __init__(self, name: str, entries: Sequence[EntryPoint]) -> None:
        self._name = name
        self._entry_points = tuple(entries)
        names, codes, environments, memory, *counts, flags = zip(*entries, strict=True) if entries else _NONE
        constants, bindings = ([_UNKNOWN if number is None else number for number in row] for row in counts)
        self._ordinals = {name: ordinal for ordinal, name in enumerate(names) if name is not None}
        zeros = repeat(0)
        self._entries = array("q", b"".join(map(
            _ENTRY.pack, codes, environments, zeros, memory, flags, constants, bindings, count(), zeros
        )))  # fmt: skip
        self._first_entry: int = self._entries.buffer_info()[0]

    def fill_entry(self, table: HandleTable, address: int) -> None:
        """Its functions; in the extension the address of their names."""
        table.set_extent(address, self._first_entry, self.function_count)
        table.i64[(address + table.extension - table.base) >> 3] = self._names[0].buffer_info()[0]

    @cached_property
    def _names(self) -> tuple[array[int], array[int]]:
        """(address, length) of each function's name, length -1 where a look-up would not find it; and the
        bytes."""
        parts = [(entry[0] or "").encode() for entry in self._entry_points]
        text = array("B", b"".join(parts))
        places = accumulate(map(len, parts), initial=text.buffer_info()[0])
        known = frozenset(self._ordinals.values())
        lengths = [len(part) if ordinal in known else -1 for ordinal, part in enumerate(parts)]
        return array("q", chain.from_iterable(zip(places, lengths, strict=False))), text

    @property
    def name(self) -> str:
        return self._name

    @property
    def function_count(self) -> int:
        return len(self._entry_points)

    def function_name(self, ordinal: int) -> str:
        """The symbol name, ``""`` when the executable has no names."""
        return self._entry_points[ordinal].name or ""

    def function_label(self, ordinal: int) -> str:
        """A name for messages: the function's, or ``executable[ordinal]``."""
        return self._entry_points[ordinal].name or f"{self._name}[{ordinal}]"

    def lookup(self, name: str) -> int:
        """The ordinal of a function. NOT_FOUND when there is none, UNAVAILABLE when there are no names."""
        ordinal = self._ordinals.get(name)
        if ordinal is not None:
            return ordinal
        if self._entry_points and not self._ordinals:
            raise UnavailableError(
                f"executable '{self.name}' was compiled without function names, so '{name}' cannot be looked "
                "up; compile with --iree-llvmcpu-debug-symbols=true"
            )
        raise NotFoundError(
            f"executable '{self.name}' has no function '{name}'; it has {', '.join(self._ordinals) or 'none'}"
        )

    def constant_count(self, ordinal: int) -> int | None:
        """32-bit words that the function takes; None when the executable does not say."""
        return self._entry_points[ordinal].constant_count

    def binding_count(self, ordinal: int) -> int | None:
        """Bindings that the function takes; None when the executable does not say."""
        return self._entry_points[ordinal].binding_count

    def function_address(self, ordinal: int) -> int:
        return self._entry_points[ordinal].code

    def local_memory(self, ordinal: int) -> int:
        """Bytes of memory that each workgroup in flight needs for itself."""
        return self._entry_points[ordinal].local_memory

    def entry_point(self, ordinal: int) -> int:
        """Address of the function's ENTRY_POINT record. OUT_OF_RANGE for a function that does not exist."""
        if not 0 <= ordinal < len(self._entry_points):
            raise OutOfRangeError(
                f"executable '{self.name}' has {self.function_count} functions, but number {ordinal} was used"
            )
        return self._first_entry + ordinal * ENTRY_POINT.size


QUERY_SYMBOL: Final = "iree_hal_executable_library_query"
LOCAL_MEMORY_PAGE: Final = 4096
"""Bytes, whatever the page size of the system."""
UNKNOWN_LOCAL_MEMORY: Final = 256 * 1024
"""Libraries of versions 3 and 4 without attributes may need local memory without saying how much."""
MAXIMUM_COUNT: Final = 64
"""Constants and bindings of a function."""

_QUERY: Final = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p)
_SANITIZERS: Final = ("none", "address", "memory", "thread", "undefined behaviour")


Row: TypeAlias = "list[int] | list[None]"
"""A number for each function, or None for all: the library does not state it."""


class LibraryMemory(Protocol):
    """Reads a loaded library's tables; each raises FAILED_PRECONDITION for addresses outside the library."""

    def read(self, address: int, size: int, what: str) -> memoryview: ...

    def read_string(self, address: int, what: str) -> bytes: ...

    def check_code(self, address: int, size: int, what: str) -> int: ...


class LibraryLayout(NamedTuple):
    """Byte offsets in the library struct of one version; -1: the version has no such field."""

    version: int
    size: int
    names: int
    tags: int
    source_locations: int
    stage_locations: int
    constant_count: int
    sources: int
    attributes_size: int
    local_memory_pages: int
    constants: int
    bindings: int
    flags: int
    """The last four: offsets in one attributes record."""


LAYOUTS: Final = (
    #      version size names tags source stage constants sources | size pages constants bindings flags
    LibraryLayout(6, 128, 64, 72, 88, 96, 104, 112, 64, 8, 10, 11, 0),
    LibraryLayout(5, 104, 48, 56, 64, 72, 80, 88, 72, 0, 2, 3, -1),
    LibraryLayout(4, 104, 48, 56, 64, 72, 80, 88, 4, 0, -1, -1, -1),
    LibraryLayout(3, 80, 48, 56, 64, -1, 72, -1, 4, 0, -1, -1, -1),
)
"""The newest is asked for first; a library answers to its own version only."""
_HEADER_SIZE: Final = 24
_IMPORTS: Final = 8
_EXPORTS: Final = 24
_FUNCTIONS: Final = 32
_ATTRIBUTES: Final = 40
assert ENTRY_SEQUENTIAL == 1  # as the flag of a library's function


class Library:
    """The tables of a library in memory.

    ``address`` is that of its struct, which the query function gave for ``layout.version``; every call of a
    function gets ``environment``.
    """

    def __init__(self, memory: LibraryMemory, address: int, layout: LibraryLayout, environment: int) -> None:
        self._memory = memory
        self._layout = layout
        self._fields = bytes(memory.read(address, layout.size, "the library struct"))
        self.version: int = layout.version
        self.name = self._read_header()
        self.constant_count = self._u32(layout.constant_count)
        count, symbols = self._u32(_IMPORTS), self._pointer(_IMPORTS + 8)
        self.imports = tuple(self._strings(self._pointers(symbols, count, "the import table"), "imports"))
        """Symbols; a leading ``?`` marks an optional one."""
        self.functions = self._read_functions(environment)

    def source_location(self, function: int) -> SourceLocation | None:
        """Where the function comes from, if the library was compiled with that."""
        table = self._pointer(self._layout.source_locations)
        return self._location(table + 16 * function) if table else None

    def stage_locations(self, function: int) -> dict[str, SourceLocation]:
        """Source location by compilation stage, for libraries compiled with debug information."""
        table = self._pointer(self._layout.stage_locations)
        if not table:
            return {}
        record = self._memory.read(table + 24 * function, 24, "a stage location table")
        count, names, locations = struct.unpack("<IxxxxQQ", record)
        return {
            name: self._location(locations + 16 * index)
            for index, name in enumerate(
                self._strings(self._pointers(names, count, "the stage names"), "stages")
            )
        }

    def source_files(self) -> dict[str, bytes]:
        """Contents by path of the sources that the library carries."""
        if self._layout.sources < 0:
            return {}
        count, files = self._u32(self._layout.sources), self._pointer(self._layout.sources + 8)
        table = self._memory.read(files, 32 * count, "the source file table") if count else b""
        return {
            self._text(path, path_length): bytes(self._memory.read(content, length, "a source file"))
            for path_length, path, length, content in struct.iter_unpack("<IxxxxQIxxxxQ", table)
        }

    def _read_header(self) -> str:
        header = self._memory.read(self._pointer(0), _HEADER_SIZE, "the library header")
        version, name, _, sanitizer = struct.unpack("<IxxxxQII", header)
        if version != self._layout.version:
            raise FailedPreconditionError(
                f"the executable library answers to version {self._layout.version}, but its header says "
                f"{version}"
            )
        if sanitizer:
            kind = _SANITIZERS[sanitizer] if sanitizer < len(_SANITIZERS) else f"number {sanitizer}"
            raise UnavailableError(
                f"the executable library was compiled for the {kind} sanitizer, which this process does not "
                "run; compile without sanitizer"
            )
        return self._strings([name], "the library")[0] if name else ""

    def _read_functions(self, environment: int) -> list[EntryPoint]:
        layout, count = self._layout, self._u32(_EXPORTS)
        codes = self._pointers(self._pointer(_FUNCTIONS), count, "the function table")
        first = min(codes, default=0)
        size = max(codes, default=0) - first + 1
        end = self._memory.check_code(first, size, "the functions of the library") if codes else 0
        table = self._pointer(layout.names)
        places = self._pointers(table, count, "the function names") if table else (0,) * count
        names = [name or None for name in self._strings(places, "functions")]
        if NAMES_CODE:
            name_code({f"{self.name}.{name}": code for name, code in zip(names, codes, strict=True)}, end)
        columns = self._read_attributes(count)
        for name, constants, bindings in zip(names, *columns[1:3], strict=True):
            if (constants or 0) > MAXIMUM_COUNT or (bindings or 0) > MAXIMUM_COUNT:
                raise OutOfRangeError(
                    f"function {name} of the executable library has {constants} constants and {bindings} "
                    f"bindings; at most {MAXIMUM_COUNT} of each can be passed"
                )
        return list(map(EntryPoint, names, codes, repeat(environment), *columns))

    def _read_attributes(self, count: int) -> tuple[Iterable[int], Row, Row, Iterable[int]]:
        """Of each function the local memory, constants, bindings and ENTRY_*."""
        layout, size = self._layout, self._layout.attributes_size
        unknown, none = [None] * count, [0] * count
        address = self._pointer(_ATTRIBUTES)
        if not address:
            return [UNKNOWN_LOCAL_MEMORY if layout.constants < 0 else 0] * count, unknown, unknown, none
        table = self._memory.read(address, size * count, "the function attributes")
        low, high = (table[layout.local_memory_pages + byte :: size] for byte in range(2))
        return (
            [(pages + (more << 8)) * LOCAL_MEMORY_PAGE for pages, more in zip(low, high, strict=True)],
            unknown if layout.constants < 0 else table[layout.constants :: size].tolist(),
            unknown if layout.bindings < 0 else table[layout.bindings :: size].tolist(),
            none if layout.flags < 0 else [flags & ENTRY_SEQUENTIAL for flags in table[layout.flags :: size]],
        )

    def _location(self, address: int) -> SourceLocation:
        record = self._memory.read(address, 16, "a source location")
        line, length, path = struct.unpack("<IIQ", record)
        return SourceLocation(self._text(path, length), line)

    def _strings(self, places: Sequence[int], what: str) -> list[str]:
        """The names at addresses, all of one segment; empty ones at null."""
        what, known = f"the names of {what}", [place for place in places if place]
        if not known:
            return [""] * len(places)
        first, last = min(known), max(known)
        end = last + len(self._memory.read_string(last, what))
        texts = bytes(self._memory.read(first, end + 1 - first, what))
        return [
            str(texts[place - first : texts.index(0, place - first)], "utf-8", "replace") if place else ""
            for place in places
        ]

    def _text(self, address: int, length: int) -> str:
        if not length:
            return ""
        return bytes(self._memory.read(address, length, "a path")).decode("utf-8", "replace")

    def _pointers(self, table: int, count: int, what: str) -> tuple[int, ...]:
        if not count:
            return ()
        return struct.unpack(f"<{count}Q", self._memory.read(table, 8 * count, what))

    def _u32(self, offset: int) -> int:
        return int.from_bytes(self._fields[offset : offset + 4], "little")

    def _pointer(self, offset: int) -> int:
        return int.from_bytes(self._fields[offset : offset + 8], "little") if offset >= 0 else 0


def query_library(memory: LibraryMemory, query: int, environment: int) -> Library:
    """Asks the query function at address ``query`` for each known version in turn.

    FAILED_PRECONDITION if it answers to none, UNAVAILABLE for sanitizer builds.
    """
    function = _QUERY(query)
    for layout in LAYOUTS:
        address = function(layout.version, environment)
        if address:
            return Library(memory, address, layout, environment)
    versions = ", ".join(str(layout.version) for layout in reversed(LAYOUTS))
    raise FailedPreconditionError(
        f"the executable library has none of the versions {versions} that can be run; it was compiled by an "
        "IREE release older than January 2024 or newer than 3.13"
    )


class NativeExecutable(TabledExecutable):
    """A loaded library with its environment. Its memory is unmapped when the last reference goes."""

    def __init__(self, library: Library, environment: Environment, image: object) -> None:
        """``image`` is what keeps the library mapped."""
        self._library = library
        self._environment = environment
        self._image = image
        super().__init__(library.name, library.functions)

    @property
    def library_version(self) -> int:
        """Of the executable library ABI, 3 to 6."""
        return self._library.version

    @property
    def environment_address(self) -> int:
        return self._environment.address

    def sequential(self, ordinal: int) -> bool:
        """Whether workgroups of one dispatch must not run at the same time."""
        return bool(self._library.functions[ordinal].flags & ENTRY_SEQUENTIAL)

    def source_location(self, ordinal: int) -> SourceLocation | None:
        return self._library.source_location(ordinal)

    def stage_locations(self, ordinal: int) -> dict[str, SourceLocation]:
        return self._library.stage_locations(ordinal)

    def source_files(self) -> dict[str, bytes]:
        return self._library.source_files()
